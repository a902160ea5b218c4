//! How many bytes of pages may be copied from one step to the next.

use std::time::Duration;

/// The part of a step's time that copies of pages may take; the rest is for the passes.
const SHARE: f64 = 0.3;
/// What a machine copies in a microsecond, before one copy was timed. Memory that is touched for the first time is slow.
const BYTES_PER_US: f64 = 350.0;
/// A copy that took longer than this many times what was thought counts as this: something else went on.
const SURPRISE_MAX: f64 = 4.0;

/// Copies of pages delay everybody, because no pass runs meanwhile. What is left of a step's share for them, by what copies
/// took so far.
pub(crate) struct Pace {
    share_us: f64,
    us_per_byte: f64,
    copied_us: f64,
}

impl Pace {
    /// For steps of this length.
    pub(crate) fn new(step: Duration) -> Self {
        Self { share_us: step.as_secs_f64() * 1e6 * SHARE, us_per_byte: 1.0 / BYTES_PER_US, copied_us: 0.0 }
    }

    /// Another step begins.
    pub(crate) fn begin(&mut self) {
        self.copied_us = 0.0;
    }

    /// Bytes that may still be copied in this step.
    pub(crate) fn bytes_left(&self) -> usize {
        ((self.share_us - self.copied_us).max(0.0) / self.us_per_byte) as usize
    }

    /// So many may be, after `copied` that were not noted yet. What is too much for any step goes alone.
    pub(crate) fn admits(&self, copied: usize, bytes: usize) -> bool {
        (self.copied_us <= 0.0 && copied == 0) || copied + bytes <= self.bytes_left()
    }

    /// Time of this step that went into copies, in microseconds.
    pub(crate) fn copied_us(&self) -> f64 {
        self.copied_us
    }

    /// Bytes were copied. It took this long; as long as was thought when `None`.
    pub(crate) fn note(&mut self, bytes: usize, took: Option<Duration>) {
        if bytes == 0 {
            return;
        }
        let thought = self.us_per_byte * bytes as f64;
        let took = took.map_or(thought, |took| took.as_secs_f64() * 1e6);
        self.copied_us += took;
        let us_per_byte = took.min(thought * SURPRISE_MAX) / bytes as f64;
        // Dear copies are believed sooner than cheap ones: only some of them meet memory that was not touched yet.
        let weight = if us_per_byte > self.us_per_byte { 0.5 } else { 0.125 };
        self.us_per_byte += (us_per_byte - self.us_per_byte) * weight;
    }
}

#[cfg(test)]
impl Pace {
    /// For so many bytes in each step.
    pub(crate) fn of_bytes(bytes: usize) -> Self {
        Self { share_us: bytes as f64, us_per_byte: 1.0, copied_us: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(80);
    /// Of one page of the default model.
    const PAGE: usize = 350_000;

    fn pages_left(pace: &Pace) -> usize {
        (pace.bytes_left() + PAGE / 100) / PAGE
    }

    fn copies(pace: &mut Pace, times: usize, pages: usize, ms: u64) {
        for _ in 0..times {
            pace.note(pages * PAGE, Some(Duration::from_millis(ms)));
            pace.begin();
        }
    }

    #[test]
    fn a_step_has_room_for_what_fits_in_its_share() {
        let mut pace = Pace::new(STEP);
        assert_eq!(pages_left(&pace), 24, "1 ms a page, 24 ms");
        assert_eq!((pace.admits(12 * PAGE, 11 * PAGE), pace.admits(12 * PAGE, 13 * PAGE)), (true, false));
        pace.note(12 * PAGE, None);
        assert_eq!((pages_left(&pace), pace.admits(0, 11 * PAGE), pace.admits(0, 13 * PAGE)), (12, true, false));
        pace.note(12 * PAGE, None);
        assert_eq!((pages_left(&pace), pace.admits(0, PAGE)), (0, false));
        assert!((pace.copied_us() - 24_000.0).abs() < 1.0);
        pace.begin();
        assert_eq!(
            (pages_left(&pace), pace.admits(0, 1_000 * PAGE)),
            (24, true),
            "what is too large for any goes alone"
        );
        pace.note(0, Some(STEP));
        assert!(pace.copied_us() <= 0.0, "nothing was copied");
    }

    #[test]
    fn what_copies_really_take_is_learned_and_one_pause_is_not() {
        let mut pace = Pace::new(STEP);
        copies(&mut pace, 40, 10, 1);
        assert!((190..=240).contains(&pages_left(&pace)), "0.1 ms a page: {}", pages_left(&pace));
        copies(&mut pace, 1, 10, 5_000);
        assert!(pages_left(&pace) >= 75, "{}", pages_left(&pace));
        copies(&mut pace, 12, 10, 20);
        assert!((11..=13).contains(&pages_left(&pace)), "2 ms a page: {}", pages_left(&pace));
    }
}
