//! Names the failing case of a test that runs many.

use std::fmt::Write;
use std::thread;

/// Prints the case when a panic unwinds through it. Created by [`label!`](crate::label).
#[derive(Debug)]
pub struct Label(String);

impl Label {
    /// Creates a label of named values.
    pub fn new<const N: usize>(values: [(&str, &dyn std::fmt::Debug); N]) -> Self {
        let mut text = String::from("in the case");
        for (name, value) in values {
            // Writing to a string never fails.
            let _ = write!(text, " {name} = {value:?}");
        }
        Label(text)
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl Drop for Label {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

/// Until the end of the block, a panic prints the current values of these variables.
///
/// ```
/// for size in [0, 1, 4096] {
///     for late in [false, true] {
///         netsim::label!(size, late);
///         assert!(size <= 4096 || late); // "in the case size = 0 late = false"
///     }
/// }
/// ```
#[macro_export]
macro_rules! label {
    ($($value:ident),+ $(,)?) => {
        let _label = $crate::Label::new([$((stringify!($value), &$value)),+]);
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_label_has_the_names_and_the_values() {
        let (size, way) = (3, "stream");
        let label = crate::Label::new([("size", &size), ("way", &way)]);
        assert_eq!(label.text(), "in the case size = 3 way = \"stream\"");
    }

    #[test]
    fn panic_unwinds_through_a_label() {
        let failed = std::panic::catch_unwind(|| {
            for n in 0..3 {
                crate::label!(n);
                assert!(n < 1);
            }
        });
        assert!(failed.is_err());
    }
}
