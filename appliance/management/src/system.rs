//! What the console can do to the appliance.

use crate::appliance::Appliance;
use crate::config::{Document, Entry, Export, InForce, Kind, Origin, Problem, Source, is_secret};
use crate::console::{Managed, Progress, System, Topic};
use crate::log_ring::LogRing;
use crate::orders::{End, Order};
use crate::report::Value;
use crate::{manage, objects, show};
use core::net::IpAddr;
use perf_responders::rping;

/// Whoever sits at the console, before the appliance.
pub struct Operator<'a>(pub &'a mut dyn Appliance);

impl System for Operator<'_> {
    fn show(&mut self, topic: Topic) -> Value {
        show::topic(self.0, topic)
    }

    fn rows(&mut self, topic: Topic, from: usize, count: usize) -> Option<Vec<Value>> {
        show::rows(topic).map(|rows| rows(self.0, from, count))
    }

    fn document(&self) -> &Document {
        self.0.document()
    }

    fn set(&mut self, path: &str, value: &str) -> Result<String, Vec<Problem>> {
        self.0.document_mut().set(path, value)?;
        let shown = if is_secret(path) { "(not shown)" } else { value };
        log::info!("console: set {path} {shown}");
        Ok(self.changed(path))
    }

    fn unset(&mut self, path: &str, force: bool) -> Result<String, Vec<Problem>> {
        if let Some(what) = self.document().loses(path).filter(|_| !force) {
            let text = format!("takes {what} away from its clients; `unset {path} force` does it");
            let origin = Origin { source: Source::Console, position: 0 };
            let (kind, path, accepted) = (Kind::Mistake, path.to_string(), String::new());
            return Err(vec![Problem { kind, origin, path, reason: text, accepted }]);
        }
        let entry = Entry::of(path).filter(|entry| entry.to_string() == path);
        let exports = &self.document().config().export;
        let of_exports = entry.as_ref().filter(|entry| entry.section == "export");
        let gone = of_exports.and_then(|entry| exports.get(entry.index).cloned());
        self.0.document_mut().unset(path)?;
        log::info!("console: unset {path}");
        // Another entry may have its number by now.
        if entry.is_none() {
            return Ok(self.changed(path));
        }
        let told = self.put_in_force(path);
        Ok(told + &gone.map(|gone| self.left_open(&gone)).unwrap_or_default())
    }

    fn log(&self) -> &LogRing {
        self.0.log()
    }

    fn has_unsaved(&self) -> bool {
        self.0.has_unsaved()
    }

    fn start_save(&mut self) -> Result<(), String> {
        log::info!("console: save");
        self.order(Order::Save)
    }

    fn start_ping(&mut self, address: IpAddr, count: u32) -> Result<(), String> {
        self.order(Order::Ping(address, u16::try_from(count).unwrap_or(u16::MAX)))
    }

    fn start_rping(&mut self, address: IpAddr, count: u32, size: usize) -> Result<(), String> {
        self.order(Order::Rping(address, rping::Options { count, size }))
    }

    fn poll_task(&mut self) -> Option<Progress> {
        self.0.progress()
    }

    fn cancel_task(&mut self) {
        // It cannot fail.
        let _ = self.order(Order::Cancel);
    }

    fn list(&mut self, path: &str) -> Result<Vec<String>, String> {
        objects::list(self.0, path)
    }

    fn read(&mut self, path: &str) -> Result<Value, String> {
        objects::read(self.0, path)
    }

    fn write(&mut self, path: &str, value: &str) -> Result<(), String> {
        log::info!("console: write {path} {value}");
        objects::write(self.0, path, value)
    }

    fn manage(&mut self, what: &str, order: &str, rest: &str) -> Result<Managed, String> {
        if !matches!(order, "list" | "show" | "measure" | "read" | "ping" | "look") {
            log::info!("console: {what} {order} {rest}");
        }
        manage::act(self.0, what, order, rest)
    }

    fn reboot(&mut self) {
        log::info!("console: reboot");
        let _ = self.order(Order::End(End::Reboot));
    }

    fn power_off(&mut self) {
        log::info!("console: poweroff");
        let _ = self.order(Order::End(End::PowerOff));
    }
}

impl Operator<'_> {
    fn order(&mut self, order: Order<'_>) -> Result<(), String> {
        self.0.carry_out(order).map(drop)
    }

    /// A value has changed at `path`: puts in force what can be, and says from when on it counts.
    fn changed(&mut self, path: &str) -> String {
        match self.document().pending_at(path) {
            Some(pending) => format!("pending, not in force: {pending}"),
            None => {
                let told = self.put_in_force(path);
                let entry = Entry::of(path).filter(|entry| entry.section == "export");
                let exports = &self.document().config().export;
                let export = entry.and_then(|entry| exports.get(entry.index));
                told + &export.map(|export| self.left_open(export)).unwrap_or_default()
            }
        }
    }

    /// What an export that was changed, or is gone, leaves open.
    fn left_open(&self, export: &Export) -> String {
        let left = manage::openness::told(self.0, &export.name, &export.volume);
        left.lines().map(|line| format!("\n{line}")).collect()
    }

    /// Puts in force what can be of a change at `path`, and says from when on it counts.
    fn put_in_force(&mut self, path: &str) -> String {
        match self.order(Order::PutInForce(path)) {
            Ok(()) => InForce::of(path).to_string(),
            Err(why) => why,
        }
    }
}
