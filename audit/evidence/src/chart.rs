//! Plots, as marks on a plane: drawn alike in a page and on paper. Units are points, `y` grows downwards.

/// Width of every plot: a page of A4 without its margins.
pub(crate) const WIDTH: f32 = 499.0;
const ROW: f32 = 18.0;
const LABEL: f32 = 150.0;
const VALUE: f32 = 110.0;

/// What a mark means; a colour in each medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    Ink,
    Muted,
    Grid,
    Track,
    Plain,
    Good,
    Warn,
    Bad,
}

/// Where a text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Mark {
    Rect { x: f32, y: f32, width: f32, height: f32, tone: Tone },
    Line { from: (f32, f32), to: (f32, f32), tone: Tone },
    Text { at: (f32, f32), anchor: Anchor, text: String, tone: Tone },
}

/// A plot.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// The same in words, for whoever does not see it.
    pub(crate) says: String,
    pub(crate) height: f32,
    pub(crate) marks: Vec<Mark>,
}

impl Chart {
    fn new(title: &str, height: f32) -> Self {
        Self { title: title.to_owned(), says: String::new(), height, marks: Vec::new() }
    }

    fn rect(&mut self, x: f32, y: f32, width: f32, height: f32, tone: Tone) {
        self.marks.push(Mark::Rect { x, y, width, height, tone });
    }

    fn line(&mut self, from: (f32, f32), to: (f32, f32), tone: Tone) {
        self.marks.push(Mark::Line { from, to, tone });
    }

    fn text(&mut self, at: (f32, f32), anchor: Anchor, text: impl Into<String>, tone: Tone) {
        self.marks.push(Mark::Text { at, anchor, text: text.into(), tone });
    }
}

/// One bar.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) count: u64,
    pub(crate) tone: Tone,
}

impl Bar {
    pub(crate) fn new(label: impl Into<String>, count: u64, tone: Tone) -> Self {
        Self { label: label.into(), count, tone }
    }
}

/// Rounding is to a hundredth of a point at most: nobody sees it.
#[expect(clippy::cast_precision_loss, reason = "a length on paper")]
fn length(count: u64) -> f32 {
    count as f32
}

fn fraction(count: u64, of: u64) -> f32 {
    if of == 0 { 0.0 } else { length(count.min(of)) / length(of) }
}

/// Parts of a whole, as bars on a track, with their share.
pub(crate) fn shares(title: &str, bars: &[Bar], of: u64) -> Chart {
    let mut chart = Chart::new(title, length(bars.len() as u64) * ROW + 4.0);
    let track = WIDTH - LABEL - VALUE;
    for (row, bar) in bars.iter().enumerate() {
        let y = length(row as u64) * ROW + 4.0;
        chart.text((0.0, y + 9.0), Anchor::Start, &*bar.label, Tone::Ink);
        chart.rect(LABEL, y, track, 11.0, Tone::Track);
        let width = track * fraction(bar.count, of);
        if bar.count > 0 {
            chart.rect(LABEL, y, width.max(1.0), 11.0, bar.tone);
        }
        let share = format!("{} of {of} ({})", bar.count, percent(bar.count, of));
        chart.text((WIDTH, y + 9.0), Anchor::End, &*share, Tone::Muted);
        chart.says.push_str(&format!("{}: {share}. ", bar.label));
    }
    chart
}

/// A share in percent that is 100 only when it is all, and 0 only when it is none.
pub(crate) fn percent(count: u64, of: u64) -> String {
    match (count, of) {
        (_, 0) => "-".to_owned(),
        (count, of) if count == of => "100 %".to_owned(),
        (count, of) => {
            let tenths = u128::from(count) * 1_000 / u128::from(of);
            let tenths = if count > 0 { tenths.clamp(1, 999) } else { 0 };
            format!("{}.{} %", tenths / 10, tenths % 10)
        }
    }
}

/// Bars over time, one on the other.
pub(crate) struct Column {
    /// From below.
    pub(crate) parts: Vec<(u64, Tone)>,
}

/// What happened when. `ends` are the words below both ends of the time.
pub(crate) fn over_time(title: &str, columns: &[Column], ends: (&str, &str), legend: &[(&str, Tone)]) -> Chart {
    let (left, top, height) = (36.0, 20.0, 96.0);
    let mut chart = Chart::new(title, top + height + 18.0);
    let most = columns.iter().map(|column| column.parts.iter().map(|(count, _)| count).sum()).max().unwrap_or(0);
    let most: u64 = most.max(1);
    for (place, share) in [(most, 0.0), (most / 2, 0.5), (0, 1.0)] {
        let y = top + height * share;
        chart.line((left, y), (WIDTH, y), Tone::Grid);
        if share != 0.5 || most.is_multiple_of(2) {
            chart.text((left - 5.0, y + 3.0), Anchor::End, place.to_string(), Tone::Muted);
        }
    }
    let step = (WIDTH - left) / length(columns.len().max(1) as u64);
    for (number, column) in columns.iter().enumerate() {
        let mut bottom = top + height;
        for (count, tone) in &column.parts {
            let bar = height * fraction(*count, most);
            if *count > 0 {
                // What is rare is seen all the same.
                let bar = bar.max(1.5);
                bottom -= bar;
                chart.rect(left + step * length(number as u64) + 1.0, bottom, step - 2.0, bar, *tone);
            }
        }
    }
    let mut x = left;
    for (name, tone) in legend {
        chart.rect(x, 3.0, 8.0, 8.0, *tone);
        chart.text((x + 12.0, 10.5), Anchor::Start, *name, Tone::Muted);
        x += 24.0 + 5.0 * length(name.len() as u64);
    }
    chart.text((left, top + height + 13.0), Anchor::Start, ends.0, Tone::Muted);
    chart.text((WIDTH, top + height + 13.0), Anchor::End, ends.1, Tone::Muted);
    for (number, (name, _)) in legend.iter().enumerate() {
        let all: u64 = columns.iter().filter_map(|column| column.parts.get(number)).map(|(count, _)| count).sum();
        chart.says.push_str(&format!("{name}: {all}. "));
    }
    chart
}

/// Quantiles of one time: its name, then p50, p90, p99 and the longest, in microseconds.
pub(crate) struct Spread {
    pub(crate) label: &'static str,
    pub(crate) times_us: [u64; 4],
}

/// Times on a logarithmic scale, from the median to the longest.
pub(crate) fn spreads(title: &str, spreads: &[Spread]) -> Chart {
    let (left, right, row) = (70.0, WIDTH - 170.0, 24.0);
    let bottom = length(spreads.len() as u64) * row + 6.0;
    let mut chart = Chart::new(title, bottom + 18.0);
    let all = || spreads.iter().flat_map(|spread| spread.times_us).filter(|time| *time > 0);
    let (low, high) = (all().min().unwrap_or(1), all().max().unwrap_or(1));
    // Whole decades around all times.
    let (first, last) = (low.ilog10(), high.max(low + 1).saturating_sub(1).max(1).ilog10() + 1);
    let decades = length(u64::from(last.saturating_sub(first).max(1)));
    let place = |time: u64| {
        let at = (log10(time) - length(u64::from(first))) / decades;
        left + (right - left) * at.clamp(0.0, 1.0)
    };
    for decade in first..=last {
        let x = place(10_u64.saturating_pow(decade));
        chart.line((x, 0.0), (x, bottom), Tone::Grid);
        chart.text((x, bottom + 12.0), Anchor::Middle, duration(10_u64.saturating_pow(decade)), Tone::Muted);
    }
    for (number, Spread { label, times_us }) in spreads.iter().enumerate() {
        let y = length(number as u64) * row + 4.0;
        let [p50, p90, p99, max] = *times_us;
        chart.text((0.0, y + 11.0), Anchor::Start, *label, Tone::Ink);
        chart.rect(place(p50), y + 6.0, (place(max) - place(p50)).max(1.0), 3.0, Tone::Grid);
        chart.rect(place(p50), y + 4.0, (place(p99) - place(p50)).max(1.0), 7.0, Tone::Plain);
        for (time, tone) in [(p50, Tone::Ink), (p90, Tone::Ink), (p99, Tone::Ink), (max, Tone::Muted)] {
            chart.rect(place(time) - 0.75, y + 2.0, 1.5, 11.0, tone);
        }
        let said = format!("{} / {} / {} / {}", duration(p50), duration(p90), duration(p99), duration(max));
        chart.text((WIDTH, y + 11.0), Anchor::End, &*said, Tone::Muted);
        chart.says.push_str(&format!("{label}: p50, p90, p99 and longest {said}. "));
    }
    chart
}

/// A logarithm that has the same bits on every machine, as a system's own need not: sixteen places of it are squared out.
fn log10(number: u64) -> f32 {
    let whole = number.max(1).ilog2();
    // From 1 to below 2, with 31 bits after the point.
    let mut rest = (u128::from(number.max(1)) << 31) >> whole;
    let mut places = 0_u16;
    for _ in 0..16 {
        rest = (rest * rest) >> 31;
        places <<= 1;
        if rest >> 32 > 0 {
            rest >>= 1;
            places |= 1;
        }
    }
    let log2 = length(u64::from(whole)) + f32::from(places) / 65_536.0;
    log2 * std::f32::consts::LOG10_2
}

/// A time as people say it.
pub(crate) fn duration(time_us: u64) -> String {
    match time_us {
        0..1_000 => format!("{time_us} us"),
        1_000..10_000 => format!("{}.{} ms", time_us / 1_000, time_us % 1_000 / 100),
        10_000..1_000_000 => format!("{} ms", time_us / 1_000),
        1_000_000..100_000_000 => format!("{}.{} s", time_us / 1_000_000, time_us % 1_000_000 / 100_000),
        _ => format!("{} s", time_us / 1_000_000),
    }
}

/// A row of a time line: moments with what happened.
pub(crate) struct Lifeline {
    pub(crate) label: String,
    pub(crate) moments: Vec<(u64, Tone)>,
    pub(crate) end: String,
    pub(crate) is_open: bool,
}

/// Lives from their first to their last moment.
pub(crate) fn lifelines(title: &str, lives: &[Lifeline], from_us: u64, to_us: u64, ends: (&str, &str)) -> Chart {
    let (left, right) = (LABEL, WIDTH - VALUE);
    let bottom = length(lives.len() as u64) * ROW + 4.0;
    let mut chart = Chart::new(title, bottom + 18.0);
    let all = to_us.saturating_sub(from_us).max(1);
    let place = |at: u64| left + (right - left) * fraction(at.saturating_sub(from_us), all);
    chart.line((left, bottom), (right, bottom), Tone::Grid);
    for (row, life) in lives.iter().enumerate() {
        let y = length(row as u64) * ROW + 4.0;
        chart.text((0.0, y + 9.0), Anchor::Start, &*life.label, Tone::Ink);
        let first = life.moments.first().map_or(left, |(at, _)| place(*at));
        let last = if life.is_open { right } else { life.moments.last().map_or(left, |(at, _)| place(*at)) };
        let tone = if life.is_open { Tone::Warn } else { Tone::Track };
        chart.rect(first, y + 4.0, (last - first).max(1.0), 4.0, tone);
        for (at, tone) in &life.moments {
            chart.rect(place(*at) - 2.0, y + 1.0, 4.0, 10.0, *tone);
        }
        chart.text((WIDTH, y + 9.0), Anchor::End, &*life.end, Tone::Muted);
        chart.says.push_str(&format!("{}: {}. ", life.label, life.end));
    }
    chart.text((left, bottom + 13.0), Anchor::Start, ends.0, Tone::Muted);
    chart.text((right, bottom + 13.0), Anchor::End, ends.1, Tone::Muted);
    chart
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_all_or_none_only_when_it_is() {
        let shares = [percent(0, 0), percent(0, 9), percent(1, 1_000_000), percent(999_999, 1_000_000), percent(7, 7)];
        assert_eq!(shares, ["-", "0.0 %", "0.1 %", "99.9 %", "100 %"]);
    }

    #[test]
    fn the_logarithm_is_one() {
        for (number, wanted) in
            [(0, 0.0), (1, 0.0), (4, 0.602_06), (1_000, 3.0), (50_000, 4.698_97), (u64::MAX, 19.265_92)]
        {
            assert!((log10(number) - wanted).abs() < 1e-3, "{number}: {}", log10(number));
        }
    }

    #[test]
    fn every_mark_lies_on_the_plane_whatever_the_figures() {
        let bar = |count| Bar::new("x", count, Tone::Plain);
        let column = |count| Column { parts: vec![(count, Tone::Plain), (1, Tone::Bad)] };
        let spread = |times_us| Spread { label: "x", times_us };
        let life = |at| Lifeline { label: "x".into(), moments: vec![(at, Tone::Bad)], end: "x".into(), is_open: true };
        for count in [0, 1, 7, u64::MAX / 4] {
            for chart in [
                shares("t", &[bar(count), bar(0)], count),
                over_time("t", &[column(count), column(0)], ("a", "b"), &[("n", Tone::Plain)]),
                spreads("t", &[spread([count; 4]), spread([0, 1, 10, 1_000_000])]),
                lifelines("t", &[life(count)], 0, count, ("a", "b")),
            ] {
                for mark in &chart.marks {
                    let places = match mark {
                        Mark::Rect { x, y, width, height, .. } => vec![(*x, *y), (x + width, y + height)],
                        Mark::Line { from, to, .. } => vec![*from, *to],
                        Mark::Text { at, .. } => vec![*at],
                    };
                    let inside =
                        |(x, y): &(f32, f32)| (-3.0..=WIDTH + 3.0).contains(x) && (-3.0..=chart.height).contains(y);
                    assert!(places.iter().all(inside), "{count}: {mark:?} of {}", chart.height);
                }
            }
        }
    }
}
