//! Intel's 82574 and 82576, and a virtual function of the 82576: one pair of queues, with what they do wrong on demand.
//!
//! Registers hold what is written, but for those that do something. Not modelled: filters, offloads, the PHY, more than
//! one queue, splitting of packets, throttling of interrupts.

mod mailbox;
mod queue;
#[cfg(test)]
mod tests;

use crate::registers::{byte_of, number};
use crate::{Bar, ConfigSpace, Function, Interrupt, Interrupts, Machine, Nanoseconds, PortType};
use mailbox::PhysicalFunction;
use std::collections::VecDeque;

const CTRL: u64 = 0x0000;
const STATUS: u64 = 0x0008;
const EECD: u64 = 0x0010;
const EERD: u64 = 0x0014;
const MDIC: u64 = 0x0020;
const ICR: u64 = 0x00c0;
const IMS: u64 = 0x00d0;
const IMC: u64 = 0x00d8;
const EIAC_82574: u64 = 0x00dc;
const RCTL: u64 = 0x0100;
const TCTL: u64 = 0x0400;
const EIMS: u64 = 0x1524;
const EIMC: u64 = 0x1528;
const EICR: u64 = 0x1580;
const RECEIVE: u64 = 0x2800;
const RXDCTL: u64 = 0x2828;
const TRANSMIT: u64 = 0x3800;
const TXDCTL: u64 = 0x3828;
const MPC: u64 = 0x4010;
const RAL: u64 = 0x5400;
const RAH: u64 = 0x5404;

const RESET: u32 = 1 << 26;
const LINK_UP: u32 = 1 << 1;
const ENABLED: u32 = 1 << 1;
const QUEUE_ENABLED: u32 = 1 << 25;

/// The MAC address in the EEPROM.
pub const MAC: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];

/// What kind of chip it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 82574L.
    E1000e,
    /// 82576.
    Igb,
    /// A virtual function of an 82576.
    IgbVf,
}

/// What the model does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// CTRL.RST stays 1; of a virtual function: the physical one says for ever that it resets it.
    StuckReset,
    /// RAL and RAH are empty after a reset: the address is in the EEPROM only.
    NoAddress,
    /// Nor is it there.
    EmptyEeprom,
    /// The driver of the physical function does not answer.
    Deaf,
    /// It refuses messages of this kind.
    Refuses(u32),
    /// No interrupts are raised.
    NoInterrupts,
    /// Packets are sent and not reported, until a reset.
    NeverReports,
    /// The same, and a reset does not help.
    NeverReportsAgain,
    /// The next packet is reported twice: the descriptor after it, too.
    ReportsTwice,
    /// The report of the next packet goes to a descriptor so much further on.
    ReportsAnother(u32),
    /// The next frame is written back with this length in its last descriptor.
    Length(u16),
    /// The next frame is written back without an end.
    NoEnd,
    /// The next frame is damaged.
    Damaged,
    /// The next frame is written back to a descriptor so much further on, and so are those after it, until a reset.
    ReceivesAt(u32),
    /// The next frame is written to its descriptor twice.
    ReceivesTwice,
}

/// The chip.
pub struct Nic {
    kind: Kind,
    config: ConfigSpace,
    registers: Vec<u32>,
    faults: Vec<Fault>,
    /// The cable is plugged in.
    pub link: bool,
    /// Frames that come from the wire.
    pub arriving: VecDeque<Vec<u8>>,
    /// Frames that went to it.
    pub sent: Vec<Vec<u8>>,
    /// A packet of which the end was not seen.
    partial: Vec<u8>,
    physical: PhysicalFunction,
    hung: bool,
    skewed: u32,
    /// What the driver did that it must not do.
    pub complaints: Vec<String>,
    resets: u64,
}

impl Nic {
    /// A chip as it is after power-on, with so many vectors of MSI-X; none: it has MSI.
    pub fn new(kind: Kind, vectors: u16) -> Self {
        let (device, revision) = match kind {
            Kind::E1000e => (0x10d3, 0),
            Kind::Igb => (0x10c9, 1),
            Kind::IgbVf => (0x10ca, 1),
        };
        let mut config = ConfigSpace::new(0x8086, device, 0x02_00_00, revision)
            .memory_bar(0, bars(kind)[0].size);
        config = match vectors {
            0 => config.msi(0),
            vectors => config.memory_bar(4, bars(kind)[1].size).msix(vectors, 4, 0, 0x2000),
        };
        config = config.express(PortType::Endpoint).power_management();
        let mut nic = Nic {
            kind,
            config,
            registers: Vec::new(),
            faults: Vec::new(),
            link: true,
            arriving: VecDeque::new(),
            sent: Vec::new(),
            partial: Vec::new(),
            physical: PhysicalFunction::default(),
            hung: false,
            skewed: 0,
            complaints: Vec::new(),
            resets: 0,
        };
        nic.forget();
        nic
    }

    /// From now on it does this wrong.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// It does nothing wrong any more.
    pub fn repair(&mut self) {
        self.faults.clear();
    }

    /// The driver of the physical function starts anew, and says so.
    pub fn reset_physical_function(&mut self) {
        self.physical.restart();
    }

    /// What the driver of the physical function was asked for: longest frame with FCS, all of multicast.
    pub fn granted(&self) -> (u32, bool) {
        (self.physical.longest, self.physical.all_multicast)
    }

    fn has(&self, fault: Fault) -> bool {
        self.faults.contains(&fault)
    }

    /// Whether it does one of these wrong now; it does so once.
    fn once<T>(&mut self, matches: impl Fn(Fault) -> Option<T>) -> Option<T> {
        let at = self.faults.iter().position(|&fault| matches(fault).is_some())?;
        matches(self.faults.remove(at))
    }

    fn complain(&mut self, what: impl Into<String>) {
        self.complaints.push(what.into());
    }

    fn get(&self, at: u64) -> u32 {
        self.registers.get((at / 4) as usize).copied().unwrap_or(0)
    }

    fn set(&mut self, at: u64, value: u32) {
        if let Some(register) = self.registers.get_mut((at / 4) as usize) {
            *register = value;
        }
    }

    /// As after a reset.
    fn forget(&mut self) {
        self.registers = vec![0; bars(self.kind)[0].size as usize / 4];
        self.partial.clear();
        self.hung = false;
        self.skewed = 0;
        self.set(EECD, 1 << 9);
        if self.kind != Kind::IgbVf && !self.has(Fault::NoAddress) && !self.has(Fault::EmptyEeprom)
        {
            let [a, b, c, d, e, f] = MAC;
            self.set(RAL, u32::from_le_bytes([a, b, c, d]));
            self.set(RAH, u32::from_le_bytes([e, f, 0, 0]) | 1 << 31);
        }
    }

    fn read32(&mut self, at: u64) -> u32 {
        match at {
            CTRL if self.has(Fault::StuckReset) => self.get(CTRL) | RESET,
            STATUS => {
                // Bus mastering is enabled unless it was asked not to be.
                let master = u32::from(self.get(CTRL) & 1 << 2 == 0) << 19;
                (if self.link { LINK_UP } else { 0 }) | master | 0x80
            }
            MPC => {
                let missed = self.get(MPC);
                self.set(MPC, 0);
                missed
            }
            _ if self.kind == Kind::IgbVf => match self.physical.read(at) {
                Some(value) => value,
                None => self.get(at),
            },
            _ => self.get(at),
        }
    }

    fn write32(&mut self, at: u64, value: u32, machine: &mut dyn Machine) {
        match at {
            CTRL if value & RESET != 0 => {
                self.resets += 1;
                self.forget();
                if self.kind == Kind::IgbVf {
                    self.physical.reset_function(self.has(Fault::StuckReset));
                }
            }
            EERD => {
                let word = (value >> 2 & 0x3f) as usize;
                let bytes = MAC.get(2 * word..2 * word + 2).unwrap_or(&[0xff, 0xff]);
                let content = match self.has(Fault::EmptyEeprom) {
                    true => 0xffff,
                    false => u16::from_le_bytes([bytes[0], bytes[1]]),
                };
                self.set(EERD, u32::from(content) << 16 | 2);
            }
            MDIC => self.set(MDIC, value | 1 << 28),
            ICR => self.set(ICR, self.get(ICR) & !value),
            IMS => {
                self.set(IMS, self.get(IMS) | value);
                self.raise(0, machine);
            }
            IMC => self.set(IMS, self.get(IMS) & !value),
            EICR if self.kind != Kind::E1000e => self.set(EICR, self.get(EICR) & !value),
            EIMS if self.kind != Kind::E1000e => {
                self.set(EIMS, self.get(EIMS) | value);
                self.raise(0, machine);
            }
            EIMC if self.kind != Kind::E1000e => self.set(EIMS, self.get(EIMS) & !value),
            _ => {
                if self.kind == Kind::IgbVf && self.physical.write(at, value) {
                    return;
                }
                self.set(at, value);
            }
        }
    }

    /// Notes causes (1: received, 2: sent), and raises those that are wanted.
    fn raise(&mut self, causes: u32, machine: &mut dyn Machine) {
        let messages = self.uses_msix();
        // Cause, mask, and bits of what was received and sent.
        let (cause, mask, bits) = match (self.kind, messages) {
            (Kind::E1000e, true) => (ICR, IMS, [1 << 20, 1 << 22]),
            (_, true) => (EICR, EIMS, [1, 2]),
            (_, false) => (ICR, IMS, [1 << 7, 1]),
        };
        let noted = (0..2).filter(|n| causes & 1 << n != 0).fold(0, |all, n| all | bits[n]);
        self.set(cause, self.get(cause) | noted);
        let raised = self.get(cause) & self.get(mask);
        if raised == 0 || self.has(Fault::NoInterrupts) {
            return;
        }
        if !messages {
            machine.interrupt(Interrupt::Msi(0));
            // One message until the cause is cleared.
            self.set(mask, self.get(mask) & !raised);
            return;
        }
        let clears = self.kind != Kind::E1000e || self.get(EIAC_82574) & raised == raised;
        for (vector, bit) in (0..).zip(bits).filter(|(_, bit)| raised & bit != 0) {
            let vector = if self.kind == Kind::E1000e { 0 } else { vector };
            if clears {
                self.set(cause, self.get(cause) & !bit);
            }
            machine.interrupt(Interrupt::Msix(vector));
        }
        if self.kind == Kind::E1000e {
            self.set(mask, self.get(mask) & !raised);
        }
    }

    fn uses_msix(&self) -> bool {
        self.interrupts().msix > 0
    }

    fn receives(&self) -> bool {
        let on = self.kind == Kind::IgbVf || self.get(RCTL) & ENABLED != 0;
        let queue = self.kind == Kind::E1000e || self.get(RXDCTL) & QUEUE_ENABLED != 0;
        on && queue && self.link && !self.hung && self.physical_agrees()
    }

    fn sends(&self) -> bool {
        let on = self.kind == Kind::IgbVf || self.get(TCTL) & ENABLED != 0;
        let queue = self.kind == Kind::E1000e || self.get(TXDCTL) & QUEUE_ENABLED != 0;
        on && queue && self.link && !self.hung && self.physical_agrees()
    }

    fn physical_agrees(&self) -> bool {
        self.kind != Kind::IgbVf || self.physical.clear_to_send
    }
}

/// Registers, and the table of MSI-X.
fn bars(kind: Kind) -> &'static [Bar] {
    match kind {
        Kind::IgbVf => &[Bar { index: 0, size: 0x4000 }, Bar { index: 4, size: 0x4000 }],
        _ => &[Bar { index: 0, size: 0x2_0000 }, Bar { index: 4, size: 0x4000 }],
    }
}

impl Function for Nic {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        let all = bars(self.kind);
        if self.uses_msix() { all } else { &all[..1] }
    }

    fn interrupts(&self) -> Interrupts {
        // The capability after the header says which.
        let mut first = [0; 4];
        self.config.read(0x50, &mut first);
        match first[0] {
            0x11 => Interrupts { msix: u16::from(first[2]) + 1, ..Interrupts::default() },
            _ => Interrupts { msi: 1, ..Interrupts::default() },
        }
    }

    fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) {
        if bar != 0 || into.len() != 4 {
            self.complain(format!("{} bytes are read at {offset:#x} of BAR {bar}", into.len()));
            return into.fill(0xff);
        }
        let value = self.read32(offset);
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
            (0, 4) => self.write32(offset, number(bytes) as u32, machine),
            _ => self.complain(format!("{} bytes go to {offset:#x} of BAR {bar}", bytes.len())),
        }
    }

    fn poll(&mut self, _: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        if self.kind == Kind::IgbVf {
            let (deaf, refused) = (self.has(Fault::Deaf), self.faults.iter().find_map(refused));
            self.physical.work(deaf, refused);
        }
        if self.config.is_bus_master() {
            self.send(machine);
            self.receive(machine);
        }
        None
    }

    fn reset(&mut self) {
        self.forget();
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let counted = [("resets", self.resets), ("complaints", self.complaints.len() as u64)];
        counted.map(|(name, count)| (name.to_string(), count)).into()
    }
}

fn refused(fault: &Fault) -> Option<u32> {
    match fault {
        Fault::Refuses(kind) => Some(*kind),
        _ => None,
    }
}
