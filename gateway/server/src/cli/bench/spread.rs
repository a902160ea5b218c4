//! Several measurements of one thing, and how two things that were measured in turn compare.

use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt;

/// Measurements of one kind, one for each repetition.
pub(super) type Series = Vec<f64>;

/// What is published of a [`Series`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// An error without measurements.
    pub(super) fn of(values: &[f64]) -> Result<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (sorted.first(), sorted.last()) else {
            return Err(anyhow::anyhow!("nothing was measured"));
        };
        let upper = *sorted.get(sorted.len() / 2).context("nothing was measured")?;
        let lower = *sorted.get((sorted.len() - 1) / 2).context("nothing was measured")?;
        Ok(Self { median: (lower + upper) / 2.0, min: *min, max: *max })
    }

    /// How many times `of` another thing reached, repetition by repetition: what was measured at about one time is
    /// compared, so a machine that changes its speed changes both.
    pub(super) fn of_ratios(of: &[f64], to: &[f64]) -> Result<Self> {
        let ratios: Series = std::iter::zip(of, to).map(|(of, to)| of / to).collect();
        Self::of(&ratios)
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.median < 20.0 { 2 } else { 1 };
        write!(f, "{:>8.digits$} ({:.digits$} to {:.digits$})", self.median, self.min, self.max)
    }
}

/// Of these values, in any order: the smallest that so large a part of them does not exceed.
pub(super) fn percentile(values: &[f64], part: f64) -> Result<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(place.clamp(1, sorted.len().max(1)) - 1).copied().context("nothing was measured")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(
            [0.0, 0.5, 0.75, 0.76, 1.0].map(|part| percentile(&values, part).unwrap()),
            [1.0, 2.0, 3.0, 4.0, 4.0]
        );
        assert!(percentile(&[], 0.5).is_err());
    }

    #[test]
    fn a_spread_is_made_of_measurements_in_any_order() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]).unwrap(), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).unwrap(), Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Spread::of(&[5.0]).unwrap(), Spread { median: 5.0, min: 5.0, max: 5.0 });
        assert!(Spread::of(&[]).is_err());
    }

    #[test]
    fn ratios_are_of_pairs_and_not_of_medians() {
        // The machine became twice as slow: the ratio did not change.
        let ratios = Spread::of_ratios(&[40.0, 20.0, 20.0], &[10.0, 5.0, 5.0]).unwrap();
        assert_eq!(ratios, Spread { median: 4.0, min: 4.0, max: 4.0 });
        assert!(Spread::of_ratios(&[1.0], &[]).is_err());
    }
}
