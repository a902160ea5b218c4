#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use super::*;
use audit_feed::{EngineFeed, FeedSettings};
use audit_provenance::PageRun;
use policies_domain::{
    CustodyAct, CustodyEvent, CustodyRecord, Generation, Owner, PageId, PageLife, PageRead, PageTrace, TenantId,
};
use tempfile::TempDir;

const ACME: (u32, TenantRef) = (1, [1; 16]);
const GLOBEX: (u32, TenantRef) = (2, [2; 16]);

/// Minted long after every feed here began, and a minute after the one before it.
fn id(request: u8) -> RequestId {
    let mut bytes = [request; 16];
    bytes[..6].copy_from_slice(&[0xff, 0xff, 0xff, request, 0, 0]);
    RequestId::from_bytes(bytes)
}

/// An engine's feed, written record by record.
struct Made {
    feeds: TempDir,
    feed: Option<EngineFeed>,
    runs: u8,
}

impl Made {
    fn new() -> Self {
        let mut made = Self { feeds: tempfile::tempdir().unwrap(), feed: None, runs: 0 };
        made.restart();
        made
    }

    /// Another run of the program.
    fn restart(&mut self) {
        self.flush();
        self.runs += 1;
        let settings = FeedSettings { run: [self.runs; 16], bytes_max: 1 << 30, group_may_read: false };
        self.feed = Some(EngineFeed::open(self.feeds.path(), settings).unwrap());
    }

    /// What was said is there to be read.
    fn flush(&mut self) {
        self.feed = None;
    }

    fn page(&self, page: u32, generation: u32, label: Label, act: CustodyAct) {
        let life = PageLife { page: PageId(page), generation: Generation(generation) };
        let owner = Owner::Nobody;
        let event = CustodyEvent { number: 0, step_issued: 0, step_retired: 0, life, label, owner, act };
        self.feed.as_ref().unwrap().custody(0, &[CustodyRecord::Event(event)]);
    }

    fn begin(&self, page: u32, generation: u32, (label, _): (u32, TenantRef)) {
        let label = Label::of(TenantId::new(label).unwrap());
        self.page(page, generation, label, CustodyAct::Allocated { tag: 1 });
    }

    fn end(&self, page: u32, generation: u32) {
        self.page(page, generation + 1, Label::NOBODY, CustodyAct::Freed);
    }

    fn pass(&self, request: u8, kept: usize, pages: &[(u32, u32)]) {
        let read = |(page, generation): &(u32, u32)| PageRead {
            page: PageId(*page),
            generation: Generation(*generation),
            label: Label::NOBODY,
            shared: false,
        };
        let trace = PageTrace { kept, pages: pages.iter().map(read).collect() };
        self.feed.as_ref().unwrap().pass(id(request), &trace);
    }

    fn side(&mut self) -> EngineSide {
        self.flush();
        EngineSide::new(self.feeds.path())
    }
}

/// The sealed entry with ten times the request's number, opened right before.
fn claim(request: u8, (_, tenant): (u32, TenantRef), steps: u64, pages: &[(u32, u32)]) -> Claim {
    let run = |(page, generation): &(u32, u32)| PageRun {
        page: PageId(*page),
        generation: Generation(*generation),
        class: PageClass::Own,
        first_step: 0,
        last_step: 0,
    };
    let index = 10 * u64::from(request);
    let trace = Trace { pages: pages.iter().map(run).collect(), chunks: Vec::new() };
    Claim { index, wall_us: u64::MAX, request: id(request), tenant, steps, trace }
}

fn judge(side: &mut EngineSide, claim: Claim) -> Result<Judged, EngineFault> {
    side.judge(claim).unwrap()
}

#[test]
fn what_both_say_alike_is_the_same() {
    let mut made = Made::new();
    made.begin(4, 1, ACME);
    made.pass(1, 0, &[(4, 1)]);
    made.begin(5, 1, GLOBEX);
    made.pass(2, 0, &[(5, 1)]);
    made.begin(6, 1, ACME);
    made.pass(1, 1, &[(6, 1)]);
    made.end(4, 1);
    // Another life of the page, another tenant.
    made.begin(4, 3, GLOBEX);
    made.pass(2, 1, &[(4, 3)]);
    let mut side = made.side();
    assert_eq!(judge(&mut side, claim(2, GLOBEX, 2, &[(5, 1), (4, 3)])), Ok(Judged::Same));
    assert_eq!(judge(&mut side, claim(1, ACME, 2, &[(4, 1), (6, 1)])), Ok(Judged::Same));
}

#[test]
fn a_page_is_read_in_its_life_and_never_after_it() {
    let read_after = |act: fn(&Made)| {
        let mut made = Made::new();
        made.begin(4, 1, ACME);
        made.pass(1, 0, &[(4, 1)]);
        act(&made);
        made.pass(1, 1, &[]);
        judge(&mut made.side(), claim(1, ACME, 2, &[(4, 1)]))
    };
    assert_eq!(read_after(|_| ()), Ok(Judged::Same));
    let fault = Err(EngineFault::NoLife { page: 4, generation: 1 });
    assert_eq!(read_after(|made| made.end(4, 1)), fault, "it was freed");
    assert_eq!(read_after(|made| made.begin(4, 3, ACME)), fault, "it is in another life");
    let mut made = Made::new();
    made.pass(1, 0, &[(4, 1)]);
    assert_eq!(judge(&mut made.side(), claim(1, ACME, 1, &[(4, 1)])), fault, "it never began");
}

#[test]
fn a_response_has_pages_of_its_tenant_and_of_everybody_alone() {
    let with = |second: Label, class: PageClass| {
        let mut made = Made::new();
        made.begin(4, 1, ACME);
        made.page(5, 1, second, CustodyAct::Allocated { tag: 1 });
        made.pass(1, 0, &[(4, 1), (5, 1)]);
        let mut claim = claim(1, ACME, 1, &[(4, 1), (5, 1)]);
        claim.trace.pages[1].class = class;
        judge(&mut made.side(), claim)
    };
    let of = |number| Label::of(TenantId::new(number).unwrap());
    assert_eq!(with(of(ACME.0), PageClass::Own), Ok(Judged::Same));
    assert_eq!(with(Label::PUBLIC, PageClass::Public), Ok(Judged::Same));
    let foreign = Err(EngineFault::Foreign { page: 5, generation: 1 });
    assert_eq!(with(of(GLOBEX.0), PageClass::Own), foreign, "whatever the trace says");
    assert_eq!(with(Label::NOBODY, PageClass::Own), foreign);
    let invented = Err(EngineFault::Invented { page: 5, generation: 1 });
    assert_eq!(with(Label::PUBLIC, PageClass::Own), invented);
    assert_eq!(with(of(ACME.0), PageClass::Public), invented);
}

#[test]
fn a_tenant_has_one_label_and_a_label_one_tenant() {
    let second = |label, tenant| {
        let mut made = Made::new();
        made.begin(4, 1, ACME);
        made.pass(1, 0, &[(4, 1)]);
        made.begin(5, 1, label);
        made.pass(2, 0, &[(5, 1)]);
        let mut side = made.side();
        assert_eq!(judge(&mut side, claim(1, ACME, 1, &[(4, 1)])), Ok(Judged::Same));
        judge(&mut side, claim(2, tenant, 1, &[(5, 1)]))
    };
    assert_eq!(second(ACME, ACME), Ok(Judged::Same));
    assert_eq!(second(GLOBEX, GLOBEX), Ok(Judged::Same));
    assert_eq!(second(ACME, GLOBEX), Err(EngineFault::Tenant), "all that was read is another's");
    assert_eq!(second(GLOBEX, ACME), Err(EngineFault::Tenant));
}

#[test]
fn the_trace_names_what_was_read_and_nothing_else() {
    let with = |steps, pages: &[(u32, u32)]| {
        let mut made = Made::new();
        made.begin(4, 1, ACME);
        made.begin(5, 1, ACME);
        made.pass(1, 0, &[(4, 1)]);
        made.pass(1, 1, &[(5, 1)]);
        judge(&mut made.side(), claim(1, ACME, steps, pages))
    };
    assert_eq!(with(2, &[(4, 1), (5, 1)]), Ok(Judged::Same));
    assert_eq!(with(2, &[(4, 1)]), Err(EngineFault::Hidden { page: 5, generation: 1 }));
    assert_eq!(with(1, &[(4, 1)]), Ok(Judged::Same), "its client left before the second step was sent");
    assert_eq!(with(1, &[]), Err(EngineFault::Hidden { page: 4, generation: 1 }), "of the steps that it has");
    assert_eq!(with(1, &[(4, 1), (5, 1)]), Err(EngineFault::Invented { page: 5, generation: 1 }), "read later");
    assert_eq!(with(2, &[(4, 1), (5, 3)]), Err(EngineFault::Invented { page: 5, generation: 3 }));
    assert_eq!(with(2, &[(4, 1), (5, 1), (6, 1)]), Err(EngineFault::Invented { page: 6, generation: 1 }));
}

/// It was over some seconds after it was minted.
fn over(claim: Claim) -> Claim {
    Claim { wall_us: minted_us(claim.request) + 10 * CLOCK_SLACK_US, ..claim }
}

#[test]
fn steps_that_the_engine_did_not_make_are_found_when_nothing_can_follow() {
    let judged = |passes: usize, claim: Claim| {
        let mut made = Made::new();
        made.begin(4, 1, ACME);
        (0..passes).for_each(|pass| made.pass(1, pass.min(1), if pass == 0 { &[(4, 1)] } else { &[] }));
        // Of another one that was minted later.
        made.pass(3, 0, &[(4, 1)]);
        let mut side = made.side();
        let judged = judge(&mut side, claim);
        assert_eq!(side.settle().unwrap(), []);
        (judged, side.awaited())
    };
    let claimed = || claim(1, ACME, 2, &[(4, 1)]);
    assert_eq!(judged(2, over(claimed())), (Ok(Judged::Same), 0));
    let fault = |made| (Err(EngineFault::Steps { claimed: 2, made }), 0);
    assert_eq!(judged(1, over(claimed())), fault(1));
    assert_eq!(judged(0, over(claimed())), fault(0));
    // As long as nothing is there that came later, it may come.
    assert_eq!(judged(1, claimed()), (Ok(Judged::Awaited), 1));
}

#[test]
fn what_was_awaited_comes() {
    let mut made = Made::new();
    made.begin(4, 1, ACME);
    made.pass(1, 0, &[(4, 1)]);
    let mut side = EngineSide::new(made.feeds.path());
    assert_eq!(judge(&mut side, claim(1, ACME, 2, &[(4, 1)])), Ok(Judged::Awaited));
    made.pass(1, 1, &[]);
    made.flush();
    assert_eq!((side.settle().unwrap(), side.awaited()), (vec![(10, Ok(Judged::Same))], 0));
}

#[test]
fn a_pass_that_was_taken_out_is_found() {
    let mut made = Made::new();
    made.begin(4, 1, ACME);
    made.begin(5, 1, ACME);
    made.pass(1, 0, &[(4, 1)]);
    // The one that read page 5 for the first time.
    made.pass(1, 2, &[]);
    made.pass(2, 1, &[]);
    let mut side = made.side();
    assert_eq!(judge(&mut side, claim(1, ACME, 2, &[(4, 1)])), Err(EngineFault::Missing { made: 1 }));
    assert_eq!(judge(&mut side, claim(2, ACME, 1, &[(4, 1)])), Err(EngineFault::Missing { made: 0 }));
}

#[test]
fn what_the_engine_did_wrong_for_nobody_s_response_is_not_forgotten() {
    let mut made = Made::new();
    made.begin(4, 1, ACME);
    made.begin(5, 1, GLOBEX);
    // After the steps that its response has, for a request without a response, and for one that was stopped.
    made.pass(1, 0, &[(4, 1)]);
    made.pass(1, 1, &[(5, 1)]);
    made.pass(2, 0, &[(4, 1), (5, 1)]);
    made.pass(3, 0, &[(9, 9)]);
    made.pass(4, 0, &[(4, 1)]);
    let mut side = made.side();
    side.stopped(id(3));
    assert_eq!(judge(&mut side, claim(1, ACME, 1, &[(4, 1)])), Ok(Judged::Same));
    assert_eq!(judge(&mut side, claim(4, ACME, 1, &[(4, 1)])), Ok(Judged::Same));
    assert_eq!((side.fault_of(id(2)).is_some(), side.fault_of(id(4))), (true, None));
    let minted = minted_us(id(1));
    assert_eq!(side.unclaimed(minted + UNCLAIMED_US), (2, None), "their responses may be under way");
    let foreign = EngineFault::Foreign { page: 5, generation: 1 };
    assert_eq!(side.unclaimed(minted + UNCLAIMED_US + 1), (2, Some((id(1), foreign))));
    side.stopped(id(1));
    side.stopped(id(2));
    assert_eq!(side.unclaimed(u64::MAX), (0, None));
}

#[test]
fn what_the_feed_does_not_have_is_not_known() {
    let mut made = Made::new();
    made.begin(4, 1, ACME);
    made.pass(1, 0, &[(4, 1)]);
    made.restart();
    made.begin(4, 1, GLOBEX);
    made.pass(2, 0, &[(4, 1)]);
    let mut side = made.side();
    assert_eq!(judge(&mut side, claim(1, ACME, 2, &[(4, 1)])), Ok(Judged::Unknown), "its end went with its run");
    assert_eq!(judge(&mut side, claim(2, ACME, 1, &[(4, 1)])), Ok(Judged::Same), "numbers of another run");
    let older = Claim { request: RequestId::from_bytes([1; 16]), ..over(claim(1, ACME, 1, &[(4, 1)])) };
    assert_eq!(judge(&mut side, older), Ok(Judged::Unknown), "its passes may be older than what is left");
    let older = Claim { wall_us: 1, ..claim(4, ACME, 1, &[(4, 1)]) };
    assert_eq!(judge(&mut side, older), Ok(Judged::Before));

    // Records that found no room.
    let mut made = Made::new();
    made.begin(4, 1, ACME);
    made.pass(1, 0, &[(4, 1)]);
    made.feed.as_ref().unwrap().custody(0, &[CustodyRecord::Lost { first: 0, events: 1 }]);
    made.pass(1, 1, &[]);
    made.pass(2, 0, &[(9, 9)]);
    let mut side = made.side();
    assert_eq!(judge(&mut side, claim(1, ACME, 2, &[(4, 1)])), Ok(Judged::Unknown));
    assert_eq!(judge(&mut side, claim(2, ACME, 1, &[(9, 9)])), Ok(Judged::Unknown));

    // Its first passes are gone, and a later one says all that it reads again.
    let mut made = Made::new();
    made.begin(4, 1, ACME);
    let older = RequestId::from_bytes([1; 16]);
    let read = PageRead { page: PageId(4), generation: Generation(1), label: Label::NOBODY, shared: false };
    made.feed.as_ref().unwrap().pass(older, &PageTrace { kept: 0, pages: vec![read] });
    let mut side = made.side();
    let claim_of_older = Claim { request: older, ..claim(1, ACME, 5, &[(4, 1)]) };
    assert_eq!(judge(&mut side, claim_of_older), Ok(Judged::Unknown));

    // A fault that was seen before something was missing stays one.
    let mut made = Made::new();
    made.pass(1, 0, &[(4, 1)]);
    made.feed.as_ref().unwrap().custody(0, &[CustodyRecord::Lost { first: 0, events: 1 }]);
    made.pass(1, 1, &[]);
    let fault = Err(EngineFault::NoLife { page: 4, generation: 1 });
    assert_eq!(judge(&mut made.side(), claim(1, ACME, 2, &[(4, 1)])), fault);
}
