//! Faults of a decode group, planted by tests.

use super::DecodeGroup;
use crate::compute::Compute;
use crate::fault::Fault;
use crate::machine::Machine;
use crate::split::held_by;
use engine_handoff::{DecodeInput, HandoffId, PageSlot, Route};
use engine_kv::Ticket;
use policies_domain::Outcome;
use std::collections::BTreeMap;
use std::time::Duration;

/// Pages of handoffs that ended while bytes were on their way to them, from a peer that may write into this memory.
pub(super) type Abandoned = BTreeMap<HandoffId, (Vec<PageSlot>, Vec<Ticket>)>;

impl DecodeGroup {
    /// A fence that a peer with a right to write does not know of: its tickets stay open.
    pub(super) fn abandon(&mut self, route: Route) {
        let Some(inbound) = self.inbound.get_mut(&route.id) else { return };
        if self.stepper.planted.one_sided() && inbound.coming.is_none() && !inbound.tickets.is_empty() {
            let tickets = std::mem::take(&mut inbound.tickets).into();
            self.abandoned.insert(route.id, (inbound.pages.clone(), tickets));
        }
    }

    /// A handoff that is given up lets go of its pages at once, as if there were no bytes on their way.
    pub(super) fn free_early(&mut self, machine: &mut Machine<impl Compute>, now: Duration, route: Route) {
        let waits = self.inbound.get(&route.id).is_some_and(|inbound| !inbound.tickets.is_empty());
        if waits && self.stepper.planted.frees_early() {
            self.abandon(route);
            self.let_go(machine, route);
            self.tell(machine, now, DecodeInput::Lost { route });
        }
    }

    /// The bytes of such a handoff come. `false`: it is none.
    pub(super) fn overwrite_abandoned(
        &mut self,
        machine: &mut Machine<impl Compute>,
        route: Route,
        bytes: &[u8],
    ) -> bool {
        let Some((pages, tickets)) = self.abandoned.remove(&route.id) else { return false };
        let page_bytes = bytes.len() / pages.len().max(1);
        for (page, bytes) in pages.iter().zip(bytes.chunks(page_bytes.max(1))) {
            machine.compute.overwrite(page.page.0, bytes);
        }
        for ticket in tickets {
            // Refused when the ledger has forgotten it.
            let _known = ticket.settle(Outcome::Done);
        }
        true
    }

    /// Pages, by their places in this group's own pool, to which bytes are on their way that nobody waits for.
    pub(in crate::split) fn abandoned_pages(&self) -> impl Iterator<Item = u32> {
        self.abandoned.values().flat_map(|(pages, _)| pages.iter().map(|page| page.page.0))
    }

    /// What becomes of a page that has landed.
    pub(super) fn plant_late_writer(&self, machine: &mut Machine<impl Compute>, route: Route) {
        let fault = self.request(route).and_then(|request| self.stepper.planted.fault_for(request.label));
        if let (Some(Fault::LateWriter { .. }), Some(inbound)) = (fault, self.inbound.get(&route.id))
            && let Some(page) = inbound.pages.first()
            && let Ok(held) = machine.compute.held_page(held_by(page))
        {
            let mut bytes = held.all().to_vec();
            // The same K and V, under another tag.
            bytes[0] ^= 1;
            let landed = machine.compute.land(held_by(page), &bytes);
            debug_assert!(landed.is_ok(), "the page is held");
        }
    }
}
