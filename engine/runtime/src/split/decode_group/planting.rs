//! Faults of a decode group, planted by tests.

use super::DecodeGroup;
use crate::compute::Compute;
use crate::fault::Fault;
use crate::machine::Machine;
use crate::split::held_by;
use engine_handoff::Route;

impl DecodeGroup {
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
