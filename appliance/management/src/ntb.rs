//! `show ntb`: bridges of all cores to other appliances and to stock Linux hosts.

use crate::UnclaimedDevice;
use crate::appliance::Appliance;
use crate::report::Value;
use crate::status::{BridgeStatus, TransportStatus};
use drivers::ntb::transport;
use perf_responders::ntb_perf::{Figure, Measured};

/// A row for each bridge.
pub(crate) fn report(appliance: &dyn Appliance) -> Value {
    let (bridges, transports) = (appliance.bridges(), appliance.transports());
    let unused = appliance.machine().unclaimed.iter().filter(|device| device.is_bridge);
    let opened = bridges.iter().map(bridge).chain(transports.iter().map(transport));
    Value::list(opened.chain(unused.map(closed)))
}

/// A bridge that is not used, and why.
fn closed(device: &UnclaimedDevice) -> Value {
    Value::object([
        ("name", Value::None),
        ("link", "closed".into()),
        ("device", device.device.clone().into()),
        ("why", device.why.clone().into()),
    ])
}

/// Results of `ntb measure`, a row for each test. None without results.
pub fn measured(results: &[Measured]) -> Value {
    if results.is_empty() {
        return Value::None;
    }
    let row = |&Measured { name, figure }: &Measured| {
        let figure = match figure {
            Figure::Bandwidth(rate) => ("bytes_per_second", rate.into()),
            Figure::Latency(nanos) => ("nanoseconds", nanos.into()),
        };
        Value::object([("test", name.into()), figure])
    };
    Value::list(results.iter().map(row))
}

/// State of the link to another appliance.
fn state_name(state: ntrdma::State) -> &'static str {
    match state {
        ntrdma::State::Down => "down",
        ntrdma::State::Greeting => "waits for the peer",
        ntrdma::State::Clearing | ntrdma::State::Introducing => "coming up",
        ntrdma::State::Up => "up",
    }
}

/// State of the link to a stock Linux host.
pub fn standing(state: transport::State) -> &'static str {
    match state {
        transport::State::NoLink => "down",
        transport::State::Waiting => "waits for the peer",
        transport::State::Mismatch(_) => "does not fit the peer",
        transport::State::QueueDown => "waits for the peer's interface",
        transport::State::Up => "up",
    }
}

fn bridge(bridge: &BridgeStatus) -> Value {
    let (used, free) = bridge.queue_pairs;
    let (counters, carrier) = (&bridge.counters, &bridge.carrier);
    let engine = carrier.engine;
    Value::object([
        ("name", bridge.name.clone().into()),
        ("core", bridge.core.into()),
        ("link", state_name(bridge.link).into()),
        ("address", Value::display(bridge.addresses.0)),
        ("peer", Value::display(bridge.addresses.1)),
        ("device", bridge.device.clone().into()),
        ("connection", bridge.connection.into()),
        ("side", bridge.side.into()),
        ("doorbell", carrier.doorbell.into()),
        ("link_speed", carrier.link_speed.clone().into()),
        ("carried_by", carrier.carried_by.clone().into()),
        ("bytes_by_cpu", carrier.by_cpu.into()),
        ("bytes_by_engine", engine.map(|counters| counters.bytes).into()),
        ("engine_resets", engine.map(|counters| counters.resets).into()),
        ("engine_completions_missed", engine.map(|counters| counters.missed).into()),
        ("engines_lost", counters.engines_lost.into()),
        ("window", Value::Bytes(carrier.window as u64)),
        ("exposed", Value::Bytes(carrier.exposed as u64)),
        ("queue_pairs", used.into()),
        ("queue_pairs_free", free.into()),
        ("connections", bridge.connections.into()),
        ("link_up", counters.link_up.into()),
        ("link_down", counters.link_down.into()),
        ("entries_sent", counters.entries_sent.into()),
        ("entries_received", counters.entries_received.into()),
        ("frames_sent", counters.frames_sent.into()),
        ("frames_received", counters.frames_received.into()),
        ("frames_lost", counters.frames_lost.into()),
        ("batches", counters.batches.into()),
        ("bytes_staged", counters.bytes_staged.into()),
        ("bytes_placed", counters.bytes_placed.into()),
        ("bytes_copied", counters.bytes_copied.into()),
        ("not_ready", counters.not_ready.into()),
        ("qp_errors", counters.qp_errors.into()),
        ("violations", (counters.violations + bridge.device_violations).into()),
        ("last_violation", counters.last_violation.map(Value::display).into()),
        ("interrupts", carrier.interrupts.into()),
        ("measured", measured(&bridge.measured)),
    ])
}

fn transport(one: &TransportStatus<'_>) -> Value {
    let (carrier, counters) = (&one.carrier, &one.counters);
    let (driver, location) = one.device;
    let engine = carrier.engine;
    Value::object([
        ("name", one.name.to_string().into()),
        ("link", standing(one.state).into()),
        ("protocol", "ntb_transport".into()),
        ("interface", one.interface.map(Value::display).into()),
        ("device", format!("{driver}, {location}").into()),
        ("side", one.side.into()),
        ("doorbell", carrier.doorbell.into()),
        ("link_speed", carrier.link_speed.clone().into()),
        ("carried_by", carrier.carried_by.clone().into()),
        ("bytes_by_cpu", carrier.by_cpu.into()),
        ("bytes_by_engine", engine.map(|counters| counters.bytes).into()),
        ("engine_resets", engine.map(|counters| counters.resets).into()),
        ("engine_completions_missed", engine.map(|counters| counters.missed).into()),
        ("window", Value::Bytes(carrier.window as u64)),
        ("exposed", Value::Bytes(carrier.exposed as u64)),
        ("link_up", one.ups.into()),
        ("frames_sent", counters.tx_frames.into()),
        ("frames_received", counters.rx_frames.into()),
        ("frames_refused", counters.rx_errors.into()),
        ("violations", one.violations.into()),
        ("interrupts", carrier.interrupts.into()),
    ])
}
