//! The three parties with their pools, a network that does as it likes, and a shadow that sees what is true.

pub(super) use super::cast::{Budget, Configs, Defect, Mail, Progress, Request, Seen, Work};

use super::cast::first_of;
use super::pages::{Bytes, Owner, Pages, State};
use crate::{
    Attempt, ContentDigest, DecodeHost, DecodeInput, DecodeSide, DecodeState, Effect, End, FirstStep, FirstToken,
    HandoffDesk, HandoffId, Incarnation, Landed, LandedPage, Manifest, Message, Opening, Outcome, PageSlot, Party,
    PrefillEnd, PrefillHost, PrefillInput, PrefillSide, PrefillState, Route, SealedPage,
};
use policies_domain::{Generation, PageId};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// One step of a clock: more than the decode side's share of a lease, less than the lease.
pub(super) const TICK: Duration = Duration::from_millis(900);
pub(super) const LEASE_MS: u32 = 1000;
pub(super) const PAGE_TOKENS: u32 = 16;
const VOCABULARY: u32 = 1000;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) desk: HandoffDesk,
    pub(super) prefill: PrefillSide,
    pub(super) decode: DecodeSide,
    pub(super) clocks: [u8; 3],
    /// How long a tick is.
    pub(super) tick: Duration,
    pub(super) source: Pages,
    pub(super) target: Pages,
    pub(super) in_place: bool,
    pub(super) mail: Vec<Mail>,
    pub(super) work: Vec<Work>,
    /// Bytes and tags that were read from the source and have not been written anywhere.
    pub(super) staged: Vec<(Route, Vec<(Bytes, u32)>)>,
    pub(super) requests: Vec<(Request, Progress)>,
    /// The lives that the desk believes in.
    pub(super) known: [Incarnation; 2],
    pub(super) budget: Budget,
    pub(super) seen: Seen,
}

struct Source<'a>(&'a Pages);

impl PrefillHost for Source<'_> {
    fn sealed(&self, route: Route, page: PageId) -> Option<Generation> {
        self.0.life(Owner::Side(Party::Prefill, route), State::Outbound, page)
    }
}

struct Target<'a> {
    pages: &'a Pages,
    in_place: bool,
}

impl DecodeHost for Target<'_> {
    fn kept(&self, route: Route, page: PageId) -> Option<Generation> {
        if self.in_place {
            self.pages.life(Owner::Side(Party::Prefill, route), State::Outbound, page)
        } else {
            self.pages.life(Owner::Side(Party::Decode, route), State::Inbound, page)
        }
    }

    fn admits(&self, _: Route, first: &FirstStep) -> bool {
        first.token.reveal() < VOCABULARY
    }
}

impl World {
    pub(super) fn new(configs: &Configs, requests: &[Request], pages: [usize; 2], budget: Budget) -> Self {
        let known = [Incarnation(1), Incarnation(1001)];
        Self {
            desk: HandoffDesk::new(Arc::clone(&configs.desk)),
            prefill: PrefillSide::new(Arc::clone(&configs.prefill), known[0]),
            decode: DecodeSide::new(Arc::clone(&configs.decode), known[1]),
            clocks: [0; 3],
            tick: TICK,
            source: Pages::new(pages[0]),
            target: Pages::new(pages[1]),
            in_place: configs.decode.in_place,
            mail: Vec::new(),
            work: Vec::new(),
            staged: Vec::new(),
            requests: requests.iter().map(|request| (*request, Progress::Waiting { attempt: 0 })).collect(),
            known,
            budget,
            seen: Seen::default(),
        }
    }

    /// One form for worlds that differ in the order of what has no order.
    pub(super) fn normalised(mut self) -> Self {
        let key = |value: &dyn Fn(&mut DefaultHasher)| {
            let mut hasher = DefaultHasher::new();
            value(&mut hasher);
            hasher.finish()
        };
        self.mail.sort_by_cached_key(|mail| key(&|hasher| mail.hash(hasher)));
        self.work.sort_by_cached_key(|work| key(&|hasher| work.hash(hasher)));
        self
    }

    fn now(&self, party: Party) -> Duration {
        self.tick * u32::from(self.clocks[party as usize])
    }

    fn broke(&mut self, invariant: u32) {
        self.seen.broken |= 1 << invariant;
    }

    fn broke_unless(&mut self, invariant: u32, holds: bool) {
        if !holds {
            self.broke(invariant);
        }
    }

    /// Which request a handoff is for, as the shadow knows it: ids are made of it.
    fn request(&self, route: Route) -> (u8, Request) {
        let content = route.id.bytes()[0];
        (content, self.requests[usize::from(content).min(self.requests.len() - 1)].0)
    }

    pub(super) fn open(&mut self, index: usize, repeat: bool) {
        let (request, Progress::Waiting { attempt }) = self.requests[index] else { return };
        let [prefill, decode] = self.known;
        let opening = Opening { order: request.order(index as u8), attempt: Attempt(attempt), prefill, decode };
        let mut bytes = [attempt as u8; 16];
        bytes[0] = index as u8;
        let id = if repeat { self.seen.ids[0] } else { HandoffId::from_bytes(bytes) };
        self.requests[index].1 = match self.desk.open(opening, || id) {
            Ok((route, effects)) => {
                self.broke_unless(14, !self.seen.ids.contains(&id));
                self.seen.ids.push(id);
                self.act(Party::Gateway, effects);
                Progress::Open(route)
            }
            Err(_) => Progress::Over,
        };
    }

    /// Everything that is on its way arrives and everything that is at work ends, oldest first, until `enough`.
    pub(super) fn run_until(&mut self, enough: impl Fn(&Self) -> bool) {
        while !self.is_quiet() && !enough(self) {
            if self.mail.is_empty() {
                let Some(at) = self.work.iter().position(|work| self.can_finish(work)) else { return };
                let work = self.work.remove(at);
                self.finish(work, None);
            } else {
                let mail = self.mail.remove(0);
                self.deliver(mail);
            }
        }
    }

    pub(super) fn leave(&mut self, index: usize) {
        if let Progress::Open(route) = self.requests[index].1 {
            let effects = self.desk.client_left(self.now(Party::Gateway), route.id);
            self.act(Party::Gateway, effects);
            self.requests[index].1 = Progress::Over;
        }
    }

    /// Time passes; the reaper looks at once, or has not come to it yet.
    pub(super) fn tick(&mut self, party: Party, reaper: bool) {
        self.clocks[party as usize] += 1;
        match party {
            _ if !reaper => {}
            Party::Gateway => {
                let effects = self.desk.tick(self.now(party));
                self.act(party, effects);
            }
            Party::Prefill => self.tell_prefill(PrefillInput::Tick),
            Party::Decode => self.tell_decode(DecodeInput::Tick),
        }
    }

    pub(super) fn crash(&mut self, party: Party, configs: &Configs) {
        self.seen.disturbed = true;
        let life = match party {
            Party::Gateway => {
                self.desk = HandoffDesk::new(Arc::clone(&configs.desk));
                self.requests.iter_mut().for_each(|(_, progress)| *progress = Progress::Over);
                return;
            }
            Party::Prefill => {
                let life = self.prefill.life();
                self.prefill = PrefillSide::new(Arc::clone(&configs.prefill), Incarnation(life.0 + 1));
                self.source.restart();
                life
            }
            Party::Decode => {
                let life = self.decode.life();
                self.decode = DecodeSide::new(Arc::clone(&configs.decode), Incarnation(life.0 + 1));
                self.target.restart();
                // Connections end with the process.
                self.staged.clear();
                life
            }
        };
        self.work.retain(|work| work.side() != party);
        let others = [Party::Gateway, Party::Prefill, Party::Decode].into_iter().filter(|other| *other != party);
        self.mail.extend(others.map(|to| Mail::Gone { to, life }));
    }

    pub(super) fn deliver(&mut self, mail: Mail) {
        match mail {
            Mail::Gone { to: Party::Gateway, life } => {
                for known in self.known.iter_mut().filter(|known| **known == life) {
                    known.0 += 1;
                }
                let effects = self.desk.peer_gone(self.now(Party::Gateway), life);
                self.act(Party::Gateway, effects);
            }
            Mail::Gone { to: Party::Prefill, life } => self.tell_prefill(PrefillInput::PeerGone { decode: life }),
            Mail::Gone { to: Party::Decode, life } => self.tell_decode(DecodeInput::PeerGone { prefill: life }),
            Mail::Message { from, to, message } => {
                let abort = match &message {
                    Message::Abort { route, .. } => Some(*route),
                    _ => None,
                };
                match to {
                    Party::Gateway => {
                        let effects = self.desk.receive(self.now(to), from, &message);
                        self.act(to, effects);
                    }
                    Party::Prefill => self.tell_prefill(PrefillInput::Message { from, message }),
                    Party::Decode => self.tell_decode(DecodeInput::Message { from, message }),
                }
                if let Some(route) = abort {
                    self.note_abort(to, route);
                }
            }
        }
    }

    /// Whoever was told that a handoff is over, and did not go on with it by right, must never go on with it.
    fn note_abort(&mut self, side: Party, route: Route) {
        let over = match side {
            Party::Gateway => false,
            Party::Prefill => {
                let held = self.prefill.state(route.id);
                self.prefill.life() == route.prefill
                    && matches!(held, None | Some(PrefillState::Aborting { .. }))
                    && self.prefill.ended(route.id) != Some(Outcome::Committed)
            }
            Party::Decode => {
                let held = self.decode.state(route.id);
                self.decode.life() == route.decode
                    && matches!(held, None | Some(DecodeState::Aborting { .. }))
                    && !self.seen.committed.contains(&route)
            }
        };
        if over && !self.seen.aborted.contains(&(side, route)) {
            self.seen.aborted.push((side, route));
        }
    }

    pub(super) fn tell_prefill(&mut self, input: PrefillInput) {
        let now = self.now(Party::Prefill);
        let effects = self.prefill.step(now, input, &Source(&self.source));
        self.act(Party::Prefill, effects);
    }

    pub(super) fn tell_decode(&mut self, input: DecodeInput) {
        let now = self.now(Party::Decode);
        let pages = if self.in_place { &self.source } else { &self.target };
        let effects = self.decode.step(now, input, &Target { pages, in_place: self.in_place });
        self.act(Party::Decode, effects);
    }

    fn pool(&mut self, side: Party) -> &mut Pages {
        if side == Party::Prefill || self.in_place { &mut self.source } else { &mut self.target }
    }

    fn act(&mut self, side: Party, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send { to, message } => {
                    self.watch(&message);
                    if let Message::Abort { route, .. } = message {
                        self.note_abort(side, route);
                    }
                    self.mail.push(Mail::Message { from: side, to, message });
                }
                Effect::ReservePages { route, pages, .. } => self.work.push(Work::Reserve { route, pages }),
                Effect::BeginReceive { route, into } => self.work.push(Work::Receive { route, into }),
                Effect::Measure { route, pages } => self.work.push(Work::Measure { route, pages }),
                Effect::Relabel { route, pages } => {
                    self.judge(route, &pages, true);
                    let before = self.seen.committed.iter().any(|committed| committed.id == route.id);
                    self.broke_unless(4, !before);
                    self.broke_unless(6, !self.seen.reused.contains(&route));
                    self.seen.committed.push(route);
                    self.work.push(Work::Relabel { route, pages });
                }
                Effect::StartDecode { route, first, .. } => {
                    let committed = self.seen.committed.contains(&route) && self.seen.commits_sent.contains(&route);
                    self.broke_unless(5, committed && first.token.reveal() < VOCABULARY);
                    self.seen.drained.push(route);
                    self.work.push(Work::Decode { route });
                }
                Effect::StartPrefill { route, order } => {
                    self.broke_unless(13, self.seen.credits.contains(&route));
                    let owner = Owner::Side(Party::Prefill, route);
                    let pages = self.source.allocate(owner, State::Open, order.tokens.div_ceil(PAGE_TOKENS));
                    self.work.push(Work::Prefill { route, order, pages });
                }
                Effect::Seal { route } => self.work.push(Work::Seal { route }),
                Effect::BeginSend { route, pages } => self.work.push(Work::Send { route, pages, read: self.in_place }),
                Effect::Quarantine { route, .. } => self.pool(side).quarantine(Owner::Side(side, route)),
                Effect::Fence { route } => self.work.push(Work::Fence { side, route }),
                Effect::Release { route } => {
                    let lives = self.decode.life() == route.decode;
                    if side == Party::Prefill && lives && !self.seen.drained.contains(&route) {
                        self.broke_unless(6, self.decode.state(route.id) != Some(DecodeState::Committed));
                        self.seen.reused.push(route);
                    }
                    self.pool(side).release(Owner::Side(side, route));
                }
                Effect::Incident(incident) => self.seen.incidents.push(incident),
                Effect::Ended { route, end } => {
                    let retries = &mut self.budget.retries;
                    for (_, progress) in self.requests.iter_mut().filter(|(_, it)| *it == Progress::Open(route)) {
                        *progress = match end {
                            End::Aborted(_) if *retries > 0 => {
                                *retries -= 1;
                                Progress::Waiting { attempt: route.attempt.0 + 1 }
                            }
                            _ => Progress::Over,
                        };
                    }
                }
                Effect::Count(_) => {}
            }
        }
    }

    /// What is said is held against what is true.
    fn watch(&mut self, message: &Message) {
        match message {
            Message::Credit { route, .. } if !self.seen.credits.contains(route) => self.seen.credits.push(*route),
            Message::Offer(offer) => {
                let route = offer.manifest.route;
                if !self.seen.offered_at.iter().any(|(offered, _)| *offered == route) {
                    self.seen.offered_at.push((route, self.clocks[Party::Prefill as usize]));
                }
            }
            Message::Verified { route, .. } => {
                if let Some((_, pages)) = self.decode.offer_of(route.id) {
                    let pages = pages.to_vec();
                    self.judge(*route, &pages, false);
                }
            }
            Message::Commit { route } if !self.seen.commits_sent.contains(route) => {
                let offered = self.seen.offered_at.iter().find(|(offered, _)| offered == route);
                let clock = u32::from(self.clocks[Party::Prefill as usize]);
                let within = offered.is_some_and(|(_, at)| {
                    self.tick * (clock - u32::from(*at)) < Duration::from_millis(LEASE_MS.into())
                });
                self.broke_unless(6, within);
                self.seen.commits_sent.push(*route);
            }
            _ => {}
        }
    }

    /// I3, I9 and I11: what the decode side calls verified, and what it calls its own, is what was ordered.
    fn judge(&mut self, route: Route, pages: &[PageSlot], commit: bool) {
        let (content, request) = self.request(route);
        let Some((manifest, _)) = self.decode.offer_of(route.id) else { return self.broke(3) };
        let Manifest { domain, request: digest, fingerprint, tokens, first, pages: sealed, .. } = manifest.clone();
        let order = request.order(content);
        let same = digest == order.request
            && fingerprint == self.decode.fingerprint()
            && tokens == order.tokens
            && pages.len() as u32 == request.pages
            && first == first_of(content);
        let pool = if self.in_place { &self.source } else { &self.target };
        let mut whole = same;
        let mut own = true;
        for (logical, slot) in pages.iter().enumerate() {
            let page = pool.0[slot.page.0 as usize];
            let Bytes::Of { request, logical: place, writer, flipped } = page.bytes else {
                whole = false;
                continue;
            };
            whole &= request == content && place == logical as u32 && !flipped && page.owner != Owner::Stranger;
            own &= writer == route && sealed.get(logical).map(|sealed| sealed.tag) == Some(page.tag);
        }
        if commit {
            let owner = Owner::Side(Party::Prefill, route);
            let alive = self.prefill.life() != route.prefill
                || sealed
                    .iter()
                    .all(|page| self.source.of(owner).any(|i| self.source.0[i].generation == page.generation.0));
            whole &= alive;
        }
        self.broke_unless(3, whole);
        self.broke_unless(9, own);
        self.broke_unless(11, domain == order.domain);
    }

    /// Ends one piece of work as it should end, or with a planted defect.
    pub(super) fn finish(&mut self, work: Work, defect: Option<Defect>) {
        match work {
            Work::Prefill { route, order, pages } => {
                self.tell_prefill(PrefillInput::PrefillBegan { route });
                let end = match pages {
                    Some(pages) if defect != Some(Defect::PrefillFails) => {
                        let request = order.request.0[0];
                        for (logical, slot) in pages.iter().enumerate() {
                            let logical = logical as u32;
                            self.source.at(*slot).bytes = Bytes::Of { request, logical, writer: route, flipped: false };
                        }
                        let mut first = first_of(request);
                        if defect == Some(Defect::OddToken) {
                            first.token = FirstToken::new(VOCABULARY);
                        }
                        let tokens = if defect == Some(Defect::Placeholder) { 1 } else { order.tokens };
                        PrefillEnd::Complete { tokens, first }
                    }
                    _ => PrefillEnd::Failed,
                };
                self.tell_prefill(PrefillInput::Prefilled { route, end });
            }
            Work::Seal { route } => self.seal(route, defect),
            Work::Send { route, pages, read: false } => {
                let bytes = pages.iter().map(|slot| (self.source.at(*slot).bytes, self.source.at(*slot).tag));
                self.staged.push((route, bytes.collect()));
                self.work.push(Work::Send { route, pages, read: true });
            }
            Work::Send { route, .. } => self.tell_prefill(PrefillInput::Sent { route }),
            Work::Reserve { route, pages } => {
                let count = if self.in_place { 0 } else { pages };
                match self.pool(Party::Decode).allocate(Owner::Side(Party::Decode, route), State::Inbound, count) {
                    Some(pages) => self.tell_decode(DecodeInput::Reserved { route, pages }),
                    None => self.tell_decode(DecodeInput::Exhausted { route }),
                }
            }
            Work::Receive { route, into } => {
                let pages = if self.in_place {
                    let owner = Owner::Side(Party::Prefill, route);
                    self.source.of(owner).map(|i| self.source.slot(i)).collect()
                } else {
                    let Some(at) = self.staged.iter().position(|(staged, _)| *staged == route) else { return };
                    let (_, bytes) = self.staged.remove(at);
                    for (slot, (bytes, tag)) in into.iter().zip(bytes) {
                        let page = self.target.at(*slot);
                        (page.bytes, page.tag) = (bytes, tag);
                    }
                    into
                };
                self.tell_decode(DecodeInput::Arrived { route, pages });
            }
            Work::Measure { route, pages } => {
                let pool = self.pool(Party::Decode);
                let found = pages.iter().enumerate().map(|(place, slot)| {
                    let page = pool.at(*slot);
                    LandedPage { tag: page.tag, digest: page.bytes.digest(place as u32) }
                });
                let pages: Vec<LandedPage> = found.collect();
                let layers = vec![ContentDigest::sum(pages.iter().map(|page| page.digest))];
                self.tell_decode(DecodeInput::Measured { route, landed: Landed { pages, layers } });
            }
            Work::Relabel { route, pages } => {
                for slot in pages {
                    self.pool(Party::Decode).relabel(slot, Owner::Side(Party::Decode, route));
                }
                if self.in_place && self.sends(route) {
                    self.work.retain(|work| !matches!(work, Work::Send { route: other, .. } if *other == route));
                    self.tell_prefill(PrefillInput::Sent { route });
                }
                self.tell_decode(DecodeInput::Relabelled { route });
            }
            Work::Decode { route } => self.pool(Party::Decode).release(Owner::Side(Party::Decode, route)),
            Work::Fence { side, route } => {
                self.work.retain(|work| work.side() != side || work.route() != route);
                if side == Party::Decode {
                    self.staged.retain(|(staged, _)| *staged != route);
                    self.tell_decode(DecodeInput::Fenced { route });
                } else {
                    let waits = |work: &Work| matches!(work, Work::Receive { route: other, .. } if *other == route);
                    if self.in_place && self.work.iter().any(waits) {
                        self.work.retain(|work| !waits(work));
                        self.tell_decode(DecodeInput::Lost { route });
                    }
                    self.tell_prefill(PrefillInput::Fenced { route });
                }
            }
        }
    }

    /// Is the prefill side's work of giving the pages of this handoff open?
    pub(super) fn sends(&self, route: Route) -> bool {
        self.work.iter().any(|work| matches!(work, Work::Send { route: other, .. } if *other == route))
    }

    fn seal(&mut self, route: Route, defect: Option<Defect>) {
        let owned: Vec<usize> = self.source.of(Owner::Side(Party::Prefill, route)).collect();
        let mut pages: Vec<SealedPage> = Vec::new();
        for (logical, i) in owned.into_iter().enumerate() {
            let written = matches!(self.source.0[i].bytes, Bytes::Of { writer, .. } if writer == route);
            self.broke_unless(12, written);
            let page = &mut self.source.0[i];
            page.state = State::Outbound;
            let digest = page.bytes.digest(logical as u32);
            pages.push(SealedPage { logical: logical as u32, slot: self.source.slot(i), digest });
        }
        match defect {
            Some(Defect::MissingPage) => drop(pages.pop()),
            Some(Defect::ShuffledPages) => {
                pages.reverse();
                for (place, page) in pages.iter_mut().enumerate() {
                    page.digest = self.source.0[page.slot.page.0 as usize].bytes.digest(place as u32);
                }
            }
            _ => {}
        }
        let layers = vec![ContentDigest::sum(pages.iter().map(|page| page.digest))];
        self.tell_prefill(PrefillInput::Sealed { route, pages, layers });
    }
}
