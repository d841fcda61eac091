//! Runs of a scenario with many seeds, and the replay of one.

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

/// Whether one seed is replayed, so that the scenario should print a trace.
pub fn tracing() -> bool {
    replayed_seed().is_some()
}

/// The seed to replay, from the environment (`./isthmus test SUITE --seed N`).
fn replayed_seed() -> Option<u64> {
    let text = std::env::var("ISTHMUS_SEED").ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("ISTHMUS_SEED is not a number: {text}")))
}

/// Runs `scenario` with the seeds from 0 to `count`, and with a quarter as many random ones; with `--full`, with five
/// times as many. With a seed from the environment, runs only that one. A failure prints its seed. `name` is the name
/// of the test case.
pub fn explore(name: &str, count: u64, scenario: impl Fn(u64)) {
    if let Some(seed) = replayed_seed() {
        return scenario(seed);
    }
    let count = if std::env::var_os("ISTHMUS_FULL").is_some() { 5 * count } else { count };
    let base = RandomState::new().hash_one(0) >> 32;
    let start = Instant::now();
    for seed in (0..count).chain(base..base + count.div_ceil(4)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(seed))) {
            let suite = suite();
            print_line(&format!(
                "{name}: seed {seed} failed; ./isthmus test {suite} --case {name} --seed {seed}"
            ));
            resume_unwind(panic);
        }
    }
    let seconds = start.elapsed().as_secs_f32();
    print_line(&format!("{name}: seeds 0 to {count}, and some from {base} on, in {seconds:.1} s"));
}

/// The name of the running test target: the program's name without its hash.
fn suite() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let name = program.file_stem().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-').map_or(name.as_ref(), |(name, _)| name).into()
}

/// Writes a line, also when the test harness captures the output of cases.
fn print_line(line: &str) {
    // A failed write cannot be reported.
    let _ = writeln!(std::io::stderr(), "{line}");
}
