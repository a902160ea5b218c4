//! Words between the processes of two groups, one in each frame, as arrays of CBOR (RFC 8949).
//!
//! What the protocol says is sealed by `engine_handoff` within its word. A word that cannot be is refused as a whole, and
//! the link with it: the peer is not what it should be.

use super::stream_words::StreamWord;
use crate::outlet::Said;
use crate::sampling::{Sampler, Sampling};
use crate::split::{Parcel, Prompt};
use crate::steps::StepError;
use crate::ticket::{Ticket, Ticketed};
use engine_handoff::{Attempt, Check, HandoffId, HandoffKey, Incarnation, PAGES_MAX, Party, Route, WireError};
use engine_link::Frame;
use minicbor::bytes::{ByteArray, ByteVec};
use minicbor::{Decode, Encode};
use policies_domain::{Epoch, Generation, Label, PageId, PageRead, PageTrace, RequestId};

/// The version of these words.
pub(super) const VERSION: u32 = 2;
/// The one kind of frame.
const KIND: u8 = 1;

/// One word.
#[derive(Debug, Encode, Decode)]
pub(super) enum Word {
    /// The decode group's first one.
    #[n(0)]
    Hello(#[n(0)] Hello),
    /// The prefill group's answer.
    #[n(1)]
    Welcome(#[n(0)] Welcome),
    /// Another answer, after which the link ends.
    #[n(2)]
    Refused(#[n(0)] Refused),
    /// A message of the protocol, as `engine_handoff` writes it.
    #[n(3)]
    Message(#[n(0)] PartyWord, #[n(1)] PartyWord, #[n(2)] ByteVec),
    /// What the next `Start` is about.
    #[n(4)]
    Prompt(#[n(0)] RouteWord, #[n(1)] PromptWord),
    /// The bytes of one page of a handoff; all of them come one behind the other.
    #[n(5)]
    Page(#[n(0)] RouteWord, #[n(1)] PagePlace, #[n(2)] ByteVec),
    /// What was read for a prompt, and the microseconds that it took.
    #[n(6)]
    Read(#[n(0)] RouteWord, #[n(1)] TraceWord, #[n(2)] u64, #[n(3)] u64, #[n(4)] u64),
    /// A prompt cannot be computed.
    #[n(7)]
    Failed(#[n(0)] RouteWord, #[n(1)] FailureWord),
    /// About a request whose reader is with the prefill group.
    #[n(8)]
    Stream(#[n(0)] u64, #[n(1)] StreamWord),
}

/// What the decode group's process says of itself. Its `Debug` does not show the secret.
#[derive(Encode, Decode)]
pub(super) struct Hello {
    #[n(0)]
    pub(super) version: u32,
    /// Of this boot of the decode group's process; the keys of the protocol come from it.
    #[n(1)]
    pub(super) secret: ByteArray<32>,
    #[n(2)]
    pub(super) life: u64,
    /// Of model, numerics and layout.
    #[n(3)]
    pub(super) fingerprint: ByteArray<32>,
    /// Requests that run at the same time.
    #[n(4)]
    pub(super) slots: u32,
    /// Tokens of the longest request.
    #[n(5)]
    pub(super) context_max: u32,
    /// Of the process: its pages keep their numbers as long as it lives.
    #[n(6)]
    pub(super) boot: u64,
    /// Its own pages.
    #[n(7)]
    pub(super) pages: u32,
    /// Requests that run and wait, at most.
    #[n(8)]
    pub(super) places: u32,
    /// Digest of the tenants' terms under their numbers. Who spoke version 1 did not say it.
    #[n(9)]
    pub(super) tenancy: Option<ByteArray<32>>,
}

impl std::fmt::Debug for Hello {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hello(version {})", self.version)
    }
}

/// What the prefill group's process says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct Welcome {
    /// Of the group: another one with each link.
    #[n(0)]
    pub(super) life: u64,
    /// Of the process: pages keep their numbers as long as it lives.
    #[n(1)]
    pub(super) boot: u64,
    #[n(2)]
    pub(super) pages: u32,
}

/// Why it does not work for this decode group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, thiserror::Error)]
pub(crate) enum Refused {
    /// Other words.
    #[n(0)]
    #[error("it speaks version {0} of the words between gateway and worker, not {VERSION}: run the same release")]
    Version(#[n(0)] u32),
    /// Another model.
    #[n(1)]
    #[error("its model, or `engine.kv`, is not the same")]
    Model,
    /// There is a link to a gateway already.
    #[n(2)]
    #[error("it works for another gateway")]
    Busy,
    /// Prompts could never be computed.
    #[n(3)]
    #[error("its `engine.pages` hold {0} tokens, requests here have up to {1}")]
    Pages(#[n(0)] u64, #[n(1)] u64),
    /// Requests could be submitted that it never takes.
    #[n(5)]
    #[error("it takes requests of up to {0} tokens, the gateway of up to {1}: see `engine.context_tokens_max`")]
    Context(#[n(0)] u64, #[n(1)] u64),
    /// Tenants come as numbers: somebody would be served by another one's terms.
    #[n(6)]
    #[error(
        "its tenants or their terms are not the same: give both the same keys in the same order, and the same `[scheduler.tenants]`"
    )]
    Tenancy,
    /// The system fails it.
    #[n(4)]
    #[error("it got no random bytes from the system, or cannot hand over pages of this size")]
    System,
}

/// A party of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub(super) enum PartyWord {
    #[n(0)]
    Gateway,
    #[n(1)]
    Prefill,
    #[n(2)]
    Decode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct RouteWord {
    #[n(0)]
    id: ByteArray<16>,
    #[n(1)]
    attempt: u32,
    #[n(2)]
    prefill: u64,
    #[n(3)]
    decode: u64,
}

/// Which of how many pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct PagePlace {
    #[n(0)]
    logical: u32,
    #[n(1)]
    pages: u32,
}

/// As [`PageTrace`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct TraceWord {
    #[n(0)]
    kept: u32,
    #[n(1)]
    reads: Vec<ReadWord>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
struct ReadWord {
    #[n(0)]
    page: u32,
    #[n(1)]
    generation: u32,
    #[n(2)]
    label: u32,
    #[n(3)]
    shared: bool,
}

impl TraceWord {
    pub(super) fn of(trace: &PageTrace) -> Self {
        let read = |read: &PageRead| ReadWord {
            page: read.page.0,
            generation: read.generation.0,
            label: read.label.bits(),
            shared: read.shared,
        };
        // The gate refuses whatever is more than there was.
        let kept = u32::try_from(trace.kept).unwrap_or(u32::MAX);
        Self { kept, reads: trace.pages.iter().map(read).collect() }
    }

    /// What another process read, the first of whose pages has this number here.
    pub(super) fn trace(self, first_page: u32, pages: u32) -> Result<PageTrace, WordError> {
        let read = |read: ReadWord| {
            let label = Label::from_bits(read.label).ok_or(WordError::Field("label"))?;
            let (page, generation) = (told(read.page, first_page, pages)?, Generation(read.generation));
            Ok(PageRead { page, generation, label, shared: read.shared })
        };
        let pages = self.reads.into_iter().map(read).collect::<Result<_, WordError>>()?;
        Ok(PageTrace { kept: self.kept as usize, pages })
    }
}

/// As [`Prompt`]; its `Debug` shows no token.
#[derive(Encode, Decode)]
pub(super) struct PromptWord {
    #[n(0)]
    request: ByteArray<16>,
    #[n(1)]
    epoch: u64,
    #[n(2)]
    label: u32,
    #[n(3)]
    tokens: Vec<u32>,
    #[n(4)]
    prompt_tokens: u64,
    #[n(5)]
    tokens_max: u64,
    #[n(6)]
    restarts: u32,
    #[n(7)]
    sampling: SamplingWord,
    /// Where the replay digest stands, when one is made.
    #[n(8)]
    digest: Option<ByteArray<32>>,
}

/// What decides the tokens besides the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct SamplingWord {
    #[n(0)]
    seed: u64,
    #[n(1)]
    top_k: u64,
    /// Temperature, `top_p`, `min_p`, penalties (repetition, presence, frequency), as their bits.
    #[n(2)]
    numbers: [u32; 6],
}

impl SamplingWord {
    pub(super) fn of(sampling: &Sampling) -> Self {
        let numbers = [
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            sampling.repetition_penalty,
            sampling.presence_penalty,
            sampling.frequency_penalty,
        ];
        Self { seed: sampling.seed, top_k: sampling.top_k as u64, numbers: numbers.map(f32::to_bits) }
    }

    pub(super) fn sampling(self) -> Result<Sampling, WordError> {
        let numbers = self.numbers.map(f32::from_bits);
        if !numbers.iter().all(|number| number.is_finite()) {
            return Err(WordError::Field("sampling"));
        }
        let [temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty] = numbers;
        Ok(Sampling {
            temperature,
            top_p,
            top_k: size(self.top_k, "top_k")?,
            min_p,
            seed: self.seed,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            ..Sampling::default()
        })
    }
}

/// A number as this machine counts.
pub(super) fn size(number: u64, name: &'static str) -> Result<usize, WordError> {
    usize::try_from(number).map_err(|_| WordError::Field(name))
}

impl std::fmt::Debug for PromptWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PromptWord({} tokens)", self.tokens.len())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) enum FailureWord {
    #[n(0)]
    PageFault(#[n(0)] u32, #[n(1)] u32),
    #[n(1)]
    ReadSet,
    #[n(2)]
    RowBinding,
    #[n(3)]
    PoolExhausted,
    #[n(4)]
    Stopped,
    #[n(5)]
    NotANumber,
    #[n(6)]
    Internal,
    #[n(7)]
    Handoff(#[n(0)] u8),
    #[n(8)]
    WorkerAway,
    #[n(9)]
    Expired(#[n(0)] u64),
}

impl FailureWord {
    pub(super) fn error(self, first_page: u32, pages: u32) -> Result<StepError, WordError> {
        Ok(match self {
            Self::PageFault(page, layer) => StepError::PageFault { page: told(page, first_page, pages)?, layer },
            Self::ReadSet => StepError::ReadSet,
            Self::RowBinding => StepError::RowBinding,
            Self::PoolExhausted => StepError::PoolExhausted,
            Self::Stopped => StepError::Stopped,
            Self::NotANumber => StepError::NotANumber,
            Self::Internal => StepError::Internal,
            Self::Handoff(check) => {
                let check = Check::ALL.get(usize::from(check)).ok_or(WordError::Field("check"))?;
                StepError::Handoff { check: *check }
            }
            Self::WorkerAway => StepError::WorkerAway,
            Self::Expired(retry_after_ms) => StepError::Expired { retry_after_ms },
        })
    }
}

/// Why a frame is no word, or no word here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WordError {
    #[error("a frame of kind {0}")]
    Kind(u8),
    #[error("malformed: {0}")]
    Malformed(#[from] minicbor::decode::Error),
    #[error("{0} bytes behind the end")]
    Trailing(usize),
    #[error("a message of the protocol: {0}")]
    Message(#[from] WireError),
    #[error("the field `{0}` has a value that it cannot have")]
    Field(&'static str),
    #[error("a page out of its order")]
    Order,
    #[error("a word that is not for this side")]
    NotHere,
}

/// What a prompt is held against when it comes: the model's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromptBounds {
    pub(crate) vocabulary: u32,
    pub(crate) context_length: usize,
}

impl PromptBounds {
    pub(super) fn check(self, tokens: &[u32]) -> Result<(), WordError> {
        let fits = !tokens.is_empty() && tokens.len() <= self.context_length;
        if fits && tokens.iter().all(|token| *token < self.vocabulary) {
            Ok(())
        } else {
            Err(WordError::Field("tokens"))
        }
    }
}

/// # Errors
/// [`WordError`].
pub(super) fn read(frame: &Frame) -> Result<Word, WordError> {
    if frame.kind != KIND {
        return Err(WordError::Kind(frame.kind));
    }
    let mut decoder = minicbor::Decoder::new(&frame.bytes);
    let word = decoder.decode()?;
    match frame.bytes.len() - decoder.position() {
        0 => Ok(word),
        bytes => Err(WordError::Trailing(bytes)),
    }
}

pub(super) fn write(word: &Word) -> Frame {
    // INVARIANT: a growing buffer takes everything.
    let bytes = minicbor::to_vec(word).unwrap_or_default();
    Frame { kind: KIND, bytes }
}

/// The frames of a parcel. None for what does not leave a process.
pub(super) fn frames(parcel: Parcel, key: &HandoffKey) -> Vec<Frame> {
    match parcel {
        Parcel::Message { from, to, message } => {
            let message = ByteVec::from(engine_handoff::encode(&message, key));
            vec![write(&Word::Message(from.into(), to.into(), message))]
        }
        Parcel::Prompt { route, prompt } => match PromptWord::of(*prompt) {
            Some(prompt) => vec![write(&Word::Prompt(route.into(), prompt))],
            // A sampler that is another's: whoever gets the order has no prompt for it.
            None => Vec::new(),
        },
        Parcel::Bytes { route, bytes, pages } => {
            let page_bytes = (bytes.len() / (pages as usize).max(1)).max(1);
            let places = (0..pages).map(|logical| PagePlace { logical, pages });
            let page = |(place, bytes): (_, &[u8])| write(&Word::Page(route.into(), place, bytes.to_vec().into()));
            places.zip(bytes.chunks(page_bytes)).map(page).collect()
        }
        Parcel::Said { route, said: Said::Read { trace, prefill_us, cost_ns, cached_tokens } } => {
            vec![write(&Word::Read(route.into(), TraceWord::of(&trace), prefill_us, cost_ns, cached_tokens as u64))]
        }
        Parcel::Said { route, said: Said::Failed(error) } => vec![write(&Word::Failed(route.into(), error.into()))],
        Parcel::Table { .. } | Parcel::Returned { .. } | Parcel::Peer { .. } => Vec::new(),
    }
}

/// What comes in, made into parcels again.
pub(super) struct Reader {
    pub(super) key: HandoffKey,
    pub(super) peer: Peer,
    /// Readers are on one of the link's ends, and what they are told on the other one.
    pub(super) streams: bool,
    /// A handoff whose pages are coming.
    gathered: Option<Gathered>,
}

/// What a frame was.
pub(super) enum Came {
    /// Not whole yet.
    Nothing,
    Parcel(Parcel),
    Stream(u64, StreamWord),
}

/// Who is on the other end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer {
    /// A decode group: prompts come from there.
    Decode(PromptBounds),
    /// A prefill group, the first of whose pages has this number for everybody else.
    Prefill { first_page: u32, pages: u32 },
}

struct Gathered {
    route: Route,
    pages: u32,
    next: u32,
    bytes: Vec<u8>,
}

impl Reader {
    pub(super) fn new(key: HandoffKey, peer: Peer, streams: bool) -> Self {
        Self { key, peer, streams, gathered: None }
    }

    /// The parcel that a frame is, or makes whole.
    ///
    /// # Errors
    /// [`WordError`]: nothing that follows can be relied on.
    pub(super) fn take(&mut self, frame: &Frame) -> Result<Came, WordError> {
        match read(frame)? {
            Word::Stream(stream, word) if self.streams => Ok(Came::Stream(stream, word)),
            word => Ok(self.parcel(word)?.map_or(Came::Nothing, Came::Parcel)),
        }
    }

    fn parcel(&mut self, word: Word) -> Result<Option<Parcel>, WordError> {
        if self.gathered.is_some() && !matches!(word, Word::Page(..)) {
            return Err(WordError::Order);
        }
        let parcel = match (self.peer, word) {
            (_, Word::Message(from, to, message)) => {
                let (from, to) = (Party::from(from), Party::from(to));
                let theirs = match self.peer {
                    Peer::Prefill { .. } => from == Party::Prefill && to != Party::Prefill,
                    Peer::Decode(_) => from != Party::Prefill && to == Party::Prefill,
                };
                if !theirs {
                    return Err(WordError::NotHere);
                }
                let message = engine_handoff::decode(&message, &self.key)?;
                Parcel::Message { from, to, message }
            }
            (Peer::Decode(bounds), Word::Prompt(route, prompt)) => {
                Parcel::Prompt { route: route.into(), prompt: Box::new(prompt.prompt(bounds)?) }
            }
            (Peer::Prefill { .. }, Word::Page(route, place, bytes)) => return self.gather(route.into(), place, &bytes),
            (Peer::Prefill { first_page, pages }, Word::Read(route, trace, prefill_us, cost_ns, cached)) => {
                let cached_tokens = size(cached, "cached_tokens")?;
                let trace = trace.trace(first_page, pages)?;
                Parcel::Said { route: route.into(), said: Said::Read { trace, prefill_us, cost_ns, cached_tokens } }
            }
            (Peer::Prefill { first_page, pages }, Word::Failed(route, failure)) => {
                let error = failure.error(first_page, pages)?;
                Parcel::Said { route: route.into(), said: Said::Failed(error) }
            }
            _ => return Err(WordError::NotHere),
        };
        Ok(Some(parcel))
    }

    /// Pages come whole, in order, one handoff after the other.
    fn gather(&mut self, route: Route, place: PagePlace, bytes: &[u8]) -> Result<Option<Parcel>, WordError> {
        let PagePlace { logical, pages } = place;
        if pages == 0 || pages > PAGES_MAX || bytes.is_empty() {
            return Err(WordError::Field("pages"));
        }
        let empty = Gathered { route, pages, next: 0, bytes: Vec::new() };
        let mut gathered = self.gathered.take().unwrap_or(empty);
        let fits = gathered.next == 0 || gathered.bytes.len() == bytes.len() * gathered.next as usize;
        if gathered.route != route || gathered.pages != pages || gathered.next != logical || !fits {
            return Err(WordError::Order);
        }
        gathered.bytes.extend_from_slice(bytes);
        gathered.next += 1;
        if gathered.next < pages {
            self.gathered = Some(gathered);
            return Ok(None);
        }
        Ok(Some(Parcel::Bytes { route, pages, bytes: gathered.bytes }))
    }
}

/// A page of the other process as everybody else is told it.
fn told(page: u32, first_page: u32, pages: u32) -> Result<PageId, WordError> {
    if page < pages { Ok(PageId(first_page + page)) } else { Err(WordError::Field("page")) }
}

impl PromptWord {
    fn of(prompt: Prompt) -> Option<Self> {
        let sampler = prompt.sampler.of(prompt.ticket).ok()?;
        let (sampling, digest) = (SamplingWord::of(sampler.sampling()), sampler.digest());
        Some(Self {
            digest: digest.map(|digest| digest.bytes().into()),
            request: prompt.request.bytes().into(),
            epoch: prompt.ticket.epoch.0,
            label: prompt.label.bits(),
            prompt_tokens: prompt.prompt_tokens as u64,
            tokens_max: prompt.tokens_max as u64,
            restarts: prompt.restarts,
            sampling,
            tokens: prompt.tokens,
        })
    }

    /// Its digest is compared with the order's by the protocol; here, with what the model can take.
    fn prompt(self, bounds: PromptBounds) -> Result<Prompt, WordError> {
        let tokens = self.tokens;
        let length = tokens.len();
        bounds.check(&tokens)?;
        let prompt_tokens = size(self.prompt_tokens, "prompt_tokens")?;
        if prompt_tokens == 0 || prompt_tokens > length {
            return Err(WordError::Field("prompt_tokens"));
        }
        let sampling = Sampling { digests: self.digest.is_some(), ..self.sampling.sampling()? };
        let mut sampler = Sampler::resume(sampling, &tokens, prompt_tokens);
        if let Some(digest) = self.digest {
            sampler.take_digest(digest.into());
        }
        let request = RequestId::from_bytes(self.request.into());
        let ticket = Ticket { request, epoch: Epoch(self.epoch) };
        Ok(Prompt {
            request,
            ticket,
            label: Label::from_bits(self.label).ok_or(WordError::Field("label"))?,
            prompt_tokens,
            tokens_max: size(self.tokens_max, "tokens_max")?,
            sampler: Ticketed::new(ticket, sampler),
            tokens,
            restarts: self.restarts,
            presence: None,
        })
    }
}

impl From<Route> for RouteWord {
    fn from(Route { id, attempt, prefill, decode }: Route) -> Self {
        Self { id: id.bytes().into(), attempt: attempt.0, prefill: prefill.0, decode: decode.0 }
    }
}

impl From<RouteWord> for Route {
    fn from(RouteWord { id, attempt, prefill, decode }: RouteWord) -> Self {
        let (prefill, decode) = (Incarnation(prefill), Incarnation(decode));
        Self { id: HandoffId::from_bytes(id.into()), attempt: Attempt(attempt), prefill, decode }
    }
}

impl From<Party> for PartyWord {
    fn from(party: Party) -> Self {
        match party {
            Party::Gateway => Self::Gateway,
            Party::Prefill => Self::Prefill,
            Party::Decode => Self::Decode,
        }
    }
}

impl From<PartyWord> for Party {
    fn from(party: PartyWord) -> Self {
        match party {
            PartyWord::Gateway => Self::Gateway,
            PartyWord::Prefill => Self::Prefill,
            PartyWord::Decode => Self::Decode,
        }
    }
}

impl From<StepError> for FailureWord {
    fn from(error: StepError) -> Self {
        match error {
            StepError::PageFault { page, layer } => Self::PageFault(page.0, layer),
            StepError::ReadSet => Self::ReadSet,
            StepError::RowBinding => Self::RowBinding,
            StepError::PoolExhausted => Self::PoolExhausted,
            StepError::Stopped => Self::Stopped,
            StepError::NotANumber => Self::NotANumber,
            StepError::Internal => Self::Internal,
            StepError::WorkerAway => Self::WorkerAway,
            StepError::Expired { retry_after_ms } => Self::Expired(retry_after_ms),
            // INVARIANT: `Check::ALL` has all of them, far fewer than 256.
            StepError::Handoff { check } => {
                Self::Handoff(Check::ALL.iter().position(|known| *known == check).unwrap_or(0) as u8)
            }
        }
    }
}
