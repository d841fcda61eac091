//! NVIDIA's ConnectX (4 Lx and later) as its drivers see it: initialization segment, commands with mailboxes, pages, event
//! and completion queues, send and receive queues of Ethernet, flow tables, memory keys, queue pairs whose packets are
//! RoCEv2 frames on the wire, health, function-level reset; and what it does wrong on demand.
//!
//! Known from Linux (`drivers/net/ethernet/mellanox/mlx5`, `drivers/infiniband/hw/mlx5`), rdma-core and Snabb, not from a
//! card: where Linux does not look, and above all on errors, what the model does is an opinion. It is strict instead: what
//! is reserved must be 0, lengths must be right, objects in the state that a command asks for.
//!
//! Not modelled: shared receive queues (made, but not used), striding receive queues, compressed completions, on-demand
//! paging, DEVX, DC, XRC, the e-switch, PTP, loopback of Ethernet frames, inner headers of tunnels.

mod buffer;
mod capabilities;
mod command;
mod completion_queue;
mod event_queue;
mod fault;
mod fields;
mod form;
mod health;
mod memory_key;
mod objects;
mod packet;
mod pages;
mod port_registers;
mod queue_pair;
mod receive;
mod requester;
mod responder;
mod segment;
mod state;
mod steering;
#[cfg(test)]
mod tests;
mod transmit;
mod transport;
mod umr;
mod vport;
mod work_queue;
mod work_request;

pub use fault::Fault;

use crate::registers::read_bytes;
use crate::{
    Bar, Cable, ConfigSpace, Function, Interrupt, Interrupts, Machine, Nanoseconds, PortType,
};
use state::State;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of BAR 0.
const BAR_0: u64 = 32 << 20;
const BARS: [Bar; 1] = [Bar { index: 0, size: BAR_0 }];
/// Where the doorbell pages begin.
const UARS: u64 = 0x10_0000;
/// The MSI-X table and its pending bits.
const MSIX_TABLE: u32 = 0x2000;
const MSIX_PENDING: u32 = 0x3000;
/// Device control of the PCI Express capability, which is the first: bit 15 starts a function-level reset.
const DEVICE_CONTROL: u64 = 0x58;

/// Its MAC address, unless told otherwise.
pub const MAC: [u8; 6] = [0xec, 0x0d, 0x9a, 1, 2, 3];

/// PCI device ids: ConnectX-4 Lx, its virtual function, ConnectX-5, its virtual function, ConnectX-6 Dx.
pub const CONNECTX_4_LX: u16 = 0x1015;
/// See [`CONNECTX_4_LX`].
pub const CONNECTX_4_LX_VIRTUAL: u16 = 0x1016;
/// See [`CONNECTX_4_LX`].
pub const CONNECTX_5: u16 = 0x1017;
/// See [`CONNECTX_4_LX`].
pub const CONNECTX_5_VIRTUAL: u16 = 0x1018;
/// See [`CONNECTX_4_LX`].
pub const CONNECTX_6_DX: u16 = 0x101d;

/// Most complaints that are told.
const MOST_TOLD: usize = 40;
/// Most complaints that are kept.
const MOST_KEPT: usize = 1000;

/// Which function it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// PCI device id.
    pub device: u16,
    /// MAC address.
    pub mac: [u8; 6],
    /// Largest layer 3 packet of the port in bytes.
    pub mtu: u16,
    /// It has RoCE.
    pub roce: bool,
    /// Vectors of MSI-X.
    pub vectors: u16,
    /// 4 KiB pages that the firmware wants at boot, before INIT_HCA, and after it.
    pub pages: [u32; 3],
    /// How long the firmware takes to come up, in nanoseconds.
    pub start_up: Nanoseconds,
    /// It may receive what is not for it.
    pub trusted: bool,
    /// Priorities with flow control, a bit for each.
    pub flow_control: u8,
    /// Priorities for which congestion is heeded; None: the firmware does not tell of it.
    pub marks: Option<u8>,
    /// What of a frame must be in the work request itself: 0 nothing, 1 layer 2, 2 IP, 3 TCP or UDP.
    pub min_inline: u8,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            device: CONNECTX_5_VIRTUAL,
            mac: MAC,
            mtu: 9000,
            roce: true,
            vectors: 8,
            pages: [33, 700, 300],
            start_up: 0,
            trusted: true,
            flow_control: 0,
            marks: None,
            min_inline: 1,
        }
    }
}

/// What is counted.
#[derive(Clone, Debug, Default)]
struct Counts {
    commands: BTreeMap<u16, u64>,
    refused: u64,
    resets: u64,
    interrupts: u64,
    sent: u64,
    received: u64,
    no_buffers: u64,
    unmatched: u64,
    filtered: u64,
    not_ready: u64,
    /// Accesses to registers.
    register_reads: u64,
    register_writes: u64,
    roce_sent: u64,
    roce_received: u64,
    roce_dropped: u64,
    naks: u64,
    timeouts: u64,
    /// What a queue counter tells: packets out of sequence, requests that came again, RNR NAKs and others that came.
    out_of_sequence: u64,
    again: u64,
    not_ready_naks: u64,
    sequence_naks: u64,
    /// Work requests of queue pairs, by opcode.
    requests: BTreeMap<u8, u64>,
}

/// The function.
pub struct Mlx5 {
    settings: Config,
    config: ConfigSpace,
    faults: Vec<Fault>,
    /// The link is up.
    pub link: bool,
    /// Frames that come from the wire.
    pub arriving: VecDeque<Vec<u8>>,
    /// Frames that went to it.
    pub sent: Vec<Vec<u8>>,
    cable: Option<Arc<Mutex<Cable>>>,
    counts: Counts,
    /// See [`Mlx5::transport_counts`].
    counted_at_reset: [u64; 5],
    state: State,
    now: Nanoseconds,
    /// For its next turn: pages, and send queues.
    asking: Option<i32>,
    woken: bool,
    /// What the driver did that it must not do.
    pub complaints: Vec<String>,
}

impl Mlx5 {
    /// A function as it is after power-on.
    pub fn new(settings: Config) -> Self {
        let config = ConfigSpace::new(0x15b3, settings.device, 0x02_00_00, 0)
            .subsystem(0x15b3, 0x0003)
            .memory_bar(0, BAR_0)
            .express(PortType::Endpoint)
            .msix(settings.vectors, 0, MSIX_TABLE, MSIX_PENDING)
            .power_management()
            .writable(DEVICE_CONTROL as usize, 0xffff);
        Mlx5 {
            settings,
            config,
            faults: Vec::new(),
            link: true,
            arriving: VecDeque::new(),
            sent: Vec::new(),
            cable: None,
            counts: Counts::default(),
            counted_at_reset: [0; 5],
            state: State::new(&settings, 0),
            now: 0,
            asking: None,
            woken: false,
            complaints: Vec::new(),
        }
    }

    /// The function with a cable, to whose other end somebody else sees.
    pub fn with_cable(mut self, cable: Arc<Mutex<Cable>>) -> Self {
        self.cable = Some(cable);
        self
    }

    /// From now on it does this wrong.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
        if let Fault::Lacks(..) = fault {
            self.state.capabilities = capabilities::all(&self.settings, &self.faults);
        }
    }

    /// It does nothing wrong any more.
    pub fn repair(&mut self) {
        self.faults.clear();
        self.state.capabilities = capabilities::all(&self.settings, &self.faults);
    }

    /// Pages of the machine that it has.
    pub fn pages(&self) -> usize {
        self.state.pages.len()
    }

    /// With its next turn it asks for so many pages by an event, or with a negative number offers some.
    pub fn want_pages(&mut self, count: i32) {
        self.asking = Some(count);
    }

    /// With its next turn it looks at its send queues, as if there had been doorbells.
    pub fn wake(&mut self) {
        self.woken = true;
    }

    /// The commands that it was given so far.
    pub fn commands_seen(&self) -> Vec<u16> {
        self.counts.commands.keys().copied().collect()
    }

    /// Objects that a driver has made and not taken away, by kind, without those that there are none of.
    pub fn left(&self) -> Vec<(&'static str, usize)> {
        self.state.left()
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// What it does wrong now of what `matches` knows; what does not last is done once.
    fn once<T>(&mut self, matches: impl Fn(Fault) -> Option<T>) -> Option<T> {
        let at = self.faults.iter().position(|&fault| matches(fault).is_some())?;
        let fault = self.faults[at];
        if !fault.lasts() {
            self.faults.remove(at);
        }
        matches(fault)
    }

    fn complain(&mut self, what: impl Into<String>) {
        if self.complaints.len() < MOST_KEPT {
            self.complaints.push(what.into());
        }
    }

    /// Virtual functions have even device ids, up to ConnectX-6 Dx at least.
    fn is_virtual(&self) -> bool {
        self.settings.device & 1 == 0
    }

    fn interrupt(&mut self, vector: u32, machine: &mut dyn Machine) {
        self.counts.interrupts += 1;
        if !self.has(Fault::NoInterrupts) {
            machine.interrupt(Interrupt::Msix(vector as u16));
        }
    }

    /// Whether the driver has begun a function-level reset, which then takes place.
    fn take_reset(&mut self) {
        let mut control = [0; 2];
        self.config.read(DEVICE_CONTROL, &mut control);
        if control[1] & 0x80 != 0 {
            self.config.put(DEVICE_CONTROL as usize, &[control[0], control[1] & 0x7f]);
            self.reset();
        }
    }

    /// What a driver reads of queue pairs: packets out of sequence, requests that came again, RNR NAKs and others that came,
    /// timeouts.
    fn transport_counts(&self) -> [u64; 5] {
        let counts = &self.counts;
        let naks = [counts.not_ready_naks, counts.sequence_naks];
        [counts.out_of_sequence, counts.again, naks[0], naks[1], counts.timeouts]
    }

    fn is_silent(&self) -> bool {
        self.has(Fault::AllOnes) || self.has(Fault::AllOnesForEver)
    }
}

impl Function for Mlx5 {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        &BARS
    }

    fn interrupts(&self) -> Interrupts {
        Interrupts { msix: self.settings.vectors, ..Interrupts::default() }
    }

    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        self.counts.register_reads += 1;
        self.take_reset();
        if bar != 0 || self.is_silent() {
            return into.fill(0xff);
        }
        read_bytes(offset, into, |at| self.segment_word(at & !3).to_be_bytes()[(at & 3) as usize]);
    }

    fn write(
        &mut self,
        bar: u8,
        offset: u64,
        bytes: &[u8],
        now: Nanoseconds,
        machine: &mut dyn Machine,
    ) {
        self.now = now;
        self.counts.register_writes += 1;
        self.take_reset();
        if bar != 0 || self.is_silent() {
            return;
        }
        match offset {
            UARS.. => self.doorbell(offset, bytes, machine),
            _ => self.write_segment(offset, bytes, machine),
        }
    }

    fn poll(&mut self, now: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        self.now = now;
        self.take_reset();
        let cable = self.cable.clone();
        if let Some(cable) = &cable {
            let cable = &mut *cable.lock().unwrap_or_else(PoisonError::into_inner);
            self.arriving.append(&mut cable.arriving);
        }
        let mut due = None;
        if self.config.is_bus_master() && !self.is_silent() {
            self.deliver_replies(machine);
            self.watch_link(machine);
            if let Some(count) = self.asking.take() {
                self.request_pages(count, machine);
            }
            if std::mem::take(&mut self.woken) {
                let queues: Vec<u32> = self.state.send_queues.keys().copied().collect();
                queues.into_iter().for_each(|queue| self.run_send_queue(queue, machine));
            }
            self.take_in(machine);
            let driven = self.drive_queue_pairs(machine);
            let moderated = self.tell_of_moderated(machine);
            due = [self.next_reply(), driven, moderated].into_iter().flatten().min();
        }
        if let Some(cable) = &cable {
            let cable = &mut *cable.lock().unwrap_or_else(PoisonError::into_inner);
            cable.sent.append(&mut self.sent);
        }
        let more = !self.arriving.is_empty();
        if more { Some(now) } else { due.map(|at| at.max(now)) }
    }

    fn reset(&mut self) {
        let ends = |fault: &Fault| {
            matches!(fault, Fault::Fatal(_) | Fault::AllOnes | Fault::QueueHangs(_))
        };
        self.faults.retain(|fault| !ends(fault));
        self.counts.resets += 1;
        self.counted_at_reset = self.transport_counts();
        self.state = State::new(&self.settings, self.now);
        self.state.capabilities = capabilities::all(&self.settings, &self.faults);
        let mut control = [0; 2];
        self.config.read(4, &mut control);
        // Bus mastering ends with a reset; where the BARs are is restored by whoever resets.
        self.config.put(4, &[control[0] & !4, control[1]]);
    }

    fn order(&mut self, words: &str) -> Result<(), String> {
        match words {
            "repair" => self.repair(),
            "link-down" => self.link = false,
            "link-up" => self.link = true,
            name => self.inject(Fault::named(name)?),
        }
        Ok(())
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let counts = &self.counts;
        let counted = [
            ("commands", counts.commands.values().sum()),
            ("kinds", counts.commands.len() as u64),
            ("refused", counts.refused),
            ("resets", counts.resets),
            ("interrupts", counts.interrupts),
            ("sent", counts.sent),
            ("received", counts.received),
            ("no_buffers", counts.no_buffers),
            ("unmatched", counts.unmatched),
            ("filtered", counts.filtered),
            ("not_ready", counts.not_ready),
            ("register_reads", counts.register_reads),
            ("register_writes", counts.register_writes),
            ("roce_sent", counts.roce_sent),
            ("roce_received", counts.roce_received),
            ("roce_dropped", counts.roce_dropped),
            ("naks", counts.naks),
            ("timeouts", counts.timeouts),
            ("pages", self.pages() as u64),
            ("left", self.left().iter().map(|(_, count)| *count as u64).sum()),
            ("complaints", self.complaints.len() as u64),
        ];
        let counted = counted.map(|(name, count)| (name.to_string(), count)).into_iter();
        let commands = counts.commands.iter().map(|(opcode, count)| {
            let name = form::of(*opcode).map_or("?", |form| form.name);
            (format!("command.{name}"), *count)
        });
        let requests = counts.requests.iter();
        let requests = requests.map(|(opcode, count)| (format!("request.{opcode:02x}"), *count));
        let left = self.left();
        let left = left.iter().map(|(kind, count)| (format!("left.{kind}"), *count as u64));
        let complaints = self.complaints.iter().take(MOST_TOLD);
        let complaints = complaints.map(|what| (format!("complaint ({what})"), 1));
        counted.chain(commands).chain(requests).chain(left).chain(complaints).collect()
    }
}
