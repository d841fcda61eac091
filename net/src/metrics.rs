//! Writes metrics in the Prometheus text exposition format, version 0.0.4.
//!
//! A writer, not a registry: subsystems keep their numbers and write them on request. The samples of a family must be
//! contiguous, so a family borrows the writer until it is complete. Units are base units (seconds, bytes), named at the
//! end of the metric's name, before a counter's `_total`. A long page is written in pieces ([`Writer::resume`]), so
//! that no round takes long. Names are constants of the program: an invalid one panics.

use alloc::string::String;
use core::fmt::{Display, Error, Write};

/// Media type of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Labels of a sample: names and values.
pub type Labels<'a> = &'a [(&'static str, &'a dyn Display)];

/// The value of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A count.
    Integer(u64),
    /// Anything else.
    Float(f64),
}

impl From<u64> for Number {
    fn from(n: u64) -> Self {
        Number::Integer(n)
    }
}

impl From<f64> for Number {
    fn from(n: f64) -> Self {
        Number::Float(n)
    }
}

impl Display for Number {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Number::Integer(n) => write!(f, "{n}"),
            Number::Float(f64::INFINITY) => f.write_str("+Inf"),
            Number::Float(f64::NEG_INFINITY) => f.write_str("-Inf"),
            Number::Float(n) => write!(f, "{n}"),
        }
    }
}

/// Position in a page that is written in pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The last family that was begun.
    family: Option<&'static str>,
    /// Samples of it that are written; a histogram counts as one.
    samples: usize,
}

/// Writes to `out`, whose errors are passed on.
#[derive(Debug)]
pub struct Writer<W> {
    out: Counted<W>,
    /// Bytes after which the piece ends.
    room: usize,
    place: Place,
    /// Families are skipped until this one.
    resumes: Option<&'static str>,
}

impl<W: Write> Writer<W> {
    /// A writer of the whole page to `out`.
    pub fn new(out: W) -> Self {
        Self::resume(out, Place::default(), usize::MAX)
    }

    /// A writer of the next piece, of `room` bytes plus at most one sample. The caller writes all families again: the
    /// part before `place` is skipped, and an error ends the piece when it is full. With many samples, callers should
    /// use [`Family::pass`] to skip them.
    pub fn resume(out: W, place: Place, room: usize) -> Self {
        Writer { out: Counted { out, bytes: 0 }, room, place, resumes: place.family }
    }

    /// Where the piece ended, for the next one.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Begins a family of counters; its name ends in `_total`.
    pub fn counter(&mut self, name: &'static str, help: &str) -> Result<Family<'_, W>, Error> {
        assert!(name.ends_with("_total"), "a counter's name ends in _total: {name}");
        self.begin(name, help, "counter")
    }

    /// Begins a family of gauges.
    pub fn gauge(&mut self, name: &'static str, help: &str) -> Result<Family<'_, W>, Error> {
        self.begin(name, help, "gauge")
    }

    /// Begins a family of histograms.
    pub fn histogram(&mut self, name: &'static str, help: &str) -> Result<Histogram<'_, W>, Error> {
        Ok(Histogram(self.begin(name, help, "histogram")?))
    }

    fn begin(
        &mut self,
        name: &'static str,
        help: &str,
        kind: &str,
    ) -> Result<Family<'_, W>, Error> {
        if let Some(resumed) = self.resumes {
            let past = resumed != name;
            if !past {
                self.resumes = None;
            }
            let skip = if past { usize::MAX } else { self.place.samples };
            return Ok(Family { writer: self, name, skip, past });
        }
        if self.out.bytes >= self.room {
            return Err(Error);
        }
        assert!(is_name(name, ":"), "not a metric's name: {name}");
        write!(self.out, "# HELP {name} ")?;
        Escaped { out: &mut self.out, quotes: false }.write_str(help)?;
        writeln!(self.out, "\n# TYPE {name} {kind}")?;
        self.place = Place { family: Some(name), samples: 0 };
        Ok(Family { writer: self, name, skip: 0, past: false })
    }
}

/// A family of counters or gauges.
#[derive(Debug)]
pub struct Family<'a, W> {
    writer: &'a mut Writer<W>,
    name: &'static str,
    /// Samples in earlier pieces.
    skip: usize,
    past: bool,
}

impl<W: Write> Family<'_, W> {
    /// Whether the whole family is in an earlier piece, so that the caller need not collect its samples.
    pub fn is_past(&self) -> bool {
        self.past
    }

    /// Number of samples in earlier pieces, which the caller must skip from here on; `usize::MAX` means all.
    pub fn pass(&mut self) -> usize {
        if self.past { usize::MAX } else { core::mem::take(&mut self.skip) }
    }

    /// Writes one sample; no two of a family have the same labels.
    pub fn sample(
        &mut self,
        labels: Labels<'_>,
        value: impl Into<Number>,
    ) -> Result<&mut Self, Error> {
        if self.comes()? {
            self.line("", |out| write_labels(out, labels), None, value.into())?;
        }
        Ok(self)
    }

    /// Whether the next sample belongs to this piece. An error if the piece is full.
    fn comes(&mut self) -> Result<bool, Error> {
        if self.skip > 0 {
            self.skip -= usize::from(!self.past);
            return Ok(false);
        }
        if self.writer.out.bytes >= self.writer.room {
            return Err(Error);
        }
        self.writer.place.samples += 1;
        Ok(true)
    }

    fn line(
        &mut self,
        suffix: &str,
        labels: impl FnOnce(&mut Counted<W>) -> Result<char, Error>,
        bound: Option<Number>,
        value: Number,
    ) -> Result<(), Error> {
        let out = &mut self.writer.out;
        out.write_str(self.name)?;
        out.write_str(suffix)?;
        let mut before = labels(out)?;
        if let Some(bound) = bound {
            write!(out, "{before}le=\"{bound}\"")?;
            before = ',';
        }
        if before == ',' {
            out.write_char('}')?;
        }
        writeln!(out, " {value}")
    }
}

/// Writes labels without the closing brace. Returns the character that comes before the next label.
fn write_labels(out: &mut impl Write, labels: Labels<'_>) -> Result<char, Error> {
    let mut before = '{';
    for (name, label) in labels {
        assert!(is_name(name, ""), "not a label's name: {name}");
        write!(out, "{before}{name}=\"")?;
        write!(Escaped { out, quotes: true }, "{label}")?;
        out.write_char('"')?;
        before = ',';
    }
    Ok(before)
}

/// A family of histograms.
#[derive(Debug)]
pub struct Histogram<'a, W>(Family<'a, W>);

impl<W: Write> Histogram<'_, W> {
    /// As [`Family::pass`].
    pub fn pass(&mut self) -> usize {
        self.0.pass()
    }

    /// Writes one histogram. `buckets` has ascending upper bounds, each with the observations above the previous bound.
    /// `above` is the number of observations above the last bound, `sum` the sum of all observations.
    pub fn sample(
        &mut self,
        labels: Labels<'_>,
        buckets: impl IntoIterator<Item = (f64, u64)>,
        above: u64,
        sum: f64,
    ) -> Result<&mut Self, Error> {
        if !self.0.comes()? {
            return Ok(self);
        }
        // The same in each line, so they are written and escaped once.
        let mut written = String::new();
        let before = write_labels(&mut written, labels)?;
        let labels = |out: &mut Counted<W>| {
            out.write_str(&written)?;
            Ok(before)
        };
        let mut count = 0u64;
        for (bound, observations) in buckets.into_iter().chain([(f64::INFINITY, above)]) {
            count = count.wrapping_add(observations);
            self.0.line("_bucket", labels, Some(bound.into()), count.into())?;
        }
        self.0.line("_sum", labels, None, sum.into())?;
        self.0.line("_count", labels, None, count.into())?;
        Ok(self)
    }
}

/// Counts the bytes written.
#[derive(Debug)]
struct Counted<W> {
    out: W,
    bytes: usize,
}

impl<W: Write> Write for Counted<W> {
    fn write_str(&mut self, text: &str) -> Result<(), Error> {
        self.bytes += text.len();
        self.out.write_str(text)
    }
}

/// Whether `name` consists of letters, digits, `_` and characters of `more`, and does not begin with a digit.
fn is_name(name: &str, more: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || more.contains(c);
    !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(good)
}

/// Escapes special characters: backslash and line feed in help texts, in label values also quotes.
struct Escaped<'a, W> {
    out: &'a mut W,
    quotes: bool,
}

impl<W: Write> Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> Result<(), Error> {
        let quotes = self.quotes;
        if !text.bytes().any(|b| matches!(b, b'\\' | b'\n' | b'"')) {
            return self.out.write_str(text);
        }
        for part in text.split_inclusive(|c| c == '\\' || c == '\n' || (quotes && c == '"')) {
            let (plain, escaped) = match part.as_bytes().last() {
                Some(b'\\') => (part.len() - 1, "\\\\"),
                Some(b'\n') => (part.len() - 1, "\\n"),
                Some(b'"') if quotes => (part.len() - 1, "\\\""),
                _ => (part.len(), ""),
            };
            self.out.write_str(part.get(..plain).unwrap_or_default())?;
            self.out.write_str(escaped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    #[test]
    fn page_has_the_prometheus_text_format() {
        let mut text = String::new();
        let mut writer = Writer::new(&mut text);
        let mut family =
            writer.counter("isthmus_port_receive_bytes_total", "Bytes received.").unwrap();
        family.sample(&[("port", &0)], 12u64).unwrap().sample(&[("port", &1)], u64::MAX).unwrap();
        let mut family = writer.gauge("isthmus_up", "Back\\slash, \"quote\",\nline.").unwrap();
        family.sample(&[], 1.5).unwrap();
        family.sample(&[("a", &"x\\\"\n"), ("b", &"")], f64::NEG_INFINITY).unwrap();
        let mut family = writer.histogram("isthmus_io_seconds", "Time.").unwrap();
        family.sample(&[("disk", &"d")], [(0.001, 2), (0.5, 3)], 1, 2.25).unwrap();
        assert_eq!(
            text,
            r#"# HELP isthmus_port_receive_bytes_total Bytes received.
# TYPE isthmus_port_receive_bytes_total counter
isthmus_port_receive_bytes_total{port="0"} 12
isthmus_port_receive_bytes_total{port="1"} 18446744073709551615
# HELP isthmus_up Back\\slash, "quote",\nline.
# TYPE isthmus_up gauge
isthmus_up 1.5
isthmus_up{a="x\\\"\n",b=""} -Inf
# HELP isthmus_io_seconds Time.
# TYPE isthmus_io_seconds histogram
isthmus_io_seconds_bucket{disk="d",le="0.001"} 2
isthmus_io_seconds_bucket{disk="d",le="0.5"} 5
isthmus_io_seconds_bucket{disk="d",le="+Inf"} 6
isthmus_io_seconds_sum{disk="d"} 2.25
isthmus_io_seconds_count{disk="d"} 6
"#
        );
    }

    /// The value of the only label in `line`, and the rest of the line.
    fn read_label(line: &str) -> (String, &str) {
        let mut value = String::new();
        let start = line.find("=\"").unwrap() + 2;
        let mut chars = line[start..].char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => return (value, &line[start + at + 1..]),
                '\\' => match chars.next().unwrap().1 {
                    'n' => value.push('\n'),
                    c => value.push(c),
                },
                c => value.push(c),
            }
        }
        panic!("no end of the label in {line}");
    }

    proptest! {
        #[test]
        fn any_label_and_value_can_be_read_back(label: String, value: f64) {
            let mut text = String::new();
            let mut writer = Writer::new(&mut text);
            writer.gauge("x", "").unwrap().sample(&[("l", &label)], value).unwrap();
            let lines: Vec<&str> = text.split('\n').collect();
            prop_assert_eq!(lines.len(), 4);
            let (read, rest) = read_label(lines[2]);
            prop_assert_eq!(read, label);
            let number: f64 = rest.strip_prefix("} ").unwrap().parse().unwrap();
            prop_assert!(number == value || number.is_nan() && value.is_nan());
        }
    }

    /// A page of families with few samples, many, and histograms.
    fn page(sizes: &[usize], writer: &mut Writer<&mut String>) -> Result<(), Error> {
        const NAMES: [&str; 4] = ["a", "b_total", "c", "d"];
        for (&name, &size) in NAMES.iter().zip(sizes) {
            if name == "d" {
                let mut family = writer.histogram(name, "Help.")?;
                for i in family.pass().min(size)..size {
                    family.sample(&[("i", &i)], [(0.5, 1)], 1, 1.0)?;
                }
                continue;
            }
            let mut family = match name.ends_with("_total") {
                true => writer.counter(name, "Help.")?,
                false => writer.gauge(name, "Help.")?,
            };
            // Callers with few samples need not call `pass`.
            for i in if name == "c" { family.pass().min(size) } else { 0 }..size {
                family.sample(&[("i", &i)], i as u64)?;
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn pieces_make_the_whole_page(
            sizes in proptest::collection::vec(0usize..30, 4), room in 1usize..400,
        ) {
            let mut whole = String::new();
            page(&sizes, &mut Writer::new(&mut whole)).unwrap();
            let (mut pieces, mut place) = (String::new(), Place::default());
            for _ in 0..1000 {
                let mut piece = String::new();
                let mut writer = Writer::resume(&mut piece, place, room);
                let ended = page(&sizes, &mut writer).is_ok();
                place = writer.place();
                prop_assert!(piece.len() < room + 200, "{}", piece.len());
                pieces += &piece;
                if ended {
                    break;
                }
            }
            prop_assert_eq!(pieces, whole);
        }
    }

    #[test]
    #[should_panic(expected = "_total")]
    fn counter_without_total_panics() {
        let _ = Writer::new(String::new()).counter("isthmus_frames", "");
    }
}
