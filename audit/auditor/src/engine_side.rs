//! What the engine itself says of a response: whose pages it read, in which lives, in how many passes.

use audit_feed::{Feed, FeedError, Record};
use audit_provenance::{PageClass, TenantRef, Trace};
use policies_domain::{Generation, Label, PageId, RequestId};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::Path;

/// Requests whose passes are remembered until their response is sealed.
const REQUESTS_MAX: usize = 1 << 16;
/// Responses that wait for passes which are not in the feed yet.
const AWAITED_MAX: usize = 1024;

/// A page in a life.
type Life = (PageId, Generation);

/// What is wrong with what the engine did for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EngineFault {
    /// It read a page whose life was over, or had not begun.
    #[error("the engine read page {page} in its life {generation}, which it was not in")]
    NoLife {
        /// The page.
        page: u32,
        /// The life.
        generation: u32,
    },
    /// It read a page of nobody, or pages of two tenants.
    #[error("the engine read page {page} (life {generation}), which is not the data of whom it read others of")]
    Foreign {
        /// The page.
        page: u32,
        /// The life.
        generation: u32,
    },
    /// The pages that it read are another tenant's, as other responses say.
    #[error("the engine read pages of another tenant than whose response it is")]
    Tenant,
    /// The log's trace names a page that the engine did not read, or as somebody else's.
    #[error("the trace names page {page} (life {generation}) otherwise than the engine read it")]
    Invented {
        /// The page.
        page: u32,
        /// The life.
        generation: u32,
    },
    /// The engine read a page that the log's trace does not name.
    #[error("the engine read page {page} (life {generation}), which the trace does not name")]
    Hidden {
        /// The page.
        page: u32,
        /// The life.
        generation: u32,
    },
    /// The response has steps that the engine did not make.
    #[error("the response has {claimed} steps, the engine made {made}")]
    Steps {
        /// Steps of the entry.
        claimed: u64,
        /// Passes of the engine.
        made: u64,
    },
}

/// What the log says of a response, to be compared.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    /// Index of the sealed entry, and when it was written, in microseconds since 1970.
    pub(crate) index: u64,
    pub(crate) wall_us: u64,
    pub(crate) request: RequestId,
    pub(crate) tenant: TenantRef,
    pub(crate) steps: u64,
    pub(crate) trace: Trace,
}

/// What came of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judged {
    /// The engine says the same.
    Same,
    /// The feed does not have all of it.
    Unknown,
    /// It was over before what is left of the feed began.
    Before,
    /// It may come.
    Awaited,
}

/// A sealed entry's index, and what came of it.
pub(crate) type Settled = (u64, Result<Judged, EngineFault>);

/// What the engine did for one request.
#[derive(Debug, Default)]
struct Passes {
    made: u64,
    /// What stands in its block table.
    table: Vec<Life>,
    read: BTreeMap<Life, Label>,
    /// The one tenant whose pages it read.
    label: Option<Label>,
    fault: Option<EngineFault>,
    /// Some passes are not known.
    partial: bool,
}

impl Passes {
    /// Whether more of them are to be read for a response of so many steps.
    fn awaits(&self, steps: u64) -> bool {
        !self.partial && self.made < steps
    }
}

/// When a request was minted: its id begins with that, in milliseconds (RFC 9562, version 7).
fn minted_us(request: RequestId) -> u64 {
    let [b0, b1, b2, b3, b4, b5, ..] = request.bytes();
    u64::from_be_bytes([0, 0, b0, b1, b2, b3, b4, b5]).saturating_mul(1_000)
}

/// The engine's feed, and what was read of it.
#[derive(Debug)]
pub(crate) struct EngineSide {
    feed: Feed,
    /// When the oldest file began, in microseconds since 1970.
    since_us: Option<u64>,
    /// Pages in a life.
    lives: HashMap<PageId, (Generation, Label)>,
    /// The run whose files are read.
    run: Option<[u8; 16]>,
    /// Of requests that were minted before, in microseconds since 1970, the first passes may be missing: a later one of them says
    /// again all that it reads, as a first one does.
    sure_from_us: u64,
    /// Records are missing: whose pages are whose is known again at the next file.
    blind: bool,
    /// Counts what is missing.
    gaps: u64,
    requests: HashMap<RequestId, Passes>,
    /// In the order of their first passes.
    order: VecDeque<RequestId>,
    tenants: HashMap<Label, TenantRef>,
    labels: HashMap<TenantRef, Label>,
    awaited: VecDeque<(Claim, u64)>,
}

impl EngineSide {
    /// Of the feeds in this folder.
    pub(crate) fn new(feeds: &Path) -> Self {
        Self {
            feed: Feed::of(feeds),
            since_us: None,
            lives: HashMap::new(),
            run: None,
            sure_from_us: 0,
            // Until the first file has said what there is.
            blind: true,
            gaps: 0,
            requests: HashMap::new(),
            order: VecDeque::new(),
            tenants: HashMap::new(),
            labels: HashMap::new(),
            awaited: VecDeque::new(),
        }
    }

    /// Compares a response. What was awaited before is settled, as far as it can be, by [`EngineSide::settle`].
    ///
    /// # Errors
    /// A fault in the inner result; the outer one when files could not be read.
    pub(crate) fn judge(&mut self, claim: Claim) -> Result<Result<Judged, EngineFault>, FeedError> {
        if self.since_us.is_none()
            && let Some(first) = self.feed.read_next()?
        {
            self.take(first);
        }
        if self.since_us.is_some_and(|since_us| claim.wall_us < since_us) {
            return Ok(Ok(Judged::Before));
        }
        while self.requests.get(&claim.request).is_none_or(|passes| passes.awaits(claim.steps)) {
            let Some(record) = self.feed.read_next()? else { break };
            self.take(record);
        }
        let judged = self.compare(&claim);
        if matches!(judged, Ok(Judged::Awaited)) {
            if self.awaited.len() >= AWAITED_MAX {
                return Ok(Ok(Judged::Unknown));
            }
            self.awaited.push_back((claim, self.gaps));
            return Ok(judged);
        }
        self.requests.remove(&claim.request);
        Ok(judged)
    }

    /// Nothing was said of what the engine did for this request.
    pub(crate) fn forget(&mut self, request: RequestId) {
        self.requests.remove(&request);
    }

    /// Responses that wait for passes which are not in the feed yet.
    pub(crate) fn awaited(&self) -> u64 {
        self.awaited.len() as u64
    }

    /// Reads on, and settles who waited.
    ///
    /// # Errors
    /// When files could not be read.
    pub(crate) fn settle(&mut self) -> Result<Vec<Settled>, FeedError> {
        let waits = |side: &Self| {
            side.awaited
                .iter()
                .any(|(claim, _)| side.requests.get(&claim.request).is_none_or(|passes| passes.awaits(claim.steps)))
        };
        while waits(self) {
            let Some(record) = self.feed.read_next()? else { break };
            self.take(record);
        }
        let mut settled = Vec::new();
        for (claim, gaps) in std::mem::take(&mut self.awaited) {
            match self.compare(&claim) {
                Ok(Judged::Awaited) if gaps != self.gaps => {
                    self.requests.remove(&claim.request);
                    settled.push((claim.index, Ok(Judged::Unknown)));
                }
                Ok(Judged::Awaited) => self.awaited.push_back((claim, gaps)),
                judged => {
                    self.requests.remove(&claim.request);
                    settled.push((claim.index, judged));
                }
            }
        }
        Ok(settled)
    }

    /// A response that was opened at this entry has all its passes in the feed: whoever was sealed before and waits has made no
    /// more passes than are known.
    pub(crate) fn begun_after(&mut self, opened: u64) -> Vec<Settled> {
        let mut over = Vec::new();
        for (claim, gaps) in std::mem::take(&mut self.awaited) {
            if claim.index < opened && gaps == self.gaps {
                over.push(match self.requests.remove(&claim.request) {
                    Some(passes) if !passes.partial => {
                        let (claimed, made) = (claim.steps, passes.made);
                        (claim.index, Err(EngineFault::Steps { claimed, made }))
                    }
                    // All of it is missing.
                    _ => (claim.index, Ok(Judged::Unknown)),
                });
            } else {
                self.awaited.push_back((claim, gaps));
            }
        }
        over
    }

    fn compare(&mut self, claim: &Claim) -> Result<Judged, EngineFault> {
        let Some(passes) = self.requests.get(&claim.request) else {
            return Ok(Judged::Awaited);
        };
        // Found while nothing of it was missing.
        if let Some(fault) = passes.fault {
            return Err(fault);
        }
        if passes.partial {
            return Ok(Judged::Unknown);
        }
        if passes.made < claim.steps {
            return Ok(Judged::Awaited);
        }
        if let Some(label) = passes.label {
            // A label is one tenant, and a tenant has one label, for as long as the engine runs.
            let tenant = *self.tenants.entry(label).or_insert(claim.tenant);
            let known = *self.labels.entry(claim.tenant).or_insert(label);
            if tenant != claim.tenant || known != label {
                return Err(EngineFault::Tenant);
            }
        }
        let mut named = BTreeSet::new();
        for run in &claim.trace.pages {
            let life = (run.page, run.generation);
            let fits = passes.read.get(&life).is_some_and(|label| match run.class {
                PageClass::Own => passes.label == Some(*label),
                PageClass::Public => *label == Label::PUBLIC,
                PageClass::Nobody | PageClass::Other => false,
            });
            if !fits {
                return Err(EngineFault::Invented { page: run.page.0, generation: run.generation.0 });
            }
            named.insert(life);
        }
        // What it computed for nobody any more is not in the trace.
        let hidden = passes.read.keys().find(|life| !named.contains(life)).filter(|_| passes.made == claim.steps);
        if let Some((page, generation)) = hidden {
            return Err(EngineFault::Hidden { page: page.0, generation: generation.0 });
        }
        Ok(Judged::Same)
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Start { run, continues, wall_us } => {
                let continues = continues && self.run.replace(run).is_none_or(|before| before == run);
                if !continues || self.blind || self.since_us.is_none() {
                    self.sure_from_us = self.sure_from_us.max(wall_us);
                }
                self.since_us.get_or_insert(wall_us);
                if !continues {
                    self.miss();
                    (self.tenants, self.labels) = (HashMap::new(), HashMap::new());
                }
                self.lives.clear();
                self.blind = false;
            }
            Record::Begin { page, generation, label } => {
                self.lives.insert(page, (generation, label));
            }
            Record::End { page, generation } => {
                if self.lives.get(&page).is_some_and(|(life, _)| *life == generation) {
                    self.lives.remove(&page);
                }
            }
            Record::Pass { request, kept, pages } => self.pass(request, kept as usize, &pages),
            Record::Lost { .. } => {
                self.miss();
                self.blind = true;
            }
        }
    }

    /// Something is not known: neither of who runs, nor of whose tenants' labels were.
    fn miss(&mut self) {
        self.gaps += 1;
        self.requests.values_mut().for_each(|passes| passes.partial = true);
    }

    fn pass(&mut self, request: RequestId, kept: usize, pages: &[Life]) {
        if !self.requests.contains_key(&request) {
            self.order.push_back(request);
            while self.order.len() > REQUESTS_MAX {
                if let Some(oldest) = self.order.pop_front()
                    && self.requests.remove(&oldest).is_some()
                {
                    self.sure_from_us = self.sure_from_us.max(minted_us(oldest).saturating_add(1));
                }
            }
        }
        let unsure = self.blind || minted_us(request) < self.sure_from_us;
        let passes = self.requests.entry(request).or_default();
        // The first one of a request reads on in nothing.
        passes.partial |= (passes.made == 0 && unsure) || self.blind || kept > passes.table.len();
        passes.made += 1;
        passes.table.truncate(kept);
        passes.table.extend(pages);
        for life in &passes.table {
            let (page, generation) = (life.0.0, life.1.0);
            let label = match self.lives.get(&life.0) {
                Some((now, label)) if *now == life.1 => *label,
                _ => {
                    if !passes.partial {
                        passes.fault.get_or_insert(EngineFault::NoLife { page, generation });
                    }
                    continue;
                }
            };
            passes.read.insert(*life, label);
            if label == Label::PUBLIC {
                continue;
            }
            let foreign = label == Label::NOBODY || *passes.label.get_or_insert(label) != label;
            if foreign && !passes.partial {
                passes.fault.get_or_insert(EngineFault::Foreign { page, generation });
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use audit_feed::{EngineFeed, FeedSettings};
    use audit_provenance::PageRun;
    use policies_domain::{CustodyAct, CustodyEvent, CustodyRecord, Owner, PageLife, PageRead, PageTrace, TenantId};
    use tempfile::TempDir;

    const ACME: (u32, TenantRef) = (1, [1; 16]);
    const GLOBEX: (u32, TenantRef) = (2, [2; 16]);

    /// Minted long after every feed here began.
    fn id(request: u8) -> RequestId {
        let mut bytes = [request; 16];
        bytes[..6].fill(0xff);
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
        assert!(side.requests.is_empty(), "nothing is kept of who was compared");
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
        assert_eq!(with(2, &[(4, 1), (5, 3)]), Err(EngineFault::Invented { page: 5, generation: 3 }));
        assert_eq!(with(2, &[(4, 1), (5, 1), (6, 1)]), Err(EngineFault::Invented { page: 6, generation: 1 }));
    }

    #[test]
    fn steps_that_the_engine_did_not_make_are_found_when_nothing_can_follow() {
        let mut made = Made::new();
        made.begin(4, 1, ACME);
        made.pass(1, 0, &[(4, 1)]);
        let mut side = EngineSide::new(made.feeds.path());
        let awaited = loop {
            // As soon as it is written.
            let judged = judge(&mut side, claim(1, ACME, 2, &[(4, 1)]));
            if side.requests.contains_key(&id(1)) {
                break judged;
            }
            side.awaited.clear();
        };
        assert_eq!((awaited, side.awaited()), (Ok(Judged::Awaited), 1));
        // It comes, or somebody who was opened later is all there, and it does not.
        made.pass(3, 0, &[(4, 1)]);
        made.flush();
        assert_eq!(side.settle().unwrap(), []);
        assert_eq!(judge(&mut side, claim(3, ACME, 1, &[(4, 1)])), Ok(Judged::Same));
        assert_eq!(side.begun_after(9), [], "sealed later than that one was opened");
        let fault = EngineFault::Steps { claimed: 2, made: 1 };
        assert_eq!(side.begun_after(29), [(10, Err(fault))]);
        assert_eq!(side.awaited(), 0);

        let mut made = Made::new();
        made.begin(4, 1, ACME);
        made.pass(1, 0, &[(4, 1)]);
        let mut side = EngineSide::new(made.feeds.path());
        while judge(&mut side, claim(1, ACME, 2, &[(4, 1)])) != Ok(Judged::Awaited)
            || !side.requests.contains_key(&id(1))
        {
            side.awaited.clear();
        }
        made.pass(1, 1, &[]);
        made.flush();
        assert_eq!(side.settle().unwrap(), [(10, Ok(Judged::Same))]);
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
        assert_eq!(judge(&mut side, claim(3, ACME, 1, &[(4, 1)])), Ok(Judged::Awaited));
        assert_eq!(side.begun_after(99), [(30, Ok(Judged::Unknown))], "nothing is known of it at all");
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

        // A request whose first passes are gone with an older file.
        let mut made = Made::new();
        made.begin(4, 1, ACME);
        made.pass(1, 1, &[]);
        assert_eq!(judge(&mut made.side(), claim(1, ACME, 1, &[(4, 1)])), Ok(Judged::Unknown));
    }
}
