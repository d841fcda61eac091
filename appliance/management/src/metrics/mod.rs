//! `/metrics`: all counters and gauges, for Prometheus.

#[cfg(feature = "mlx5")]
mod cards;
mod dns;
mod linx;
mod log;
mod ntb;
mod nvme;
mod page;
mod rapidio;
mod rdma_stack;
mod remote_storage;
mod smc;
mod storage;
mod time;
pub mod udp_engines;

use crate::appliance::Appliance;
use crate::loops::{LoopCounters, Stage};
use crate::show::not_ready;
use core::fmt::{Display, Error};
use drivers::hal::{DeviceState, Health, PortCounters};
use net::metrics::{Place, Writer};
use page::Page;

/// A part of the page. It writes the same families in the same order for each piece.
type Section = fn(&dyn Appliance, &mut Page<'_>) -> Result<(), Error>;

const SECTIONS: &[Section] = &[
    appliance,
    log::write,
    dns::write,
    time::write,
    ports,
    disks,
    rdma_stack::write,
    #[cfg(feature = "mlx5")]
    cards::write,
    ntb::write,
    rapidio::write,
    udp_engines::write,
    linx::write,
    nvme::write,
    storage::write,
    smc::write,
    remote_storage::write,
    loops,
];

/// Position in the page.
pub(crate) use crate::console::MetricsPlace as Progress;

/// Appends until the piece has `room` bytes, or one sample more. False at the end of the page.
pub(crate) fn write_piece(
    appliance: &dyn Appliance,
    progress: &mut Progress,
    piece: &mut String,
    room: usize,
) -> bool {
    while let Some(section) = SECTIONS.get(progress.section) {
        let left = room.saturating_sub(piece.len());
        if left == 0 {
            return true;
        }
        let mut writer = Writer::resume(&mut *piece, progress.place, left);
        match section(appliance, &mut writer) {
            Ok(()) => {
                *progress = Progress { section: progress.section + 1, place: Place::default() }
            }
            // Writing to a string cannot fail, so the error means that the piece is full.
            Err(Error) => {
                progress.place = writer.place();
                return true;
            }
        }
    }
    false
}

/// A counter of a port: metric name, help, and value.
type PortFamily = (&'static str, &'static str, fn(&PortCounters) -> u64);

const PORT_FAMILIES: [PortFamily; 9] = [
    ("isthmus_port_receive_frames_total", "Frames received.", |c| c.rx_frames),
    ("isthmus_port_receive_bytes_total", "Bytes received.", |c| c.rx_bytes),
    (
        "isthmus_port_receive_errors_total",
        "Frames that the device reported with an impossible length or buffer.",
        |c| c.rx_errors,
    ),
    ("isthmus_port_transmit_frames_total", "Frames handed to the device.", |c| c.tx_frames),
    ("isthmus_port_transmit_bytes_total", "Bytes handed to the device.", |c| c.tx_bytes),
    (
        "isthmus_port_transmit_full_total",
        "Frames rejected because the transmit ring was full.",
        |c| c.tx_full,
    ),
    ("isthmus_port_interrupts_total", "Interrupts that the device raised.", |c| c.interrupts),
    (
        "isthmus_port_receive_missed_total",
        "Frames that the device dropped for lack of a buffer, or received damaged.",
        |c| c.rx_missed,
    ),
    ("isthmus_port_resets_total", "Resets of the device by its driver.", |c| c.resets),
];

/// A health value of a disk, measured by the disk or its driver: metric name, help, and value. None if the disk does
/// not report it.
type DiskFamily = (&'static str, &'static str, fn(&Health) -> Option<f64>);

const DISK_FAMILIES: [DiskFamily; 7] = [
    ("isthmus_disk_up", "Whether the disk accepts requests.", |h| {
        Some(f64::from(u8::from(!h.gone)))
    }),
    ("isthmus_disk_temperature_celsius", "Temperature of the disk.", |h| h.celsius.map(f64::from)),
    ("isthmus_disk_spare_ratio", "Fraction of spare blocks left.", |h| {
        h.spare.map(|percent| f64::from(percent) / 100.0)
    }),
    ("isthmus_disk_used_ratio", "Fraction of the disk's rated endurance used.", |h| {
        h.used.map(|percent| f64::from(percent) / 100.0)
    }),
    ("isthmus_disk_media_errors_total", "Uncorrectable media errors.", |h| {
        h.media_errors.map(|count| count as f64)
    }),
    ("isthmus_disk_aborts_total", "Requests aborted after a timeout.", |h| Some(h.aborts as f64)),
    ("isthmus_disk_resets_total", "Resets of the disk's controller by its driver.", |h| {
        Some(h.resets as f64)
    }),
];

/// A counter of a port's IP interface: metric name, help, and value.
type IpFamily = (&'static str, &'static str, fn(&net::Counters) -> u64);

const IP_FAMILIES: [IpFamily; 8] = [
    ("isthmus_ip_receive_frames_total", "Frames delivered to the IP interface.", |c| c.rx_frames),
    (
        "isthmus_ip_filtered_total",
        "Of these, frames for another host, malformed, or of an unsupported protocol.",
        |c| c.rx_filtered,
    ),
    (
        "isthmus_ip_receive_dropped_total",
        "Of these, frames dropped because no reply could be queued.",
        |c| c.rx_no_room,
    ),
    ("isthmus_ip_transmit_frames_total", "Frames accepted by the port.", |c| c.tx_frames),
    ("isthmus_ip_transmit_errors_total", "Frames dropped because they exceeded the MTU.", |c| {
        c.tx_too_large
    }),
    (
        "isthmus_ip_address_conflicts_total",
        "Frames in which another host claimed an address of this appliance.",
        |c| c.conflicts,
    ),
    (
        "isthmus_tcp_cookie_guesses_total",
        "TCP segments with a wrong SYN cookie during a SYN flood.",
        |c| c.cookie_guesses,
    ),
    (
        "isthmus_tcp_foreign_syns_total",
        "TCP connection requests with the address of a host, from another MAC address than the host's.",
        |c| c.foreign_syns,
    ),
];

fn appliance(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let machine = appliance.machine();
    w.gauge("isthmus_uptime_seconds", "Time since the appliance started.")?
        .sample(&[], machine.uptime)?;
    let now = machine.clock.at(machine.now).0;
    w.gauge("isthmus_time_seconds", "The wall clock, in seconds since 1970 UTC.")?
        .sample(&[], now.as_secs_f64())?;
    w.gauge(
        "isthmus_time_plausible",
        "Whether the wall clock is plausible: not before this build.",
    )?
    .sample(&[], u64::from(machine.clock.is_plausible))?;
    let mut ready = w.gauge("isthmus_ready", "Whether everything configured is in service.")?;
    // The answer costs much where there are many exports.
    if !ready.is_past() {
        ready.sample(&[], u64::from(not_ready(appliance).is_empty()))?;
    }
    w.gauge(
        "isthmus_config_unsaved",
        "Whether the configuration was changed since it was read or saved.",
    )?
    .sample(&[], u64::from(appliance.has_unsaved()))?;
    w.gauge("isthmus_config_trial", "Whether a commit waits for its confirmation.")?
        .sample(&[], u64::from(appliance.lifecycle().trial.is_some()))?;
    if let Some(slots) = appliance.upgrade().slots {
        w.gauge("isthmus_upgrade_trial", "Whether the running release is on trial.")?
            .sample(&[], u64::from(slots.trial))?;
    }
    if let Some(until) = appliance.tls().and_then(|status| status.tls.pair().not_after()) {
        w.gauge(
            "isthmus_tls_certificate_not_after_seconds",
            "Expiry of the HTTP servers' certificate, in seconds since 1970 UTC.",
        )?
        .sample(&[], until)?;
    }
    let problems = machine.problems.len() + machine.warnings.len();
    w.gauge("isthmus_config_problems", "Errors and unknown keys in the configuration.")?
        .sample(&[], problems as u64)?;
    let (capacity, available) = appliance.arena();
    w.gauge("isthmus_arena_size_bytes", "Memory for DMA, volumes and sessions.")?
        .sample(&[], capacity as u64)?;
    w.gauge("isthmus_arena_free_bytes", "Free part of the arena.")?
        .sample(&[], available as u64)?;
    w.gauge("isthmus_memory_heap_bytes", "Heap memory in use.")?
        .sample(&[], (machine.facts.heap_used)() as u64)?;
    w.counter("isthmus_crashes_total", "Panics and exceptions since the first recorded one.")?
        .sample(&[], machine.crashes.count())?;
    w.gauge("isthmus_build_info", "Always 1; the labels identify the build.")?.sample(
        &[
            ("version", &env!("CARGO_PKG_VERSION")),
            ("commit", &machine.facts.commit),
            ("build", &machine.facts.build_id),
        ],
        1u64,
    )?;
    let mut refused = w.counter(
        "isthmus_refused_total",
        "Requests of peers and operators that were refused, by reason.",
    )?;
    for count in machine.refused.counts() {
        refused.sample(&[("what", &count.what), ("reason", &count.reason)], count.count)?;
    }
    Ok(())
}

fn ports(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let ports = appliance.ports();
    let mut up = w.gauge("isthmus_port_up", "Whether the port's link is up.")?;
    for port in &ports {
        up.sample(&[("port", &port.name)], u64::from(port.link))?;
    }
    let help = "Whether the port's device works, whatever its link.";
    let mut ready = w.gauge("isthmus_port_device_ready", help)?;
    for port in &ports {
        let is_ready = port.report.life.state == DeviceState::Ready;
        ready.sample(&[("port", &port.name)], u64::from(is_ready))?;
    }
    for (name, help, value) in PORT_FAMILIES {
        let mut family = w.counter(name, help)?;
        for port in &ports {
            family.sample(&[("port", &port.name)], value(&port.report.counters))?;
        }
    }
    for (name, help, value) in IP_FAMILIES {
        let mut family = w.counter(name, help)?;
        for port in &ports {
            family.sample(&[("port", &port.name)], value(&port.addresses.counters))?;
        }
    }
    let mut echoes = w.counter("isthmus_udp_echoes_total", "Datagrams echoed.")?;
    for port in &ports {
        echoes.sample(&[("port", &port.name)], port.report.echoes)?;
    }
    let mut dropped = w.counter(
        "isthmus_port_control_dropped_total",
        "Frames for the control plane dropped because the ring from the port's loop was full.",
    )?;
    for port in &ports {
        dropped.sample(&[("port", &port.name)], port.control_dropped)?;
    }
    // Absent unless several cores share a port.
    let shared = appliance.queues();
    for (name, help, value) in QUEUE_FAMILIES.into_iter().filter(|_| !shared.is_empty()) {
        let mut family = w.counter(name, help)?;
        for queue in &shared {
            if let Some(counters) = &queue.counters {
                let labels: [(_, &dyn Display); 2] = [("port", &queue.port), ("loop", &queue.core)];
                family.sample(&labels, value(counters, queue.punted))?;
            }
        }
    }
    // Absent unless an engine over UDP uses a port of another loop.
    if ports.iter().any(|port| port.forwarding_dropped.is_some()) {
        let mut dropped = w.counter(
            "isthmus_port_forwarding_dropped_total",
            "Datagrams for an engine over UDP dropped because the ring from the port's loop was full.",
        )?;
        for port in &ports {
            let Some(count) = port.forwarding_dropped else { continue };
            dropped.sample(&[("port", &port.name)], count)?;
        }
    }
    Ok(())
}

fn disks(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let disks = appliance.disks();
    let mut size = w.gauge("isthmus_disk_size_bytes", "Capacity of the disk.")?;
    for disk in &disks {
        size.sample(&[("disk", &disk.name)], disk.geometry.sectors.saturating_mul(512))?;
    }
    let mut interrupts =
        w.counter("isthmus_disk_interrupts_total", "Interrupts that the disk raised.")?;
    for disk in &disks {
        interrupts.sample(&[("disk", &disk.name)], disk.interrupts)?;
    }
    // Most machines have no disk that reports its health or has queues for several cores.
    if disks.iter().all(|disk| disk.health.is_none()) {
        return Ok(());
    }
    let mut requests = w.counter(
        "isthmus_disk_queue_requests_total",
        "Requests that the drive completed in the queue of a core.",
    )?;
    for disk in &disks {
        for queue in &disk.queues {
            requests.sample(&[("disk", &disk.name), ("core", &queue.core)], queue.requests)?;
        }
    }
    for (name, help, value) in DISK_FAMILIES {
        let mut family = match name.ends_with("_total") {
            true => w.counter(name, help)?,
            false => w.gauge(name, help)?,
        };
        for disk in &disks {
            if let Some(value) = disk.health.as_ref().and_then(value) {
                family.sample(&[("disk", &disk.name)], value)?;
            }
        }
    }
    Ok(())
}

/// Value of a queue's metric, from the counters of its port and the number of frames passed to the control plane.
type OfQueue = fn(&PortCounters, u64) -> u64;

const QUEUE_FAMILIES: [(&str, &str, OfQueue); 3] = [
    ("isthmus_port_queue_receive_frames_total", "Frames received by the core.", |c, _| c.rx_frames),
    ("isthmus_port_queue_transmit_frames_total", "Frames sent by the core.", |c, _| c.tx_frames),
    (
        "isthmus_port_queue_control_frames_total",
        "Frames passed by the core to the control plane.",
        |_, punted| punted,
    ),
];

fn loops(appliance: &dyn Appliance, w: &mut Page<'_>) -> Result<(), Error> {
    let loops: Vec<(usize, LoopCounters)> = appliance
        .loops()
        .into_iter()
        .filter_map(|(core, report)| Some((core, report?.counters)))
        .collect();
    let mut rounds = w.counter("isthmus_loop_rounds_total", "Rounds of the poll loop.")?;
    for (core, counters) in &loops {
        rounds.sample(&[("loop", core)], counters.rounds)?;
    }
    let mut halts =
        w.counter("isthmus_loop_halts_total", "Times that the loop halted its core.")?;
    for (core, counters) in &loops {
        halts.sample(&[("loop", core)], counters.halts)?;
    }
    // Absent without a card with RoCE in hardware.
    if loops.iter().any(|(_, counters)| counters.brief_rounds > 0) {
        let help = "Rounds that handled completions of RoCE cards only.";
        let mut brief = w.counter("isthmus_loop_brief_rounds_total", help)?;
        for (core, counters) in &loops {
            brief.sample(&[("loop", core)], counters.brief_rounds)?;
        }
    }
    let mut time =
        w.counter("isthmus_loop_seconds_total", "Time of the loop: busy, idle, halted.")?;
    for (core, counters) in &loops {
        let parts = [("busy", counters.busy), ("idle", counters.idle), ("halted", counters.halted)];
        for (state, spent) in parts {
            time.sample(&[("loop", core), ("state", &state)], spent as f64 / 1e9)?;
        }
    }
    let mut items = w.counter(
        "isthmus_loop_stage_items_total",
        "Items (frames, operations, rounds with console traffic) handled by a stage.",
    )?;
    for (core, counters) in &loops {
        for stage in Stage::ALL {
            let handled = counters.stages[stage as usize].items;
            items.sample(&[("loop", core), ("stage", &stage.name())], handled)?;
        }
    }
    Ok(())
}
