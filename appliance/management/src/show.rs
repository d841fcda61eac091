//! The reports of `show` and `/status`.

use crate::appliance::Appliance;
use crate::audit::Line;
use crate::config::{Config, Http};
use crate::console::{SmcTopic, Topic, log_row};
use crate::loops::{LoopCounters, Stage};
use crate::pieces::{Node, Rows};
use crate::report::Value;
use crate::status::{DiskStatus, MachineStatus, PoolStatus, PortStatus, TlsStatus};
use crate::{dns, linx, manage, ntb, rapidio, smc, upgrade, usnic};
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::{DeviceLife, DeviceState, Features, Health, QueueCount};
use net::MtuOrigin;
use net::syslog::Timestamp;
use std::collections::BTreeSet;
use verbs::OnDemandStatus;

/// The report on one topic.
pub(crate) fn topic(appliance: &dyn Appliance, topic: Topic) -> Value {
    match topic {
        Topic::Interfaces => Value::List(interfaces(appliance, 0, usize::MAX)),
        Topic::Disks => Value::List(disks(appliance, 0, usize::MAX)),
        Topic::Devices => devices(appliance),
        Topic::Volumes => Value::List(manage::volumes::rows(appliance, 0, usize::MAX)),
        Topic::Exports => Value::List(manage::exports::wanted(appliance, 0, usize::MAX)),
        Topic::Memory => memory(appliance),
        Topic::Loops => loops(appliance),
        Topic::Ntb => ntb::report(appliance),
        Topic::Rapidio => rapidio::report(appliance),
        Topic::Usnic => usnic::report(appliance),
        Topic::Linx => linx::report(appliance),
        Topic::Tls => tls(&appliance.document().config().http, appliance.tls()),
        Topic::Upgrade => upgrade::report(&appliance.upgrade()),
        Topic::Version => version(appliance),
        Topic::Dns => dns::report(appliance),
        Topic::Time => time(appliance),
        Topic::Crash => appliance.machine().crashes.report(),
        Topic::Refused => appliance.machine().refused.report(),
        Topic::Smc(one) => smc::topic(appliance, one),
    }
}

/// Generator of a topic's rows in pieces, for topics that may have many rows.
pub(crate) fn rows(topic: Topic) -> Option<Rows> {
    match topic {
        Topic::Interfaces => Some(interfaces),
        Topic::Disks => Some(disks),
        Topic::Volumes => Some(manage::volumes::rows),
        Topic::Exports => Some(manage::exports::wanted),
        Topic::Smc(SmcTopic::Sockets) => Some(smc::socket_rows),
        _ => None,
    }
}

/// The tree of `/status`: all topics in one report.
pub(crate) static STATUS: Node = Node::Branch(&[
    ("version", Node::Whole(version)),
    ("time", Node::Whole(time)),
    ("dns", Node::Whole(dns::report)),
    ("interfaces", Node::Rows(interfaces)),
    ("disks", Node::Rows(disks)),
    ("volumes", Node::Rows(manage::volumes::rows)),
    ("memory", Node::Whole(memory)),
    ("loops", Node::Whole(loops)),
    ("ntb", Node::Whole(ntb::report)),
    ("rapidio", Node::Whole(rapidio::report)),
    ("usnic", Node::Guarded(usnic::report, usnic::public_report)),
    ("linx", Node::Whole(linx::report)),
    ("unclaimed_devices", Node::Whole(unclaimed)),
    ("crashes", Node::Whole(|appliance| appliance.machine().crashes.report())),
    ("configuration_problems", Node::Whole(problems)),
    ("not_ready", Node::Whole(|appliance| texts(&not_ready_for_clients(appliance)))),
]);

fn unclaimed(appliance: &dyn Appliance) -> Value {
    Value::list(appliance.machine().unclaimed.iter().map(|one| Value::from(one.to_string())))
}

fn texts(list: &[String]) -> Value {
    Value::list(list.iter().cloned().map(Value::from))
}

fn problems(appliance: &dyn Appliance) -> Value {
    let machine = appliance.machine();
    let all = machine.problems.iter().chain(machine.warnings);
    Value::list(all.cloned().map(Value::from))
}

/// Reasons that `/readyz` reports: those of [`not_ready`], and incomplete mirrors if `http.ready_needs_mirrors` is set.
/// A release on trial does not wait for mirrors, because a resync may take longer than the trial.
pub(crate) fn not_ready_for_clients(appliance: &dyn Appliance) -> Vec<String> {
    let mut reasons = not_ready(appliance);
    let config = appliance.document().config();
    if config.http.ready_needs_mirrors {
        let remote = appliance.remote();
        let assembled = |name: &str| remote.mirrors.iter().find(|one| one.name == name);
        reasons.extend(config.mirror.iter().filter_map(|mirror| {
            let name = mirror.name.as_str();
            match assembled(name) {
                Some(one) if one.status.is_whole() => None,
                Some(one) => {
                    let member = |n: usize| format!("{} {}", one.members[n], one.status.member(n));
                    let (first, second) = (member(0), member(1));
                    Some(format!("mirror {name}: {}; {first}, {second}", one.status))
                }
                None => Some(format!("mirror {name}: not assembled; see `show log`")),
            }
        }));
    }
    reasons
}

/// Names and volumes of the exports of a configuration: without any `[[export]]`, of its volumes. Unlike
/// [`Config::exports`] it builds nothing, because probes ask for the exports of a thousand volumes in a round.
fn configured_exports(config: &Config) -> impl Iterator<Item = (&str, &str)> {
    let named = config.export.iter().map(|export| (export.name.as_str(), export.volume.as_str()));
    let volumes = config.volume_names().filter(move |_| config.export.is_empty());
    let alone = volumes.filter(move |name| config.mirror_of(name.as_str()).is_none());
    named.chain(alone.map(|name| (name.as_str(), name.as_str())))
}

/// Reasons why something configured is not in service. Empty if the appliance is ready.
pub fn not_ready(appliance: &dyn Appliance) -> Vec<String> {
    let problems = appliance.machine().problems;
    let mut reasons: Vec<String> =
        problems.iter().map(|problem| format!("configuration: {problem}")).collect();
    if appliance.document().is_closed() {
        reasons.push("configuration: rejected; closed until it is corrected".into());
    }
    let (config, ports) = (appliance.document().config(), appliance.ports());
    let lacks = |port: &PortStatus<'_>| {
        let local = |cidr: &String| cidr.starts_with("fe80:");
        let life = port.report.life;
        match port.link {
            false if life.state != DeviceState::Ready => Some(match life.reason {
                "" => "its driver sets it up",
                reason => reason,
            }),
            false => Some("no link"),
            true => port.addresses.list.iter().all(local).then_some("no address"),
        }
    };
    let lacking = ports.iter().enumerate().filter_map(|(i, port)| {
        let mentioned = config.mentioned_net(i, port.mac, port.location).is_some();
        Some((mentioned, format!("{}: {}", port.name, lacks(port)?)))
    });
    // Without `[[net]]`, one interface with a link and an address is enough.
    let enough = config.net.is_empty() && ports.iter().any(|port| lacks(port).is_none());
    let wanted = |mentioned: bool| mentioned || (config.net.is_empty() && !enough);
    reasons.extend(lacking.filter(|(mentioned, _)| wanted(*mentioned)).map(|(_, why)| why));
    if ports.is_empty() {
        reasons.push("there is no network interface".into());
    }
    match appliance.storage().server {
        None if config.rnbd.enabled => reasons.push("rnbd: the storage server does not run".into()),
        None => {}
        Some(server) => {
            let exports = server.exports();
            let served: BTreeSet<&str> =
                exports.iter().map(|export| export.name.as_str()).collect();
            let lacking = configured_exports(config).filter(|(name, _)| !served.contains(name));
            reasons.extend(
                lacking.map(|(name, volume)| format!("export {name}: there is no volume {volume}")),
            );
            // Looking for the disk of each export costs much where there are many.
            let gone = |disk: &DiskStatus<'_>| disk.health.is_some_and(|health| health.gone);
            if appliance.disks().iter().any(gone) {
                reasons.extend(appliance.wanted_exports().iter().filter_map(|export| {
                    let disk = manage::volumes::failed_disk_of(appliance, export.volume.as_str())?;
                    Some(format!("export {}: {disk} has failed; see `show log`", export.name))
                }));
            }
        }
    }
    reasons
}

/// All devices: ports, disks, and unused devices with the reason.
pub(crate) fn devices(appliance: &dyn Appliance) -> Value {
    let now = appliance.machine().now;
    let row = |location: &str, is: &str, life: Option<DeviceLife>, note: &str| {
        let reason = life.map_or("", |life| life.reason);
        let notes = [note, reason].into_iter().filter(|text| !text.is_empty());
        let next = life.and_then(|life| life.next_try);
        Value::object([
            ("location", location.to_string().into()),
            ("device", is.to_string().into()),
            ("state", life.map(|life| Value::display(life.state)).into()),
            ("next_try_seconds", next.map(|next| next.since(now).as_secs()).into()),
            ("note", notes.collect::<Vec<_>>().join("; ").into()),
        ])
    };
    let (ports, disks) = (appliance.ports(), appliance.disks());
    let ports = ports.iter().map(|port| {
        let link = if port.link { "link up" } else { "no link" };
        let note =
            if port.driver.is_empty() { String::new() } else { format!("{}, {link}", port.driver) };
        row(port.location, port.name, Some(port.report.life), &note)
    });
    let disks = disks.iter().map(|disk| {
        let mut note = disk.role.to_string();
        for text in [disk.model, disk.firmware] {
            if !text.is_empty() {
                note = format!("{note}, {text}");
            }
        }
        row(disk.location, disk.name, Some(disk.life), &note)
    });
    let unclaimed = appliance.machine().unclaimed;
    let unclaimed = unclaimed.iter().map(|one| row(&one.device, "not used", None, &one.note()));
    Value::list(ports.chain(disks).chain(unclaimed))
}

pub(crate) fn version(appliance: &dyn Appliance) -> Value {
    let machine = appliance.machine();
    let facts = machine.facts;
    Value::object([
        ("version", env!("CARGO_PKG_VERSION").into()),
        ("commit", facts.commit.into()),
        ("build", facts.build_id.into()),
        ("hostname", Value::display(&appliance.document().config().system.hostname)),
        ("uptime_seconds", machine.uptime.into()),
        ("boot", facts.boot.into()),
        ("cpus", facts.cpus.into()),
        ("entropy", facts.entropy.into()),
    ])
}

/// The report of `show time`.
pub(crate) fn time(appliance: &dyn Appliance) -> Value {
    let MachineStatus { clock, now, facts, uptime, .. } = appliance.machine();
    let built = (facts.committed > 0)
        .then(|| Value::display(format!("{:.0}", Timestamp(Duration::from_secs(facts.committed)))));
    let trust = match clock.is_plausible {
        true => "yes",
        false => {
            "no: it is before this build, or after 2099; set system.ntp, or the machine's clock and reboot"
        }
    };
    let client = appliance.time_client();
    let estimate = client.estimate();
    let source = match estimate {
        Some(estimate) => format!("time server {}", estimate.server),
        None => "real-time clock of the machine, read at boot".into(),
    };
    let servers = client.servers(clock.epoch, now).map(|server| {
        Value::object([
            ("address", Value::display(server.address)),
            ("state", Value::display(server.state)),
            ("stratum", server.stratum.into()),
            ("offset_seconds", server.offset.map(|nanos| nanos as f64 / 1e9).into()),
            ("round_trip_seconds", server.round_trip.map(|time| time.as_secs_f64()).into()),
            ("sent", server.sent.into()),
            ("answers", server.answers.into()),
            ("next_in_seconds", server.next.into()),
        ])
    });
    Value::object([
        ("utc", Value::display(format!("{:.0}", clock.at(now)))),
        ("source", source.into()),
        ("error_seconds", estimate.map(|estimate| estimate.error.as_secs_f64()).into()),
        ("plausible", trust.into()),
        ("servers", Value::list(servers)),
        ("build_of", built.unwrap_or(Value::None)),
        ("uptime_seconds", uptime.into()),
    ])
}

/// Messages of the log: at most `count` from index `from`.
pub(crate) fn log(appliance: &dyn Appliance, from: usize, count: usize) -> Vec<Value> {
    appliance.log().page(from, count).iter().map(log_row).collect()
}

/// Lines of the audit log: at most `count` from index `from`.
fn audit(appliance: &dyn Appliance, from: usize, count: usize) -> Vec<Value> {
    appliance.audit().page(from, count).iter().map(Line::row).collect()
}

/// The audit log.
pub(crate) static AUDIT: Node = Node::Rows(audit);

/// The report of `show tls`.
fn tls(http: &Http, tls: Option<TlsStatus<'_>>) -> Value {
    let Some(TlsStatus { tls, origin }) = tls else {
        let next = if http.tls { "off until `save` and `reboot`" } else { "off" };
        return Value::object([("tls", next.into())]);
    };
    Value::object([
        ("tls", if http.tls { "on" } else { "on until `save` and `reboot`" }.into()),
        ("port", http.port(true).into()),
        ("certificate_of", origin.to_string().into()),
        ("valid_until", tls.pair().not_after().map_or(Value::None, until)),
        ("sha256_fingerprint", tls.pair().fingerprint().into()),
        ("pin", tls.pair().pin().into()),
    ])
}

fn until(seconds: u64) -> Value {
    Value::display(format!("{:.0}", Timestamp(Duration::from_secs(seconds))))
}

pub(crate) fn interfaces(appliance: &dyn Appliance, from: usize, count: usize) -> Vec<Value> {
    appliance.ports().iter().skip(from).take(count).map(interface).collect()
}

/// The core that polls a port, or all cores that poll its queues.
fn loop_of(port: &PortStatus<'_>) -> Value {
    if port.others.is_empty() {
        return port.core.into();
    }
    Value::list([port.core].iter().chain(port.others).map(|&core| core.into()))
}

/// A hardware address as Linux writes it.
pub fn mac([a, b, c, d, e, f]: [u8; 6]) -> String {
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

/// An address of the appliance that another host also uses.
fn duplicate((address, station): (IpAddr, [u8; 6])) -> String {
    format!("{address}, also used by {}", mac(station))
}

fn interface(port: &PortStatus<'_>) -> Value {
    let (counters, card) = (&port.report.counters, &port.report.card);
    let texts = |list: &[String]| Value::list(list.iter().cloned().map(Value::from));
    let card_alone = [(port.mtu, MtuOrigin::Card); 2];
    let [v4, v6] = port.addresses.mtus.unwrap_or(card_alone).map(|(mtu, of)| (mtu, of.to_string()));
    Value::object([
        ("name", port.name.to_string().into()),
        ("link", if port.link { "up" } else { "down" }.into()),
        ("mac", mac(port.mac).into()),
        ("mtu", v4.0.into()),
        ("mtu_of", v4.1.into()),
        ("ipv6_mtu", v6.0.into()),
        ("ipv6_mtu_of", v6.1.into()),
        ("addresses", texts(&port.addresses.list)),
        ("gateways", texts(&port.addresses.gateways)),
        ("dhcp_lease", port.addresses.lease.into()),
        ("duplicate_address", port.addresses.counters.conflict.map(duplicate).into()),
        ("roce", if card.is_some() { "hardware" } else { "software" }.into()),
        ("flow_control", card.and_then(|card| card.flow_control()).into()),
        ("rx_frames", counters.rx_frames.into()),
        ("rx_bytes", counters.rx_bytes.into()),
        ("rx_errors", counters.rx_errors.into()),
        ("tx_frames", counters.tx_frames.into()),
        ("tx_bytes", counters.tx_bytes.into()),
        ("tx_full", counters.tx_full.into()),
        ("rx_missed", counters.rx_missed.into()),
        ("resets", counters.resets.into()),
        ("interrupts", counters.interrupts.into()),
        ("echoes", port.report.echoes.into()),
        ("loop", loop_of(port)),
        ("location", port.location.to_string().into()),
    ])
}

pub(crate) fn disks(appliance: &dyn Appliance, from: usize, count: usize) -> Vec<Value> {
    let (disks, pools) = (appliance.disks(), appliance.storage().pools);
    let all = disks.iter().enumerate().skip(from).take(count);
    all.map(|(number, one)| disk(one, pools.iter().find(|pool| pool.disk.0 == number))).collect()
}

fn disk(disk: &DiskStatus<'_>, pool: Option<&PoolStatus<'_>>) -> Value {
    let g = &disk.geometry;
    Value::object([
        ("name", disk.name.to_string().into()),
        ("device", disk.device.to_string().into()),
        ("serial", disk.serial.to_string().into()),
        ("size", Value::Bytes(g.sectors.saturating_mul(512))),
        ("use", disk.role.into()),
        ("volumes", pool.map(|pool| pool.state.to_string()).into()),
        ("free", pool.map_or(Value::None, |pool| Value::Bytes(pool.free()))),
        ("read_only", g.features.contains(Features::READ_ONLY).into()),
        ("logical_block", g.logical_block.into()),
        ("physical_block", g.physical_block.into()),
        ("volatile_cache", g.features.contains(Features::VOLATILE_CACHE).into()),
        ("discard", g.features.contains(Features::DISCARD).into()),
        ("write_zeroes", g.features.contains(Features::WRITE_ZEROES).into()),
        ("depth", disk.depth.into()),
        ("interrupts", disk.interrupts.into()),
        ("queues", Value::list(disk.queues.iter().map(queue_of))),
        ("model", disk.model.to_string().into()),
        ("firmware", disk.firmware.to_string().into()),
        ("health", disk.health.as_ref().map(health_of).into()),
        ("location", disk.location.to_string().into()),
    ])
}

fn queue_of(queue: &QueueCount) -> Value {
    Value::object([
        ("core", u64::from(queue.core).into()),
        ("requests", queue.requests.into()),
        ("interrupts", queue.interrupts.into()),
    ])
}

fn health_of(health: &Health) -> Value {
    let whole = |number: Option<u8>| number.map(u64::from).into();
    Value::object([
        ("state", if health.gone { "does not work" } else { "works" }.into()),
        ("celsius", health.celsius.map(f64::from).into()),
        ("spare_percent", whole(health.spare)),
        ("used_percent", whole(health.used)),
        ("media_errors", health.media_errors.into()),
        ("power_on_hours", health.power_on_hours.into()),
        ("aborts", health.aborts.into()),
        ("resets", health.resets.into()),
    ])
}

pub(crate) fn memory(appliance: &dyn Appliance) -> Value {
    let machine = appliance.machine();
    let promised = appliance.storage().server.map(|s| s.transport().promised());
    let pool = appliance.roce().and_then(|roce| roce.on_demand);
    let bytes = |value: fn(&OnDemandStatus) -> usize| {
        pool.map_or(Value::None, |pool| Value::Memory(value(&pool) as u64))
    };
    let shared = Value::object([
        ("size", bytes(|pool| pool.capacity)),
        ("free", bytes(|pool| pool.available)),
        ("lowest", bytes(|pool| pool.lowest)),
        ("short", pool.map(|pool| pool.short).into()),
    ]);
    let (capacity, available) = appliance.arena();
    Value::object([
        ("total", Value::Memory(machine.facts.memory)),
        ("heap_used", Value::Memory((machine.facts.heap_used)() as u64)),
        ("arena", Value::Memory(capacity as u64)),
        ("arena_free", Value::Memory(available as u64)),
        ("promised", promised.map_or(Value::None, Value::Memory)),
        ("shared", if pool.is_some() { shared } else { Value::None }),
    ])
}

/// One entry for each core, including cores without a loop.
pub(crate) fn loops(appliance: &dyn Appliance) -> Value {
    let (loops, all) = (appliance.loops(), appliance.ports());
    let ports = |core: usize| {
        let has = |port: &&PortStatus<'_>| port.core == core || port.others.contains(&core);
        Value::list(all.iter().filter(has).map(|port| Value::display(port.name)))
    };
    Value::list((0..appliance.machine().facts.cpus).map(|core| {
        let found = loops.iter().find(|(number, _)| *number == core);
        let (shown, counters) = match found {
            Some((_, Some(report))) => ("running", report.counters),
            Some((_, None)) => ("does not answer", LoopCounters::default()),
            None => ("no loop: it has no port", LoopCounters::default()),
        };
        one_loop(core, shown, ports(core), &counters)
    }))
}

fn one_loop(core: usize, shown: &'static str, ports: Value, counters: &LoopCounters) -> Value {
    let [busy, idle, halted] = counters.shares();
    let stages = Stage::ALL.map(|stage| {
        let c = counters.stages[stage as usize];
        Value::object([
            ("stage", stage.name().into()),
            ("rounds", c.rounds.into()),
            ("items", c.items.into()),
        ])
    });
    Value::object([
        ("loop", core.into()),
        ("state", shown.into()),
        ("ports", ports),
        ("rounds", counters.rounds.into()),
        ("halts", counters.halts.into()),
        ("busy", busy.into()),
        ("idle", idle.into()),
        ("halted", halted.into()),
        ("stages", Value::list(stages)),
    ])
}
