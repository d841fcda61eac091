//! Targets for hostile input. A [`Target`] takes any bytes and must not panic. Most targets also check invariants of
//! the tested code. Input comes from [`mutate`], which changes a target's corpus (including real captures) by a seed,
//! or from the coverage-guided fuzzer (`guided`). Its findings, and selected inputs that reach deep, are in
//! `corpus/TARGET`.

mod bridge;
mod capture;
mod config;
mod console;
mod disks;
mod engine;
mod formats;
mod input;
mod ip;
mod leak;
mod linx;
mod mutate;
mod names;
mod nbd;
mod net;
mod nvme;
mod nvme_auth;
mod nvme_host;
mod ob1;
mod remote;
mod rio_cm;
mod smcr;
mod storage;
mod tls;
mod tls_psk;
mod usnic;
mod vmm;
mod wire;

use std::fs;
use std::path::{Path, PathBuf};

pub use mutate::mutate;

/// A consumer of hostile input.
pub struct Target {
    /// Name of the target.
    pub name: &'static str,
    /// Processes the input; panics on a fault.
    pub run: fn(&[u8]),
    /// Inputs that reach deep into the code.
    pub corpus: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "wire", run: wire::run, corpus: wire::corpus },
    Target { name: "messages", run: wire::messages, corpus: wire::message_corpus },
    Target { name: "engine", run: engine::run, corpus: engine::corpus },
    Target { name: "storage", run: storage::run, corpus: storage::corpus },
    Target { name: "extents", run: disks::extents, corpus: disks::extents_corpus },
    Target { name: "mirror", run: disks::mirror, corpus: disks::mirror_corpus },
    Target { name: "remote", run: remote::run, corpus: remote::corpus },
    Target { name: "smcr", run: smcr::run, corpus: smcr::corpus },
    Target { name: "nbd", run: nbd::run, corpus: nbd::corpus },
    Target { name: "nvme_host", run: nvme_host::run, corpus: nvme_host::corpus },
    Target { name: "linx", run: linx::run, corpus: linx::corpus },
    Target { name: "nvme", run: nvme::run, corpus: nvme::corpus },
    Target { name: "rio_cm", run: rio_cm::run, corpus: rio_cm::corpus },
    Target { name: "ntrdma", run: bridge::run, corpus: bridge::corpus },
    Target { name: "usnic", run: usnic::run, corpus: usnic::corpus },
    Target { name: "ob1", run: ob1::run, corpus: ob1::corpus },
    Target { name: "interface", run: net::interface, corpus: net::interface_corpus },
    Target { name: "http", run: net::http, corpus: net::http_corpus },
    Target { name: "dns", run: names::dns, corpus: names::dns_corpus },
    Target { name: "time", run: names::time, corpus: names::time_corpus },
    Target { name: "filter", run: net::filter, corpus: net::filter_corpus },
    Target { name: "config", run: config::run, corpus: config::corpus },
    Target { name: "console", run: console::run, corpus: console::corpus },
    Target { name: "tls", run: tls::run, corpus: tls::corpus },
    Target { name: "tls_psk", run: tls_psk::run, corpus: tls_psk::corpus },
    Target { name: "nvme_auth", run: nvme_auth::run, corpus: nvme_auth::corpus },
    Target { name: "nvme_keys", run: nvme_auth::keys, corpus: nvme_auth::keys_corpus },
    Target { name: "release", run: formats::release, corpus: formats::release_corpus },
    Target { name: "answer", run: formats::answer, corpus: formats::answer_corpus },
    Target { name: "partitions", run: formats::partitions, corpus: formats::partitions_corpus },
    Target { name: "pem", run: formats::pem, corpus: formats::pem_corpus },
    Target { name: "smbios", run: vmm::smbios, corpus: vmm::smbios_corpus },
    Target { name: "seed", run: vmm::seed, corpus: vmm::seed_corpus },
];

/// The target with this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

impl Target {
    /// Initial inputs: those that the target makes itself, and the files of its directory in `corpus`.
    pub fn inputs(&self) -> Vec<Vec<u8>> {
        let mut inputs = (self.corpus)();
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name);
        let files = fs::read_dir(kept).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
        // In the same order everywhere, because seeds select inputs by number.
        files.sort();
        inputs.extend(files.iter().map(|file| fs::read(file).expect("the corpus is readable")));
        inputs
    }
}
