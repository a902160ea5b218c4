//! The report on paper: A4, the fonts that every reader has, plots as lines. The same document gives the same bytes.

mod widths;

use crate::chart::{Anchor, Chart, Mark, Tone, WIDTH};
use crate::document::{Block, Document};
use pdf_writer::{Content, Finish as _, Name, Pdf, Rect, Ref, Str, TextStr};
use widths::width;

const PAGE: (f32, f32) = (595.0, 842.0);
const MARGIN: f32 = 48.0;
const TOP: f32 = 794.0;
const BOTTOM: f32 = 60.0;

/// The fonts, by the name that pages have for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Font {
    Regular,
    Bold,
    Fixed,
}

impl Font {
    fn name(self) -> Name<'static> {
        match self {
            Self::Regular => Name(b"R"),
            Self::Bold => Name(b"B"),
            Self::Fixed => Name(b"F"),
        }
    }
}

pub(crate) fn pdf(document: &Document) -> Vec<u8> {
    let mut paper = Paper::new();
    paper.line(MARGIN, 20.0, Font::Bold, Tone::Ink, &document.title);
    paper.down(18.0);
    paper.line(MARGIN, 10.0, Font::Regular, Tone::Muted, &document.subtitle);
    paper.down(14.0);
    for block in &document.blocks {
        one(&mut paper, block);
    }
    write(document, paper.finish())
}

/// The pages' contents as a file.
fn write(document: &Document, pages: Vec<Content>) -> Vec<u8> {
    let mut next = 1..;
    let mut id = || Ref::new(next.next().unwrap_or(1));
    let (catalog, tree, info) = (id(), id(), id());
    let fonts =
        [(Font::Regular, id(), "Helvetica"), (Font::Bold, id(), "Helvetica-Bold"), (Font::Fixed, id(), "Courier")];
    let mut pdf = Pdf::new();
    pdf.catalog(catalog).pages(tree).lang(TextStr("en"));
    pdf.document_info(info).title(TextStr(&document.title)).producer(TextStr("bulkhead"));
    for (_, font, base) in &fonts {
        pdf.type1_font(*font).base_font(Name(base.as_bytes())).encoding_predefined(Name(b"WinAnsiEncoding"));
    }
    let all: Vec<_> = pages.into_iter().map(|content| (id(), id(), content)).collect();
    let count = all.len();
    pdf.pages(tree).kids(all.iter().map(|(page, ..)| *page)).count(i32::try_from(count).unwrap_or(i32::MAX));
    for (number, (page, place, mut content)) in all.into_iter().enumerate() {
        let said = format!("{}    page {} of {count}", document.footer, number + 1);
        show(&mut content, (MARGIN, 34.0), 7.5, Font::Regular, Tone::Muted, &said);
        let mut written = pdf.page(page);
        written.media_box(Rect::new(0.0, 0.0, PAGE.0, PAGE.1)).parent(tree).contents(place);
        let mut resources = written.resources();
        let mut named = resources.fonts();
        for (font, reference, _) in &fonts {
            named.pair(font.name(), *reference);
        }
        named.finish();
        resources.finish();
        written.finish();
        pdf.stream(place, content.finish().as_slice());
    }
    pdf.finish()
}

/// Pages that are being filled from above.
struct Paper {
    done: Vec<Content>,
    content: Content,
    y: f32,
}

impl Paper {
    fn new() -> Self {
        Self { done: Vec::new(), content: Content::new(), y: TOP }
    }

    fn finish(mut self) -> Vec<Content> {
        self.done.push(self.content);
        self.done
    }

    fn down(&mut self, by: f32) {
        self.y -= by;
    }

    /// Goes to the next page when so much does not fit on this one.
    fn need(&mut self, height: f32) {
        if self.y - height < BOTTOM && self.y < TOP {
            self.done.push(std::mem::replace(&mut self.content, Content::new()));
            self.y = TOP;
        }
    }

    fn line(&mut self, x: f32, size: f32, font: Font, tone: Tone, text: &str) {
        show(&mut self.content, (x, self.y), size, font, tone, text);
    }

    fn paragraph(&mut self, size: f32, font: Font, text: &str) {
        for line in wrap(text, WIDTH, size, font) {
            self.need(size * 1.4);
            self.down(size * 1.4);
            self.line(MARGIN, size, font, Tone::Ink, &line);
        }
        self.down(5.0);
    }
}

fn one(paper: &mut Paper, block: &Block) {
    match block {
        Block::Heading(text) => {
            // A heading stays with what follows.
            paper.need(90.0);
            paper.down(30.0);
            paper.line(MARGIN, 13.0, Font::Bold, Tone::Ink, text);
            paper.down(4.0);
        }
        Block::Text(text) => paper.paragraph(9.5, Font::Regular, text),
        Block::Code(text) => text.lines().for_each(|line| paper.paragraph(8.5, Font::Fixed, line)),
        Block::Headline(figures) => headline(paper, figures),
        Block::Table { head, rows } => table(paper, head, rows),
        Block::Plot(chart) => plot(paper, chart),
    }
}

fn headline(paper: &mut Paper, figures: &[(String, &'static str, Tone)]) {
    paper.need(50.0);
    paper.down(40.0);
    let mut x = MARGIN;
    let step = WIDTH / 6.0;
    for (value, what, tone) in figures {
        show(&mut paper.content, (x, paper.y + 12.0), 17.0, Font::Bold, *tone, value);
        show(&mut paper.content, (x, paper.y), 7.5, Font::Regular, Tone::Muted, what);
        x += step;
    }
}

const CELL: f32 = 7.5;
const CELL_LINE: f32 = 9.5;

fn table(paper: &mut Paper, head: &[(&'static str, u8)], rows: &[Vec<String>]) {
    let widths: Vec<f32> = head.iter().map(|(_, width)| WIDTH * f32::from(*width) / 100.0).collect();
    if head.iter().any(|(name, _)| !name.is_empty()) {
        paper.need(40.0);
        let cells: Vec<String> = head.iter().map(|(name, _)| (*name).to_owned()).collect();
        cells_of(paper, &widths, &cells, Font::Bold, Tone::Muted);
    }
    for row in rows {
        cells_of(paper, &widths, row, Font::Regular, Tone::Ink);
    }
    paper.down(6.0);
}

fn cells_of(paper: &mut Paper, widths: &[f32], cells: &[String], font: Font, tone: Tone) {
    let wrapped: Vec<Vec<String>> =
        cells.iter().zip(widths).map(|(cell, width)| wrap(cell, width - 8.0, CELL, font)).collect();
    let lines = wrapped.iter().map(Vec::len).max().unwrap_or(1).max(1);
    for line in 0..lines {
        // A row that is longer than a page goes on with the next one; any other stays together.
        let left = if line == 0 { (lines.min(60)) as u16 } else { 1 };
        paper.need(CELL_LINE * f32::from(left) + 4.0);
        paper.down(CELL_LINE);
        let mut x = MARGIN;
        for (cell, width) in wrapped.iter().zip(widths) {
            if let Some(text) = cell.get(line) {
                let tone = match text.as_str() {
                    "shown" => Tone::Good,
                    "not met" => Tone::Bad,
                    "not exercised" => Tone::Muted,
                    _ => tone,
                };
                show(&mut paper.content, (x, paper.y), CELL, font, tone, text);
            }
            x += width;
        }
    }
    paper.down(3.5);
    stroke(&mut paper.content, (MARGIN, paper.y), (MARGIN + WIDTH, paper.y), Tone::Grid);
    paper.down(1.5);
}

fn plot(paper: &mut Paper, chart: &Chart) {
    paper.need(chart.height + 40.0);
    paper.down(20.0);
    paper.line(MARGIN, 9.0, Font::Bold, Tone::Ink, &chart.title);
    paper.down(6.0);
    let top = paper.y;
    for mark in &chart.marks {
        match mark {
            Mark::Rect { x, y, width, height, tone } => {
                colour(&mut paper.content, *tone);
                paper.content.rect(MARGIN + x, top - y - height, *width, *height).fill_nonzero();
            }
            Mark::Line { from, to, tone } => {
                stroke(&mut paper.content, (MARGIN + from.0, top - from.1), (MARGIN + to.0, top - to.1), *tone);
            }
            Mark::Text { at, anchor, text, tone } => {
                let wide = measure(text, 8.0, Font::Regular);
                let x = match anchor {
                    Anchor::Start => at.0,
                    Anchor::Middle => at.0 - wide / 2.0,
                    Anchor::End => at.0 - wide,
                };
                show(&mut paper.content, (MARGIN + x, top - at.1), 8.0, Font::Regular, *tone, text);
            }
        }
    }
    paper.down(chart.height + 6.0);
}

fn rgb(tone: Tone) -> [f32; 3] {
    match tone {
        Tone::Ink => [0.106, 0.122, 0.141],
        Tone::Muted => [0.36, 0.4, 0.44],
        Tone::Grid => [0.83, 0.85, 0.87],
        Tone::Track => [0.925, 0.937, 0.949],
        Tone::Plain => [0.184, 0.435, 0.698],
        Tone::Good => [0.173, 0.49, 0.31],
        Tone::Warn => [0.702, 0.463, 0.102],
        Tone::Bad => [0.722, 0.208, 0.184],
    }
}

fn colour(content: &mut Content, tone: Tone) {
    let [red, green, blue] = rgb(tone);
    content.set_fill_rgb(red, green, blue);
}

fn stroke(content: &mut Content, from: (f32, f32), to: (f32, f32), tone: Tone) {
    let [red, green, blue] = rgb(tone);
    content.set_stroke_rgb(red, green, blue).set_line_width(0.5);
    content.move_to(from.0, from.1).line_to(to.0, to.1).stroke();
}

/// The fonts have what ASCII has; anything else is shown as a question mark.
fn printable(text: &str) -> Vec<u8> {
    text.chars()
        .map(|c| if c == ' ' || c.is_ascii_graphic() { u8::try_from(c).unwrap_or(b'?') } else { b'?' })
        .collect()
}

fn show(content: &mut Content, at: (f32, f32), size: f32, font: Font, tone: Tone, text: &str) {
    colour(content, tone);
    content.begin_text().set_font(font.name(), size).next_line(at.0, at.1).show(Str(&printable(text))).end_text();
}

fn measure(text: &str, size: f32, font: Font) -> f32 {
    let units: u32 = printable(text).into_iter().map(|byte| u32::from(width(font, byte))).sum();
    // Units are thousandths of the size; no line has 2^16 of them times 256.
    #[expect(clippy::cast_precision_loss, reason = "a length on paper")]
    let units = units as f32;
    units * size / 1_000.0
}

/// Lines that fit a width. A word that does not is broken where it has to be.
fn wrap(text: &str, width: f32, size: f32, font: Font) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        let joined = if line.is_empty() { word.to_owned() } else { format!("{line} {word}") };
        if measure(&joined, size, font) <= width {
            line = joined;
            continue;
        }
        if !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        for letter in word.chars() {
            line.push(letter);
            if measure(&line, size, font) > width && line.len() > 1 {
                line.pop();
                // Names of several words are broken between them.
                let end = line.rfind('_').map_or(line.len(), |place| place + 1);
                let rest = line.split_off(end);
                lines.push(std::mem::replace(&mut line, rest));
                line.push(letter);
            }
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_and_no_letter_is_lost() {
        let text = format!("some words and a digest {} and an end", "0123456789abcdef".repeat(8));
        for width in [1.0, 40.0, 300.0, 2_000.0] {
            let lines = wrap(&text, width, 9.0, Font::Regular);
            let held = |text: &str| text.chars().filter(|c| *c != ' ').collect::<String>();
            assert_eq!(held(&lines.join("")), held(&text));
            assert!(lines.iter().all(|line| line.chars().count() == 1 || measure(line, 9.0, Font::Regular) <= width));
        }
        assert_eq!(measure("mmmm", 10.0, Font::Fixed), 24.0);
        assert!(measure("W", 10.0, Font::Bold) > measure("i", 10.0, Font::Bold));
    }
}
