//! A figure: its key, its meaning, its unit, and its bar.

/// The figures of one suite, and the conditions of their measurement.
pub struct Suite {
    /// Its name on the command line.
    pub name: &'static str,
    /// Text of the page above the table.
    pub conditions: &'static str,
    /// The figures in the order of the page.
    pub figures: &'static [Figure],
}

/// A measured figure.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name in JSON, unique within its suite.
    pub key: &'static str,
    /// Unit of the values of Linux and Isthmus; a ratio itself has no unit.
    pub unit: &'static str,
    /// Meaning, understandable without other rows.
    pub meaning: &'static str,
    /// Its limit.
    pub bar: Bar,
    /// Whether it is a ratio, and to which divisor.
    pub of: Of,
}

/// Limit of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bar {
    /// Upper limit.
    AtMost(f64),
    /// Lower limit.
    AtLeast(f64),
    /// No limit: the figure is only reported.
    None,
}

/// How a figure is computed from the measured values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// The value of Isthmus.
    Isthmus,
    /// The value of Isthmus divided by that of Linux in the same run.
    Linux,
    /// The value of Isthmus divided by another one, which the meaning names.
    Other,
}

impl Suite {
    /// The figure of a key.
    pub fn figure(&self, key: &str) -> Option<&'static Figure> {
        self.figures.iter().find(|figure| figure.key == key)
    }
}

impl Bar {
    /// Whether a value is within the limit.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Bar::AtMost(bar) => value <= bar,
            Bar::AtLeast(bar) => value >= bar,
            Bar::None => true,
        }
    }

    /// Number of the limit.
    pub fn number(self) -> Option<f64> {
        match self {
            Bar::AtMost(bar) | Bar::AtLeast(bar) => Some(bar),
            Bar::None => None,
        }
    }

    /// Direction of the limit, as in JSON.
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

    /// A ratio to Linux in the same run, without a bar.
    pub(crate) const fn by_linux(
        key: &'static str,
        unit: &'static str,
        meaning: &'static str,
    ) -> Figure {
        Figure { key, unit, meaning, bar: Bar::None, of: Of::Linux }
    }

    /// A ratio to another value, without a bar.
    pub(crate) const fn ratio(
        key: &'static str,
        unit: &'static str,
        meaning: &'static str,
    ) -> Figure {
        Figure { key, unit, meaning, bar: Bar::None, of: Of::Other }
    }

    /// With an upper limit.
    pub(crate) const fn at_most(self, bar: f64) -> Figure {
        Figure { bar: Bar::AtMost(bar), ..self }
    }

    /// With a lower limit.
    pub(crate) const fn at_least(self, bar: f64) -> Figure {
        Figure { bar: Bar::AtLeast(bar), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_accepts_values_on_its_good_side() {
        assert!(Bar::AtMost(2.0).holds(2.0) && !Bar::AtMost(2.0).holds(2.1));
        assert!(Bar::AtLeast(2.0).holds(2.0) && !Bar::AtLeast(2.0).holds(1.9));
        assert!(Bar::None.holds(f64::MAX));
        assert_eq!(Bar::AtLeast(2.0).direction(), Some("at least"));
    }
}
