//! A gateway that tried its own detectors, as an entry. One that failed begins an incident that is of no request and of no tenant,
//! or is another word of the one that goes on.

use crate::cbor::{DecodeError, Reader, Writer};
use crate::entry::{short_text, yes_or_no};
use policies_domain::Trial;

/// Detectors that one entry tells of: with names of 64 bytes they take little more than half of what an entry may have.
pub const DETECTORS_MAX: usize = 32;
/// Bytes of a detector's name.
const NAME_BYTES_MAX: usize = 64;

/// What came of trying all detectors once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelfTest {
    /// The incident that this begins or goes on with; `None` when all detectors work.
    pub incident: Option<[u8; 16]>,
    /// Each detector that was tried, 1 to [`DETECTORS_MAX`].
    pub detectors: Vec<DetectorTrial>,
}

/// What came of trying one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetectorTrial {
    /// Its name, of 1 to 64 bytes.
    pub detector: String,
    /// What came of it.
    pub trial: Trial,
}

impl SelfTest {
    /// The incident's class, as reports name it.
    pub const CLASS_NAME: &'static str = "detector_failed";
    /// How bad it is, as reports name it: what was released since the last test that passed is not known to be checked.
    pub const SEVERITY_NAME: &'static str = "critical";

    /// Whether all detectors work.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.detectors.iter().all(|tried| tried.trial.passed())
    }

    /// Names of the detectors that do not.
    #[must_use]
    pub fn failed(&self) -> Vec<&str> {
        let failed = self.detectors.iter().filter(|tried| !tried.trial.passed());
        failed.map(|tried| tried.detector.as_str()).collect()
    }

    /// Whoever failed says so by its incident, and nobody else has one; each detector is named once.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let named = |tried: &DetectorTrial| (1..=NAME_BYTES_MAX).contains(&tried.detector.len());
        let once = |(place, tried): (usize, &DetectorTrial)| {
            !self.detectors.iter().take(place).any(|before| before.detector == tried.detector)
        };
        (1..=DETECTORS_MAX).contains(&self.detectors.len())
            && self.detectors.iter().all(named)
            && self.detectors.iter().enumerate().all(once)
            && self.passed() == self.incident.is_none()
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.bytes_or_null(self.incident.as_ref().map(<[u8; 16]>::as_slice)).array(self.detectors.len() as u64);
        for DetectorTrial { detector, trial } in &self.detectors {
            writer.array(3).text(detector).uint(trial.control_passed.into()).uint(trial.fault_found.into());
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let incident = if reader.null() { None } else { Some(reader.fixed("incident")?) };
        let count = usize::try_from(reader.array()?).unwrap_or(usize::MAX);
        if count > DETECTORS_MAX {
            return Err(DecodeError::Range { field: "detectors" });
        }
        let mut detectors = Vec::with_capacity(count);
        for _ in 0..count {
            reader.array_of(3, "detector")?;
            let detector = short_text(reader, "detector")?;
            let control_passed = yes_or_no(reader, "control")?;
            let fault_found = yes_or_no(reader, "fault")?;
            detectors.push(DetectorTrial { detector, trial: Trial { control_passed, fault_found } });
        }
        let test = Self { incident, detectors };
        if test.is_consistent() { Ok(test) } else { Err(DecodeError::Range { field: "self-test" }) }
    }
}
