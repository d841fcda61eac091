//! The results of all suites, and whether the run has passed.

use std::time::Duration;

use anyhow::{Result, bail};

use super::cases::Outcome;

/// Cases that may be skipped, because they need features that few machines have, or because they test virtio in
/// a suite that runs without it. Any other skipped case is a failure.
const MAY_BE_SKIPPED: &[&str] = &[
    "boot under KVM",
    "uhyve under KVM",
    "DSA under idxd",
    "DSA beside a bridge",
    "without virtio",
];

/// The outcomes of a run.
pub(super) struct Summary<'a> {
    pub table: &'a [(String, Outcome, Duration)],
    pub skipped: &'a str,
    pub case: &'a str,
}

impl Summary<'_> {
    /// Prints the outcomes. Fails if a case failed, or if a case that must run was skipped.
    pub(super) fn close(&self) -> Result<()> {
        summary(self.table, self.skipped, self.case)
    }
}

/// Prints the outcomes. Fails if a case failed, or if a case that must run was skipped. `case` is the text by which
/// the cases were selected.
fn summary(table: &[(String, Outcome, Duration)], skipped: &str, case: &str) -> Result<()> {
    println!("\n{:<18} {:>7} {:>7} {:>9}", "suite", "passed", "failed", "seconds");
    let (mut passed, mut failed) = (0, 0);
    for (name, outcome, time) in table {
        let seconds = time.as_secs_f64();
        println!("{name:<18} {:>7} {:>7} {seconds:>9.1}", outcome.passed, outcome.failed);
        passed += outcome.passed;
        failed += outcome.failed;
    }
    let mut must: Vec<String> = Vec::new();
    for line in skipped.lines() {
        println!("skipped: {line}");
        if !may_be_skipped(line) {
            must.push(line.to_string());
        }
    }
    for (name, outcome, _) in table {
        if outcome.ignored > 0 {
            println!("skipped: {name}: {} cases are marked #[ignore]", outcome.ignored);
            must.push(name.to_string());
        }
        if case.is_empty() && outcome.passed + outcome.failed == 0 {
            println!("skipped: {name}: none of its cases ran");
            must.push(name.to_string());
        }
    }
    // A skipped case ends without an error, so that libtest counts it as passed.
    let skips = skipped.lines().count();
    println!("\n{} passed, {failed} failed, {skips} skipped", passed.saturating_sub(skips));
    if failed > 0 {
        bail!("{failed} cases failed");
    }
    if !must.is_empty() {
        bail!("skipped, but must run: {}", must.join("; "));
    }
    if passed == 0 {
        bail!("no case has {case:?} in its name");
    }
    Ok(())
}

/// Whether the case in a line of the skipped cases (`CASE: REASON`) may be skipped.
fn may_be_skipped(line: &str) -> bool {
    let case = line.split(": ").next().unwrap_or(line);
    MAY_BE_SKIPPED.contains(&case)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_with_a_skipped_case_that_must_run_fails() {
        let outcome =
            |passed, failed, ignored| Outcome { passed, failed, ignored, times: Vec::new() };
        let close = |outcome, skipped: &str| {
            let table = [("boot".to_string(), outcome, Duration::ZERO)];
            summary(&table, skipped, "").map_err(|error| error.to_string())
        };
        assert_eq!(close(outcome(3, 0, 0), "boot under KVM: no KVM\n"), Ok(()));
        assert!(close(outcome(3, 0, 0), "tshark: not installed\n").unwrap_err().contains("must"));
        assert!(close(outcome(3, 0, 1), "").unwrap_err().contains("must run"));
        assert!(close(outcome(0, 0, 0), "").unwrap_err().contains("must run"));
        assert!(close(outcome(3, 1, 0), "").unwrap_err().contains("1 cases failed"));
    }
}
