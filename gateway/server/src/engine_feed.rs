//! The engine's own account of its pages, for an auditor: it passes nothing of the gateway that handles requests.

use audit_feed::{EngineFeed, FeedSettings, OpenFeedError};
use engine_runtime::Witness;
use policies_domain::{CustodyRecord, PageTrace, RequestId};
use std::path::Path;
use std::sync::Arc;

/// The folder of feeds, in the gateway's data directory.
pub(crate) const FEEDS_FOLDER: &str = "feeds";

#[derive(Debug)]
struct Feeding(EngineFeed);

impl Witness for Feeding {
    fn custody(&self, first_page: u32, records: &[CustodyRecord]) {
        self.0.custody(first_page, records);
    }

    fn pass(&self, request: RequestId, trace: &PageTrace) {
        self.0.pass(request, trace);
    }
}

/// Writes an engine's feed into this data directory, `mib_max` mebibytes of it at most.
///
/// # Errors
/// [`OpenFeedError`], also when another gateway writes there.
pub(crate) fn open(
    data_dir: &Path,
    mib_max: usize,
    group_may_read: bool,
    run: [u8; 16],
) -> Result<Arc<dyn Witness>, OpenFeedError> {
    let settings = FeedSettings { run, bytes_max: (mib_max as u64) << 20, group_may_read };
    Ok(Arc::new(Feeding(EngineFeed::open(&data_dir.join(FEEDS_FOLDER), settings)?)))
}
