//! Programs that are no renderers, and what a gateway makes of them. The real one is in `tests/gateway/templates.rs`.

use super::*;
use engine_model::ChatMessage;
use std::os::unix::fs::PermissionsExt;
use std::sync::MutexGuard;
use tempfile::TempDir;

/// No program can be started while another process, forked at that moment, still has it open for writing.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A shell script in a folder of its own.
fn program(script: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    (folder, path)
}

/// A line of a script that writes these bytes.
fn say(bytes: &[u8]) -> String {
    let octal: String = bytes.iter().map(|byte| format!("\\{byte:03o}")).collect();
    format!("printf '{octal}'\n")
}

/// A script that compiles `x`, reads the beginning of a conversation, and goes on with `then`.
fn compiles_and(then: &str) -> String {
    let (hello, compiled) = (say(&frame::hello()), say(&Answer::Compiled.encode()));
    format!("{hello}head -c 5 > /dev/null\n{compiled}head -c 4 > /dev/null\n{then}")
}

fn render(script: &str) -> Result<String, RenderError> {
    let (_folder, path) = program(script);
    let processes = RenderProcesses { answer_limit: Duration::from_secs(3), ..RenderProcesses::new(&path, 1) };
    let template = processes.compile("x").unwrap();
    let messages = [ChatMessage { role: "user".to_owned(), content: "Hello".to_owned() }];
    template.render(&Conversation { messages: &messages, bos: "", eos: "" })
}

fn text(text: &str) -> Vec<u8> {
    Answer::Text(frame::Rendering(text.to_owned())).encode()
}

#[test]
fn a_process_that_does_not_answer_is_given_up() {
    let _alone = alone();
    let late = format!("sleep 12\n{}cat > /dev/null", say(&text("late")));
    // It used no processor time, so the conversation is not to blame; and there is no third try.
    assert_eq!(render(&compiles_and(&late)), Err(RenderError::Unavailable));
}

/// What a template with this program for its first process, and one that answers for all later ones, makes of a
/// conversation; and how many processes there were.
fn after(first: &str) -> (Result<String, RenderError>, usize) {
    let folder = tempfile::tempdir().unwrap();
    let begun = folder.path().join("begun");
    let (count, begins) = (format!("echo >> {}\n", begun.display()), say(&frame::hello()));
    let compiles = format!("{begins}head -c 5 > /dev/null\n{}head -c 4 > /dev/null\n", say(&Answer::Compiled.encode()));
    let first = format!("if [ $(wc -l < {}) = 1 ]; then {first}\nexit; fi\n", begun.display());
    let (_folder, path) = program(&format!("{count}{compiles}{first}{}cat > /dev/null", say(&text("right"))));
    let processes = RenderProcesses { answer_limit: Duration::from_secs(3), ..RenderProcesses::new(&path, 1) };
    let template = processes.compile("x").unwrap();
    let messages = [ChatMessage { role: "user".to_owned(), content: "Hello".to_owned() }];
    let rendered = template.render(&Conversation { messages: &messages, bos: "", eos: "" });
    (rendered, std::fs::read_to_string(begun).unwrap().lines().count())
}

#[test]
fn a_process_that_is_lost_while_it_works_costs_no_request() {
    let _alone = alone();
    for first in ["kill -KILL $$", "kill -TERM $$", "exit 1", "sleep 12"] {
        assert_eq!(after(first), (Ok("right".to_owned()), 2), "{first}");
    }
}

#[test]
fn what_a_template_does_to_its_process_is_not_tried_again() {
    let _alone = alone();
    for first in ["kill -XCPU $$", "kill -ABRT $$", "kill -SEGV $$"] {
        assert_eq!(after(first), (Err(RenderError::TooMuchWork), 1), "{first}");
    }
}

#[test]
fn a_process_that_answers_nonsense_is_given_up() {
    let _alone = alone();
    let right = text("right");
    let answers = |bytes: &[u8]| render(&compiles_and(&say(bytes)));
    assert_eq!(answers(&right).as_deref(), Ok("right"));
    let cut = &right[..right.len() - 1];
    let endless = u32::MAX.to_le_bytes();
    for nonsense in [&b"\x01\0\0\0\x09"[..], b"\0\0\0\0", b"hello", cut, &endless, &Answer::Compiled.encode()] {
        assert_eq!(answers(nonsense), Err(RenderError::Unavailable), "{nonsense:?}");
    }
    assert_eq!(render(&compiles_and("exit 0")), Err(RenderError::Unavailable));
}

#[test]
fn a_program_that_is_no_renderer_is_not_taken_for_one() {
    let _alone = alone();
    let compile = |path: &Path, source: &str| RenderProcesses::new(path, 1).compile(source).err().unwrap();
    for script in ["exit 3", "echo hello", &say(&Answer::Compiled.encode())] {
        let (_folder, path) = program(script);
        let error = compile(&path, "x");
        assert!(matches!(error, LoadTemplateError::Unavailable(_)), "{script}: {error}");
    }
    let error = compile(Path::new("/nowhere/bulkhead"), "x").to_string();
    assert!(error.starts_with("chat templates cannot be compiled: "), "{error}");
    let (_folder, path) = program(&format!("{}head -c 5 > /dev/null\n{}", say(&frame::hello()), say(&text("y"))));
    assert!(matches!(compile(&path, "x"), LoadTemplateError::Unavailable(_)));
    let long = "x".repeat(SOURCE_BYTES_MAX + 1);
    assert!(matches!(compile(&path, &long), LoadTemplateError::TooMuchWork));
}

#[test]
fn a_process_has_nothing_of_the_gateways_and_ends_with_it() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("seen");
    let seen = || std::fs::read_to_string(&file).unwrap();
    let look = format!("{{ echo $$; pwd; env; }} > {}\n", file.display());
    let (_folder, path) = program(&format!("{look}{}", compiles_and("cat > /dev/null")));
    let template = RenderProcesses::new(&path, 1).compile("x").unwrap();
    let (pid, rest) = seen().split_once('\n').map(|(pid, rest)| (pid.to_owned(), rest.to_owned())).unwrap();
    // What a shell adds by itself.
    let given = |line: &&str| !["PWD=", "OLDPWD=", "SHLVL=", "_="].iter().any(|name| line.starts_with(name));
    let rest: Vec<&str> = rest.lines().filter(given).collect();
    assert_eq!(rest, ["/", "MIMALLOC_ARENA_RESERVE=0"]);
    let process = Path::new("/proc").join(pid);
    assert!(process.exists());
    drop(template);
    assert!(!process.exists(), "it runs on without its template");
}

#[test]
fn a_process_that_ended_while_it_waited_costs_no_request() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("first").display().to_string();
    let (hello, compiled) = (say(&frame::hello()), say(&Answer::Compiled.encode()));
    let first =
        format!("if [ ! -e {file} ]; then echo $$ > {file}; {hello}head -c 5 > /dev/null\n{compiled}exit; fi\n");
    let (_folder, path) = program(&format!("{first}{}", compiles_and(&say(&text("right")))));
    let template = RenderProcesses::new(&path, 1).compile("x").unwrap();
    let stat = format!("/proc/{}/stat", std::fs::read_to_string(&file).unwrap().trim());
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    let messages = [ChatMessage { role: "user".to_owned(), content: "Hello".to_owned() }];
    let conversation = Conversation { messages: &messages, bos: "", eos: "" };
    assert_eq!(template.render(&conversation).as_deref(), Ok("right"));
}
