//! Stages of a round that need the whole state: disks, services, the watchdog. Each method passes the parts of the
//! state to their owner.

use super::network::Network;
use super::plane_services::{LinxStage, TcpCarrier};
use super::service::{Service, ServiceContext};
use super::state::State;
use super::watchdog::TRIAL;
use crate::config::Config;
use crate::config::disk::Event;
use crate::console::Progress;
use core::time::Duration;
use drivers::hal::Instant;
use management::not_ready;
use management::orders::End;

/// Poll interval of disks and their sizes, because a poll reads registers.
const CAPACITY_INTERVAL: Duration = Duration::from_secs(1);

impl State {
    /// Polls disks and their sizes, and frees retired memory, when due.
    pub fn poll_capacities(&mut self, now: Instant) {
        if now >= self.capacity_due {
            self.capacity_due = now + CAPACITY_INTERVAL;
            self.rules_changed |= self.smc.as_ref().is_some_and(|smc| smc.rules.waits);
            self.disks.iter_mut().for_each(|slot| slot.look_after(now));
            self.plane.free_retired(now);
            self.plane.storage.check_geometries();
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
            Some(Event::Failed(why)) => Err(why),
        };
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
    #[inline(always)]
    fn poll_upgrade(&mut self) -> usize {
        // On most machines this test is all that a round costs.
        if self.upgrade.is_some() { self.advance_upgrade() } else { 0 }
    }

    fn advance_upgrade(&mut self) -> usize {
        let Some(upgrade) = self.upgrade.as_ref() else { return 0 };
        if self.is_saving() {
            return 0;
        }
        if upgrade.is_check_due(self.now) {
            let mut lacking = if upgrade.was_ready() { not_ready(self) } else { Vec::new() };
            lacking.extend(upgrade.missing(&self.doors(self.document.config())));
            let upgrade = self.upgrade.as_mut();
            if upgrade.is_some_and(|upgrade| !upgrade.judge(&lacking, self.now)) {
                self.end = Some(End::Reboot);
            }
        }
        let Some(upgrade) = self.upgrade.as_mut() else { return 0 };
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
        let trial = self.upgrade.as_ref().is_some_and(|upgrade| upgrade.is_on_trial());
        let wanted = match self.document.config().system.watchdog {
            0 if trial => TRIAL,
            seconds => seconds,
        };
        if self.watchdog.wants_poll(wanted, now) {
            self.watchdog.poll(wanted, now);
        }
    }

    /// Calls `act` with each present service, in the order of a round.
    #[inline(always)]
    fn with_services(
        &mut self,
        networks: &mut [Network],
        now: Instant,
        mut act: impl FnMut(&mut dyn Service, &mut ServiceContext<'_>),
    ) {
        let State { smc, rendezvous, upgrade, plane, ports, own_ports, document, refused, .. } =
            self;
        let config = document.config();
        let mut around = ServiceContext { networks, plane, ports, own_ports, config, refused, now };
        if let Some(smc) = smc {
            act(&mut **smc, &mut around);
        }
        if !around.plane.bridges.is_empty() {
            act(&mut TcpCarrier, &mut around);
        }
        if around.plane.linx.is_some() {
            act(&mut LinxStage, &mut around);
        }
        if let Some(rendezvous) = rendezvous {
            act(&mut **rendezvous, &mut around);
        }
        if let Some(upgrade) = upgrade {
            act(&mut **upgrade, &mut around);
        }
    }

    /// Polls all services. Returns the amount of work.
    pub fn poll_services(&mut self, networks: &mut [Network], now: Instant) -> usize {
        let mut done = 0;
        self.with_services(networks, now, |service, around| done += service.poll(around));
        done
    }

    /// Polls SMC-R alone. Returns the amount of work.
    pub fn poll_smc(&mut self, networks: &mut [Network], now: Instant) -> usize {
        let State { smc, plane, ports, own_ports, document, refused, .. } = self;
        let config = document.config();
        let Some(smc) = smc else { return 0 };
        smc.poll(&mut ServiceContext { networks, plane, ports, own_ports, config, refused, now })
    }

    /// When the next timer of a service expires.
    pub fn services_timeout(&self) -> Option<Instant> {
        let plane = &self.plane;
        let smc = self.smc.as_ref().and_then(|smc| smc.deadline(plane));
        let bridge = plane.bridges.first().and_then(|_| TcpCarrier.deadline(plane));
        let linx = plane.linx.as_ref().and_then(|_| LinxStage.deadline(plane));
        let rendezvous = self.rendezvous.as_ref().and_then(|one| one.deadline(plane));
        let upgrade = self.upgrade.as_ref().and_then(|one| one.deadline(plane));
        Instant::first([smc, bridge, linx, rendezvous, upgrade])
    }

    /// Makes all services disconnect their peers.
    pub fn shut_down_services(&mut self, networks: &mut [Network], now: Instant) {
        self.with_services(networks, now, |service, around| service.shut_down(around));
    }

    /// Whether all their peers are disconnected.
    pub fn services_are_shut_down(&self) -> bool {
        self.smc.as_ref().is_none_or(|smc| smc.is_shut_down())
            && self.rendezvous.as_ref().is_none_or(|one| one.is_shut_down())
            && TcpCarrier.is_shut_down()
            && LinxStage.is_shut_down()
    }
}
