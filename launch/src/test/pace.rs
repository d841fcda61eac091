//! How much slower than its estimates the machine of a run is.

use std::time::Duration;

use super::plan::{Cases, Job};

/// Estimated and actual time of the whole suites, and of the parts of suites, that have run.
#[derive(Default)]
pub(super) struct Pace {
    estimated: Duration,
    actual: Duration,
}

impl Pace {
    /// Notes the duration of a job. Suites have no estimate for a choice of their cases.
    pub(super) fn note(&mut self, job: &Job, took: Duration) {
        if !matches!(job.cases, Cases::Named(_)) {
            self.estimated += Duration::from_secs(job.seconds().into());
            self.actual += took;
        }
    }

    /// What to multiply estimates with. At least 1: suites of seconds are estimated with a minute.
    pub(super) fn factor(&self) -> f64 {
        if self.estimated.is_zero() {
            return 1.0;
        }
        self.actual.div_duration_f64(self.estimated).max(1.0)
    }
}
