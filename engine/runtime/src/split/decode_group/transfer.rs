//! What becomes of the pages of a handoff on the decode group's end.

use super::{Coming, DecodeGroup, Inbound, Kept};
use crate::compute::Compute;
use crate::machine::{Machine, page_ref};
use crate::split::{Parcel, held_by, slot, slots};
use engine_handoff::{DecodeInput, DecodeState, PageSlot, Route};
use engine_kv::{Capability, InboundTable, OutboundTable, Ticket};
use policies_domain::{HolderId, Outcome, PageLife, TicketKind};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

impl DecodeGroup {
    pub(super) fn reserve(&mut self, machine: &mut Machine<impl Compute>, route: Route, pages: u32) -> DecodeInput {
        let exhausted = DecodeInput::Exhausted { route };
        let Some(request) = self.request(route) else { return exhausted };
        let (label, tokens) = (request.label, request.tokens.len());
        if self.terms.in_place {
            // Nobody else has a slot: what caches hold comes back for nobody's end.
            let alone = self.stepper.running.len() == 1;
            let cached = machine.found(label, &request.tokens).pages;
            let needed = (pages as usize).saturating_sub(cached);
            let missing = needed.saturating_sub(machine.pool.counts().free);
            if missing > 0 {
                let _pinned = machine.pin(label, &request.tokens);
                let freed = machine.evict(label, missing);
                if alone {
                    machine.evict_anybody(missing.saturating_sub(freed));
                }
            }
            let enough = machine.pool.counts().free >= needed;
            return if enough { DecodeInput::Reserved { route, pages: Vec::new() } } else { exhausted };
        }
        let Some(inbound) = self.inbound.get_mut(&route.id) else { return exhausted };
        let (compute, mut assigned) = (&mut machine.compute, true);
        let assign = |capability: Capability| assigned &= compute.assign(page_ref(capability)).is_ok();
        let reserved = InboundTable::reserve(&machine.pool, label, inbound.transfer, tokens, assign);
        assert!(assigned, "the pool and the store disagree about which pages exist");
        let Ok(table) = reserved else { return exhausted };
        inbound.pages = table.pages().map(|(life, capability)| slot(life, capability)).collect();
        inbound.kept = Kept::Promised(table);
        DecodeInput::Reserved { route, pages: inbound.pages.clone() }
    }

    /// From here on the pages have a writer, who is whoever brings the bytes.
    pub(super) fn begin_receive(
        &mut self,
        machine: &Machine<impl Compute>,
        route: Route,
        into: &[PageSlot],
    ) -> Option<DecodeInput> {
        if self.terms.in_place {
            return None;
        }
        let lost = Some(DecodeInput::Lost { route });
        let Some(inbound) = self.inbound.get_mut(&route.id) else { return lost };
        let holder = HolderId(inbound.transfer.number().into());
        for page in into {
            let life = PageLife { page: page.page, generation: page.generation };
            match machine.pool.ticket(life, TicketKind::Write, holder) {
                Ok(ticket) => inbound.tickets.push_back(ticket),
                Err(_) => {
                    settle_all(&mut inbound.tickets, Outcome::Failed);
                    return lost;
                }
            }
        }
        None
    }

    /// The bytes of a prompt are here: they go into the pages that have a ticket for them. `false`: nothing waits for them, as
    /// when they come late or twice, or they are not as many as pages wait for.
    pub(super) fn arrive(&mut self, route: Route, bytes: Vec<u8>) -> bool {
        let Some(inbound) = self.inbound.get_mut(&route.id).filter(|inbound| inbound.route == route) else {
            return false;
        };
        let pages = inbound.tickets.len();
        if inbound.coming.is_some() || pages == 0 || pages != inbound.pages.len() || !bytes.len().is_multiple_of(pages)
        {
            settle_all(&mut inbound.tickets, Outcome::Failed);
            inbound.coming = None;
            return false;
        }
        let page_bytes = bytes.len() / pages;
        inbound.coming = Some(Coming { bytes, page_bytes, next: 0 });
        true
    }

    /// Copies what has come into its pages, as far as there is time in this step.
    pub(super) fn land(&mut self, machine: &mut Machine<impl Compute>, now: Duration) {
        let coming = |inbound: &&Inbound| inbound.coming.is_some();
        while let Some(route) = self.inbound.values().find(coming).map(|inbound| inbound.route) {
            let Some(input) = self.land_some(machine, route) else { return };
            #[cfg(feature = "fault-injection")]
            self.plant_late_writer(machine, route);
            self.tell(machine, now, input);
        }
    }

    /// `None`: the rest has to wait for the next step.
    fn land_some(&mut self, machine: &mut Machine<impl Compute>, route: Route) -> Option<DecodeInput> {
        let inbound = self.inbound.get_mut(&route.id)?;
        let mut coming = inbound.coming.take()?;
        let started = Instant::now();
        let mut copied = 0;
        let mut landed = true;
        while landed && let Some(page) = inbound.pages.get(coming.next) {
            if !self.stepper.pace.admits(copied, coming.page_bytes) {
                break;
            }
            let at = coming.next * coming.page_bytes;
            landed = coming
                .bytes
                .get(at..at + coming.page_bytes)
                .is_some_and(|bytes| machine.compute.land(held_by(page), bytes).is_ok());
            let outcome = if landed { Outcome::Done } else { Outcome::Failed };
            landed &= inbound.tickets.pop_front().is_some_and(|ticket| ticket.settle(outcome).is_ok());
            (coming.next, copied) = (coming.next + 1, copied + coming.page_bytes);
        }
        self.stepper.note_copied(copied, started);
        if !landed {
            settle_all(&mut inbound.tickets, Outcome::Failed);
            return Some(DecodeInput::Lost { route });
        }
        if coming.next == inbound.pages.len() {
            return Some(DecodeInput::Arrived { route, pages: inbound.pages.clone() });
        }
        inbound.coming = Some(coming);
        None
    }

    /// The pages themselves come. Nobody may wait for them any more: then they go back at once.
    pub(super) fn take(
        &mut self,
        machine: &mut Machine<impl Compute>,
        now: Duration,
        route: Route,
        table: OutboundTable,
    ) {
        let receiving = self.side.state(route.id) == Some(DecodeState::Receiving);
        match self.inbound.get_mut(&route.id).filter(|inbound| inbound.route == route && receiving) {
            Some(inbound) => {
                inbound.pages = slots(&table);
                inbound.kept = Kept::Offered(table);
                let pages = inbound.pages.clone();
                #[cfg(feature = "fault-injection")]
                self.plant_late_writer(machine, route);
                self.tell(machine, now, DecodeInput::Arrived { route, pages });
            }
            None => {
                drop(table);
                machine.follow();
                self.outbox.push_back(Parcel::Returned { route });
            }
        }
    }

    /// What was verified is the request's now, in new lives with new tags.
    pub(super) fn relabel(&mut self, machine: &mut Machine<impl Compute>, route: Route) -> DecodeInput {
        let Some(tokens) = self.request(route).map(|request| request.tokens.len()) else {
            return DecodeInput::Fenced { route };
        };
        let Some(inbound) = self.inbound.get_mut(&route.id) else { return DecodeInput::Fenced { route } };
        let compute = &mut machine.compute;
        let mut carried = inbound.carried.iter();
        let relabel = |before: Capability, now: Capability| {
            let carried = carried.next().copied().unwrap_or(0);
            // What others of the tenant hold as well keeps its life and its tag.
            if before == now {
                return carried == now.tag();
            }
            compute.relabel(page_ref(before), carried, now.tag()).is_ok()
        };
        let owned = match std::mem::replace(&mut inbound.kept, Kept::Nothing) {
            Kept::Promised(table) => table.commit(tokens, relabel).ok(),
            Kept::Offered(table) => {
                let owned = table.hand_over(relabel).ok();
                self.outbox.push_back(Parcel::Returned { route });
                owned
            }
            Kept::Owned(_) | Kept::Nothing => None,
        };
        if let Some(block_table) = owned {
            inbound.kept = Kept::Owned(block_table);
        }
        machine.follow();
        DecodeInput::Relabelled { route }
    }

    /// The pages go back to the pool, or out of use if they were put under suspicion before.
    pub(super) fn let_go(&mut self, machine: &mut Machine<impl Compute>, route: Route) {
        let Some(inbound) = self.inbound.get_mut(&route.id) else { return };
        if let Kept::Offered(_) = std::mem::replace(&mut inbound.kept, Kept::Nothing) {
            self.outbox.push_back(Parcel::Returned { route });
            machine.follow();
        }
    }
}

pub(super) fn settle_all(tickets: &mut VecDeque<Ticket>, outcome: Outcome) {
    for ticket in tickets.drain(..) {
        // Refused when the page is out of use already: then it is known that nothing came.
        let _known = ticket.settle(outcome);
    }
}
