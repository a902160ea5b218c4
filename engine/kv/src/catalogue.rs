//! Public defects re-created: each with its fault, a control without it, and a legal look-alike.
//!
//! A store of cells stands for the memory: a cell carries the tag that its writer brought along, and remembers who wrote
//! it. That memory, not the checks, says whether anybody read what was not its own.

use crate::custody_view::{CustodyError, CustodyView};
use crate::fault::LedgerFault::{self, DoubleFree, EarlyFree, NoAssertions, NoScrub, NoStepFence};
use crate::ledger::{AllocateError, Capability, Grant, Ledger, LedgerConfig, PageFormat, TicketError, UseError};
use policies_domain::{
    CustodyRecord, HolderId, Label, Outcome, Owner, PageId, PageLife, SequenceId, TenantId, TicketKind, TransferId,
};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

const READ: TicketKind = TicketKind::Read;
const WRITE: TicketKind = TicketKind::Write;
const SENDER: HolderId = HolderId(7);
const READER: HolderId = HolderId(8);

#[derive(Clone, Copy, Default)]
struct Cell {
    tag: u32,
    /// Whose bytes they are.
    written_by: u32,
}

struct Rig {
    ledger: Ledger,
    cells: Vec<Cell>,
    view: CustodyView,
}

/// What stopped a reader, or who wrote what it read.
#[derive(Debug, PartialEq)]
enum Read {
    Of(u32),
    NoTag,
    Refused(UseError),
}

fn tenant(number: u32) -> Label {
    Label::of(TenantId::new(number).unwrap())
}

fn plain(pages: u32, faults: &[LedgerFault]) -> Ledger {
    let (boot_secret, format, compat, events_max) = ([5; 32], PageFormat::Bf16, 0, 0);
    let mut ledger = Ledger::new(LedgerConfig { pages, boot_secret, format, compat, events_max });
    ledger.plant(faults.to_vec());
    ledger
}

impl Rig {
    fn new(pages: u32, faults: &[LedgerFault]) -> Self {
        let (boot_secret, format, compat, events_max) = ([5; 32], PageFormat::Bf16, 0, 256);
        let mut ledger = Ledger::new(LedgerConfig { pages, boot_secret, format, compat, events_max });
        ledger.plant(faults.to_vec());
        Self { ledger, cells: vec![Cell::default(); pages as usize], view: CustodyView::new(pages) }
    }

    fn allocate(&mut self, number: u32) -> Result<(Grant, SequenceId), AllocateError> {
        let sequence = self.ledger.open_sequence();
        let grant = self.ledger.allocate(tenant(number), sequence)?;
        Ok((grant, sequence))
    }

    /// Writes under a capability that may be stale, as a sender does that nobody stops.
    fn write(&mut self, capability: Capability, number: u32) {
        self.cells[capability.page().0 as usize] = Cell { tag: capability.tag(), written_by: number };
    }

    /// The ledger is asked, then the kernel compares the tag that it finds.
    fn read(&self, grant: Grant, reader: SequenceId, number: u32) -> Read {
        match self.ledger.check_read(grant.capability(), reader, tenant(number), 1) {
            Err(error) => Read::Refused(error),
            Ok(_) => self.read_unchecked(grant),
        }
    }

    fn read_unchecked(&self, grant: Grant) -> Read {
        let cell = self.cells[grant.life().page.0 as usize];
        if cell.tag == grant.capability().tag() { Read::Of(cell.written_by) } else { Read::NoTag }
    }

    fn reclaim(&mut self) -> usize {
        let cells = &mut self.cells;
        self.ledger.reclaim(|page| {
            cells[page.0 as usize] = Cell::default();
            true
        })
    }

    fn audit(&mut self) -> Result<(), CustodyError> {
        let mut records: Vec<CustodyRecord> = Vec::new();
        self.ledger.drain(&mut records);
        records.iter().try_for_each(|record| self.view.follow(record))
    }
}

/// The assertion that stopped the worker.
fn fault_of<T>(act: impl FnOnce() -> T) -> String {
    let panic = catch_unwind(AssertUnwindSafe(act)).err().expect("nothing stopped the worker");
    panic.downcast_ref::<String>().expect("an assertion says what is wrong").clone()
}

/// A's pages are promised to a sender, A is aborted while the sender writes.
fn aborted_transfer(rig: &mut Rig) -> Grant {
    let transfer = TransferId::new(1).unwrap();
    let grant = rig.ledger.reserve(tenant(1), transfer).unwrap();
    rig.ledger.open_ticket(grant.life(), WRITE, SENDER).unwrap();
    rig.ledger.give_back(grant.life(), Owner::Transfer(transfer)).unwrap();
    grant
}

#[test]
fn decode_page_reuse_before_writer_done() {
    // Fault: the allocator looks at the owner alone. The assertion at the door of the free list stops it.
    let mut rig = Rig::new(1, &[EarlyFree]);
    aborted_transfer(&mut rig);
    assert!(fault_of(|| rig.reclaim()).contains("page-0 would be free with open tickets"));

    // That door open, too: the log's auditor sees it, and no reader of B's takes the late write for its own.
    let mut rig = Rig::new(1, &[EarlyFree, NoAssertions]);
    let late = aborted_transfer(&mut rig);
    assert_eq!(rig.reclaim(), 1);
    let (grant, reader) = rig.allocate(2).unwrap();
    rig.write(grant.capability(), 2);
    rig.ledger.append(grant.life(), reader, 16).unwrap();
    rig.write(late.capability(), 1);
    assert_eq!(rig.cells[0].written_by, 1, "the shadow sees A's bytes in B's page");
    assert_eq!(rig.read(grant, reader, 2), Read::NoTag);
    assert!(matches!(rig.audit(), Err(CustodyError::Impossible { page: PageId(0), .. })));
    let settled = rig.ledger.settle(late.life(), WRITE, SENDER, Outcome::Done);
    assert!(matches!(settled, Err(TicketError::Page(UseError::Stale { .. }))), "the sender's life of it is over");

    // Control: B waits for the sender's outcome.
    let mut rig = Rig::new(1, &[]);
    let late = aborted_transfer(&mut rig);
    assert_eq!(rig.reclaim(), 0);
    assert!(rig.allocate(2).is_err());
    rig.write(late.capability(), 1);
    rig.ledger.settle(late.life(), WRITE, SENDER, Outcome::Done).unwrap();
    assert_eq!(rig.reclaim(), 1);
    let (grant, reader) = rig.allocate(2).unwrap();
    rig.write(grant.capability(), 2);
    rig.ledger.append(grant.life(), reader, 16).unwrap();
    assert_eq!((rig.read(grant, reader, 2), rig.audit()), (Read::Of(2), Ok(())));

    // Twin: the sender had finished before the abort. The page is B's at once.
    let mut rig = Rig::new(1, &[]);
    let transfer = TransferId::new(1).unwrap();
    let life = rig.ledger.reserve(tenant(1), transfer).unwrap().life();
    rig.ledger.open_ticket(life, WRITE, SENDER).unwrap();
    rig.ledger.settle(life, WRITE, SENDER, Outcome::Done).unwrap();
    rig.ledger.give_back(life, Owner::Transfer(transfer)).unwrap();
    assert_eq!(rig.reclaim(), 1);
    assert!(rig.allocate(2).is_ok());
    assert_eq!(rig.audit(), Ok(()));
}

/// A ends with step N while step N+1, which carries it still, is under way.
fn finished_inside_a_pipeline(rig: &mut Rig) -> Grant {
    let (grant, owner) = rig.allocate(1).unwrap();
    let first = rig.ledger.issue_step();
    rig.ledger.issue_step();
    rig.ledger.retire_step(first).unwrap();
    rig.ledger.give_back(grant.life(), Owner::Sequence(owner)).unwrap();
    grant
}

#[test]
fn next_step_writes_after_free() {
    // Fault: no fence between the free and the step that is under way.
    let mut rig = Rig::new(1, &[NoStepFence]);
    finished_inside_a_pipeline(&mut rig);
    assert!(fault_of(|| rig.reclaim()).contains("page-0 would be free before step 2 has retired"));

    // The assertion off as well: the auditor sees it, and the receiver does not take the write for its own.
    let mut rig = Rig::new(1, &[NoStepFence, NoAssertions]);
    let late = finished_inside_a_pipeline(&mut rig);
    assert_eq!(rig.reclaim(), 1);
    let (grant, reader) = rig.allocate(2).unwrap();
    rig.write(grant.capability(), 2);
    rig.ledger.append(grant.life(), reader, 16).unwrap();
    rig.write(late.capability(), 1);
    assert_eq!(rig.read(grant, reader, 2), Read::NoTag);
    assert!(matches!(rig.audit(), Err(CustodyError::Impossible { page: PageId(0), .. })));

    // Control: the page waits for step 2.
    let mut rig = Rig::new(1, &[]);
    let late = finished_inside_a_pipeline(&mut rig);
    assert_eq!(rig.reclaim(), 0);
    assert_eq!(rig.ledger.may_free(PageId(0)), Err(UseError::StepOpen { page: PageId(0), step: 2, retired: 1 }));
    rig.write(late.capability(), 1);
    rig.ledger.retire_step(2).unwrap();
    assert_eq!(rig.reclaim(), 1);
    assert_eq!((rig.cells[0].written_by, rig.audit()), (0, Ok(())), "scrubbed after the last write");

    // Twin: a pipeline of one. The page is the next one's at once.
    let mut rig = Rig::new(1, &[]);
    let (grant, owner) = rig.allocate(1).unwrap();
    let step = rig.ledger.issue_step();
    rig.ledger.retire_step(step).unwrap();
    rig.ledger.give_back(grant.life(), Owner::Sequence(owner)).unwrap();
    assert_eq!((rig.reclaim(), rig.audit()), (1, Ok(())));
}

/// The same page is listed twice in what a sequence gives back.
fn listed_twice(rig: &mut Rig) -> [Result<(), UseError>; 2] {
    let (grant, owner) = rig.allocate(1).unwrap();
    [(); 2].map(|()| rig.ledger.give_back(grant.life(), Owner::Sequence(owner)))
}

#[test]
fn free_list_duplicate() {
    // Fault: nobody looks whether it came back before.
    let mut rig = Rig::new(2, &[DoubleFree]);
    assert_eq!(listed_twice(&mut rig), [Ok(()), Ok(())]);
    assert!(fault_of(|| rig.reclaim()).contains("page-0 is freed twice"));

    // It stands in the free list twice: the second one to get it stops the worker, before it has it.
    let mut rig = Rig::new(2, &[DoubleFree, NoAssertions]);
    assert_eq!(listed_twice(&mut rig), [Ok(()), Ok(())]);
    rig.reclaim();
    assert_eq!(rig.allocate(1).unwrap().0.life().page, PageId(0));
    assert!(fault_of(|| rig.allocate(2)).contains("page-0 is in another state than its holder believes"));

    // Control: the second time is refused, and changes nothing.
    let mut rig = Rig::new(2, &[]);
    assert_eq!(listed_twice(&mut rig), [Ok(()), Err(UseError::AlreadyBack { page: PageId(0) })]);
    assert_eq!((rig.reclaim(), rig.audit()), (1, Ok(())));
    rig.ledger.assert_sound();

    // Twin: two sequences of one tenant hold the page, and each gives it back.
    let mut rig = Rig::new(2, &[]);
    let (grant, first) = rig.allocate(1).unwrap();
    let second = rig.ledger.open_sequence();
    rig.ledger.append(grant.life(), first, 16).unwrap();
    rig.ledger.seal(grant.life(), first).unwrap();
    rig.ledger.share(grant.life(), first).unwrap();
    rig.ledger.attach(grant.life(), tenant(1), second).unwrap();
    rig.ledger.give_back(grant.life(), Owner::Sequence(second)).unwrap();
    rig.ledger.give_back(grant.life(), Owner::Sequence(first)).unwrap();
    assert_eq!((rig.reclaim(), rig.audit()), (1, Ok(())));
}

#[test]
fn padding_index_minus_one() {
    let mut rig = Rig::new(2, &[]);
    let (first, owner) = rig.allocate(1).unwrap();
    let (last, victim) = rig.allocate(2).unwrap();
    rig.write(last.capability(), 2);
    rig.ledger.append(last.life(), victim, 16).unwrap();
    let before = rig.ledger.clone();

    // Fault: a padded row's -1 becomes the last page, with the life that anybody could read off a label.
    let wrapped = PageId((-1i32).rem_euclid(2) as u32);
    let generation = rig.ledger.label(wrapped).unwrap().generation;
    let life = PageLife { page: wrapped, generation };
    // A padded row has no sequence, so it can only write as somebody else of its batch.
    let refused = UseError::NotOwner { page: wrapped, held: Owner::Sequence(victim), wanted: Owner::Sequence(owner) };
    assert_eq!(rig.ledger.append(life, owner, 1), Err(refused));
    // As 32 bits it is no page at all, and 0 is nobody's tag.
    let wide = Capability::new(PageId(-1i32 as u32), 0);
    assert!(rig.ledger.trace(0, &[wide], 0, &mut Vec::new()).is_err());
    let nobodys = Capability::new(wrapped, 0);
    assert_eq!(rig.ledger.check_read(nobodys, owner, tenant(1), 0), Err(UseError::TagMismatch { page: wrapped }));
    assert_eq!(rig.ledger, before);
    assert_eq!(rig.read(last, victim, 2), Read::Of(2), "the victim's slot is as it was");

    // Control: rows without padding. Twin: padded rows that write to a page of their own.
    assert!(rig.ledger.append(first.life(), owner, 1).is_ok());
    let mut rig = Rig::new(2, &[]);
    let (sink, padding) = rig.allocate(1).unwrap();
    assert!(rig.ledger.append(sink.life(), padding, 1).is_ok());
    assert_eq!(rig.audit(), Ok(()));
}

#[test]
fn recurrent_state_not_zeroed() {
    let reused = |faults: &[LedgerFault]| {
        let mut rig = Rig::new(1, faults);
        let (grant, owner) = rig.allocate(1).unwrap();
        rig.write(grant.capability(), 1);
        rig.ledger.append(grant.life(), owner, 16).unwrap();
        rig.ledger.give_back(grant.life(), Owner::Sequence(owner)).unwrap();
        assert_eq!(rig.reclaim(), 1);
        let (grant, reader) = rig.allocate(2).unwrap();
        (rig, grant, reader)
    };
    let unwritten = UseError::NotWritten { page: PageId(0), fill: 0, wanted: 1 };
    // Fault: no scrub. What this life has not written is not read, whatever lies there.
    let (rig, grant, reader) = reused(&[NoScrub]);
    assert_eq!(rig.cells[0].written_by, 1, "the shadow sees A's bytes");
    assert_eq!(rig.read(grant, reader, 2), Read::Refused(unwritten));
    assert_eq!(rig.read_unchecked(grant), Read::NoTag, "nor without asking the ledger");
    // Control: B reads before it has written, and there is nothing to read.
    let (rig, grant, reader) = reused(&[]);
    assert_eq!((rig.cells[0].written_by, rig.read(grant, reader, 2)), (0, Read::Refused(unwritten)));
    // Twin: B writes first.
    let (mut rig, grant, reader) = reused(&[]);
    rig.write(grant.capability(), 2);
    rig.ledger.append(grant.life(), reader, 1).unwrap();
    assert_eq!((rig.read(grant, reader, 2), rig.audit()), (Read::Of(2), Ok(())));
}

/// Everything that can be done next to a ledger of one page, of which one life and one ticket is tracked.
fn next_states(ledger: &Ledger) -> Vec<Ledger> {
    let life = PageLife { page: PageId(0), generation: ledger.label(PageId(0)).unwrap().generation };
    let owner = SequenceId::FIRST;
    let act = |change: &dyn Fn(&mut Ledger) -> bool| {
        let mut next = ledger.clone();
        change(&mut next).then_some(next)
    };
    let settle = |kind, outcome| move |next: &mut Ledger| next.settle(life, kind, SENDER, outcome).is_ok();
    let changes: Vec<Option<Ledger>> = vec![
        act(&|next| next.allocate(tenant(1), owner).is_ok()),
        act(&|next| next.reserve(tenant(1), TransferId::new(1).unwrap()).is_ok()),
        act(&|next| next.append(life, owner, 16).is_ok_and(|taken| taken > 0)),
        act(&|next| next.seal(life, owner).is_ok()),
        act(&|next| next.offer(life, owner).is_ok()),
        act(&|next| next.commit(life, Owner::Transfer(TransferId::new(1).unwrap()), owner, 16).is_ok()),
        act(&|next| next.give_back(life, Owner::Sequence(owner)).is_ok()),
        act(&|next| next.give_back(life, Owner::Transfer(TransferId::new(1).unwrap())).is_ok()),
        act(&|next| next.open_ticket(life, READ, SENDER).is_ok()),
        act(&|next| next.open_ticket(life, WRITE, SENDER).is_ok()),
        act(&|next| next.open_ticket(life, READ, READER).is_ok()),
        act(&|next| next.settle(life, READ, READER, Outcome::Done).is_ok()),
        act(&settle(READ, Outcome::Done)),
        act(&settle(READ, Outcome::Unknown)),
        act(&settle(WRITE, Outcome::Done)),
        act(&settle(WRITE, Outcome::Unknown)),
        act(&|next| next.expire(SENDER) > 0),
        act(&|next| next.fence(SENDER) > 0),
        act(&|next| next.issue_step() < 3),
        act(&|next| (1..=2).any(|step| next.retire_step(step).is_ok())),
        act(&|next| next.reclaim(|_| true) > 0),
    ];
    changes.into_iter().flatten().collect()
}

/// Every ledger of one page that is reached in so many operations. Panics in one that is not sound.
fn explore(faults: &[LedgerFault], depth: usize) -> usize {
    let mut seen = HashSet::from([plain(1, faults)]);
    let mut frontier: Vec<Ledger> = seen.iter().cloned().collect();
    for _ in 0..depth {
        let reached: Vec<Ledger> = frontier.iter().flat_map(next_states).collect();
        frontier = reached.into_iter().filter(|ledger| seen.insert(ledger.clone())).collect();
        frontier.iter().for_each(Ledger::assert_sound);
    }
    seen.len()
}

#[test]
fn no_order_of_events_frees_a_page_that_somebody_may_touch() {
    let states = explore(&[], 18);
    assert!(states > 5_000, "{states} states are not many");
    for fault in [EarlyFree, NoStepFence] {
        let found = fault_of(|| explore(&[fault, NoAssertions], 12));
        assert!(found.contains("is free"), "{fault:?}: {found}");
    }
}
