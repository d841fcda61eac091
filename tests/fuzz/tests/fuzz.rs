//! `./isthmus test fuzz`: every target with inputs changed by chance, from seeds that can be replayed.

use fuzz::{mutate, target};

fn run(name: &str, count: u64) {
    let target = target(name).expect("there is such a target");
    let corpus = (target.corpus)();
    corpus.iter().for_each(|input| (target.run)(input));
    fabric::explore(name, count, |seed| {
        let input = mutate(&corpus, &mut fabric::Rng::new(seed));
        if fabric::tracing() {
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
fn ntrdma() {
    run("ntrdma", 1_000);
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
