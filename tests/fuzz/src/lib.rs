//! What hostile input is fed to. A [`Target`] takes any bytes and must not panic; most also check
//! that what they feed keeps its promises. Bytes come from [`mutate`], which changes a target's
//! corpus (real captures among it) by a seed, or from a fuzzer that is guided by coverage.

mod bridge;
mod capture;
mod config;
mod console;
mod disks;
mod engine;
mod input;
mod ip;
mod leak;
mod mutate;
mod net;
mod remote;
mod storage;
mod wire;

pub use mutate::mutate;

/// Something that takes hostile input.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Takes the input; panics if something is wrong.
    pub run: fn(&[u8]),
    /// Inputs that get far.
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
    Target { name: "ntrdma", run: bridge::run, corpus: bridge::corpus },
    Target { name: "interface", run: net::interface, corpus: net::interface_corpus },
    Target { name: "http", run: net::http, corpus: net::http_corpus },
    Target { name: "filter", run: net::filter, corpus: net::filter_corpus },
    Target { name: "config", run: config::run, corpus: config::corpus },
    Target { name: "console", run: console::run, corpus: console::corpus },
];

/// The target of that name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
