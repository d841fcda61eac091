//! Disks: what each is used for, and the completions of its requests.

use super::state::State;
use crate::config::disk::Event;
use crate::console::Progress;
use drivers::hal::{Disk, Geometry};

/// What a disk is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Nothing yet.
    Free,
    /// It holds the configuration.
    Configuration,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Role::Free => "free",
            Role::Configuration => "configuration",
        }
    }
}

/// A disk and what is known of it.
pub(super) struct DiskSlot {
    pub name: String,
    pub location: String,
    pub disk: Box<dyn Disk>,
    pub geometry: Geometry,
    pub role: Role,
}

impl State {
    /// Lets what works on disks go on; how many operations ended.
    pub fn poll_disks(&mut self) -> usize {
        let Some((index, config)) = &mut self.config_disk else { return 0 };
        let outcome = match config.poll(&mut *self.disks[*index].disk) {
            None | Some(Event::NotAConfigDisk | Event::Loaded(_)) => return 0,
            Some(Event::Saved) => {
                Ok(format!("saved on {}; it is read at the next boot", self.disks[*index].name))
            }
            Some(Event::Failed(why)) => Err(why),
        };
        self.news.push_back(Progress::Done(outcome));
        1
    }
}
