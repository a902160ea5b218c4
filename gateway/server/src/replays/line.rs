//! Who is next: answers that wait to be computed again, bounded in every way. No thread, no clock.

use policies_domain::TenantId;
use std::collections::{HashMap, VecDeque};

/// Answers that may wait.
pub(super) const REPLAYS_MAX: usize = 256;
/// Of one tenant.
pub(super) const REPLAYS_OF_ONE_MAX: usize = REPLAYS_MAX / 4;
/// Tokens of all answers that wait, with their prompts: 4 MiB.
pub(super) const TOKENS_MAX: usize = 1 << 20;

/// One that waits.
pub(super) struct Place<T> {
    pub(super) tenant: TenantId,
    pub(super) tokens: usize,
    /// Somebody holds an answer back for it.
    pub(super) is_awaited: bool,
    pub(super) work: T,
}

/// All that wait.
pub(super) struct Line<T> {
    waiting: VecDeque<Place<T>>,
    tokens: usize,
    /// Processor time of each tenant's replays, lifted to the least of those who wait when it begins to wait: having had
    /// nothing to do earns nothing.
    spent_us: HashMap<TenantId, u64>,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), tokens: 0, spent_us: HashMap::new() }
    }
}

impl<T> Line<T> {
    /// Takes the last place, or gives back whoever finds none.
    pub(super) fn push(&mut self, place: Place<T>) -> Result<(), Place<T>> {
        let own = self.waiting.iter().filter(|waiting| waiting.tenant == place.tenant).count();
        let full = self.waiting.len() >= REPLAYS_MAX || own >= REPLAYS_OF_ONE_MAX;
        if full || self.tokens.saturating_add(place.tokens) > TOKENS_MAX {
            return Err(place);
        }
        if own == 0 {
            let least = self.waiting.iter().map(|waiting| self.spent_of(waiting.tenant)).min();
            let spent = self.spent_us.entry(place.tenant).or_default();
            *spent = least.unwrap_or_default().max(*spent);
        }
        self.tokens += place.tokens;
        self.waiting.push_back(place);
        Ok(())
    }

    /// The oldest of the tenant that has had least; those that somebody waits for before the others.
    pub(super) fn pop(&mut self) -> Option<Place<T>> {
        let key = |(place, waiting): &(usize, &Place<T>)| (!waiting.is_awaited, self.spent_of(waiting.tenant), *place);
        let (next, _) = self.waiting.iter().enumerate().min_by_key(key)?;
        let place = self.waiting.remove(next)?;
        self.tokens -= place.tokens;
        Some(place)
    }

    /// A replay of this tenant took so long.
    pub(super) fn charge(&mut self, tenant: TenantId, cpu_us: u64) {
        let spent = self.spent_us.entry(tenant).or_default();
        *spent = spent.saturating_add(cpu_us);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn spent_of(&self, tenant: TenantId) -> u64 {
        self.spent_us.get(&tenant).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(number: u32) -> TenantId {
        TenantId::new(number).unwrap()
    }

    fn place(of: u32, work: usize) -> Place<usize> {
        Place { tenant: tenant(of), tokens: 700, is_awaited: false, work }
    }

    #[test]
    fn what_waits_is_bounded_by_number_by_tokens_and_for_each_tenant() {
        let mut line = Line::default();
        (0..REPLAYS_OF_ONE_MAX).for_each(|work| assert!(line.push(place(1, work)).is_ok()));
        assert!(line.push(place(1, 0)).is_err(), "one tenant takes a quarter");
        for of in 2..5 {
            (0..REPLAYS_OF_ONE_MAX).for_each(|work| assert!(line.push(place(of, work)).is_ok()));
        }
        assert!(line.push(place(5, 0)).is_err(), "all places are taken");
        assert!(line.pop().is_some() && line.push(place(5, 0)).is_ok());
        let mut line = Line::default();
        assert!(line.push(Place { tokens: TOKENS_MAX, ..place(1, 0) }).is_ok());
        assert!(line.push(Place { tokens: 1, ..place(2, 0) }).is_err());
        assert!(line.pop().is_some() && line.is_empty());
        assert!(line.push(Place { tokens: TOKENS_MAX + 1, ..place(2, 0) }).is_err());
    }

    #[test]
    fn whoever_had_least_is_next_and_whoever_is_awaited_before_that() {
        let mut line = Line::default();
        (0..4).for_each(|work| assert!(line.push(place(1, work)).is_ok()));
        assert!(line.push(place(2, 10)).is_ok());
        let mut order = Vec::new();
        while let Some(next) = line.pop() {
            line.charge(next.tenant, 1_000);
            order.push(next.work);
            if order.len() == 2 {
                // Who comes back from having nothing to do is not owed what others had meanwhile.
                assert!(line.push(place(3, 20)).is_ok() && line.push(place(3, 21)).is_ok());
                assert!(line.push(Place { is_awaited: true, ..place(1, 30) }).is_ok());
            }
        }
        assert_eq!(order, [0, 10, 30, 20, 1, 21, 2, 3]);
    }
}
