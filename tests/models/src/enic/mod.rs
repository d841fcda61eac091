//! Model of Cisco's VIC as an Ethernet interface (Linux: `drivers/net/ethernet/cisco/enic`): resource table, commands
//! by mailbox and by ring (devcmd2), work, receive and completion queues, notify area, interrupts, filters; with faults
//! to inject. No manual is public: the drivers of Linux and DPDK are the only sources.
//!
//! Not modelled: RSS, TSO, tunnel offloads, interrupt coalescing, frames in more than one receive buffer, port profiles
//! (802.1Qbh), proxied commands, the queue pairs of usNIC.

mod command;
mod fault;
mod filter;
mod interrupts;
mod layout;
mod queue;
#[cfg(test)]
mod tests;

pub use fault::Fault;

use crate::registers::{number, read_bytes};
use crate::{
    Bar, Cable, ConfigSpace, Function, Interrupts, Lateness, Machine, Nanoseconds, PortType,
};
use command::{Mailbox, Running};
use filter::Filter;
use interrupts::Line;
use queue::{Completions, Kind, Queue};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

const BARS: [Bar; 2] =
    [Bar { index: 0, size: layout::BAR_0 }, Bar { index: 2, size: layout::BAR_2 }];

/// The default MAC address.
pub const MAC: [u8; 6] = [0, 0x25, 0xb5, 1, 2, 3];

/// PCI device id of a physical function.
pub const PHYSICAL: u16 = 0x0043;
/// PCI device id of an older virtual function.
pub const VIRTUAL: u16 = 0x0071;
/// PCI device id of a newer virtual function.
pub const NEWER_VIRTUAL: u16 = 0x02b7;

/// Properties of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// PCI device id.
    pub device: u16,
    /// MAC address.
    pub mac: [u8; 6],
    /// Largest layer 3 packet of the port in bytes.
    pub mtu: u16,
    /// Work queues. Each work or receive queue has a completion queue.
    pub work_queues: u32,
    /// Receive queues.
    pub receive_queues: u32,
    /// Descriptors of a work queue, as the device reports them.
    pub work_entries: u32,
    /// Descriptors of a receive queue, as the device reports them.
    pub receive_entries: u32,
    /// Interrupts.
    pub interrupts: u32,
    /// MSI-X vectors; 0: INTx only.
    pub vectors: u16,
    /// Offers the command ring as well as the mailbox.
    pub devcmd2: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            device: PHYSICAL,
            mac: MAC,
            mtu: 9000,
            work_queues: 1,
            receive_queues: 2,
            work_entries: 256,
            receive_entries: 512,
            interrupts: 8,
            vectors: 8,
            devcmd2: true,
        }
    }
}

/// Most complaints that are listed among the counters.
const MOST_LISTED: usize = 10;

/// How far the driver has initialised the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Closed,
    Open,
    Initialised,
}

/// Counters.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    commands: u64,
    failed: u64,
    resets: u64,
    hangs: u64,
    interrupts: u64,
    sent: u64,
    sent_bytes: u64,
    transmit_errors: u64,
    received: u64,
    received_bytes: u64,
    /// Received frames that a filter has steered to another queue.
    steered: u64,
    no_buffers: u64,
}

impl Counts {
    fn clear_statistics(&mut self) {
        (self.sent, self.sent_bytes, self.transmit_errors) = (0, 0, 0);
        (self.received, self.received_bytes, self.no_buffers) = (0, 0, 0);
    }

    /// The layout of STATS_DUMP: 27 transmit counters, then 37 receive counters.
    fn statistics(&self) -> Vec<u8> {
        let mut words = [0; 27 + 37];
        (words[0], words[4], words[9]) = (self.sent, self.sent_bytes, self.transmit_errors);
        (words[27], words[28], words[32]) = (self.received, self.received, self.received_bytes);
        words[27 + 10] = self.no_buffers;
        words.iter().flat_map(|word: &u64| word.to_le_bytes()).collect()
    }
}

/// An interface.
pub struct Enic {
    settings: Config,
    config: ConfigSpace,
    faults: Vec<Fault>,
    /// The link is up.
    pub link: bool,
    /// Frames from the wire, not received yet.
    pub arriving: VecDeque<Vec<u8>>,
    /// Frames that were sent to the wire.
    pub sent: Vec<Vec<u8>>,
    cable: Option<Arc<Mutex<Cable>>>,
    stage: Stage,
    enabled: bool,
    settled: Nanoseconds,
    hung: bool,
    mailbox: Mailbox,
    ring: Queue,
    running: Option<Running>,
    work: Vec<Queue>,
    receive: Vec<Queue>,
    completions: Vec<Completions>,
    lines: Vec<Line>,
    notify_area: Option<(u64, u16)>,
    reported_link: Option<bool>,
    addresses: Vec<[u8; 6]>,
    packet_filter: u32,
    nic_config: u32,
    rewrite_mode: u32,
    /// Bytes of a receive completion. An earlier system may have left another size than 16.
    pub entry_size: u64,
    lateness: Option<Lateness>,
    filters: Vec<Filter>,
    last_filter: u32,
    counts: Counts,
    /// The driver's violations of the device's rules.
    pub complaints: Vec<String>,
}

impl Enic {
    /// Creates an interface in its power-on state.
    pub fn new(settings: Config) -> Self {
        let mut config = ConfigSpace::new(0x1137, settings.device, 0x02_00_00, 0xa2)
            .subsystem(0x1137, 0x0085)
            .memory_bar(0, layout::BAR_0)
            .memory_bar(2, layout::BAR_2);
        match settings.vectors {
            0 => config.put(0x3d, &[1]),
            vectors => config = config.msix(vectors, 2, 0, layout::MSIX_PENDING),
        }
        let queues = settings.work_queues + settings.receive_queues;
        let queue = |kind| move |_| Queue::new(kind);
        Enic {
            settings,
            config: config.express(PortType::Endpoint).power_management(),
            faults: Vec::new(),
            link: true,
            arriving: VecDeque::new(),
            sent: Vec::new(),
            cable: None,
            stage: Stage::Closed,
            enabled: false,
            settled: 0,
            hung: false,
            mailbox: Mailbox::default(),
            ring: Queue::new(Kind::Work),
            running: None,
            work: (0..settings.work_queues).map(queue(Kind::Work)).collect(),
            receive: (0..settings.receive_queues).map(queue(Kind::Receive)).collect(),
            completions: (0..queues).map(|_| Completions::default()).collect(),
            lines: vec![Line::default(); settings.interrupts as usize],
            notify_area: None,
            reported_link: None,
            addresses: Vec::new(),
            packet_filter: 0,
            nic_config: 0,
            rewrite_mode: 0,
            entry_size: 16,
            lateness: None,
            filters: Vec::new(),
            last_filter: 0,
            counts: Counts::default(),
            complaints: Vec::new(),
        }
    }

    /// Attaches a cable. The owner of its other end carries the frames.
    pub fn with_cable(mut self, cable: Arc<Mutex<Cable>>) -> Self {
        self.cable = Some(cable);
        self
    }

    /// Injects a fault.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Removes all faults.
    pub fn repair(&mut self) {
        self.faults.clear();
    }

    /// Removes the faults that last across a reset.
    pub fn faults_that_last_end(&mut self) {
        self.faults.retain(|fault| !fault.lasts());
    }

    /// Number of filters.
    pub fn filters(&self) -> usize {
        self.filters.len()
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Removes the first fault that matches, and returns its parameter.
    fn once<T>(&mut self, matches: impl Fn(Fault) -> Option<T>) -> Option<T> {
        let at = self.faults.iter().position(|&fault| matches(fault).is_some())?;
        matches(self.faults.remove(at))
    }

    fn complain(&mut self, what: impl Into<String>) {
        self.complaints.push(what.into());
    }

    fn is_virtual(&self) -> bool {
        self.settings.device != PHYSICAL
    }

    fn mac(&self) -> [u8; 6] {
        if self.has(Fault::NoAddress) { [0; 6] } else { self.settings.mac }
    }

    /// Clears the state that a soft reset clears.
    fn clear_queues(&mut self) {
        self.faults.retain(|&fault| fault != Fault::Fatal);
        self.enabled = false;
        self.hung = false;
        let queues = self.work.iter_mut().chain(&mut self.receive);
        queues.for_each(|queue| queue.stop(0));
        self.notify_area = None;
        self.reported_link = None;
        self.addresses.clear();
        self.filters.clear();
        (self.packet_filter, self.nic_config, self.rewrite_mode) = (0, 0, 0);
    }

    fn read32(&self, offset: u64) -> u32 {
        let place = |start: u64| {
            let at = offset - start;
            ((at / layout::BLOCK) as usize, at % layout::BLOCK)
        };
        let queue = |queues: &[Queue], (n, at): (usize, u64)| match queues.get(n) {
            // The register `running`.
            Some(_) if at == 0x28 && self.has(Fault::StuckRunning) => 1,
            Some(queue) => queue.read(at),
            None => 0,
        };
        match offset {
            layout::DEVCMD2..layout::WORK => {
                queue(std::slice::from_ref(&self.ring), place(layout::DEVCMD2))
            }
            layout::WORK..layout::RECEIVE => queue(&self.work, place(layout::WORK)),
            layout::RECEIVE..layout::COMPLETION => queue(&self.receive, place(layout::RECEIVE)),
            layout::COMPLETION..layout::INTERRUPT => {
                let (n, at) = place(layout::COMPLETION);
                self.completions.get(n).map_or(0, |queue| queue.read(at))
            }
            layout::INTERRUPT..layout::LEGACY_PENDING => {
                let (n, at) = place(layout::INTERRUPT);
                self.lines.get(n).map_or(0, |line| line.read(at))
            }
            layout::LEGACY_PENDING => self.legacy_pending(),
            _ => 0,
        }
    }

    fn write32(&mut self, offset: u64, value: u32, machine: &mut dyn Machine) {
        let place = |start: u64| {
            let at = offset - start;
            ((at / layout::BLOCK) as usize, at % layout::BLOCK)
        };
        let wrong = match offset {
            layout::DEVCMD2..layout::WORK if self.settings.devcmd2 => {
                self.ring.write(place(layout::DEVCMD2).1, value)
            }
            layout::WORK..layout::RECEIVE => {
                let (n, at) = place(layout::WORK);
                self.work.get_mut(n).map_or(nothing(offset), |queue| queue.write(at, value))
            }
            layout::RECEIVE..layout::COMPLETION => {
                let (n, at) = place(layout::RECEIVE);
                self.receive.get_mut(n).map_or(nothing(offset), |queue| queue.write(at, value))
            }
            layout::COMPLETION..layout::INTERRUPT => {
                let (n, at) = place(layout::COMPLETION);
                self.completions.get_mut(n).map_or(nothing(offset), |queue| queue.write(at, value))
            }
            layout::INTERRUPT..layout::LEGACY_PENDING => {
                let (n, at) = place(layout::INTERRUPT);
                match n < self.lines.len() {
                    true => return self.write_line(n, at, value, machine),
                    false => nothing(offset),
                }
            }
            _ => nothing(offset),
        };
        if let Some(wrong) = wrong {
            self.complain(wrong);
        }
    }
}

fn nothing(offset: u64) -> Option<String> {
    Some(format!("something is written to {offset:#x}, where nothing is"))
}

impl Function for Enic {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        &BARS
    }

    fn interrupts(&self) -> Interrupts {
        let intx = u16::from(self.settings.vectors == 0);
        Interrupts { intx, msix: self.settings.vectors, ..Interrupts::default() }
    }

    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        if bar != 0 || self.has(Fault::AllOnes) {
            return into.fill(0xff);
        }
        match offset {
            0..layout::DEVCMD => {
                let table = layout::table(&self.settings, |fault| self.has(fault));
                read_bytes(offset, into, |at| table.get(at as usize).copied().unwrap_or(0));
            }
            layout::DEVCMD..layout::DEVCMD2 => {
                let at = offset - layout::DEVCMD;
                let value = if at < layout::BLOCK { self.mailbox.read(at) } else { 0 };
                into.copy_from_slice(&value.to_le_bytes()[..into.len().min(8)]);
            }
            _ if into.len() == 4 => queue::fill(self.read32(offset), into),
            _ => {
                self.complain(format!("{} bytes are read at {offset:#x}", into.len()));
                into.fill(0xff);
            }
        }
    }

    fn write(
        &mut self,
        bar: u8,
        offset: u64,
        bytes: &[u8],
        now: Nanoseconds,
        machine: &mut dyn Machine,
    ) {
        if bar != 0 || self.has(Fault::AllOnes) {
            return;
        }
        let value = number(bytes);
        match (offset, bytes.len()) {
            (layout::DEVCMD..layout::DEVCMD2, _) => {
                let at = offset - layout::DEVCMD;
                match at < layout::BLOCK {
                    true => self.write_mailbox(at, bytes, now, machine),
                    false => self.complain(format!("{value:#x} goes to {offset:#x}")),
                }
            }
            (_, 4) => self.write32(offset, value as u32, machine),
            (_, 8) => {
                self.write32(offset, value as u32, machine);
                self.write32(offset + 4, (value >> 32) as u32, machine);
            }
            _ => self.complain(format!("{} bytes go to {offset:#x}", bytes.len())),
        }
    }

    fn poll(&mut self, now: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        let cable = self.cable.clone();
        let lock = |cable: &Arc<Mutex<Cable>>, work: &mut dyn FnMut(&mut Cable)| {
            work(&mut cable.lock().unwrap_or_else(PoisonError::into_inner));
        };
        if let Some(cable) = &cable {
            lock(cable, &mut |cable| self.arriving.append(&mut cable.arriving));
        }
        if self.config.is_bus_master() {
            self.run_commands(now, machine);
            if self.notify_area.is_some() {
                let fatal = self.has(Fault::Fatal) || self.has(Fault::NotifySum);
                if self.reported_link != Some(self.link) || fatal {
                    self.notify(machine);
                }
            }
            self.fail_queues(machine);
            self.send(machine);
            self.take_in(machine);
        }
        if let Some(cable) = &cable {
            lock(cable, &mut |cable| cable.sent.append(&mut self.sent));
        }
        self.running.map(|running| running.due.max(now + 1))
    }

    fn be_late(&mut self, lateness: Lateness) {
        self.lateness = Some(lateness);
    }

    fn reset(&mut self) {
        let settings = self.settings;
        let (config, cable) = (self.config.clone(), self.cable.take());
        let (counts, faults) = (self.counts, std::mem::take(&mut self.faults));
        let complaints = std::mem::take(&mut self.complaints);
        let kept = Enic { config, counts, faults, complaints, ..Enic::new(settings) };
        *self = Enic { cable, ..kept };
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let counts = &self.counts;
        let complaints = self.complaints.iter().take(MOST_LISTED);
        let complaints = complaints.map(|what| (format!("complaint ({what})"), 1));
        let counted = [
            ("commands", counts.commands),
            ("failed", counts.failed),
            ("resets", counts.resets),
            ("hangs", counts.hangs),
            ("interrupts", counts.interrupts),
            ("sent", counts.sent),
            ("received", counts.received),
            ("steered", counts.steered),
            ("no_buffers", counts.no_buffers),
            ("complaints", self.complaints.len() as u64),
        ];
        let counted = counted.map(|(name, count)| (name.to_string(), count));
        counted.into_iter().chain(complaints).collect()
    }
}
