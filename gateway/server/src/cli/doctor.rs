//! `bulkhead doctor`: what Bulkhead finds on this machine, line by line. Changes nothing.

use super::{environment, fetch, machine};
use engine_kernels::KernelFamily;
use std::io::{self, Write};

/// Prints the report.
///
/// # Errors
/// The output cannot be written.
pub(crate) fn report(out: &mut impl Write) -> io::Result<()> {
    let machine = machine::Machine::read();
    writeln!(out, "bulkhead     {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "system       {}", machine.system)?;
    writeln!(out, "processor    {}", machine.cpu)?;
    writeln!(out, "instructions {}", machine.flags.join(" "))?;
    writeln!(out, "cores        {}", machine.cores)?;
    writeln!(
        out,
        "memory       {} ({} available)",
        mebibytes(machine.memory_bytes),
        mebibytes(machine::memory_available_bytes())
    )?;
    writeln!(out, "kernels      {}", KernelFamily::detect())?;
    match engine_cuda::probe() {
        Ok(devices) => {
            for device in devices {
                let memory = mebibytes(Some(device.memory_bytes));
                writeln!(out, "cuda         device {}: {}, {memory} (found, not used)", device.ordinal, device.name)?;
            }
        }
        Err(error) => writeln!(out, "cuda         {error}")?,
    }
    match environment::data_home() {
        Some(folder) => match fetch::present(&folder) {
            Some(path) => writeln!(out, "model        {}", path.display()),
            None => writeln!(out, "model        not fetched yet (`bulkhead model fetch`, or `--model PATH`)"),
        },
        None => writeln!(out, "model        no data folder: neither XDG_DATA_HOME nor HOME is set"),
    }
}

fn mebibytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "unknown".to_owned(), |bytes| format!("{} MiB", bytes >> 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_has_a_line_for_everything_that_one_would_ask() {
        let mut out = Vec::new();
        report(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for name in ["processor", "cores", "memory", "kernels", "cuda", "model"] {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no line `{name}`"));
            assert!(line.len() > 13, "{line}");
        }
    }
}
