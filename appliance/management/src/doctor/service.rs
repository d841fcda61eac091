//! Checks of configuration, rules, refusals, devices, loops, crashes and the release.

use super::{Check, Finding, listed};
use crate::appliance::Appliance;
use core::time::Duration;
use smcr::wire::Reason;

/// How long a refusal counts.
const RECENT: Duration = Duration::from_secs(10 * 60);

/// The configuration: mistakes, unsaved changes, a trial.
pub(super) fn configuration(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("configuration");
    let machine = appliance.machine();
    let document = appliance.document();
    for problem in machine.problems {
        let remedy = match problem.contains("wipe unfinished") {
            true => "erase the rest of the disk with that command, then `reboot`",
            false => "correct the document (`./isthmus check FILE`), `save`, `reboot`",
        };
        check.fault(problem.clone(), remedy);
    }
    if document.is_closed() {
        check.fault(
            "the document was rejected: everything stays closed",
            "`show config` names the mistakes; `set` the keys, then `save` and `reboot`",
        );
    }
    if document.is_older_copy() {
        check.warning(
            "the config disk's newest copy is damaged; the one before it is in force",
            "`show config`, then `save`",
        );
    }
    if !machine.warnings.is_empty() {
        let warnings: Vec<String> = machine.warnings.to_vec();
        check.warning(
            format!("parts are ignored: {}", listed(&warnings)),
            "correct or `unset` them, then `save`",
        );
    }
    let lifecycle = appliance.lifecycle();
    if let (Some(trial), Some(left)) = (&lifecycle.trial, lifecycle.left(machine.now)) {
        let (by, left) = (&trial.by, left.as_secs());
        check.warning(
            format!("a commit of {by} is on trial, and is taken back in {left} s"),
            "`confirm` keeps it; `rollback REVISION` of `show history` ends it",
        );
    }
    if appliance.has_unsaved() {
        check.warning("changes are not saved: a reboot loses them", "`save`");
    }
    check.or_ok("in force as saved")
}

/// Rules and their servers.
pub(super) fn rules(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("rules");
    let Some(smc) = appliance.smc() else {
        if !appliance.document().config().rule.is_empty() {
            check.fault(
                "no rule is in force: RoCE is switched off, or there is no port",
                "`set roce.enabled true`, `save`, `reboot`; `show interfaces`",
            );
        }
        return check.or_ok("there is no rule");
    };
    for (name, why) in smc.left_out {
        check.fault(
            format!("rule {name} is not in force: {why}"),
            "`show smc rules`; correct the rule",
        );
    }
    let mut count = 0;
    for (name, relay) in smc.users.rules() {
        count += 1;
        let backends = relay.backends();
        let down = backends.iter().filter(|backend| !backend.up);
        let down: Vec<String> = down.map(|backend| backend.address.to_string()).collect();
        let remedy = || {
            let first = down.first().cloned().unwrap_or_default();
            format!(
                "start the server, or check its address and firewall: {first}; `show smc rules`"
            )
        };
        if backends.is_empty() {
            check.fault(
                format!("rule {name} has no server: its names have no address"),
                "`show dns`, `resolve NAME`",
            );
        } else if down.len() == backends.len() {
            check.fault(format!("rule {name}: no server answers: {}", listed(&down)), remedy());
        } else if !down.is_empty() {
            check.warning(
                format!("rule {name}: servers do not answer: {}", listed(&down)),
                remedy(),
            );
        }
    }
    check.or_ok(match count {
        0 => "there is no rule".to_string(),
        _ => format!("{count} rules have their servers"),
    })
}

/// Connections that use TCP instead of SMC-R.
pub(super) fn smc(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("SMC-R");
    let Some(smc) = appliance.smc() else { return check.or_ok("not in use") };
    let counters = smc.engine.counters();
    for (reason, count) in &counters.fallbacks {
        let hosts = hosts_that_fell_back(appliance, *reason);
        let of = if hosts.is_empty() { hosts } else { format!(" with {hosts}") };
        check.warning(
            format!("{count} connections{of} fell back to TCP: {reason}"),
            format!(
                "{}; `show refused` names the hosts, `show log` the servers; `show smc stats` counts",
                remedy_of_fallback(*reason)
            ),
        );
    }
    if counters.failed > 0 {
        check.warning(
            format!("{} handshakes failed without a fallback", counters.failed),
            "`show log errors`; `show smc stats`; update SMC of the peer",
        );
    }
    check.or_ok(format!("{} connections, none fell back to TCP", counters.client + counters.server))
}

/// The latest hosts that were declined for this reason, in the order of `show refused`.
fn hosts_that_fell_back(appliance: &dyn Appliance, reason: Reason) -> String {
    let reason = reason.to_string();
    let newest = appliance.machine().refused.newest();
    let of_reason = newest
        .map(|(_, refusal)| refusal)
        .filter(|one| one.reason == "declined" && one.advice.starts_with(&reason));
    let hosts: Vec<String> =
        of_reason.filter_map(|one| Some(one.who?.to_canonical().to_string())).collect();
    listed(&hosts)
}

/// What helps against a fallback.
fn remedy_of_fallback(reason: Reason) -> &'static str {
    match reason {
        Reason::MEMORY | Reason::MAX_DMB | Reason::REMOTE_KEY => {
            "give the machine or the peer more memory"
        }
        Reason::PEER_NO_SMC => {
            "load `smc` on the peer and start the program with `smc_run`, or ignore it: TCP is served"
        }
        Reason::PREFIX | Reason::NO_ROUTE | Reason::INDIRECT => {
            "put both hosts into one IP subnet, or set a common `smc.ueid` for version 2"
        }
        Reason::NO_UEID | Reason::MODE | Reason::RELEASE | Reason::NO_V2_EXTENSION => {
            "give both hosts a common EID (`set smc.ueid NAME`, `smcr ueid add NAME`)"
        }
        // The code for both, in Linux too.
        Reason::NO_DEVICE => {
            "give both hosts a common EID (`show smc ueid`, `set smc.ueid NAME`; on the peer `smcr ueid show`, \
             `smcr ueid add NAME`), and the peer an RDMA device (`smcr device`)"
        }
        Reason::NO_SMCR_DEVICE => {
            "give the peer an RDMA device (`smcr device`), in the subnet or PNET ID of the appliance"
        }
        Reason::TIMEOUT_CONFIRM_LINK | Reason::TIMEOUT_ADD_LINK | Reason::READY_LINK => {
            "RoCE does not pass between both hosts: `doctor` probes the path MTU; check UDP port 4791"
        }
        Reason::IPSEC | Reason::OPTION => "SMC cannot be used with IPsec or this socket option",
        _ => "check RDMA devices, subnet and EID of both hosts",
    }
}

/// Refusals of the last minutes.
pub(super) fn refusals(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("refusals");
    let machine = appliance.machine();
    for (at, refusal) in machine.refused.newest() {
        let ago = machine.now.since(at);
        if ago > RECENT {
            break;
        }
        let from = refusal.who.map(|who| format!(" from {who}")).unwrap_or_default();
        let asked: String = refusal.asked.chars().take(80).collect();
        let (what, reason, ago) = (refusal.what, refusal.reason, ago.as_secs());
        check.warning(
            format!("{what} {asked:?}{from} was refused {ago} s ago: {reason}"),
            refusal.advice.to_string(),
        );
    }
    check.or_ok("nothing was refused in the last 10 minutes")
}

/// Devices that an operator may miss.
pub(super) fn devices(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("devices");
    for one in appliance.machine().unclaimed.iter().filter(|one| one.is_missed) {
        check.warning(
            format!("not used: {one}"),
            "`show devices` lists all; remove it, attach it as another model, or set what it names",
        );
    }
    check.or_ok("all disks and network interfaces are in use")
}

/// The poll loops.
pub(super) fn loops(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("cores");
    let loops = appliance.loops();
    let silent = loops.iter().filter(|(_, report)| report.is_none());
    let silent: Vec<String> = silent.map(|(core, _)| core.to_string()).collect();
    if !silent.is_empty() {
        check.fault(
            format!("the loop of core {} does not answer", listed(&silent)),
            "`show loops`, `show crash`; give the virtual machine its processors, or `reboot`",
        );
    }
    check.or_ok(format!("{} loops run", loops.len()))
}

/// Records of crashes.
pub(super) fn crashes(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("crashes");
    let crashes = appliance.machine().crashes;
    if crashes.count() > 0 {
        check.warning(
            format!("the appliance has crashed {} times since its installation", crashes.count()),
            "`show crash`; send a report with `./isthmus support ADDRESS`",
        );
    }
    check.or_ok("none recorded")
}

/// The release, and its slots.
pub(super) fn release(appliance: &dyn Appliance) -> Vec<Finding> {
    let mut check = Check::new("release");
    let (upgrade, facts) = (appliance.upgrade(), appliance.machine().facts);
    if let Some(slots) = &upgrade.slots {
        if slots.trial {
            check.warning(
                format!("slot {} is on trial", slots.runs),
                "it is kept when the appliance is ready, or by `upgrade confirm`; `show upgrade`",
            );
        }
        if let Some(failed) = slots.failed {
            check.warning(
                format!("the trial of slot {failed} failed; the release before it runs"),
                "`show upgrade`, `show log errors`; repeat `upgrade` with a good release",
            );
        }
    }
    if upgrade.slots.is_some() && upgrade.watchdog.0.is_none() {
        check.warning(
            "the machine has no watchdog: a release that hangs is not rolled back by itself",
            "attach one (QEMU: `-device i6300esb`)",
        );
    }
    check.or_ok(format!(
        "{}, commit {}, build {}",
        env!("CARGO_PKG_VERSION"),
        facts.commit,
        facts.build_id
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fallbacks_that_an_operator_can_end_have_their_own_remedy() {
        let general = remedy_of_fallback(Reason::INTERNAL);
        for reason in [Reason::PREFIX, Reason::NO_DEVICE, Reason::NO_UEID, Reason::PEER_NO_SMC] {
            assert_ne!(remedy_of_fallback(reason), general, "{reason}");
        }
        assert!(Reason::ALL.iter().all(|reason| !remedy_of_fallback(*reason).is_empty()));
    }
}
