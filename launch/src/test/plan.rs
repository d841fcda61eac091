//! Selects the cases of a run: the short tier, suites by name, everything, or in CI the short tier and long suites in
//! turns.

use std::collections::BTreeSet;
use std::process::Command;

use super::Options;
use super::reach;
use super::short;
use super::suites::{Needs, PROVOKE, SOAK, SUITES, Suite, Tier};
use crate::{command, workspace};

/// Approximate seconds of a part of a suite.
const PART: u32 = 240;

/// A suite's cases, or some of them.
#[derive(Clone)]
pub(super) struct Job {
    pub suite: &'static Suite,
    pub cases: Cases,
    pub needs: Needs,
}

/// Cases of a suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cases {
    All,
    /// Cases whose names contain one of these texts.
    Named(Vec<String>),
    /// Every `of`th case in order, starting with number `part`.
    Part {
        part: usize,
        of: usize,
    },
}

impl Job {
    fn all(suite: &'static Suite) -> Job {
        Job { suite, cases: Cases::All, needs: suite.needs }
    }

    /// Its name in tables: `mlx5 2/4`.
    pub(super) fn name(&self) -> String {
        match &self.cases {
            Cases::All => self.suite.name.into(),
            Cases::Named(_) => format!("{} (some)", self.suite.name),
            Cases::Part { part, of } => format!("{} {}/{of}", self.suite.name, part + 1),
        }
    }

    /// Estimated seconds.
    pub(super) fn seconds(&self) -> u32 {
        match self.cases {
            Cases::Part { of, .. } => self.suite.seconds / of as u32,
            _ => self.suite.seconds,
        }
    }

    /// Whether its cases may provoke faults, which needs an image with fault injection.
    pub(super) fn provokes(&self) -> bool {
        PROVOKE.contains(&self.suite.name) && !matches!(self.cases, Cases::Named(_))
    }
}

/// The jobs that a run starts with.
pub(super) fn first(options: &Options) -> Vec<Job> {
    let named = |suite: &&Suite| options.suites.iter().any(|name| name == suite.name);
    let mut jobs: Vec<Job> = if !options.suites.is_empty() {
        SUITES.iter().filter(named).map(Job::all).collect()
    } else if options.soak {
        SUITES.iter().filter_map(in_soak_tier).collect()
    } else if options.full {
        SUITES.iter().filter(|suite| suite.tier != Tier::Soak).map(Job::all).collect()
    } else {
        SUITES.iter().filter_map(in_short_tier).collect()
    };
    if !options.case.is_empty() {
        for job in &mut jobs {
            job.cases = Cases::Named(vec![options.case.clone()]);
        }
    }
    jobs
}

/// The short tier's part of a suite.
fn in_short_tier(suite: &'static Suite) -> Option<Job> {
    let cases = match suite.short_cases() {
        None => Cases::All,
        Some([]) => return None,
        Some(some) => Cases::Named(some.iter().map(|case| case.to_string()).collect()),
    };
    let alone = short::WITHOUT_IMAGE.contains(&suite.name);
    Some(Job { suite, cases, needs: if alone { Needs::Models } else { suite.needs } })
}

/// The soak tier's part of a suite.
fn in_soak_tier(suite: &'static Suite) -> Option<Job> {
    if suite.tier == Tier::Soak {
        return Some(Job::all(suite));
    }
    let (_, case) = SOAK.iter().find(|(name, _)| *name == suite.name)?;
    Some(Job { cases: Cases::Named(vec![case.to_string()]), ..Job::all(suite) })
}

/// The jobs that CI runs after the short tier, in order: suites that recent changes reach, then the others, starting
/// with a job that depends on the number of commits. They are the suites of the long tier, and those of which the short
/// tier runs only some cases, split into parts.
pub(super) fn more() -> Vec<Job> {
    let mut jobs = Vec::new();
    for suite in SUITES.iter().filter(|suite| is_partial(suite)) {
        let of = suite.seconds.div_ceil(PART).max(1) as usize;
        match of {
            1 => jobs.push(Job::all(suite)),
            _ => jobs.extend((0..of).map(|part| Job {
                suite,
                cases: Cases::Part { part, of },
                needs: suite.needs,
            })),
        }
    }
    let start = start_index(commits(), jobs.len());
    jobs.rotate_left(start);
    let changed = reach::reached(&changes());
    let (mut first, others): (Vec<_>, Vec<_>) =
        jobs.into_iter().partition(|job| changed.contains(job.suite.name));
    first.extend(others);
    first
}

fn is_partial(suite: &Suite) -> bool {
    suite.tier != Tier::Soak && suite.short_cases().is_some()
}

/// The index of the first of `jobs` jobs after `commits` commits. Each commit adds about three eighths of the jobs, so
/// that successive runs start far apart.
fn start_index(commits: usize, jobs: usize) -> usize {
    (commits * (jobs * 3 / 8).max(1)).checked_rem(jobs).unwrap_or(0)
}

fn git(words: &[&str]) -> String {
    let mut git = Command::new("git");
    command::output(git.arg("-C").arg(workspace::root()).args(words)).unwrap_or_default()
}

fn commits() -> usize {
    git(&["rev-list", "--count", "HEAD"]).trim().parse().unwrap_or(0)
}

/// Paths that changed in the twelve hours before the newest commit.
fn changes() -> BTreeSet<String> {
    let newest: u64 = git(&["log", "-1", "--format=%ct"]).trim().parse().unwrap_or(0);
    let since = format!("--since=@{}", newest.saturating_sub(12 * 3600));
    let paths = git(&["log", "--name-only", "--format=", &since]);
    paths.lines().filter(|line| !line.is_empty()).map(String::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_has_every_suite_of_the_long_tier_and_no_soak_test() {
        let names: BTreeSet<&str> = more().iter().map(|job| job.suite.name).collect();
        for suite in SUITES.iter().filter(|suite| suite.tier == Tier::Long) {
            assert!(names.contains(suite.name), "{}", suite.name);
        }
        assert!(!SUITES.iter().any(|s| s.tier == Tier::Soak && names.contains(s.name)));
    }

    #[test]
    fn start_index_differs_for_eight_successive_commits() {
        for jobs in [40, 61, 97] {
            let mut places: Vec<usize> =
                (1000..1008).map(|commits| start_index(commits, jobs)).collect();
            places.sort_unstable();
            places.dedup();
            assert!(places.len() >= 7, "{jobs}: {places:?}");
        }
        assert_eq!(start_index(5, 0), 0);
    }

    #[test]
    fn parts_have_every_case_once() {
        let all: Vec<usize> = (0..3).flat_map(|part| (part..10).step_by(3)).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), 10);
    }
}
