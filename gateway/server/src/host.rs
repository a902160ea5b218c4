//! The listener: accepts connections on our own runtime, bounds their number, and drains them. When the places are all
//! taken, the connection that has waited longest for its client makes room; only when none waits is a newcomer refused.

use crate::exchange::{Entrance, Site, turned_on};
use crate::seats::Seats;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

/// Pause after a failed accept: out of file descriptors, the next one would fail at once as well.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const TOO_MANY_CONNECTIONS: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n\
content-type: application/json\r\ncontent-length: 114\r\n\r\n\
{\"error\":{\"message\":\"too many connections\",\"type\":\"overloaded_error\",\"param\":null,\"code\":\"too_many_connections\"}}\n";

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1024;
/// Bytes that the kernel holds for a client that does not read (it doubles the number). By default it would hold
/// megabytes, and the engine would work to the end for a reader that has long stalled. Enough for 10 Mbit/s at 100 ms.
const SEND_BUFFER_BYTES: u32 = 64 << 10;

/// Opens the listening socket; its settings pass to the connections.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restart must not wait for old connections to time out. Two listeners on one port stay impossible.
    socket.set_reuseaddr(true)?;
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A running listener.
pub(crate) struct Host {
    address: SocketAddr,
    shutdown: watch::Sender<bool>,
    accepting: JoinHandle<JoinSet<()>>,
}

impl Host {
    /// Starts to accept. At most `connections_max` are served at a time; when requests are in progress on all of them,
    /// the next one is told so and closed.
    pub(crate) fn start<S: Site>(
        listener: TcpListener,
        entrance: Entrance<S>,
        connections_max: usize,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let (shutdown, watched) = watch::channel(false);
        let accepting = tokio::spawn(accept(listener, Arc::new(entrance), connections_max, watched));
        Ok(Self { address, shutdown, accepting })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting at once, lets responses in progress end, and cuts what is left after `limit`.
    /// True when nothing had to be cut.
    pub(crate) async fn drain(self, limit: Duration) -> bool {
        // Idle connections and the accept loop see it; a receiver is always there.
        let _ = self.shutdown.send(true);
        let Ok(mut connections) = self.accepting.await else { return false };
        let all_ended = async { while connections.join_next().await.is_some() {} };
        let in_time = timeout(limit, all_ended).await.is_ok();
        connections.shutdown().await;
        in_time
    }
}

async fn accept<S: Site>(
    listener: TcpListener,
    entrance: Arc<Entrance<S>>,
    connections_max: usize,
    shutdown: watch::Receiver<bool>,
) -> JoinSet<()> {
    let mut connections = JoinSet::new();
    let seats = Arc::new(Seats::default());
    let mut stop = shutdown.clone();
    loop {
        tokio::select! {
            biased;
            () = turned_on(&mut stop) => return connections,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => {
                    // A connection that is asked to leave ends at once: its task awaits nothing else.
                    if connections.len() >= connections_max && seats.give_away_one() {
                        tracing::debug!("a connection without a request made room for another");
                        connections.join_next().await;
                    }
                    if connections.len() < connections_max {
                        connections.spawn(entrance.clone().converse(socket, seats.take(), shutdown.clone()));
                    } else {
                        refuse(socket);
                    }
                }
                Err(error) => {
                    tracing::warn!(kind = %error.kind(), "accepting a connection failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

/// Says why, without waiting: the send buffer of a new connection is empty.
fn refuse(socket: TcpStream) {
    if let Ok(mut socket) = socket.into_std() {
        let _ = socket.write(TOO_MANY_CONNECTIONS);
    }
}

#[cfg(test)]
mod tests {
    use super::TOO_MANY_CONNECTIONS;

    #[test]
    fn the_fixed_refusal_says_its_true_length() {
        let text = std::str::from_utf8(TOO_MANY_CONNECTIONS).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}
