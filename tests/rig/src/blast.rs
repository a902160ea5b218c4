//! Which responses could have been touched by a writer that came too late: once from the custody log and what the responses
//! are recorded to have read, and once from what really happened. The two know nothing of each other.

use crate::client::{Client, State, Verdict};
use crate::tracer::Stay;
use engine_runtime::StepError;
use policies_domain::{
    CustodyAct, CustodyRecord, Generation, HolderId, PageId, PageLife, QuarantineReason, TicketKind,
};
use std::collections::{BTreeMap, BTreeSet};

/// What the log says of one page.
#[derive(Default)]
struct Page {
    /// Who may write into the life that is going on.
    writers: BTreeSet<HolderId>,
    /// Who might still write, although the life that they were to write into is over.
    late: BTreeSet<HolderId>,
    is_suspect: bool,
}

/// From the custody log alone: the lives of pages that began, or were handed on, while somebody who was to write into an
/// earlier life had not said that he was done.
#[must_use]
pub fn suspect_lives(records: &[CustodyRecord]) -> BTreeSet<PageLife> {
    let (mut pages, mut lives) = (BTreeMap::<PageId, Page>::new(), BTreeSet::new());
    for record in records {
        let CustodyRecord::Event(event) = record else { continue };
        let page = pages.entry(event.life.page).or_default();
        match event.act {
            CustodyAct::TicketOpened { kind: TicketKind::Write, holder } => {
                page.writers.insert(holder);
            }
            CustodyAct::TicketSettled { kind: TicketKind::Write, holder, .. } => {
                page.writers.remove(&holder);
                page.late.remove(&holder);
            }
            CustodyAct::Freed => {
                page.late.append(&mut page.writers);
                page.is_suspect = false;
            }
            CustodyAct::Allocated { .. } | CustodyAct::Reserved { .. } => page.is_suspect = !page.late.is_empty(),
            _ => (),
        }
        if page.is_suspect {
            lives.insert(event.life);
        }
    }
    lives
}

/// Responses, of those that ended, that are recorded to have read one of these lives, or were ended by a fault in one.
/// `first_page` is the number of the log's first page in what is recorded of responses.
#[must_use]
pub fn touched_by_record(clients: &[Client], records: &[CustodyRecord], first_page: u32) -> BTreeSet<u32> {
    let lives = suspect_lives(records);
    let in_log = |page: PageId| page.0.checked_sub(first_page).map(PageId);
    let read = |(page, generation): &(PageId, Generation)| {
        in_log(*page).is_some_and(|page| lives.contains(&PageLife { page, generation: *generation }))
    };
    let fault = |client: &Client| {
        match client.state {
        State::Caught(Verdict::Engine(StepError::PageFault { page, .. })) => records.iter().any(|record| {
            let CustodyRecord::Event(event) = record else { return false };
            let tag_mismatch = QuarantineReason::TagMismatch;
            let quarantined = matches!(event.act, CustodyAct::Quarantined { reason } | CustodyAct::Suspected { reason } if reason == tag_mismatch);
            quarantined && Some(event.life.page) == in_log(page) && lives.contains(&event.life)
        }),
        _ => false,
    }
    };
    let touched = clients.iter().filter(|client| has_ended(client) && (client.read.iter().any(read) || fault(client)));
    touched.map(Client::request).collect()
}

/// From a moment to a moment somebody might have written into a page that was not his any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Which page.
    pub page: u32,
    /// The tracer's time before it was let go of.
    pub from: u64,
    /// The tracer's time before the bytes came; `None`: they did not.
    pub until: Option<u64>,
}

/// Responses, of those that ended, that were in a page that was given out within one of its windows.
#[must_use]
pub fn touched_in_truth(clients: &[Client], stays: &BTreeMap<Stay, u64>, windows: &[Window]) -> BTreeSet<u32> {
    let within = |stay: &Stay| {
        windows.iter().any(|window| {
            window.page == stay.page && window.from < stay.since && window.until.is_none_or(|until| stay.since <= until)
        })
    };
    let ended: BTreeSet<u32> = clients.iter().filter(|client| has_ended(client)).map(Client::request).collect();
    stays.keys().filter(|stay| within(stay)).map(|stay| stay.reader).filter(|reader| ended.contains(reader)).collect()
}

/// Not by its client's leaving, after which nobody looks at what was still to come.
fn has_ended(client: &Client) -> bool {
    !matches!(client.state, State::Left | State::Open)
}
