//! The engine of a world: one step loop, or two groups that hand requests over.

use crate::act::Act;
use crate::cast;
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
    Split(Box<Split>),
}

/// Two groups, and what a new life of one of them is made from.
#[derive(Debug)]
pub(crate) struct Split {
    groups: SplitExecutor<Tracer>,
    setup: Setup,
    /// What earlier lives of the prefill group read.
    read_before: BTreeSet<ForeignRead>,
    misread_before: BTreeSet<u32>,
    restarts: usize,
}

/// A handoff that ends without anybody's fault is tried again so often: one more restart could end a request.
const RESTARTS_MAX: usize = 4;

impl Split {
    /// `false`: it has no pages of its own, or has begun anew too often.
    fn restart(&mut self, arriving: usize) -> bool {
        if self.restarts == RESTARTS_MAX {
            return false;
        }
        let Ok(old) = self.groups.restart_prefill(tracer(&self.setup), arriving) else { return false };
        self.read_before.extend(old.foreign_reads().iter().copied());
        self.misread_before.extend(old.misread());
        self.restarts += 1;
        true
    }
}

fn tracer(setup: &Setup) -> Tracer {
    let mut tracer = Tracer::new(setup.cast, setup.config.pages);
    if !setup.checks.tags {
        tracer.believe_block_tables();
    }
    if setup.reads_whole_pages {
        tracer.read_whole_pages();
    }
    tracer
}

impl Engine {
    pub(crate) fn new(setup: &Setup) -> Self {
        match setup.groups {
            Groups::One => {
                let mut engine = StepExecutor::new(tracer(setup), setup.config, BOOT_SECRET);
                engine = engine.for_tenants(&setup.cast.tenancy());
                engine.plant_cache(setup.cache_faults.clone());
                engine.pool().plant(setup.ledger_faults.clone());
                engine.plant(setup.faults.clone());
                if !setup.checks.steps {
                    engine.uncheck();
                }
                Self::Whole(Box::new(engine))
            }
            Groups::InPlace | Groups::Copied => {
                let of_prefill = (setup.groups == Groups::Copied).then(|| tracer(setup));
                let make = if setup.checks.steps { SplitExecutor::new } else { SplitExecutor::unchecked };
                let mut engine = make(tracer(setup), of_prefill, setup.config, BOOT_SECRET);
                engine = engine.for_tenants(&setup.cast.tenancy());
                engine.plant_cache(setup.cache_faults.clone());
                if !setup.ledger_faults.is_empty() {
                    let (pool, of_prefill) = engine.pools();
                    [Some(pool), of_prefill]
                        .into_iter()
                        .flatten()
                        .for_each(|pool| pool.plant(setup.ledger_faults.clone()));
                }
                engine.plant(setup.faults.clone());
                if setup.one_sided {
                    engine.make_one_sided(setup.frees_early);
                }
                engine.keep_records();
                let (setup, read_before, misread_before) = (setup.clone(), BTreeSet::new(), BTreeSet::new());
                Self::Split(Box::new(Split { groups: engine, setup, read_before, misread_before, restarts: 0 }))
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
            Self::Split(engine) => engine.groups.submit(label, request, prompt, sampling, sealer),
        }
    }

    /// `false`: nobody can go on.
    pub(crate) fn step(&mut self) -> bool {
        match self {
            Self::Whole(engine) => engine.step(),
            Self::Split(engine) => engine.groups.step(),
        }
    }

    /// What concerns the engine alone. `false`: there was nothing to do.
    pub(crate) fn act(&mut self, act: Act) -> bool {
        match (self, act) {
            (engine, Act::Step) => engine.step(),
            (Self::Split(engine), act) => match act {
                Act::Preempt { request } => engine.groups.preempt(request as usize),
                Act::Evict => engine.groups.evict(),
                Act::Restart { arriving } => engine.restart(arriving as usize),
                Act::Look => engine.groups.look(),
                Act::ToPrefill => engine.groups.bring_to_prefill(),
                Act::ToDecode => engine.groups.bring_to_decode(),
                Act::Overtake => engine.groups.overtake_bytes(),
                Act::Prefill => {
                    engine.groups.prefill();
                    true
                }
                Act::Decode => {
                    engine.groups.decode();
                    true
                }
                Act::Pass { milliseconds } => {
                    engine.groups.pass(Duration::from_millis(milliseconds.into()));
                    true
                }
                Act::Arrive { .. } | Act::Step | Act::Read { .. } | Act::Leave { .. } => false,
            },
            (Self::Whole(engine), Act::Preempt { request }) => engine.preempt(request as usize),
            (Self::Whole(engine), Act::Evict) => engine.evict(),
            (Self::Whole(_), _) => false,
        }
    }

    /// Parcels are on their way.
    pub(crate) fn has_parcels(&self) -> bool {
        match self {
            Self::Whole(_) => false,
            Self::Split(engine) => engine.groups.on_the_way() != (0, 0),
        }
    }

    pub(crate) fn foreign_reads(&mut self) -> BTreeSet<ForeignRead> {
        match self {
            Self::Whole(engine) => engine.compute().foreign_reads().clone(),
            Self::Split(engine) => {
                let (decode, prefill) = engine.groups.computes();
                let mut foreign = &engine.read_before | decode.foreign_reads();
                foreign.extend(prefill.into_iter().flat_map(|tracer| tracer.foreign_reads().iter().copied()));
                foreign
            }
        }
    }

    pub(crate) fn misread(&mut self) -> BTreeSet<u32> {
        match self {
            Self::Whole(engine) => engine.compute().misread().clone(),
            Self::Split(engine) => {
                let (decode, prefill) = engine.groups.computes();
                let mut misread = &engine.misread_before | decode.misread();
                misread.extend(prefill.into_iter().flat_map(|tracer| tracer.misread().iter().copied()));
                misread
            }
        }
    }

    /// Pages that are neither free nor kept, as evidence or for later requests.
    pub(crate) fn pages_held(&self) -> usize {
        let held = |pool: &PagePool| {
            let counts = pool.counts();
            let kept: usize = (0..26).map(|tenant| pool.kept_alone(cast::label(tenant))).sum();
            counts.total - counts.free - counts.quarantined - kept
        };
        match self {
            Self::Whole(engine) => held(engine.pool()),
            Self::Split(engine) => {
                let (decode, prefill) = engine.groups.pools();
                held(decode) + prefill.map_or(0, held)
            }
        }
    }

    pub(crate) fn split(&mut self) -> Option<&mut SplitExecutor<Tracer>> {
        match self {
            Self::Whole(_) => None,
            Self::Split(engine) => Some(&mut engine.groups),
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
