//! Code bytes of the image by feature. The module in a function's name determines its feature. Data, and functions that
//! the linker has merged, belong to no feature.

use std::fs;

use anyhow::{Context, Result};
use launch::symbolize::Symbols;
use launch::workspace;

/// A feature: its key, and the modules of its functions.
type Feature = (&'static str, &'static [&'static str]);

/// All features. A function belongs to the first feature with a module in its name, so submodules come before modules.
const FEATURES: &[Feature] = &[
    ("code_bytes_mirror", &["volume::mirror", "remote_storage::mirrors"]),
    ("code_bytes_measure", &["perf_responders", "gateway::rping", "ntb_perf", "read_benchmark"]),
    (
        "code_bytes_remote",
        &[
            "rtrs::client",
            "rnbd::client",
            "gateway::remote_storage",
            "management::remote",
            "manage::remote",
            "metrics::remote_storage",
        ],
    ),
    (
        "code_bytes_ntb",
        &[
            "ntrdma::",
            "drivers::ntb",
            "drivers::dma",
            "gateway::bridge",
            "management::ntb",
            "metrics::ntb",
        ],
    ),
    (
        "code_bytes_smc",
        &["smcr::", "messaging::", "gateway::smc", "management::smc", "metrics::smc"],
    ),
    ("code_bytes_usnic", &["usnic::"]),
    ("code_bytes_linx", &["linx::"]),
    ("code_bytes_rapidio", &["rapidio::"]),
    ("code_bytes_storage", &["storage::", "rtrs::", "drivers::block", "gateway::volumes"]),
    ("code_bytes_roce", &["roce::", "softverbs::", "cm::", "provider_set::", "verbs::"]),
    (
        "code_bytes_tls",
        &["rustls", "x509_cert", "elliptic_curve", "p256::", "ecdsa", "curve25519", "der::", "aes"],
    ),
    ("code_bytes_ethernet", &["drivers::ethernet", "drivers::virtio"]),
    ("code_bytes_network", &["net::", "smoltcp"]),
    ("code_bytes_management", &["operator::", "toml_parser", "management::", "gateway::"]),
    ("code_bytes_kernel", &["hermit", "talc::", "x86_64::", "isthmus::", "boot::", "fdt::"]),
];
/// Functions of no feature: the standard library, and functions without a name.
const REST: &str = "code_bytes_rest";

/// Bytes of code by feature.
pub fn bytes() -> Result<Vec<(&'static str, u64)>> {
    let path = workspace::target().join("isthmus/isthmus.symbols");
    let file = fs::read(&path).with_context(|| format!("no {}", path.display()))?;
    Ok(count(Symbols::read(&file)?.functions()))
}

fn count<'a>(functions: impl Iterator<Item = (&'a str, u64)>) -> Vec<(&'static str, u64)> {
    let mut counts: Vec<(&str, u64)> = FEATURES.iter().map(|(key, _)| (*key, 0)).collect();
    counts.push((REST, 0));
    for (name, len) in functions {
        let is_in = |(_, modules): &Feature| modules.iter().any(|module| has(name, module));
        let place = FEATURES.iter().position(is_in).unwrap_or(FEATURES.len());
        counts[place].1 += len;
    }
    counts
}

/// Whether a function's name contains a module, not as the end of a longer word.
fn has(name: &str, module: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.match_indices(module).any(|(at, _)| !name[..at].ends_with(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_figures_of_the_table() {
        let table = figures::suite("boot").unwrap();
        let keys = FEATURES.iter().map(|(key, _)| *key).chain([REST]);
        assert!(
            keys.clone().all(|key| table.figure(key).is_some()),
            "{:?}",
            keys.collect::<Vec<_>>()
        );
    }

    #[test]
    fn function_belongs_to_the_first_feature_in_its_name() {
        let functions = [
            ("<smcr::engine::Engine>::poll::<provider_set::ProviderSet>", 10),
            ("<storage::volume::mirror::Mirror as storage::volume::Volume>::submit", 20),
            ("<alloc::vec::Vec<roce::Roce>>::push", 30),
            ("memmove", 40),
            ("<subnet::Mask>::of", 50),
        ];
        let counts = count(functions.into_iter());
        let of = |key: &str| counts.iter().find(|(name, _)| *name == key).map(|(_, bytes)| *bytes);
        assert_eq!(of("code_bytes_smc"), Some(10));
        assert_eq!(of("code_bytes_mirror"), Some(20));
        assert_eq!(of("code_bytes_storage"), Some(0));
        assert_eq!(of("code_bytes_roce"), Some(30));
        assert_eq!(of(REST), Some(90));
    }
}
