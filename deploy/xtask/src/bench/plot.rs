//! A line plot as SVG: few series; along x sizes that double or, where there are many points, time; from zero up along y.

use std::fmt::Write;

/// Size of the picture and of the margins around the plot, pixels.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Lines across, at most.
const GRID: f64 = 6.0;
/// Labels at the lines' ends do not come closer than this.
const LABEL_GAP: f64 = 16.0;

/// More different values of x than this are not sizes that were chosen: they are places on a ruler.
const SIZES_MAX: usize = 12;

/// A picture: titles, and one line for each series.
pub(super) struct Plot {
    pub(super) title: String,
    pub(super) x: &'static str,
    pub(super) y: &'static str,
    pub(super) series: Vec<Series>,
}

/// Points in ascending order of x.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) colour: &'static str,
    /// What is allowed, not what was measured.
    pub(super) dashed: bool,
    pub(super) points: Vec<(f64, f64)>,
}

impl Plot {
    /// As an SVG document; a plot without points is its axes.
    pub(super) fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| series.points.iter().copied());
        let (x_min, x_max) = points().fold((f64::MAX, f64::MIN), |(low, high), (x, _)| (low.min(x), high.max(x)));
        let y_max = points().map(|point| point.1).fold(0.0, f64::max);
        let step = round_step(y_max / GRID);
        let top = (y_max / step).ceil().max(1.0) * step;
        let mut xs: Vec<f64> = points().map(|point| point.0).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let on_ruler = xs.len() > SIZES_MAX;
        let x_of = |x: f64| {
            let (from, span) =
                if on_ruler { (x - x_min, x_max - x_min) } else { ((x / x_min).ln(), (x_max / x_min).ln()) };
            let share = if span > 0.0 { from / span } else { 0.5 };
            LEFT + share * (WIDTH - LEFT - RIGHT)
        };
        if on_ruler {
            xs = ruler(x_min, x_max);
        }
        let y_of = |y: f64| HEIGHT - BOTTOM - y / top * (HEIGHT - TOP - BOTTOM);

        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"13\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
        );
        let mut text = |x: f64, y: f64, anchor: &str, fill: &str, words: &str| {
            let words = escape(words);
            // Writing to a String cannot fail.
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{fill}\">{words}</text>"
            );
        };
        text(LEFT, 22.0, "start", "#111111", &self.title);
        text((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 10.0, "middle", "#444444", self.x);
        text(LEFT - 8.0, TOP - 6.0, "end", "#444444", self.y);
        for x in xs {
            text(x_of(x), HEIGHT - BOTTOM + 18.0, "middle", "#444444", &format!("{x}"));
        }
        for line in 0..=(top / step).round() as u32 {
            let y = f64::from(line) * step;
            text(LEFT - 8.0, y_of(y) + 4.0, "end", "#444444", &thousands(y));
        }
        for (series, y) in self.series.iter().zip(label_places(&self.series, y_of)) {
            text(WIDTH - RIGHT + 12.0, y + 4.0, "start", series.colour, &series.name);
        }
        for line in 0..=(top / step).round() as u32 {
            let y = y_of(f64::from(line) * step);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>",
                WIDTH - RIGHT
            );
        }
        for Series { colour, dashed, points, .. } in &self.series {
            let path: Vec<String> = points.iter().map(|(x, y)| format!("{:.1},{:.1}", x_of(*x), y_of(*y))).collect();
            let dash = if *dashed { " stroke-dasharray=\"6 4\"" } else { "" };
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
                path.join(" ")
            );
            for (x, y) in points.iter().filter(|_| !dashed && !on_ruler) {
                let (x, y) = (x_of(*x), y_of(*y));
                let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// Round values between two others.
fn ruler(from: f64, to: f64) -> Vec<f64> {
    let step = round_step((to - from) / GRID);
    let first = (from / step).ceil() as i64;
    (first..).map(|mark| mark as f64 * step).take_while(|mark| *mark <= to).collect()
}

/// Where the names stand: at the end of their line, moved apart, from the top down.
fn label_places(series: &[Series], y_of: impl Fn(f64) -> f64) -> Vec<f64> {
    let mut ends: Vec<(usize, f64)> = series
        .iter()
        .enumerate()
        .map(|(number, series)| (number, series.points.last().map_or(TOP, |point| y_of(point.1))))
        .collect();
    ends.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut places = vec![0.0; series.len()];
    let mut free_from = TOP;
    for (number, y) in ends {
        places[number] = y.max(free_from);
        free_from = places[number] + LABEL_GAP;
    }
    places
}

/// 1, 2 or 5 times a power of ten, not below `wanted`.
fn round_step(wanted: f64) -> f64 {
    if wanted <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(wanted.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power).find(|step| *step >= wanted).unwrap_or(wanted)
}

/// `12,345`.
pub(super) fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(name: &str, points: &[(f64, f64)]) -> Series {
        Series { name: name.into(), colour: "#123456", dashed: false, points: points.to_vec() }
    }

    #[test]
    fn a_plot_has_every_point_inside_and_names_that_do_not_touch() {
        let plot = Plot {
            title: "a < b".into(),
            x: "sequences",
            y: "tokens/s",
            series: vec![
                series("one", &[(1.0, 100.0), (64.0, 4_321.0)]),
                series("two", &[(1.0, 90.0), (64.0, 4_320.0)]),
            ],
        };
        let svg = plot.svg();
        assert!(svg.contains("a &lt; b") && svg.contains(">5,000<") && svg.contains(">64<"), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 4);
        for part in svg.split("cx=\"").skip(1) {
            let x: f64 = part.split('"').next().unwrap().parse().unwrap();
            assert!((LEFT..=WIDTH - RIGHT).contains(&x), "{x}");
        }
        let places = label_places(&plot.series, |y| 400.0 - y / 20.0);
        assert!((places[0] - places[1]).abs() >= LABEL_GAP, "{places:?}");
    }

    #[test]
    fn many_points_stand_on_a_ruler() {
        let points: Vec<(f64, f64)> = (-10..=30).map(|x| (f64::from(x) * 10.0, 1.0)).collect();
        let svg = Plot { title: String::new(), x: "", y: "", series: vec![series("one", &points)] }.svg();
        assert!(
            svg.contains(">-100<") && svg.contains(">0<") && svg.contains(">300<") && !svg.contains(">10<"),
            "{svg}"
        );
        assert!(!svg.contains("<circle") && !svg.contains("NaN"));
        assert_eq!(ruler(-1.0, 1.0), [-1.0, -0.5, 0.0, 0.5, 1.0]);
    }

    #[test]
    fn steps_and_numbers_are_round() {
        assert_eq!([0.0, 0.3, 7.0, 700.0, 1_001.0].map(round_step), [1.0, 0.5, 10.0, 1_000.0, 2_000.0]);
        assert_eq!([0.0, 999.6, 1_234_567.0].map(thousands), ["0", "1,000", "1,234,567"]);
        let one = Plot { title: String::new(), x: "", y: "", series: vec![series("", &[(1.0, 0.0)])] };
        assert!(!one.svg().contains("NaN"));
        let none = Plot { title: String::new(), x: "", y: "", series: Vec::new() };
        assert!(!none.svg().contains("NaN"));
    }
}
