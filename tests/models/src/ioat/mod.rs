//! Intel I/OAT (Crystal Beach DMA) 3.2 and 3.4: copies, null descriptors, XOR and its validation.
//!
//! As stock `ioatdma` uses it (Linux, drivers/dma/ioat/{hw,registers}.h). Not modelled: PQ, DCA, interrupt
//! coalescing, more than one completion write to a channel at a time.

mod channel;
mod descriptor;
#[cfg(test)]
mod tests;

use crate::registers::{byte_of, number, read_bytes};
use crate::{Bar, ConfigSpace, Function, Interrupt, Interrupts, Machine, Nanoseconds, PortType};
use channel::{Channel, Event};

/// The registers.
const BAR: Bar = Bar { index: 0, size: 0x4000 };
/// Bytes of registers of a channel; the first is at the same offset.
const CHANNEL: u64 = 0x80;
const MSIX_TABLE: u32 = 0x2000;
const MSIX_PENDING: u32 = 0x3000;

/// log2 of the most bytes of a descriptor.
const TRANSFER_CAP: u8 = 20;
/// DMACAPABILITY: XOR.
const CAPABILITY: u32 = 1 << 8;

/// INTRCTRL: interrupts are on; one is pending; the line is asserted; MSI-X vectors by channel.
const MASTER_ENABLE: u8 = 1 << 0;
const INT_STATUS: u8 = 1 << 1;
const INT_ASSERTED: u8 = 1 << 2;
const MSIX_BY_CHANNEL: u8 = 1 << 3;

/// What the model does wrong, for tests of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The last byte of a copy is another.
    CorruptCopy,
    /// The completion write names the descriptor after the one that was completed.
    WrongCompletion,
    /// Nothing is written at completion.
    NoCompletion,
    /// No interrupt is raised.
    NoInterrupt,
    /// The completion write names the descriptor that was completed the last time.
    StaleCompletion,
    /// The completion write names an address that is no descriptor's.
    NobodysCompletion,
    /// Every copy halts the channel: its data cannot be read.
    Halt,
    /// The same once.
    HaltOnce,
    /// A copy never ends.
    Hang,
}

impl Fault {
    /// Those that stock drivers are tried with, with their names.
    pub const ALL: [(&str, Fault); 4] = [
        ("corrupt-copy", Fault::CorruptCopy),
        ("wrong-completion", Fault::WrongCompletion),
        ("no-completion", Fault::NoCompletion),
        ("no-interrupt", Fault::NoInterrupt),
    ];
}

/// Which engine it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// PCI device id: 0x0e20 (Ivy Bridge, 3.2), 0x0b00 (Ice Lake, 3.4) and others.
    pub device: u16,
    /// Channels, 1 to 8.
    pub channels: u8,
    /// Version: major and minor, of 4 bits each.
    pub version: u8,
    /// What it does wrong.
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
}

impl Ioat {
    /// An engine as it is after power-on.
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
        Ioat { settings, config, interrupt_control: 0, interrupt_delay: 0, attention: 0, channels }
    }

    /// From now on it does this wrong, or nothing.
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

    fn interrupt_status(&self) -> u8 {
        let pending = if self.attention != 0 { INT_STATUS } else { 0 };
        let asserted = pending != 0 && self.interrupt_control & MASTER_ENABLE != 0;
        self.interrupt_control | pending | if asserted { INT_ASSERTED } else { 0 }
    }

    /// Carries out what a channel wants of the engine.
    fn raise(&mut self, index: usize, event: Option<Event>, machine: &mut dyn Machine) {
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
            self.attention = 0; // reading it clears it
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
            while self.channels[index].due().is_some_and(|at| at <= now) {
                let allowed = self.config.is_bus_master();
                let fault = self.settings.fault;
                let event = self.channels[index].step(allowed, fault, machine);
                if fault == Some(Fault::HaltOnce) {
                    self.settings.fault = None;
                }
                self.raise(index, event, machine);
            }
        }
        self.channels.iter().filter_map(Channel::due).min()
    }

    fn reset(&mut self) {
        self.interrupt_control = 0;
        self.interrupt_delay = 0;
        self.attention = 0;
        self.channels.iter_mut().for_each(Channel::power_on);
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let all = self.channels.iter().enumerate();
        all.flat_map(|(index, channel)| {
            let counted = channel.counted();
            counted.map(|(name, count)| (format!("channel{index}.{name}"), count))
        })
        .collect()
    }
}
