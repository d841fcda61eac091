//! What `show` and `/status` tell.

use super::bridge;
use super::disks::DiskSlot;
use super::linx;
use super::manage;
use super::plane::PortReport;
use super::ports::PortSlot;
use super::rapidio;
use super::report_pieces::{Node, Rows};
use super::smc::report;
use super::state::State;
use super::tls;
use super::upgrade;
use super::volumes::DiskPool;
use crate::console::{SmcTopic, Topic};
use crate::loops::{LoopCounters, Stage};
use crate::report::Value;
use drivers::hal::{Disk, Features, Health, QueueCount};
use verbs::{OnDemandStatus, Provider};

/// The report on one topic.
pub(super) fn topic(state: &mut State, topic: Topic) -> Value {
    match topic {
        Topic::Interfaces => Value::List(interfaces(state, 0, usize::MAX)),
        Topic::Disks => Value::List(disks(state, 0, usize::MAX)),
        Topic::Devices => devices(state),
        Topic::Volumes => Value::List(manage::volumes::rows(state, 0, usize::MAX)),
        Topic::Exports => Value::List(manage::exports::wanted(state, 0, usize::MAX)),
        Topic::Memory => memory(state),
        Topic::Loops => loops(state),
        Topic::Ntb => bridge::report(state),
        Topic::Rapidio => rapidio::report(state),
        Topic::Usnic => state.plane.udp_engines.report("usnic"),
        Topic::Linx => linx::report(state),
        Topic::Tls => tls::report(state),
        Topic::Upgrade => upgrade::report(state),
        Topic::Version => version(state),
        Topic::Crash => state.crashes.report(),
        Topic::Refused => state.refused.report(),
        Topic::Smc(one) => report::topic(state, one),
    }
}

/// How the report on a topic is made in pieces, if there may be many rows.
pub(super) fn rows(topic: Topic) -> Option<Rows> {
    match topic {
        Topic::Interfaces => Some(interfaces),
        Topic::Disks => Some(disks),
        Topic::Volumes => Some(manage::volumes::rows),
        Topic::Exports => Some(manage::exports::wanted),
        Topic::Smc(SmcTopic::Sockets) => Some(report::socket_rows),
        _ => None,
    }
}

/// Everything at once, as `/status` tells it.
pub(super) static STATUS: Node = Node::Branch(&[
    ("version", Node::Whole(version)),
    ("interfaces", Node::Rows(interfaces)),
    ("disks", Node::Rows(disks)),
    ("volumes", Node::Rows(manage::volumes::rows)),
    ("memory", Node::Whole(memory)),
    ("loops", Node::Whole(loops)),
    ("ntb", Node::Whole(|state| bridge::report(state))),
    ("rapidio", Node::Whole(|state| rapidio::report(state))),
    ("usnic", Node::Whole(|state| topic(state, Topic::Usnic))),
    ("linx", Node::Whole(|state| linx::report(state))),
    ("unclaimed_devices", Node::Whole(unclaimed)),
    ("crashes", Node::Whole(|state| state.crashes.report())),
    ("configuration_problems", Node::Whole(problems)),
    ("not_ready", Node::Whole(|state| texts(&not_ready(state)))),
]);

fn unclaimed(state: &mut State) -> Value {
    Value::list(state.unclaimed.iter().map(|one| Value::from(one.to_string())))
}

fn texts(list: &[String]) -> Value {
    Value::list(list.iter().cloned().map(Value::from))
}

fn problems(state: &mut State) -> Value {
    let all = state.problems.iter().chain(&state.warnings);
    Value::list(all.cloned().map(Value::from))
}

/// Why the appliance does not do all that it is configured to do; empty if it does.
pub(super) fn not_ready(state: &State) -> Vec<String> {
    let mut reasons: Vec<String> =
        state.problems.iter().map(|problem| format!("configuration: {problem}")).collect();
    if state.document.is_closed() {
        reasons.push(
            "configuration: what it may have restricted stays closed until it is mended".into(),
        );
    }
    let config = state.document.config();
    let lacks = |slot: &PortSlot| {
        let local = |cidr: &String| cidr.starts_with("fe80:");
        match slot.link {
            false => Some("no link"),
            true => slot.addresses.list.iter().all(local).then_some("no address"),
        }
    };
    let lacking = state.ports.iter().enumerate().filter_map(|(i, slot)| {
        let mentioned = config.mentioned_net(i, slot.mac, &slot.location).is_some();
        Some((mentioned, format!("{}: {}", slot.name, lacks(slot)?)))
    });
    // Of interfaces that the document does not mention it takes one.
    let enough = config.net.is_empty() && state.ports.iter().any(|slot| lacks(slot).is_none());
    let wanted = |mentioned: bool| mentioned || (config.net.is_empty() && !enough);
    reasons.extend(lacking.filter(|(mentioned, _)| wanted(*mentioned)).map(|(_, why)| why));
    if state.ports.is_empty() {
        reasons.push("there is no network interface".into());
    }
    let storage = &state.plane.storage;
    match &storage.server {
        None if config.rnbd.enabled => reasons.push("rnbd: the storage server does not run".into()),
        None => {}
        Some(server) => {
            let served = |name: &str| server.exports().iter().any(|e| e.name.as_str() == name);
            let wanted = storage.wanted_exports(config);
            let lacking = wanted.iter().filter(|export| !served(export.name.as_str()));
            reasons.extend(lacking.map(|export| {
                format!("export {}: there is no volume {}", export.name, export.volume)
            }));
        }
    }
    reasons
}

/// The devices that were found: what they are here, and those that nobody uses.
pub(super) fn devices(state: &mut State) -> Value {
    let row = |location: &str, is: &str, note: &str| {
        Value::object([
            ("location", location.to_string().into()),
            ("device", is.to_string().into()),
            ("note", note.to_string().into()),
        ])
    };
    let ports = state.ports.iter().map(|slot| {
        let link = if slot.link { "link up" } else { "no link" };
        let note =
            if slot.driver.is_empty() { String::new() } else { format!("{}, {link}", slot.driver) };
        row(&slot.location, &slot.name, &note)
    });
    let disks = state.disks.iter().map(|slot| {
        let mut note = slot.role.name().to_string();
        for said in [&slot.model, &slot.firmware] {
            if !said.is_empty() {
                note = format!("{note}, {said}");
            }
        }
        if slot.disk.health().is_some_and(|health| health.gone) {
            note.push_str("; does not work any more, `show log` says why");
        }
        row(&slot.location, &slot.name, &note)
    });
    let unclaimed = state.unclaimed.iter().map(|one| row(&one.device, "not used", &one.note()));
    Value::list(ports.chain(disks).chain(unclaimed))
}

pub(super) fn version(state: &mut State) -> Value {
    Value::object([
        ("version", env!("CARGO_PKG_VERSION").into()),
        ("commit", state.facts.commit.into()),
        ("build", state.facts.build_id.into()),
        ("hostname", Value::display(&state.document.config().system.hostname)),
        ("uptime_seconds", state.uptime().into()),
        ("boot", state.facts.boot.into()),
        ("cpus", state.facts.cpus.into()),
        ("entropy", state.facts.entropy.into()),
    ])
}

pub(super) fn interfaces(state: &mut State, from: usize, count: usize) -> Vec<Value> {
    let reports = state.port_reports();
    let ports = state.ports.iter().zip(reports).skip(from).take(count);
    ports.map(|(slot, report)| interface(slot, &report)).collect()
}

/// The core that has a port, or all that have queues of it.
fn loop_of(slot: &PortSlot) -> Value {
    if slot.others.is_empty() {
        return slot.core.into();
    }
    Value::list([slot.core].iter().chain(&slot.others).map(|&core| core.into()))
}

fn interface(slot: &PortSlot, report: &PortReport) -> Value {
    let PortReport { counters, card, .. } = report;
    let [a, b, c, d, e, f] = slot.mac;
    let texts = |list: &[String]| Value::list(list.iter().cloned().map(Value::from));
    Value::object([
        ("name", slot.name.clone().into()),
        ("link", if slot.link { "up" } else { "down" }.into()),
        ("mac", format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}").into()),
        ("mtu", slot.mtu.into()),
        ("addresses", texts(&slot.addresses.list)),
        ("gateways", texts(&slot.addresses.gateways)),
        ("dhcp_lease", slot.addresses.lease.into()),
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
        ("echoes", report.echoes.into()),
        ("loop", loop_of(slot)),
        ("location", slot.location.clone().into()),
    ])
}

pub(super) fn disks(state: &mut State, from: usize, count: usize) -> Vec<Value> {
    let pools = &state.plane.storage.pools;
    let all = state.disks.iter().enumerate().skip(from).take(count);
    all.map(|(number, slot)| disk(slot, pools.iter().find(|pool| pool.number == number))).collect()
}

fn disk(slot: &DiskSlot, pool: Option<&DiskPool>) -> Value {
    let g = &slot.geometry;
    Value::object([
        ("name", slot.name.clone().into()),
        ("device", slot.device.clone().into()),
        ("serial", slot.serial.clone().into()),
        ("size", Value::Bytes(g.sectors.saturating_mul(512))),
        ("use", slot.role.name().into()),
        ("volumes", pool.map(|pool| pool.state().to_string()).into()),
        ("free", pool.map_or(Value::None, |pool| Value::Bytes(pool.free()))),
        ("read_only", g.features.contains(Features::READ_ONLY).into()),
        ("logical_block", g.logical_block.into()),
        ("physical_block", g.physical_block.into()),
        ("volatile_cache", g.features.contains(Features::VOLATILE_CACHE).into()),
        ("discard", g.features.contains(Features::DISCARD).into()),
        ("write_zeroes", g.features.contains(Features::WRITE_ZEROES).into()),
        ("depth", slot.disk.depth().into()),
        ("interrupts", slot.disk.interrupts().into()),
        ("queues", Value::list(slot.disk.queue_counts().iter().map(queue_of))),
        ("model", slot.model.clone().into()),
        ("firmware", slot.firmware.clone().into()),
        ("health", slot.disk.health().map(|health| health_of(&health)).into()),
        ("location", slot.location.clone().into()),
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

pub(super) fn memory(state: &mut State) -> Value {
    let total = state.facts.memory;
    let heap = (state.facts.heap_used)();
    let promised = state.plane.storage.server.as_ref().map(|s| s.transport().promised());
    let pool = state
        .plane
        .rdma_stack
        .as_ref()
        .and_then(|rdma_stack| rdma_stack.providers.roce.on_demand());
    let bytes = |value: fn(&OnDemandStatus) -> usize| {
        pool.map_or(Value::None, |pool| Value::Bytes(value(&pool) as u64))
    };
    let shared = Value::object([
        ("size", bytes(|pool| pool.capacity)),
        ("free", bytes(|pool| pool.available)),
        ("lowest", bytes(|pool| pool.lowest)),
        ("short", pool.map(|pool| pool.short).into()),
    ]);
    let arena = state.platform.arena();
    Value::object([
        ("total", Value::Bytes(total)),
        ("heap_used", Value::Bytes(heap as u64)),
        ("arena", Value::Bytes(arena.capacity() as u64)),
        ("arena_free", Value::Bytes(arena.available() as u64)),
        ("promised", promised.map_or(Value::None, Value::Bytes)),
        ("shared", if pool.is_some() { shared } else { Value::None }),
    ])
}

/// One entry for each core, also for those that have no loop.
pub(super) fn loops(state: &mut State) -> Value {
    let loops = state.plane_reports();
    let ports = |core: usize| {
        let has = |slot: &&PortSlot| slot.core == core || slot.others.contains(&core);
        let names = state.ports.iter().filter(has);
        Value::list(names.map(|slot| slot.name.clone().into()))
    };
    Value::list((0..state.facts.cpus).map(|core| {
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
