//! The table of all figures, a file for each suite.

mod boot;
mod metal;
mod mlx5;
mod ntrdma;
mod riocm;
mod rnbd;
mod roce;
mod rtrs_client;
mod scale;
mod smcr;
mod usnic;

use crate::figure::Suite;

/// All suites, in the order of the page.
pub const SUITES: &[&Suite] = &[
    &boot::SUITE,
    &roce::SUITE,
    &rnbd::SUITE,
    &rtrs_client::SUITE,
    &smcr::SUITE,
    &scale::SUITE,
    &ntrdma::SUITE,
    &usnic::SUITE,
    &riocm::SUITE,
    &metal::SUITE,
    &mlx5::SUITE,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn keys_are_unique_within_a_suite() {
        for suite in SUITES {
            let keys: BTreeSet<&str> = suite.figures.iter().map(|figure| figure.key).collect();
            assert_eq!(keys.len(), suite.figures.len(), "{}", suite.name);
        }
    }

    #[test]
    fn meanings_fit_into_a_table_cell() {
        for suite in SUITES {
            for figure in suite.figures {
                assert!(!figure.meaning.contains(['|', '\n']), "{}", figure.key);
                assert!(
                    !figure.meaning.is_empty() && !figure.meaning.ends_with('.'),
                    "{}",
                    figure.key
                );
            }
        }
    }
}
