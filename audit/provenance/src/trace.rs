//! Which pages a response read, and which steps each sent chunk comes from, as bytes: run-length coded, so that
//! 40,000 page reads are a hundred records. The log entry holds the digest ([`Trace::root`]), the receipt the bytes.

use crate::cbor::{DecodeError, Reader, Writer};
use policies_domain::{Digest, Generation, Label, PageId};
use sha2::{Digest as _, Sha256};

/// Runs that a decoder accepts. 16,384 pages of 16 tokens are a context of 262,144 tokens.
pub const TRACE_RUNS_MAX: usize = 16_384;

/// One page as one request read it: in every step from `first_step` to `last_step`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRecord {
    /// The page.
    pub page: PageId,
    /// The life of the page.
    pub generation: Generation,
    /// Its label when it was read.
    pub label: Label,
    /// The first step of the run.
    pub first_step: u32,
    /// The last step of the run.
    pub last_step: u32,
}

impl PageRecord {
    /// Lengthens the run by `step`; `false` when a step between was left out, and a new run must begin.
    pub(crate) fn extend(&mut self, step: u32) -> bool {
        let joins = step == self.last_step || Some(step) == self.last_step.checked_add(1);
        if joins {
            self.last_step = step;
        }
        joins
    }
}

/// Whose page it was, as seen by its reader. A receipt names no other tenant, not even by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PageClass {
    /// Free, or a mixture: nobody may read it.
    Nobody = 0,
    /// Public.
    Public = 1,
    /// The reader's own.
    Own = 2,
    /// Another tenant's.
    Other = 3,
}

impl PageClass {
    /// Classifies a label for a reader.
    #[must_use]
    pub fn of(label: Label, reader: Label) -> Self {
        if label == Label::NOBODY {
            Self::Nobody
        } else if label == Label::PUBLIC {
            Self::Public
        } else if label == reader {
            Self::Own
        } else {
            Self::Other
        }
    }

    fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::Nobody),
            1 => Some(Self::Public),
            2 => Some(Self::Own),
            3 => Some(Self::Other),
            _ => None,
        }
    }
}

/// A [`PageRecord`] as it is disclosed to the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRun {
    /// The page.
    pub page: PageId,
    /// The life of the page.
    pub generation: Generation,
    /// Whose it was.
    pub class: PageClass,
    /// The first step of the run.
    pub first_step: u32,
    /// The last step of the run.
    pub last_step: u32,
}

/// Chunks that follow each other at the same distance of steps.
///
/// Chunk `i` of the run, from 0, comes from the steps `first_step + i * stride` to that plus `span`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRun {
    /// Chunks in the run, at least 1.
    pub chunks: u32,
    /// First step of the first chunk.
    pub first_step: u32,
    /// Steps from the begin of one chunk to the begin of the next.
    pub stride: u32,
    /// Last step less first step, the same for all chunks of the run.
    pub span: u32,
}

/// What a response read and where its chunks come from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// In the order of the first read.
    pub pages: Vec<PageRun>,
    /// In the order sent.
    pub chunks: Vec<ChunkRun>,
}

impl Trace {
    /// From the gate's records, with labels as their reader may see them.
    #[must_use]
    pub fn new(records: &[PageRecord], reader: Label, chunks: Vec<ChunkRun>) -> Self {
        let disclose = |record: &PageRecord| PageRun {
            page: record.page,
            generation: record.generation,
            class: PageClass::of(record.label, reader),
            first_step: record.first_step,
            last_step: record.last_step,
        };
        Self { pages: records.iter().map(disclose).collect(), chunks }
    }

    /// `[[[page, generation, class, first, last], ...], [[chunks, first, stride, span], ...]]`
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.array(2).array(self.pages.len() as u64);
        for run in &self.pages {
            writer.array(5).uint(run.page.0.into()).uint(run.generation.0.into()).uint(run.class as u64);
            writer.uint(run.first_step.into()).uint(run.last_step.into());
        }
        writer.array(self.chunks.len() as u64);
        for run in &self.chunks {
            writer.array(4).uint(run.chunks.into()).uint(run.first_step.into());
            writer.uint(run.stride.into()).uint(run.span.into());
        }
        writer.finish()
    }

    /// The digest of the encoding, as the sealed entry holds it.
    #[must_use]
    pub fn root(encoded: &[u8]) -> Digest {
        Digest(Sha256::digest(encoded).into())
    }

    /// # Errors
    /// [`DecodeError`] for anything but the deterministic encoding, and for more than [`TRACE_RUNS_MAX`] runs.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        reader.array_of(2, "trace")?;
        let mut trace = Self::default();
        for _ in 0..runs(reader.array()?)? {
            reader.array_of(5, "page run")?;
            let run = PageRun {
                page: PageId(reader.uint32("page")?),
                generation: Generation(reader.uint32("generation")?),
                class: PageClass::from_number(reader.uint()?).ok_or(DecodeError::Range { field: "page class" })?,
                first_step: reader.uint32("first step")?,
                last_step: reader.uint32("last step")?,
            };
            if run.last_step < run.first_step {
                return Err(DecodeError::Range { field: "last step" });
            }
            trace.pages.push(run);
        }
        for _ in 0..runs(reader.array()?)? {
            reader.array_of(4, "chunk run")?;
            let run = ChunkRun {
                chunks: reader.uint32("chunks")?,
                first_step: reader.uint32("first step")?,
                stride: reader.uint32("stride")?,
                span: reader.uint32("span")?,
            };
            let end = u64::from(run.first_step) + u64::from(run.chunks) * u64::from(run.stride) + u64::from(run.span);
            if run.chunks == 0 || end > u64::from(u32::MAX) {
                return Err(DecodeError::Range { field: "chunk run" });
            }
            trace.chunks.push(run);
        }
        reader.end()?;
        Ok(trace)
    }
}

fn runs(count: u64) -> Result<u64, DecodeError> {
    if count > TRACE_RUNS_MAX as u64 { Err(DecodeError::Range { field: "runs" }) } else { Ok(count) }
}

/// Builds [`Trace::chunks`] while chunks are sent.
#[derive(Debug, Default)]
pub struct ChunkRuns(Vec<ChunkRun>);

impl ChunkRuns {
    /// Notes a chunk that comes from the steps `first_step` to `last_step`.
    pub fn push(&mut self, first_step: u32, last_step: u32) {
        let span = last_step.saturating_sub(first_step);
        if let Some(run) = self.0.last_mut() {
            let last = run.first_step.saturating_add(run.stride.saturating_mul(run.chunks - 1));
            let stride = first_step.checked_sub(last);
            if run.span == span
                && let Some(stride) = stride
                && (run.chunks == 1 || run.stride == stride)
            {
                run.stride = stride;
                run.chunks = run.chunks.saturating_add(1);
                return;
            }
        }
        self.0.push(ChunkRun { chunks: 1, first_step, stride: 0, span });
    }

    /// The runs.
    #[must_use]
    pub fn into_runs(self) -> Vec<ChunkRun> {
        self.0
    }
}
