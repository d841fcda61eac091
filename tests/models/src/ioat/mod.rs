//! Model of Intel I/OAT (Crystal Beach DMA) 3.2 and 3.4: copies, null descriptors, XOR and XOR validation.
//!
//! It covers the use by stock `ioatdma` (Linux, drivers/dma/ioat/{hw,registers}.h). Not modelled: PQ, DCA, interrupt
//! coalescing, concurrent completion writes of a channel.

mod channel;
mod descriptor;
#[cfg(test)]
mod tests;

use crate::registers::{byte_of, number, read_bytes};
use crate::{
    Bar, ConfigSpace, Function, Interrupt, Interrupts, Lateness, Machine, Nanoseconds, PortType,
};
use channel::{Channel, Event};

const BAR: Bar = Bar { index: 0, size: 0x4000 };
/// Bytes of a channel's registers, and the offset of the first channel's.
const CHANNEL: u64 = 0x80;
const MSIX_TABLE: u32 = 0x2000;
const MSIX_PENDING: u32 = 0x3000;

/// log2 of the most bytes of a descriptor.
const TRANSFER_CAP: u8 = 20;
/// DMACAPABILITY: XOR.
const CAPABILITY: u32 = 1 << 8;

/// INTRCTRL: interrupts enabled; interrupt pending; line asserted; one MSI-X vector per channel.
const MASTER_ENABLE: u8 = 1 << 0;
const INT_STATUS: u8 = 1 << 1;
const INT_ASSERTED: u8 = 1 << 2;
const MSIX_BY_CHANNEL: u8 = 1 << 3;

/// Faults to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The last byte of a copy is wrong.
    CorruptCopy,
    /// The completion write has the address of the descriptor after the completed one.
    WrongCompletion,
    /// No completion is written.
    NoCompletion,
    /// No interrupt is raised.
    NoInterrupt,
    /// The completion write repeats the previous completion's address.
    StaleCompletion,
    /// The completion write has an address that is not a descriptor's.
    NobodysCompletion,
    /// Every copy halts the channel with a read error.
    Halt,
    /// As `Halt`, once.
    HaltOnce,
    /// A copy never completes.
    Hang,
}

impl Fault {
    /// Faults for the tests of stock drivers, with their names.
    pub const ALL: [(&str, Fault); 4] = [
        ("corrupt-copy", Fault::CorruptCopy),
        ("wrong-completion", Fault::WrongCompletion),
        ("no-completion", Fault::NoCompletion),
        ("no-interrupt", Fault::NoInterrupt),
    ];
}

/// Properties of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// PCI device id: 0x0e20 (Ivy Bridge, 3.2), 0x0b00 (Ice Lake, 3.4) and others.
    pub device: u16,
    /// Channels, 1 to 8.
    pub channels: u8,
    /// Version: major and minor, of 4 bits each.
    pub version: u8,
    /// Injected fault.
    pub fault: Option<Fault>,
}

/// The engine.
pub struct Ioat {
    settings: Config,
    config: ConfigSpace,
    interrupt_control: u8,
    interrupt_delay: u16,
    attention: u32,
    channels: Vec<Channel>,
    /// The driver's violations of the device's rules, each once.
    pub complaints: Vec<String>,
}

impl Ioat {
    /// Creates an engine in its power-on state.
    pub fn new(settings: Config) -> Self {
        assert!((1..=8).contains(&settings.channels), "1 to 8 channels");
        let config = ConfigSpace::new(0x8086, settings.device, 0x08_80_00, 4)
            .subsystem(0x8086, settings.device)
            .memory_bar(BAR.index, BAR.size)
            .msix(settings.channels.into(), BAR.index, MSIX_TABLE, MSIX_PENDING)
            .express(PortType::IntegratedEndpoint)
            .power_management()
            // Advanced error reporting, and the error registers that the driver clears.
            .extended(1, 1, 0x100)
            .write_one_to_clear(0x148, !0)
            .write_one_to_clear(0x180, !0)
            .writable(0x184, !0);
        let channels = (0..settings.channels).map(|_| Channel::default()).collect();
        Ioat {
            settings,
            config,
            interrupt_control: 0,
            interrupt_delay: 0,
            attention: 0,
            channels,
            complaints: Vec::new(),
        }
    }

    /// Replaces the injected fault; None removes it.
    pub fn inject(&mut self, fault: Option<Fault>) {
        self.settings.fault = fault;
    }

    fn byte(&self, offset: u64) -> u8 {
        match offset {
            0x00 => self.settings.channels,
            0x01 => TRANSFER_CAP,
            0x03 => self.interrupt_status(),
            0x04..=0x07 => byte_of(self.attention.into(), offset - 0x04),
            0x08 => self.settings.version,
            0x0c..=0x0d => byte_of(self.interrupt_delay.into(), offset - 0x0c),
            0x10..=0x13 => byte_of(CAPABILITY.into(), offset - 0x10),
            CHANNEL.. => match self.channels.get((offset / CHANNEL - 1) as usize) {
                Some(channel) => channel.byte(offset % CHANNEL),
                None => 0,
            },
            _ => 0,
        }
    }

    fn complain(&mut self, what: &str) {
        if !self.complaints.iter().any(|known| known == what) {
            self.complaints.push(what.to_string());
        }
    }

    fn interrupt_status(&self) -> u8 {
        let pending = if self.attention != 0 { INT_STATUS } else { 0 };
        let asserted = pending != 0 && self.interrupt_control & MASTER_ENABLE != 0;
        self.interrupt_control | pending | if asserted { INT_ASSERTED } else { 0 }
    }

    /// Handles a channel's request to the engine.
    fn raise(&mut self, index: usize, event: Option<Event>, machine: &mut dyn Machine) {
        if let Some(Event::Complaint(what)) = event {
            return self.complain(what);
        }
        if event != Some(Event::Interrupt) || !self.channels[index].take_interrupt() {
            return;
        }
        self.attention |= 1 << index;
        let enabled = self.interrupt_control & MASTER_ENABLE != 0;
        if !enabled || self.settings.fault == Some(Fault::NoInterrupt) {
            return;
        }
        let by_channel = self.interrupt_control & MSIX_BY_CHANNEL != 0;
        let vector = if by_channel { index as u16 } else { 0 };
        if !machine.interrupt(Interrupt::Msix(vector)) {
            machine.interrupt(Interrupt::Intx);
        }
    }
}

impl Function for Ioat {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        &[BAR]
    }

    fn interrupts(&self) -> Interrupts {
        Interrupts { msix: self.settings.channels.into(), ..Interrupts::default() }
    }

    fn read(&mut self, _: u8, offset: u64, into: &mut [u8]) {
        read_bytes(offset, into, |at| self.byte(at));
        if offset == 0x04 {
            self.attention = 0; // cleared by the read
        }
    }

    fn write(
        &mut self,
        _: u8,
        offset: u64,
        bytes: &[u8],
        now: Nanoseconds,
        machine: &mut dyn Machine,
    ) {
        let value = number(bytes);
        match offset {
            0x03 => self.interrupt_control = value as u8 & (MASTER_ENABLE | MSIX_BY_CHANNEL),
            0x0c => self.interrupt_delay = value as u16 & 0x3fff,
            CHANNEL.. => {
                let index = (offset / CHANNEL - 1) as usize;
                let Some(channel) = self.channels.get_mut(index) else { return };
                let event = channel.write(offset % CHANNEL, value, bytes.len(), now);
                self.raise(index, event, machine);
            }
            _ => {}
        }
    }

    fn poll(&mut self, now: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        for index in 0..self.channels.len() {
            while self.channels[index].is_done(now) {
                let (allowed, reorders) = (self.config.is_bus_master(), self.config.may_reorder());
                if reorders {
                    self.complain("Relaxed Ordering is on: completions overtake data");
                }
                let fault = self.settings.fault;
                let event = self.channels[index].step(allowed, reorders, fault, machine);
                if fault == Some(Fault::HaltOnce) {
                    self.settings.fault = None;
                }
                self.raise(index, event, machine);
            }
            self.channels[index].finish_commands(now, machine);
        }
        self.channels.iter().filter_map(Channel::due).min()
    }

    fn reset(&mut self) {
        self.interrupt_control = 0;
        self.interrupt_delay = 0;
        self.attention = 0;
        self.channels.iter_mut().for_each(Channel::power_on);
    }

    fn be_late(&mut self, lateness: Lateness) {
        self.channels.iter_mut().for_each(|channel| channel.be_late(lateness));
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let all = self.channels.iter().enumerate();
        let counted = all.flat_map(|(index, channel)| {
            let counted = channel.counted();
            counted.map(|(name, count)| (format!("channel{index}.{name}"), count))
        });
        let complaints = ("complaints".to_string(), self.complaints.len() as u64);
        let texts = self.complaints.iter().map(|what| (format!("complaint ({what})"), 1));
        counted.chain([complaints]).chain(texts).collect()
    }
}
