//! The gateway's end of a link to a worker.

use super::exchange::{LOOK, Parted};
use super::introduction::MeetError;
use super::streams::Streams;
use super::worker::{Deciding, Serving};
use crate::compute::Compute;
use crate::inbox::Inbox;
use engine_link::{Address, Identity, LinkTerms, Role, connect};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Between two tries to reach a worker: the first one, and as long as it grows. Requests wait for several of them.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(2)];

/// A part of the engine that is a process of its own.
#[derive(Clone, Debug)]
pub struct RemoteWorker {
    /// Where it listens.
    pub address: Address,
    /// Who this process is towards it: the other part.
    pub identity: Identity,
}

impl RemoteWorker {
    /// Which part it is.
    #[must_use]
    pub fn role(&self) -> Role {
        self.identity.role().peer()
    }
}

/// Reaches a worker again and again.
pub(crate) struct Connecting {
    pub(crate) worker: RemoteWorker,
    pub(crate) terms: LinkTerms,
    /// When it is stopped, so is this.
    pub(crate) inbox: Arc<Inbox>,
}

impl Connecting {
    /// The decode group is here.
    pub(crate) fn to_prefill(&self, deciding: &mut Deciding) {
        self.run(|connecting| deciding.meet(connecting.link()?, None));
    }

    /// The prefill group is here, and so are the readers.
    pub(crate) fn to_decode(&self, serving: &mut Serving<impl Compute>, streams: &Streams) {
        self.run(|connecting| serving.serve(connecting.link()?, Some(streams)));
    }

    fn link(&self) -> Result<engine_link::Link, MeetError> {
        Ok(connect(&self.worker.address, &self.worker.identity, self.terms)?)
    }

    fn run(&self, mut meet: impl FnMut(&Self) -> Result<Parted, MeetError>) {
        let (role, address) = (self.worker.role(), &self.worker.address);
        let [mut pause, longest] = PAUSES;
        let mut said = String::new();
        while !self.inbox.is_stopped() {
            match meet(self) {
                Ok(parted) => {
                    pause = PAUSES[0];
                    said.clear();
                    match parted {
                        Parted::Stopped => return,
                        Parted::Link(end) => tracing::warn!(%role, ?end, "the link to the worker ended"),
                        Parted::Word(error) => tracing::error!(%role, %error, "the worker said what it cannot"),
                    }
                }
                Err(error) => {
                    // Once for each reason: it is tried again until it succeeds.
                    let reason = error.to_string();
                    if reason != said {
                        tracing::warn!(%role, %address, %reason, "no link to the worker");
                        said = reason;
                    }
                    pause = (pause * 2).min(longest);
                }
            }
            let looks = pause.as_millis() / LOOK.as_millis();
            for _ in 0..looks.max(1) {
                if !self.inbox.is_stopped() {
                    thread::sleep(LOOK);
                }
            }
        }
    }
}
