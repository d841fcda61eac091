//! A line that moves while something takes longer than a moment.
//!
//! On a terminal it is a spinner with the elapsed time; elsewhere (CI, a pipe) only the beginning and
//! the end are printed.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// A step that is under way. Dropping it without [`Step::done`] says that it did not finish.
pub struct Step {
    what: String,
    bar: ProgressBar,
    started: Instant,
    finished: bool,
}

/// Starts a step named `what` (a participle: "building the image").
pub fn step(what: impl Into<String>) -> Step {
    let what = what.into();
    let bar = ProgressBar::new_spinner();
    if bar.is_hidden() {
        eprintln!("{what} ...");
    } else {
        let style = ProgressStyle::with_template("{spinner} {prefix} [{elapsed}] {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_prefix(what.clone());
        bar.enable_steady_tick(Duration::from_millis(100));
    }
    Step { what, bar, started: Instant::now(), finished: false }
}

impl Step {
    /// Shows what the step is at now (a line of a build's output, say).
    pub fn at(&self, detail: &str) {
        self.bar.set_message(detail.to_string());
    }

    /// Prints a line above the spinner.
    pub fn print(&self, line: &str) {
        if self.bar.is_hidden() { eprintln!("{line}") } else { self.bar.println(line) }
    }

    /// Ends the step and prints how long it took.
    pub fn done(mut self, result: &str) {
        self.end(result);
    }

    fn end(&mut self, result: &str) {
        self.finished = true;
        self.bar.finish_and_clear();
        eprintln!("{}: {result} ({:.1} s)", self.what, self.started.elapsed().as_secs_f64());
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.finished {
            self.end("did not finish");
        }
    }
}
