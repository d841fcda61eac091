//! [`Lifecycle`]: the candidate, the revisions, and the commit that waits for its confirmation.

use super::document::Document;
use super::history::History;
use super::remote::{Mirror, Remote};
use super::schema::{Config, Volume};
use crate::caller::Caller;
use core::time::Duration;
use drivers::hal::Instant;

/// A configuration that is edited and not in force.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The edited document.
    pub document: Document,
    /// The running configuration that the candidate was made of.
    pub base: Config,
    /// Who edited it last.
    pub by: Caller,
}

/// A commit that returns to the configuration before it, unless it is confirmed in time.
#[derive(Clone, Debug)]
pub struct Trial {
    /// End of the time for the confirmation.
    pub until: Instant,
    /// The document to return to. None if the machine has to reboot, because the trial began with this boot.
    pub before: Option<Box<Document>>,
    /// Who committed.
    pub by: Caller,
}

/// A volume that the running configuration no longer has, and that goes when nothing uses it.
#[derive(Clone, Debug, PartialEq)]
pub enum Leaving {
    /// In memory, or a whole disk.
    Volume(Volume),
    /// On a remote server.
    Remote(Box<Remote>),
    /// A mirror, whose members become volumes of their own.
    Mirror(Mirror),
}

impl Leaving {
    /// Name of the volume.
    pub fn name(&self) -> &str {
        match self {
            Leaving::Volume(volume) => volume.name.as_str(),
            Leaving::Remote(remote) => remote.name.as_str(),
            Leaving::Mirror(mirror) => mirror.name.as_str(),
        }
    }

    /// What it is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Leaving::Volume(_) | Leaving::Remote(_) => "volume",
            Leaving::Mirror(_) => "mirror",
        }
    }

    /// Whether a configuration has it.
    pub fn is_in(&self, config: &Config) -> bool {
        match self {
            Leaving::Mirror(mirror) => config.mirror.iter().any(|other| other.is_same(mirror)),
            _ => config.volume_names().any(|other| other.as_str() == self.name()),
        }
    }
}

/// States of the configuration beside the running one.
#[derive(Clone, Debug, Default)]
pub struct Lifecycle {
    /// The candidate, if one is edited. All operators share it.
    pub candidate: Option<Box<Candidate>>,
    /// The last revisions of the running configuration.
    pub history: History,
    /// The commit that waits for its confirmation.
    pub trial: Option<Trial>,
    /// Removed volumes that are still there.
    pub leaving: Vec<Leaving>,
    /// Names of added mirrors that wait for their members.
    pub arriving: Vec<String>,
    /// A random number of this boot. Entity tags depend on it, so that they tell nothing about secrets.
    pub salt: u64,
}

impl Lifecycle {
    /// The candidate. Makes one of the running document if there is none.
    pub fn open(&mut self, running: &Document, by: &Caller) -> &mut Candidate {
        let candidate = self.candidate.get_or_insert_with(|| {
            let (document, base) = (running.without_pending(), running.config().clone());
            Box::new(Candidate { document, base, by: by.clone() })
        });
        candidate.by = by.clone();
        candidate
    }

    /// Time left for the confirmation.
    pub fn left(&self, now: Instant) -> Option<Duration> {
        let trial = self.trial.as_ref()?;
        Some(if trial.until > now { trial.until.since(now) } else { Duration::ZERO })
    }

    /// Whether the time for the confirmation is over.
    #[inline]
    pub fn is_expired(&self, now: Instant) -> bool {
        self.trial.as_ref().is_some_and(|trial| trial.until <= now)
    }
}
