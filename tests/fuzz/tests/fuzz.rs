//! `./isthmus test fuzz`: every target with its stored inputs, and with random changes of these, from seeds that can be
//! replayed.

use fuzz::{mutate, target};

fn run(name: &str, count: u64) {
    let target = target(name).expect("the target exists");
    let corpus = target.inputs();
    corpus.iter().for_each(|input| (target.run)(input));
    netsim::explore(name, count, |seed| {
        let input = mutate(&corpus, &mut netsim::Rng::new(seed));
        if netsim::tracing() {
            println!("{}", input.escape_ascii());
        }
        (target.run)(&input);
    });
}

#[test]
fn wire() {
    run("wire", 300_000);
}

#[test]
fn messages() {
    run("messages", 300_000);
}

#[test]
fn engine() {
    run("engine", 15_000);
}

#[test]
fn storage() {
    run("storage", 5_000);
}

#[test]
fn extents() {
    run("extents", 3_000);
}

#[test]
fn mirror() {
    run("mirror", 3_000);
}

#[test]
fn remote() {
    run("remote", 1_000);
}

#[test]
fn smcr() {
    run("smcr", 3_000);
}

#[test]
fn nvme() {
    run("nvme", 2_000);
}

#[test]
fn linx() {
    run("linx", 2_000);
}

#[test]
fn rio_cm() {
    run("rio_cm", 5_000);
}

#[test]
fn ntrdma() {
    run("ntrdma", 1_000);
}

#[test]
fn usnic() {
    run("usnic", 3_000);
}

#[test]
fn ob1() {
    run("ob1", 10_000);
}

#[test]
fn interface() {
    run("interface", 30_000);
}

#[test]
fn http() {
    run("http", 8_000);
}

#[test]
fn dns() {
    run("dns", 20_000);
}

#[test]
fn time() {
    run("time", 20_000);
}

#[test]
fn filter() {
    run("filter", 40_000);
}

#[test]
fn config() {
    run("config", 5_000);
}

#[test]
fn console() {
    run("console", 30_000);
}

#[test]
fn tls() {
    run("tls", 3_000);
}

#[test]
fn nbd() {
    run("nbd", 5_000);
}

#[test]
fn nvme_host() {
    run("nvme_host", 5_000);
}

#[test]
fn tls_psk() {
    run("tls_psk", 5_000);
}

#[test]
fn nvme_auth() {
    run("nvme_auth", 10_000);
}

#[test]
fn nvme_keys() {
    run("nvme_keys", 30_000);
}

#[test]
fn release() {
    run("release", 30_000);
}

#[test]
fn answer() {
    run("answer", 30_000);
}

#[test]
fn partitions() {
    run("partitions", 5_000);
}

#[test]
fn pem() {
    run("pem", 5_000);
}

#[test]
fn smbios() {
    run("smbios", 20_000);
}

#[test]
fn seed() {
    run("seed", 5_000);
}

/// This suite would skip a target without a case, and every run would skip a directory without a target.
#[test]
fn every_target_has_a_case_and_every_corpus_a_target() {
    let here = include_str!("fuzz.rs");
    for target in fuzz::TARGETS {
        let case = format!("run(\"{}\", ", target.name);
        assert!(here.contains(&case), "{}: no case", target.name);
    }
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus");
    for directory in std::fs::read_dir(corpus).expect("the corpora are there").flatten() {
        let name = directory.file_name().into_string().expect("a plain name");
        assert!(target(&name).is_some(), "{name}: no target");
    }
}
