//! Models of Intel's 82540EM, 82574 and 82576, and of a virtual function of the 82576, with all their queue pairs and with
//! faults to inject.
//!
//! Registers keep the written value, except those with side effects. Not modelled: filters, offloads, the PHY, hashes
//! of ports, packet splitting, interrupt throttling.

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
const EIAC: u64 = 0x152c;
const EICR: u64 = 0x1580;
const IVAR: u64 = 0x1700;
const IVAR_82574: u64 = 0x00e4;
const TARC: u64 = 0x3840;
/// Offset of a queue's control register from its first register.
const CONTROL: u64 = 0x28;
const RXCSUM: u64 = 0x5000;
const RETA: u64 = 0x5c00;
const RSSRK: u64 = 0x5c80;
const MRQC: u64 = 0x5818;
const MPC: u64 = 0x4010;
const RAL: u64 = 0x5400;
const RAH: u64 = 0x5404;

const RESET: u32 = 1 << 26;
const LINK_UP: u32 = 1 << 1;
const ENABLED: u32 = 1 << 1;
const QUEUE_ENABLED: u32 = 1 << 25;

/// Most queue pairs of a modelled chip.
const QUEUES: usize = 16;

/// The MAC address in the EEPROM.
pub const MAC: [u8; 6] = [0x52, 0x54, 0, 1, 2, 3];

/// The modelled chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// 82540EM. Its message stands for its legacy line as well.
    E1000,
    /// 82574L.
    E1000e,
    /// 82576.
    Igb,
    /// A virtual function of an 82576.
    IgbVf,
}

/// Faults to inject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// CTRL.RST stays 1. For a virtual function: the physical one reports for ever that a reset is in progress.
    StuckReset,
    /// RAL and RAH are empty after a reset: only the EEPROM has the address.
    NoAddress,
    /// The EEPROM has no address.
    EmptyEeprom,
    /// Another card: the EEPROM has this address.
    Address([u8; 6]),
    /// The physical function's driver does not answer.
    Deaf,
    /// The physical function's driver refuses messages of this kind.
    Refuses(u32),
    /// No interrupts are raised.
    NoInterrupts,
    /// Sent packets are not reported until a reset.
    NeverReports,
    /// Sent packets are not reported, also after a reset.
    NeverReportsAgain,
    /// The next packet is reported twice: the following descriptor, too.
    ReportsTwice,
    /// The next packet is reported in a descriptor this far after the right one.
    ReportsAnother(u32),
    /// The next frame is written back with this length in its last descriptor.
    Length(u16),
    /// The next frame is written back without the end-of-packet bit.
    NoEnd,
    /// The next frame is written back with an error.
    Damaged,
    /// Frames are written back to a descriptor this far after the right one, until a reset.
    ReceivesAt(u32),
    /// The next frame is written to its descriptor twice.
    ReceivesTwice,
    /// The next frame goes to this queue, independent of its hash.
    WrongQueue(usize),
    /// This queue sends nothing until a reset.
    QueueHangs(usize),
}

/// The chip.
pub struct Nic {
    kind: Kind,
    config: ConfigSpace,
    registers: Vec<u32>,
    faults: Vec<Fault>,
    /// The cable is plugged in.
    pub link: bool,
    /// Frames from the wire, not received yet.
    pub arriving: VecDeque<Vec<u8>>,
    /// Frames that were sent to the wire.
    pub sent: Vec<Vec<u8>>,
    /// Number of frames that each queue has sent.
    pub sent_by: [u64; QUEUES],
    /// Data of each queue's packet whose last descriptor was not fetched yet.
    partial: [Vec<u8>; QUEUES],
    /// The queue that hangs ([`Fault::QueueHangs`]).
    stuck: Option<usize>,
    physical: PhysicalFunction,
    hung: bool,
    skewed: u32,
    /// The driver's violations of the device's rules.
    pub complaints: Vec<String>,
    resets: u64,
}

impl Nic {
    /// Creates a chip in its power-on state with this number of MSI-X vectors; 0: MSI only.
    pub fn new(kind: Kind, vectors: u16) -> Self {
        let (device, revision) = match kind {
            Kind::E1000 => (0x100e, 2),
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
            sent_by: [0; QUEUES],
            partial: Default::default(),
            stuck: None,
            physical: PhysicalFunction::default(),
            hung: false,
            skewed: 0,
            complaints: Vec::new(),
            resets: 0,
        };
        nic.clear();
        nic
    }

    /// Injects a fault.
    pub fn inject(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// Removes all faults.
    pub fn repair(&mut self) {
        self.faults.clear();
    }

    /// The physical function's driver restarts, and notifies the virtual function.
    pub fn reset_physical_function(&mut self) {
        self.physical.restart();
    }

    /// The physical function's driver sends an unsolicited message. `lost`: it has lost the virtual function's state.
    pub fn ping(&mut self, lost: bool) {
        self.physical.ping(lost);
    }

    /// Settings that the virtual function has requested from the physical one: longest frame with FCS, all multicast.
    pub fn granted(&self) -> (u32, bool) {
        (self.physical.longest, self.physical.all_multicast)
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

    fn get(&self, at: u64) -> u32 {
        self.registers.get((at / 4) as usize).copied().unwrap_or(0)
    }

    fn set(&mut self, at: u64, value: u32) {
        if let Some(register) = self.registers.get_mut((at / 4) as usize) {
            *register = value;
        }
    }

    /// Sets all state to its reset value.
    fn clear(&mut self) {
        self.registers = vec![0; bars(self.kind)[0].size as usize / 4];
        self.partial = Default::default();
        self.stuck = None;
        self.hung = false;
        self.skewed = 0;
        self.set(EECD, 1 << 9);
        if self.kind == Kind::E1000e {
            (0..2).for_each(|queue| self.set(TARC + 0x100 * queue, 1 << 10 | 3));
        }
        if self.kind != Kind::IgbVf && !self.has(Fault::NoAddress) && !self.has(Fault::EmptyEeprom)
        {
            let [a, b, c, d, e, f] = self.mac();
            self.set(RAL, u32::from_le_bytes([a, b, c, d]));
            self.set(RAH, u32::from_le_bytes([e, f, 0, 0]) | 1 << 31);
        }
    }

    /// The MAC address in the EEPROM.
    fn mac(&self) -> [u8; 6] {
        let other = self.faults.iter().find_map(|fault| match fault {
            Fault::Address(mac) => Some(*mac),
            _ => None,
        });
        other.unwrap_or(MAC)
    }

    fn read32(&mut self, at: u64) -> u32 {
        match at {
            CTRL if self.has(Fault::StuckReset) => self.get(CTRL) | RESET,
            STATUS => {
                // Bus mastering stays enabled unless the driver disables it in CTRL.
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
                self.clear();
                if self.kind == Kind::IgbVf {
                    self.physical.reset_function(self.has(Fault::StuckReset));
                }
            }
            EERD => {
                let (shift, done) = if self.kind == Kind::E1000 { (8, 1 << 4) } else { (2, 2) };
                let word = (value >> shift & 0x3f) as usize;
                let mac = self.mac();
                let bytes = mac.get(2 * word..2 * word + 2).unwrap_or(&[0xff, 0xff]);
                let content = match self.has(Fault::EmptyEeprom) {
                    true => 0xffff,
                    false => u16::from_le_bytes([bytes[0], bytes[1]]),
                };
                self.set(EERD, u32::from(content) << 16 | done);
            }
            MDIC => self.set(MDIC, value | 1 << 28),
            ICR => self.set(ICR, self.get(ICR) & !value),
            IMS => {
                self.set(IMS, self.get(IMS) | value);
                self.raise(0, 0, machine);
            }
            IMC => self.set(IMS, self.get(IMS) & !value),
            EICR if !self.is_plain() => self.set(EICR, self.get(EICR) & !value),
            EIMS if !self.is_plain() => {
                self.set(EIMS, self.get(EIMS) | value);
                self.raise(0, 0, machine);
            }
            EIMC if !self.is_plain() => self.set(EIMS, self.get(EIMS) & !value),
            _ => {
                if self.kind == Kind::IgbVf && self.physical.write(at, value) {
                    return;
                }
                self.set(at, value);
            }
        }
    }

    /// Whether the chip has no extended interrupt registers.
    fn is_plain(&self) -> bool {
        matches!(self.kind, Kind::E1000 | Kind::E1000e)
    }

    /// The vector of a queue's receive (`sent` 0) or transmit (1) events, if it has one.
    fn vector(&self, queue: usize, sent: usize) -> Option<u16> {
        let (register, shift, valid) = match self.kind {
            Kind::E1000e => (IVAR_82574, 4 * queue + 8 * sent, 1 << 3),
            _ => (IVAR + 4 * (queue as u64 & 7), 16 * (queue / 8) + 8 * sent, 1 << 7),
        };
        let entry = self.get(register) >> shift;
        (entry & valid != 0).then_some((entry & (valid - 1) & 0x1f) as u16)
    }

    /// The cause bit of a queue's receive (`sent` 0) or transmit (1) events.
    fn bit(&self, queue: usize, sent: usize) -> u32 {
        match (self.kind, self.uses_msix()) {
            (Kind::E1000e, true) => 1 << (20 + 2 * sent + queue),
            (_, true) => self.vector(queue, sent).map_or(0, |vector| 1 << vector),
            (_, false) => [1 << 7, 1][sent],
        }
    }

    /// Records causes of a queue (1: received, 2: sent), and raises the unmasked ones.
    fn raise(&mut self, queue: usize, causes: u32, machine: &mut dyn Machine) {
        let messages = self.uses_msix();
        let (cause, mask, clears) = match (self.kind, messages) {
            (Kind::E1000e, true) => (ICR, IMS, EIAC_82574),
            (_, true) => (EICR, EIMS, EIAC),
            (_, false) => (ICR, IMS, EIAC),
        };
        let sent = (0..2).filter(|n| causes & 1 << n != 0);
        let noted = sent.fold(0, |all, n| all | self.bit(queue, n));
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
        let of_queues = self.of_queues();
        for (queue, sent) in (0..of_queues).flat_map(|queue| [(queue, 0), (queue, 1)]) {
            let bit = self.bit(queue, sent);
            if let Some(vector) = self.vector(queue, sent).filter(|_| raised & bit != 0) {
                self.set(cause, self.get(cause) & !(bit & self.get(clears)));
                machine.interrupt(Interrupt::Msix(vector));
            }
        }
        if self.kind == Kind::E1000e {
            self.set(mask, self.get(mask) & !raised);
        }
    }

    /// Queue pairs of the chip.
    fn of_queues(&self) -> usize {
        match self.kind {
            Kind::E1000e => 2,
            Kind::Igb => QUEUES,
            Kind::E1000 | Kind::IgbVf => 1,
        }
    }

    fn uses_msix(&self) -> bool {
        self.interrupts().msix > 0
    }

    fn receives(&self, queue: usize) -> bool {
        let on = self.kind == Kind::IgbVf || self.get(RCTL) & ENABLED != 0;
        let control = self.get(self.queue(queue)[0] + CONTROL);
        let by_default = matches!(self.kind, Kind::E1000 | Kind::E1000e);
        let enabled = by_default || control & QUEUE_ENABLED != 0;
        on && enabled && self.link && !self.hung && self.physical_agrees()
    }

    fn sends(&self, queue: usize) -> bool {
        let on = self.kind == Kind::IgbVf || self.get(TCTL) & ENABLED != 0;
        let enabled = match self.kind {
            Kind::E1000 => true,
            Kind::E1000e => self.get(TARC + 0x100 * queue as u64) & 1 << 10 != 0,
            _ => self.get(self.queue(queue)[1] + CONTROL) & QUEUE_ENABLED != 0,
        };
        on && enabled
            && self.link
            && !self.hung
            && self.stuck != Some(queue)
            && self.physical_agrees()
    }

    fn physical_agrees(&self) -> bool {
        self.kind != Kind::IgbVf || self.physical.clear_to_send
    }
}

/// The BARs of the registers and of the MSI-X table.
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
        // The first capability is MSI-X or MSI.
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
            (0..self.of_queues()).for_each(|queue| self.send(queue, machine));
            self.receive(machine);
        }
        None
    }

    fn reset(&mut self) {
        self.clear();
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
