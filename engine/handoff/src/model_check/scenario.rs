//! A bounded world as a model: every step that may come next, and the invariants that hold in every state.

use super::pages::{Bytes, Owner, State};
use super::world::{Budget, Configs, Defect, LEASE_MS, Mail, PAGE_TOKENS, Progress, Request, TICK, Work, World};
use crate::{
    Check, Checks, DecodeConfig, DecodeState, DeskConfig, Fingerprint, FirstToken, HandoffKey, Message, Party,
    PrefillConfig, RequestDigest,
};
use policies_domain::{Label, TenantId};
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::sync::Arc;
use std::time::Duration;

/// What is explored, and with which checks.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) configs: Configs,
    pub(super) requests: Vec<Request>,
    /// Pages of the source and the target pool.
    pub(super) pages: [usize; 2],
    pub(super) budget: Budget,
    pub(super) defects: Vec<Defect>,
    pub(super) crashes: Vec<Party>,
    /// The reaper may be late.
    pub(super) late_reaper: bool,
}

impl Scenario {
    /// One request of one page; nothing goes wrong.
    pub(super) fn new(off: &[Check]) -> Self {
        let (checks, key, heartbeat) = (Checks::without(off), HandoffKey::new([5; 32]), TICK);
        let (fingerprint, handoffs_max, remember) = (Fingerprint([1; 32]), 4, Duration::from_secs(60));
        let desk = DeskConfig { credit_ms: 1700, handoffs_max, heartbeat, remember, checks };
        let prefill = PrefillConfig {
            key: key.clone(),
            fingerprint,
            handoffs_max,
            lease_ms: LEASE_MS,
            heartbeat,
            remember,
            checks,
        };
        let in_place = false;
        let decode = DecodeConfig {
            key,
            fingerprint,
            page_tokens: PAGE_TOKENS,
            in_place,
            handoffs_max,
            heartbeat,
            remember,
            checks,
        };
        Self {
            configs: Configs { desk: Arc::new(desk), prefill: Arc::new(prefill), decode: Arc::new(decode) },
            requests: vec![Request { tenant: 1, pages: 1 }],
            pages: [2, 2],
            budget: Budget::default(),
            defects: Vec::new(),
            crashes: Vec::new(),
            late_reaper: false,
        }
    }

    pub(super) fn requests(mut self, requests: &[Request], pages: [usize; 2]) -> Self {
        (self.requests, self.pages) = (requests.to_vec(), pages);
        self
    }

    pub(super) fn budget(mut self, budget: Budget) -> Self {
        self.budget = budget;
        self
    }

    pub(super) fn crashes(mut self, crashes: &[Party]) -> Self {
        self.crashes = crashes.to_vec();
        self
    }

    pub(super) fn defects(mut self, defects: &[Defect]) -> Self {
        self.defects = defects.to_vec();
        self.budget.defects = u8::from(!defects.is_empty());
        self
    }

    /// Heartbeats come more often than time is looked at.
    pub(super) fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.configs.decode = Arc::new(DecodeConfig { heartbeat, ..(*self.configs.decode).clone() });
        self
    }

    pub(super) fn late_reaper(mut self) -> Self {
        self.late_reaper = true;
        self
    }

    pub(super) fn in_place(mut self) -> Self {
        self.configs.decode = Arc::new(DecodeConfig { in_place: true, ..(*self.configs.decode).clone() });
        self
    }

    /// The prefill worker runs another model.
    pub(super) fn other_model(mut self) -> Self {
        let fingerprint = Fingerprint([2; 32]);
        self.configs.prefill = Arc::new(PrefillConfig { fingerprint, ..(*self.configs.prefill).clone() });
        self
    }

    /// Explores everything; returns the number of states and, for each broken invariant, the way to it.
    pub(super) fn explore(self) -> (usize, Vec<(&'static str, Vec<Action>)>) {
        self.run(HasDiscoveries::All)
    }

    /// Explores until an invariant is broken.
    pub(super) fn first_failure(self) -> Option<(&'static str, Vec<Action>)> {
        self.run(HasDiscoveries::AnyFailures).1.into_iter().next()
    }

    fn run(self, finish_when: HasDiscoveries) -> (usize, Vec<(&'static str, Vec<Action>)>) {
        let checker = self.checker().finish_when(finish_when).spawn_bfs().join();
        let failures = checker.discoveries().into_iter().filter(|(name, _)| name.starts_with('I'));
        let mut failures: Vec<_> = failures.map(|(name, path)| (name, path.into_actions())).collect();
        failures.sort_by_key(|(name, _)| *name);
        (checker.unique_state_count(), failures)
    }

    /// Is there a state in which a request was handed over and is decoded?
    pub(super) fn reaches_a_commit(self) -> bool {
        let wanted = ["a request is handed over"].into_iter().collect();
        let checker = self.checker().finish_when(HasDiscoveries::AllOf(wanted)).spawn_bfs().join();
        checker.discovery("a request is handed over").is_some()
    }
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Open {
        request: usize,
        repeat: bool,
    },
    Leave {
        request: usize,
    },
    Deliver {
        mail: Mail,
        keep: bool,
    },
    /// Delivered with a planted defect.
    Damage {
        mail: Mail,
        defect: Defect,
    },
    Lose {
        mail: Mail,
    },
    Finish {
        work: Work,
        defect: Option<Defect>,
    },
    Tick {
        party: Party,
        reaper: bool,
    },
    Crash {
        party: Party,
    },
    /// A planted defect at a page of the source (`true`) or the target pool.
    Page {
        source: bool,
        page: usize,
        defect: Defect,
    },
}

impl Action {
    /// As a line of a script: kinds and parties, no numbers.
    pub(super) fn line(&self) -> String {
        let name = |value: &dyn std::fmt::Debug| {
            let text = format!("{value:?}");
            text[..text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len())].to_owned()
        };
        let mail = |mail: &Mail| match mail {
            Mail::Message { from, to, message } => format!("{} from {from:?} to {to:?}", name(message)),
            Mail::Gone { to, .. } => format!("news of a restart to {to:?}"),
        };
        match self {
            Self::Open { request, repeat } => format!("open {request}, repeated id: {repeat}"),
            Self::Leave { request } => format!("client of {request} leaves"),
            Self::Deliver { mail: it, keep } => format!("deliver{} {}", if *keep { " and keep" } else { "" }, mail(it)),
            Self::Damage { mail: it, defect } => format!("deliver {} with {defect:?}", mail(it)),
            Self::Lose { mail: it } => format!("lose {}", mail(it)),
            Self::Finish { work, defect } => format!("finish {} {defect:?}", name(work)),
            Self::Tick { party, reaper } => format!("tick of {party:?}, reaper: {reaper}"),
            Self::Crash { party } => format!("crash of {party:?}"),
            Self::Page { source, page, defect } => format!("{defect:?} at page {page}, source: {source}"),
        }
    }
}

pub(super) const ALL: [Party; 3] = [Party::Gateway, Party::Prefill, Party::Decode];

impl Model for Scenario {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(&self.configs, &self.requests, self.pages, self.budget)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (request, (_, progress)) in world.requests.iter().enumerate() {
            match progress {
                Progress::Waiting { .. } => {
                    actions.push(Action::Open { request, repeat: false });
                    if self.may(world, Defect::RepeatedId) && !world.seen.ids.is_empty() {
                        actions.push(Action::Open { request, repeat: true });
                    }
                }
                Progress::Open(_) if world.budget.clients_that_leave > 0 => actions.push(Action::Leave { request }),
                _ => {}
            }
        }
        let mut last = None;
        for mail in &world.mail {
            // The same thing twice on its way is one choice.
            if last.replace(mail) != Some(mail) {
                self.mail_actions(world, mail, actions);
            }
        }
        for work in world.work.iter().filter(|work| world.can_finish(work)) {
            actions.push(Action::Finish { work: work.clone(), defect: None });
            let defects: &[Defect] = match work {
                Work::Prefill { .. } => &[Defect::PrefillFails, Defect::OddToken],
                Work::Seal { .. } => &[Defect::ShuffledPages, Defect::MissingPage],
                _ => &[],
            };
            for defect in defects.iter().filter(|defect| self.may(world, **defect)) {
                actions.push(Action::Finish { work: work.clone(), defect: Some(*defect) });
            }
        }
        for party in ALL {
            if world.budget.ticks[party as usize] > 0 {
                actions.push(Action::Tick { party, reaper: true });
                if self.late_reaper {
                    actions.push(Action::Tick { party, reaper: false });
                }
            }
            if world.budget.crashes > 0 && self.crashes.contains(&party) {
                actions.push(Action::Crash { party });
            }
        }
        if world.budget.defects > 0 {
            self.page_actions(world, actions);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Open { request, repeat } => {
                next.budget.defects -= u8::from(repeat);
                next.open(request, repeat);
            }
            Action::Leave { request } => {
                next.budget.clients_that_leave -= 1;
                next.leave(request);
            }
            Action::Deliver { mail, keep } => {
                if keep {
                    next.budget.duplicates -= 1;
                } else {
                    next.take(&mail);
                }
                next.deliver(mail);
            }
            Action::Damage { mail, defect } => {
                next.budget.defects -= 1;
                next.take(&mail);
                next.deliver(damaged(mail, defect));
            }
            Action::Lose { mail } => {
                next.budget.losses -= 1;
                next.seen.disturbed = true;
                next.take(&mail);
            }
            Action::Finish { work, defect } => {
                next.budget.defects -= u8::from(defect.is_some());
                let at = next.work.iter().position(|other| *other == work)?;
                next.work.remove(at);
                next.finish(work, defect);
            }
            Action::Tick { party, reaper } => {
                next.budget.ticks[party as usize] -= 1;
                next.tick(party, reaper);
            }
            Action::Crash { party } => {
                next.budget.crashes -= 1;
                next.crash(party, &self.configs);
            }
            Action::Page { source, page, defect } => {
                next.budget.defects -= 1;
                let pool = if source { &mut next.source } else { &mut next.target };
                match defect {
                    Defect::FlipPage => {
                        if let Bytes::Of { flipped, .. } = &mut pool.0[page].bytes {
                            *flipped = true;
                        }
                    }
                    Defect::FlipTag => pool.0[page].tag ^= 1 << 20,
                    _ => pool.give_away(page),
                }
            }
        }
        Some(next.normalised())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            always("I1 a page has one writer at most", |_, world| world.writers_are_alone()),
            always("I2 no page is freed under work", |_, world| world.work_has_its_pages()),
            always("I3 what is committed is what was ordered", |_, world| world.kept(3)),
            always("I4 a handoff is committed once", |_, world| world.kept(4)),
            always("I5 no token before the commit", |_, world| world.kept(5)),
            always("I6 what was reused is never committed", |_, world| world.kept(6)),
            always("I7 every handoff ends", |_, world| !world.is_quiet() || world.settles()),
            always("I7b a handoff ends at once when both sides hear it", |_, world| {
                world.seen.disturbed || !world.is_quiet() || world.nobody_is_forgotten()
            }),
            always("I8 what was aborted stays so", |_, world| world.aborts_are_final()),
            always("I9 only the life that was sealed is accepted", |_, world| world.kept(9)),
            always("I10 no page is lost", |_, world| world.pages_are_held()),
            always("I11 a page's domain does not change under it", |_, world| world.kept(11)),
            always("I12 only what was written is offered", |_, world| world.kept(12)),
            always("I13 no prefill without credit", |_, world| world.kept(13)),
            always("I14 no two requests share an id", |_, world| world.kept(14)),
        ];
        properties
            .push(Property::sometimes("a request is handed over", |_, world: &World| !world.seen.drained.is_empty()));
        properties
    }
}

impl Scenario {
    fn may(&self, world: &World, defect: Defect) -> bool {
        world.budget.defects > 0 && self.defects.contains(&defect)
    }

    fn mail_actions(&self, world: &World, mail: &Mail, actions: &mut Vec<Action>) {
        actions.push(Action::Deliver { mail: mail.clone(), keep: false });
        let Mail::Message { message, .. } = mail else { return };
        if world.budget.duplicates > 0 {
            actions.push(Action::Deliver { mail: mail.clone(), keep: true });
        }
        if world.budget.losses > 0 {
            actions.push(Action::Lose { mail: mail.clone() });
        }
        let defects: &[Defect] = match message {
            Message::Offer(_) => &[Defect::FlipManifest],
            Message::Start { .. } => &[Defect::WrongDomain, Defect::OtherRequest],
            _ => &[],
        };
        for defect in defects.iter().filter(|defect| self.may(world, **defect)) {
            actions.push(Action::Damage { mail: mail.clone(), defect: *defect });
        }
    }

    fn page_actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (source, pool) in [(true, &world.source), (false, &world.target)] {
            for (page, it) in pool.0.iter().enumerate() {
                let idle = !world.work.iter().any(|work| {
                    let at_it = work.pages().0.iter().any(|slot| slot.page.0 as usize == page);
                    at_it && (work.side() == Party::Prefill) == source
                });
                let Owner::Side(_, route) = it.owner else { continue };
                let state = world.decode.state(route.id);
                let landed = !source && state == Some(DecodeState::Landed);
                let offered = source && it.state == State::Outbound;
                for (defect, possible) in [
                    (Defect::FlipPage, landed || offered),
                    (Defect::FlipTag, landed),
                    (Defect::KeptPageGivenAway, idle && !source && it.state == State::Inbound),
                    (Defect::OfferedPageGivenAway, idle && offered),
                ] {
                    if possible && self.defects.contains(&defect) {
                        actions.push(Action::Page { source, page, defect });
                    }
                }
            }
        }
    }
}

fn always(invariant: &'static str, holds: fn(&Scenario, &World) -> bool) -> Property<Scenario> {
    Property::always(invariant, holds)
}

fn damaged(mail: Mail, defect: Defect) -> Mail {
    let Mail::Message { from, to, mut message } = mail else { return mail };
    match (&mut message, defect) {
        (Message::Offer(offer), _) => {
            let first = &mut offer.manifest.first;
            first.token = FirstToken::new(first.token.reveal() ^ 1);
        }
        (Message::Start { order, .. }, Defect::WrongDomain) => order.domain = Label::of(TenantId::new(9).unwrap()),
        (Message::Start { order, .. }, _) => order.request = RequestDigest([77; 32]),
        _ => {}
    }
    Mail::Message { from, to, message }
}
