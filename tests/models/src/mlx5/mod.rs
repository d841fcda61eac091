//! Model of NVIDIA's ConnectX (4 Lx and later): initialization segment, commands with mailboxes, pages, event and
//! completion queues, Ethernet send and receive queues, flow tables, memory keys, queue pairs with RoCEv2 frames on the
//! wire, health, function-level reset; with faults to inject.
//!
//! Sources are Linux (`drivers/net/ethernet/mellanox/mlx5`, `drivers/infiniband/hw/mlx5`), rdma-core and Snabb, not a
//! card. Behaviour that Linux does not check, above all on errors, is a guess. So the model is strict: reserved bits
//! must be 0, lengths right, and objects in the state that a command requires.
//!
//! Not modelled: shared receive queues (created, but not used), striding receive queues, compressed completions,
//! on-demand paging, DEVX, DC, XRC, the e-switch beyond its table of addresses, PTP, inner headers of tunnels.

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
    Bar, Cable, ConfigSpace, Function, Interrupt, Interrupts, Lateness, Machine, Nanoseconds,
    PortType,
};
use state::State;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of BAR 0.
const BAR_0: u64 = 32 << 20;
const BARS: [Bar; 1] = [Bar { index: 0, size: BAR_0 }];
/// Offset of the first doorbell page (UAR).
const UARS: u64 = 0x10_0000;
/// The MSI-X table and its pending bits.
const MSIX_TABLE: u32 = 0x2000;
const MSIX_PENDING: u32 = 0x3000;

/// The default MAC address.
pub const MAC: [u8; 6] = [0xec, 0x0d, 0x9a, 1, 2, 3];

/// PCI device id of ConnectX-4 Lx.
pub const CONNECTX_4_LX: u16 = 0x1015;
/// PCI device id of a virtual function of ConnectX-4 Lx.
pub const CONNECTX_4_LX_VIRTUAL: u16 = 0x1016;
/// PCI device id of ConnectX-5.
pub const CONNECTX_5: u16 = 0x1017;
/// PCI device id of a virtual function of ConnectX-5.
pub const CONNECTX_5_VIRTUAL: u16 = 0x1018;
/// PCI device id of ConnectX-6 Dx.
pub const CONNECTX_6_DX: u16 = 0x101d;

/// Most complaints that are listed among the counters.
const MOST_LISTED: usize = 40;
/// Most complaints that are kept.
const MOST_KEPT: usize = 1000;

/// Properties of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// PCI device id.
    pub device: u16,
    /// MAC address.
    pub mac: [u8; 6],
    /// Largest layer 3 packet of the port in bytes.
    pub mtu: u16,
    /// Reports the RoCE capability.
    pub roce: bool,
    /// MSI-X vectors.
    pub vectors: u16,
    /// 4 KiB pages that the firmware requests at boot, before INIT_HCA, and after it.
    pub pages: [u32; 3],
    /// Further pages before INIT_HCA, if the driver leaves `log_max_qp` at its maximum; each step less halves them.
    pub pages_for_pairs: u32,
    /// Time of a function-level reset, in which configuration requests are answered by retries.
    pub reset_time: Nanoseconds,
    /// Start-up time of the firmware in nanoseconds.
    pub start_up: Nanoseconds,
    /// Time after the driver has set the command queue's address in which the firmware takes no commands (Linux:
    /// second `wait_fw_init` in `mlx5_function_enable`).
    pub load: Nanoseconds,
    /// A physical function manages the card's switch of physical functions (MPFS): unicast frames arrive only for
    /// addresses in its table.
    pub manages_switch: bool,
    /// The function is trusted, and may receive frames for other addresses.
    pub trusted: bool,
    /// Priorities with flow control, a bit for each.
    pub flow_control: u8,
    /// Priorities with congestion control (ECN); None: the firmware does not report them.
    pub marks: Option<u8>,
    /// Headers of a frame that must be inline in the work request: 0 none, 1 layer 2, 2 IP, 3 TCP or UDP.
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
            pages_for_pairs: 1024,
            reset_time: 50_000_000,
            start_up: 20_000_000,
            load: 20_000_000,
            manages_switch: true,
            trusted: true,
            flow_control: 0,
            marks: None,
            min_inline: 1,
        }
    }
}

/// Counters.
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
    /// Out-of-sequence packets, as in a queue counter.
    out_of_sequence: u64,
    /// Duplicate requests, as in a queue counter.
    duplicates: u64,
    /// Received RNR NAKs, as in a queue counter.
    not_ready_naks: u64,
    /// Received sequence error NAKs, as in a queue counter.
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
    /// Frames from the wire, not received yet.
    pub arriving: VecDeque<Vec<u8>>,
    /// Frames that were sent to the wire.
    pub sent: Vec<Vec<u8>>,
    cable: Option<Arc<Mutex<Cable>>>,
    counts: Counts,
    /// [`Mlx5::transport_counts`] at the last reset of the function.
    counted_at_reset: [u64; 5],
    state: State,
    now: Nanoseconds,
    /// Delays of replies.
    lateness: Option<Lateness>,
    /// Pages to request (negative: to return) at the next poll.
    requested_pages: Option<i32>,
    /// All send queues are processed at the next poll.
    woken: bool,
    /// The driver's violations of the device's rules.
    pub complaints: Vec<String>,
}

impl Mlx5 {
    /// Creates a function in its power-on state.
    pub fn new(settings: Config) -> Self {
        let config = ConfigSpace::new(0x15b3, settings.device, 0x02_00_00, 0)
            .subsystem(0x15b3, 0x0003)
            .memory_bar(0, BAR_0)
            .express(PortType::Endpoint)
            .msix(settings.vectors, 0, MSIX_TABLE, MSIX_PENDING)
            .power_management()
            .error_reporting();
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
            lateness: None,
            requested_pages: None,
            woken: false,
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
        if let Fault::Lacks(..) = fault {
            self.state.capabilities = capabilities::all(&self.settings, &self.faults);
        }
    }

    /// Removes all faults.
    pub fn repair(&mut self) {
        self.faults.clear();
        self.state.capabilities = capabilities::all(&self.settings, &self.faults);
    }

    /// Pages of the machine that the firmware owns.
    pub fn pages(&self) -> usize {
        self.state.pages.len()
    }

    /// Requests this many pages by an event at the next poll, or offers to return pages if negative.
    pub fn want_pages(&mut self, count: i32) {
        self.requested_pages = Some(count);
    }

    /// Processes all send queues at the next poll, as if their doorbells had been rung.
    pub fn wake(&mut self) {
        self.woken = true;
    }

    /// Opcodes of all commands so far.
    pub fn commands_seen(&self) -> Vec<u16> {
        self.counts.commands.keys().copied().collect()
    }

    /// Number of objects that the driver has not destroyed, by kind. Kinds without objects are left out.
    pub fn left(&self) -> Vec<(&'static str, usize)> {
        self.state.left()
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Finds the first fault that matches, and returns its parameter. A fault that does not last is removed.
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

    /// Whether the function manages the card's switch.
    fn manages_switch(&self) -> bool {
        !self.is_virtual() && self.settings.manages_switch
    }

    /// Values of the queue counter: out-of-sequence packets, duplicate requests, received RNR NAKs, received sequence
    /// error NAKs, timeouts.
    fn transport_counts(&self) -> [u64; 5] {
        let counts = &self.counts;
        let naks = [counts.not_ready_naks, counts.sequence_naks];
        [counts.out_of_sequence, counts.duplicates, naks[0], naks[1], counts.timeouts]
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
        let cable = self.cable.clone();
        if let Some(cable) = &cable {
            let cable = &mut *cable.lock().unwrap_or_else(PoisonError::into_inner);
            self.arriving.append(&mut cable.arriving);
        }
        let mut due = None;
        if self.config.is_bus_master() && !self.is_silent() {
            self.deliver_replies(machine);
            self.watch_link(machine);
            if let Some(count) = self.requested_pages.take() {
                self.request_pages(count, machine);
            }
            if std::mem::take(&mut self.woken) {
                let queues: Vec<u32> = self.state.send_queues.keys().copied().collect();
                queues.into_iter().for_each(|queue| self.run_send_queue(queue, machine));
            }
            self.take_in(machine);
            let driven = self.drive_queue_pairs(machine);
            let moderated = self.notify_moderated(machine);
            due = [self.next_reply(), driven, moderated].into_iter().flatten().min();
        }
        if let Some(cable) = &cable {
            let cable = &mut *cable.lock().unwrap_or_else(PoisonError::into_inner);
            cable.sent.append(&mut self.sent);
        }
        let more = !self.arriving.is_empty();
        if more { Some(now) } else { due.map(|at| at.max(now)) }
    }

    fn reset_time(&self) -> Nanoseconds {
        self.settings.reset_time
    }

    fn be_late(&mut self, lateness: Lateness) {
        self.lateness = Some(lateness);
    }

    fn reset(&mut self) {
        let ends = |fault: &Fault| {
            matches!(fault, Fault::Fatal(_) | Fault::AllOnes | Fault::QueueHangs(_))
        };
        self.faults.retain(|fault| !ends(fault));
        self.counts.resets += 1;
        self.counted_at_reset = self.transport_counts();
        self.state = State::new(&self.settings, self.now + self.settings.reset_time);
        self.state.capabilities = capabilities::all(&self.settings, &self.faults);
        let mut control = [0; 2];
        self.config.read(4, &mut control);
        // A reset disables bus mastering. The driver or VMM that resets the function restores its BARs.
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
        let complaints = self.complaints.iter().take(MOST_LISTED);
        let complaints = complaints.map(|what| (format!("complaint ({what})"), 1));
        counted.chain(commands).chain(requests).chain(left).chain(complaints).collect()
    }
}
