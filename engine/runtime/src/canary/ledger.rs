//! The ledger's word on who may read a page: not whose label it does not flow to.

use engine_kv::{Capability, Ledger, LedgerConfig, PageFormat, UseError};
use policies_domain::{Canary, SequenceId, Trial};

/// A ledger of a page of each canary, both written to.
pub(super) struct Pages {
    ledger: Ledger,
    reader: SequenceId,
    pub(super) own: Capability,
    pub(super) other: Capability,
}

/// Tokens in each page.
const TOKENS: usize = 1;

impl Pages {
    pub(super) fn new() -> Option<Self> {
        // The tags guard nobody: the pages are in no store that serves.
        let boot_secret = [0xca; 32];
        let config = LedgerConfig { pages: 2, boot_secret, format: PageFormat::Bf16, compat: 0, events_max: 0 };
        let mut ledger = Ledger::new(config);
        let (reader, owner) = (ledger.open_sequence(), ledger.open_sequence());
        let own = ledger.allocate(Canary::A.label(), reader).ok()?;
        let other = ledger.allocate(Canary::B.label(), owner).ok()?;
        ledger.append(own.life(), reader, TOKENS).ok()?;
        ledger.append(other.life(), owner, TOKENS).ok()?;
        Some(Self { ledger, reader, own: own.capability(), other: other.capability() })
    }
}

/// Asks a ledger of two pages whether a canary may read its own one, and the other one's.
#[must_use]
pub fn try_ledger() -> Trial {
    let Some(Pages { ledger, reader, own, other }) = Pages::new() else { return Trial::default() };
    let clearance = Canary::A.label();
    let read = ledger.check_read(own, reader, clearance, TOKENS);
    let refused = ledger.check_read(other, reader, clearance, TOKENS);
    let foreign = UseError::Foreign { page: other.page(), held: Canary::B.label(), wanted: clearance };
    Trial { control_passed: read.is_ok_and(|read| read.label == clearance), fault_found: refused == Err(foreign) }
}
