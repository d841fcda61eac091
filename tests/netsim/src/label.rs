//! The name of the case that fails, where one test goes through many.

use std::fmt::Write;
use std::thread;

/// Says which case it is when a panic passes it. Made by [`label!`](crate::label).
#[derive(Debug)]
pub struct Label(String);

impl Label {
    /// Of values by their names.
    pub fn new<const N: usize>(values: [(&str, &dyn std::fmt::Debug); N]) -> Self {
        let mut text = String::from("in the case");
        for (name, value) in values {
            // A string takes everything.
            let _ = write!(text, " {name} = {value:?}");
        }
        Label(text)
    }

    /// What it says.
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

/// From here to the end of the block, a panic tells the values of these variables, as they are now.
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
    fn a_panic_passes_it() {
        let failed = std::panic::catch_unwind(|| {
            for n in 0..3 {
                crate::label!(n);
                assert!(n < 1);
            }
        });
        assert!(failed.is_err());
    }
}
