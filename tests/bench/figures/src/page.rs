//! `docs/figures.md`: a table for each suite.

use std::fmt::Write as _;

use crate::figure::{Bar, Figure, Of, Suite};
use crate::number;
use crate::picture::Picture;
use crate::recorded::{Measured, Recorded};
use crate::{SUITES, pictures};

const HEAD: &str = "\
# Figures

`./isthmus bench --all` measures all of these and renders this page, `./isthmus bench --render` renders it from \
[figures.json](figures.json) without measuring. Each row has the commit at which it was measured last; `+` behind it marks a \
working tree with changes.

Instructions of a virtual machine are counted by a QEMU plugin under TCG, those of a host program by callgrind. Neither is a \
time: no figure here was measured on real hardware. A ratio is Isthmus divided by Linux in the same run, or by the value that the meaning names. \
A column of Linux or Isthmus is empty if the last run recorded only the ratio.

Unless a meaning says otherwise, the appliance runs with `system.idle_after_us=0`: a loop halts as soon as it is idle, \
as Linux does. With the shipped value, 100, it polls before it halts, and polling is counted. Instructions that a server \
executes while it is idle are subtracted from the cost of its work.
";

/// The page.
pub fn page(recorded: &Recorded) -> String {
    let mut text = String::from(HEAD);
    for picture in pictures::PICTURES.iter().filter(|picture| picture.is_drawn(recorded)) {
        let Picture { name, title, .. } = picture;
        let _ = write!(text, "\n![{title}](pictures/{name}.svg)\n");
    }
    for suite in SUITES {
        let _ = write!(text, "\n## {}\n\n{}\n", suite.name, suite.conditions);
        table(&mut text, suite, recorded);
    }
    text
}

fn table(text: &mut String, suite: &Suite, recorded: &Recorded) {
    text.push_str("\n| meaning | unit | Linux | Isthmus | ratio | bar | commit | key |\n");
    text.push_str("|---|---|--:|--:|--:|--:|---|---|\n");
    for figure in suite.figures {
        let Some(measured) = recorded.get(suite.name, figure.key) else { continue };
        let Figure { key, unit, meaning, bar, .. } = figure;
        let [linux, ours, ratio] = values(figure, measured);
        let (bar, commit) = (limit(*bar, measured.value), &measured.commit);
        let _ = writeln!(
            text,
            "| {meaning} | {unit} | {linux} | {ours} | {ratio} | {bar} | {commit} | `{key}` |"
        );
    }
}

/// The cells of Linux, Isthmus and the ratio.
pub fn values(figure: &Figure, measured: &Measured) -> [String; 3] {
    let cell = |value: Option<f64>| value.map_or(String::new(), number::shown);
    let ratio = (figure.of != Of::Isthmus).then_some(measured.value);
    [cell(measured.linux), cell(measured.isthmus(figure)), cell(ratio)]
}

fn limit(bar: Bar, value: f64) -> String {
    let text = match bar {
        Bar::AtMost(bar) => format!("≤ {}", number::bar(bar)),
        Bar::AtLeast(bar) => format!("≥ {}", number::bar(bar)),
        Bar::None => String::new(),
    };
    if bar.holds(value) { text } else { format!("**missed:** {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_has_values_bar_and_commit() {
        let mut recorded = Recorded::default();
        let measured = Measured {
            value: 0.0951,
            linux: Some(83_000.0),
            ours: Some(7_893.0),
            commit: "abc".into(),
            date: "2026-11-28".into(),
        };
        recorded.set("rnbd", "read4k_qd32_ratio", measured);
        let image = Measured { value: 7e6, commit: "abd+".into(), ..Measured::default() };
        recorded.set("boot", "image_bytes", image);
        let page = page(&recorded);
        let row = "| a 4 KiB read at the server, 32 in flight | instructions | 83,000 | 7,893 | 0.095 | ≤ 0.1 | abc | \
                   `read4k_qd32_ratio` |\n";
        assert!(page.contains(row), "{page}");
        let row = "| bytes |  | 7,000,000 |  | **missed:** ≤ 6,291,456 | abd+ | `image_bytes` |\n";
        assert!(page.contains(row), "{page}");
        assert!(!page.contains("`boot_seconds` |"), "{page}");
    }
}
