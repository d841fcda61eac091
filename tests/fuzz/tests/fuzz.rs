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
    run("wire", 400_000);
}

#[test]
fn messages() {
    run("messages", 400_000);
}

#[test]
fn engine() {
    run("engine", 40_000);
}

#[test]
fn interface() {
    run("interface", 100_000);
}

#[test]
fn http() {
    run("http", 20_000);
}

#[test]
fn filter() {
    run("filter", 40_000);
}

#[test]
fn config() {
    run("config", 15_000);
}

#[test]
fn console() {
    run("console", 80_000);
}
