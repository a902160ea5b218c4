//! The gate between the engine and the socket: a step's text is released only when every page that the step read
//! may flow to the request's principal.

use crate::released::Released;
use crate::trace::{PageClass, PageRecord};
use policies_domain::{Canary, Generation, Label, PageId, PageRead, PageTrace, Permit, RequestId, SealError, Step};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// An isolation fault. The response that met one sends nothing more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A step read a page whose label does not flow to the reader.
    #[error("step {step} read `{page}` (generation {}) labelled `{held}`, which does not flow to `{wanted}`", generation.0)]
    ForeignPage {
        /// The step that read it.
        step: u32,
        /// The page.
        page: PageId,
        /// The life of the page.
        generation: Generation,
        /// The page's label.
        held: Label,
        /// The reader's clearance.
        wanted: Label,
    },
    /// Computed again alone, the answer has other tokens, or other logits.
    #[error("computed again alone, the answer has other bits")]
    Replay,
    /// The engine computed the step for another request.
    #[error("step {step} was computed for request `{held}`, not for `{wanted}`")]
    RequestMismatch {
        /// The step.
        step: u32,
        /// The request that the step names.
        held: RequestId,
        /// The request of the permit.
        wanted: RequestId,
    },
    /// A step is missing, repeated or out of order: what it read is not known.
    #[error("step {held} came where step {wanted} was due")]
    StepGap {
        /// The number that came.
        held: u32,
        /// The number that was due.
        wanted: u32,
    },
    /// A step reads on in pages that no step before it named: what it read is not known.
    #[error("step {step} kept {kept} pages of {known} that were known")]
    TraceGap {
        /// The step.
        step: u32,
        /// Pages that it claims to read as the step before did.
        kept: usize,
        /// Pages that the step before read; none when the sequence began anew.
        known: usize,
    },
    /// One request saw the same page in two lives: it was freed and given out again while it was being read. (A
    /// sequence that was restarted reads its pages in newer lives, or in the same one when somebody has kept them for it, and
    /// never in an older one.)
    #[error("step {step} read `{page}` in generation {}, an earlier step in generation {}", held.0, wanted.0)]
    StaleGeneration {
        /// The step.
        step: u32,
        /// The page.
        page: PageId,
        /// The generation read now.
        held: Generation,
        /// The generation read before.
        wanted: Generation,
    },
    /// A kernel found another tag in the page than the reader holds.
    #[error("the kernel of layer {layer} found a foreign tag in `{page}`")]
    PageFault {
        /// The page.
        page: PageId,
        /// The layer that noticed it.
        layer: u32,
    },
    /// The read-set digest of the kernels is not that of the pages in the step's trace.
    #[error("the kernels read other pages than the trace names")]
    ReadSet,
    /// A handoff between the engine's groups was refused before its first token.
    #[error("the handoff of the request's pages was refused")]
    Handoff,
    /// What belongs to one row of the engine's batch met another row.
    #[error("the engine found the state of one request in the place of another's")]
    RowBinding,
    /// A piece of an answer came that was not made for this request, or not as the next one.
    #[error("{leg}: {error}")]
    Seal {
        /// Where it was noticed: the fault lies between this leg and the one before.
        leg: Leg,
        /// What was wrong.
        error: SealError,
    },
}

/// Where an answer is handed on, in order. Each leg checks for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leg {
    /// From the engine's sampler to the task of the request.
    EngineOutput,
    /// From the gate to the encoder, within the gateway.
    GatewayTask,
    /// From the encoder to the connection's writer.
    ClientSocket,
}

impl fmt::Display for Leg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EngineOutput => "engine output",
            Self::GatewayTask => "gateway task",
            Self::ClientSocket => "client socket",
        })
    }
}

/// Checks one request's steps in order. Closed for good after the first violation.
#[derive(Debug)]
pub struct Gate {
    request: RequestId,
    clearance: Label,
    step_next: u32,
    tokens: u64,
    /// The runs of `previous` go on as far as `examined`; their own last steps lag behind.
    records: Vec<PageRecord>,
    /// The latest record of each page.
    latest: HashMap<PageId, usize>,
    /// What the sequence had read before it lost its pages and began anew. Those lives are over, but for pages that others of
    /// its tenant hold as well: whatever was freed has a new generation since.
    ended: HashMap<PageId, Generation>,
    /// Records of the pages that the last step read, by position.
    previous: Vec<usize>,
    /// The last step whose reads were noted.
    examined: u32,
    closed_by: Option<Violation>,
}

/// Distinct pages (by place and generation) that a request read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Labelled with the reader's own tenant.
    pub own: u64,
    /// Labelled public.
    pub public: u64,
    /// Everything else: other tenants' pages and pages that nobody may read.
    pub foreign: u64,
}

impl Gate {
    /// A gate for the one request that the permit is good for.
    #[must_use]
    pub fn new(permit: &Permit) -> Self {
        Self::bound(permit.request(), permit.label())
    }

    fn bound(request: RequestId, clearance: Label) -> Self {
        Self {
            request,
            clearance,
            step_next: 0,
            tokens: 0,
            records: Vec::new(),
            latest: HashMap::new(),
            ended: HashMap::new(),
            previous: Vec::new(),
            examined: 0,
            closed_by: None,
        }
    }

    /// Whether a gate of a canary's lets its first step pass. It is the gate that all responses go through; what it releases goes
    /// nowhere, so a canary's text is never anybody's answer.
    ///
    /// # Errors
    /// What the gate says of the step.
    pub fn try_with(canary: Canary, step: Step) -> Result<(), Violation> {
        Self::bound(canary.request(), canary.label()).check(step).map(drop)
    }

    /// Releases the step's text if everything that the step read may reach the principal.
    ///
    /// # Errors
    /// The violation that this step commits, or the one that closed the gate earlier.
    pub fn check(&mut self, step: Step) -> Result<Released, Violation> {
        if let Some(violation) = &self.closed_by {
            return Err(violation.clone());
        }
        match self.examine(&step) {
            Ok(()) => {
                self.step_next = self.step_next.saturating_add(1);
                self.tokens = self.tokens.saturating_add(u64::from(step.tokens));
                Ok(Released::of(step))
            }
            Err(violation) => {
                self.closed_by = Some(violation.clone());
                Err(violation)
            }
        }
    }

    /// Closes the gate for a violation that somebody else found, such as a kernel. The first one found stays.
    pub fn close(&mut self, violation: Violation) {
        self.closed_by.get_or_insert(violation);
    }

    /// What closed the gate.
    #[must_use]
    pub fn closed_by(&self) -> Option<&Violation> {
        self.closed_by.as_ref()
    }

    /// Runs of pages read so far, in the order of their first read. Copies all of them: for the end of a response.
    #[must_use]
    pub fn records(&self) -> Vec<PageRecord> {
        let mut records = self.records.clone();
        for number in &self.previous {
            if let Some(record) = records.get_mut(*number) {
                record.last_step = self.examined;
            }
        }
        records
    }

    /// Distinct pages read so far. Walks all records: for the end of a response.
    #[must_use]
    pub fn pages(&self) -> PageCounts {
        let (mut seen, mut pages) = (HashSet::new(), PageCounts::default());
        for record in &self.records {
            let class = PageClass::of(record.label, self.clearance);
            if seen.insert((record.page, record.generation, class)) {
                match class {
                    PageClass::Own => pages.own += 1,
                    PageClass::Public => pages.public += 1,
                    PageClass::Nobody | PageClass::Other => pages.foreign += 1,
                }
            }
        }
        pages
    }

    /// Steps that passed.
    #[must_use]
    pub fn steps(&self) -> u32 {
        self.step_next
    }

    /// Completion tokens of the steps that passed.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    fn examine(&mut self, step: &Step) -> Result<(), Violation> {
        if step.request != self.request {
            return Err(Violation::RequestMismatch { step: step.index, held: step.request, wanted: self.request });
        }
        if step.index != self.step_next {
            return Err(Violation::StepGap { held: step.index, wanted: self.step_next });
        }
        if step.restarted {
            self.end_runs(0);
            let records = &self.records;
            let lives = self.latest.drain().filter_map(|(page, number)| Some((page, records.get(number)?.generation)));
            self.ended.extend(lives);
        }
        let PageTrace { kept, pages } = &step.trace;
        if *kept > self.previous.len() {
            return Err(Violation::TraceGap { step: step.index, kept: *kept, known: self.previous.len() });
        }
        self.end_runs(*kept);
        // The whole trace is recorded even when an early page fails: the counts are evidence.
        let mut violation = None;
        for read in pages {
            if let Err(found) = self.read(*kept, *read, step.index) {
                violation.get_or_insert(found);
            }
        }
        self.examined = step.index;
        violation.map_or(Ok(()), Err)
    }

    /// What stood at these positions and behind them in the last step is not read on, unless it is named again.
    fn end_runs(&mut self, kept: usize) {
        for number in self.previous.drain(kept.min(self.previous.len())..) {
            if let Some(record) = self.records.get_mut(number) {
                record.last_step = self.examined;
            }
        }
    }

    /// Notes the next page that is not among the `kept` first ones. A page among these was judged when it was named, and is
    /// not looked at again: its run goes on.
    fn read(&mut self, kept: usize, read: PageRead, step: u32) -> Result<(), Violation> {
        let known = self.latest.get(&read.page).copied();
        let earlier = known.and_then(|number| self.records.get(number)).copied();
        let same_life = earlier.is_some_and(|e| e.generation == read.generation && e.label == read.label);
        let number = match known {
            Some(number) if same_life && self.goes_on(number, kept, step) => number,
            _ => self.record(read, step),
        };
        self.previous.push(number);
        let stale = match earlier {
            Some(record) => (record.generation != read.generation).then_some(record.generation),
            // A shared page is in the same life for everybody who holds it, before and after one of them begins anew.
            None => self.ended.get(&read.page).copied().filter(|ended| match read.shared {
                true => read.generation < *ended,
                false => read.generation <= *ended,
            }),
        };
        if let Some(wanted) = stale {
            let held = read.generation;
            return Err(Violation::StaleGeneration { step, page: read.page, held, wanted });
        }
        if read.label.flows_to(self.clearance) {
            Ok(())
        } else {
            Err(Violation::ForeignPage {
                step,
                page: read.page,
                generation: read.generation,
                held: read.label,
                wanted: self.clearance,
            })
        }
    }

    /// The record's run reaches the step before, or this one: it includes `step` now.
    fn goes_on(&mut self, number: usize, kept: usize, step: u32) -> bool {
        let extended = self.records.get_mut(number).is_some_and(|record| record.extend(step));
        // A page that stands in two places, one of them kept.
        extended || self.previous.iter().take(kept).any(|other| *other == number)
    }

    fn record(&mut self, read: PageRead, step: u32) -> usize {
        let number = self.records.len();
        self.records.push(PageRecord {
            page: read.page,
            generation: read.generation,
            label: read.label,
            first_step: step,
            last_step: step,
        });
        self.latest.insert(read.page, number);
        number
    }
}
