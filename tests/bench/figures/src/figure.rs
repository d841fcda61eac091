//! A figure: its key, its meaning, its unit, and its bar.

/// The figures of one suite, and the conditions under which all of them are measured.
pub struct Suite {
    /// Its name on the command line.
    pub name: &'static str,
    /// What the page says above the table.
    pub conditions: &'static str,
    /// In the order of the page.
    pub figures: &'static [Figure],
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name in JSON, unique within its suite.
    pub key: &'static str,
    /// Of the values of Linux and of Isthmus; a ratio itself has none.
    pub unit: &'static str,
    /// What it is, in words that need no other row.
    pub meaning: &'static str,
    /// What it is held against.
    pub bar: Bar,
    /// Whether it is a ratio, and of what.
    pub of: Of,
}

/// What a figure is held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// It must not be exceeded.
    AtMost(f64),
    /// It must be reached.
    AtLeast(f64),
    /// It is reported only.
    None,
}

/// How a figure is made from what was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// It is the value of Isthmus.
    Isthmus,
    /// It is the value of Isthmus divided by that of Linux in the same run.
    Linux,
    /// It is the value of Isthmus divided by another, which the meaning names.
    Other,
}

impl Suite {
    /// The figure of a key.
    pub fn figure(&self, key: &str) -> Option<&'static Figure> {
        self.figures.iter().find(|figure| figure.key == key)
    }
}

impl Bar {
    /// Whether a value holds it.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Bar::AtMost(bar) => value <= bar,
            Bar::AtLeast(bar) => value >= bar,
            Bar::None => true,
        }
    }

    /// Its number.
    pub fn number(self) -> Option<f64> {
        match self {
            Bar::AtMost(bar) | Bar::AtLeast(bar) => Some(bar),
            Bar::None => None,
        }
    }

    /// Which side of it is good, as JSON has it.
    pub fn direction(self) -> Option<&'static str> {
        match self {
            Bar::AtMost(_) => Some("at most"),
            Bar::AtLeast(_) => Some("at least"),
            Bar::None => None,
        }
    }
}

impl Figure {
    /// A value of Isthmus, without a bar.
    pub(crate) const fn value(
        key: &'static str,
        unit: &'static str,
        meaning: &'static str,
    ) -> Figure {
        Figure { key, unit, meaning, bar: Bar::None, of: Of::Isthmus }
    }

    /// A ratio by Linux in the same run, without a bar.
    pub(crate) const fn by_linux(
        key: &'static str,
        unit: &'static str,
        meaning: &'static str,
    ) -> Figure {
        Figure { key, unit, meaning, bar: Bar::None, of: Of::Linux }
    }

    /// A ratio by something else, without a bar.
    pub(crate) const fn ratio(
        key: &'static str,
        unit: &'static str,
        meaning: &'static str,
    ) -> Figure {
        Figure { key, unit, meaning, bar: Bar::None, of: Of::Other }
    }

    /// With a bar that it must not exceed.
    pub(crate) const fn at_most(self, bar: f64) -> Figure {
        Figure { bar: Bar::AtMost(bar), ..self }
    }

    /// With a bar that it must reach.
    pub(crate) const fn at_least(self, bar: f64) -> Figure {
        Figure { bar: Bar::AtLeast(bar), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_a_good_side() {
        assert!(Bar::AtMost(2.0).holds(2.0) && !Bar::AtMost(2.0).holds(2.1));
        assert!(Bar::AtLeast(2.0).holds(2.0) && !Bar::AtLeast(2.0).holds(1.9));
        assert!(Bar::None.holds(f64::MAX));
        assert_eq!(Bar::AtLeast(2.0).direction(), Some("at least"));
    }
}
