//! [`Operator`]: the console's access to the appliance.

use crate::appliance::Appliance;
use crate::config::{Document, Entry, Export, InForce, Kind, Origin, Problem, Source, is_secret};
use crate::console::{Managed, Progress, System, Topic};
use crate::log_ring::{LogRing, audit};
use crate::orders::{End, Order};
use crate::report::Value;
use crate::{manage, objects, show};
use core::net::{IpAddr, SocketAddr};
use perf_responders::rping;
use std::borrow::Cow;

/// The operator at the console.
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
        let done = own_server(self.0, path, value)
            .map_or_else(|| self.0.document_mut().set(path, value), |problem| Err(vec![problem]));
        match &done {
            Ok(()) => audit(format_args!("console: set {path} {}", shown(path, value))),
            // The reason may quote a secret that was set under a wrong key, so it is shown on the console and not
            // logged.
            Err(_) => audit(format_args!("console: set {}: refused", cut(path))),
        }
        done?;
        Ok(self.changed(path))
    }

    fn unset(&mut self, path: &str, force: bool) -> Result<String, Vec<Problem>> {
        if let Some(what) = self.document().loses(path).filter(|_| !force) {
            audit(format_args!("console: unset {path}: refused: without force"));
            let text = format!(
                "would take {what} away from its clients; confirm with `unset {path} force`"
            );
            return Err(vec![problem(path, text)]);
        }
        let entry = Entry::of(path).filter(|entry| entry.to_string() == path);
        let exports = &self.document().config().export;
        let of_exports = entry.as_ref().filter(|entry| entry.section == "export");
        let gone = of_exports.and_then(|entry| exports.get(entry.index).cloned());
        let done = self.0.document_mut().unset(path);
        log_outcome(format_args!("unset {}", cut(path)), done.as_ref().err().map(|_| ""));
        done?;
        // After `unset`, the entry's number may belong to another entry.
        if entry.is_none() {
            return Ok(self.changed(path));
        }
        let effect = self.put_in_force(path);
        Ok(effect + &gone.map(|gone| self.openness_warnings(&gone)).unwrap_or_default())
    }

    fn log(&self) -> &LogRing {
        self.0.log()
    }

    fn has_unsaved(&self) -> bool {
        self.0.has_unsaved()
    }

    fn start_save(&mut self) -> Result<(), String> {
        let done = self.order(Order::Save);
        log_outcome(format_args!("save"), done.as_ref().err().map(String::as_str));
        done
    }

    fn start_ping(&mut self, address: IpAddr, count: u32, size: u16) -> Result<(), String> {
        self.order(Order::Ping(address, u16::try_from(count).unwrap_or(u16::MAX), size))
    }

    fn start_rping(&mut self, address: IpAddr, count: u32, size: usize) -> Result<(), String> {
        self.order(Order::Rping(address, rping::Options { count, size }))
    }

    fn poll_task(&mut self) -> Option<Progress> {
        self.0.progress()
    }

    fn cancel_task(&mut self) {
        // `Order::Cancel` cannot fail.
        let _ = self.order(Order::Cancel);
    }

    fn list(&mut self, path: &str) -> Result<Vec<String>, String> {
        objects::list(self.0, path)
    }

    fn read(&mut self, path: &str) -> Result<Value, String> {
        objects::read(self.0, path)
    }

    fn write(&mut self, path: &str, value: &str) -> Result<(), String> {
        let done = objects::write(self.0, path, value);
        log_outcome(format_args!("write {path} {value}"), done.as_ref().err().map(String::as_str));
        done
    }

    fn manage(&mut self, what: &str, order: &str, rest: &str) -> Result<Managed, String> {
        let done = manage::act(self.0, what, order, rest);
        if !matches!(order, "list" | "show" | "measure" | "read" | "ping" | "look") {
            let why = done.as_ref().err().map(|why| without_logins(why));
            let rest = without_logins(rest);
            log_outcome(format_args!("{what} {order} {rest}"), why.as_deref());
        }
        done
    }

    fn reboot(&mut self) {
        audit(format_args!("console: reboot"));
        let _ = self.order(Order::End(End::Reboot));
    }

    fn power_off(&mut self) {
        audit(format_args!("console: poweroff"));
        let _ = self.order(Order::End(End::PowerOff));
    }
}

/// Maximum bytes of a value in the log.
const SHOWN: usize = 80;

/// Logs a command as executed or started, or as refused with the reason.
fn log_outcome(command: core::fmt::Arguments<'_>, refused: Option<&str>) {
    match refused {
        None => audit(format_args!("console: {command}")),
        Some("") => audit(format_args!("console: {command}: refused")),
        Some(why) => audit(format_args!("console: {command}: refused: {why}")),
    }
}

/// A value for the log: secrets hidden, long values cut.
fn shown<'a>(path: &str, value: &'a str) -> Cow<'a, str> {
    if is_secret(path) || value.contains("PRIVATE KEY") {
        return "(not shown)".into();
    }
    cut(value)
}

/// A text cut to [`SHOWN`] bytes.
fn cut(text: &str) -> Cow<'_, str> {
    match text.len() > SHOWN {
        true => format!("{}…", &text[..text.floor_char_boundary(SHOWN)]).into(),
        false => text.into(),
    }
}

/// A text with user names and passwords removed from its URLs.
fn without_logins(text: &str) -> Cow<'_, str> {
    let has_login = |word: &str| word.contains("://") && word.contains('@');
    if !text.split(' ').any(has_login) {
        return text.into();
    }
    let words = text.split(' ').map(|word| match (word.split_once("://"), word.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://…@{rest}"),
        _ => word.to_string(),
    });
    words.collect::<Vec<_>>().join(" ").into()
}

fn problem(path: &str, reason: String) -> Problem {
    let origin = Origin { source: Source::Console, position: 0 };
    let (kind, path, accepted) = (Kind::Mistake, path.to_string(), String::new());
    Problem { kind, origin, path, reason, accepted }
}

/// The addresses of a list in a form that `set` accepts: separated by commas, or a TOML array.
fn servers(value: &str) -> impl Iterator<Item = SocketAddr> + '_ {
    let is_quote = |c: char| c.is_whitespace() || matches!(c, '"' | '\'');
    value.split(',').filter_map(move |word| {
        let word = word.trim_matches(is_quote);
        let first = word.strip_prefix('[').unwrap_or(word).trim_matches(is_quote);
        let last = first.strip_suffix(']').unwrap_or(first).trim_matches(is_quote);
        let last_of_more = word.strip_suffix(']').unwrap_or(word).trim_matches(is_quote);
        [word, first, last, last_of_more].iter().find_map(|word| word.parse().ok())
    })
}

/// Problem of a rule's backend at an address that the appliance has now, including one by DHCP.
fn own_server(appliance: &dyn Appliance, path: &str, value: &str) -> Option<Problem> {
    let is_backend = path.starts_with("rule.") && path.ends_with(".backend");
    if !is_backend {
        return None;
    }
    let ports = appliance.ports();
    let ours = |ip: IpAddr| {
        let mut own = ports.iter().flat_map(|port| &port.addresses.list);
        own.any(|cidr| cidr.split('/').next().and_then(|own| own.parse().ok()) == Some(ip))
    };
    let own = servers(value).find(|server| ours(server.ip().to_canonical()))?;
    let reason = format!(
        "{own} is an address of the appliance: a rule cannot connect to the appliance itself"
    );
    Some(problem(path, reason))
}

impl Operator<'_> {
    fn order(&mut self, order: Order<'_>) -> Result<(), String> {
        self.0.carry_out(order).map(drop)
    }

    /// Applies a changed value at `path`. Returns when the change takes effect, for the operator.
    fn changed(&mut self, path: &str) -> String {
        match self.document().pending_at(path) {
            Some(pending) => format!("pending, not in force: {pending}"),
            None => {
                let effect = self.put_in_force(path);
                let entry = Entry::of(path).filter(|entry| entry.section == "export");
                let exports = &self.document().config().export;
                let export = entry.and_then(|entry| exports.get(entry.index));
                effect + &export.map(|export| self.openness_warnings(export)).unwrap_or_default()
            }
        }
    }

    /// Warnings about access that remains after an export was changed or removed.
    fn openness_warnings(&self, export: &Export) -> String {
        let warnings = manage::openness::warnings(self.0, &export.name, &export.volume);
        warnings.lines().map(|line| format!("\n{line}")).collect()
    }

    /// Applies a change at `path` where that needs no reboot. Returns when the change takes effect.
    fn put_in_force(&mut self, path: &str) -> String {
        match self.order(Order::PutInForce(path)) {
            Ok(()) => InForce::of(path).to_string(),
            Err(why) => why,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_logins_are_not_shown() {
        assert_eq!(shown("http.key", "x"), "(not shown)");
        assert_eq!(shown("http.token_sha256", "4e73"), "(not shown)");
        assert_eq!(shown("system.upgrade_key", "19bf"), "(not shown)");
        assert_eq!(shown("http.kye", "x"), "(not shown)");
        assert_eq!(shown("http.certificate", "-----BEGIN EC PRIVATE KEY-----"), "(not shown)");
        assert_eq!(shown("http.port", "81"), "81");
        assert_eq!(shown("http.certificate", &"é".repeat(100)), format!("{}…", "é".repeat(40)));
        let rest = "http://me:pass@word@10.0.0.1/release force";
        assert_eq!(without_logins(rest), "http://…@10.0.0.1/release force");
        assert_eq!(without_logins("NAME a@b"), "NAME a@b");
    }

    #[test]
    fn servers_are_parsed_from_every_form_of_a_list() {
        for (text, expected) in [
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("10.0.0.1:80,10.0.0.2:81", "10.0.0.1:80 10.0.0.2:81"),
            ("[\"10.0.0.1:80\", '10.0.0.2:81']", "10.0.0.1:80 10.0.0.2:81"),
            ("[fd00::1]:80, [fd00::2]:80", "[fd00::1]:80 [fd00::2]:80"),
            ("[\"[fd00::1]:80\", \"[fd00::2]:80\"]", "[fd00::1]:80 [fd00::2]:80"),
            ("linx:a/b", ""),
        ] {
            let found: Vec<String> = servers(text).map(|server| server.to_string()).collect();
            assert_eq!(found.join(" "), expected, "{text}");
        }
    }
}
