//! Faults that a test plants in the step loop.

use super::{Part, Stepper};
use crate::compute::Compute;
use crate::fault::Fault;
use crate::machine::{Entries, Machine, page_ref};
use crate::steps::StepError;
use engine_kv::PAGE_TOKENS;

impl Stepper {
    /// What is wrong with the block table of a request, or with what is known of it, before it is traced.
    pub(super) fn plant(&mut self, machine: &mut Machine<impl Compute>, index: usize) -> Result<(), StepError> {
        let reader = self.running[index].label;
        let Some(fault) = self.planted.fault_for(reader) else { return Ok(()) };
        let foreign = self.running.iter().filter(|other| other.label != reader).find_map(|other| {
            let mut theirs = Vec::new();
            let block_table = other.block_table.as_ref()?;
            block_table.capabilities(0, 1, &mut theirs);
            Some((*theirs.first()?, machine.custody.first_page(block_table.sequence())?))
        });
        let (block_table, table) = self.running[index].table()?;
        let (mut own, sequence) = (Vec::new(), table.sequence());
        block_table.capabilities(0, 2 * PAGE_TOKENS, &mut own);
        let (entries, Entries { capabilities, held, .. }) = (table.entries_mut(), &mut machine.entries);
        // What was planted for the step before is taken back.
        std::iter::zip(&mut *entries, own).for_each(|(entry, own)| *entry = page_ref(own));
        machine.custody.pretend(sequence, None);
        match (fault, foreign) {
            (Fault::SwappedPages { .. }, _) if entries.len() > 1 => entries.swap(0, 1),
            (Fault::FalseTrace { .. }, _) if entries.len() > 1 => capabilities.swap(0, 1),
            (Fault::ForeignCapability { .. }, Some((foreign, theirs))) => {
                capabilities[0] = foreign;
                entries[0] = page_ref(foreign);
                held[0] = theirs;
                machine.custody.pretend(sequence, Some(theirs));
            }
            (Fault::ForeignEntry { .. }, Some((foreign, _))) => {
                capabilities[0] = foreign;
                entries[0] = page_ref(foreign);
            }
            (Fault::ForeignPageIndex { .. }, Some((foreign, _))) => entries[0].page = foreign.page().0,
            _ => (),
        }
        Ok(())
    }

    /// The logits of a row as a broken kernel would give them.
    pub(super) fn planted_logits(&self, machine: &Machine<impl Compute>, part: &Part, span: usize) -> Option<Vec<f32>> {
        let Some(Fault::Logit { value, .. }) = self.planted.fault_for(self.running[part.index].label) else {
            return None;
        };
        let mut logits = machine.compute.logits(span, part.ticket.row())?.to_vec();
        *logits.last_mut()? = value;
        Some(logits)
    }
}
