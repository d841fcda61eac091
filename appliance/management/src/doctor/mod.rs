//! `doctor`: checks of everything that commonly goes wrong, each with its cause and a command or an action as remedy.
//! The worst come first. Nothing runs until an operator asks.

mod network;
mod service;
mod storage;

use crate::appliance::Appliance;
use crate::orders::Order;
use crate::report::Value;
use core::fmt::Write as _;
use core::net::IpAddr;

/// Names that a finding lists.
const LISTED: usize = 6;
/// Findings of one check at most; the rest is counted.
const MOST: usize = 12;

/// Severity of a finding. The order is that of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Something does not work.
    Fault,
    /// Something may fail, or is not protected.
    Warning,
    /// The check has found nothing.
    Ok,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Fault => "fault",
            Level::Warning => "warning",
            Level::Ok => "ok",
        }
    }
}

/// A result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// Severity.
    pub level: Level,
    /// The fault with its cause, or the state of a part without fault.
    pub cause: String,
    /// What to do, with the command to type; empty if nothing is wrong.
    pub remedy: String,
}

/// Findings of one check.
struct Check {
    name: &'static str,
    found: Vec<Finding>,
    more: usize,
}

impl Check {
    fn new(name: &'static str) -> Check {
        Check { name, found: Vec::new(), more: 0 }
    }

    fn add(&mut self, level: Level, cause: impl Into<String>, remedy: impl Into<String>) {
        if self.found.len() == MOST {
            self.more += 1;
            return;
        }
        let (cause, remedy) = (cause.into(), remedy.into());
        self.found.push(Finding { check: self.name, level, cause, remedy });
    }

    fn fault(&mut self, cause: impl Into<String>, remedy: impl Into<String>) {
        self.add(Level::Fault, cause, remedy);
    }

    fn warning(&mut self, cause: impl Into<String>, remedy: impl Into<String>) {
        self.add(Level::Warning, cause, remedy);
    }

    /// The findings, or that everything is in order.
    fn or_ok(mut self, cause: impl Into<String>) -> Vec<Finding> {
        if self.found.is_empty() {
            self.add(Level::Ok, cause, "");
        }
        if let (1.., Some(last)) = (self.more, self.found.last_mut()) {
            let _ = write!(last.cause, " (and {} more)", self.more);
        }
        self.found
    }
}

/// At most [`LISTED`] names, and the number of the others.
fn listed(names: &[String]) -> String {
    let shown = names.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// All findings, the worst first.
pub(crate) fn findings(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut all: Vec<Finding> = Vec::new();
    for check in [
        service::configuration,
        network::links,
        network::addresses,
        network::paths,
        network::names,
        network::clock,
        network::certificate,
        storage::memory,
        storage::exports,
        storage::mirrors,
        storage::remotes,
        storage::disks,
        service::rules,
        service::smc,
        service::refusals,
        service::devices,
        service::loops,
        service::crashes,
        service::release,
    ] {
        all.extend(check(appliance));
    }
    all.sort_by_key(|finding| finding.level);
    all
}

/// Starts the probes of paths.
pub(crate) fn start(appliance: &mut dyn Appliance) {
    let targets = network::peers(appliance);
    // The order cannot fail.
    let _ = appliance.carry_out(Order::ProbePaths(&targets));
}

/// Whether the probes have ended.
pub(crate) fn is_done(appliance: &dyn Appliance) -> bool {
    !appliance.path_probes().is_running
}

/// Numbers of faults and of warnings.
fn counts(findings: &[Finding]) -> (usize, usize) {
    let of = |level| findings.iter().filter(|finding| finding.level == level).count();
    (of(Level::Fault), of(Level::Warning))
}

/// The report as a value.
pub(crate) fn report(findings: &[Finding]) -> Value {
    let (faults, warnings) = counts(findings);
    let state = findings.iter().map(|finding| finding.level).min().unwrap_or(Level::Ok);
    Value::object([
        ("state", state.name().into()),
        ("faults", faults.into()),
        ("warnings", warnings.into()),
        (
            "checks",
            Value::list(findings.iter().map(|finding| {
                Value::object([
                    ("check", finding.check.into()),
                    ("state", finding.level.name().into()),
                    ("cause", finding.cause.clone().into()),
                    ("remedy", finding.remedy.clone().into()),
                ])
            })),
        ),
    ])
}

/// The report as text. Control characters of names that peers have chosen are shown, not sent.
pub(crate) fn text(findings: &[Finding]) -> String {
    let (faults, warnings) = counts(findings);
    let number = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    let mut out = format!("{}, {}\n", number(faults, "fault"), number(warnings, "warning"));
    let clean = |text: &str| -> String {
        text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
    };
    for Finding { check, level, cause, remedy } in findings {
        let _ = writeln!(out, "{:8} {check:13} {}", level.name(), clean(cause));
        if !remedy.is_empty() {
            let _ = writeln!(out, "{:22} remedy: {}", "", clean(remedy));
        }
    }
    out
}

/// The result in the wanted form, with its line end.
pub(crate) fn result(appliance: &dyn Appliance, json: bool) -> String {
    let findings = findings(appliance);
    match json {
        true => report(&findings).to_json() + "\n",
        false => text(&findings),
    }
}

/// Whether an address is one of a host, in text such as `10.0.0.1/24`.
fn address_of(cidr: &str) -> Option<IpAddr> {
    cidr.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_the_worst_first_and_bounds_each_check() {
        let mut check = Check::new("link");
        for n in 0..MOST + 3 {
            check.warning(format!("net{n}"), "plug it in");
        }
        let mut all = Check::new("clock").or_ok("good");
        all.extend(check.or_ok("unused"));
        let mut one = Check::new("address");
        one.fault("10.0.0.1\x1b[2J", "change it");
        all.extend(one.or_ok(""));
        all.sort_by_key(|finding| finding.level);
        assert_eq!(counts(&all), (1, MOST));
        let text = text(&all);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "1 fault, 12 warnings");
        assert!(lines[1].starts_with("fault    address"), "{text}");
        assert_eq!(lines[2].trim(), "remedy: change it");
        assert!(!text.contains('\x1b') && text.contains("net11 (and 3 more)"), "{text}");
        assert!(lines.last().unwrap().starts_with("ok       clock"), "{text}");
        let json = report(&all).to_json();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["state"], &json["faults"]), (&"fault".into(), &1.into()));
        assert_eq!(json["checks"][0]["remedy"], "change it");
    }

    #[test]
    fn long_lists_of_names_are_cut() {
        let names: Vec<String> = (0..8).map(|n| format!("v{n}")).collect();
        assert_eq!(listed(&names), "v0, v1, v2, v3, v4, v5 and 2 more");
        assert_eq!(listed(&names[..1]), "v0");
    }
}
