//! The ledger's events on their way to whoever follows them: bounded, never blocking, never silent about a loss.

use policies_domain::{CustodyEvent, CustodyRecord};
use std::collections::VecDeque;

/// Events that nobody has taken yet. Memory for all of them is taken at the start.
///
/// A ledger cannot wait for a reader: a page must be given back whatever the reader does. So when the log is full, later
/// events are counted and dropped until the next [`CustodyLog::drain`], which says so in its last record. Whoever follows
/// the log knows nothing certain from then on, and must not go on as if it did.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CustodyLog {
    events: VecDeque<CustodyEvent>,
    events_max: usize,
    /// Number of the next event.
    next: u64,
    /// Events dropped since the last drain.
    lost: u64,
}

impl CustodyLog {
    pub(crate) fn new(events_max: usize) -> Self {
        Self { events: VecDeque::with_capacity(events_max), events_max, next: 0, lost: 0 }
    }

    /// The number that the next event has.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn push(&mut self, event: CustodyEvent) {
        debug_assert_eq!(event.number, self.next);
        self.next += 1;
        // Nothing may follow a gap that has not been told.
        if self.lost == 0 && self.events.len() < self.events_max {
            self.events.push_back(event);
        } else {
            self.lost += 1;
        }
    }

    /// Appends all that there is to `into`.
    pub(crate) fn drain(&mut self, into: &mut Vec<CustodyRecord>) {
        into.extend(self.events.drain(..).map(CustodyRecord::Event));
        if self.lost > 0 {
            into.push(CustodyRecord::Lost { first: self.next - self.lost, events: self.lost });
            self.lost = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policies_domain::{CustodyAct, Generation, Label, Owner, PageId, PageLife};

    fn event(number: u64) -> CustodyEvent {
        CustodyEvent {
            number,
            step_issued: 0,
            step_retired: 0,
            life: PageLife { page: PageId(0), generation: Generation(1) },
            label: Label::NOBODY,
            owner: Owner::Nobody,
            act: CustodyAct::Sealed,
        }
    }

    #[test]
    fn a_slow_reader_is_told_exactly_what_it_missed() {
        let mut log = CustodyLog::new(3);
        (0..5).for_each(|number| log.push(event(number)));
        let mut taken = Vec::new();
        log.drain(&mut taken);
        let kept = (0..3).map(event).map(CustodyRecord::Event);
        let all: Vec<_> = kept.chain([CustodyRecord::Lost { first: 3, events: 2 }]).collect();
        assert_eq!(taken, all);
        taken.clear();
        log.push(event(5));
        log.drain(&mut taken);
        assert_eq!(taken, [CustodyRecord::Event(event(5))], "told once");
    }

    #[test]
    fn the_memory_of_the_log_does_not_grow() {
        let mut log = CustodyLog::new(4);
        let capacity = log.events.capacity();
        let mut taken = Vec::with_capacity(8);
        for number in 0..1000 {
            log.push(event(number));
            if number % 7 == 0 {
                taken.clear();
                log.drain(&mut taken);
            }
        }
        assert_eq!((log.events.capacity(), taken.capacity()), (capacity, 8));
    }
}
