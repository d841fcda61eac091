//! The optional families of drivers and protocols of an image.

use clap::Args;

/// A family: a feature of the crate `image`.
struct Family {
    name: &'static str,
    /// Whether images have it by default.
    by_default: bool,
}

/// All families.
const FAMILIES: &[Family] = &[
    Family { name: "ntb", by_default: true },
    Family { name: "smc", by_default: true },
    Family { name: "remote", by_default: true },
    Family { name: "mirror", by_default: true },
    Family { name: "measure", by_default: true },
    // ConnectX: not yet tried on a real card, and it would enlarge the image of every machine.
    Family { name: "mlx5", by_default: false },
];

/// The name by which a suite requests an image without any family.
pub const BARE: &str = "bare";

/// The families that are selected for an image.
#[derive(Args, Clone, Debug, Default)]
pub struct Families {
    /// Families to add to the default ones: mlx5
    #[arg(long, value_name = "FAMILY,...", value_delimiter = ',', value_parser = names())]
    with: Vec<String>,
    /// Families to leave out: ntb, smc (and rules with it), remote, mirror, measure
    #[arg(long, value_name = "FAMILY,...", value_delimiter = ',', value_parser = names())]
    without: Vec<String>,
}

fn names() -> clap::builder::PossibleValuesParser {
    FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>().into()
}

impl Families {
    /// The default families and `name`; no family at all for [`BARE`].
    pub fn and(name: &str) -> Self {
        if name == BARE {
            let without = FAMILIES.iter().map(|family| family.name.to_string()).collect();
            return Families { with: Vec::new(), without };
        }
        Families { with: vec![name.to_string()], without: Vec::new() }
    }

    /// Whether a driver belongs to a family that is not selected.
    pub fn lack(&self, driver: &str) -> bool {
        let is_known = FAMILIES.iter().any(|family| family.name == driver);
        is_known && !self.features().contains(&driver)
    }

    /// The features of the selected families. `without` takes precedence over `with`.
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
    fn features_are_the_default_and_added_families_without_the_left_out() {
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
