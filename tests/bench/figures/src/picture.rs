//! A picture: lines of recorded figures over two axes, as SVG with its own background, so that it is readable on light
//! and on dark pages.

use std::fmt::Write as _;

use crate::number;
use crate::recorded::Recorded;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
/// Of the plot: left, top, right, bottom.
const LEFT: f64 = 96.0;
const TOP: f64 = 56.0;
const RIGHT: f64 = WIDTH - 24.0;
const BOTTOM: f64 = HEIGHT - 62.0;
const COLORS: [&str; 4] = ["#1f5f8b", "#b4531f", "#3d7a3a", "#6d4c9f"];

/// A picture.
pub struct Picture {
    /// Name of its file in `docs/pictures`, without `.svg`.
    pub name: &'static str,
    pub title: &'static str,
    pub x: Axis,
    pub y: Axis,
    pub lines: &'static [Line],
}

pub struct Axis {
    pub label: &'static str,
    pub scale: Scale,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    /// From 0.
    Linear,
    /// Logarithmic with base two.
    Doubling,
    /// Logarithmic with base ten.
    Decades,
}

pub struct Line {
    pub name: &'static str,
    /// The value of a figure that its points show.
    pub side: Side,
    pub points: &'static [Point],
}

#[derive(Clone, Copy)]
pub enum Side {
    /// The figure itself.
    Figure,
    /// The value of Isthmus.
    Isthmus,
    /// The value of Linux.
    Linux,
}

pub struct Point {
    pub x: f64,
    /// Suite and key of its figure.
    pub figure: Option<(&'static str, &'static str)>,
    /// Without a figure: its value by definition.
    constant: f64,
}

impl Point {
    /// A point whose value is a figure.
    pub const fn of(x: f64, suite: &'static str, key: &'static str) -> Point {
        Point { x, figure: Some((suite, key)), constant: 0.0 }
    }

    /// A point whose value is constant by definition.
    pub const fn constant(x: f64, y: f64) -> Point {
        Point { x, figure: None, constant: y }
    }

    fn y(&self, side: Side, recorded: &Recorded) -> Option<f64> {
        let Some((suite, key)) = self.figure else { return Some(self.constant) };
        let measured = recorded.get(suite, key)?;
        match side {
            Side::Figure => Some(measured.value),
            Side::Isthmus => measured.ours,
            Side::Linux => measured.linux,
        }
    }
}

impl Line {
    /// The measured points, if there are enough for a line.
    fn measured(&self, recorded: &Recorded) -> Option<Vec<(f64, f64)>> {
        let points = self.points.iter();
        let points: Vec<(f64, f64)> =
            points.filter_map(|point| Some((point.x, point.y(self.side, recorded)?))).collect();
        (points.len() > 1).then_some(points)
    }
}

/// An axis with its range of values.
struct Range {
    scale: Scale,
    from: f64,
    to: f64,
    marks: Vec<f64>,
}

impl Range {
    fn of(scale: Scale, values: impl Iterator<Item = f64> + Clone) -> Range {
        let most = values.clone().fold(f64::MIN_POSITIVE, f64::max);
        let least = values.fold(most, f64::min);
        let marks: Vec<f64> = match scale {
            Scale::Linear => {
                let step = step(most);
                let count = (most / step).ceil() as usize;
                (0..=count).map(|mark| mark as f64 * step).collect()
            }
            Scale::Doubling => powers(2.0, least, most),
            Scale::Decades => powers(10.0, least, most),
        };
        let (from, to) = (marks.first().copied(), marks.last().copied());
        Range { scale, from: from.unwrap_or(0.0), to: to.unwrap_or(1.0), marks }
    }

    /// Position of a value, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let of = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Doubling | Scale::Decades => value.ln(),
        };
        let (from, to) = (of(self.from), of(self.to));
        if to > from { (of(value) - from) / (to - from) } else { 0.5 }
    }
}

/// The powers of a base from the largest not above `least` to the smallest not below `most`.
fn powers(base: f64, least: f64, most: f64) -> Vec<f64> {
    let log = |value: f64| value.ln() / base.ln();
    // Tolerates rounding of the logarithm of an exact power.
    let (first, last) = ((log(least) + 1e-9).floor() as i32, (log(most) - 1e-9).ceil() as i32);
    (first..=last).map(|power| base.powi(power)).collect()
}

/// Distance of marks: one, two or five times a power of ten, so that there are four to nine marks up to `most`.
fn step(most: f64) -> f64 {
    let decade = 10f64.powf(most.log10().floor());
    let steps = [0.1, 0.2, 0.5, 1.0].map(|part| part * decade);
    steps.into_iter().find(|step| most / step <= 9.0).unwrap_or(decade)
}

fn across(range: &Range, x: f64) -> f64 {
    LEFT + range.place(x) * (RIGHT - LEFT)
}

fn up(range: &Range, y: f64) -> f64 {
    BOTTOM - range.place(y) * (BOTTOM - TOP)
}

impl Picture {
    /// Whether a line has enough measured points.
    pub fn is_drawn(&self, recorded: &Recorded) -> bool {
        self.lines.iter().any(|line| line.measured(recorded).is_some())
    }

    /// Renders the measured points.
    pub fn svg(&self, recorded: &Recorded) -> String {
        let lines = self.lines.iter();
        let lines: Vec<(&str, Vec<(f64, f64)>)> =
            lines.filter_map(|line| Some((line.name, line.measured(recorded)?))).collect();
        let points = || lines.iter().flat_map(|(_, points)| points);
        let x = Range::of(self.x.scale, points().map(|point| point.0));
        let y = Range::of(self.y.scale, points().map(|point| point.1));
        let mut svg = String::new();
        self.frame(&mut svg);
        self.axes(&mut svg, &x, &y);
        for ((name, points), (number, color)) in lines.iter().zip(COLORS.iter().enumerate()) {
            draw(&mut svg, points, color, &x, &y);
            legend(&mut svg, name, color, number);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn frame(&self, svg: &mut String) {
        let _ = writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
             role=\"img\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"13\">\n\
             <title>{}</title>\n\
             <rect x=\"1\" y=\"1\" width=\"{}\" height=\"{}\" rx=\"10\" fill=\"#f7f9fb\" stroke=\"#b8c4ce\" stroke-width=\"2\"/>\n\
             <text x=\"{}\" y=\"26\" text-anchor=\"middle\" font-size=\"15\" font-weight=\"bold\" fill=\"#1c2b36\">{}</text>",
            self.title,
            WIDTH - 2.0,
            HEIGHT - 2.0,
            WIDTH / 2.0,
            self.title,
        );
    }

    fn axes(&self, svg: &mut String, x: &Range, y: &Range) {
        svg.push_str("<g stroke=\"#d5dde4\" fill=\"none\">\n");
        for mark in &y.marks {
            let at = up(y, *mark);
            let _ = writeln!(svg, "<path d=\"M{LEFT} {at:.1} H{RIGHT}\"/>");
        }
        let _ = writeln!(svg, "<path stroke=\"#37546d\" d=\"M{LEFT} {TOP} V{BOTTOM} H{RIGHT}\"/>");
        svg.push_str("</g>\n<g fill=\"#1c2b36\">\n");
        for mark in &y.marks {
            let (at, text) = (up(y, *mark) + 4.5, number::bar(*mark));
            let left = LEFT - 8.0;
            let _ =
                writeln!(svg, "<text x=\"{left}\" y=\"{at:.1}\" text-anchor=\"end\">{text}</text>");
        }
        for mark in &x.marks {
            let (at, text) = (across(x, *mark), number::bar(*mark));
            let below = BOTTOM + 18.0;
            let _ = writeln!(
                svg,
                "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{text}</text>"
            );
        }
        let (middle, below) = ((LEFT + RIGHT) / 2.0, BOTTOM + 38.0);
        let _ = writeln!(
            svg,
            "<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">{}</text>",
            self.x.label
        );
        let middle = (TOP + BOTTOM) / 2.0;
        let _ = writeln!(
            svg,
            "<text transform=\"translate(20 {middle}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n</g>",
            self.y.label
        );
    }
}

fn draw(svg: &mut String, points: &[(f64, f64)], color: &str, x: &Range, y: &Range) {
    let places: Vec<String> = points
        .iter()
        .map(|point| format!("{:.1},{:.1}", across(x, point.0), up(y, point.1)))
        .collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2.5\"/>",
        places.join(" ")
    );
    for point in points {
        let (x, y) = (across(x, point.0), up(y, point.1));
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{color}\"/>");
    }
}

/// Draws the name of a line. Names are beside each other above the plot.
fn legend(svg: &mut String, name: &str, color: &str, number: usize) {
    let (left, middle) = (LEFT + 8.0 + number as f64 * 205.0, TOP - 14.0);
    let (end, text) = (left + 18.0, left + 24.0);
    let base = middle + 4.5;
    let _ = writeln!(
        svg,
        "<path d=\"M{left} {middle} H{end}\" stroke=\"{color}\" stroke-width=\"2.5\"/>\n\
         <text x=\"{text}\" y=\"{base}\" fill=\"#1c2b36\">{name}</text>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded::Measured;

    const PICTURE: Picture = Picture {
        name: "p",
        title: "a title",
        x: Axis { label: "things", scale: Scale::Doubling },
        y: Axis { label: "cost", scale: Scale::Linear },
        lines: &[
            Line {
                name: "first",
                side: Side::Figure,
                points: &[Point::constant(1.0, 1.0), Point::of(4.0, "boot", "boot_seconds")],
            },
            Line {
                name: "second",
                side: Side::Linux,
                points: &[Point::constant(1.0, 1.0), Point::of(4.0, "boot", "boot_seconds")],
            },
        ],
    };

    #[test]
    fn measured_points_are_drawn() {
        let mut recorded = Recorded::default();
        assert!(!PICTURE.is_drawn(&recorded));
        recorded.set("boot", "boot_seconds", Measured { value: 2.0, ..Measured::default() });
        assert!(PICTURE.is_drawn(&recorded));
        let svg = PICTURE.svg(&recorded);
        assert!(svg.contains("points=\"96.0,197.0 696.0,56.0\""), "{svg}");
        assert!(svg.contains(">first<") && !svg.contains(">second<"), "{svg}");
    }

    #[test]
    fn marks_are_round_numbers_around_all_values() {
        let marks = |scale, values: &[f64]| Range::of(scale, values.iter().copied()).marks;
        assert_eq!(marks(Scale::Doubling, &[4.0, 100.0]), [4.0, 8.0, 16.0, 32.0, 64.0, 128.0]);
        assert_eq!(marks(Scale::Decades, &[2_000.0, 90_000.0]), [1e3, 1e4, 1e5]);
        assert_eq!(marks(Scale::Linear, &[0.0, 1000.0]), [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]);
        assert_eq!(marks(Scale::Linear, &[1.0, 1.08]).len(), 7);
    }
}
