//! What is told of bridges: the rows of `show ntb`, and what is counted for `/metrics`. The loop that has a bridge makes
//! both; another one than the first writes them down now and then.

use super::{Bridge, Hardware, ntb_perf};
use crate::families::OfNtb;
use crate::gateway::plane::DataPlane;
use crate::gateway::state::State;
use crate::gateway::worker::Worker;
use crate::report::Value;
use core::time::Duration;
use drivers::dma::Carrier;
use drivers::hal::Instant;
use ntrdma::{Counters, Ntrdma};
use std::sync::Arc;

/// How often a loop writes down what is told of its bridges.
const INTERVAL: Duration = Duration::from_millis(100);

/// What is counted of a bridge.
#[derive(Clone, Debug)]
pub(in crate::gateway) struct BridgeTold {
    pub name: String,
    pub up: bool,
    /// What carries it, and whether that reaches the other machine.
    pub device: &'static str,
    pub connected: bool,
    pub queue_pairs: u64,
    pub counters: Counters,
    pub interrupts: u64,
    pub hardware: Option<Hardware>,
}

/// What is told of the bridges of a loop, in the order of their places.
#[derive(Debug, Default)]
pub(in crate::gateway) struct BridgesTold {
    rows: Vec<Value>,
    pub counts: Vec<BridgeTold>,
}

/// When a loop tells of its bridges next.
#[derive(Debug, Default)]
pub(in crate::gateway) struct LoopBridges {
    due: Instant,
}

impl LoopBridges {
    /// What is told of those of core `core`, if it is time; nothing of a loop without any.
    pub fn news(
        &mut self,
        plane: &DataPlane,
        core: usize,
        now: Instant,
    ) -> Option<Arc<BridgesTold>> {
        if plane.bridges.is_empty() || now < self.due {
            return None;
        }
        self.due = now + INTERVAL;
        let rows = plane.bridge_rows(core).collect();
        Some(Arc::new(BridgesTold { rows, counts: plane.bridge_counts().collect() }))
    }
}

impl DataPlane {
    /// Its bridges with their providers.
    fn bridges_with_providers(&self) -> impl Iterator<Item = (&OfNtb<Bridge>, &Ntrdma)> {
        let stacks = self.rdma_stack.iter();
        let ntrdma = stacks.flat_map(|rdma_stack| rdma_stack.providers.bridges());
        self.bridges.iter().zip(ntrdma)
    }

    fn bridge_rows(&self, core: usize) -> impl Iterator<Item = Value> {
        self.bridges_with_providers().map(move |(bridge, ntrdma)| row(bridge, ntrdma, core))
    }

    fn bridge_counts(&self) -> impl Iterator<Item = BridgeTold> {
        self.bridges_with_providers().map(|(bridge, ntrdma)| {
            let (device, connected) = bridge.device.connected();
            BridgeTold {
                name: bridge.name.clone(),
                up: ntrdma.link() == ntrdma::State::Up,
                device,
                connected,
                queue_pairs: ntrdma.queue_pairs().0 as u64,
                counters: *ntrdma.counters(),
                interrupts: bridge.device.interrupts(),
                hardware: bridge.device.hardware(),
            }
        })
    }
}

impl State {
    /// What is counted of all bridges to other appliances.
    pub fn bridge_counts(&self) -> Vec<BridgeTold> {
        let others = self.workers.iter().map(Worker::bridges);
        let others = others.flat_map(|told| told.counts.clone());
        self.plane.bridge_counts().chain(others).collect()
    }

    /// The bridge of that name, or the first, of another loop than the first: which of these, its place there, and whether
    /// its link is up.
    pub fn bridge_elsewhere(&self, name: Option<&str>) -> Option<(usize, usize, bool)> {
        self.workers.iter().enumerate().find_map(|(number, worker)| {
            let told = worker.bridges();
            let is_it = |one: &BridgeTold| name.is_none_or(|name| one.name == name);
            let place = told.counts.iter().position(is_it)?;
            Some((number, place, told.counts.get(place)?.up))
        })
    }
}

/// How the link stands, in a word.
fn state_name(state: ntrdma::State) -> &'static str {
    match state {
        ntrdma::State::Down => "down",
        ntrdma::State::Greeting => "waits for the peer",
        ntrdma::State::Clearing | ntrdma::State::Introducing => "coming up",
        ntrdma::State::Up => "up",
    }
}

/// A row of `show ntb`.
#[cold]
fn row(bridge: &Bridge, ntrdma: &Ntrdma, core: usize) -> Value {
    let (used, free) = ntrdma.queue_pairs();
    let counters = ntrdma.counters();
    let device = &bridge.device;
    let engine = device.carrier().map(Carrier::counters);
    Value::object([
        ("name", bridge.name.clone().into()),
        ("core", core.into()),
        ("link", state_name(ntrdma.link()).into()),
        ("address", Value::display(ntrdma.local())),
        ("peer", Value::display(ntrdma.remote())),
        ("device", device.name().into()),
        ("connection", device.connection().into()),
        ("side", device.side().into()),
        ("doorbell", device.doorbell().into()),
        ("link_speed", device.link_speed().into()),
        ("carried_by", device.carried_by().into()),
        ("bytes_by_cpu", device.carrier().map(Carrier::bytes_by_cpu).into()),
        ("bytes_by_engine", engine.map(|counters| counters.bytes).into()),
        ("engine_resets", engine.map(|counters| counters.resets).into()),
        ("engine_completions_missed", engine.map(|counters| counters.missed).into()),
        ("engines_lost", counters.engines_lost.into()),
        ("window", Value::Bytes(device.window() as u64)),
        ("exposed", Value::Bytes(device.exposed() as u64)),
        ("queue_pairs", used.into()),
        ("queue_pairs_free", free.into()),
        ("connections", ntrdma.connections().into()),
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
        ("violations", (counters.violations + device.violations()).into()),
        ("last_violation", counters.last_violation.map(Value::display).into()),
        ("interrupts", device.interrupts().into()),
        ("measured", bridge.measure.as_ref().map_or(Value::None, |m| ntb_perf::table(m))),
    ])
}

/// What `show ntb` tells.
pub(in crate::gateway) fn report(state: &State) -> Value {
    let plane = &state.plane;
    let others = state.workers.iter().map(Worker::bridges);
    let rows = plane.bridge_rows(0).chain(others.flat_map(|told| told.rows.clone()));
    let transports = plane.transports.iter().map(|transport| {
        let slot = state.ports.iter().find(|slot| transport.is_of(slot));
        transport.report(slot.map(|slot| slot.name.clone()))
    });
    Value::list(rows.chain(transports).collect::<Vec<_>>())
}
