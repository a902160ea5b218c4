//! How often a log's gateway tried its own detectors, as a fold over the entries: how many times, how many of them failed, and the
//! longest time in which nobody looked.

use audit_provenance::SelfTest;
use std::collections::HashSet;

/// The self-tests of a log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SelfTests {
    /// How many.
    pub tests: u64,
    /// Of those, in which a control did not pass or a fault was not found.
    pub failed: u64,
    /// The longest time between two that follow each other, in microseconds; 0 for fewer than two.
    pub longest_gap_us: u64,
    /// When the first was written, in microseconds since 1970; 0 without one.
    pub first_us: u64,
    /// When the last was; likewise.
    pub last_us: u64,
}

impl SelfTests {
    /// Takes in the next one.
    pub fn take(&mut self, wall_us: u64, test: &SelfTest) {
        if self.tests > 0 {
            self.longest_gap_us = self.longest_gap_us.max(wall_us.saturating_sub(self.last_us));
        } else {
            self.first_us = wall_us;
        }
        self.tests += 1;
        self.failed += u64::from(!test.passed());
        self.last_us = wall_us;
    }
}

/// The incidents that self-tests began.
#[derive(Debug, Default)]
pub(crate) struct SelfTestIncidents(HashSet<[u8; 16]>);

impl SelfTestIncidents {
    /// Whether this one begins another, where it has one at all.
    pub(crate) fn begins(&mut self, test: &SelfTest) -> Option<[u8; 16]> {
        test.incident.filter(|incident| self.0.insert(*incident))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use audit_provenance::DetectorTrial;
    use policies_domain::Trial;

    #[test]
    fn the_longest_time_is_between_two_that_follow_each_other() {
        let test = |incident, fault_found| {
            let trial = Trial { control_passed: true, fault_found };
            SelfTest { incident, detectors: vec![DetectorTrial { detector: "gate".into(), trial }] }
        };
        let mut tests = SelfTests::default();
        assert_eq!(tests, SelfTests { tests: 0, failed: 0, longest_gap_us: 0, first_us: 0, last_us: 0 });
        tests.take(100, &test(None, true));
        assert_eq!(tests, SelfTests { tests: 1, failed: 0, longest_gap_us: 0, first_us: 100, last_us: 100 });
        tests.take(107, &test(Some([1; 16]), false));
        tests.take(137, &test(Some([1; 16]), false));
        tests.take(140, &test(None, true));
        assert_eq!(tests, SelfTests { tests: 4, failed: 2, longest_gap_us: 30, first_us: 100, last_us: 140 });
        let mut incidents = SelfTestIncidents::default();
        assert_eq!(incidents.begins(&test(None, true)), None);
        assert_eq!(incidents.begins(&test(Some([1; 16]), false)), Some([1; 16]));
        assert_eq!(incidents.begins(&test(Some([1; 16]), false)), None, "it goes on");
    }
}
