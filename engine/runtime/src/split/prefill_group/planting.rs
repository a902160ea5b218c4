//! Faults of a prefill group, planted by tests.

use super::PrefillGroup;
use crate::compute::Compute;
use crate::fault::Fault;
use crate::machine::Machine;
use crate::split::{Prompt, held_by};
use engine_handoff::{Message, PageSlot, Route};
use engine_kernels::PageBytes;
use policies_domain::{Label, TenantId};

impl PrefillGroup {
    /// What it takes a prompt for.
    pub(super) fn plant_prompt(&self, prompt: &mut Prompt) {
        match self.stepper.planted.fault_for(prompt.label) {
            Some(Fault::WrongDomain { reader }) => {
                prompt.label = TenantId::new(reader.number() + 1).map_or(prompt.label, Label::of);
            }
            Some(Fault::OtherPrompt { .. }) => prompt.tokens.swap(0, 1),
            _ => (),
        }
    }

    /// What becomes of the offers that it makes.
    pub(super) fn plant_offer(&mut self, message: Message) -> Vec<Message> {
        let Message::Offer(mut offer) = message else { return vec![message] };
        let route = offer.manifest.route;
        match (self.stepper.planted.fault_for(offer.manifest.domain), self.exchanged.take()) {
            (Some(Fault::EarlyFree { .. }), _) => {
                if let Some(outbound) = self.outbound.get_mut(&route.id) {
                    outbound.table = None;
                }
            }
            (_, Some(mut other)) if other.manifest.route != route => {
                std::mem::swap(&mut other.manifest.route, &mut offer.manifest.route);
                return vec![Message::Offer(other), Message::Offer(offer)];
            }
            (Some(Fault::SwappedManifests { .. }), _) => {
                self.exchanged = Some(offer);
                return Vec::new();
            }
            _ => (),
        }
        vec![Message::Offer(offer)]
    }

    /// What becomes of a page's bytes before they leave.
    pub(super) fn plant_bytes(&self, machine: &mut Machine<impl Compute>, route: Route, pages: &[PageSlot]) {
        let label = pages.first().and_then(|page| machine.pool.label(page.page)).map(|label| label.domain);
        let flipped = label.and_then(|label| self.stepper.planted.fault_for(label));
        if let (Some(Fault::FlippedByte { .. }), Some(page)) = (flipped, pages.first())
            && self.outbound.contains_key(&route.id)
            && let Ok(held) = machine.compute.held_page(held_by(page))
        {
            let mut bytes = held.all().to_vec();
            bytes[PageBytes::HEADER_BYTES] ^= 1;
            let landed = machine.compute.land(held_by(page), &bytes);
            debug_assert!(landed.is_ok(), "the page is held");
        }
    }
}
