//! Streams of constant shape: text leaves in events of one size, one in each period, whatever the engine's steps are.
//!
//! How many tokens a step gave, how long each took and what the text is show in neither time nor size. What still shows:
//! the period of the first text, and how many periods there are, which is what the text's characters need or what the
//! engine took, whichever is longer. Nothing is encoded or sent here, which is `reply.rs`'s to do; time is passed in.

use audit_log::{Released, ReleasedSteps};
use policies_domain::{FinishReason, SealError};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// Characters of text in one event at most. In periods of 100 ms these are 480 a second, some 120 tokens of English: more
/// than one request gets on most processors.
pub(crate) const EVENT_CHARACTERS: usize = 48;

/// JSON writes no character in more bytes than this one, which are six.
pub(crate) const WIDEST: &str = "\0";

/// Text that waits for its period: several thousand tokens. Beyond, steps are left with the engine.
const WAITING_BYTES_MAX: usize = 16 << 10;

/// The times at which something leaves: whole periods after the beginning.
#[derive(Debug)]
pub(crate) struct Pace {
    origin: Instant,
    period: Duration,
    next: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(origin: Instant, period: Duration) -> Self {
        Self { origin, period, next: None }
    }

    /// When the next event leaves; never before there is a first text.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.next
    }

    /// There is text. From the next whole period on there is an event in each.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.next.get_or_insert(self.after(now));
    }

    /// An event has left. Periods that were missed, because a client did not read, are not made up for.
    pub(crate) fn passed(&mut self, now: Instant) {
        self.next = Some(self.after(now));
    }

    /// The first whole period that is later than `now`.
    pub(crate) fn after(&self, now: Instant) -> Instant {
        let period = self.period.as_nanos().max(1);
        let periods = now.saturating_duration_since(self.origin).as_nanos() / period + 1;
        self.origin + Duration::from_nanos(u64::try_from(periods * period).unwrap_or(u64::MAX))
    }
}

/// What one event says.
#[derive(Debug)]
pub(crate) struct Event {
    /// Empty when the engine has made none since the last one.
    pub(crate) text: String,
    /// What it comes from: of an event without text, what the one before came from.
    pub(crate) steps: ReleasedSteps,
    pub(crate) finish: Option<FinishReason>,
}

/// Released text on its way to its event. It stays as it was released, in its pieces, until somebody has looked at it.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pieces: VecDeque<Released>,
    /// Bytes of the first piece that have left.
    taken: usize,
    /// Bytes of all pieces that have not.
    waiting: usize,
    steps: Option<ReleasedSteps>,
}

impl Flow {
    pub(crate) fn push(&mut self, released: Released) {
        self.waiting += released.text().len();
        self.pieces.push_back(released);
    }

    /// More may be pushed.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting < WAITING_BYTES_MAX
    }

    /// The next event, once anything has been pushed. Each piece is shown to `look` before any of it is taken.
    ///
    /// # Errors
    /// That of `look`; the piece stays.
    pub(crate) fn take(
        &mut self,
        mut look: impl FnMut(&Released) -> Result<(), SealError>,
    ) -> Result<Option<Event>, SealError> {
        let (mut text, mut left) = (String::new(), EVENT_CHARACTERS);
        let (mut steps, mut finish): (Option<ReleasedSteps>, _) = (None, None);
        while let Some(piece) = self.pieces.front() {
            let rest = piece.text().reveal().get(self.taken..).unwrap_or_default();
            if left == 0 && !rest.is_empty() {
                break;
            }
            if self.taken == 0 {
                look(piece)?;
            }
            let end = rest.char_indices().nth(left).map_or(rest.len(), |(end, _)| end);
            let part = rest.get(..end).unwrap_or_default();
            text.push_str(part);
            left -= part.chars().count();
            steps = Some(steps.map_or(piece.steps(), |steps| steps.through(piece.steps())));
            self.waiting = self.waiting.saturating_sub(part.len());
            self.taken += part.len();
            if end < rest.len() {
                break;
            }
            finish = piece.finish();
            self.taken = 0;
            self.pieces.pop_front();
        }
        self.steps = steps.or(self.steps);
        Ok(self.steps.map(|steps| Event { text, steps, finish }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn events_leave_at_whole_periods_whenever_text_comes() {
        let origin = Instant::now();
        let at = |milliseconds| origin + Duration::from_millis(milliseconds);
        let mut pace = Pace::new(origin, Duration::from_millis(100));
        assert_eq!(pace.due(), None, "nothing leaves before there is text");
        pace.begin(at(1_234));
        assert_eq!(pace.due(), Some(at(1_300)));
        pace.begin(at(1_290));
        assert_eq!(pace.due(), Some(at(1_300)), "more text changes nothing");
        // Late by a little, on time, and so late that two periods are over: the next one is a whole one each time.
        for (left, next) in [(1_303, 1_400), (1_400, 1_500), (1_777, 1_800), (1_899, 1_900)] {
            pace.passed(at(left));
            assert_eq!(pace.due(), Some(at(next)), "{left}");
        }
        assert_eq!(Pace::new(origin, Duration::ZERO).after(origin), origin + Duration::from_nanos(1));
    }

    #[test]
    fn no_character_is_wider_in_json_than_the_widest() {
        let width = |text: &str| serde_json::to_vec(text).unwrap().len() - 2;
        let widest = width(WIDEST);
        for character in '\0'..=char::MAX {
            assert!(width(character.encode_utf8(&mut [0; 4])) <= widest, "{character:?}");
        }
    }
}
