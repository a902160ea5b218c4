//! The label of a page: 128 bits that say whose it is, in which life, how full, and in which state.
//!
//! | word | bits | field | meaning |
//! | --- | --- | --- | --- |
//! | A | 0-31 | domain | [`Label::bits`]: 0 nobody, 1 public, else a tenant |
//! | A | 32-63 | generation | one more with every allocation and every free: odd while it is owned, even while it is free |
//! | B | 0-8 | fill | tokens written |
//! | B | 9-11 | state | [`PageState`] |
//! | B | 12-15 | format | [`PageFormat`] |
//! | B | 16-31 | compat | folded fingerprint of what decides the meaning of the bytes |
//! | B | 32-63 | owner | [`Owner::bits`] |

use crate::capability::PAGE_TOKENS;
use policies_domain::{Generation, Label, Owner};
use std::fmt;

/// Where a page is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PageState {
    /// Scrubbed and nobody's.
    Free = 0,
    /// Promised to a transfer: its bytes are still to come.
    Inbound = 1,
    /// Being written by its sequence.
    Open = 2,
    /// Never written again in this life.
    Sealed = 3,
    /// Sealed, and held by any number of sequences of one tenant.
    Shared = 4,
    /// Given back by its owner, still ticketed, still in a step that is under way, or not yet scrubbed.
    Draining = 5,
    /// Out of use, bytes kept.
    Quarantined = 6,
    /// Sealed, and offered to a transfer.
    Outbound = 7,
}

impl PageState {
    /// Every state, by number.
    pub const ALL: [Self; 8] = [
        Self::Free,
        Self::Inbound,
        Self::Open,
        Self::Sealed,
        Self::Shared,
        Self::Draining,
        Self::Quarantined,
        Self::Outbound,
    ];

    /// A sequence may read it.
    #[must_use]
    pub fn is_readable(self) -> bool {
        matches!(self, Self::Open | Self::Sealed | Self::Shared | Self::Outbound)
    }

    /// Every change of state that there is.
    pub(crate) fn may_become(self, next: Self) -> bool {
        use PageState::{Draining, Free, Inbound, Open, Outbound, Quarantined, Sealed, Shared};
        match self {
            Free => matches!(next, Open | Inbound | Quarantined),
            Inbound => matches!(next, Open | Sealed | Draining | Quarantined),
            Open => matches!(next, Sealed | Draining | Quarantined),
            Sealed => matches!(next, Shared | Outbound | Draining | Quarantined),
            Shared => matches!(next, Draining | Quarantined),
            Outbound => matches!(next, Open | Sealed | Draining | Quarantined),
            Draining => matches!(next, Free | Quarantined),
            Quarantined => matches!(next, Draining),
        }
    }
}

impl fmt::Display for PageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Free => "free",
            Self::Inbound => "inbound",
            Self::Open => "open",
            Self::Sealed => "sealed",
            Self::Shared => "shared",
            Self::Draining => "draining",
            Self::Quarantined => "quarantined",
            Self::Outbound => "outbound",
        })
    }
}

/// How K and V stand in a page's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum PageFormat {
    /// The upper half of an f32.
    Bf16 = 0,
    /// IEEE half precision.
    F16 = 1,
    /// 8 bits, 4 of them exponent.
    F8E4M3 = 2,
    /// 8 bits, 5 of them exponent.
    F8E5M2 = 3,
    /// Whole numbers with a scale.
    Int8 = 4,
    /// As computed.
    F32 = 5,
}

impl PageFormat {
    /// Every format, by number.
    pub const ALL: [Self; 6] = [Self::Bf16, Self::F16, Self::F8E4M3, Self::F8E5M2, Self::Int8, Self::F32];
}

/// What the ledger says of a page at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageLabel {
    /// Whose data it holds.
    pub domain: Label,
    /// Which life of the page.
    pub generation: Generation,
    /// Tokens written, at most [`PAGE_TOKENS`]. No read goes beyond it.
    pub fill: u16,
    /// Where it is in its life.
    pub state: PageState,
    /// How its bytes are to be read.
    pub format: PageFormat,
    /// Model and layout, folded to 16 bits.
    pub compat: u16,
    /// Who holds it.
    pub owner: Owner,
}

impl PageLabel {
    /// As two words, A and B.
    #[must_use]
    pub fn pack(self) -> [u64; 2] {
        let a = u64::from(self.domain.bits()) | u64::from(self.generation.0) << 32;
        let b = u64::from(self.fill & 0x1ff)
            | (self.state as u64) << 9
            | (self.format as u64) << 12
            | u64::from(self.compat) << 16
            | u64::from(self.owner.bits()) << 32;
        [a, b]
    }

    /// Reads two words; `None` for a fill, a format or a domain that there is not.
    #[must_use]
    pub fn unpack([a, b]: [u64; 2]) -> Option<Self> {
        let fill = (b & 0x1ff) as u16;
        if usize::from(fill) > PAGE_TOKENS {
            return None;
        }
        Some(Self {
            domain: Label::from_bits(a as u32)?,
            generation: Generation((a >> 32) as u32),
            fill,
            state: *PageState::ALL.get((b >> 9 & 7) as usize)?,
            format: *PageFormat::ALL.get((b >> 12 & 15) as usize)?,
            compat: (b >> 16) as u16,
            owner: Owner::from_bits((b >> 32) as u32),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policies_domain::{SequenceId, TenantId, TransferId};
    use proptest::prelude::*;

    fn example() -> PageLabel {
        PageLabel {
            domain: Label::of(TenantId::new(0x0123_4566).unwrap()),
            generation: Generation(0x89ab_cdef),
            fill: 11,
            state: PageState::Outbound,
            format: PageFormat::Int8,
            compat: 0xbeef,
            owner: Owner::Sequence(SequenceId::new(0x7654_3210).unwrap()),
        }
    }

    #[test]
    fn every_field_stands_where_the_layout_says() {
        // A tenant's label is its number plus one.
        assert_eq!(example().pack(), [0x89ab_cdef_0123_4567, 0x7654_3210_beef_4e0b]);
        let inbound = PageLabel {
            domain: Label::PUBLIC,
            generation: Generation(1),
            fill: 0,
            state: PageState::Inbound,
            format: PageFormat::Bf16,
            compat: 0,
            owner: Owner::Transfer(TransferId::new(5).unwrap()),
        };
        assert_eq!(inbound.pack(), [0x0000_0001_0000_0001, 0x8000_0005_0000_0200]);
        for (number, state) in PageState::ALL.into_iter().enumerate() {
            let [_, b] = PageLabel { state, ..example() }.pack();
            assert_eq!((b >> 9 & 7) as usize, number, "{state}");
        }
        for (number, format) in PageFormat::ALL.into_iter().enumerate() {
            let [_, b] = PageLabel { format, ..example() }.pack();
            assert_eq!((b >> 12 & 15) as usize, number, "{format:?}");
        }
    }

    #[test]
    fn words_that_no_ledger_writes_are_refused() {
        let [a, b] = example().pack();
        assert_eq!(PageLabel::unpack([a, b & !0x1ff | 17]), None, "more tokens than a page has");
        assert_eq!(PageLabel::unpack([a, b & !0xf000 | 6 << 12]), None, "a format that there is not");
        assert_eq!(PageLabel::unpack([a, b & !0xf000 | 15 << 12]), None, "a format that there is not");
    }

    #[test]
    fn no_page_comes_to_a_reader_but_through_an_owner() {
        for state in PageState::ALL {
            let ways = PageState::ALL.into_iter().filter(|from| from.may_become(state)).collect::<Vec<_>>();
            match state {
                PageState::Free => assert_eq!(ways, [PageState::Draining], "only what was drained becomes free"),
                PageState::Inbound => assert_eq!(ways, [PageState::Free]),
                PageState::Shared => assert_eq!(ways, [PageState::Sealed], "only what is written completely is shared"),
                _ => assert!(!ways.contains(&state), "{state}"),
            }
        }
    }

    proptest! {
        #[test]
        fn packing_loses_nothing(a: u64, b: u64) {
            if let Some(label) = PageLabel::unpack([a, b]) {
                prop_assert_eq!(label.pack(), [a, b]);
            }
            let fields = PageLabel { generation: Generation(a as u32), compat: b as u16, ..example() };
            prop_assert_eq!(PageLabel::unpack(fields.pack()), Some(fields));
        }
    }
}
