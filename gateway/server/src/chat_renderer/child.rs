//! The inside of a rendering process: `bulkhead render-chat`.
//!
//! It takes its rights away before it reads anything: little memory, little time for each piece of work, no files but
//! its two ends of the conversation, no core dump. It knows nothing of tenants or requests.

use super::frame::{self, Answer, FRAME_BYTES_MAX, ReadConversation, Rendering};
use engine_model::{CompileChat, InProcess, LoadTemplateError, RENDERING_BYTES_MAX, RenderChat, RenderError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, RawFd};

/// Memory beyond what the process starts with, bytes: the longest conversation several times over.
const MEMORY_BYTES_MAX: u64 = 512 << 20;
/// Processor time of one compilation or rendering; the system counts whole seconds, so it may be up to one more.
const WORK_SECONDS_MAX: u64 = 1;
/// What the system counts memory in.
const PAGE_BYTES: u64 = 4096;

/// Compiles the template that stdin brings, renders its conversations until stdin ends, and answers on stdout. For the
/// hidden command `render-chat`, which the gateway starts: see [`crate::RenderProcesses`].
///
/// # Errors
/// A limit cannot be set, or the other side does not speak as it should.
#[doc(hidden)]
pub fn render_chat() -> io::Result<()> {
    close_inherited()?;
    // Handles of their own, for no buffer and no lock of the standard streams is wanted; there will be no more files.
    let mut input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    confine()?;
    output.write_all(&frame::hello())?;
    answer_all(&mut input, &mut output, limit_time)
}

/// Closes what the gateway itself may have been started with, and so passed on without knowing. Nothing of this process is
/// open yet but the standard streams.
fn close_inherited() -> io::Result<()> {
    let open = fs::read_dir("/proc/self/fd")?.map(|entry| Ok(entry?.file_name()));
    let open = open.collect::<io::Result<Vec<_>>>()?;
    for fd in open.iter().filter_map(|name| name.to_str()?.parse::<RawFd>().ok()).filter(|fd| *fd > 2) {
        // The one that listed the others is closed already.
        let _closed = nix::unistd::close(fd);
    }
    Ok(())
}

/// Takes away what rendering does not need. A limit that is lower already stays.
fn confine() -> io::Result<()> {
    let memory = address_space_bytes()?.saturating_add(MEMORY_BYTES_MAX);
    for (resource, most) in [(Resource::As, memory), (Resource::Core, 0), (Resource::Fsize, 0), (Resource::Nofile, 0)] {
        let most = getrlimit(resource).maximum.map_or(most, |now| now.min(most));
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}

/// What is mapped now, bytes.
fn address_space_bytes() -> io::Result<u64> {
    let sizes = fs::read_to_string("/proc/self/statm")?;
    let pages = sizes.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
    pages.map(|pages| pages.saturating_mul(PAGE_BYTES)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Allows a little more processor time than was used so far: the system ends the process when it is over.
fn limit_time() -> io::Result<()> {
    let used = u64::try_from(clock_gettime(ClockId::ProcessCPUTime).tv_sec).unwrap_or(0);
    let most = getrlimit(Resource::Cpu).maximum;
    let next = used.saturating_add(1 + WORK_SECONDS_MAX);
    setrlimit(Resource::Cpu, Rlimit { current: Some(most.map_or(next, |most| most.min(next))), maximum: most })?;
    Ok(())
}

/// The conversation between the two sides; `before_work` is called before each piece of work.
fn answer_all(
    input: &mut impl Read,
    output: &mut impl Write,
    before_work: impl Fn() -> io::Result<()>,
) -> io::Result<()> {
    let nonsense = || io::Error::from(io::ErrorKind::InvalidData);
    let Some(source) = frame::read(input, FRAME_BYTES_MAX)? else { return Ok(()) };
    let source = String::from_utf8(source).map_err(|_| nonsense())?;
    before_work()?;
    let (template, answer) = match InProcess.compile(&source) {
        Ok(template) => (Some(template), Answer::Compiled),
        Err(LoadTemplateError::Mistake { line, kind }) => (None, Answer::Mistake { line, kind }),
        Err(LoadTemplateError::TooMuchWork | LoadTemplateError::Unavailable(_)) => return Err(nonsense()),
    };
    output.write_all(&answer.encode())?;
    let Some(template) = template else { return Ok(()) };
    while let Some(conversation) = frame::read(input, FRAME_BYTES_MAX)? {
        let conversation = ReadConversation::decode(&conversation).ok_or_else(nonsense)?;
        before_work()?;
        output.write_all(&render(template.as_ref(), &conversation).encode())?;
    }
    Ok(())
}

fn render(template: &dyn RenderChat, conversation: &ReadConversation) -> Answer {
    match template.render(&conversation.view()) {
        // No context holds it, and the gateway is not to hold it either.
        Ok(text) if text.len() > RENDERING_BYTES_MAX => Answer::Refused(RenderError::TooMuchWork),
        Ok(text) => Answer::Text(Rendering(text)),
        Err(error) => Answer::Refused(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine_model::{ChatMessage, Conversation};

    fn answers(frames: &[Vec<u8>]) -> (io::Result<()>, Vec<Answer>) {
        let mut output = Vec::new();
        let result = answer_all(&mut frames.concat().as_slice(), &mut output, || Ok(()));
        let (mut output, mut answers) = (output.as_slice(), Vec::new());
        while let Some(answer) = frame::read(&mut output, FRAME_BYTES_MAX).unwrap() {
            answers.push(Answer::decode(answer).unwrap());
        }
        (result, answers)
    }

    fn hello() -> Vec<u8> {
        let messages = [ChatMessage { role: "user".to_owned(), content: "Hello".to_owned() }];
        frame::conversation(&Conversation { messages: &messages, bos: "<s>", eos: "</s>" }).unwrap()
    }

    #[test]
    fn every_conversation_gets_its_answer() {
        let source = "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}";
        let (result, said) = answers(&[frame::source(source), hello(), hello()]);
        let text = || Answer::Text(Rendering("<s>user:Hello".to_owned()));
        assert!(result.is_ok());
        assert_eq!(said, [Answer::Compiled, text(), text()]);
        let (_, said) = answers(&[frame::source("{{ raise_exception('no') }}"), hello()]);
        let raised = RenderError::Raised { reason: Some("no".to_owned()) };
        assert_eq!(said, [Answer::Compiled, Answer::Refused(raised)]);
        let (_, said) = answers(&[frame::source("\n{% for %}"), hello()]);
        assert!(matches!(said.as_slice(), [Answer::Mistake { line: 2, .. }]), "{said:?}");
    }

    #[test]
    fn a_text_that_no_context_holds_is_not_sent() {
        let source = format!("{{{{ 'x' * {} }}}}", RENDERING_BYTES_MAX + 1);
        let (_, said) = answers(&[frame::source(&source), hello()]);
        assert_eq!(said, [Answer::Compiled, Answer::Refused(RenderError::TooMuchWork)]);
    }

    #[test]
    fn what_is_no_conversation_ends_the_process() {
        let (result, said) = answers(&[frame::source("x"), frame::source("y"), hello()]);
        assert!(result.is_err());
        assert_eq!(said, [Answer::Compiled]);
        let (result, said) = answers(&[b"\x01\0\0\0\xff".to_vec()]);
        assert!(result.is_err() && said.is_empty());
    }
}
