//! The ledger against a naive model, and its log against both: random operations, wrong ones among them.

use crate::custody_view::{CustodyError, CustodyView, HeldPage};
use crate::ledger::{Ledger, LedgerConfig, PAGE_TOKENS, PageFormat, PageState};
use policies_domain::{
    CustodyAct, CustodyEvent, CustodyRecord, HolderId, Label, Outcome, Owner, PageId, PageLife, QuarantineReason,
    SequenceId, TenantId, TicketKind, TransferId,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const PAGES: u32 = 6;
/// The last one's pages are everybody's, the others' two tenants'.
const SEQUENCES: std::ops::Range<usize> = 0..5;

/// What is known of one life of a page.
#[derive(Clone, Debug)]
struct Life {
    life: PageLife,
    tenant: u32,
    tag: u32,
    fill: usize,
    /// Who holds it; empty once all have let go.
    owners: Vec<Owner>,
    /// Who may touch it besides.
    tickets: Vec<(HolderId, TicketKind)>,
    /// The newest step when the last owner let go.
    back_at: u64,
    /// It became a sequence's by a commit, and this life is over.
    over: bool,
    evidence: bool,
}

/// All lives that there ever were.
#[derive(Default)]
struct Naive {
    lives: Vec<Life>,
    /// Pages of each sequence, in order.
    sequences: Vec<(SequenceId, u32, Vec<PageId>)>,
    retired: u64,
    issued: u64,
}

#[derive(Clone, Debug)]
enum Operation {
    Allocate { sequence: usize },
    Reserve { tenant: u32 },
    Append { life: usize, sequence: usize, tokens: usize },
    Seal { life: usize },
    Share { life: usize },
    Attach { life: usize, sequence: usize },
    Keep { life: usize, tenant: u32 },
    Offer { life: usize },
    Withdraw { life: usize },
    Commit { life: usize, sequence: usize, tokens: usize },
    GiveBack { life: usize, owner: usize },
    Ticket { life: usize, kind: TicketKind, holder: u64 },
    Settle { life: usize, kind: TicketKind, holder: u64, outcome: Outcome },
    Expire { holder: u64 },
    Fence { holder: u64 },
    Quarantine { page: u32 },
    Issue,
    Retire,
    Reclaim { scrubs: bool },
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let life = 0..PAGES as usize + 2;
    let kind = prop_oneof![Just(TicketKind::Read), Just(TicketKind::Write)];
    let outcome = prop_oneof![3 => Just(Outcome::Done), 1 => Just(Outcome::Failed), 1 => Just(Outcome::Unknown)];
    prop_oneof![
        6 => (SEQUENCES).prop_map(|sequence| Allocate { sequence }),
        3 => (1..3u32).prop_map(|tenant| Reserve { tenant }),
        6 => (life.clone(), SEQUENCES, 0..20usize).prop_map(|(life, sequence, tokens)| Append { life, sequence, tokens }),
        3 => life.clone().prop_map(|life| Seal { life }),
        2 => life.clone().prop_map(|life| Share { life }),
        3 => (life.clone(), SEQUENCES).prop_map(|(life, sequence)| Attach { life, sequence }),
        2 => (life.clone(), 0..3u32).prop_map(|(life, tenant)| Keep { life, tenant }),
        2 => life.clone().prop_map(|life| Offer { life }),
        1 => life.clone().prop_map(|life| Withdraw { life }),
        4 => (life.clone(), SEQUENCES, 0..18usize).prop_map(|(life, sequence, tokens)| Commit { life, sequence, tokens }),
        6 => (life.clone(), 0..3usize).prop_map(|(life, owner)| GiveBack { life, owner }),
        6 => (life.clone(), kind.clone(), 0..2u64).prop_map(|(life, kind, holder)| Ticket { life, kind, holder }),
        6 => (life, kind, 0..2u64, outcome)
            .prop_map(|(life, kind, holder, outcome)| Settle { life, kind, holder, outcome }),
        1 => (0..2u64).prop_map(|holder| Expire { holder }),
        2 => (0..2u64).prop_map(|holder| Fence { holder }),
        1 => (0..PAGES + 1).prop_map(|page| Quarantine { page }),
        2 => Just(Issue),
        3 => Just(Retire),
        4 => prop_oneof![9 => Just(true), 1 => Just(false)].prop_map(|scrubs| Reclaim { scrubs }),
    ]
}

/// 0 is everybody.
fn tenant(number: u32) -> Label {
    TenantId::new(number).map_or(Label::PUBLIC, Label::of)
}

impl Naive {
    /// One of the latest lives, so that most operations meet a living one and some a dead one.
    fn pick(&mut self, place: usize) -> Option<&mut Life> {
        let last = self.lives.len().checked_sub(1)?;
        self.lives.get_mut(last.checked_sub(place)?)
    }

    /// The page begins a life: nobody may hold it or touch it, and it is not evidence.
    fn begin(&mut self, life: PageLife, tag: u32, number: u32, owner: Owner, before: Option<usize>) {
        for (place, other) in self.lives.iter().enumerate().filter(|(_, other)| other.life.page == life.page) {
            assert!(other.life.generation < life.generation && other.tag != tag, "a life was given out twice");
            if Some(place) != before {
                assert!(other.over || other.owners.is_empty(), "{} has two owners", life.page);
            }
            assert!(other.tickets.is_empty(), "{} is given out under a ticket", life.page);
            assert!(other.back_at <= self.retired, "{} is given out under a step", life.page);
            assert!(!other.evidence, "{} was evidence", life.page);
        }
        let (owners, tickets) = (vec![owner], Vec::new());
        self.lives.push(Life {
            life,
            tenant: number,
            tag,
            fill: 0,
            owners,
            tickets,
            back_at: 0,
            over: false,
            evidence: false,
        });
    }
}

struct Pair {
    ledger: Ledger,
    naive: Naive,
    view: CustodyView,
    /// What the view said of each sequence that has let go of no page since.
    said: BTreeMap<SequenceId, Vec<HeldPage>>,
}

impl Pair {
    fn new() -> Self {
        let (boot_secret, format, compat, events_max) = ([3; 32], PageFormat::Bf16, 0, 64);
        let mut ledger = Ledger::new(LedgerConfig { pages: PAGES, boot_secret, format, compat, events_max });
        let sequence = |place| (ledger.open_sequence(), [1, 2, 1, 2, 0][place], Vec::new());
        let naive = Naive { sequences: SEQUENCES.map(sequence).collect(), ..Naive::default() };
        Self { ledger, naive, view: CustodyView::new(PAGES), said: BTreeMap::new() }
    }

    /// Does it in both, and compares who was refused.
    fn apply(&mut self, operation: Operation) {
        let Self { ledger, naive, .. } = self;
        match operation {
            Operation::Allocate { sequence } => {
                let (id, number, _) = naive.sequences[sequence];
                let allocated = match number {
                    0 => ledger.allocate_public(id),
                    number => ledger.allocate(tenant(number), id),
                };
                if let Ok(grant) = allocated {
                    naive.begin(grant.life(), grant.capability().tag(), number, Owner::Sequence(id), None);
                    naive.sequences[sequence].2.push(grant.life().page);
                } else {
                    assert_eq!(ledger.counts().free, 0);
                }
            }
            Operation::Reserve { tenant: number } => {
                let transfer = TransferId::new(number).unwrap();
                if let Ok(grant) = ledger.reserve(tenant(number), transfer) {
                    naive.begin(grant.life(), grant.capability().tag(), number, Owner::Transfer(transfer), None);
                }
            }
            Operation::Append { life, sequence, tokens } => {
                let id = naive.sequences[sequence].0;
                let Some(known) = naive.pick(life) else { return };
                if let Ok(taken) = ledger.append(known.life, id, tokens) {
                    assert!(known.owners == [Owner::Sequence(id)] && !known.over, "a stranger wrote");
                    assert_eq!(taken, tokens.min(PAGE_TOKENS - known.fill));
                    known.fill += taken;
                }
            }
            Operation::Seal { life } => with_owner(naive, life, |life, owner| ledger.seal(life, owner).is_ok()),
            Operation::Share { life } => with_owner(naive, life, |life, owner| ledger.share(life, owner).is_ok()),
            Operation::Offer { life } => with_owner(naive, life, |life, owner| ledger.offer(life, owner).is_ok()),
            Operation::Withdraw { life } => with_owner(naive, life, |life, owner| ledger.withdraw(life, owner).is_ok()),
            Operation::Attach { life, sequence } => {
                let (id, number, _) = naive.sequences[sequence];
                let Some(known) = naive.pick(life) else { return };
                if ledger.attach(known.life, tenant(number), id).is_ok() {
                    assert!([number, 0].contains(&known.tenant), "shared with a stranger");
                    assert_eq!(known.fill, PAGE_TOKENS, "shared half");
                    assert!(!known.owners.is_empty() && !known.owners.contains(&Owner::Sequence(id)));
                    known.owners.push(Owner::Sequence(id));
                    let page = known.life.page;
                    naive.sequences[sequence].2.push(page);
                }
            }
            Operation::Keep { life, tenant: number } => {
                let Some(known) = naive.pick(life) else { return };
                if let Ok((keeper, _)) = ledger.keep(known.life, tenant(number)) {
                    assert!([number, 0].contains(&known.tenant), "kept for a stranger");
                    assert!(known.fill == PAGE_TOKENS && !known.owners.is_empty());
                    known.owners.push(Owner::Sequence(keeper));
                }
            }
            Operation::Commit { life, sequence, tokens } => {
                let place = naive.lives.len().checked_sub(1).and_then(|last| last.checked_sub(life));
                let Some(place) = place else { return };
                let (id, number, _) = naive.sequences[sequence];
                let known = naive.lives[place].clone();
                let Some(from) = known.owners.first().copied() else { return };
                if known.tenant != number {
                    return;
                }
                if let Ok(grant) = ledger.commit(known.life, from, id, tokens) {
                    assert!(!known.over && known.owners.len() == 1 && (1..=PAGE_TOKENS).contains(&tokens));
                    naive.lives[place].over = true;
                    naive.begin(grant.life(), grant.capability().tag(), number, Owner::Sequence(id), Some(place));
                    naive.lives.last_mut().unwrap().fill = tokens;
                    forget(naive, from);
                    naive.sequences[sequence].2.push(grant.life().page);
                }
            }
            Operation::GiveBack { life, owner } => {
                let issued = naive.issued;
                let strangers = [Owner::Nobody, Owner::Sequence(naive.sequences[3].0)];
                let Some(known) = naive.pick(life) else { return };
                let by = known.owners.get(owner).copied().unwrap_or(strangers[owner % 2]);
                let given_back = ledger.give_back(known.life, by).is_ok();
                assert_eq!(given_back, !known.over && known.owners.contains(&by), "{known:?} by {by}");
                if given_back {
                    known.owners.retain(|owner| *owner != by);
                    known.back_at = issued;
                    forget(naive, by);
                }
            }
            Operation::Ticket { life, kind, holder } => {
                let Some(known) = naive.pick(life) else { return };
                if ledger.open_ticket(known.life, kind, HolderId(holder)).is_ok() {
                    assert!(!known.over && !known.owners.is_empty(), "a ticket on a page that nobody holds");
                    known.tickets.push((HolderId(holder), kind));
                    let writers = known.tickets.iter().filter(|(_, kind)| *kind == TicketKind::Write).count();
                    assert!(writers <= 1, "two writers");
                }
            }
            Operation::Settle { life, kind, holder, outcome } => {
                let ticket = (HolderId(holder), kind);
                let Some(known) = naive.pick(life) else { return };
                let settled = ledger.settle(known.life, kind, HolderId(holder), outcome).is_ok();
                assert_eq!(settled, known.tickets.contains(&ticket), "{known:?}");
                if outcome != Outcome::Unknown {
                    known.tickets.retain(|open| *open != ticket);
                }
            }
            Operation::Expire { holder } => drop(ledger.expire(HolderId(holder))),
            Operation::Fence { holder } => {
                ledger.fence(HolderId(holder));
                naive.lives.iter_mut().for_each(|life| life.tickets.retain(|(by, _)| *by != HolderId(holder)));
            }
            Operation::Quarantine { page } => {
                let known = ledger.quarantine(PageId(page), QuarantineReason::TagMismatch);
                assert_eq!(known, page < PAGES);
                if let Some(life) = naive.lives.iter_mut().rev().find(|life| life.life.page == PageId(page)) {
                    life.evidence = true;
                }
            }
            Operation::Issue => naive.issued = ledger.issue_step(),
            Operation::Retire => {
                let retired = ledger.retire_step(naive.retired + 1).is_ok();
                assert_eq!(retired, naive.retired < naive.issued);
                naive.retired += u64::from(retired);
            }
            Operation::Reclaim { scrubs } => {
                let lives = &naive.lives;
                let retired = naive.retired;
                ledger.reclaim(|page| {
                    let of_page = lives.iter().filter(|life| life.life.page == page);
                    let touched = |life: &Life| !life.tickets.is_empty() || (!life.owners.is_empty() && !life.over);
                    assert!(!of_page.clone().any(touched), "{page} is scrubbed while somebody may touch it");
                    assert!(of_page.clone().all(|life| life.back_at <= retired && !life.evidence));
                    scrubs
                });
            }
        }
    }

    /// The log alone says the same as the model.
    fn compare(&mut self) {
        let mut records: Vec<CustodyRecord> = Vec::new();
        self.ledger.drain(&mut records);
        for record in &records {
            self.view.follow(record).unwrap();
            let CustodyRecord::Event(CustodyEvent { owner, act, .. }) = record else { continue };
            let lets_go = match act {
                CustodyAct::GivenBack => *owner,
                CustodyAct::Committed { from, .. } => *from,
                _ => continue,
            };
            if let Owner::Sequence(sequence) = lets_go {
                self.said.remove(&sequence);
            }
        }
        self.ledger.assert_sound();
        assert!(self.ledger.counts().conserved());
        for (id, number, pages) in &self.naive.sequences {
            let held: Vec<_> = match self.view.pages(*id, 0) {
                Ok(held) => held.collect(),
                Err(CustodyError::Unreadable { page }) => {
                    assert!(pages.contains(&page), "{id} does not hold {page}");
                    assert_eq!(self.ledger.label(page).unwrap().state, PageState::Quarantined);
                    continue;
                }
                Err(_) => continue,
            };
            // Whoever knew the first pages knows them still.
            let said = self.said.insert(*id, held.clone()).unwrap_or_default();
            assert!(said.len() <= held.len());
            for (before, now) in said.iter().zip(&held) {
                assert!(before.fill <= now.fill);
                assert_eq!(HeldPage { fill: now.fill, ..*before }, *now);
            }
            for first in 0..=held.len() + 1 {
                let rest: Vec<_> = self.view.pages(*id, first).unwrap().collect();
                assert_eq!(rest, held[first.min(held.len())..]);
            }
            assert_eq!(held.iter().map(|page| page.life.page).collect::<Vec<_>>(), *pages, "{id}");
            let mut tokens = 0;
            for page in held {
                let known = self.naive.lives.iter().find(|life| life.life == page.life).unwrap();
                assert!(known.owners.contains(&Owner::Sequence(*id)));
                assert!([*number, 0].contains(&known.tenant), "{id} holds a stranger's page");
                assert_eq!(
                    (page.tag, page.label, usize::from(page.fill)),
                    (known.tag, tenant(known.tenant), known.fill)
                );
                assert_ne!(self.ledger.label(page.life.page).unwrap().state, PageState::Quarantined);
                tokens += known.fill;
            }
            assert_eq!(self.view.tokens(*id), Ok(tokens));
        }
    }
}

fn with_owner(naive: &mut Naive, place: usize, act: impl FnOnce(PageLife, SequenceId) -> bool) {
    let Some(known) = naive.pick(place) else { return };
    if let Some(Owner::Sequence(owner)) = known.owners.first().copied() {
        let done = act(known.life, owner);
        assert!(!done || !known.over, "an ended life was used");
    }
}

/// A sequence that has let go of a page reads no more: it gets another number.
fn forget(naive: &mut Naive, owner: Owner) {
    for (id, _, pages) in &mut naive.sequences {
        if Owner::Sequence(*id) == owner {
            pages.clear();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// One owner, none lost, nothing free that somebody may touch; the log tells all of it.
    #[test]
    fn the_ledger_its_log_and_a_naive_model_agree(operations in proptest::collection::vec(operation(), 1..120)) {
        let mut pair = Pair::new();
        for operation in operations {
            pair.apply(operation);
            pair.compare();
        }
    }
}
