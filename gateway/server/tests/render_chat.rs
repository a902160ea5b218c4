//! The rendering process, spoken to as the gateway does: what it takes away from itself, and how it ends.
#![allow(clippy::unwrap_used, reason = "a failed step fails its test")]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

/// Number of the signal for too much processor time, on Linux.
const SIGXCPU: i32 = 24;

/// One that has said that its limits stand; ended when dropped.
struct Process(Child);

impl Process {
    fn start() -> Self {
        Self::started_by(Command::new(env!("CARGO_BIN_EXE_bulkhead")))
    }

    fn started_by(mut command: Command) -> Self {
        command.arg("render-chat").env_clear().env("MIMALLOC_ARENA_RESERVE", "0");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut process = Self(child);
        assert_eq!(process.frame().as_deref(), Some(&b"bulkhead render-chat 1"[..]));
        process
    }

    fn send(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap().to_le_bytes();
        let input = self.0.stdin.as_mut().unwrap();
        input.write_all(&[&length[..], bytes].concat()).unwrap();
    }

    /// `None` when it has ended.
    fn frame(&mut self) -> Option<Vec<u8>> {
        let output = self.0.stdout.as_mut().unwrap();
        let mut length = [0; 4];
        output.read_exact(&mut length).ok()?;
        let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
        output.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    /// What it makes of one message; `None` when it ends over it.
    fn render(&mut self, template: &str) -> Option<Vec<u8>> {
        self.send(template.as_bytes());
        assert_eq!(self.frame().as_deref(), Some(&[0][..]), "compiled");
        self.send(&conversation());
        self.frame()
    }

    /// The number of a limit, in the system's words for it.
    fn limit(&self, name: &str) -> String {
        let limits = fs::read_to_string(format!("/proc/{}/limits", self.0.id())).unwrap();
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        line[name.len()..].split_whitespace().next().unwrap().to_owned()
    }

    fn address_space_bytes(&self) -> u64 {
        let sizes = fs::read_to_string(format!("/proc/{}/statm", self.0.id())).unwrap();
        sizes.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// A user's `Hello`.
fn conversation() -> Vec<u8> {
    let text = |text: &str| [&u32::try_from(text.len()).unwrap().to_le_bytes()[..], text.as_bytes()].concat();
    [text("<s>"), text("</s>"), 1_u32.to_le_bytes().to_vec(), text("user"), text("Hello")].concat()
}

#[test]
fn it_takes_its_rights_away_before_it_reads_anything() {
    let process = Process::start();
    for name in ["Max core file size", "Max file size", "Max open files"] {
        assert_eq!(process.limit(name), "0", "{name}");
    }
    let memory: u64 = process.limit("Max address space").parse().unwrap();
    let used = process.address_space_bytes();
    assert!(memory > used && memory <= used + (600 << 20), "{memory} of {used}");
}

#[test]
fn it_keeps_nothing_open_that_it_inherited() {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "exec \"$0\" \"$1\" 5< /dev/zero 9< /proc/self/status", env!("CARGO_BIN_EXE_bulkhead")]);
    let process = Process::started_by(shell);
    let open = fs::read_dir(format!("/proc/{}/fd", process.0.id())).unwrap();
    let open: Vec<_> = open.map(|fd| fs::read_link(fd.unwrap().path()).unwrap()).collect();
    let open: Vec<_> = open.iter().map(|file| file.to_str().unwrap()).collect();
    assert!(open.iter().all(|file| file.starts_with("pipe:") || *file == "/dev/null"), "{open:?}");
    assert!(open.len() >= 3, "{open:?}");
}

#[test]
fn the_system_ends_a_rendering_that_uses_the_processor_for_too_long() {
    // Without the limit it would answer in the end.
    let slow = "{% set a = 'a' * 9000000 %}{% set b = 'a' * 9000000 %}{% for i in range(30000) %}{% if a != b %}x{% endif %}{% endfor %}";
    let mut process = Process::start();
    assert_eq!(process.render(slow), None);
    assert_eq!(process.0.wait().unwrap().signal(), Some(SIGXCPU));
}

#[test]
fn every_rendering_has_time_of_its_own() {
    // Each of them is far below the limit, and all of them are far above it.
    let brief = "{% for i in range(60000) %}{% for i in [1, 2] %}{% endfor %}{% endfor %}x";
    let mut process = Process::start();
    assert_eq!(process.render(brief).as_deref(), Some(&b"\x02x"[..]));
    let used = |process: &Process| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.0.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        // Hundredths of a second, in the user's code and in the system's.
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    while used(&process) < 400 {
        process.send(&conversation());
        assert_eq!(process.frame().as_deref(), Some(&b"\x02x"[..]));
    }
}

#[test]
fn it_gets_no_more_memory_than_its_limit() {
    let mut process = Process::start();
    let doubling = "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x|list|length }}";
    assert_eq!(process.render(doubling), None);
}

#[test]
fn it_ends_with_its_input_and_says_nothing_to_nonsense() {
    let mut process = Process::start();
    drop(process.0.stdin.take());
    assert!(process.0.wait().unwrap().success());
    let mut process = Process::start();
    assert_eq!(process.render("{{ messages[0].content }}").as_deref(), Some(&b"\x02Hello"[..]));
    process.send(b"nonsense");
    assert_eq!(process.frame(), None);
    assert_eq!(process.0.wait().unwrap().code(), Some(1));
}
