//! What may happen, as a script says it.

use std::fmt;
use std::str::FromStr;

/// One thing that happens. A run is a list of them; nothing else decides anything, so the same list gives the same run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A request of the next number comes, with so many tokens of prompt, and wants so many of answer.
    Arrive {
        /// Tokens.
        prompt: u32,
        /// Tokens.
        answer: u32,
    },
    /// The engine makes a step.
    Step,
    /// A client takes what is there, so many steps at most.
    Read {
        /// Modulo the number of clients.
        client: u32,
        /// At most.
        steps: u32,
    },
    /// A client leaves.
    Leave {
        /// Modulo the number of clients.
        client: u32,
    },
    /// A request loses its slot and its pages, or the handoff that was to bring them, and is computed anew later.
    Preempt {
        /// Modulo the number of those that have a slot.
        request: u32,
    },
    /// As when a page is needed and none is free: so does whoever gives way first.
    Evict,
    /// A split engine admits whoever may have a slot, and forgets who left.
    Look,
    /// Its prefill group computes a chunk.
    Prefill,
    /// Its decode group computes a token of everybody.
    Decode,
    /// Its prefill group, where that has pages of its own, ends and begins anew with nothing.
    Restart {
        /// Parcels that it has sent and that still arrive, at most.
        arriving: u32,
    },
    /// A parcel arrives at its prefill group.
    ToPrefill,
    /// A parcel arrives at its decode group.
    ToDecode,
    /// The first word that is on its way behind the bytes of pages arrives at its decode group before them.
    Overtake,
    /// Time passes.
    Pass {
        /// How much.
        milliseconds: u32,
    },
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arrive { prompt, answer } => write!(f, "arrive {prompt} {answer}"),
            Self::Step => write!(f, "step"),
            Self::Read { client, steps } => write!(f, "read {client} {steps}"),
            Self::Leave { client } => write!(f, "leave {client}"),
            Self::Preempt { request } => write!(f, "preempt {request}"),
            Self::Evict => write!(f, "evict"),
            Self::Look => write!(f, "look"),
            Self::Prefill => write!(f, "prefill"),
            Self::Decode => write!(f, "decode"),
            Self::Restart { arriving } => write!(f, "restart {arriving}"),
            Self::ToPrefill => write!(f, "to-prefill"),
            Self::ToDecode => write!(f, "to-decode"),
            Self::Overtake => write!(f, "overtake"),
            Self::Pass { milliseconds } => write!(f, "pass {milliseconds}"),
        }
    }
}

/// Not a line of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoAct(pub String);

impl FromStr for Act {
    type Err = NoAct;

    fn from_str(line: &str) -> Result<Self, NoAct> {
        let mut words = line.split_whitespace();
        let mut word = || words.next().ok_or(NoAct(line.to_owned()));
        let number = |word: Result<&str, NoAct>| word?.parse::<u32>().map_err(|_| NoAct(line.to_owned()));
        let act = match word()? {
            "arrive" => Self::Arrive { prompt: number(word())?, answer: number(word())? },
            "step" => Self::Step,
            "read" => Self::Read { client: number(word())?, steps: number(word())? },
            "leave" => Self::Leave { client: number(word())? },
            "preempt" => Self::Preempt { request: number(word())? },
            "evict" => Self::Evict,
            "look" => Self::Look,
            "prefill" => Self::Prefill,
            "decode" => Self::Decode,
            "restart" => Self::Restart { arriving: number(word())? },
            "to-prefill" => Self::ToPrefill,
            "to-decode" => Self::ToDecode,
            "overtake" => Self::Overtake,
            "pass" => Self::Pass { milliseconds: number(word())? },
            _ => return Err(NoAct(line.to_owned())),
        };
        if words.next().is_some() { Err(NoAct(line.to_owned())) } else { Ok(act) }
    }
}
