//! What a feed says, as bytes. Numbers are big-endian.

use policies_domain::{Generation, Label, PageId, RequestId};

/// Pages that one pass may name: a context of 16 million tokens.
const PAGES_MAX: usize = 1 << 20;

/// One thing that happened in an engine. In the order in which it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// The begin of a file: the run of the program that writes it. What it holds already is said next. `continues`: the file before
    /// is of the same run, and nothing is between the two.
    Start {
        /// Drawn at random.
        run: [u8; 16],
        /// Whether the file before is of the same run.
        continues: bool,
        /// When, in microseconds since 1970.
        wall_us: u64,
    },
    /// A page begins a life, as data of this label.
    Begin {
        /// The page.
        page: PageId,
        /// Its life.
        generation: Generation,
        /// Whose it is.
        label: Label,
    },
    /// It is over.
    End {
        /// The page.
        page: PageId,
        /// Its life.
        generation: Generation,
    },
    /// One pass computed tokens of a request.
    Pass {
        /// The request.
        request: RequestId,
        /// Places of the block table in which stands what its pass before read.
        kept: u32,
        /// What stands behind them.
        pages: Vec<(PageId, Generation)>,
    },
    /// So many records are missing here: the disk was slower than the engine for too long.
    Lost {
        /// How many.
        records: u64,
    },
}

impl Record {
    /// Adds the record's bytes.
    pub fn encode(&self, into: &mut Vec<u8>) {
        match self {
            Self::Start { run, continues, wall_us } => {
                into.extend([0, u8::from(*continues)]);
                into.extend(run);
                into.extend(wall_us.to_be_bytes());
            }
            Self::Begin { page, generation, label } => {
                into.push(1);
                for number in [page.0, generation.0, label.bits()] {
                    into.extend(number.to_be_bytes());
                }
            }
            Self::End { page, generation } => {
                into.push(2);
                into.extend(page.0.to_be_bytes());
                into.extend(generation.0.to_be_bytes());
            }
            Self::Pass { request, kept, pages } => {
                encode_pass(*request, *kept, pages.iter().copied(), into);
            }
            Self::Lost { records } => {
                into.push(4);
                into.extend(records.to_be_bytes());
            }
        }
    }

    /// The record that begins these bytes, and its length. `None` for anything else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        let mut rest = Rest(bytes);
        let record = match rest.array::<1>()? {
            [0] => {
                let [continues @ 0..=1] = rest.array()? else { return None };
                let (run, wall_us) = (rest.array()?, u64::from_be_bytes(rest.array()?));
                Self::Start { run, continues: continues == 1, wall_us }
            }
            [1] => Self::Begin { page: rest.page()?, generation: rest.generation()?, label: rest.label()? },
            [2] => Self::End { page: rest.page()?, generation: rest.generation()? },
            [3] => {
                let (request, kept) = (RequestId::from_bytes(rest.array()?), rest.number()?);
                let count = usize::try_from(rest.number()?).ok().filter(|count| *count <= PAGES_MAX)?;
                // As many as there are bytes for.
                let pages: Option<Vec<_>> = (0..count).map(|_| Some((rest.page()?, rest.generation()?))).collect();
                Self::Pass { request, kept, pages: pages? }
            }
            [4] => Self::Lost { records: u64::from_be_bytes(rest.array()?) },
            _ => return None,
        };
        Some((record, bytes.len() - rest.0.len()))
    }
}

/// As [`Record::Pass`], without making one.
pub(crate) fn encode_pass(
    request: RequestId,
    kept: u32,
    pages: impl ExactSizeIterator<Item = (PageId, Generation)>,
    into: &mut Vec<u8>,
) {
    into.push(3);
    into.extend(request.bytes());
    into.extend(kept.to_be_bytes());
    into.extend(u32::try_from(pages.len()).unwrap_or(u32::MAX).to_be_bytes());
    for (page, generation) in pages {
        into.extend(page.0.to_be_bytes());
        into.extend(generation.0.to_be_bytes());
    }
}

struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn array<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn number(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn page(&mut self) -> Option<PageId> {
        self.number().map(PageId)
    }

    fn generation(&mut self) -> Option<Generation> {
        self.number().map(Generation)
    }

    fn label(&mut self) -> Option<Label> {
        Label::from_bits(self.number()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policies_domain::TenantId;
    use proptest::prelude::*;

    pub(crate) fn record() -> impl Strategy<Value = Record> {
        let page = any::<u32>().prop_map(PageId);
        let life = (page, any::<u32>().prop_map(Generation));
        let label = prop_oneof![
            Just(Label::PUBLIC),
            Just(Label::NOBODY),
            (1u32..9).prop_filter_map("a tenant", |number| TenantId::new(number).map(Label::of)),
        ];
        prop_oneof![
            any::<([u8; 16], bool, u64)>().prop_map(|(run, continues, wall_us)| Record::Start {
                run,
                continues,
                wall_us
            }),
            (life.clone(), label).prop_map(|((page, generation), label)| Record::Begin { page, generation, label }),
            life.clone().prop_map(|(page, generation)| Record::End { page, generation }),
            (any::<[u8; 16]>(), any::<u32>(), prop::collection::vec(life, 0..9)).prop_map(|(request, kept, pages)| {
                Record::Pass { request: RequestId::from_bytes(request), kept, pages }
            }),
            any::<u64>().prop_map(|records| Record::Lost { records }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(records in prop::collection::vec(record(), 0..9)) {
            let mut bytes = Vec::new();
            records.iter().for_each(|record| record.encode(&mut bytes));
            let mut rest = &bytes[..];
            for record in &records {
                let (read, length) = Record::decode(rest).unwrap();
                prop_assert_eq!(&read, record);
                prop_assert!((0..length).all(|cut| Record::decode(&rest[..cut]).is_none()), "whole or not at all");
                rest = &rest[length..];
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn any_bytes_are_a_record_or_none(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some((record, length)) = Record::decode(&bytes) {
                let mut again = Vec::new();
                record.encode(&mut again);
                prop_assert_eq!(&again[..], &bytes[..length]);
            }
        }
    }
}
