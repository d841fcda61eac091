//! Commands for the candidate and the revisions: `configure`, `compare`, `check`, `commit`, `confirm`, `rollback`. The
//! console and HTTP share them.
//!
//! A change of the running configuration is a new revision: [`put_in_force`] for whole documents, [`record`] for the
//! commands that change a part of it.

use crate::appliance::{Appliance, Told};
use crate::caller::Caller;
use crate::config::{Change, Config, Document, Export, Remote, Source, Trial, Volume, compare};
use crate::console::{ConfigureVerb, Managed};
use crate::cuts::{OPENS, cuts, opened};
use crate::effects::{after_reboot, changes_of, delayed};
use crate::leaving;
use crate::log_ring::{audit, audit_refused};
use crate::manage;
use crate::orders::Order;
use crate::report::Value;
use crate::task;
use crate::words::lines;
use core::fmt::Write as _;
use core::time::Duration;
use messaging::names::Target;

/// Longest time for a confirmation.
const MOST_MINUTES: u64 = 24 * 60;
/// Shortest time for a confirmation, in seconds.
const LEAST_SECONDS: u64 = 5;

/// How a configuration is put in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Seconds after which it is taken back without a confirmation.
    pub seconds: Option<u64>,
    /// The next boot tries it.
    pub reboot: bool,
    /// The operator's comment.
    pub comment: String,
    /// Whom it cuts off is accepted.
    pub yes: bool,
}

/// Why a configuration is not put in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It cuts these off, which was not accepted.
    Cuts(Vec<String>),
    /// It cannot be in force.
    Why(String),
}

/// Result of putting a configuration in force.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    /// The changed keys.
    pub changes: Vec<Change>,
    /// Number of the revision.
    pub revision: u64,
    /// What the operator should know, a line each.
    pub notes: Vec<String>,
    /// A task was started: a trial is written, then the machine reboots.
    pub started: bool,
}

impl Terms {
    /// Parses `[confirmed MINUTES [reboot]] [comment TEXT] [--yes]`.
    pub fn parse(words: &[&str]) -> Result<Terms, String> {
        let mut terms = Terms::default();
        let mut rest = words;
        if let [before @ .., "--yes"] = rest {
            (terms.yes, rest) = (true, before);
        }
        while let [word, after @ ..] = rest {
            rest = match (*word, after) {
                ("--yes", _) => {
                    terms.yes = true;
                    after
                }
                ("confirmed", [minutes, after @ ..]) => {
                    terms.seconds = Some(seconds_of(minutes)?);
                    after
                }
                ("reboot", _) if terms.seconds.is_some() => {
                    terms.reboot = true;
                    after
                }
                ("comment", [_, ..]) => {
                    terms.comment = after.join(" ");
                    &[]
                }
                _ => {
                    return Err(format!(
                        "{word:?} is not understood; accepted: [confirmed MINUTES [reboot]] \
                         [comment TEXT] [--yes]"
                    ));
                }
            };
        }
        Ok(terms)
    }
}

/// Seconds of a time: a number of minutes, or with the suffix `s` of seconds.
fn seconds_of(text: &str) -> Result<u64, String> {
    let seconds = match text.strip_suffix('s') {
        Some(seconds) => seconds.parse().ok(),
        None => text.parse::<u64>().ok().and_then(|minutes| minutes.checked_mul(60)),
    };
    let accepted = LEAST_SECONDS..=60 * MOST_MINUTES;
    seconds.filter(|seconds| accepted.contains(seconds)).ok_or_else(|| {
        format!(
            "{text:?} is not a time; accepted: 1 to {MOST_MINUTES} minutes, or seconds such as 30s"
        )
    })
}

/// Executes a command of the console.
pub(crate) fn act(
    appliance: &mut dyn Appliance,
    caller: &Caller,
    verb: ConfigureVerb,
    rest: &str,
) -> Told {
    let words: Vec<&str> = rest.split_whitespace().collect();
    let told = |text: String| Ok(Managed::Told(text));
    match verb {
        ConfigureVerb::Set => {
            let (path, value) = rest.trim().split_once(char::is_whitespace).unwrap_or((rest, ""));
            let (path, value) = (path.trim(), value.trim());
            let shown = crate::system::shown(path, value);
            audit(caller, format_args!("configure set {} {shown}", crate::system::cut(path)));
            told(edit(appliance, caller, |document| document.set(path, value))?)
        }
        ConfigureVerb::Unset => {
            audit(caller, format_args!("configure unset {}", crate::system::cut(rest)));
            told(edit(appliance, caller, |document| document.unset(rest.trim()))?)
        }
        ConfigureVerb::Load => {
            audit(caller, format_args!("configure paste"));
            told(edit(appliance, caller, |document| {
                *document = document.replaced(rest.as_bytes(), Source::Console)?;
                Ok(())
            })?)
        }
        ConfigureVerb::Show => told(match &appliance.lifecycle().candidate {
            None => return Err(NO_CANDIDATE.into()),
            Some(candidate) => {
                candidate.document.to_text(false) + &candidate.document.pending_toml()
            }
        }),
        ConfigureVerb::Discard => match discard(appliance, caller) {
            true => told("the candidate is discarded\n".into()),
            false => Err(NO_CANDIDATE.into()),
        },
        ConfigureVerb::History => told(match rest {
            "json" => history(appliance).to_json() + "\n",
            _ => history(appliance).to_text(),
        }),
        ConfigureVerb::Compare => {
            let revision = words.first().copied();
            let mut text = shown(&compared(appliance, revision)?);
            if revision.is_none() {
                delayed(appliance).iter().for_each(|line| text += &format!("{line}\n"));
            }
            told(text)
        }
        ConfigureVerb::Check => told(check(appliance, caller)?),
        ConfigureVerb::Commit => reply(commit(appliance, caller, &Terms::parse(&words)?), "commit"),
        ConfigureVerb::Rollback => {
            let (number, words) = words.split_first().ok_or("missing revision")?;
            let number = number
                .parse()
                .map_err(|_| format!("{number:?} is not a revision; `show history` lists them"))?;
            let what = format!("rollback {number}");
            reply(roll_back(appliance, caller, number, &Terms::parse(words)?), &what)
        }
        ConfigureVerb::Confirm => confirm(appliance, caller),
    }
}

const NO_CANDIDATE: &str = "there is no candidate; `configure set PATH VALUE` begins one";

/// Edits the candidate. Returns what it changes.
pub(crate) fn edit(
    appliance: &mut dyn Appliance,
    caller: &Caller,
    change: impl FnOnce(&mut Document) -> Result<(), Vec<crate::config::Problem>>,
) -> Result<String, String> {
    let running = appliance.document().clone();
    let began = appliance.lifecycle().candidate.is_none();
    let candidate = appliance.lifecycle_mut().open(&running, caller);
    if let Err(problems) = change(&mut candidate.document) {
        if began {
            appliance.lifecycle_mut().candidate = None;
        }
        return Err(lines(&problems));
    }
    let pending = candidate.document.pending().iter().map(|entry| format!("pending: {entry}\n"));
    let pending: String = pending.collect();
    let count = compare(running.config(), candidate.document.config()).len();
    Ok(format!("{pending}the candidate differs in {count} keys; `compare` shows them\n"))
}

/// Drops the candidate. False if there is none.
pub(crate) fn discard(appliance: &mut dyn Appliance, caller: &Caller) -> bool {
    let gone = appliance.lifecycle_mut().candidate.take().is_some();
    if gone {
        audit(caller, format_args!("configure discard"));
    }
    gone
}

/// Revisions, newest first.
pub(crate) fn history(appliance: &dyn Appliance) -> Value {
    let in_force = appliance.document().to_toml();
    Value::list(appliance.lifecycle().history.iter().map(|revision| {
        let Value::Object(mut row) = revision.row() else { return Value::None };
        row.push(("running".into(), (revision.text == in_force).into()));
        Value::Object(row)
    }))
}

/// Lists the keys that the candidate changes, or that have changed since a revision.
pub(crate) fn compared(
    appliance: &dyn Appliance,
    revision: Option<&str>,
) -> Result<Vec<Change>, String> {
    let running = appliance.document();
    if let Some(text) = revision {
        let number = text.parse().map_err(|_| format!("{text:?} is not a revision"))?;
        return Ok(changes_of(document_of(appliance, number)?.config(), running.config()));
    }
    let candidate = appliance.lifecycle().candidate.as_ref().ok_or(NO_CANDIDATE)?;
    Ok(changes_of(running.config(), candidate.document.config()))
}

/// Changes as lines.
pub(crate) fn shown(changes: &[Change]) -> String {
    match changes.is_empty() {
        true => "no differences\n".into(),
        false => changes.iter().map(|change| format!("{change}\n")).collect(),
    }
}

/// The document of a revision.
pub(crate) fn document_of(appliance: &dyn Appliance, number: u64) -> Result<Document, String> {
    let revision = appliance.lifecycle().history.get(number);
    let revision = revision
        .ok_or_else(|| format!("there is no revision {number}; `show history` lists them"))?;
    let document = appliance.document().replaced(revision.text.as_bytes(), Source::Console);
    document.map_err(|problems| lines(&problems))
}

/// The document of the candidate, ready to be committed.
fn ready(appliance: &dyn Appliance) -> Result<Document, String> {
    let candidate = appliance.lifecycle().candidate.as_ref().ok_or(NO_CANDIDATE)?;
    if let Some(pending) = candidate.document.pending().first() {
        return Err(format!("incomplete: {pending}"));
    }
    Ok(candidate.document.clone())
}

/// Warning that others have changed the running configuration since the candidate was opened.
fn overtaken(appliance: &dyn Appliance) -> Option<String> {
    let candidate = appliance.lifecycle().candidate.as_ref()?;
    let since = compare(&candidate.base, appliance.document().config());
    let keys: Vec<String> = since.into_iter().map(|change| change.path).collect();
    (!keys.is_empty())
        .then(|| format!("others have changed {} since the candidate was opened", keys.join(", ")))
}

/// Why a configuration cannot be in force on this machine.
fn obstacle(appliance: &mut dyn Appliance, new: &Config) -> Option<String> {
    if let Some(own) = own_server(appliance, new) {
        return Some(format!(
            "{own} is an address of the appliance: a rule cannot connect to the appliance itself"
        ));
    }
    appliance.carry_out(Order::Check(new)).err()
}

/// The server of a rule at an address that the appliance has now, including one by DHCP.
fn own_server(appliance: &dyn Appliance, new: &Config) -> Option<String> {
    let old = &appliance.document().config().rule;
    let ports = appliance.ports();
    let is_ours = |target: &&Target| {
        let Some(server) = target.socket() else { return false };
        let mut own = ports.iter().flat_map(|port| &port.addresses.list);
        let ip = server.ip().to_canonical().to_string();
        own.any(|cidr| cidr.split('/').next() == Some(&ip))
    };
    let changed = new.rule.iter().filter(|rule| !old.contains(rule));
    changed.flat_map(|rule| &rule.backend).find(is_ours).map(ToString::to_string)
}

/// `check`.
fn check(appliance: &mut dyn Appliance, caller: &Caller) -> Result<String, String> {
    let new = ready(appliance)?;
    if let Some(why) = obstacle(appliance, new.config()) {
        return Err(why);
    }
    let mut text = String::from("the candidate is valid, and can start\n");
    let mut warnings = cuts(appliance, caller, new.config());
    warnings.extend(overtaken(appliance));
    warnings.extend(opened(appliance, new.config()));
    for line in warnings {
        let _ = writeln!(text, "{}", with_kind(&line));
    }
    for line in delayed(appliance) {
        let _ = writeln!(text, "{line}");
    }
    Ok(text)
}

/// Puts the candidate in force.
pub(crate) fn commit(
    appliance: &mut dyn Appliance,
    caller: &Caller,
    terms: &Terms,
) -> Result<Done, Refusal> {
    let new = ready(appliance).map_err(Refusal::Why)?;
    if let Some(why) = overtaken(appliance).filter(|_| !terms.yes) {
        let mut all = vec![why];
        all.extend(cuts(appliance, caller, new.config()));
        refused(caller, "commit", "not confirmed");
        return Err(Refusal::Cuts(all));
    }
    let done = put_in_force(appliance, caller, new, "commit", terms)?;
    appliance.lifecycle_mut().candidate = None;
    Ok(done)
}

/// Returns to a revision.
pub(crate) fn roll_back(
    appliance: &mut dyn Appliance,
    caller: &Caller,
    number: u64,
    terms: &Terms,
) -> Result<Done, Refusal> {
    let (new, what) =
        (document_of(appliance, number).map_err(Refusal::Why)?, format!("rollback {number}"));
    // Tokens, hosts and exports that were withdrawn since the revision come back with it: the operator confirms that.
    let mut all = if terms.yes { Vec::new() } else { opened(appliance, new.config()) };
    if !all.is_empty() {
        all.extend(cuts(appliance, caller, new.config()));
        refused(caller, &what, "not confirmed");
        return Err(Refusal::Cuts(all));
    }
    put_in_force(appliance, caller, new, &what, terms)
}

fn refused(caller: &Caller, what: &str, why: &str) {
    audit_refused(caller, format_args!("{what}: refused: {why}"));
}

/// Puts a whole configuration in force, or starts its trial.
pub(crate) fn put_in_force(
    appliance: &mut dyn Appliance,
    caller: &Caller,
    new: Document,
    what: &str,
    terms: &Terms,
) -> Result<Done, Refusal> {
    let refuse = |why: String| {
        refused(caller, what, &why);
        Err(Refusal::Why(why))
    };
    let old = appliance.document().clone();
    let changes = changes_of(old.config(), new.config());
    if changes.is_empty() && old.config() == new.config() {
        let revision = record(appliance, caller, what, &terms.comment);
        return Ok(Done { revision, notes: vec!["nothing to change".into()], ..Done::default() });
    }
    if appliance.lifecycle().trial.is_some() {
        return refuse(WAITS.into());
    }
    if let Some(why) = obstacle(appliance, new.config()) {
        return refuse(why);
    }
    let opens = opened(appliance, new.config());
    let cut = if terms.yes { Vec::new() } else { cuts(appliance, caller, new.config()) };
    if !cut.is_empty() {
        refused(caller, what, "not confirmed");
        return Err(Refusal::Cuts(cut));
    }
    if let (Some(seconds), true) = (terms.seconds, terms.reboot) {
        let text = new.to_toml();
        let arm =
            |appliance: &mut dyn Appliance| appliance.carry_out(Order::ArmTrial(&text, seconds));
        if let Err(why) = task::start(appliance, caller, arm) {
            return refuse(why);
        }
        audit(caller, format_args!("{what} confirmed {seconds}s reboot"));
        return Ok(Done { changes, started: true, ..Done::default() });
    }
    *appliance.document_mut() = new.with_pending_of(&old);
    let mut notes = add_volumes(appliance, old.config(), new.config());
    if let Err(why) = appliance.carry_out(Order::PutInForce("")) {
        notes.push(why);
    }
    notes.extend(leaving::note_removed(appliance, old.config(), terms.seconds.is_some()));
    notes.extend(leaving::note_added(appliance, old.config()));
    notes.extend(after_reboot(&changes));
    let is_new = |export: &&Export| !old.config().export.contains(export);
    for export in new.config().export.iter().filter(is_new) {
        let warnings = manage::openness::warnings(appliance, &export.name, &export.volume);
        notes.extend(warnings.lines().map(str::to_string));
    }
    notes.extend(manage::openness::of_subsystems(appliance, old.config(), new.config()));
    notes.extend(opens);
    let revision = record(appliance, caller, what, &terms.comment);
    if let Some(seconds) = terms.seconds {
        let until = appliance.machine().now + Duration::from_secs(seconds);
        let (before, by) = (Some(Box::new(old)), caller.clone());
        appliance.lifecycle_mut().trial = Some(Trial { until, before, by });
        notes.push(format!("taken back in {seconds} s without `confirm`"));
    }
    let confirmed = terms.seconds.map(|seconds| format!(" confirmed {seconds}s"));
    let confirmed = confirmed.unwrap_or_default();
    let count = changes.len();
    audit(caller, format_args!("{what}{confirmed}: revision {revision}, {count} keys"));
    Ok(Done { changes, revision, notes, started: false })
}

pub(crate) const WAITS: &str = "a commit waits for its confirmation: `confirm` first, or wait";

/// Creates the volumes and remotes that are new. Returns what failed.
fn add_volumes(appliance: &mut dyn Appliance, old: &Config, new: &Config) -> Vec<String> {
    let mut failed = Vec::new();
    let is_new = |volume: &&Volume| old.volume.iter().all(|other| other.name != volume.name);
    for volume in new.volume.iter().filter(is_new) {
        if let Err(why) = appliance.carry_out(Order::MakeVolume(volume)) {
            failed
                .push(format!("volume {}: {why}; in force after `save` and `reboot`", volume.name));
        }
    }
    let is_new = |remote: &&Remote| old.remote.iter().all(|other| other.name != remote.name);
    for remote in new.remote.iter().filter(is_new) {
        if let Err(why) = appliance.carry_out(Order::AddRemote(remote, new)) {
            failed
                .push(format!("remote {}: {why}; in force after `save` and `reboot`", remote.name));
        }
    }
    failed
}

/// `confirm`: ends the trial of a commit and keeps its configuration. If the trial began with this boot, saves it too.
pub(crate) fn confirm(appliance: &mut dyn Appliance, caller: &Caller) -> Told {
    let trial = appliance.lifecycle_mut().trial.take();
    let Some(trial) = trial else { return Err("nothing waits for a confirmation".into()) };
    if trial.before.is_some() {
        audit(caller, format_args!("confirm"));
        let mut text = String::from("confirmed; `save` keeps it across reboots\n");
        leaving::settle(appliance).iter().for_each(|line| text += &format!("{line}\n"));
        return Ok(Managed::Told(text));
    }
    match task::start(appliance, caller, |appliance| appliance.carry_out(Order::Save)) {
        Ok(started) => {
            audit(caller, format_args!("confirm"));
            Ok(started)
        }
        Err(why) => {
            refused(caller, "confirm", &why);
            appliance.lifecycle_mut().trial = Some(trial);
            Err(why)
        }
    }
}

/// The running document, to be changed in a section. Exports that no `[[export]]` defines are written into it before
/// the first one, as `export add` does.
pub(crate) fn with_exports(
    appliance: &dyn Appliance,
    section: &str,
) -> Result<Document, Vec<crate::config::Problem>> {
    let mut document = appliance.document().clone();
    if section == "export" && document.config().export.is_empty() {
        let (exports, found) = manage::exports::implied(appliance);
        document.edit(|config| {
            config.volume.extend(found);
            config.export = exports;
        })?;
    }
    Ok(document)
}

/// Takes back the commit whose time is over. True if the machine has to reboot for that.
pub fn revert(appliance: &mut dyn Appliance) -> bool {
    let Some(trial) = appliance.lifecycle_mut().trial.take() else { return false };
    let by = trial.by;
    log::warn!("configuration: the commit of {by} was not confirmed in time, and is taken back");
    let Some(before) = trial.before else { return true };
    let running = appliance.document().clone();
    *appliance.document_mut() = before.without_pending().with_pending_of(&running);
    if let Err(why) = appliance.carry_out(Order::PutInForce("")) {
        log::error!("configuration: {why}");
    }
    // The volumes that the commit has made go, and those that it has removed stay.
    let mut lines = leaving::note_removed(appliance, running.config(), false);
    lines.extend(leaving::note_added(appliance, running.config()));
    for line in lines {
        log::warn!("configuration: {line}");
    }
    let caller = Caller { name: "timer".into(), ..Caller::console() };
    record(appliance, &caller, "not confirmed", "");
    false
}

/// Records the running configuration as a revision if it has changed. Returns the number of the newest revision.
pub fn record(appliance: &mut dyn Appliance, caller: &Caller, what: &str, comment: &str) -> u64 {
    let machine = appliance.machine();
    let known = Some(machine.clock).filter(|clock| clock.is_plausible);
    let at = known.map_or(0, |clock| clock.at(machine.now).0.as_secs());
    let (text, by) = (appliance.document().to_toml(), caller.to_string());
    appliance.lifecycle_mut().history.add(at, &by, what, comment, text)
}

/// A line of [`cuts()`] or [`opened`] for the console.
fn with_kind(line: &str) -> String {
    match line.starts_with(OPENS) {
        true => line.into(),
        false => format!("cuts off: {line}"),
    }
}

/// The reply of the console.
fn reply(result: Result<Done, Refusal>, what: &str) -> Told {
    match result {
        Ok(Done { started: true, .. }) => Ok(Managed::Started),
        Ok(done) => {
            let mut text = format!("revision {} is in force; `save` keeps it\n", done.revision);
            done.notes.iter().for_each(|note| text += &format!("{note}\n"));
            Ok(Managed::Told(text))
        }
        Err(Refusal::Why(why)) => Err(why),
        Err(Refusal::Cuts(cut)) => {
            let lines: Vec<String> = cut.iter().map(|line| with_kind(line)).collect();
            Err(format!("{}; repeat with `{what} … --yes`", lines.join("\nerror: ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_of_a_commit_are_parsed() {
        let parse = |line: &str| Terms::parse(&line.split_whitespace().collect::<Vec<_>>());
        let terms = |seconds, reboot, comment: &str, yes| {
            Ok(Terms { seconds, reboot, comment: comment.into(), yes })
        };
        assert_eq!(parse(""), terms(None, false, "", false));
        assert_eq!(parse("--yes"), terms(None, false, "", true));
        assert_eq!(parse("confirmed 5 --yes"), terms(Some(300), false, "", true));
        assert_eq!(parse("confirmed 30s reboot"), terms(Some(30), true, "", false));
        assert_eq!(
            parse("--yes confirmed 5 comment new  rule --yes"),
            terms(Some(300), false, "new rule", true)
        );
        for wrong in [
            "confirmed",
            "confirmed 0",
            "confirmed 4s",
            "confirmed x",
            "confirmed 1441",
            "reboot",
            "5",
            "comment",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
