//! The report as one page: no scripts, nothing from elsewhere, light and dark, and good on paper.

use crate::chart::{Anchor, Chart, Mark, Tone, WIDTH};
use crate::document::{Block, Document};
use std::fmt::Write as _;

const STYLE: &str = "
:root { color-scheme: light dark; --paper: #fdfdfc; --ink: #1b1f24; --muted: #5c6670; --grid: #dfe3e8; --track: #eceff2;
  --plain: #2f6fb2; --good: #2c7d4f; --warn: #b3761a; --bad: #b8352f; }
@media (prefers-color-scheme: dark) { :root { --paper: #15181c; --ink: #e7eaee; --muted: #98a2ad; --grid: #343a42;
  --track: #272c33; --plain: #6ea8e4; --good: #5cb885; --warn: #dca550; --bad: #ef7a73; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 60rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; } .sub { color: var(--muted); margin: .3rem 0 1.6rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; padding-top: .9rem; border-top: 1px solid var(--grid); }
p { margin: .6rem 0; max-width: 46rem; }
dl.headline { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .8rem; margin: 0; }
dl.headline div { border: 1px solid var(--grid); border-radius: .5rem; padding: .7rem .9rem; display: flex; flex-direction: column-reverse; justify-content: flex-end; }
dl.headline dd { margin: 0; font-size: 1.55rem; font-weight: 650; font-variant-numeric: tabular-nums; } dl.headline dt { color: var(--muted); font-size: .82rem; }
figure { margin: 1.2rem 0; } figcaption { font-weight: 600; font-size: .92rem; margin-bottom: .4rem; }
svg { width: 100%; max-width: 46rem; height: auto; display: block; font: 9px system-ui, Helvetica, Arial, sans-serif; }
.table { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .84rem; line-height: 1.4; margin: .8rem 0; }
th { text-align: left; color: var(--muted); font-weight: 600; } th, td { padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--grid); vertical-align: top; overflow-wrap: anywhere; }
pre { background: var(--track); padding: .8rem 1rem; border-radius: .5rem; overflow-x: auto; font-size: .86rem; }
.finding-shown { color: var(--good); font-weight: 600; } .finding-not-met { color: var(--bad); font-weight: 600; } .finding-not-exercised { color: var(--muted); }
footer { margin-top: 3rem; color: var(--muted); font-size: .84rem; }
@media print { :root { color-scheme: light; --paper: #fff; --ink: #000; --muted: #444; --grid: #bbb; --track: #e8e8e8; --plain: #2f6fb2; --good: #2c7d4f; --warn: #b3761a; --bad: #b8352f; }
  body { padding: 0; max-width: none; font-size: 10.5pt; } h2 { break-after: avoid; } figure, tr { break-inside: avoid; } pre { white-space: pre-wrap; } }
";

pub(crate) fn html(document: &Document) -> String {
    let mut page = String::from("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    // Nothing is loaded and nothing runs, whatever would come to stand in it.
    page.push_str(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n",
    );
    page.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    put(
        &mut page,
        format_args!("<title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n", escape(&document.title)),
    );
    put(
        &mut page,
        format_args!("<h1>{}</h1>\n<p class=\"sub\">{}</p>\n", escape(&document.title), escape(&document.subtitle)),
    );
    for block in &document.blocks {
        one(&mut page, block);
    }
    put(&mut page, format_args!("<footer>{}</footer>\n</body>\n</html>\n", escape(&document.footer)));
    page
}

/// Writing into a string cannot fail.
fn put(page: &mut String, piece: std::fmt::Arguments<'_>) {
    let _written = page.write_fmt(piece);
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn one(page: &mut String, block: &Block) {
    match block {
        Block::Heading(text) => put(page, format_args!("<h2>{}</h2>\n", escape(text))),
        Block::Text(text) => put(page, format_args!("<p>{}</p>\n", escape(text))),
        Block::Code(text) => put(page, format_args!("<pre>{}</pre>\n", escape(text))),
        Block::Headline(figures) => {
            page.push_str("<dl class=\"headline\">\n");
            for (value, what, tone) in figures {
                let (value, what, tone) = (escape(value), escape(what), colour(*tone));
                put(page, format_args!("<div><dt>{what}</dt><dd style=\"color:{tone}\">{value}</dd></div>\n"));
            }
            page.push_str("</dl>\n");
        }
        Block::Table { head, rows } => table(page, head, rows),
        Block::Plot(chart) => plot(page, chart),
    }
}

fn table(page: &mut String, head: &[(&str, u8)], rows: &[Vec<String>]) {
    page.push_str("<div class=\"table\"><table>\n");
    if head.iter().any(|(name, _)| !name.is_empty()) {
        page.push_str("<thead><tr>");
        head.iter()
            .for_each(|(name, width)| put(page, format_args!("<th style=\"width:{width}%\">{}</th>", escape(name))));
        page.push_str("</tr></thead>\n");
    }
    page.push_str("<tbody>\n");
    for row in rows {
        page.push_str("<tr>");
        for cell in row {
            match cell.as_str() {
                "shown" | "not met" | "not exercised" => {
                    put(page, format_args!("<td class=\"finding-{}\">{cell}</td>", cell.replace(' ', "-")));
                }
                _ => put(page, format_args!("<td>{}</td>", escape(cell).replace('_', "_<wbr>"))),
            }
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table></div>\n");
}

fn colour(tone: Tone) -> &'static str {
    match tone {
        Tone::Ink => "var(--ink)",
        Tone::Muted => "var(--muted)",
        Tone::Grid => "var(--grid)",
        Tone::Track => "var(--track)",
        Tone::Plain => "var(--plain)",
        Tone::Good => "var(--good)",
        Tone::Warn => "var(--warn)",
        Tone::Bad => "var(--bad)",
    }
}

fn plot(page: &mut String, chart: &Chart) {
    let (title, says) = (escape(&chart.title), escape(chart.says.trim_end()));
    put(page, format_args!("<figure><figcaption>{title}</figcaption>\n"));
    put(
        page,
        format_args!("<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{title}. {says}\">\n", chart.height),
    );
    for mark in &chart.marks {
        match mark {
            Mark::Rect { x, y, width, height, tone } => {
                let fill = colour(*tone);
                put(
                    page,
                    format_args!(
                        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" style=\"fill:{fill}\"/>\n"
                    ),
                );
            }
            Mark::Line { from, to, tone } => {
                let stroke = colour(*tone);
                put(
                    page,
                    format_args!(
                        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" style=\"stroke:{stroke}\"/>\n",
                        from.0, from.1, to.0, to.1
                    ),
                );
            }
            Mark::Text { at, anchor, text, tone } => {
                let anchor = match anchor {
                    Anchor::Start => "start",
                    Anchor::Middle => "middle",
                    Anchor::End => "end",
                };
                let (fill, text) = (colour(*tone), escape(text));
                put(
                    page,
                    format_args!(
                        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" style=\"fill:{fill}\">{text}</text>\n",
                        at.0, at.1
                    ),
                );
            }
        }
    }
    page.push_str("</svg></figure>\n");
}
