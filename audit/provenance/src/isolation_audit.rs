//! What a probe says of the isolation between tenants, as an entry. It is a claim, in the chain of the tenant that made it:
//! the gateway writes down what it was told, with a digest of the result that says everything.

use crate::cbor::{DecodeError, Reader, Writer};
use crate::entry::{exactly, numbered};
use policies_domain::Digest;

/// A tenant that the operator named as a probe has measured what it sees of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IsolationAudit {
    /// What came out.
    pub verdict: AuditVerdict,
    /// SHA-256 of the result, as it was sent.
    pub result: Digest,
    /// Comparisons between tenants.
    pub arms: u64,
    /// [`IsolationAudit::strength`] of the weakest positive control.
    pub power: u64,
    /// [`IsolationAudit::strength`] of the arm with the least probability.
    pub strongest: u64,
}

/// What came out of an audit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditVerdict {
    /// No comparison showed a difference, and each could have.
    Isolated = 0,
    /// A comparison showed a difference.
    ChannelFound = 1,
    /// Not even the positive control showed one.
    Void = 2,
    /// No comparison showed a difference, and not each could have.
    Inconclusive = 3,
}

impl AuditVerdict {
    const ALL: [Self; 4] = [Self::Isolated, Self::ChannelFound, Self::Void, Self::Inconclusive];

    /// As results name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Isolated => "isolated",
            Self::ChannelFound => "channel_found",
            Self::Void => "void",
            Self::Inconclusive => "inconclusive",
        }
    }

    /// The verdict of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verdict| verdict.as_str() == name)
    }
}

impl IsolationAudit {
    /// The largest strength: of a probability of 10^-1000 or less.
    pub const STRENGTH_MAX: u64 = 1_000_000;

    /// A probability as an entry holds it, -1000 log10 of it, rounded down. What is none has no strength.
    #[must_use]
    pub fn strength(probability: f64) -> u64 {
        if !(0.0..=1.0).contains(&probability) {
            return 0;
        }
        // A little is added so that a power of ten does not fall below its whole number.
        let strength = (-1_000.0 * probability.log10() + 1e-6).floor();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "clamped to the range right before"
        )]
        let strength = strength.clamp(0.0, 1e6) as u64;
        strength
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.uint(0).uint(self.verdict as u64).bytes(&self.result.0);
        writer.uint(self.arms).uint(self.power).uint(self.strongest);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        exactly(reader, 0, "subject")?;
        Ok(Self {
            verdict: numbered(&AuditVerdict::ALL, reader.uint()?, "verdict")?,
            result: Digest(reader.fixed("result")?),
            arms: reader.uint()?,
            power: strength(reader, "power")?,
            strongest: strength(reader, "strongest")?,
        })
    }
}

fn strength(reader: &mut Reader<'_>, field: &'static str) -> Result<u64, DecodeError> {
    match reader.uint()? {
        strength @ 0..=IsolationAudit::STRENGTH_MAX => Ok(strength),
        _ => Err(DecodeError::Range { field }),
    }
}
