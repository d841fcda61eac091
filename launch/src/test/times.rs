//! Reports how a run spent its time: building, booting machines, idle processors.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::cases::Outcome;

/// Number of slowest cases to print.
const SLOWEST: usize = 10;

/// The file to which each machine's boot is appended.
pub(super) fn file(directory: &Path) -> PathBuf {
    directory.join("boots")
}

/// The state at the beginning of a run.
pub(super) struct Times {
    boots: PathBuf,
    idle: Option<Duration>,
}

impl Times {
    pub(super) fn start(directory: &Path) -> Result<Times> {
        fs::write(file(directory), "")?;
        Ok(Times { boots: file(directory), idle: idle() })
    }

    /// Prints the slowest cases, and the sums.
    pub(super) fn print(
        &self,
        total: Duration,
        building: Duration,
        outcomes: &[(String, Outcome, Duration)],
    ) -> Result<()> {
        let mut slow: Vec<_> = outcomes.iter().flat_map(|(_, outcome, _)| &outcome.times).collect();
        slow.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        println!("\nthe slowest cases (seconds until the result):");
        for (name, time) in slow.iter().take(SLOWEST) {
            println!("{:>8.1}  {name}", time.as_secs_f64());
        }
        let boots = fs::read_to_string(&self.boots)?;
        let boots: Vec<u64> = boots.lines().filter_map(|line| line.parse().ok()).collect();
        let booting = Duration::from_millis(boots.iter().sum());
        println!(
            "\n{} in all: {} building and preparing; {} of machines booting ({} boots)",
            minutes(total),
            minutes(building),
            minutes(booting),
            boots.len(),
        );
        if let (Some(before), Some(after)) = (self.idle, idle()) {
            println!("a processor was idle for {}", minutes(after.saturating_sub(before)));
        }
        Ok(())
    }
}

fn minutes(time: Duration) -> String {
    format!("{} min {:02} s", time.as_secs() / 60, time.as_secs() % 60)
}

/// How long a processor of this machine was idle since it started, on average (/proc/uptime).
fn idle() -> Option<Duration> {
    let text = fs::read_to_string("/proc/uptime").ok()?;
    let idle: f64 = text.split_whitespace().nth(1)?.parse().ok()?;
    let processors = std::thread::available_parallelism().ok()?.get();
    Some(Duration::from_secs_f64(idle / processors as f64))
}
