//! Records how long machines take to boot, for the sum that a test run prints.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

/// The environment variable that names the file to which boots are appended, in milliseconds.
pub const VARIABLE: &str = "ISTHMUS_BOOTS";

/// Records a machine's boot time if the test run requests it.
pub fn note(time: Duration) {
    let Some(path) = std::env::var_os(VARIABLE) else { return };
    let file = OpenOptions::new().append(true).create(true).open(path);
    // For information only: a case does not fail for it.
    let _ = file.and_then(|mut file| writeln!(file, "{}", time.as_millis()));
}
