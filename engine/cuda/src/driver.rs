//! The one place that calls the driver.
#![allow(unsafe_code, reason = "two queries of the driver have no safe form in cudarc")]

use crate::{Device, ProbeError};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

pub(crate) fn devices() -> Result<Vec<Device>, ProbeError> {
    // SAFETY: opens the library by name and closes it again; no pointer is involved.
    if !unsafe { sys::is_culib_present() } {
        return Err(ProbeError::NoDriver);
    }
    // cudarc panics when the library lacks a function that it binds: an older driver than these bindings.
    std::panic::catch_unwind(query).unwrap_or(Err(ProbeError::TooOld))
}

fn query() -> Result<Vec<Device>, ProbeError> {
    result::init().map_err(refused)?;
    let count = result::device::get_count().map_err(refused)?;
    let device = |ordinal| {
        let device = result::device::get(ordinal).map_err(refused)?;
        let name = result::device::get_name(device).map_err(refused)?;
        // SAFETY: `device` was returned by the driver in the line above.
        let memory_bytes = unsafe { result::device::total_mem(device) }.map_err(refused)? as u64;
        Ok(Device { ordinal: ordinal.unsigned_abs() as usize, name, memory_bytes })
    };
    let devices: Vec<Device> = (0..count).map(device).collect::<Result<_, _>>()?;
    if devices.is_empty() { Err(ProbeError::NoDevice) } else { Ok(devices) }
}

fn refused(error: DriverError) -> ProbeError {
    match error.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => ProbeError::NoDevice,
        code => ProbeError::Driver { code: code as u32 },
    }
}
