//! How long machines take to boot, noted for a run of test suites, which prints the sum.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

/// The environment variable that names the file to which boots are appended, in milliseconds.
pub const VARIABLE: &str = "ISTHMUS_BOOTS";

/// Notes that a machine took so long to boot, if a run asks for it.
pub fn note(time: Duration) {
    let Some(path) = std::env::var_os(VARIABLE) else { return };
    let file = OpenOptions::new().append(true).create(true).open(path);
    // A figure for people: a case does not fail for it.
    let _ = file.and_then(|mut file| writeln!(file, "{}", time.as_millis()));
}
