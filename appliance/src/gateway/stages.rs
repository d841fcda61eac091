//! Stages of a round that need the whole state: disks, services, the watchdog. Each method passes the parts of the
//! state to their owner.

use super::network::Network;
use super::service::ServiceContext;
use super::services::Services;
use super::state::State;
use super::watchdog::TRIAL;
use super::wipe;
use crate::config::Config;
use crate::config::disk::Event;
use crate::console::Progress;
use core::time::Duration;
use drivers::hal::Instant;
use management::orders::End;
use management::{leaving, not_ready};

/// Poll interval of disks and their sizes, because a poll reads registers.
const CAPACITY_INTERVAL: Duration = Duration::from_secs(1);

impl State {
    /// Polls disks and their sizes, and frees retired memory, when due.
    pub fn poll_capacities(&mut self, now: Instant) {
        if now >= self.capacity_due {
            self.capacity_due = now + CAPACITY_INTERVAL;
            self.rules_changed |= self.rules_wait();
            self.disks.iter_mut().for_each(|slot| slot.look_after(now));
            self.plane.free_retired(now);
            self.plane.storage.check_geometries();
            if self.lifecycle.is_expired(now) {
                self.end_trial();
            }
            if self.has_trial_in_doubt() {
                self.withdraw_trial();
            }
            let life = &self.lifecycle;
            let waits = !life.leaving.is_empty() || !life.arriving.is_empty();
            if waits && life.trial.is_none() {
                let _ = leaving::settle(self);
            }
        }
    }

    /// Polls operations on disks. Returns the number of completed steps.
    pub fn poll_disks(&mut self) -> usize {
        if self.plane.storage.pools.is_empty() {
            return self.poll_config_disk() + self.poll_upgrade();
        }
        let arena = self.platform.arena();
        let config = self.document.config();
        let polled = self.plane.storage.poll_pools(config, &mut self.disks, arena);
        if polled.has_news {
            self.plane.use_new_volumes(config);
        }
        for outcome in polled.outcomes {
            match (outcome.for_console, outcome.result) {
                (true, result) => self.progress.push_back(Progress::Done(result)),
                (false, Ok(what)) => log::info!("{what}"),
                (false, Err(why)) => log::error!("{why}"),
            }
        }
        polled.steps + self.poll_config_disk() + self.poll_upgrade()
    }

    fn poll_config_disk(&mut self) -> usize {
        if self.lifecycle.history.has_unwritten() {
            self.write_revision();
        }
        self.audit.poll(self.log, self.now);
        if self.audit.due().is_some_and(|due| due <= self.now) {
            self.write_audit();
        }
        let Some((index, config)) = &mut self.config_disk else { return 0 };
        let before = config.position();
        let outcome = match config.poll(&mut self.disks[*index].disk) {
            // A completed step is work: its interrupt is consumed, so the loop must not halt.
            None | Some(Event::NotAConfigDisk | Event::Loaded(_)) => {
                return usize::from(config.position() != before);
            }
            Some(Event::Saved) => {
                self.kept = self.saving.take().unwrap_or_else(|| self.document.config().clone());
                Ok(format!("saved on {}; it is read at the next boot", self.disks[*index].name))
            }
            Some(Event::Recorded(number)) => {
                self.lifecycle.history.note_written(number);
                self.resume();
                return 1;
            }
            Some(Event::AuditWritten) => {
                if let Some(write) = self.noting.take() {
                    self.audit.note_written(write, self.now);
                }
                self.resume();
                return 1;
            }
            Some(Event::Failed(why)) if self.noting.is_some() => {
                log::error!("audit log: not written, and tried again: {why}");
                if let Some(write) = self.noting.take() {
                    self.audit.note_failed(write, self.now);
                }
                self.resume();
                return 1;
            }
            // One that is still armed is tried again.
            Some(event @ (Event::Withdrawn | Event::StillArmed)) => {
                if event == Event::Withdrawn {
                    log::info!("configuration: the refused trial is withdrawn: no boot starts it");
                }
                self.resume();
                return 1;
            }
            Some(Event::Armed) => {
                self.end = Some(End::Reboot);
                Ok("the next boot tries the configuration; rebooting".into())
            }
            Some(Event::Wiped(sectors)) => Ok(wipe::report(&self.disks[*index], sectors)),
            Some(Event::Failed(why)) if self.saving.is_none() && !self.arming && !self.wiping => {
                // A revision could not be written. It stays in memory.
                log::error!("configuration: revision not kept: {why}");
                self.lifecycle.history.note_all_written();
                self.resume();
                return 1;
            }
            Some(Event::Failed(why)) => {
                self.saving = None;
                Err(why)
            }
        };
        (self.arming, self.wiping) = (false, false);
        if let Some(words) = self.upgrade_after_save.take()
            && let Ok(saved) = &outcome
        {
            let line = format!("the configuration of the image was {saved}");
            self.progress.push_back(Progress::Line(line));
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            if let Err(why) = self.order_upgrade(&words, true) {
                self.progress.push_back(Progress::Done(Err(why)));
            }
            return 1;
        }
        self.progress.push_back(Progress::Done(outcome));
        1
    }

    /// Continues an upgrade. Returns the amount of work.
    #[inline]
    fn poll_upgrade(&mut self) -> usize {
        // On most machines this test is all that a round costs.
        if self.services.upgrade.is_some() { self.advance_upgrade() } else { 0 }
    }

    fn advance_upgrade(&mut self) -> usize {
        let Some(upgrade) = self.services.upgrade.as_ref() else { return 0 };
        if self.is_saving() {
            return 0;
        }
        if upgrade.is_check_due(self.now) {
            let mut lacking = if upgrade.was_ready() { not_ready(self) } else { Vec::new() };
            lacking.extend(upgrade.missing(&self.doors(self.document.config())));
            let upgrade = self.services.upgrade.as_mut();
            if upgrade.is_some_and(|upgrade| !upgrade.judge(&lacking, self.now)) {
                self.end = Some(End::Reboot);
            }
        }
        let Some(upgrade) = self.services.upgrade.as_mut() else { return 0 };
        let (any, progress, restarts) = upgrade.step(&mut self.disks, self.now);
        if restarts {
            self.end = Some(End::Reboot);
        }
        self.progress.extend(progress);
        usize::from(any)
    }

    /// Access that a configuration grants, with the present volumes.
    pub(super) fn doors(&self, config: &Config) -> Vec<String> {
        config.doors(&self.plane.storage.wanted_exports(config))
    }

    /// Whether the config disk is being written.
    pub fn is_saving(&self) -> bool {
        self.config_disk.as_ref().is_some_and(|(_, engine)| engine.is_busy())
    }

    /// Polls the watchdog.
    #[inline]
    pub fn poll_watchdog(&mut self, now: Instant) {
        let trial = self.services.upgrade.as_ref().is_some_and(|upgrade| upgrade.is_on_trial());
        let wanted = match self.document.config().system.watchdog {
            0 if trial => TRIAL,
            seconds => seconds,
        };
        if self.watchdog.wants_poll(wanted, now) {
            self.watchdog.poll(wanted, now);
        }
    }

    /// The services, and their context.
    #[inline]
    pub(super) fn services<'a>(
        &'a mut self,
        networks: &'a mut [Network],
        now: Instant,
    ) -> (&'a mut Services, ServiceContext<'a>) {
        let State { services, plane, ports, own_ports, document, names, refused, .. } = self;
        let (config, resolver) = (document.config(), &mut names.resolver);
        let around =
            ServiceContext { networks, plane, ports, own_ports, config, resolver, refused, now };
        (services, around)
    }

    /// Polls all services. Returns the amount of work.
    pub fn poll_services(&mut self, networks: &mut [Network], now: Instant) -> usize {
        let (services, mut around) = self.services(networks, now);
        services.poll(&mut around)
    }
}
