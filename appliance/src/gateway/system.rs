//! What the console can do to the appliance.

use super::bridge::ntb_perf;
use super::disks::Role;
use super::manage;
use super::objects;
use super::remote_storage;
use super::rping::Rping;
use super::show;
use super::state::{End, PingOrder, State};
use crate::config::{Document, Entry, InForce, Kind, Origin, Problem, Source, is_secret};
use crate::console::{Managed, Progress, System, Topic};
use crate::crash;
use crate::families::{self, MEASURE, OfMeasure};
use crate::log_ring::LogRing;
use crate::report::Value;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Hold;
use perf_responders::rping::Options;

impl System for State {
    fn show(&mut self, topic: Topic) -> Value {
        show::topic(self, topic)
    }

    fn rows(&mut self, topic: Topic, from: usize, count: usize) -> Option<Vec<Value>> {
        show::rows(topic).map(|rows| rows(self, from, count))
    }

    fn document(&self) -> &Document {
        &self.document
    }

    fn set(&mut self, path: &str, value: &str) -> Result<String, Vec<Problem>> {
        self.document.set(path, value)?;
        let shown = if is_secret(path) { "(not shown)" } else { value };
        log::info!("console: set {path} {shown}");
        Ok(self.changed(path))
    }

    fn unset(&mut self, path: &str, force: bool) -> Result<String, Vec<Problem>> {
        if let Some(what) = self.document.loses(path).filter(|_| !force) {
            let text = format!("takes {what} away from its clients; `unset {path} force` does it");
            let origin = Origin { source: Source::Console, position: 0 };
            let (kind, path, accepted) = (Kind::Mistake, path.to_string(), String::new());
            return Err(vec![Problem { kind, origin, path, reason: text, accepted }]);
        }
        self.document.unset(path)?;
        log::info!("console: unset {path}");
        // Another entry may have its number by now.
        let is_entry = Entry::of(path).is_some_and(|entry| entry.to_string() == path);
        Ok(if is_entry { self.put_in_force(path) } else { self.changed(path) })
    }

    fn log(&self) -> &LogRing {
        self.log
    }

    fn has_unsaved(&self) -> bool {
        *self.document.config() != self.kept || !self.document.pending().is_empty()
    }

    fn start_save(&mut self) -> Result<(), String> {
        log::info!("console: save");
        if self.config_disk.is_some() {
            self.keep_queue_depth();
        }
        let text = self.document.to_toml();
        let Some((index, engine)) = &mut self.config_disk else {
            return Err("there is no config disk: make one with `./isthmus image config-disk` \
                 and attach it with the serial number isthmus-config"
                .into());
        };
        if self.upgrade.as_ref().is_some_and(|upgrade| upgrade.is_busy()) {
            return Err("the disk is being written for an upgrade; try again later".into());
        }
        debug_assert!(matches!(self.disks[*index].role, Role::Configuration | Role::Boot));
        engine.save(&text)?;
        self.saving = Some(self.document.config().clone());
        Ok(())
    }

    fn start_ping(&mut self, address: IpAddr, count: u32) -> Result<(), String> {
        if self.pinging {
            return Err("a ping is running".into());
        }
        self.pinging = true;
        let count = u16::try_from(count).unwrap_or(u16::MAX);
        self.ping_order = Some(PingOrder::Start(address, count));
        Ok(())
    }

    fn start_rping(&mut self, address: IpAddr, count: u32, size: usize) -> Result<(), String> {
        if !MEASURE {
            return Err(families::missing("measure"));
        }
        if self.plane.rdma_stack.is_none() {
            return Err(
                "there is no RDMA provider: no network interface, or `roce.enabled` is false"
                    .into(),
            );
        }
        let now = self.now;
        self.plane.rping = OfMeasure::hold(|| Rping::new(address, Options { count, size }, now));
        Ok(())
    }

    fn poll_task(&mut self) -> Option<Progress> {
        let rping = self.plane.rping.as_mut().and_then(|rping| rping.news());
        self.plane.rping.take_if(|rping| rping.is_over());
        rping
            .or_else(|| remote_storage::manage::poll_reading(self))
            .or_else(|| remote_storage::manage::poll_ending(self))
            .or_else(|| ntb_perf::poll(self))
            .or_else(|| self.plane.udp_engines.progress(self.now))
            .or_else(|| self.news.pop_front())
    }

    fn cancel_task(&mut self) {
        // A save cannot be ended half way: it is safe, and soon over.
        if self.pinging {
            self.ping_order = Some(PingOrder::Stop);
        }
        if let Some(rping) = &mut self.plane.rping {
            rping.cancel();
        }
        let remote_storage = self.plane.storage.remote_storage.as_mut();
        if let Some(reading) =
            remote_storage.and_then(|remote_storage| remote_storage.reading.as_mut())
        {
            reading.cancel();
        }
        if let Some(upgrade) = &mut self.upgrade {
            upgrade.cancel();
        }
        ntb_perf::cancel(self);
        self.plane.udp_engines.cancel();
    }

    fn list(&mut self, path: &str) -> Result<Vec<String>, String> {
        objects::list(self, path)
    }

    fn read(&mut self, path: &str) -> Result<Value, String> {
        objects::read(self, path)
    }

    fn write(&mut self, path: &str, value: &str) -> Result<(), String> {
        log::info!("console: write {path} {value}");
        objects::write(self, path, value)
    }

    fn manage(&mut self, what: &str, order: &str, rest: &str) -> Result<Managed, String> {
        if !matches!(order, "list" | "show" | "measure" | "read" | "ping" | "look") {
            log::info!("console: {what} {order} {rest}");
        }
        manage::act(self, what, order, rest)
    }

    fn reboot(&mut self) {
        log::info!("console: reboot");
        self.end = Some(End::Reboot);
    }

    fn power_off(&mut self) {
        log::info!("console: poweroff");
        self.end = Some(End::PowerOff);
    }
}

impl State {
    /// A value has changed at `path`: puts in force what can be, and says from when on it counts.
    fn changed(&mut self, path: &str) -> String {
        match self.document.pending_at(path) {
            Some(pending) => format!("pending, not in force: {pending}"),
            None => self.put_in_force(path),
        }
    }

    /// Puts in force what can be of a change at `path`, and says from when on it counts.
    fn put_in_force(&mut self, path: &str) -> String {
        let config = self.document.config();
        log::set_max_level(config.system.log_level);
        crash::set_policy(config.system.on_panic);
        let quiet_time = Duration::from_micros(config.system.idle_after_us.into());
        let echo = config.services.udp_echo;
        self.tell_planes(move |plane| plane.configure(quiet_time, echo));
        self.network_changed = true;
        self.plane.storage.apply_exports(self.document.config());
        let section = path.split('.').next().unwrap_or_default();
        self.rules_changed |= section == "rule";
        // What an engine was made with stays until the next start, but for its peers.
        if section == "usnic" {
            self.plane.udp_engines.configure(self.document.config(), self.now);
        }
        InForce::of(path).to_string()
    }
}
