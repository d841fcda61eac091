//! Progress of long steps: on a terminal a spinner with the elapsed time, elsewhere (CI, a pipe) one line at the
//! beginning and one at the end.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

/// Usual seconds of long steps in a clean checkout, on two otherwise idle processors.
const USUAL: &[(&str, u32)] = &[
    ("building the kernel", 60),
    ("building the appliance", 120),
    ("building the rest of the launcher", 90),
    ("compiling the tests", 400),
    ("downloading the guest's packages", 10),
    ("unpacking the guest's packages", 10),
    ("unpacking the kernel's source", 10),
    ("building the rtrs and rnbd modules", 15),
    ("building the RapidIO modules", 12),
    ("building the NTB modules", 8),
    ("building the idxd modules", 10),
    ("booting the gateway and a Linux host", 8),
];

/// Draws the lines of steps that run in parallel.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// A running step. Dropping it without [`Step::done`] reports that it did not finish.
pub struct Step {
    what: String,
    bar: ProgressBar,
    started: Instant,
    finished: bool,
}

/// Prints a line above the running steps.
pub fn print(line: &str) {
    BARS.suspend(|| eprintln!("{line}"));
}

/// Starts a step named `what` (a participle: "building the image").
pub fn step(what: impl Into<String>) -> Step {
    let what = what.into();
    let usual = USUAL.iter().find(|(name, _)| *name == what);
    let usual = usual.map_or(String::new(), |(_, seconds)| format!(" (usually {seconds} s)"));
    let bar = BARS.add(ProgressBar::new_spinner());
    if bar.is_hidden() {
        eprintln!("{what}{usual} ...");
    } else {
        let style = ProgressStyle::with_template("{spinner} {prefix} [{elapsed}] {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar.set_prefix(format!("{what}{usual}"));
        bar.enable_steady_tick(Duration::from_millis(100));
    }
    Step { what, bar, started: Instant::now(), finished: false }
}

impl Step {
    /// Shows the current detail of the step, such as a line of a build's output.
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
        let seconds = self.started.elapsed().as_secs_f64();
        let line = format!("{}: {result} ({seconds:.1} s)", self.what);
        BARS.suspend(|| eprintln!("{line}"));
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        if !self.finished {
            self.end("did not finish");
        }
    }
}
