//! What goes over a link: a kind, a length and so many bytes.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The kind of a frame that only says that its sender is there.
pub(crate) const PING: u8 = 0;
/// Kind and length (u32, little-endian).
const HEADER_BYTES: usize = 5;

/// One frame. Its `Debug` does not show the bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    /// What it is, to those who use the link; not 0.
    pub kind: u8,
    /// At most as many bytes as the link's terms allow.
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame({}, {} bytes)", self.kind, self.bytes.len())
    }
}

/// What came instead of a frame.
#[derive(Debug)]
pub(crate) enum NoFrame {
    /// The other end has said all that it had to say.
    End,
    /// A length beyond the terms. Nothing was allocated for it.
    TooLong {
        bytes: u32,
    },
    Io(io::Error),
}

/// The next frame, a ping too.
pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin), bytes_max: usize) -> Result<Frame, NoFrame> {
    let mut header = [0; HEADER_BYTES];
    // An end between two frames is none within one.
    let first = from.read(&mut header).await.map_err(NoFrame::Io)?;
    if first == 0 {
        return Err(NoFrame::End);
    }
    from.read_exact(&mut header[first..]).await.map_err(NoFrame::Io)?;
    let [kind, length @ ..] = header;
    let length = u32::from_le_bytes(length);
    if length as usize > bytes_max {
        return Err(NoFrame::TooLong { bytes: length });
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes).await.map_err(NoFrame::Io)?;
    Ok(Frame { kind, bytes })
}

pub(crate) async fn write(to: &mut (impl AsyncWrite + Unpin), frame: &Frame) -> io::Result<()> {
    let length = u32::try_from(frame.bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut header = [frame.kind; HEADER_BYTES];
    header[1..].copy_from_slice(&length.to_le_bytes());
    to.write_all(&header).await?;
    to.write_all(&frame.bytes).await
}
