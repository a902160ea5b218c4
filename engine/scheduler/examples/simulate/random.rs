//! Numbers from a seed: the same ones on every machine.

/// SplitMix64 (Steele, Lea, Flood, 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 up to, and without, 1.
    pub(crate) fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Both ends are in it.
    pub(crate) fn between(&mut self, (low, high): (usize, usize)) -> usize {
        low + (self.part() * (high - low + 1) as f64) as usize
    }

    /// The time to the next one of so many a second.
    pub(crate) fn gap_seconds(&mut self, per_second: f64) -> f64 {
        -(1.0 - self.part()).ln() / per_second
    }
}

/// Draws a number below `count`: the first is the most frequent, the n-th one n times rarer.
#[derive(Clone, Debug)]
pub(crate) struct Zipf(Vec<f64>);

impl Zipf {
    pub(crate) fn new(count: usize) -> Self {
        let sums = (1..=count).scan(0.0, |sum, rank| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        });
        Self(sums.collect())
    }

    pub(crate) fn draw(&self, random: &mut Random) -> usize {
        let point = random.part() * self.0.last().copied().unwrap_or(0.0);
        self.0.partition_point(|sum| *sum <= point).min(self.0.len().saturating_sub(1))
    }
}
