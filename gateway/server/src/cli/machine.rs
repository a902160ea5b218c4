//! Facts about this machine, as a report of `doctor` or beside a measurement that means nothing without them.

use serde::Serialize;
use std::fs;

/// What a measurement depends on.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    /// The processor's name.
    pub(crate) cpu: String,
    /// Hardware threads that this process may use.
    pub(crate) cores: usize,
    /// Instruction sets that matter to the kernels, as the system names them.
    pub(crate) flags: Vec<String>,
    /// Memory of the machine.
    pub(crate) memory_bytes: Option<u64>,
    /// The operating system's kernel.
    pub(crate) system: String,
}

/// Instruction sets that kernels of this field use.
const FLAGS: &[&str] = &[
    "f16c",
    "fma",
    "avx",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512dq",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "sha_ni",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
];

impl Machine {
    /// Asks the operating system.
    pub(crate) fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let (system, release) = ("/proc/sys/kernel/ostype", "/proc/sys/kernel/osrelease");
        let line = |path| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        Self {
            cpu: value(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            cores: cores(),
            flags: flags(&cpuinfo),
            memory_bytes: kilobytes(&meminfo, "MemTotal"),
            system: format!("{} {}", line(system), line(release)).trim().to_owned(),
        }
    }
}

/// Hardware threads that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Memory that could be had without swapping.
pub(crate) fn memory_available_bytes() -> Option<u64> {
    kilobytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")
}

/// The most memory that this process ever had resident; the model's mapped file counts.
pub(crate) fn peak_resident_bytes() -> Option<u64> {
    kilobytes(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
}

/// Runnable tasks on average over the last minute; a measurement beside others is no measurement.
pub(crate) fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split(' ').next()?.parse().ok()
}

/// Processor time that all threads of this process have taken so far.
pub(crate) fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The first `name : value` or `name: value` line.
fn value<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

fn kilobytes(text: &str, name: &str) -> Option<u64> {
    let number: u64 = value(text, name)?.strip_suffix(" kB")?.trim().parse().ok()?;
    number.checked_mul(1024)
}

fn flags(cpuinfo: &str) -> Vec<String> {
    let all = value(cpuinfo, "flags").or_else(|| value(cpuinfo, "Features")).unwrap_or_default();
    let has = |flag: &&&str| all.split_ascii_whitespace().any(|other| other == **flag);
    FLAGS.iter().filter(has).map(|flag| (*flag).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUINFO: &str = "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\nflags\t\t: fpu avx avx2 avx512f_not fma\n\
                           processor\t: 1\nmodel name\t: Other\n";

    #[test]
    fn facts_are_read_from_the_systems_files() {
        assert_eq!(value(CPUINFO, "model name"), Some("Some CPU @ 2.00GHz"));
        assert_eq!(flags(CPUINFO), ["fma", "avx", "avx2"]);
        assert_eq!(flags("Features : asimd sha1 i8mm\n"), ["asimd", "i8mm"]);
        assert_eq!(kilobytes("MemTotal:       24 kB\n", "MemTotal"), Some(24 * 1024));
    }

    #[test]
    fn damaged_files_give_no_facts() {
        assert_eq!(value("model name", "model name"), None);
        assert_eq!(flags(""), Vec::<String>::new());
        for text in ["", "MemTotal: x kB", "MemTotal: 24", "MemTotal: 99999999999999999999 kB"] {
            assert_eq!(kilobytes(text, "MemTotal"), None, "{text}");
        }
    }

    #[test]
    fn this_machine_has_a_core_and_this_process_some_memory() {
        assert!(Machine::read().cores >= 1);
        assert!(peak_resident_bytes().is_some_and(|bytes| bytes > 100_000));
    }
}
