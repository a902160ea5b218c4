//! What a gateway and its rendering processes say to each other: frames of a length (u32, little-endian) and so many bytes.
//!
//! The gateway writes a template's source once, and then conversations; each gets one answer. A process begins with
//! [`HELLO`], when its limits stand. Both sides believe nothing: every length is bounded before it is used, and a frame
//! with anything missing, left over or not UTF-8 is none.

use engine_model::{
    ChatMessage, Conversation, MESSAGES_MAX, PRINTABLE_BYTES_MAX, RENDERING_BYTES_MAX, RenderError, TEXT_BYTES_MAX,
    printable,
};
use std::io::{self, Read};

/// The first frame of a process: what it speaks.
pub(super) const HELLO: &[u8] = b"bulkhead render-chat 1";
/// Longest frame to a process, bytes: the longest text that can be tokenized, and something for the rest.
pub(super) const FRAME_BYTES_MAX: usize = TEXT_BYTES_MAX + (1 << 20);
/// Longest frame from a process, bytes: the longest rendering, and its tag. Room for all other answers, too.
pub(super) const ANSWER_BYTES_MAX: usize = RENDERING_BYTES_MAX + 1;
const LENGTH_BYTES: usize = 4;

/// What a process answers.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// To a source.
    Compiled,
    /// To a source: it does not compile.
    Mistake { line: usize, kind: String },
    /// To a conversation.
    Text(Rendering),
    /// To a conversation.
    Refused(RenderError),
}

/// A rendered conversation. Its `Debug` does not show it.
#[derive(PartialEq)]
pub(super) struct Rendering(pub(super) String);

impl std::fmt::Debug for Rendering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rendering({} bytes)", self.0.len())
    }
}

impl Answer {
    /// What a conversation came to.
    pub(super) fn into_rendering(self) -> Result<String, RenderError> {
        match self {
            Self::Text(Rendering(text)) => Ok(text),
            Self::Refused(error) => Err(error),
            Self::Compiled | Self::Mistake { .. } => Err(RenderError::TooMuchWork),
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut frame = Writer::new();
        match self {
            Self::Compiled => frame.0.push(0),
            Self::Mistake { line, kind } => frame.tagged(1).place(*line, kind),
            Self::Text(Rendering(text)) => frame.tagged(2).0.extend_from_slice(text.as_bytes()),
            Self::Refused(RenderError::Raised { reason: None }) => frame.0.push(3),
            Self::Refused(RenderError::Raised { reason: Some(reason) }) => frame.tagged(4).text(reason),
            Self::Refused(RenderError::TooMuchWork) => frame.0.push(5),
            Self::Refused(RenderError::Failed { line, kind }) => frame.tagged(6).place(*line, kind),
            Self::Refused(RenderError::Unavailable) => frame.0.push(7),
        }
        frame.finish()
    }

    /// `None` for anything that [`Answer::encode`] does not write.
    pub(super) fn decode(bytes: Vec<u8>) -> Option<Self> {
        if let Some((2, _)) = bytes.split_first() {
            // Long, and therefore not copied.
            let mut text = bytes;
            text.drain(..1);
            return String::from_utf8(text).ok().map(|text| Self::Text(Rendering(text)));
        }
        let mut reader = Reader(&bytes);
        let answer = match reader.byte()? {
            0 => Self::Compiled,
            1 => reader.place().map(|(line, kind)| Self::Mistake { line, kind })?,
            3 => Self::Refused(RenderError::Raised { reason: None }),
            4 => Self::Refused(RenderError::Raised { reason: Some(reader.words()?) }),
            5 => Self::Refused(RenderError::TooMuchWork),
            6 => reader.place().map(|(line, kind)| Self::Refused(RenderError::Failed { line, kind }))?,
            7 => Self::Refused(RenderError::Unavailable),
            _ => return None,
        };
        reader.0.is_empty().then_some(answer)
    }
}

/// The frame of a source.
pub(super) fn source(source: &str) -> Vec<u8> {
    let mut frame = Writer::new();
    frame.0.extend_from_slice(source.as_bytes());
    frame.finish()
}

/// The frame that a process begins with.
pub(super) fn hello() -> Vec<u8> {
    let mut frame = Writer::new();
    frame.0.extend_from_slice(HELLO);
    frame.finish()
}

/// The frame of a conversation; `None` when it is longer than any that can be tokenized.
pub(super) fn conversation(conversation: &Conversation<'_>) -> Option<Vec<u8>> {
    let Conversation { messages, bos, eos } = conversation;
    let texts = messages.iter().map(|message| message.role.len() + message.content.len() + 2 * LENGTH_BYTES);
    let bytes = texts.sum::<usize>() + bos.len() + eos.len() + 3 * LENGTH_BYTES;
    if bytes > FRAME_BYTES_MAX || messages.len() > MESSAGES_MAX {
        return None;
    }
    let mut frame = Writer::new();
    frame.0.reserve_exact(bytes);
    frame.text(bos);
    frame.text(eos);
    frame.number(messages.len());
    for message in *messages {
        frame.text(&message.role);
        frame.text(&message.content);
    }
    Some(frame.finish())
}

/// A conversation as a process has it.
#[derive(Debug)]
pub(super) struct ReadConversation {
    messages: Vec<ChatMessage>,
    bos: String,
    eos: String,
}

impl ReadConversation {
    /// `None` for anything that [`conversation`] does not write.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let (bos, eos) = (reader.text()?.to_owned(), reader.text()?.to_owned());
        let count = reader.number()?;
        if count > MESSAGES_MAX {
            return None;
        }
        let mut messages = Vec::with_capacity(count);
        for _ in 0..count {
            messages.push(ChatMessage { role: reader.text()?.to_owned(), content: reader.text()?.to_owned() });
        }
        reader.0.is_empty().then_some(Self { messages, bos, eos })
    }

    pub(super) fn view(&self) -> Conversation<'_> {
        Conversation { messages: &self.messages, bos: &self.bos, eos: &self.eos }
    }
}

/// Reads one frame; `None` at the end of the stream.
///
/// # Errors
/// What reading says; `InvalidData` for one longer than `bytes_max`, `UnexpectedEof` for one that is cut.
pub(super) fn read(from: &mut impl Read, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; LENGTH_BYTES];
    let mut got = 0;
    while got < length.len() {
        match from.read(&mut length[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let length = u32::from_le_bytes(length);
    if length as usize > bytes_max {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // Grows with what comes, not with what was promised.
    let mut bytes = Vec::new();
    from.take(length.into()).read_to_end(&mut bytes)?;
    if bytes.len() < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(bytes))
}

/// A frame in the making: room for its length, then its bytes.
struct Writer(Vec<u8>);

impl Writer {
    fn new() -> Self {
        Self(vec![0; LENGTH_BYTES])
    }

    fn tagged(&mut self, tag: u8) -> &mut Self {
        self.0.push(tag);
        self
    }

    /// Everything that is counted here is below [`FRAME_BYTES_MAX`]; the other side refuses what is not.
    fn number(&mut self, number: usize) {
        self.0.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }

    fn place(&mut self, line: usize, kind: &str) {
        self.number(line);
        self.text(kind);
    }

    fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - LENGTH_BYTES).unwrap_or(u32::MAX);
        self.0[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// What is left of a frame.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn number(&mut self) -> Option<usize> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        usize::try_from(u32::from_le_bytes(*number)).ok()
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = self.number()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        std::str::from_utf8(text).ok()
    }

    /// A text that is for people. The process may have been taken over: what it says is read as a file's words are.
    fn words(&mut self) -> Option<String> {
        Some(printable(self.text()?, PRINTABLE_BYTES_MAX))
    }

    fn place(&mut self) -> Option<(usize, String)> {
        Some((self.number()?, self.words()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers() -> Vec<Answer> {
        let (line, kind) = (7, "unknown method".to_owned());
        vec![
            Answer::Compiled,
            Answer::Mistake { line, kind: kind.clone() },
            Answer::Text(Rendering("a\u{1f600}".to_owned())),
            Answer::Text(Rendering(String::new())),
            Answer::Refused(RenderError::Raised { reason: None }),
            Answer::Refused(RenderError::Raised { reason: Some("roles must alternate".to_owned()) }),
            Answer::Refused(RenderError::TooMuchWork),
            Answer::Refused(RenderError::Failed { line, kind }),
            Answer::Refused(RenderError::Unavailable),
        ]
    }

    fn message(role: &str, content: &str) -> ChatMessage {
        ChatMessage { role: role.to_owned(), content: content.to_owned() }
    }

    #[test]
    fn what_is_written_is_read() {
        for answer in answers() {
            let frame = answer.encode();
            let bytes = read(&mut frame.as_slice(), FRAME_BYTES_MAX).unwrap().unwrap();
            assert_eq!(Answer::decode(bytes), Some(answer));
        }
        let messages = [message("user", "\u{e9}\0"), message("assistant", "")];
        let frame = conversation(&Conversation { messages: &messages, bos: "<s>", eos: "" }).unwrap();
        let read = ReadConversation::decode(&frame[LENGTH_BYTES..]).unwrap();
        assert!(read.messages == messages && read.bos == "<s>" && read.eos.is_empty());
    }

    #[test]
    fn answers_that_are_cut_or_longer_or_unknown_are_none() {
        for answer in answers().into_iter().filter(|answer| !matches!(answer, Answer::Text(_))) {
            let bytes = answer.encode()[LENGTH_BYTES..].to_vec();
            for cut in 0..bytes.len() {
                assert_eq!(Answer::decode(bytes[..cut].to_vec()), None, "{answer:?} cut to {cut}");
            }
            assert_eq!(Answer::decode([&bytes[..], b"x"].concat()), None, "{answer:?}");
        }
        assert_eq!(Answer::decode(b"\x02\xff".to_vec()), None);
        assert_eq!(Answer::decode(vec![8]), None);
    }

    #[test]
    fn words_of_a_process_are_cut_and_control_nothing() {
        let kind = format!("a\nb\u{1b}[2J{}", "R".repeat(900_000));
        for answer in [
            Answer::Mistake { line: 1, kind: kind.clone() },
            Answer::Refused(RenderError::Raised { reason: Some(kind.clone()) }),
            Answer::Refused(RenderError::Failed { line: 1, kind }),
        ] {
            let shown = format!("{:?}", Answer::decode(answer.encode()[LENGTH_BYTES..].to_vec()).unwrap());
            assert!(shown.contains("a\u{fffd}b\u{fffd}[2JRRR") && shown.len() < 400, "{shown}");
        }
    }

    #[test]
    fn conversations_that_are_cut_or_longer_or_too_many_are_none() {
        let messages = [message("user", "Hello")];
        let frame = conversation(&Conversation { messages: &messages, bos: "<s>", eos: "</s>" }).unwrap();
        let bytes = &frame[LENGTH_BYTES..];
        for cut in 0..bytes.len() {
            assert!(ReadConversation::decode(&bytes[..cut]).is_none(), "cut to {cut}");
        }
        assert!(ReadConversation::decode(&[bytes, b"x"].concat()).is_none());
        let many = vec![message("user", ""); MESSAGES_MAX + 1];
        assert!(conversation(&Conversation { messages: &many, bos: "", eos: "" }).is_none());
        // A promise of four thousand million messages is not believed.
        assert!(ReadConversation::decode(&[[0; 8], [0xff; 8]].concat()).is_none());
    }

    #[test]
    fn a_frame_that_promises_too_much_or_is_cut_is_an_error() {
        let kind = |bytes: &[u8]| read(&mut &bytes[..], 5).map_err(|error| error.kind());
        assert_eq!(kind(b""), Ok(None));
        assert_eq!(kind(b"\x05\0\0\0abcde"), Ok(Some(b"abcde".to_vec())));
        assert_eq!(kind(b"\x06\0\0\0abcdef"), Err(io::ErrorKind::InvalidData));
        assert_eq!(kind(b"\xff\xff\xff\xff"), Err(io::ErrorKind::InvalidData));
        assert_eq!(kind(b"\x05\0\0"), Err(io::ErrorKind::UnexpectedEof));
        assert_eq!(kind(b"\x05\0\0\0abcd"), Err(io::ErrorKind::UnexpectedEof));
    }

    #[test]
    fn debug_shows_no_text() {
        let messages = [message("user", "CANARY")];
        let frame = conversation(&Conversation { messages: &messages, bos: "", eos: "" }).unwrap();
        let read = ReadConversation::decode(&frame[LENGTH_BYTES..]).unwrap();
        let shown = format!("{read:?} {:?}", Answer::Text(Rendering("CANARY".to_owned())));
        assert!(!shown.contains("CANARY"), "{shown}");
    }
}
