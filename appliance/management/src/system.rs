//! [`Operator`]: the access of the console, and of commands over HTTP, to the appliance.

use crate::appliance::Appliance;
use crate::audit::Line;
use crate::caller::Caller;
use crate::config::{
    Document, Entry, Export, InForce, Kind, Origin, Problem, Role, Source, is_secret,
};
use crate::configure;
use crate::console::{
    ExportVerb, Managed, MetricsPlace, MirrorVerb, NtbVerb, ObjectVerb, Progress, RemoteVerb,
    Session, System, Topic, VolumeVerb,
};
use crate::cuts::live_cuts;
use crate::log_ring::{LogRing, audit, audit_refused};
use crate::orders::{End, Order};
use crate::report::Value;
use crate::{doctor, login, manage, metrics, objects, remote, show, task};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use perf_responders::rping;
use std::borrow::Cow;

/// An operator, at the console or over HTTP.
pub struct Operator<'a> {
    appliance: &'a mut dyn Appliance,
    caller: Caller,
}

impl<'a> Operator<'a> {
    /// The operator at the console.
    pub fn console(appliance: &'a mut dyn Appliance) -> Self {
        Operator { appliance, caller: Caller::console() }
    }

    /// An operator with a name, an address and a role.
    pub fn new(appliance: &'a mut dyn Appliance, caller: Caller) -> Self {
        Operator { appliance, caller }
    }

    /// Records the running configuration as a revision if it has changed.
    fn record(&mut self, what: &str) {
        configure::record(self.appliance, &self.caller, what, "");
    }

    /// Whom a change of the running document would cut off at once, with the word that confirms it.
    fn cut_off(
        &self,
        change: impl FnOnce(&mut Document) -> Result<(), Vec<Problem>>,
        word: &str,
    ) -> Option<String> {
        let mut new = self.appliance.document().clone();
        change(&mut new).ok()?;
        let lines = live_cuts(self.appliance, &self.caller, new.config());
        let all = lines.join("; ");
        (!lines.is_empty())
            .then(|| format!("cuts off: {all}; repeat the command with `{word}` at its end"))
    }

    /// Logs a command as executed or started, or as refused with the reason.
    fn log_outcome(&self, command: core::fmt::Arguments<'_>, refused: Option<&str>) {
        let caller = &self.caller;
        match refused {
            None => audit(caller, command),
            Some("") => audit_refused(caller, format_args!("{command}: refused")),
            Some(why) => audit_refused(caller, format_args!("{command}: refused: {why}")),
        }
    }
}

/// A user at the console.
fn at_console(user: &Session) -> Caller {
    Caller { name: user.name.clone(), role: user.role, ..Caller::console() }
}

impl System for Operator<'_> {
    fn caller(&self) -> Caller {
        self.caller.clone()
    }

    fn needs(&mut self, role: Role, line: &str) -> Result<(), String> {
        let allowed = self.caller.needs(role);
        if let Err(why) = &allowed {
            let words = line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
            self.log_outcome(format_args!("{}", cut(&words)), Some(why));
        }
        allowed
    }

    fn show(&mut self, topic: Topic) -> Value {
        show::topic(self.appliance, topic)
    }

    fn rows(&mut self, topic: Topic, from: usize, count: usize) -> Option<Vec<Value>> {
        show::rows(topic).map(|rows| rows(self.appliance, from, count))
    }

    fn unix_seconds(&self) -> u64 {
        let machine = self.appliance.machine();
        machine.clock.at(machine.now).0.as_secs()
    }

    fn metrics(&mut self, from: &mut MetricsPlace, into: &mut String, room: usize) -> bool {
        metrics::write_piece(self.appliance, from, into, room)
    }

    fn start_doctor(&mut self) {
        doctor::start(self.appliance);
    }

    fn poll_doctor(&mut self, json: bool) -> Option<String> {
        doctor::is_done(self.appliance).then(|| doctor::result(self.appliance, json))
    }

    fn document(&self) -> &Document {
        self.appliance.document()
    }

    fn set(&mut self, path: &str, value: &str) -> Result<String, Vec<Problem>> {
        let (value, yes) = match value.trim_end().strip_suffix(" --yes") {
            Some(value) => (value, true),
            None => (value, false),
        };
        let on_trial = self.unless_on_trial().err().map(|why| problem(path, why));
        let wrong = on_trial.or_else(|| own_server(self.appliance, path, value));
        let ask = || self.cut_off(|document| document.set(path, value), "--yes");
        let wrong = wrong.or_else(|| (!yes).then(ask).flatten().map(|why| problem(path, why)));
        let done = wrong.map_or_else(
            || self.appliance.document_mut().set(path, value),
            |problem| Err(vec![problem]),
        );
        match &done {
            Ok(()) => audit(&self.caller, format_args!("set {path} {}", shown(path, value))),
            // The reason may quote a secret that was set under a wrong key, so it is shown on the console and not
            // logged.
            Err(_) => audit_refused(&self.caller, format_args!("set {}: refused", cut(path))),
        }
        done?;
        let effect = self.changed(path);
        self.record("set");
        Ok(effect)
    }

    fn unset(&mut self, path: &str, force: bool) -> Result<String, Vec<Problem>> {
        if let Err(why) = self.unless_on_trial() {
            self.log_outcome(format_args!("unset {}", cut(path)), Some(&why));
            return Err(vec![problem(path, why)]);
        }
        if let Some(what) = self.document().loses(path).filter(|_| !force) {
            self.log_outcome(format_args!("unset {path}"), Some("without force"));
            let text = format!(
                "would take {what} away from its clients; confirm with `unset {path} force`"
            );
            return Err(vec![problem(path, text)]);
        }
        let ask = || self.cut_off(|document| document.unset(path), "force");
        if let Some(why) = (!force).then(ask).flatten() {
            self.log_outcome(format_args!("unset {}", cut(path)), Some("without force"));
            return Err(vec![problem(path, why)]);
        }
        let entry = Entry::of(path).filter(|entry| entry.to_string() == path);
        let exports = &self.document().config().export;
        let of_exports = entry.as_ref().filter(|entry| entry.section == "export");
        let gone = of_exports.and_then(|entry| exports.get(entry.index).cloned());
        let done = self.appliance.document_mut().unset(path);
        self.log_outcome(format_args!("unset {}", cut(path)), done.as_ref().err().map(|_| ""));
        done?;
        self.record("unset");
        // After `unset`, the entry's number may belong to another entry.
        if entry.is_none() {
            return Ok(self.changed(path));
        }
        let effect = self.put_in_force(path);
        Ok(effect + &gone.map(|gone| self.openness_warnings(&gone)).unwrap_or_default())
    }

    fn log(&self) -> &LogRing {
        self.appliance.log()
    }

    fn audit(&self, from: usize, count: usize) -> Vec<Line> {
        self.appliance.audit().page(from, count)
    }

    fn asks_for_login(&self) -> bool {
        self.appliance.document().config().asks_for_login()
    }

    fn idle_logout(&self) -> Option<Duration> {
        self.appliance.document().config().idle_logout()
    }

    fn log_in(&mut self, name: &str, token: &[u8]) -> Option<Session> {
        let found = login::session(self.appliance.document().config(), name, token);
        match &found {
            Some(user) => audit(&at_console(user), format_args!("login")),
            // The name may be a token that was typed at the wrong place.
            None => {
                let nobody = Caller { role: Role::Read, ..Caller::console() };
                audit_refused(&nobody, format_args!("login: refused: wrong name or token"));
            }
        }
        found
    }

    fn is_known(&self, user: &Session) -> bool {
        login::is_known(self.appliance.document().config(), user)
    }

    fn note_logout(&mut self, user: &Session, how: &str) {
        audit(&at_console(user), format_args!("{how}"));
    }

    fn has_unsaved(&self) -> bool {
        self.appliance.has_unsaved()
    }

    fn start_save(&mut self) -> Result<(), String> {
        let done = self.start(Order::Save);
        self.log_outcome(format_args!("save"), done.as_ref().err().map(String::as_str));
        done
    }

    fn start_ping(&mut self, address: IpAddr, count: u32, size: u16) -> Result<(), String> {
        self.start(Order::Ping(address, u16::try_from(count).unwrap_or(u16::MAX), size))
    }

    fn start_rping(&mut self, address: IpAddr, count: u32, size: usize) -> Result<(), String> {
        self.start(Order::Rping(address, rping::Options { count, size }))
    }

    fn poll_task(&mut self) -> Option<Progress> {
        task::follow(self.appliance)
    }

    fn cancel_task(&mut self) {
        // `Order::Cancel` cannot fail.
        let _ = self.order(Order::Cancel);
    }

    fn list(&mut self, path: &str) -> Result<Vec<String>, String> {
        objects::list(self.appliance, path)
    }

    fn read(&mut self, path: &str) -> Result<Value, String> {
        objects::read(self.appliance, path)
    }

    fn write(&mut self, path: &str, value: &str) -> Result<Managed, String> {
        let allowed = self.caller.needs(objects::role_to_write(path));
        let done = allowed.and_then(|()| match remote::command(path, value) {
            // It logs what it does.
            Some(command) => {
                let (verb, rest) = command?;
                self.manage(verb, &rest)
            }
            None if objects::starts_task(path) => {
                task::start(self.appliance, &self.caller, |appliance| {
                    objects::write(appliance, path, value)
                })
            }
            None => objects::write(self.appliance, path, value),
        });
        self.log_outcome(
            format_args!("write {path} {}", cut(value)),
            done.as_ref().err().map(String::as_str),
        );
        done
    }

    fn manage(&mut self, verb: ObjectVerb, rest: &str) -> Result<Managed, String> {
        if let ObjectVerb::Configure(verb) = verb {
            // It logs what it does.
            return configure::act(self.appliance, &self.caller, verb, rest);
        }
        let on_trial = if changes_configuration(verb) { self.unless_on_trial() } else { Ok(()) };
        let done = on_trial.and_then(|()| match runs_longer(verb) {
            true => task::start(self.appliance, &self.caller, |appliance| {
                manage::act(appliance, verb, rest)
            }),
            false => manage::act(self.appliance, verb, rest),
        });
        if verb.is_change() {
            let why = done.as_ref().err().map(|why| without_logins(why));
            let (words, rest) = (verb.words().join(" "), without_logins(rest));
            self.log_outcome(format_args!("{words} {rest}"), why.as_deref());
            if done.is_ok() {
                self.record(&words);
            }
        }
        done
    }

    fn reboot(&mut self) {
        audit(&self.caller, format_args!("reboot"));
        let _ = self.order(Order::End(End::Reboot));
    }

    fn power_off(&mut self) {
        audit(&self.caller, format_args!("poweroff"));
        let _ = self.order(Order::End(End::PowerOff));
    }
}

/// Whether a command may run longer than one call.
fn runs_longer(verb: ObjectVerb) -> bool {
    match verb {
        ObjectVerb::Volume(verb) => {
            matches!(verb, VolumeVerb::Create | VolumeVerb::Grow | VolumeVerb::Delete)
        }
        ObjectVerb::Remote(verb) => matches!(verb, RemoteVerb::Read),
        ObjectVerb::Mirror(verb) => matches!(verb, MirrorVerb::Remove),
        ObjectVerb::Ntb(verb) => matches!(verb, NtbVerb::Measure),
        ObjectVerb::Name(_)
        | ObjectVerb::Usnic(_)
        | ObjectVerb::Upgrade(_)
        | ObjectVerb::Wipe => true,
        ObjectVerb::Export(_)
        | ObjectVerb::Session(_)
        | ObjectVerb::Device(_)
        | ObjectVerb::Path(_)
        | ObjectVerb::Nvme(_)
        // These know it themselves.
        | ObjectVerb::Configure(_) => false,
    }
}

/// Whether a command changes the running configuration.
fn changes_configuration(verb: ObjectVerb) -> bool {
    match verb {
        ObjectVerb::Volume(verb) => !matches!(verb, VolumeVerb::List | VolumeVerb::Show),
        ObjectVerb::Export(verb) => !matches!(verb, ExportVerb::List),
        ObjectVerb::Remote(verb) => matches!(verb, RemoteVerb::Add | RemoteVerb::Remove),
        ObjectVerb::Mirror(verb) => matches!(verb, MirrorVerb::Create | MirrorVerb::Remove),
        _ => false,
    }
}

/// Maximum bytes of a value in the log.
const SHOWN: usize = 80;

/// A value for the log: secrets hidden, long values cut.
pub(crate) fn shown<'a>(path: &str, value: &'a str) -> Cow<'a, str> {
    if is_secret(path) || sets_secret(value) {
        return HIDDEN.into();
    }
    cut(value)
}

/// What the log shows instead of a secret.
const HIDDEN: &str = "(not shown)";
/// Marks of a private key, and of secrets of NVMe hosts.
const MARKS: [&str; 3] = ["PRIVATE KEY", "DHHC-1:", "TLSkey-1:"];

fn has_mark(text: &str) -> bool {
    MARKS.iter().any(|mark| text.contains(mark))
}

/// Whether a value is a table or a list of tables in one line with a secret key.
fn sets_secret(value: &str) -> bool {
    let key = |at: usize| {
        let before = value[..at].trim_end_matches(|c: char| c.is_whitespace() || "\"'".contains(c));
        let is_key = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        &before[before.trim_end_matches(is_key).len()..]
    };
    value.contains('{') && value.match_indices('=').any(|(at, _)| is_secret(key(at)))
}

/// A text cut to [`SHOWN`] bytes. One that has a secret is hidden.
pub(crate) fn cut(text: &str) -> Cow<'_, str> {
    match text.len() > SHOWN {
        _ if has_mark(text) => HIDDEN.into(),
        true => format!("{}…", &text[..text.floor_char_boundary(SHOWN)]).into(),
        false => text.into(),
    }
}

/// A text with user names and passwords removed from its URLs. One that has a secret is hidden.
fn without_logins(text: &str) -> Cow<'_, str> {
    if has_mark(text) {
        return HIDDEN.into();
    }
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
    /// Starts a command that runs longer than one call.
    fn start(&mut self, order: Order<'_>) -> Result<(), String> {
        let run =
            |appliance: &mut dyn Appliance| appliance.carry_out(order).map(|_| Managed::Started);
        task::start(self.appliance, &self.caller, run).map(drop)
    }

    /// Refuses changes of the running configuration while a commit is on trial: they would be taken back with it.
    fn unless_on_trial(&self) -> Result<(), String> {
        match self.appliance.lifecycle().trial {
            None => Ok(()),
            Some(_) => Err(configure::WAITS.into()),
        }
    }

    fn order(&mut self, order: Order<'_>) -> Result<(), String> {
        self.appliance.carry_out(order).map(drop)
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
        let warnings = manage::openness::warnings(self.appliance, &export.name, &export.volume);
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
    use crate::console::ConfigureVerb;

    #[test]
    fn no_change_of_the_configuration_is_taken_back_with_a_trial() {
        for verb in [
            ObjectVerb::Volume(VolumeVerb::Create),
            ObjectVerb::Volume(VolumeVerb::Delete),
            ObjectVerb::Export(ExportVerb::Remove),
            ObjectVerb::Remote(RemoteVerb::Add),
            ObjectVerb::Mirror(MirrorVerb::Remove),
        ] {
            assert!(changes_configuration(verb), "{verb:?}");
        }
        for verb in [
            ObjectVerb::Volume(VolumeVerb::List),
            ObjectVerb::Mirror(MirrorVerb::Attach),
            ObjectVerb::Configure(ConfigureVerb::Confirm),
        ] {
            assert!(!changes_configuration(verb) && !runs_longer(verb), "{verb:?}");
        }
    }

    #[test]
    fn secrets_and_logins_are_not_shown() {
        assert_eq!(shown("http.key", "x"), "(not shown)");
        assert_eq!(shown("http.token_sha256", "4e73"), "(not shown)");
        assert_eq!(shown("system.upgrade_key", "19bf"), "(not shown)");
        assert_eq!(shown("http.kye", "x"), "(not shown)");
        assert_eq!(shown("http.certificate", "-----BEGIN EC PRIVATE KEY-----"), "(not shown)");
        assert_eq!(shown("http.port", "81"), "81");
        // A whole list, and a secret at a wrong place.
        let (dhchap, psk) = ("DHHC-1:00:ERERERERERER:", "NVMeTLSkey-1:01:IiIiIiIiIiIi:");
        let list = format!("[{{ nqn = \"nqn.2026-01.h:1\", dhchap_secret = \"{dhchap}\" }}]");
        assert_eq!(shown("nvme_host", &list), "(not shown)");
        assert_eq!(shown("user", "[{name=\"ann\",\"token_sha256\"=\"4e73\"}]"), "(not shown)");
        assert_eq!(shown("rule", "[{name=\"a\",listen=80}]"), "[{name=\"a\",listen=80}]");
        for secret in [dhchap, psk] {
            assert_eq!(shown("system.hostname", secret), "(not shown)");
            assert_eq!(cut(&format!("nvme_host.0.dhchap={secret}")), "(not shown)");
            assert_eq!(without_logins(&format!("a {secret}")), "(not shown)");
        }
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
