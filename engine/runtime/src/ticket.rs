//! Tickets: which request, in which of its admissions, a record of a batch's row belongs to.
//!
//! A row of a step has records in several places: the sampler with its penalties and seed, the detokenizer, the block
//! table, the row of logits, the way out. Places move when requests come and go, and an index is right until then. So each
//! record has the ticket of its request, and gives itself to nobody who comes with another.

use crate::steps::StepError;
use policies_domain::{Epoch, RequestId};

/// A request, in one of its admissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) request: RequestId,
    pub(crate) epoch: Epoch,
}

impl Ticket {
    /// Before the first admission.
    pub(crate) fn of(request: RequestId) -> Self {
        Self { request, epoch: Epoch::default() }
    }

    /// What the forward pass keeps beside the row's results: no two admissions have the same.
    pub(crate) fn row(self) -> u64 {
        self.epoch.0
    }
}

/// A record of one row.
#[derive(Clone)]
pub(crate) struct Ticketed<T> {
    ticket: Ticket,
    record: T,
}

impl<T> Ticketed<T> {
    pub(crate) fn new(ticket: Ticket, record: T) -> Self {
        Self { ticket, record }
    }

    /// The record, for its own request.
    ///
    /// # Errors
    /// [`StepError::RowBinding`] for any other.
    pub(crate) fn of(&self, ticket: Ticket) -> Result<&T, StepError> {
        if self.ticket == ticket { Ok(&self.record) } else { Err(StepError::RowBinding) }
    }

    /// As [`Ticketed::of`].
    pub(crate) fn of_mut(&mut self, ticket: Ticket) -> Result<&mut T, StepError> {
        if self.ticket == ticket { Ok(&mut self.record) } else { Err(StepError::RowBinding) }
    }

    /// The request is admitted again: the record goes with it, if it is its own.
    pub(crate) fn renew(&mut self, from: Ticket, to: Ticket) -> Result<(), StepError> {
        self.of(from)?;
        self.ticket = to;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(request: u8, epoch: u64) -> Ticket {
        Ticket { request: RequestId::from_bytes([request; 16]), epoch: Epoch(epoch) }
    }

    #[test]
    fn a_record_is_its_own_request_s_in_this_admission_and_nobody_else_s() {
        let mut record = Ticketed::new(ticket(1, 5), 7);
        assert_eq!(record.of(ticket(1, 5)), Ok(&7));
        assert_eq!(record.of_mut(ticket(1, 5)), Ok(&mut 7));
        for other in [ticket(2, 5), ticket(1, 4), ticket(1, 6)] {
            assert_eq!(record.of(other), Err(StepError::RowBinding));
            assert_eq!(record.of_mut(other), Err(StepError::RowBinding));
            assert_eq!(record.renew(other, ticket(2, 9)), Err(StepError::RowBinding));
        }
        assert_eq!(record.renew(ticket(1, 5), ticket(1, 6)), Ok(()));
        assert_eq!((record.of(ticket(1, 6)), record.of(ticket(1, 5))), (Ok(&7), Err(StepError::RowBinding)));
    }
}
