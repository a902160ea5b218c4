//! The engine of a world: one step loop, or two groups that hand requests over.

use crate::act::Act;
use crate::tracer::{ForeignRead, Tracer};
use crate::world::{Checks, Groups, Setup};
use engine_kv::PagePool;
use engine_runtime::{Sampling, SplitExecutor, StepExecutor, Steps, SubmitError};
use policies_domain::{Label, RequestId, Sealer};
use std::collections::BTreeSet;
use std::time::Duration;

const BOOT_SECRET: [u8; 32] = [7; 32];

/// Stands still until it is told what to do.
#[derive(Debug)]
pub(crate) enum Engine {
    Whole(Box<StepExecutor<Tracer>>),
    Split(Box<SplitExecutor<Tracer>>),
}

impl Engine {
    pub(crate) fn new(setup: &Setup) -> Self {
        let tracer = || {
            let mut tracer = Tracer::new(setup.cast, setup.config.pages);
            if !setup.checks.tags {
                tracer.believe_block_tables();
            }
            if setup.reads_whole_pages {
                tracer.read_whole_pages();
            }
            tracer
        };
        match setup.groups {
            Groups::One => {
                let engine = StepExecutor::new(tracer(), setup.config, BOOT_SECRET);
                engine.pool().plant(setup.ledger_faults.clone());
                engine.plant(setup.faults.clone());
                if !setup.checks.steps {
                    engine.uncheck();
                }
                Self::Whole(Box::new(engine))
            }
            Groups::InPlace | Groups::Copied => {
                let of_prefill = (setup.groups == Groups::Copied).then(tracer);
                let make = if setup.checks.steps { SplitExecutor::new } else { SplitExecutor::unchecked };
                let mut engine = make(tracer(), of_prefill, setup.config, BOOT_SECRET);
                if !setup.ledger_faults.is_empty() {
                    engine.pools().0.plant(setup.ledger_faults.clone());
                }
                engine.plant(setup.faults.clone());
                if setup.one_sided {
                    engine.make_one_sided(setup.frees_early);
                }
                engine.keep_records();
                Self::Split(Box::new(engine))
            }
        }
    }

    pub(crate) fn submit(
        &mut self,
        label: Label,
        request: RequestId,
        prompt: Vec<u32>,
        sampling: Sampling,
        sealer: Sealer,
    ) -> Result<Steps, SubmitError> {
        match self {
            Self::Whole(engine) => engine.submit(label, request, prompt, sampling, sealer),
            Self::Split(engine) => engine.submit(label, request, prompt, sampling, sealer),
        }
    }

    /// `false`: nobody can go on.
    pub(crate) fn step(&mut self) -> bool {
        match self {
            Self::Whole(engine) => engine.step(),
            Self::Split(engine) => engine.step(),
        }
    }

    /// What concerns the engine alone.
    pub(crate) fn act(&mut self, act: Act) {
        match (self, act) {
            (engine, Act::Step) => {
                engine.step();
            }
            (Self::Split(engine), act) => {
                let happened = match act {
                    Act::Look => engine.look(),
                    Act::ToPrefill => engine.bring_to_prefill(),
                    Act::ToDecode => engine.bring_to_decode(),
                    Act::Overtake => engine.overtake_bytes(),
                    Act::Prefill => {
                        engine.prefill();
                        true
                    }
                    Act::Decode => {
                        engine.decode();
                        true
                    }
                    Act::Pass { milliseconds } => {
                        engine.pass(Duration::from_millis(milliseconds.into()));
                        true
                    }
                    Act::Arrive { .. } | Act::Step | Act::Read { .. } | Act::Leave { .. } => false,
                };
                let _nothing_to_do = !happened;
            }
            (Self::Whole(_), _) => (),
        }
    }

    /// Parcels are on their way.
    pub(crate) fn has_parcels(&self) -> bool {
        match self {
            Self::Whole(_) => false,
            Self::Split(engine) => engine.on_the_way() != (0, 0),
        }
    }

    pub(crate) fn foreign_reads(&mut self) -> BTreeSet<ForeignRead> {
        match self {
            Self::Whole(engine) => engine.compute().foreign_reads().clone(),
            Self::Split(engine) => {
                let (decode, prefill) = engine.computes();
                let of_prefill = prefill.map(|tracer| tracer.foreign_reads().clone()).unwrap_or_default();
                decode.foreign_reads() | &of_prefill
            }
        }
    }

    /// Pages that are neither free nor kept as evidence.
    pub(crate) fn pages_held(&self) -> usize {
        let held = |pool: &PagePool| {
            let counts = pool.counts();
            counts.total - counts.free - counts.quarantined
        };
        match self {
            Self::Whole(engine) => held(engine.pool()),
            Self::Split(engine) => {
                let (decode, prefill) = engine.pools();
                held(decode) + prefill.map_or(0, held)
            }
        }
    }

    pub(crate) fn split(&mut self) -> Option<&mut SplitExecutor<Tracer>> {
        match self {
            Self::Whole(_) => None,
            Self::Split(engine) => Some(engine),
        }
    }
}

impl Checks {
    /// Somebody looks.
    #[must_use]
    pub fn any(self) -> bool {
        self != Self::NONE
    }
}
