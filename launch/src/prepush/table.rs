//! The results of the checks, as a table.

use std::time::Duration;

use anyhow::Result;

/// The result of a check.
pub(super) struct Row {
    pub name: &'static str,
    /// A remark, or the error.
    pub outcome: Result<String>,
    pub time: Duration,
}

impl Row {
    fn result(&self) -> &'static str {
        if self.outcome.is_ok() { "ok" } else { "FAILED" }
    }
}

/// Prints a row when its check ends, with the output if the check failed.
pub(super) fn report(row: &Row) {
    let (name, result, seconds) = (row.name, row.result(), row.time.as_secs_f64());
    // One print: the other lane prints too.
    match &row.outcome {
        Ok(_) => eprintln!("{name}: {result} ({seconds:.1} s)"),
        Err(error) => eprintln!("{error:#}\n{name}: {result} ({seconds:.1} s)"),
    }
}

/// Prints all rows.
pub(super) fn print(rows: &[Row]) {
    println!("\n{:<14} {:<6} {:>8}", "check", "result", "seconds");
    for row in rows {
        let remark = row.outcome.as_deref().unwrap_or_default();
        let (result, seconds) = (row.result(), row.time.as_secs_f64());
        println!("{}", format!("{:<14} {result:<6} {seconds:>8.1}  {remark}", row.name).trim_end());
    }
}
