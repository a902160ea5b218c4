//! What the engine's feed says, kept: whose each page is from when to when, and what each request has read.

use super::EngineFault;
use audit_feed::Record;
use policies_domain::{Generation, Label, PageId, RequestId};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// Requests that are remembered, the newest ones.
const REQUESTS_MAX: usize = 1 << 14;

/// A page in a life.
pub(super) type Life = (PageId, Generation);

/// What the engine did for one request.
#[derive(Debug, Default)]
pub(super) struct Passes {
    pub(super) made: u64,
    /// What it read: whose that was, and in which pass first, from 0.
    pub(super) read: BTreeMap<Life, (Label, u64)>,
    /// The one tenant whose pages it read.
    pub(super) label: Option<Label>,
    /// What was found while nothing of it was missing.
    pub(super) fault: Option<EngineFault>,
    /// Some passes are not known.
    pub(super) partial: bool,
    /// What stands in its block table.
    table: Vec<Life>,
    /// Lives that had ended when all of the table was looked at last.
    ended: u64,
}

/// The records of a feed, taken in order.
#[derive(Debug)]
pub(super) struct Account {
    /// When the oldest file began, in microseconds since 1970.
    pub(super) since_us: Option<u64>,
    /// Counts what is missing.
    pub(super) gaps: u64,
    /// The newest request of which a pass is known, in microseconds since 1970: all passes of whatever was over by then are known.
    pub(super) newest_us: u64,
    /// Of requests that were minted before, in microseconds since 1970, the first passes may be missing: a later one of them says
    /// again all that it reads, as a first one does.
    sure_from_us: u64,
    run: Option<[u8; 16]>,
    /// Pages in a life.
    lives: HashMap<PageId, (Generation, Label)>,
    /// Lives that have ended.
    ended: u64,
    /// Records are missing: whose pages are whose is known again at the next file.
    blind: bool,
    requests: HashMap<RequestId, Passes>,
    /// In the order of their first passes.
    order: VecDeque<RequestId>,
    /// Faults of requests that no response was compared with.
    unclaimed: BTreeMap<RequestId, EngineFault>,
    /// Requests whose fault the log has as an incident.
    stopped: HashSet<RequestId>,
}

/// When a request was minted: its id begins with that, in milliseconds (RFC 9562, version 7).
pub(super) fn minted_us(request: RequestId) -> u64 {
    let [b0, b1, b2, b3, b4, b5, ..] = request.bytes();
    u64::from_be_bytes([0, 0, b0, b1, b2, b3, b4, b5]).saturating_mul(1_000)
}

impl Account {
    pub(super) fn new() -> Self {
        Self {
            since_us: None,
            gaps: 0,
            newest_us: 0,
            sure_from_us: 0,
            run: None,
            lives: HashMap::new(),
            ended: 0,
            // Until the first file has said what there is.
            blind: true,
            requests: HashMap::new(),
            order: VecDeque::new(),
            unclaimed: BTreeMap::new(),
            stopped: HashSet::new(),
        }
    }

    pub(super) fn of(&self, request: RequestId) -> Option<&Passes> {
        self.requests.get(&request)
    }

    /// Whether all passes of this request are in what was read, if it has any.
    pub(super) fn is_sure_of(&self, request: RequestId) -> bool {
        !self.blind && minted_us(request) >= self.sure_from_us
    }

    /// Its response was compared: what is kept of it is what later passes need, which its response has nothing of.
    pub(super) fn compared(&mut self, request: RequestId) {
        if let Some(passes) = self.requests.get_mut(&request) {
            passes.read = BTreeMap::new();
        }
    }

    /// The log says that it was stopped for an isolation fault.
    pub(super) fn stopped(&mut self, request: RequestId) {
        self.unclaimed.remove(&request);
        self.stopped.insert(request);
        self.compared(request);
    }

    /// Faults of requests that no response was compared with, oldest first.
    pub(super) fn unclaimed(&self) -> &BTreeMap<RequestId, EngineFault> {
        &self.unclaimed
    }

    /// `true`: another run of the program begins.
    pub(super) fn take(&mut self, record: Record) -> bool {
        match record {
            Record::Start { run, continues, wall_us } => return self.start(run, continues, wall_us),
            Record::Begin { page, generation, label } => {
                let before = self.lives.insert(page, (generation, label));
                self.ended += u64::from(before.is_some());
            }
            Record::End { page, generation } => {
                if self.lives.get(&page).is_some_and(|(life, _)| *life == generation) {
                    self.lives.remove(&page);
                    self.ended += 1;
                }
            }
            Record::Pass { request, kept, pages } => self.pass(request, kept as usize, &pages),
            Record::Lost { .. } => {
                self.miss();
                self.blind = true;
            }
        }
        false
    }

    fn start(&mut self, run: [u8; 16], continues: bool, wall_us: u64) -> bool {
        let continues = continues && self.run.replace(run).is_none_or(|before| before == run);
        if !continues || self.blind || self.since_us.is_none() {
            self.sure_from_us = self.sure_from_us.max(wall_us);
        }
        self.since_us.get_or_insert(wall_us);
        if !continues {
            self.miss();
        }
        self.lives.clear();
        self.ended += 1;
        self.blind = false;
        !continues
    }

    /// Something is not known of who runs.
    fn miss(&mut self) {
        self.gaps += 1;
        self.requests.values_mut().for_each(|passes| passes.partial = true);
    }

    fn pass(&mut self, request: RequestId, kept: usize, pages: &[Life]) {
        self.remember(request);
        self.newest_us = self.newest_us.max(minted_us(request));
        let sure = self.is_sure_of(request);
        let passes = self.requests.entry(request).or_default();
        passes.partial |= self.blind || (passes.made == 0 && !sure);
        if kept > passes.table.len() && !passes.partial {
            // The first one of a request reads on in nothing, and every later one in what the one before read.
            passes.find(EngineFault::Missing { made: passes.made });
        }
        // What stood there before is looked at again when any life has ended since.
        let known = if passes.ended == self.ended { kept.min(passes.table.len()) } else { 0 };
        passes.table.truncate(kept);
        passes.table.extend(pages);
        for place in known..passes.table.len() {
            let Some((page, generation)) = passes.table.get(place).copied() else { break };
            let (number, life) = (page.0, generation.0);
            let label = match self.lives.get(&page) {
                Some((now, label)) if *now == generation => *label,
                _ => {
                    passes.find(EngineFault::NoLife { page: number, generation: life });
                    continue;
                }
            };
            passes.read.entry((page, generation)).or_insert((label, passes.made));
            let foreign = match label {
                Label::PUBLIC => false,
                Label::NOBODY => true,
                label => *passes.label.get_or_insert(label) != label,
            };
            if foreign {
                passes.find(EngineFault::Foreign { page: number, generation: life });
            }
        }
        (passes.made, passes.ended) = (passes.made + 1, self.ended);
        if let Some(fault) = passes.fault.filter(|_| !self.stopped.contains(&request)) {
            self.unclaimed.insert(request, fault);
        }
    }

    /// Makes room for a request that is not known yet.
    fn remember(&mut self, request: RequestId) {
        if self.requests.contains_key(&request) {
            return;
        }
        self.order.push_back(request);
        while self.order.len() > REQUESTS_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.requests.remove(&oldest);
                self.sure_from_us = self.sure_from_us.max(minted_us(oldest).saturating_add(1));
            }
        }
    }
}

impl Passes {
    fn find(&mut self, fault: EngineFault) {
        if !self.partial {
            self.fault.get_or_insert(fault);
        }
    }
}
