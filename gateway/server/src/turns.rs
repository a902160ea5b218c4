//! Turns at work that only a few prompts may have at a time: tokenizing.
//!
//! Turns are shared between tenants, as the engine's slots are: the next one goes to the tenant that has the fewest, of
//! those to the one whose last turn began the longest ago, and inside a tenant to who came first. So a tenant that
//! sends many long prompts waits for itself: another one waits for what is being done at that moment, and no longer.

use crate::respond::RequestError;
use policies_domain::TenantId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Most prompts of one tenant that wait for a turn: as many as wait for the engine by default. Each keeps its text in
/// memory.
pub(crate) const WAITING_MAX: usize = 256;

/// All turns.
pub(crate) struct Turns {
    waiting_max: usize,
    table: Mutex<Table>,
}

/// INVARIANT: nobody waits while a turn is free.
struct Table {
    free: usize,
    /// Turns begun so far.
    begun: u64,
    /// Everybody who ever had or wanted a turn; tenants are as many as the configuration names.
    tenants: BTreeMap<TenantId, Tenant>,
}

#[derive(Default)]
struct Tenant {
    turns: usize,
    /// The number of its last turn.
    last_begun: u64,
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

impl Table {
    fn begin(&mut self, tenant: TenantId) {
        self.free -= 1;
        self.begun += 1;
        let begun = self.begun;
        let of_tenant = self.tenants.entry(tenant).or_default();
        of_tenant.turns += 1;
        of_tenant.last_begun = begun;
    }

    /// Who has the next turn. Those who left while they waited are forgotten.
    fn next(&mut self) -> Option<(TenantId, oneshot::Sender<Turn>)> {
        self.tenants.values_mut().for_each(Tenant::forget_who_left);
        let waiting = self.tenants.iter_mut().filter(|(_, of_tenant)| !of_tenant.waiting.is_empty());
        let (&tenant, of_tenant) = waiting.min_by_key(|(_, of_tenant)| (of_tenant.turns, of_tenant.last_begun))?;
        let next = of_tenant.waiting.pop_front()?;
        self.begin(tenant);
        Some((tenant, next))
    }
}

impl Tenant {
    fn forget_who_left(&mut self) {
        self.waiting.retain(|waiting| !waiting.is_closed());
    }
}

/// One turn. Passed on when dropped.
pub(crate) struct Turn {
    tenant: TenantId,
    turns: Arc<Turns>,
}

impl Turns {
    /// `at_once` turns at a time, and at most `waiting_max` who wait for one, of each tenant.
    pub(crate) fn new(at_once: usize, waiting_max: usize) -> Self {
        Self { waiting_max, table: Mutex::new(Table { free: at_once, begun: 0, tenants: BTreeMap::new() }) }
    }

    /// Waits for a turn of this tenant.
    ///
    /// # Errors
    /// [`RequestError::TurnsTaken`] when too many of the same tenant wait already.
    ///
    /// # Cancel safety
    /// Safe: whoever does not wait any more has no turn.
    pub(crate) async fn take(self: &Arc<Self>, tenant: TenantId) -> Result<Turn, RequestError> {
        let turn = {
            let mut table = self.lock();
            if table.free > 0 {
                table.begin(tenant);
                return Ok(Turn { tenant, turns: self.clone() });
            }
            let of_tenant = table.tenants.entry(tenant).or_default();
            of_tenant.forget_who_left();
            if of_tenant.waiting.len() >= self.waiting_max {
                return Err(RequestError::TurnsTaken { waiting: of_tenant.waiting.len() });
            }
            let (sender, receiver) = oneshot::channel();
            of_tenant.waiting.push_back(sender);
            receiver
        };
        // INVARIANT: who waits is only forgotten after leaving.
        turn.await.map_err(|_| RequestError::Internal)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // No code that holds the lock can panic half-way through a change.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut table = self.turns.lock();
        table.free += 1;
        if let Some(of_tenant) = table.tenants.get_mut(&self.tenant) {
            of_tenant.turns -= 1;
        }
        let Some((tenant, next)) = table.next() else { return };
        drop(table);
        // Who leaves at this moment drops the turn here or out of the channel, and it is passed on from there.
        let _left = next.send(Self { tenant, turns: self.turns.clone() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    type Waiting = Pin<Box<dyn Future<Output = Result<Turn, RequestError>>>>;

    fn tenant(number: u32) -> TenantId {
        TenantId::new(number).unwrap()
    }

    /// Asked once already: it has its place in the queue.
    fn wait(turns: &Arc<Turns>, number: u32) -> Waiting {
        let turns = turns.clone();
        let mut waiting: Waiting = Box::pin(async move { turns.take(tenant(number)).await });
        assert!(ask(&mut waiting).is_none(), "there is no turn");
        waiting
    }

    fn ask(waiting: &mut Waiting) -> Option<Turn> {
        match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn.unwrap()),
            Poll::Pending => None,
        }
    }

    async fn take(turns: &Arc<Turns>, number: u32) -> Turn {
        turns.take(tenant(number)).await.unwrap()
    }

    #[tokio::test]
    async fn a_tenant_with_many_prompts_does_not_keep_another_waiting() {
        let turns = Arc::new(Turns::new(1, WAITING_MAX));
        let running = take(&turns, 1).await;
        let mut many: Vec<_> = (0..40).map(|_| wait(&turns, 1)).collect();
        let (mut other, mut third) = (wait(&turns, 2), wait(&turns, 3));
        drop(running);
        let turn = ask(&mut other).expect("who has had no turn is next, whoever came before");
        drop(turn);
        drop(ask(&mut third).expect("then the third"));
        drop(ask(&mut many[0]).expect("then the one with many, its first"));
        drop(ask(&mut many[1]).expect("and on"));
        assert!(many.iter_mut().skip(3).all(|waiting| ask(waiting).is_none()), "one at a time");
    }

    #[tokio::test]
    async fn the_fewest_turns_come_before_the_longest_wait() {
        let turns = Arc::new(Turns::new(2, WAITING_MAX));
        let (old, new) = (take(&turns, 2).await, take(&turns, 1).await);
        let (mut first, mut second) = (wait(&turns, 2), wait(&turns, 1));
        // Tenant 1 has no turn now, tenant 2 has one that began earlier.
        drop(new);
        assert!(ask(&mut first).is_none());
        let held = ask(&mut second).expect("it has none");
        drop((held, old));
        assert!(ask(&mut first).is_some());
    }

    #[tokio::test]
    async fn too_many_of_one_tenant_are_told_at_once_and_others_are_not() {
        let turns = Arc::new(Turns::new(1, 2));
        let _running = take(&turns, 1).await;
        let waiting = (wait(&turns, 1), wait(&turns, 1));
        // Asked once: a test that waits here for ever would be none.
        let mut third = Box::pin(turns.take(tenant(1)));
        let refused = third.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(refused, Poll::Ready(Err(RequestError::TurnsTaken { waiting: 2 }))));
        let _other = wait(&turns, 2);
        drop(waiting);
        let _again = wait(&turns, 1);
    }

    #[tokio::test]
    async fn who_leaves_takes_no_turn_along() {
        let turns = Arc::new(Turns::new(1, WAITING_MAX));
        let running = take(&turns, 1).await;
        let (left, leaves_late, mut stays) = (wait(&turns, 2), wait(&turns, 3), wait(&turns, 4));
        drop(left);
        drop(running);
        // It has been given the turn and never looks.
        drop(leaves_late);
        drop(ask(&mut stays).expect("passed on"));
        assert_eq!(turns.lock().free, 1);
        assert!(turns.lock().tenants.values().all(|of_tenant| of_tenant.turns == 0 && of_tenant.waiting.is_empty()));
    }
}
