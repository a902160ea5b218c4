//! The kernels' comparison of tags: whoever reads or appends to a page under the tag of another one gets nothing.

use super::ledger::Pages;
use engine_kernels::{
    AttentionPlan, HeadShape, HeadTransform, KvKind, KvShape, KvStore, PageFault, PageFaults, PageRef, Span, Team,
    attention, rotate_and_append,
};
use policies_domain::Trial;

const SHAPE: HeadShape = HeadShape { heads: 1, kv_heads: 1, head_dim: 16 };
/// What the one token has in V, and so what attention to it gives. Every kind of store has it nearly exactly.
const VALUE: f32 = 1.0;
const NEARLY: f32 = 0.02;

/// Has the kernels that serve (this machine's best family, the same functions) append a token to a canary's page and read it, once
/// under the page's tag and once under that of the other canary's page. The store holds these two pages and is thrown away.
#[must_use]
pub fn try_tag_check(kind: KvKind) -> Trial {
    Kernels::new(kind).map_or_else(Trial::default, Kernels::tried)
}

struct Kernels {
    team: Team,
    store: KvStore,
    own: PageRef,
    /// The page of the other one, under one's own tag.
    foreign: PageRef,
}

impl Kernels {
    /// `None` where the system gives no memory, or the other one's page is not written to.
    fn new(kind: KvKind) -> Option<Self> {
        let Pages { own, other, .. } = Pages::new()?;
        let page = |capability: engine_kv::Capability| PageRef { page: capability.page().0, tag: capability.tag() };
        let (own, other) = (page(own), page(other));
        let shape = KvShape { layers: 1, kv_heads: SHAPE.kv_heads, head_dim: SHAPE.head_dim, pages: 2 };
        let mut kernels = Self {
            team: Team::new(1),
            store: KvStore::with_kind(shape, kind).ok()?,
            own,
            foreign: PageRef { page: other.page, tag: own.tag },
        };
        kernels.store.assign(own).ok()?;
        kernels.store.assign(other).ok()?;
        // There is something to be read.
        kernels.append(other).is_none().then_some(kernels)
    }

    fn tried(mut self) -> Trial {
        let (own, foreign) = (self.own, self.foreign);
        let (appended, (read, values)) = (self.append(own), self.read(own));
        let near = |value: &f32| (value - VALUE).abs() < NEARLY;
        let control_passed = appended.is_none() && read.is_none() && values.iter().all(near);
        let fault = Some(PageFault { layer: 0, page: foreign.page });
        let (appended, (read, values)) = (self.append(foreign), self.read(foreign));
        let nothing = values.iter().all(|value| *value == 0.0);
        Trial { control_passed, fault_found: appended == fault && read == fault && nothing }
    }

    fn append(&mut self, page: PageRef) -> Option<PageFault> {
        let (pages, mut qkv) = ([page], [VALUE; 48]);
        let transform = HeadTransform { norms: None, rope: None, scale: 1.0 };
        let faults = faults();
        let Self { team, store, .. } = self;
        rotate_and_append(team, store, 0, SHAPE, &transform, &[span(&pages)], &mut qkv, &faults);
        faults.of(0)
    }

    fn read(&mut self, page: PageRef) -> (Option<PageFault>, [f32; 16]) {
        let (pages, qkv, faults, mut values) = ([page], [VALUE; 48], faults(), [f32::NAN; 16]);
        let (spans, mut plan) = ([span(&pages)], AttentionPlan::default());
        let Self { team, store, .. } = self;
        plan.prepare(&spans, SHAPE, team.threads());
        attention(team, store, 0, SHAPE, None, &mut plan, &spans, &qkv, &faults, &mut values);
        (faults.of(0), values)
    }
}

fn span(pages: &[PageRef]) -> Span<'_> {
    Span { ticket: 0, tokens: &[0], position: 0, pages, logits: false }
}

fn faults() -> PageFaults {
    let mut faults = PageFaults::default();
    faults.reset(1);
    faults
}
