//! A connection between two processes that know each other: frames in order, of bounded size and number.

use crate::connection::{ConnectError, Socket};
use crate::frame::{self, Frame, NoFrame, PING};
use crate::role::Role;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_rustls::TlsStream;

/// After so long without a frame to send, the peer is told that one is there.
const PING_EVERY: Duration = Duration::from_secs(2);
/// A peer that says nothing for so long is gone.
const SILENCE_LIMIT: Duration = Duration::from_secs(10);
/// How long the last frames and the farewell may take when the sender is dropped.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How often it is looked for a frame that is due at once.
const LOOK: Duration = Duration::from_millis(2);

/// What both ends allow. They bound the memory of a link: `frames_max` frames of `frame_bytes_max` in each direction,
/// and one more being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkTerms {
    /// Bytes of a frame, without its header.
    pub frame_bytes_max: usize,
    /// Frames that wait to be sent, and frames that wait to be taken; at least 1.
    pub frames_max: usize,
}

/// A handshake's result.
pub(crate) struct Opened {
    pub(crate) stream: TlsStream<Box<dyn Socket>>,
    pub(crate) peer: Role,
    pub(crate) secret: [u8; 32],
}

/// Why a link is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The connection broke, or was cut by somebody who is not the peer.
    #[error("the connection broke: {0}")]
    Broken(String),
    /// A frame longer than the terms allow.
    #[error("the peer sent a frame of {bytes} bytes, at most {bytes_max} are allowed")]
    TooLong {
        /// As it said.
        bytes: u32,
        /// As the terms say.
        bytes_max: usize,
    },
    /// Nothing was heard of the peer.
    #[error("nothing was heard of the peer in time")]
    Silent,
}

/// How a link is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// The peer said all that it had to say.
    Closed,
    /// Something else.
    Failed(LinkError),
}

/// Both ends of what a process has of a link.
#[derive(Debug)]
pub struct Link {
    peer: Role,
    secret: [u8; 32],
    sender: LinkSender,
    receiver: LinkReceiver,
}

/// Sends. When all of them are dropped, the peer is told that this was all.
#[derive(Clone, Debug)]
pub struct LinkSender {
    frames: mpsc::Sender<Frame>,
    frame_bytes_max: usize,
}

/// Receives. When it is dropped, what comes is thrown away.
#[derive(Debug)]
pub struct LinkReceiver {
    frames: mpsc::Receiver<Frame>,
    end: Arc<Mutex<Option<LinkEnd>>>,
}

impl Link {
    /// Gives the connection to a thread of its own.
    pub(crate) fn start(runtime: Runtime, opened: Opened, terms: LinkTerms) -> Result<Self, ConnectError> {
        let Opened { stream, peer, secret } = opened;
        let (outgoing, to_send) = mpsc::channel(terms.frames_max.max(1));
        let (incoming, frames) = mpsc::channel(terms.frames_max.max(1));
        let end = Arc::new(Mutex::new(None));
        let carrier = Carrier { frame_bytes_max: terms.frame_bytes_max, end: end.clone() };
        std::thread::Builder::new()
            .name(format!("link-{peer}"))
            .spawn(move || runtime.block_on(carrier.carry(stream, to_send, incoming)))
            .map_err(ConnectError::Runtime)?;
        let sender = LinkSender { frames: outgoing, frame_bytes_max: terms.frame_bytes_max };
        Ok(Self { peer, secret, sender, receiver: LinkReceiver { frames, end } })
    }

    /// Which part of the engine the other end is, by its certificate.
    #[must_use]
    pub fn peer(&self) -> Role {
        self.peer
    }

    /// 32 bytes that both ends of this connection know and nobody else: for keys of what is sent over it (RFC 8446,
    /// exporters).
    #[must_use]
    pub fn secret(&self) -> [u8; 32] {
        self.secret
    }

    /// For two threads.
    #[must_use]
    pub fn split(self) -> (LinkSender, LinkReceiver) {
        (self.sender, self.receiver)
    }
}

impl LinkSender {
    /// Hands a frame over to be sent; waits while as many as the terms allow are waiting. `false`: the link is over, or the
    /// frame is not one of the terms' (kind 0, or too long), and nothing was sent.
    ///
    /// Not for asynchronous tasks.
    #[must_use]
    pub fn send(&self, frame: Frame) -> bool {
        self.takes(&frame) && self.frames.blocking_send(frame).is_ok()
    }

    /// As [`LinkSender::send`], for asynchronous tasks.
    ///
    /// # Cancel safety
    /// When the future is dropped, the frame was not sent.
    #[must_use]
    pub async fn send_async(&self, frame: Frame) -> bool {
        self.takes(&frame) && self.frames.send(frame).await.is_ok()
    }

    fn takes(&self, frame: &Frame) -> bool {
        frame.kind != PING && frame.bytes.len() <= self.frame_bytes_max
    }
}

impl LinkReceiver {
    /// As [`LinkReceiver::receive`], for at most so long; pings do not count. For what is due at once: it looks often.
    ///
    /// # Errors
    /// [`LinkEnd`], and [`LinkError::Silent`] when nothing came.
    pub fn receive_within(&mut self, limit: Duration) -> Result<Frame, LinkEnd> {
        let until = Instant::now() + limit;
        loop {
            match self.frames.try_recv() {
                Ok(frame) => return Ok(frame),
                Err(mpsc::error::TryRecvError::Disconnected) => return self.receive(),
                Err(mpsc::error::TryRecvError::Empty) if Instant::now() < until => std::thread::sleep(LOOK),
                Err(mpsc::error::TryRecvError::Empty) => return Err(LinkEnd::Failed(LinkError::Silent)),
            }
        }
    }

    /// Waits for the next frame. Not for asynchronous tasks.
    ///
    /// # Errors
    /// [`LinkEnd`], after all frames that came before it.
    pub fn receive(&mut self) -> Result<Frame, LinkEnd> {
        if let Some(frame) = self.frames.blocking_recv() {
            return Ok(frame);
        }
        // Nothing is in it only when its thread panicked.
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Err(end.unwrap_or_else(|| LinkEnd::Failed(LinkError::Broken("its thread ended".to_owned()))))
    }
}

/// What a link's thread knows.
struct Carrier {
    frame_bytes_max: usize,
    end: Arc<Mutex<Option<LinkEnd>>>,
}

impl Carrier {
    /// Both directions, until both have ended or one of them failed.
    async fn carry(self, stream: impl Socket, to_send: mpsc::Receiver<Frame>, incoming: mpsc::Sender<Frame>) {
        let (mut reading, mut writing) = tokio::io::split(stream);
        let mut receiving = std::pin::pin!(self.receive(&mut reading, incoming));
        let mut sending = std::pin::pin!(send(&mut writing, to_send));
        let sent = tokio::select! {
            // The peer has said all; this end may go on as long as the peer stays.
            is_whole = &mut receiving => if is_whole { sending.await } else { Ok(()) },
            sent = &mut sending => {
                if sent.is_ok() {
                    // This end has said all; the peer is listened to for a while.
                    let _late = tokio::time::timeout(CLOSE_LIMIT, receiving).await;
                }
                sent
            }
        };
        self.ended(
            sent.map_or_else(|error| LinkEnd::Failed(LinkError::Broken(error.to_string())), |()| LinkEnd::Closed),
        );
    }

    /// The first word counts.
    fn ended(&self, how: LinkEnd) {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(how);
    }

    /// Whether the peer came to its end.
    async fn receive(&self, from: &mut (impl AsyncRead + Unpin), incoming: mpsc::Sender<Frame>) -> bool {
        let failure = loop {
            let next = tokio::time::timeout(SILENCE_LIMIT, frame::read(from, self.frame_bytes_max)).await;
            match next {
                Ok(Ok(Frame { kind: PING, .. })) => (),
                // Nobody takes it any more: what comes is thrown away.
                Ok(Ok(frame)) => drop(incoming.send(frame).await),
                Ok(Err(NoFrame::End)) => {
                    self.ended(LinkEnd::Closed);
                    return true;
                }
                Ok(Err(NoFrame::TooLong { bytes })) => {
                    break LinkError::TooLong { bytes, bytes_max: self.frame_bytes_max };
                }
                Ok(Err(NoFrame::Io(error))) => break LinkError::Broken(reason(&error)),
                Err(_) => break LinkError::Silent,
            }
        };
        self.ended(LinkEnd::Failed(failure));
        false
    }
}

/// For an operator; a peer that was killed says no farewell, which libraries explain at length.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "the peer's process ended, or the connection was cut".to_owned(),
        _ => error.to_string(),
    }
}

/// Sends until there are no more senders, then says farewell.
async fn send(to: &mut (impl AsyncWrite + Unpin), mut frames: mpsc::Receiver<Frame>) -> io::Result<()> {
    let ping = Frame { kind: PING, bytes: Vec::new() };
    loop {
        match tokio::time::timeout(PING_EVERY, frames.recv()).await {
            Err(_) => frame::write(to, &ping).await?,
            Ok(Some(frame)) => {
                frame::write(to, &frame).await?;
                if !frames.is_empty() {
                    continue;
                }
            }
            Ok(None) => break,
        }
        to.flush().await?;
    }
    tokio::time::timeout(CLOSE_LIMIT, to.shutdown()).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::DuplexStream;
    use tokio::task::JoinHandle;
    use tokio::time::Instant as Clock;

    struct Near {
        /// Until it is dropped.
        sender: Option<mpsc::Sender<Frame>>,
        frames: mpsc::Receiver<Frame>,
        end: Arc<Mutex<Option<LinkEnd>>>,
        carrying: JoinHandle<()>,
        far: DuplexStream,
        began: Clock,
    }

    /// One end of a link, and what its peer holds.
    fn near() -> Near {
        let (stream, far) = tokio::io::duplex(1 << 10);
        let (sender, to_send) = mpsc::channel(4);
        let (incoming, frames) = mpsc::channel(4);
        let end = Arc::new(Mutex::new(None));
        let carrying =
            tokio::spawn(Carrier { frame_bytes_max: 100, end: end.clone() }.carry(stream, to_send, incoming));
        Near { sender: Some(sender), frames, end, carrying, far, began: Clock::now() }
    }

    impl Near {
        async fn end(mut self) -> (LinkEnd, Duration) {
            assert_eq!(self.frames.recv().await, None);
            let end = self.end.lock().unwrap().clone().unwrap();
            drop(self.sender.take());
            let passed = self.began.elapsed();
            self.carrying.await.unwrap();
            (end, passed)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_says_nothing_is_gone_and_one_that_pings_is_not() {
        let near = near();
        let (end, passed) = near.end().await;
        assert_eq!((end, passed), (LinkEnd::Failed(LinkError::Silent), SILENCE_LIMIT));
        let mut near = self::near();
        let ping = Frame { kind: PING, bytes: Vec::new() };
        for _ in 0..20 {
            tokio::time::sleep(SILENCE_LIMIT - PING_EVERY).await;
            frame::write(&mut near.far, &ping).await.unwrap();
            // It pings too.
            assert_eq!(frame::read(&mut near.far, 0).await.unwrap(), ping);
        }
        let said = Frame { kind: 7, bytes: vec![1] };
        frame::write(&mut near.far, &said).await.unwrap();
        assert_eq!(near.frames.recv().await, Some(said), "pings are nobody's business");
        drop(std::mem::replace(&mut near.far, tokio::io::duplex(1).0));
        let (end, passed) = near.end().await;
        assert_eq!((end, passed), (LinkEnd::Closed, 20 * (SILENCE_LIMIT - PING_EVERY)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_frame_that_never_ends_is_silence_and_a_peer_is_not_listened_to_for_ever() {
        let mut near = near();
        near.far.write_all(&[7, 50, 0, 0, 0, 1, 2, 3]).await.unwrap();
        let (end, passed) = near.end().await;
        assert_eq!((end, passed), (LinkEnd::Failed(LinkError::Silent), SILENCE_LIMIT));
        let mut near = self::near();
        drop(near.sender.take());
        let (end, passed) = near.end().await;
        assert_eq!((end, passed), (LinkEnd::Closed, CLOSE_LIMIT));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_frame_ends_the_link() {
        let mut near = near();
        near.far.write_all(&[7, 101, 0, 0, 0]).await.unwrap();
        let (end, _) = near.end().await;
        assert_eq!(end, LinkEnd::Failed(LinkError::TooLong { bytes: 101, bytes_max: 100 }));
        let mut near = self::near();
        near.far.write_all(&[7, 50, 0, 0, 0, 1]).await.unwrap();
        near.far.shutdown().await.unwrap();
        let (end, _) = near.end().await;
        assert!(matches!(end, LinkEnd::Failed(LinkError::Broken(_))), "cut within a frame: {end:?}");
    }
}
