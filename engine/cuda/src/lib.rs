//! What CUDA devices this machine has. The driver is opened at run time: building needs no toolkit, and a machine
//! without a driver gets a sentence, never a panic.
//!
//! The feature `cuda` adds `cudarc` and with it the look at the driver; without it [`probe`] says that it was not
//! built in. Devices are reported only: all computing is done by the CPU kernels of `engine/kernels`.
#![deny(unsafe_code)]

#[cfg(feature = "cuda")]
mod driver;

/// A CUDA device as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Counted from 0 as the driver does.
    pub ordinal: usize,
    /// The driver's name for it.
    pub name: String,
    /// All of its memory.
    pub memory_bytes: u64,
}

/// Why no device can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// Compiled without the feature.
    #[error("this build has no CUDA support (build with `--features cuda`)")]
    NotBuilt,
    /// The driver's library is not installed.
    #[error("no CUDA driver is installed (`libcuda` was not found)")]
    NoDriver,
    /// The driver is there and there is no device.
    #[error("the CUDA driver found no device")]
    NoDevice,
    /// The driver refused.
    #[error("the CUDA driver failed with code {code}")]
    Driver {
        /// `CUresult`.
        code: u32,
    },
    /// The driver lacks a function that is needed: too old.
    #[error("the CUDA driver is too old")]
    TooOld,
}

/// The devices that the driver reports, at least one.
///
/// # Errors
/// [`ProbeError`] says why there is none.
pub fn probe() -> Result<Vec<Device>, ProbeError> {
    #[cfg(feature = "cuda")]
    return driver::devices();
    #[cfg(not(feature = "cuda"))]
    return Err(ProbeError::NotBuilt);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_described_or_the_reason_is_said() {
        match probe() {
            Ok(devices) => assert!(!devices.is_empty() && devices.iter().all(|device| device.memory_bytes > 0)),
            Err(error) => {
                println!("skipped: {error}");
                assert_eq!(error == ProbeError::NotBuilt, !cfg!(feature = "cuda"));
            }
        }
    }
}
