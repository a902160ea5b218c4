//! Faults that a test plants in the step loop.

use super::{Part, Stepper};
use crate::compute::Compute;
use crate::fault::Fault;
use crate::machine::{Entries, Machine, page_ref};
use crate::steps::StepError;
use engine_kv::PAGE_TOKENS;

/// Spans of a pass among which another's logits are looked for.
const SPANS_LOOKED_AT: usize = 64;

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
        let fault = self.planted.fault_for(self.running[part.index].label)?;
        let mut logits = machine.compute.logits(span, part.ticket.row())?.to_vec();
        match fault {
            Fault::Logit { value, .. } => *logits.last_mut()? = value,
            Fault::SwappedActivations { .. } => logits = self.foreign_logits(machine, part)?,
            Fault::ForeignBias { .. } => {
                let foreign = self.foreign_logits(machine, part)?;
                std::iter::zip(&mut logits, foreign).for_each(|(own, foreign)| *own += foreign / 1024.0);
            }
            _ => return None,
        }
        Some(logits)
    }

    /// Those of somebody else in the pass.
    fn foreign_logits(&self, machine: &Machine<impl Compute>, part: &Part) -> Option<Vec<f32>> {
        let others = self.running.iter().filter(|other| other.ticket != part.ticket);
        let rows = others.flat_map(|other| (0..SPANS_LOOKED_AT).map(|span| (span, other.ticket.row())));
        rows.into_iter().find_map(|(span, ticket)| machine.compute.logits(span, ticket)).map(<[f32]>::to_vec)
    }
}
