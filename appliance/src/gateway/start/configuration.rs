//! Second stage: finds config disk and boot disk, and loads the configuration.

use super::FromVmm;
use super::crash_records;
use super::disks::Disks;
use super::resources::{MachineClock, Resources, seed};
use crate::audit::Trail;
use crate::config::{Config, Document, History, Problem, Sources, command_line};
use crate::crash::{self, Record};
use crate::gateway::disks::DiskSlot;
use crate::gateway::known_disks::{self, Known, Outside};
use crate::gateway::revisions;
use crate::gateway::seed_disk;
use crate::gateway::tls::{self, Secure};
use crate::gateway::upgrade::Upgrade;
use crate::log_ring::set_levels;
use crate::randomness::Randomness;
use drivers::hal::{Arena, Clock};

/// The configuration, and what the disks have beside it.
pub(super) struct Loaded {
    pub document: Document,
    /// Its errors.
    pub problems: Vec<String>,
    /// Parts of it that were left out.
    pub warnings: Vec<String>,
    pub stored: Known,
    /// The saved configuration, which the next boot starts.
    pub kept: Config,
    /// Revisions that the config disk keeps.
    pub history: History,
    /// The audit log that the config disk keeps.
    pub audit: Trail,
    /// Seconds for the confirmation of a trial that this boot has started.
    pub trial: Option<u64>,
    pub upgrade: Option<Box<Upgrade>>,
}

impl Loaded {
    /// Loads the configuration from all sources. `sources` has those outside the disks, `vmm` also the names of disks,
    /// `crash` the record of a panic that memory has kept. Errors are logged.
    pub fn load(
        sources: Sources<'_>,
        vmm: &FromVmm,
        crash: Option<(Record, Box<[u8]>)>,
        disks: &mut Disks,
        resources: &mut Resources,
    ) -> Self {
        let command_line = sources.command_line;
        let (slots, arena) = (&mut disks.slots, resources.platform.arena());
        let clock = MachineClock(&*resources.machine);
        let seed = read_seed(&sources, vmm, slots, arena, &clock);
        let sources = Sources {
            seed: seed.text.as_deref(),
            seed_hostname: seed.hostname.as_deref(),
            seed_unusable: seed.unusable.as_deref(),
            ..sources
        };
        let (others, _) = Document::load(&sources);
        let others = others.config();
        let of_document = || others.system.config_disk.as_ref().map(ToString::to_string);
        let strings = sources.smbios.and_then(|strings| strings.config_disk.clone());
        let named = command_line::config_disk(command_line).or(strings);
        let named = named.or_else(|| vmm.config_disk.clone()).or_else(of_document);
        let named = named.as_deref();
        let outside = Outside { named, command_line, others, failed: &disks.failed };
        let mut stored = known_disks::find(slots, &outside, arena, &clock);
        let upgrade = Upgrade::find(slots, stored.slots, command_line, arena, &clock);
        let (mut trial, mut history, mut audit) = (None, History::default(), Trail::default());
        if let Some((number, engine)) = &mut stored.place {
            let slot = &mut slots[*number];
            trial = revisions::take_trial(engine, slot, arena, &clock);
            history = revisions::read(engine, slot, arena, &clock);
            audit = revisions::read_audit(engine, slot, arena, &clock);
        }
        let engine = stored.place.as_ref().map(|(_, engine)| engine);
        let saved = Sources {
            disk: stored.text.as_deref(),
            disk_before: engine.and_then(|engine| engine.before()),
            disk_unreachable: stored.unreachable.as_deref(),
            disk_damaged: engine.is_some_and(|engine| engine.is_damaged()),
            ..sources
        };
        let (mut document, mut problems) = Document::load(&saved);
        let kept = document.config().clone();
        let trial = trial.and_then(|trial| {
            let tried = Sources { disk: Some(&trial.text), disk_before: None, ..saved };
            let (tried, found) = Document::load(&tried);
            if tried.is_closed() {
                log::error!(
                    "configuration: the trial cannot be used: the saved configuration is in force"
                );
                return None;
            }
            (document, problems) = (tried, found);
            Some(trial.seconds)
        });
        let config = document.config();
        stored.protect(slots, config);
        set_levels(config.system.log_level, &config.log.by_subject());
        crash::set_policy(config.system.on_panic);
        if let Err(why) = crash_records::keep(&mut stored, crash, disks, resources) {
            log::error!("a panic cannot be recorded on disk: {why}");
        }
        if document.is_older_copy()
            && let Some((_, engine)) = &mut stored.place
        {
            engine.keep_before();
        }
        let trouble = core::mem::take(&mut stored.trouble);
        let (problems, warnings) = log_problems(&document, trouble, problems);
        Loaded { document, problems, warnings, stored, kept, history, audit, trial, upgrade }
    }

    /// Creates TLS if configured.
    pub fn start_tls(&self, disks: &mut Disks, resources: &mut Resources) -> Option<Secure> {
        let place = self.stored.place.as_ref().filter(|(_, engine)| !engine.is_half_wiped());
        let kept = place.map(|(number, engine)| (*number, engine.pair()));
        let random = Randomness::new(seed(&mut *resources.rng), resources.entropy);
        let (config, arena) = (self.document.config(), resources.platform.arena());
        let clock = MachineClock(&*resources.machine);
        tls::start(config, kept, &mut disks.slots, arena, &clock, random)
    }
}

/// Finds the seed disk and reads it.
fn read_seed(
    sources: &Sources<'_>,
    vmm: &FromVmm,
    slots: &mut [DiskSlot],
    arena: &mut Arena,
    clock: &dyn Clock,
) -> seed_disk::Found {
    let strings = sources.smbios.and_then(|strings| strings.seed.clone());
    let named = command_line::seed(sources.command_line).or(strings);
    let named = named.or_else(|| vmm.seed.clone());
    let (others, _) = Document::load(sources);
    seed_disk::find(slots, named.as_deref(), others.config(), arena, clock)
}

/// Logs the sources of the configuration, its problems, and warnings about parts that were left out. Returns warnings
/// and problems.
fn log_problems(
    document: &Document,
    trouble: Vec<String>,
    problems: Vec<Problem>,
) -> (Vec<String>, Vec<String>) {
    let (warnings, problems): (Vec<Problem>, Vec<Problem>) =
        problems.into_iter().partition(Problem::is_warning);
    let texts = |list: Vec<Problem>| list.into_iter().map(|problem| problem.to_string());
    let warnings: Vec<String> = texts(warnings).collect();
    let problems: Vec<String> = trouble.into_iter().chain(texts(problems)).collect();
    log::info!("configuration: {}", document.sources_line());
    for problem in &problems {
        log::error!("configuration: {problem}");
    }
    for warning in &warnings {
        log::warn!("configuration: {warning}");
    }
    if document.is_closed() {
        log::error!(
            "configuration rejected: nothing is exported, relayed or written until it is corrected: see /readyz, \
             `show config`"
        );
    }
    (problems, warnings)
}
