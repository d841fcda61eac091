//! Model of a Tsi721, a bridge from PCI Express to RapidIO (registers as in Linux `drivers/rapidio/devices/tsi721.h`),
//! on a network of [`crate::rapidio`], with faults to inject. A network may have several.
//!
//! Not modelled: doorbell queues beyond the first, 34-bit DMA strides, the retry threshold (it retries for ever),
//! segments, the clock of a link. Stores to an outbound window arrive. Only boards answer loads.

mod block_dma;
mod fault;
mod inbound;
mod interrupts;
mod outbound;
mod registers;
#[cfg(test)]
mod tests;

pub use fault::Fault;

use crate::rapidio::{Kind, Network, Packet, Shared};
use crate::registers::{byte_of, number, read_bytes};
use crate::relaxed::{Held, Relaxed, release};
use crate::{Bar, ConfigSpace, Function, Interrupts, Lateness, Machine, Nanoseconds, PortType};
use registers::{Kept, SIZE};
use std::collections::VecDeque;
use std::sync::{MutexGuard, PoisonError};

/// Offsets of the MSI-X table and its pending bits in BAR 0.
const MSIX_TABLE: u32 = 0x2c000;
const MSIX_PENDING: u32 = 0x2a000;
const DOORBELLS: u64 = 16 << 20;
/// Most outstanding requests.
const MOST_OUTGOING: usize = 1024;

/// Properties of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// MSI-X instead of MSI. Linux 6.12 confuses the vectors.
    pub vectors: bool,
    /// The MSI-X capability has a wrong table offset until a driver corrects it.
    pub misplaced_table: bool,
    /// Bytes of BAR 2, for outbound windows; 0: no BAR 2.
    pub outbound: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config { vectors: true, misplaced_table: false, outbound: 0 }
    }
}

/// Origin of an outstanding request.
#[derive(Clone, Copy, Debug)]
enum Outgoing {
    Dma { tid: u16, channel: usize },
    Message { tid: u16, mailbox: usize },
}

/// Counters.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    messages_in: u64,
    messages_out: u64,
    doorbells: u64,
    port_writes: u64,
    retries: u64,
    aborts: u64,
    interrupts: u64,
}

/// The bridge.
pub struct Tsi721 {
    settings: Config,
    config: ConfigSpace,
    bars: Vec<Bar>,
    network: Shared,
    me: usize,
    kept: Kept,
    zones: [[u32; 3]; 64],
    dma: [block_dma::Channel; 8],
    outbound: [outbound::Channel; 4],
    doorbells: VecDeque<outbound::OutboundDoorbell>,
    inbound_started: [bool; 4],
    last_buffer: [u64; 4],
    outgoing: Vec<Outgoing>,
    tid: u16,
    levels: Vec<bool>,
    level: bool,
    faults: Vec<Fault>,
    /// Data that was overtaken by its completion.
    held: Held,
    lateness: Option<Lateness>,
    /// The driver's violations of the device's rules.
    pub complaints: Vec<String>,
    counts: Counts,
}

impl Tsi721 {
    /// Creates a bridge in its power-on state, as end point `me` of a network.
    pub fn new(settings: Config, network: Shared, me: usize) -> Self {
        let mut config = ConfigSpace::new(0x111d, 0x80ab, 0x06_80_00, 1)
            .subsystem(0x111d, 0x80ab)
            .memory_bar_32(0, SIZE as u32)
            .memory_bar_32(1, DOORBELLS as u32)
            .express(PortType::Endpoint)
            .power_management()
            // Places MSI-X at 0xa0.
            .vendor_specific(12);
        config = match settings.vectors {
            true => config.msix(interrupts::VECTORS, 0, MSIX_TABLE, MSIX_PENDING),
            false => config.msi(0),
        };
        config = config.writable(0x400, !0);
        if settings.misplaced_table {
            config.put(0xa4, &0u32.to_le_bytes());
            config.put(0xa8, &0u32.to_le_bytes());
            config = config.writable(0xa4, !0).writable(0xa8, !0);
        }
        let mut bars = vec![Bar { index: 0, size: SIZE }, Bar { index: 1, size: DOORBELLS }];
        if settings.outbound > 0 {
            config = config.memory_bar(2, settings.outbound);
            bars.push(Bar { index: 2, size: settings.outbound });
        }
        Tsi721 {
            settings,
            config,
            bars,
            network,
            me,
            kept: Kept::new(),
            zones: [[0; 3]; 64],
            dma: Default::default(),
            outbound: Default::default(),
            doorbells: VecDeque::new(),
            inbound_started: [false; 4],
            last_buffer: [0; 4],
            outgoing: Vec::new(),
            tid: 0,
            levels: vec![false; interrupts::VECTORS.into()],
            level: false,
            faults: Vec::new(),
            held: Held::new(),
            lateness: None,
            complaints: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Injects a fault.
    pub fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::Ecc { mailbox, corrected } => {
                let bit = 1 << (mailbox + 4);
                self.kept.raise(0x6a008, if corrected { bit } else { bit << 8 });
            }
            _ => self.faults.push(fault),
        }
    }

    /// The bridge's network.
    pub fn network(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Removes the fault. Returns whether it was injected.
    fn once(&mut self, fault: Fault) -> bool {
        let at = self.faults.iter().position(|one| *one == fault);
        at.map(|at| self.faults.remove(at)).is_some()
    }

    fn complain(&mut self, what: impl Into<String>) {
        self.complaints.push(what.into());
    }

    fn next_tid(&mut self) -> u16 {
        self.tid = self.tid.wrapping_add(1);
        self.tid
    }

    fn packet(&self, to: u16, large: bool, kind: Kind) -> Packet {
        let from = self.network().endpoint(self.me).id(large);
        Packet { to, from, large, kind }
    }

    fn transmit(&mut self, packet: Packet) {
        if self.outgoing.len() > MOST_OUTGOING {
            self.outgoing.drain(..MOST_OUTGOING / 2);
        }
        self.network().send(self.me, packet);
    }

    fn send(&mut self, to: u16, large: bool, kind: Kind) {
        let packet = self.packet(to, large, kind);
        self.transmit(packet);
    }

    /// The DMA channel whose request had this transaction id.
    fn sent_dma(&mut self, wanted: u16) -> Option<usize> {
        let found = self
            .outgoing
            .iter()
            .position(|one| matches!(one, Outgoing::Dma { tid, .. } if *tid == wanted))?;
        match self.outgoing.swap_remove(found) {
            Outgoing::Dma { channel, .. } => Some(channel),
            Outgoing::Message { .. } => None,
        }
    }

    fn sent_message(&mut self, wanted: u16) -> Option<usize> {
        let found = self
            .outgoing
            .iter()
            .position(|one| matches!(one, Outgoing::Message { tid, .. } if *tid == wanted))?;
        match self.outgoing.swap_remove(found) {
            Outgoing::Message { mailbox, .. } => Some(mailbox),
            Outgoing::Dma { .. } => None,
        }
    }

    /// Writes data to memory; false if there is none. While Relaxed Ordering or No Snoop is on, the completion that
    /// follows overtakes the data (Linux clears both bits in `tsi721_probe`).
    fn put(&mut self, address: u64, data: &[u8], machine: &mut dyn Machine) -> bool {
        if !self.config.may_reorder() && !self.config.may_bypass_caches() {
            return machine.write(address, data).is_ok();
        }
        let what = "Relaxed Ordering or No Snoop is on: completions overtake data";
        if !self.complaints.iter().any(|known| known == what) {
            self.complain(what);
        }
        let held = &mut self.held;
        Relaxed { machine, held }.write(address, data).is_ok()
    }

    /// Reads words of memory.
    fn fetch(&self, address: u64, words: &mut [u32], machine: &mut dyn Machine) -> bool {
        let mut bytes = vec![0; 4 * words.len()];
        if machine.read(address, &mut bytes).is_err() {
            return false;
        }
        for (word, bytes) in words.iter_mut().zip(bytes.chunks(4)) {
            *word = number(bytes) as u32;
        }
        true
    }

    /// Writes a line of a status FIFO. Its registers are base (low, high), size, and write pointer.
    fn complete(
        &mut self,
        [low, high, size, write]: [u64; 4],
        done: u64,
        machine: &mut dyn Machine,
    ) {
        let lines = 1u32 << (self.kept.get(size) + 4);
        let at = self.kept.get(write) % lines;
        let address = self.kept.address(low, high) + 64 * u64::from(at);
        if machine.write(address, &done.to_le_bytes()).is_err() {
            self.complain("a status FIFO is not in memory");
        }
        self.kept.set(write, (at + 1) % lines);
    }

    fn register(&self, offset: u64) -> u32 {
        match offset & !3 {
            0x29844 => self.device_interrupts(),
            0x29850 => self.channel_interrupts(),
            own @ 0..0x10000 => {
                self.network().endpoint(self.me).read(own as u32).unwrap_or(u32::MAX)
            }
            offset => self.kept.get(offset),
        }
    }

    fn set_register(&mut self, offset: u64, value: u32, now: Nanoseconds) {
        if let Some(channel) = block_dma::channel_of(offset) {
            let late = self.lateness.as_mut().map_or(0, Lateness::next_delay);
            let wrong = self.dma[channel].write(&mut self.kept, offset, value, now, late);
            return wrong.into_iter().for_each(|what| self.complain(what));
        }
        let channel = offset.wrapping_sub(0x61000) / 0x1000;
        match offset {
            0..0x10000 => _ = self.network().endpoint(self.me).write(offset as u32, value),
            0x10910 | 0x20040 | 0x6a008 => self.kept.clear(offset, value),
            0x10a10 => {
                self.kept.clear(offset, value & 0xf);
                if self.kept.get(offset) & 1 == 0 {
                    self.kept.clear(0x10910, 0x1_0000);
                }
            }
            0x20000 if value & 1 != 0 => {
                [0x2000c, 0x20010].iter().for_each(|&at| self.kept.set(at, 0))
            }
            0x41300 => self.set_zone(value),
            0x48004 => {
                self.kept.set(offset, value);
                if value & 4 != 0 {
                    self.network().power(self.me, true);
                }
            }
            0x61000..0x69000 => match offset & 0xfff {
                0..0x200 if channel < 4 => {
                    let late = self.lateness.as_mut().map_or(0, Lateness::next_delay);
                    let channel = &mut self.outbound[channel as usize];
                    let wrong = channel.write(&mut self.kept, offset, value, now, late);
                    wrong.into_iter().for_each(|what| self.complain(what));
                }
                0x240 if value & block_dma::SUSPEND != 0 && channel >= 4 => {
                    self.inbound_started[channel as usize - 4] = false;
                }
                0x240 if value & 1 != 0 && channel >= 4 => {
                    let base = offset & !0xfff;
                    for register in [0x20c, 0x210, 0x244, 0x308, 0x30c] {
                        self.kept.set(base + register, 0);
                    }
                    self.inbound_started[channel as usize - 4] = true;
                }
                0x248 => self.kept.clear(offset, value),
                _ => self.kept.set(offset, value),
            },
            _ => self.kept.set(offset, value),
        }
    }

    fn set_zone(&mut self, select: u32) {
        if select & 0x1_0000 != 0 {
            let data = [0x41304, 0x41308, 0x4130c].map(|at| self.kept.get(at));
            self.zones[(select & 0x3f) as usize] = data;
        }
        self.kept.set(0x41300, select & !0x1_0000);
    }

    /// Translates an offset in BAR 2 to a remote device: its id, whether the id has 16 bits, and the address.
    fn translate_outbound(&self, offset: u64) -> Option<(u16, bool, u64)> {
        let mut start = [0; 8];
        self.config.read(0x18, &mut start);
        let address = (u64::from_le_bytes(start) & !0xf) + offset;
        (0..8).find_map(|window| {
            let at = 0x40000 + 0x20 * window as u64;
            let low = self.kept.get(at);
            let base = u64::from(low & !0x7fff) | u64::from(self.kept.get(at + 4)) << 32;
            let size = 1u64 << ((self.kept.get(at + 8) >> 8 & 0x1f) + 15);
            let into = address.checked_sub(base).filter(|into| low & 1 == 1 && *into < size)?;
            let [data0, data1, data2] = self.zones[8 * window + (into / (size / 8)) as usize];
            let remote = u64::from(data0 & !0xfff) | u64::from(data1) << 32;
            Some((data2 as u16, data2 >> 16 & 3 == 1, remote + into % (size / 8)))
        })
    }

    fn load(&mut self, offset: u64, into: &mut [u8]) {
        into.fill(0xff);
        let Some((to, large, address)) = self.translate_outbound(offset) else { return };
        let wanted = self.next_tid();
        self.send(to, large, Kind::Read { tid: wanted, address, len: into.len() });
        let mut network = self.network();
        let inbox = &mut network.endpoint(self.me).inbox;
        let found = inbox
            .iter()
            .position(|packet| matches!(packet.kind, Kind::Data { tid, .. } if tid == wanted));
        if let Some(Kind::Data { data: Some(data), .. }) =
            found.and_then(|at| inbox.remove(at)).map(|packet| packet.kind)
        {
            into.copy_from_slice(&data);
        }
    }
}

impl Function for Tsi721 {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        &self.bars
    }

    fn interrupts(&self) -> Interrupts {
        match self.settings.vectors {
            true => Interrupts { msix: interrupts::VECTORS, ..Interrupts::default() },
            false => Interrupts { msi: 1, ..Interrupts::default() },
        }
    }

    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        match bar {
            0 => {
                let value = self.register(offset);
                read_bytes(offset & 3, into, |at| byte_of(value.into(), at));
            }
            2 => self.load(offset, into),
            _ => into.fill(0),
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
        match bar {
            0 => {
                self.set_register(offset & !3, number(bytes) as u32, now);
                // A channel runs as soon as the driver writes its descriptor count: Linux reads the status next, and
                // treats a channel that does not run as done.
                if block_dma::is_write_count(offset) && self.config.is_bus_master() {
                    self.run_dma(now, machine);
                }
                self.update_interrupts(machine);
            }
            1 => {
                let info = [0, 1].map(|n| bytes.get(n).copied().unwrap_or(0));
                self.ring(offset, u16::from_be_bytes(info), now);
            }
            _ => {
                if let Some((to, large, address)) = self.translate_outbound(offset) {
                    let data = bytes.to_vec();
                    self.send(to, large, Kind::Write { tid: None, address, data });
                }
            }
        }
    }

    fn poll(&mut self, now: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        release(&mut self.held, machine);
        self.suspend_channels(now);
        if self.config.is_bus_master() {
            // Received packets are handled before timeouts: a response that has arrived is not late because the
            // host was busy and has not polled for a while.
            loop {
                self.run_inbox(now, machine);
                self.run_dma(now, machine);
                self.run_outbound(now, machine);
                if self.network().endpoint(self.me).inbox.is_empty() {
                    break;
                }
            }
            self.update_interrupts(machine);
        }
        if self.network().is_busy() {
            return Some(now);
        }
        let held = (!self.held.is_empty()).then_some(now + 1_000);
        [self.dma_due(), self.outbound_due(), held].into_iter().flatten().min()
    }

    fn be_late(&mut self, lateness: Lateness) {
        self.lateness = Some(lateness);
    }

    fn reset(&mut self) {
        let (settings, network, me) = (self.settings, self.network.clone(), self.me);
        self.network().power(me, false);
        let mut fresh = Tsi721::new(settings, network, me);
        fresh.counts = self.counts;
        fresh.lateness = self.lateness;
        fresh.complaints = std::mem::take(&mut self.complaints);
        *self = fresh;
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let c = &self.counts;
        let list = [
            ("messages_in", c.messages_in),
            ("messages_out", c.messages_out),
            ("doorbells", c.doorbells),
            ("port_writes", c.port_writes),
            ("retries", c.retries),
            ("aborts", c.aborts),
            ("interrupts", c.interrupts),
            ("maintenance", self.network().maintenance(self.me)),
            ("complaints", self.complaints.len() as u64),
        ];
        list.into_iter().map(|(name, count)| (name.into(), count)).collect()
    }
}
