//! Models of Intel's 82599 and its virtual function: reset, EEPROM, semaphores, SFP+ module, link, 128 queues of each
//! kind with legacy and advanced descriptors, checksum and segmentation offload, interrupts, filters, hashes,
//! statistics; with faults to inject.
//!
//! An access that the datasheet forbids is refused and recorded as a complaint. Registers without side effects keep the
//! written value. Not modelled: interrupt throttling, queue vectors from 16 on, header splitting, coalescing, head
//! write-back, IPsec, MACsec, FCoE, DCB, flow director (its filters match no frame), time stamps, the switch between
//! functions.

mod access;
mod causes;
mod engine;
mod fault;
mod filter;
mod firmware;
mod mailbox;
mod module;
mod nvm;
mod receive;
mod registers;
mod ring;
mod statistics;
#[cfg(test)]
mod tests;
mod transmit;
mod virtual_function;

pub use fault::Fault;
pub use virtual_function::IxgbeVf;

use crate::registers::{byte_of, number};
use crate::{Bar, Cable, ConfigSpace, Function, Interrupts, Machine, Nanoseconds, PortType};
use causes::{LINK, Of};
use engine::{ETHERNET, Engine};
use firmware::Firmware;
use module::Module;
use receive::Outcome;
use registers as r;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// The default MAC address.
pub const MAC: [u8; 6] = [0x90, 0xe2, 0xba, 1, 2, 3];

const SIZE: u64 = 0x2_0000;
const BARS: [Bar; 2] = [Bar { index: 0, size: SIZE }, Bar { index: 4, size: 0x4000 }];
const QUEUES: usize = 128;
/// Bytes of the longest frame that is not jumbo: header, VLAN tag, payload.
const PLAIN: usize = ETHERNET + 4 + 1500;
/// Most complaints that are listed among the counters.
const MOST_LISTED: usize = 10;

/// Properties of a function.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// MAC address.
    pub mac: [u8; 6],
    /// MSI-X vectors; 0: MSI only.
    pub vectors: u16,
}

impl Default for Config {
    fn default() -> Self {
        Config { mac: MAC, vectors: 64 }
    }
}

/// A physical function.
pub struct Ixgbe {
    settings: Config,
    config: ConfigSpace,
    words: Vec<u32>,
    engine: Engine,
    firmware: Firmware,
    module: Module,
    nvm: Vec<u16>,
    /// The next read still returns "not done" for: reset, EEPROM read, DMA initialisation.
    lags: [bool; 3],
    /// The cable is plugged in.
    pub link: bool,
    /// The other end of the cable has turned its transmitter off.
    is_dark: bool,
    was_up: bool,
    /// Frames from the wire, not received yet.
    pub arriving: VecDeque<Vec<u8>>,
    /// Frames that were sent to the wire.
    pub sent: Vec<Vec<u8>>,
    cable: Option<Arc<Mutex<Cable>>>,
    resets: u64,
    filtered: u64,
}

impl Ixgbe {
    /// Creates a function in its power-on state.
    pub fn new(settings: Config) -> Self {
        // Capabilities are at the chip's offsets, where Linux expects them.
        let space = ConfigSpace::new(0x8086, 0x10fb, 0x02_00_00, 1)
            .subsystem(0x8086, 0x0003)
            .memory_bar(0, SIZE)
            .capability_at(0x40)
            .power_management();
        let space = match settings.vectors {
            0 => space.capability_at(0x50).msi(0),
            vectors => {
                let space = space.memory_bar(4, 0x4000).capability_at(0x70);
                space.msix(vectors, 4, 0, 0x2000)
            }
        };
        let config = space.capability_at(0xa0).express_at_speed(PortType::Endpoint, 0x82);
        let mut nic = Ixgbe {
            settings,
            config,
            words: Vec::new(),
            engine: Engine::new(QUEUES, false),
            firmware: Firmware::new(),
            module: Module::new(),
            nvm: nvm::content(settings.mac),
            lags: [false; 3],
            link: true,
            is_dark: false,
            was_up: false,
            arriving: VecDeque::new(),
            sent: Vec::new(),
            cable: None,
            resets: 0,
            filtered: 0,
        };
        nic.clear_state();
        nic
    }

    /// Attaches a cable. The owner of its other end carries the frames.
    pub fn with_cable(mut self, cable: Arc<Mutex<Cable>>) -> Self {
        self.cable = Some(cable);
        self
    }

    /// Injects a fault.
    pub fn inject(&mut self, fault: Fault) {
        self.engine.faults.0.push(fault);
        match fault {
            Fault::WrongChecksum => self.nvm[0x3f] ^= 1,
            Fault::EmptyEeprom => self.nvm[nvm::address_at()..][..3].fill(0xffff),
            Fault::NoModule => self.module.absent = true,
            _ => {}
        }
    }

    /// Removes all faults.
    pub fn repair(&mut self) {
        self.engine.faults.0.clear();
        self.nvm = nvm::content(self.settings.mac);
        self.module.absent = false;
    }

    /// The driver's violations of the datasheet.
    pub fn complaints(&self) -> &[String] {
        &self.engine.complaints
    }

    fn get(&self, at: u64) -> u32 {
        self.words.get((at / 4) as usize).copied().unwrap_or(0)
    }

    fn set(&mut self, at: u64, value: u32) {
        if let Some(word) = self.words.get_mut((at / 4) as usize) {
            *word = value;
        }
    }

    /// Sets all state to its reset value.
    fn clear_state(&mut self) {
        // The laser pin keeps its setting.
        let pins = self.get(r::ESDP);
        self.words = vec![0; SIZE as usize / 4];
        self.set(r::ESDP, pins);
        self.engine.reset();
        self.lags = [true; 3];
        self.set(r::AUTOC, r::AUTOC_10G_SERIAL);
        self.set(r::AUTOC2, r::AUTOC2_SFI);
        self.set(r::HLREG0, r::HLREG0_AFTER_RESET);
        self.set(r::RXPBSIZE, r::PACKET_BUFFER);
        self.engine.pads = true;
        let has = |fault| self.engine.faults.has(fault);
        if !has(Fault::NoAddress) && !has(Fault::EmptyEeprom) {
            let [a, b, c, d, e, f] = self.settings.mac;
            self.set(r::RAL, u32::from_le_bytes([a, b, c, d]));
            self.set(r::RAL + 4, u32::from_le_bytes([e, f, 0, 0]) | r::RAH_VALID);
        }
    }

    fn is_up(&self) -> bool {
        self.link
            && !self.is_dark
            && !self.module.absent
            && self.get(r::ESDP) & r::ESDP_LASER_OFF == 0
            && self.get(r::AUTOC) & r::AUTOC_MODE == r::AUTOC_10G_SERIAL
    }

    /// Bytes of the longest frame, without FCS.
    fn longest(&self) -> usize {
        match self.get(r::HLREG0) & r::HLREG0_JUMBO {
            0 => PLAIN,
            _ => ((self.get(r::MAXFRS) >> 16) as usize).saturating_sub(4),
        }
    }

    /// Receives arrived frames while queues have room.
    fn receive(&mut self, machine: &mut dyn Machine) {
        let on = self.get(r::RXCTRL) & 1 == 1
            && self.get(r::SECRXCTRL) & r::SECRXCTRL_DISABLE == 0
            && self.is_up()
            && !self.engine.hung;
        if !on {
            // Receive is disabled: frames are lost.
            self.arriving.clear();
            return;
        }
        if !self.arriving.is_empty()
            && (self.get(r::RDRXCTL) & r::RDRXCTL_CRC_STRIP == 0)
                != (self.get(r::HLREG0) & r::HLREG0_CRC_STRIP == 0)
        {
            self.engine.complain("RDRXCTL and HLREG0 disagree on CRC stripping");
        }
        let longest = self.longest();
        let mut waiting: usize = self.arriving.iter().map(Vec::len).sum();
        let mut causes = 0;
        while let Some(frame) = self.arriving.pop_front() {
            waiting -= frame.len();
            if frame.len() > longest {
                self.engine.statistics.count(statistics::OVERSIZE, 1);
                continue;
            }
            if !self.passes(&frame) {
                self.filtered += 1;
                continue;
            }
            let known = self.spread(&frame);
            match self.engine.accept(&frame, known, waiting, machine) {
                Outcome::Taken => causes |= self.engine.causes.of(known.queue, Of::Receive),
                Outcome::Dropped => {}
                Outcome::Waits => {
                    self.arriving.push_front(frame);
                    break;
                }
            }
        }
        self.engine.raise(causes, 0, machine);
    }
}

impl Function for Ixgbe {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        if self.settings.vectors > 0 { &BARS } else { &BARS[..1] }
    }

    fn interrupts(&self) -> Interrupts {
        match self.settings.vectors {
            0 => Interrupts { msi: 1, ..Interrupts::default() },
            msix => Interrupts { msix, ..Interrupts::default() },
        }
    }

    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        if bar != 0 || into.len() != 4 || !offset.is_multiple_of(4) {
            let len = into.len();
            self.engine.complain(format!("{len} bytes are read at {offset:#x} of BAR {bar}"));
            return into.fill(0xff);
        }
        let value = self.read32(offset);
        let value = self.engine.faults.read(offset, value);
        into.iter_mut().zip(0..).for_each(|(place, at)| *place = byte_of(value.into(), at));
    }

    fn write(
        &mut self,
        bar: u8,
        offset: u64,
        bytes: &[u8],
        _: Nanoseconds,
        machine: &mut dyn Machine,
    ) {
        match (bar, bytes.len()) {
            (0, 4) if offset.is_multiple_of(4) => {
                self.write32(offset, number(bytes) as u32, machine);
            }
            // A flow director filter is accepted at once.
            (0, 8) if offset == r::FDIRCMD - 4 => {
                let whole = number(bytes);
                self.write32(offset, whole as u32, machine);
                self.write32(offset + 4, (whole >> 32) as u32, machine);
            }
            (bar, len) => {
                self.engine.complain(format!("{len} bytes go to {offset:#x} of BAR {bar}"));
            }
        }
    }

    fn poll(&mut self, _: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        if let Some(cable) = &self.cable {
            let cable = &mut *cable.lock().unwrap_or_else(PoisonError::into_inner);
            self.arriving.append(&mut cable.arriving);
            self.is_dark = cable.gets_no_light;
            cable.sends_no_light = self.words[(r::ESDP / 4) as usize] & r::ESDP_LASER_OFF != 0;
        }
        let up = self.is_up();
        if up != self.was_up {
            self.was_up = up;
            self.engine.raise(LINK, 0, machine);
        }
        let masters =
            self.config.is_bus_master() && self.get(r::CTRL) & r::CTRL_MASTER_DISABLE == 0;
        if masters {
            self.engine.longest = self.longest();
            if up && self.get(r::DMATXCTL) & 1 == 1 {
                self.engine.send_all(machine);
            }
            self.receive(machine);
        }
        self.sent.append(&mut self.engine.sent);
        if let Some(cable) = &self.cable {
            let cable = &mut *cable.lock().unwrap_or_else(PoisonError::into_inner);
            cable.sent.append(&mut self.sent);
        }
        None
    }

    fn reset(&mut self) {
        self.words.clear();
        self.firmware.reset();
        self.config = Ixgbe::new(self.settings).config;
        self.clear_state();
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let own = [
            ("resets", self.resets),
            ("filtered", self.filtered),
            ("firmware_commands", self.firmware.commands),
        ];
        counters(&self.engine, own)
    }
}

/// Counters, and the first complaints.
fn counters<'a>(
    engine: &Engine,
    own: impl IntoIterator<Item = (&'a str, u64)>,
) -> Vec<(String, u64)> {
    let statistics = &engine.statistics;
    let counted = [
        ("sent", statistics.sent),
        ("received", statistics.received),
        ("dropped", statistics.dropped),
        ("interrupts", engine.causes.raised),
        ("complaints", engine.complaints.len() as u64),
    ];
    let complaints = engine.complaints.iter().take(MOST_LISTED);
    let complaints = complaints.map(|what| (format!("complaint ({what})"), 1));
    let counted = counted.into_iter().chain(own).map(|(name, count)| (name.to_string(), count));
    counted.chain(complaints).collect()
}
