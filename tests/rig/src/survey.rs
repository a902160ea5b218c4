//! The table that a customer's security team asks for: of each class of failure, how often it was planted, and what came
//! of it.

use crate::cast;
use crate::catalogue::{Class, FAILURES, Standing};
use crate::fuzzer;
use crate::world::{Checks, Findings, Groups, Setup};
use engine_kv::{CacheFault, LedgerFault};
use engine_runtime::Fault;
use policies_domain::TenantId;
use serde::Serialize;

/// The whole table.
#[derive(Clone, Debug, Serialize)]
pub struct Survey {
    /// Runs of each kind of fault.
    pub runs: u64,
    /// In the order of the catalogue.
    pub classes: Vec<Row>,
}

/// One class of failures.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub class: &'static str,
    /// Runs in which a planted fault had any effect.
    pub planted: usize,
    /// Of these: it was found out before a foreign byte left.
    pub before: usize,
    /// Of these: it was found out, but a foreign byte had left.
    pub after: usize,
    /// Of these: foreign bytes left and nobody noticed, or were read and nobody noticed.
    pub missed: usize,
    /// Responses that were ended by an isolation fault although nothing was planted.
    pub false_alarms: usize,
    /// Of these runs again with nobody looking: so many let foreign bytes out, which shows that the faults are real.
    pub leaks_unchecked: usize,
    /// Published failures of the class that cannot be re-created before something else is built.
    pub pending: Vec<&'static str>,
}

/// A way in which something goes wrong.
struct Planting {
    class: Class,
    groups: Groups,
    plant: fn(Setup, TenantId) -> Setup,
}

fn with(setup: Setup, fault: Fault) -> Setup {
    Setup { faults: vec![fault], ..setup }
}

const PLANTINGS: &[Planting] = &[
    Planting {
        class: Class::Life,
        groups: Groups::Copied,
        plant: |setup, _| Setup { one_sided: true, frees_early: true, ..setup },
    },
    Planting {
        class: Class::Life,
        groups: Groups::Copied,
        plant: |setup, reader| with(setup, Fault::EarlyFree { reader }),
    },
    Planting {
        class: Class::Life,
        groups: Groups::InPlace,
        plant: |setup, reader| with(setup, Fault::EarlyFree { reader }),
    },
    Planting {
        class: Class::Life,
        groups: Groups::Copied,
        plant: |setup, reader| with(setup, Fault::LateWriter { reader }),
    },
    Planting {
        class: Class::Ready,
        groups: Groups::Copied,
        plant: |setup, reader| with(setup, Fault::FlippedByte { reader }),
    },
    Planting {
        class: Class::Ready,
        groups: Groups::Copied,
        plant: |setup, reader| with(setup, Fault::OtherPrompt { reader }),
    },
    Planting {
        class: Class::Alias,
        groups: Groups::One,
        plant: |setup, reader| with(setup, Fault::ForeignCapability { reader }),
    },
    Planting {
        class: Class::Alias,
        groups: Groups::One,
        plant: |setup, reader| with(setup, Fault::ForeignPageIndex { reader }),
    },
    Planting {
        class: Class::Alias,
        groups: Groups::Copied,
        plant: |setup, reader| with(setup, Fault::ForeignCapability { reader }),
    },
    Planting {
        class: Class::Scrub,
        groups: Groups::One,
        plant: |setup, _| Setup {
            // With the checks on, scrubbing is one of them.
            ledger_faults: if setup.checks.any() { Vec::new() } else { vec![LedgerFault::NoScrub] },
            reads_whole_pages: true,
            ..setup
        },
    },
    Planting {
        class: Class::Handoff,
        groups: Groups::Copied,
        plant: |setup, reader| with(setup, Fault::SwappedManifests { reader }),
    },
    Planting {
        class: Class::Handoff,
        groups: Groups::InPlace,
        plant: |setup, reader| with(setup, Fault::SwappedManifests { reader }),
    },
    Planting {
        class: Class::Handoff,
        groups: Groups::Copied,
        plant: |setup, reader| with(setup, Fault::WrongDomain { reader }),
    },
    Planting {
        class: Class::Row,
        groups: Groups::One,
        plant: |setup, reader| with(setup, Fault::ForeignEntry { reader }),
    },
    Planting {
        class: Class::Row,
        groups: Groups::One,
        plant: |setup, reader| with(setup, Fault::RowOffset { reader, rows: 1, of: 2 }),
    },
    Planting { class: Class::Deliv, groups: Groups::One, plant: |setup, _| Setup { exchanges_streams: true, ..setup } },
    Planting {
        class: Class::Deliv,
        groups: Groups::Copied,
        plant: |setup, _| Setup { exchanges_streams: true, ..setup },
    },
    Planting {
        class: Class::Row,
        groups: Groups::InPlace,
        plant: |setup, reader| with(setup, Fault::ForeignEntry { reader }),
    },
    Planting { class: Class::Key, groups: Groups::One, plant: |setup, _| shares_prefixes(setup) },
    Planting { class: Class::Key, groups: Groups::InPlace, plant: |setup, _| shares_prefixes(setup) },
    Planting { class: Class::Key, groups: Groups::Copied, plant: |setup, _| shares_prefixes(setup) },
];

/// One cache for all tenants, with a weak key and without a look at the tokens, over a ledger that gives pages to anybody.
fn shares_prefixes(setup: Setup) -> Setup {
    Setup {
        cache_faults: vec![CacheFault::OneTree, CacheFault::ToyHash, CacheFault::NoTokenComparison],
        ledger_faults: vec![LedgerFault::ForeignAttach],
        ..setup
    }
}

/// A world with a fault that depends on the seed.
pub(crate) fn setup(seed: u64) -> Option<Setup> {
    let planting = PLANTINGS.get(seed as usize % PLANTINGS.len())?;
    let clean = Setup { groups: planting.groups, ..Setup::small() };
    let reader = cast::tenant_id(seed as u32 % clean.cast.tenants)?;
    Some((planting.plant)(clean, reader))
}

/// Classes in the order of the catalogue.
const CLASSES: [Class; 15] = [
    Class::Life,
    Class::Ready,
    Class::Alias,
    Class::Scrub,
    Class::Key,
    Class::Handoff,
    Class::Row,
    Class::Spec,
    Class::Adapt,
    Class::Deliv,
    Class::Conn,
    Class::Rcache,
    Class::Auth,
    Class::Side,
    Class::Tele,
];

impl Survey {
    /// Runs each kind of fault so many times, each time from another seed. `progress` is told after each run.
    #[must_use]
    pub fn take(runs: u64, mut progress: impl FnMut()) -> Self {
        let classes = CLASSES.into_iter().map(|class| {
            let mut row = Row::of(class);
            for (number, planting) in (0..).zip(PLANTINGS).filter(|(_, planting)| planting.class == class) {
                for seed in (0..runs).map(|run| number * 1_000_000 + run) {
                    row.run(planting, seed);
                    progress();
                }
            }
            row
        });
        Self { runs, classes: classes.collect() }
    }

    /// How many times `progress` is told.
    #[must_use]
    pub fn length(runs: u64) -> u64 {
        runs * PLANTINGS.len() as u64
    }

    /// Nothing was missed or found too late, nobody was accused wrongly, and every class that is built was really tried.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.classes.iter().all(|row| {
            let is_tried = PLANTINGS.iter().any(|planting| planting.class.name() == row.class);
            row.missed + row.after + row.false_alarms == 0 && (!is_tried || row.planted > 0)
        })
    }
}

impl Row {
    fn of(class: Class) -> Self {
        let pending = FAILURES.iter().filter(|failure| failure.class == class);
        let pending = pending.filter(|failure| matches!(failure.standing, Standing::Pending { .. }));
        Self {
            class: class.name(),
            planted: 0,
            before: 0,
            after: 0,
            missed: 0,
            false_alarms: 0,
            leaks_unchecked: 0,
            pending: pending.map(|failure| failure.slug).collect(),
        }
    }

    fn run(&mut self, planting: &Planting, seed: u64) {
        let clean = Setup { groups: planting.groups, ..Setup::small() };
        let acts = fuzzer::acts_for(planting.groups, seed);
        self.false_alarms += fuzzer::run(&clean, &acts).caught.len();
        let reader = seed as u32 % clean.cast.tenants;
        let Some(reader) = cast::tenant_id(reader) else { return };
        let findings = fuzzer::run(&(planting.plant)(clean.clone(), reader), &acts);
        let is_found = !findings.caught.is_empty() || !findings.stopped.is_empty() || findings.halted;
        if is_found || !findings.readers().is_empty() || !findings.leaked.is_empty() {
            self.planted += 1;
            match Outcome::of(&findings) {
                Outcome::Before => self.before += 1,
                Outcome::After => self.after += 1,
                Outcome::Missed => self.missed += 1,
            }
        }
        let unchecked = (planting.plant)(Setup { checks: Checks::NONE, ..clean }, reader);
        self.leaks_unchecked += usize::from(!fuzzer::run(&unchecked, &acts).leaked.is_empty());
    }
}

enum Outcome {
    Before,
    After,
    Missed,
}

impl Outcome {
    fn of(findings: &Findings) -> Self {
        if findings.is_safe() {
            Self::Before
        } else if !findings.leaked.is_empty() && findings.leaked.is_subset(&findings.caught) {
            Self::After
        } else {
            Self::Missed
        }
    }
}
