//! Places for connections: how many are taken, and whose is given away when there is none left.
//!
//! A connection that waits for its client (before the end of its first request head, or between two requests) costs
//! others its place and nothing else. Whoever opens connections and says nothing must not shut everybody out, so a
//! newcomer gets the place of the one that has waited longest. A connection with a request in progress keeps its own.

use policies_domain::ConnectionId;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// All places of one listener.
#[derive(Default)]
pub(crate) struct Seats(Mutex<Table>);

/// INVARIANT: the seats without a request are exactly those in `waiting`, each under its own turn.
#[derive(Default)]
struct Table {
    /// Numbers for seats and turns: each is used once.
    next: u64,
    seats: HashMap<u64, Holder>,
    /// Turn to seat; the first has waited longest.
    waiting: BTreeMap<u64, u64>,
}

struct Holder {
    requests: usize,
    /// When it began to wait; meaningless while it has a request.
    turn: u64,
    leave: Arc<Notify>,
}

impl Table {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// The place of one connection. Free again when dropped.
pub(crate) struct Seat {
    number: u64,
    leave: Arc<Notify>,
    seats: Arc<Seats>,
}

/// A request in progress: its connection's place is not given away.
pub(crate) struct Busy(Arc<Seat>);

impl Seats {
    /// A place for a new connection, which waits for its client.
    pub(crate) fn take(self: &Arc<Self>) -> Arc<Seat> {
        let leave = Arc::new(Notify::new());
        let mut table = self.lock();
        let (number, turn) = (table.number(), table.number());
        table.seats.insert(number, Holder { requests: 0, turn, leave: leave.clone() });
        table.waiting.insert(turn, number);
        drop(table);
        Arc::new(Seat { number, leave, seats: self.clone() })
    }

    /// Asks the connection that has waited longest to leave. False when none waits.
    pub(crate) fn give_away_one(&self) -> bool {
        let mut table = self.lock();
        let Some((_, number)) = table.waiting.pop_first() else { return false };
        if let Some(holder) = table.seats.remove(&number) {
            holder.leave.notify_one();
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // No code that holds the lock can panic half-way through a change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// The connection that sits here: as the table gives a number once, so does the listener.
    pub(crate) fn connection(&self) -> ConnectionId {
        ConnectionId(self.number)
    }

    /// A request has arrived. `None` when the place has been given away: the request is not to be answered.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Busy> {
        let mut table = self.seats.lock();
        let holder = table.seats.get_mut(&self.number)?;
        holder.requests += 1;
        let turn = holder.turn;
        table.waiting.remove(&turn);
        Some(Busy(self.clone()))
    }

    /// Returns when the place has been given away.
    ///
    /// # Cancel safety
    /// Safe for the one connection that waits on its own seat.
    pub(crate) async fn given_away(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut table = self.seats.lock();
        if let Some(holder) = table.seats.remove(&self.number) {
            table.waiting.remove(&holder.turn);
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut table = self.0.seats.lock();
        let turn = table.number();
        let Some(holder) = table.seats.get_mut(&self.0.number) else { return };
        holder.requests -= 1;
        if holder.requests == 0 {
            holder.turn = turn;
            table.waiting.insert(turn, self.0.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seats that are asked to leave, in order, until nobody waits.
    async fn order(seats: &Arc<Seats>, of: &[(&'static str, &Arc<Seat>)]) -> Vec<&'static str> {
        let mut left = Vec::new();
        while seats.give_away_one() {
            for (name, seat) in of {
                tokio::select! {
                    biased;
                    () = seat.given_away() => left.push(*name),
                    () = std::future::ready(()) => {}
                }
            }
        }
        left
    }

    #[tokio::test]
    async fn the_one_that_has_waited_longest_leaves_first() {
        let seats = Arc::new(Seats::default());
        let (a, b, c) = (seats.take(), seats.take(), seats.take());
        // A request starts the wait of its connection anew.
        drop(a.begin().unwrap());
        assert_eq!(order(&seats, &[("a", &a), ("b", &b), ("c", &c)]).await, ["b", "c", "a"]);
    }

    #[tokio::test]
    async fn a_request_in_progress_keeps_its_place() {
        let seats = Arc::new(Seats::default());
        let (a, b) = (seats.take(), seats.take());
        let (first, second) = (a.begin().unwrap(), a.begin().unwrap());
        assert_eq!(order(&seats, &[("a", &a), ("b", &b)]).await, ["b"]);
        drop(first);
        assert!(!seats.give_away_one(), "the other stream of the connection is still in progress");
        drop(second);
        assert_eq!(order(&seats, &[("a", &a)]).await, ["a"]);
    }

    #[test]
    fn a_request_that_comes_too_late_is_not_begun() {
        let seats = Arc::new(Seats::default());
        let seat = seats.take();
        assert!(seats.give_away_one());
        assert!(seat.begin().is_none());
    }

    #[test]
    fn a_place_that_is_free_again_is_forgotten() {
        let seats = Arc::new(Seats::default());
        let (waiting, busy) = (seats.take(), seats.take());
        let request = busy.begin().unwrap();
        drop((waiting, busy, request));
        assert!(!seats.give_away_one());
        let table = seats.lock();
        assert!(table.seats.is_empty() && table.waiting.is_empty());
    }
}
