//! `./isthmus test`: runs the test suites and ends with a summary in one line.

mod cases;
mod lab;
mod pace;
mod plan;
mod reach;
mod short;
mod suites;
mod summary;
mod times;

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use clap::Args;

use crate::ahead::Ahead;
use crate::build::Profile;
use crate::fuzz::Fuzzer;
use crate::qemu::boots;
use crate::{fresh, guest, setup, workspace};
use cases::{Outcome, compile, run};
use lab::Lab;
use pace::Pace;
use plan::Job;
use suites::{SANITIZED, SUITES};
use summary::Summary;
use times::Times;

/// The start of a run in seconds since 1970, set by `.ci/run`, so that the earlier steps of `.ci/run` count.
const STARTED: &str = "ISTHMUS_STARTED";
/// Estimated seconds for building an image.
const IMAGE: u64 = 120;

/// Options of `./isthmus test`.
#[derive(Args)]
pub struct Options {
    /// The suites to run, with all their cases (when none is named, the short tier)
    #[arg(value_parser = SUITES.iter().map(|suite| suite.name).collect::<Vec<_>>())]
    suites: Vec<String>,
    /// Run the short and the long tier: every case but the soak tests, the whole matrix of machines, the longest paste
    #[arg(long)]
    full: bool,
    /// Run the soak tests only: single cases of more than ten minutes
    #[arg(long)]
    soak: bool,
    /// After the short tier, run long suites in turns until this many minutes have passed
    #[arg(long, value_name = "MINUTES")]
    until: Option<u64>,
    /// List the suites with their tiers and minutes
    #[arg(long)]
    list: bool,
    /// Run only the cases whose name contains this
    #[arg(long, default_value = "")]
    case: String,
    /// Replay this seed of the simulator or of the fuzzer, and print what happens
    #[arg(long)]
    seed: Option<u64>,
    /// Minutes that the suite `guided` searches for inputs by coverage
    #[arg(long, default_value_t = 5)]
    minutes: u32,
    /// Run an input again that the suite `guided` has kept; its directory has the name of its target
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Use the image for development (`./isthmus build --dev`), which builds faster; the shipped image is not tested
    #[arg(long)]
    dev: bool,
    /// Run in a new Debian 12 with only the packages that the README names, made with debootstrap (as root)
    #[arg(long)]
    fresh: bool,
}

/// Runs the selected suites. Fails if a case fails or a suite cannot run.
pub fn test(options: &Options) -> Result<()> {
    if options.fresh {
        return fresh::test(&fresh_arguments(options));
    }
    if options.list {
        for suite in SUITES {
            println!(
                "{:<14} {:<6} {:>3} min",
                suite.name,
                suite.tier.name(),
                suite.seconds.div_ceil(60)
            );
        }
        return Ok(());
    }
    if let Some(input) = &options.replay {
        setup::install(SANITIZED)?;
        return Fuzzer::build()?.replay(input);
    }
    let started = start();
    let jobs = plan::first(options);
    let directory = workspace::target().join("test");
    fs::create_dir_all(&directory)?;
    let mut round = Round::new(options, &directory)?;
    let times = Times::start(&directory)?;
    lab::install(&jobs)?;
    let ahead = Ahead::start(compile(&jobs));
    let guest = jobs.iter().any(|job| job.needs.guests());
    let guest = guest.then(|| thread::spawn(guest::prepare));
    for job in &jobs {
        if job.needs.image() {
            round.lab.prepare(job)?;
        }
    }
    if let Some(guest) = guest {
        guest.join().map_err(|_| anyhow::anyhow!("preparing the guest panicked"))??;
    }
    ahead.finish();
    let building = started.elapsed();
    for job in &jobs {
        round.run(job)?;
    }
    if let Some(minutes) = options.until {
        round.run_while_time_is_left(plan::more(), started, Duration::from_secs(minutes * 60))?;
    }
    round.close(started, building, &times)
}

/// A run: its options, its environment, and the outcomes so far.
struct Round<'a> {
    options: &'a Options,
    lab: Lab,
    environment: Vec<(&'static str, PathBuf)>,
    skipped: PathBuf,
    outcomes: Vec<(String, Outcome, Duration)>,
    not_run: Vec<String>,
    pace: Pace,
}

impl Round<'_> {
    fn new<'a>(options: &'a Options, directory: &std::path::Path) -> Result<Round<'a>> {
        let skipped = directory.join("skipped");
        fs::write(&skipped, "")?;
        let mut environment =
            vec![("ISTHMUS_SKIPPED", skipped.clone()), (boots::VARIABLE, times::file(directory))];
        if options.full || options.soak {
            environment.push(("ISTHMUS_FULL", "1".into()));
        }
        if let Some(seed) = options.seed {
            environment.push(("ISTHMUS_SEED", seed.to_string().into()));
        }
        let lab = Lab::new(Profile::dev(options.dev));
        Ok(Round {
            options,
            lab,
            environment,
            skipped,
            outcomes: Vec::new(),
            not_run: Vec::new(),
            pace: Pace::default(),
        })
    }

    fn run(&mut self, job: &Job) -> Result<()> {
        self.lab.prepare(job)?;
        self.lab.pack(job)?;
        let mut environment = self.environment.clone();
        environment.extend(self.lab.environment(job));
        let started = Instant::now();
        let outcome = run(job, self.options, &environment)?;
        self.pace.note(job, started.elapsed());
        self.outcomes.push((job.name(), outcome, started.elapsed()));
        Ok(())
    }

    /// Runs the jobs that should end before `limit` after `started`.
    fn run_while_time_is_left(
        &mut self,
        jobs: Vec<Job>,
        started: Instant,
        limit: Duration,
    ) -> Result<()> {
        for job in jobs {
            let image = if self.lab.lacks_an_image_for(&job) { IMAGE } else { 0 };
            let estimate = Duration::from_secs(u64::from(job.seconds()) * 5 / 4 + image);
            if started.elapsed() + estimate.mul_f64(self.pace.factor()) <= limit {
                self.run(&job)?;
            } else {
                self.not_run.push(job.name());
            }
        }
        Ok(())
    }

    fn close(self, started: Instant, building: Duration, times: &Times) -> Result<()> {
        if !self.not_run.is_empty() {
            println!("\nnot run, because the time was too short: {}", self.not_run.join(", "));
        }
        let skipped = fs::read_to_string(&self.skipped)?;
        let summary =
            Summary { table: &self.outcomes, skipped: &skipped, case: &self.options.case };
        times.print(started.elapsed(), building, &self.outcomes)?;
        summary.close()
    }
}

/// The start of this run: that of `.ci/run` if it is set, else now.
fn start() -> Instant {
    let now = Instant::now();
    let began = std::env::var(STARTED).ok().and_then(|text| text.trim().parse().ok());
    let since = began.and_then(|seconds| {
        let began = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        SystemTime::now().duration_since(began).ok()
    });
    since.and_then(|since| now.checked_sub(since)).unwrap_or(now)
}

/// The arguments of `./isthmus` in the fresh system: the same without `--fresh`.
fn fresh_arguments(options: &Options) -> Vec<String> {
    let mut words = vec!["test".to_string()];
    words.extend(options.suites.iter().cloned());
    for (is_set, word) in
        [(options.full, "--full"), (options.soak, "--soak"), (options.dev, "--dev")]
    {
        words.extend(is_set.then(|| word.to_string()));
    }
    if !options.case.is_empty() {
        words.extend(["--case".into(), options.case.clone()]);
    }
    if let Some(seed) = options.seed {
        words.extend(["--seed".into(), seed.to_string()]);
    }
    if let Some(minutes) = options.until {
        words.extend(["--until".into(), minutes.to_string()]);
    }
    words.extend(["--minutes".into(), options.minutes.to_string()]);
    words
}
