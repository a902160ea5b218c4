//! What the gateway tries its detectors with while it serves: steps, pages and envelopes of the two [`Canary`]s, who are no
//! tenants. They are made beside the engine's own, in memory of their own: nothing of a request is touched, and no thread of the
//! engine is waited for. Nothing here can make a trace of anybody else.

mod ledger;
mod manifest;
mod tag_check;

pub use ledger::try_ledger;
pub use manifest::try_manifest_seal;
pub use tag_check::try_tag_check;

use crate::traced_table::TracedTable;
use policies_domain::{
    Binding, Canary, Completion, ConnectionId, Epoch, Generation, Layer, PageId, PageRead, SealKey, SequenceId, Step,
};

/// The first step of the reader's request, without text, that read one page of `page_of`. Its trace comes from a block table, as
/// that of any step does.
pub(crate) fn canary_step(reader: Canary, page_of: Canary) -> Step {
    let mut table = TracedTable::new(SequenceId::FIRST);
    let read = PageRead { page: PageId(0), generation: Generation(1), label: page_of.label(), shared: false };
    table.note(&[read], 1);
    let binding = Binding { request: reader.request(), label: reader.label(), connection: ConnectionId(0) };
    // The gate has no key: whose text it is others look at.
    let sealer = SealKey::from_bytes([0; 32]).sealer(Layer::Text, binding);
    Step {
        request: reader.request(),
        index: 0,
        trace: table.tell(),
        restarted: false,
        tokens: 0,
        text: Completion::new(String::new()),
        finish: None,
        seal: sealer.seal(Epoch::default(), 0, b"", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine_kernels::KvKind;

    #[test]
    fn a_canary_s_step_reads_one_page_and_names_whose_it_was() {
        for (reader, page_of) in [(Canary::A, Canary::A), (Canary::A, Canary::B), (Canary::B, Canary::A)] {
            let step = canary_step(reader, page_of);
            assert_eq!(step.request, reader.request());
            assert_eq!(step.trace.pages.iter().map(|read| read.label).collect::<Vec<_>>(), [page_of.label()]);
            assert_eq!((step.index, step.trace.kept, step.text.len()), (0, 0, 0));
        }
    }

    #[test]
    fn the_engine_s_detectors_work() {
        for kind in [KvKind::Bf16, KvKind::F32, KvKind::Int8] {
            assert!(try_tag_check(kind).passed(), "{kind:?}: {:?}", try_tag_check(kind));
        }
        assert!(try_ledger().passed(), "{:?}", try_ledger());
        assert!(try_manifest_seal([7; 32]).passed(), "{:?}", try_manifest_seal([7; 32]));
    }
}
