//! Families of drivers and protocols that an image has, or has not.

use clap::Args;

/// One of them: a feature of the crate `image`.
struct Family {
    name: &'static str,
    /// Images have it unless told otherwise.
    by_default: bool,
}

/// All of them.
const FAMILIES: &[Family] = &[
    Family { name: "ntb", by_default: true },
    Family { name: "smc", by_default: true },
    Family { name: "remote", by_default: true },
    Family { name: "mirror", by_default: true },
    Family { name: "measure", by_default: true },
    // ConnectX: no card was seen yet, and it takes room that every machine would pay for.
    Family { name: "mlx5", by_default: false },
];

/// An image without any that can be left out, by the name that a suite asks for it.
pub const BARE: &str = "bare";

/// Which of them an image is to have.
#[derive(Args, Clone, Debug, Default)]
pub struct Families {
    /// Families that the image is to have besides the usual ones: mlx5
    #[arg(long, value_name = "FAMILY,...", value_delimiter = ',', value_parser = names())]
    with: Vec<String>,
    /// Families that it is to do without: ntb, smc (and rules with it), remote, mirror, measure
    #[arg(long, value_name = "FAMILY,...", value_delimiter = ',', value_parser = names())]
    without: Vec<String>,
}

fn names() -> clap::builder::PossibleValuesParser {
    FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>().into()
}

impl Families {
    /// The usual ones, and one more; or none, if that is what is asked for ([`BARE`]).
    pub fn and(name: &str) -> Self {
        if name == BARE {
            let without = FAMILIES.iter().map(|family| family.name.to_string()).collect();
            return Families { with: Vec::new(), without };
        }
        Families { with: vec![name.to_string()], without: Vec::new() }
    }

    /// Whether a driver is of a family that is not among these.
    pub fn lack(&self, driver: &str) -> bool {
        let is_known = FAMILIES.iter().any(|family| family.name == driver);
        is_known && !self.features().contains(&driver)
    }

    /// The features that these are. Who asks for a family both ways does without.
    pub fn features(&self) -> Vec<&'static str> {
        let named = |names: &[String], family: &Family| names.iter().any(|n| n == family.name);
        let has = |family: &&Family| {
            (family.by_default || named(&self.with, family)) && !named(&self.without, family)
        };
        FAMILIES.iter().filter(has).map(|family| family.name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_there_and_nothing_else() {
        const USUAL: [&str; 5] = ["ntb", "smc", "remote", "mirror", "measure"];
        assert_eq!(Families::default().features(), USUAL);
        assert_eq!(Families::and("mlx5").features(), [&USUAL[..], &["mlx5"]].concat());
        let without = vec!["mlx5".to_string(), "smc".to_string()];
        let some = Families { without, ..Families::and("mlx5") };
        assert_eq!(some.features(), ["ntb", "remote", "mirror", "measure"]);
        assert!(Families::and(BARE).features().is_empty());
        assert!(Families::default().lack("mlx5") && !Families::default().lack("igb"));
        assert!(!Families::and("mlx5").lack("mlx5"));
    }
}
