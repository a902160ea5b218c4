//! What must hold in every state of a world.

use super::pages::{Bytes, Owner, Pages, State};
use super::scenario::ALL;
use super::world::{Mail, Work, World};
use crate::{DecodeState, Party, PrefillState};

impl World {
    pub(super) fn kept(&self, invariant: u32) -> bool {
        self.seen.broken & 1 << invariant == 0
    }

    pub(super) fn take(&mut self, mail: &Mail) {
        if let Some(at) = self.mail.iter().position(|other| other == mail) {
            self.mail.remove(at);
        }
    }

    pub(super) fn can_finish(&self, work: &Work) -> bool {
        match work {
            Work::Receive { route, .. } if self.in_place => self.sends(*route),
            Work::Receive { route, .. } => self.staged.iter().any(|(staged, _)| staged == route),
            // Where pages stay, the decode side works at the prefill side's: giving them ends when that has ended.
            Work::Send { route, .. } if self.in_place => self.decode.state(route.id).is_none(),
            Work::Fence { side: Party::Prefill, route } if self.in_place => !self.work.iter().any(|other| {
                let touches = matches!(other, Work::Measure { .. } | Work::Relabel { .. });
                touches && other.route() == *route
            }),
            _ => true,
        }
    }

    /// Nothing is on its way and nothing is at work that could end by itself.
    pub(super) fn is_quiet(&self) -> bool {
        self.mail.is_empty() && !self.work.iter().any(|work| self.can_finish(work))
    }

    pub(super) fn writers_are_alone(&self) -> bool {
        let pool = |work: &Work| work.side() == Party::Prefill || self.in_place;
        let written: Vec<_> = self.work.iter().filter(|work| work.pages().1).collect();
        written.iter().enumerate().all(|(i, work)| {
            work.pages().0.iter().all(|slot| {
                let page = if pool(work) { &self.source } else { &self.target }.0[slot.page.0 as usize];
                let own = matches!(page.owner, Owner::Side(_, route) if route == work.route());
                let alone = !written[..i]
                    .iter()
                    .any(|other| pool(other) == pool(work) && other.pages().0.iter().any(|it| it.page == slot.page));
                own && alone
            })
        })
    }

    pub(super) fn work_has_its_pages(&self) -> bool {
        self.work.iter().all(|work| {
            let pool = if work.side() == Party::Prefill || self.in_place { &self.source } else { &self.target };
            work.pages().0.iter().all(|slot| {
                let page = pool.0[slot.page.0 as usize];
                page.state != State::Free && page.generation == slot.generation.0
            })
        })
    }

    pub(super) fn aborts_are_final(&self) -> bool {
        self.seen.aborted.iter().all(|(side, route)| match side {
            Party::Prefill => {
                self.prefill.life() != route.prefill
                    || matches!(self.prefill.state(route.id), None | Some(PrefillState::Aborting { .. }))
            }
            _ => {
                self.decode.life() != route.decode
                    || matches!(self.decode.state(route.id), None | Some(DecodeState::Aborting { .. }))
            }
        })
    }

    /// Free pages are scrubbed and nobody's; every other page is held by somebody who will give it back, or is evidence.
    pub(super) fn pages_are_held(&self) -> bool {
        [&self.source, &self.target].into_iter().all(|pool| {
            pool.0.iter().all(|page| match page.owner {
                Owner::Nobody => page.state == State::Free && page.bytes == Bytes::Scrubbed && page.generation % 2 == 0,
                Owner::Stranger => page.state != State::Free,
                Owner::Side(side, route) => {
                    let held = match side {
                        Party::Prefill => self.prefill.state(route.id).is_some(),
                        _ => self.decode.state(route.id).is_some(),
                    };
                    let used = self.work.iter().any(|work| work.side() == side && work.route() == route);
                    let evidence = page.state == State::Quarantined
                        && self.seen.incidents.iter().any(|incident| incident.route == route);
                    page.state != State::Free && (held || used || evidence)
                }
            })
        })
    }

    /// The gateway ended it, everybody was told, nothing got lost: nobody holds it.
    pub(super) fn nobody_is_forgotten(&self) -> bool {
        let open = |route| self.desk.state(route).is_some();
        self.prefill.held().all(|(route, _)| open(route.id)) && self.decode.held().all(|(route, _)| open(route.id))
    }

    /// From here on nothing goes wrong, and time passes: every handoff ends, and its pages are free or evidence.
    pub(super) fn settles(&self) -> bool {
        let mut world = self.clone();
        for _ in 0..8 {
            ALL.iter().for_each(|party| world.tick(*party, true));
            world.run_until(|_| false);
        }
        let empty = |pool: &Pages| {
            pool.0.iter().all(|page| match page.state {
                State::Free => true,
                State::Quarantined => {
                    matches!(page.owner, Owner::Side(_, route) if world.seen.incidents.iter().any(|incident| incident.route == route))
                }
                _ => page.owner == Owner::Stranger,
            })
        };
        world.prefill.held().next().is_none()
            && world.decode.held().next().is_none()
            && empty(&world.source)
            && empty(&world.target)
    }
}
