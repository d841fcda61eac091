//! Console commands for the NVMe-oF target.

use super::listing::formatted;
use crate::appliance::{Appliance, Told};
use crate::console::{Managed, NvmeVerb};
use crate::orders::Order;
use crate::report::Value;
use core::fmt::Write as _;
use core::net::IpAddr;
use nvme::{AnaState, NamespaceView, Target};

/// Executes a command.
pub(super) fn act(appliance: &mut dyn Appliance, verb: NvmeVerb, words: &[&str]) -> Told {
    match verb {
        NvmeVerb::List => formatted(namespaces(appliance), words),
        NvmeVerb::Show => show(target(appliance)?, words),
        NvmeVerb::Hosts => formatted(hosts(appliance), words),
        NvmeVerb::Check => check(target(appliance)?, words),
        NvmeVerb::Connect => connect(appliance, words),
        NvmeVerb::Ana => set_state(appliance, words),
    }
}

fn target(appliance: &dyn Appliance) -> Result<&Target, String> {
    appliance.nvme().ok_or_else(|| "the NVMe target does not run: there is no [[subsystem]]".into())
}

/// All namespaces, one row each; a subsystem without any has one row.
fn namespaces(appliance: &dyn Appliance) -> Vec<Value> {
    let mut rows = Vec::new();
    for (config, serial, namespaces) in appliance.nvme().into_iter().flat_map(Target::view) {
        let row = |namespace: Option<&NamespaceView>| {
            let size = namespace.map(|one| &one.size);
            Value::object([
                ("nqn", config.nqn.clone().into()),
                ("serial", serial.to_string().into()),
                ("nsid", namespace.map(|one| u64::from(one.config.nsid)).into()),
                ("volume", namespace.map(|one| one.config.volume.clone()).into()),
                (
                    "size",
                    size.and_then(|size| size.ok()).map_or(Value::None, |it| Value::Bytes(it.0)),
                ),
                ("block", size.and_then(|size| size.ok()).map(|it| u64::from(it.1)).into()),
                ("read_only", namespace.map(|one| one.config.read_only.to_string()).into()),
                ("ana_group", namespace.map(|one| u64::from(one.config.ana_group)).into()),
                ("uuid", namespace.map(|one| uuid(&one.uuid)).into()),
                ("limits", namespace.map(|one| super::limits::text(&one.config.limits)).into()),
                ("delayed", namespace.map(|one| one.delays.0).into()),
                ("reservation", namespace.and_then(|one| one.reservation.0).into()),
                ("registrants", namespace.map(|one| one.reservation.1 as u64).into()),
                ("why_absent", size.and_then(|size| size.err()).map(str::to_string).into()),
            ])
        };
        match namespaces.is_empty() {
            true => rows.push(row(None)),
            false => rows.extend(namespaces.iter().map(|one| row(Some(one)))),
        }
    }
    rows
}

/// The connected hosts, a row for each controller.
fn hosts(appliance: &dyn Appliance) -> Vec<Value> {
    let now = appliance.machine().now;
    let controllers = appliance.nvme().into_iter().flat_map(Target::controllers);
    let row = |one: nvme::ControllerView| {
        Value::object([
            ("host", one.host.into()),
            ("address", one.address.to_string().into()),
            ("host_id", uuid(&one.host_id).into()),
            ("subsystem", one.subsystem.into()),
            ("cntlid", u64::from(one.cntlid).into()),
            ("io_queues", (one.queues as u64).into()),
            ("keep_alive_s", one.kato.as_secs().into()),
            ("authenticated", one.proof.name().to_string().into()),
            ("connected_s", now.since(one.connected).as_secs().into()),
        ])
    };
    controllers.map(row).collect()
}

/// A subsystem, with the hosts that it admits.
fn show(target: &Target, words: &[&str]) -> Told {
    let [nqn] = words else { return Err("usage: nvme show NQN; `nvme list` lists all".into()) };
    let found = target.view().find(|(config, ..)| config.nqn == *nqn);
    let (config, serial, namespaces) =
        found.ok_or_else(|| format!("there is no subsystem {nqn:?}; `nvme list` lists all"))?;
    let mut text = String::new();
    let hosts = match &config.hosts {
        nvme::HostList::Closed => "none: `hosts` is not set".to_string(),
        nvme::HostList::Listed(hosts) => hosts.join(", "),
        nvme::HostList::All => "all".into(),
    };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "nqn        {nqn}\nserial     {serial}\nmodel      {}", config.model);
    let _ = writeln!(text, "hosts      {hosts}\nnetworks   {}", config.networks);
    let demanded = |demand| match demand {
        nvme::Demand::Required => "required",
        nvme::Demand::Optional => "optional",
    };
    let (dhchap, tls) = (demanded(config.dhchap), demanded(config.tls));
    let _ = writeln!(text, "dhchap     {dhchap}\ntls        {tls}");
    let _ = writeln!(text, "cntlids    {} to {}", config.cntlids.0, config.cntlids.1);
    for one in &namespaces {
        let state = target.ana_state(nqn, one.config.ana_group).map_or("unknown", state_name);
        let size = match one.size {
            Ok((bytes, block)) => format!("{bytes} bytes in blocks of {block}"),
            Err(why) => format!("not served: {why}"),
        };
        let _ = writeln!(
            text,
            "namespace  {}: volume {}, {size}, group {} {state}, {} reads, {} writes, {} errors, \
             reservation {}, {} registrants, {} conflicts, limits {}, {} delayed in {} s",
            one.config.nsid,
            one.config.volume,
            one.config.ana_group,
            one.reads.0,
            one.writes.0,
            one.errors,
            one.reservation.0.unwrap_or("none"),
            one.reservation.1,
            one.conflicts,
            super::limits::text(&one.config.limits),
            one.delays.0,
            one.delays.1.as_secs()
        );
    }
    Ok(Managed::Told(text))
}

/// Whether a host would be admitted, to each subsystem.
fn check(target: &Target, words: &[&str]) -> Told {
    let (host, address) = match words {
        [host] => (*host, None),
        [host, address] => {
            let parsed: IpAddr =
                address.parse().map_err(|_| format!("{address:?} is no address"))?;
            (*host, Some(parsed))
        }
        _ => return Err("usage: nvme check HOSTNQN [ADDRESS]".into()),
    };
    if !nvme::is_nqn(host) {
        return Err(format!("{host:?} is not an NQN; a host has its own in /etc/nvme/hostnqn"));
    }
    let mut text = String::new();
    for (config, ..) in target.view() {
        let admitted = match address {
            Some(address) => target.check_host(&config.nqn, host, address),
            None if config.hosts == nvme::HostList::Closed => Err("no_hosts"),
            None if !config.hosts.admits(host) => Err("host_not_admitted"),
            None => Ok(()),
        };
        let verdict = match admitted {
            Ok(()) => match target.proof_of(&config.nqn, host) {
                Ok(proof) => {
                    let open = address.is_some() || config.networks.is_everybody();
                    let from =
                        if open { String::new() } else { format!(" from {}", config.networks) };
                    format!("admitted{from}, and proves its name by {proof}")
                }
                Err(reason) => format!("refused: {}", nvme::remedy(reason)),
            },
            Err(reason) => format!("refused: {}", nvme::remedy(reason)),
        };
        let _ = writeln!(text, "{}: {verdict}", config.nqn);
    }
    Ok(Managed::Told(text))
}

/// The commands with which a host connects to a subsystem.
fn connect(appliance: &dyn Appliance, words: &[&str]) -> Told {
    let [nqn] = words else { return Err("usage: show nvme connect NQN".into()) };
    let target = target(appliance)?;
    let found = target.view().find(|(config, ..)| config.nqn == *nqn);
    let Some((config, ..)) = found else {
        return Err(format!("there is no subsystem {nqn:?}; `nvme list` lists all"));
    };
    let options = options(target, config, &appliance.document().config().host_keys());
    let ports = &appliance.document().config().nvme;
    // The port of discovery serves I/O controllers, too.
    let port = if ports.tcp == 0 { ports.discovery } else { ports.tcp };
    let mut text = String::new();
    for status in appliance.ports() {
        for cidr in &status.addresses.list {
            let address = cidr.split('/').next().unwrap_or_default();
            if address.starts_with("fe80:") {
                continue;
            }
            for options in &options {
                let _ =
                    writeln!(text, "nvme connect -t tcp -a {address} -s {port} -n {nqn}{options}");
            }
        }
    }
    Ok(Managed::Told(text))
}

/// The options with which hosts prove their names, each once: secrets are placeholders.
fn options(
    target: &Target,
    config: &nvme::SubsystemConfig,
    keys: &[nvme::HostKeys],
) -> Vec<String> {
    let mut hosts: Vec<&str> = match &config.hosts {
        nvme::HostList::Listed(hosts) => hosts.iter().map(String::as_str).collect(),
        _ => keys.iter().map(|one| one.nqn.as_str()).collect(),
    };
    if config.hosts == nvme::HostList::All {
        // Of a host without secrets.
        hosts.push("");
    }
    let mut all = Vec::new();
    for host in hosts {
        let Ok(proof) = target.proof_of(&config.nqn, host) else { continue };
        let both = keys.iter().any(|one| one.nqn == host && one.controller.is_some());
        let mut options = String::new();
        if proof.contains("DH-HMAC-CHAP") {
            options += " --dhchap-secret=DHHC-1:…";
            options += if both { " --dhchap-ctrl-secret=DHHC-1:…" } else { "" };
        }
        options += match proof {
            "DH-HMAC-CHAP and then TLS" => " --concat",
            "TLS" | "TLS and DH-HMAC-CHAP" => " --tls",
            _ => "",
        };
        if !all.contains(&options) {
            all.push(options);
        }
    }
    if all.is_empty() {
        // No host can connect at present.
        all.push(String::new());
    }
    all
}

fn set_state(appliance: &mut dyn Appliance, words: &[&str]) -> Told {
    let usage = "usage: nvme ana GROUP optimized|non-optimized|inaccessible|persistent-loss|change";
    let [group, state] = words else { return Err(usage.into()) };
    let group = group.parse().map_err(|_| usage)?;
    let state = match *state {
        "optimized" => AnaState::Optimized,
        "non-optimized" => AnaState::NonOptimized,
        "inaccessible" => AnaState::Inaccessible,
        "persistent-loss" => AnaState::PersistentLoss,
        "change" => AnaState::Change,
        _ => return Err(usage.into()),
    };
    appliance.carry_out(Order::AnaState(group, state))
}

fn state_name(state: AnaState) -> &'static str {
    match state {
        AnaState::Optimized => "optimized",
        AnaState::NonOptimized => "non-optimized",
        AnaState::Inaccessible => "inaccessible",
        AnaState::PersistentLoss => "persistent-loss",
        AnaState::Change => "change",
    }
}

fn uuid(bytes: &[u8; 16]) -> String {
    crate::config::nvme::Uuid(*bytes).to_string()
}
