//! Runs of a scenario with many seeds, and the replay of one.

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

/// Whether one seed is replayed, so that the scenario should tell what happens.
pub fn tracing() -> bool {
    asked_for().is_some()
}

/// The seed that is to be replayed, from the environment (`./isthmus test SUITE --seed N`).
fn asked_for() -> Option<u64> {
    let text = std::env::var("ISTHMUS_SEED").ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("ISTHMUS_SEED is not a number: {text}")))
}

/// Runs `scenario` with the seeds from 0 to `count`, and with a quarter as many that are other ones
/// in each run; with `--full`, with five times as many. With a seed from the environment, with that
/// one alone. A failure says which seed it was. `name` is that of the test case.
pub fn explore(name: &str, count: u64, scenario: impl Fn(u64)) {
    if let Some(seed) = asked_for() {
        return scenario(seed);
    }
    let count = if std::env::var_os("ISTHMUS_FULL").is_some() { 5 * count } else { count };
    let base = RandomState::new().hash_one(0) >> 32;
    let start = Instant::now();
    for seed in (0..count).chain(base..base + count.div_ceil(4)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(seed))) {
            let suite = suite();
            say(&format!(
                "{name}: seed {seed} failed; ./isthmus test {suite} --case {name} --seed {seed}"
            ));
            resume_unwind(panic);
        }
    }
    let seconds = start.elapsed().as_secs_f32();
    say(&format!("{name}: seeds 0 to {count}, and some from {base} on, in {seconds:.1} s"));
}

/// The name of the test target that runs: that of the program, without the hash behind it.
fn suite() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let name = program.file_stem().unwrap_or_default().to_string_lossy();
    name.rsplit_once('-').map_or(name.as_ref(), |(name, _)| name).into()
}

/// Writes a line, also when the test harness keeps what cases print to itself.
fn say(line: &str) {
    // Nobody is there to be told that it cannot be written.
    let _ = writeln!(std::io::stderr(), "{line}");
}
