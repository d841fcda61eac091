//! A virtual function: two queues of each kind, three vectors, and the mailbox for all other requests (82599, 9.7;
//! Linux:
//! `drivers/net/ethernet/intel/ixgbevf`).

use super::causes::{Of, VECTORS};
use super::engine::Engine;
use super::fault::Fault;
use super::mailbox::PhysicalFunction;
use super::receive::{Known, Outcome};
use super::registers::LINKS_UP_AT_10G;
use super::ring::{self, Kind};
use super::{Config, counters};
use crate::registers::{byte_of, number};
use crate::{Bar, Cable, ConfigSpace, Function, Interrupts, Machine, Nanoseconds, PortType};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

const CTRL: u64 = 0x0000;
const RESET: u32 = 1 << 26;
const STATUS: u64 = 0x0008;
const LINKS: u64 = 0x0010;
const EICR: u64 = 0x0100;
const EICS: u64 = 0x0104;
const EIMS: u64 = 0x0108;
const EIMC: u64 = 0x010c;
const EIAC: u64 = 0x0110;
const EIAM: u64 = 0x0114;
const IVAR: core::ops::Range<u64> = 0x0120..0x0140;
const IVAR_MISC: u64 = 0x0140;
const RECEIVE: u64 = 0x1000;
const TRANSMIT: u64 = 0x2000;

const SIZE: u64 = 0x4000;
const BARS: [Bar; 2] = [Bar { index: 0, size: SIZE }, Bar { index: 3, size: SIZE }];
const QUEUES: usize = 2;
const VECTOR_COUNT: u16 = 3;

/// A virtual function.
pub struct IxgbeVf {
    settings: Config,
    config: ConfigSpace,
    words: Vec<u32>,
    engine: Engine,
    physical: PhysicalFunction,
    /// The port's link.
    pub link: bool,
    was_up: bool,
    /// Frames from the switch, not received yet.
    pub arriving: VecDeque<Vec<u8>>,
    /// Frames that were sent to the switch.
    pub sent: Vec<Vec<u8>>,
    cable: Option<Arc<Mutex<Cable>>>,
    resets: u64,
    filtered: u64,
}

impl IxgbeVf {
    /// Creates a function in its power-on state.
    pub fn new(settings: Config) -> Self {
        let config = ConfigSpace::new(0x8086, 0x10ed, 0x02_00_00, 1)
            .subsystem(0x8086, 0x0003)
            .memory_bar(0, SIZE)
            .memory_bar(3, SIZE)
            .capability_at(0x70)
            .msix(VECTOR_COUNT, 3, 0, 0x2000)
            .capability_at(0xa0)
            .express(PortType::Endpoint);
        IxgbeVf {
            settings,
            config,
            words: vec![0; SIZE as usize / 4],
            engine: Engine::new(QUEUES, true),
            physical: PhysicalFunction::new(settings.mac),
            link: true,
            was_up: false,
            arriving: VecDeque::new(),
            sent: Vec::new(),
            cable: None,
            resets: 0,
            filtered: 0,
        }
    }

    /// Attaches a cable. The owner of its other end carries the frames.
    pub fn with_cable(mut self, cable: Arc<Mutex<Cable>>) -> Self {
        self.cable = Some(cable);
        self
    }

    /// Injects a fault.
    pub fn inject(&mut self, fault: Fault) {
        self.engine.faults.0.push(fault);
    }

    /// Removes all faults.
    pub fn repair(&mut self) {
        self.engine.faults.0.clear();
    }

    /// The physical function's driver restarts, and notifies the virtual function.
    pub fn reset_physical_function(&mut self) {
        self.physical.restart();
    }

    /// The physical function's driver sends an unsolicited message. `lost`: it has lost the virtual function's state.
    pub fn ping(&mut self, lost: bool) {
        self.physical.ping(lost);
    }

    /// Settings that the virtual function has negotiated: the interface, the longest frame with FCS, the multicast
    /// mode, and the number of groups.
    pub fn granted(&self) -> (u32, u32, u32, usize) {
        let physical = &self.physical;
        (physical.interface, physical.longest, physical.mode, physical.groups.len())
    }

    /// The driver's violations of the datasheet.
    pub fn complaints(&self) -> &[String] {
        &self.engine.complaints
    }

    fn clear_state(&mut self) {
        self.words.fill(0);
        self.engine.reset();
        self.engine.causes.messages = true;
        self.physical.reset_function(self.engine.faults.has(Fault::StuckReset));
    }

    fn ring(at: u64) -> Option<(Kind, usize, u64)> {
        let (kind, first) = match at {
            0x1000..0x1080 => (Kind::Receive, RECEIVE),
            0x2000..0x2080 => (Kind::Transmit, TRANSMIT),
            _ => return None,
        };
        Some((kind, ((at - first) / ring::SPAN) as usize, at % ring::SPAN))
    }

    /// Counters of frames and bytes. They wrap, and reads do not clear them.
    fn statistics(&self, at: u64) -> Option<u32> {
        let counted = &self.engine.statistics;
        Some(match at {
            0x101c => counted.received as u32,
            0x1020 => counted.received_bytes as u32,
            0x1024 => (counted.received_bytes >> 32 & 0xf) as u32,
            0x1034 => counted.multicasts as u32,
            0x201c => counted.sent as u32,
            0x2020 => counted.sent_bytes as u32,
            0x2024 => (counted.sent_bytes >> 32 & 0xf) as u32,
            _ => return None,
        })
    }

    fn read32(&mut self, at: u64) -> u32 {
        if let Some(value) = self.statistics(at) {
            return value;
        }
        if let Some((kind, queue, inside)) = Self::ring(at) {
            return match kind {
                Kind::Receive => self.engine.receive[queue].read(inside),
                Kind::Transmit => self.engine.transmit[queue].read(inside),
            };
        }
        if let Some(value) = self.physical.read(at) {
            return value;
        }
        let causes = &mut self.engine.causes;
        match at {
            CTRL => 0,
            STATUS => 1 << 19,
            LINKS => {
                if self.link {
                    LINKS_UP_AT_10G
                } else {
                    0
                }
            }
            EICR => std::mem::take(&mut causes.cause),
            EICS => causes.cause,
            EIMS | EIMC => causes.mask,
            _ => self.words.get((at / 4) as usize).copied().unwrap_or(0),
        }
    }

    fn write32(&mut self, at: u64, value: u32, machine: &mut dyn Machine) {
        if let Some((kind, queue, inside)) = Self::ring(at) {
            return self.engine.write_ring(kind, queue, inside, value);
        }
        match self.physical.write(at, value) {
            Ok(true) => return,
            Ok(false) => {}
            Err(why) => return self.engine.complain(why),
        }
        let causes = &mut self.engine.causes;
        match at {
            CTRL if value & RESET != 0 => {
                self.resets += 1;
                self.clear_state();
            }
            EICR => causes.cause &= !value,
            EICS => self.engine.raise(value & VECTORS, 0, machine),
            EIMS => {
                let new = value & !causes.mask;
                causes.mask |= value;
                self.engine.raise(0, new, machine);
            }
            EIMC => causes.mask &= !value,
            EIAC => causes.clears = value,
            EIAM => causes.masks = value,
            IVAR_MISC => {
                causes.other = value & 0xff;
                self.store(at, value);
            }
            at if IVAR.contains(&at) => {
                causes.queues[((at - IVAR.start) / 4) as usize] = value;
                let beyond = |entry: u8| entry & 0x80 != 0 && entry & 0x3f >= VECTOR_COUNT as u8;
                if value.to_le_bytes().into_iter().any(beyond) {
                    self.engine.complain(format!("VTIVAR {value:#x}: there are three vectors"));
                }
                self.store(at, value);
            }
            _ => self.store(at, value),
        }
    }

    fn store(&mut self, at: u64, value: u32) {
        if let Some(word) = self.words.get_mut((at / 4) as usize) {
            *word = value;
        }
    }

    /// Whether the switch delivers a frame to this function.
    fn passes(&self, frame: &[u8]) -> bool {
        let Some(to) = frame.get(..6) else { return false };
        match (to == [0xff; 6], to[0] & 1 == 1) {
            (true, _) => true,
            (false, true) if self.physical.mode >= 2 => true,
            (false, true) => {
                let hash = u16::from(to[4] >> 4) | u16::from(to[5]) << 4;
                self.physical.groups.contains(&hash)
            }
            (false, false) => self.physical.addresses.iter().any(|own| own == to),
        }
    }

    fn receive(&mut self, machine: &mut dyn Machine) {
        if !self.link || !self.physical.clear_to_send || self.engine.hung {
            self.arriving.clear();
            return;
        }
        let mut causes = 0;
        while let Some(frame) = self.arriving.pop_front() {
            // The requested length includes the FCS but no tag. Both have four bytes.
            if frame.len() > self.physical.longest as usize || !self.passes(&frame) {
                self.filtered += 1;
                continue;
            }
            match self.engine.accept(&frame, Known::default(), 0, machine) {
                Outcome::Taken => causes |= self.engine.causes.of(0, Of::Receive),
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

impl Function for IxgbeVf {
    fn config(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bars(&self) -> &[Bar] {
        &BARS
    }

    fn interrupts(&self) -> Interrupts {
        Interrupts { msix: VECTOR_COUNT, ..Interrupts::default() }
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
            (bar, len) => {
                self.engine.complain(format!("{len} bytes go to {offset:#x} of BAR {bar}"));
            }
        }
    }

    fn poll(&mut self, _: Nanoseconds, machine: &mut dyn Machine) -> Option<Nanoseconds> {
        if let Some(cable) = &self.cable {
            let cable = &mut *cable.lock().unwrap_or_else(PoisonError::into_inner);
            self.arriving.append(&mut cable.arriving);
            self.link = !cable.gets_no_light;
        }
        let mail = self.physical.work(&self.engine.faults);
        let changed = self.link != self.was_up;
        self.was_up = self.link;
        // Mail and link changes share the vector of other causes.
        let other = self.engine.causes.other;
        if (mail || changed) && other & 0x80 != 0 {
            self.engine.raise(1 << (other & 0xf), 0, machine);
        }
        if self.config.is_bus_master() {
            if self.link && self.physical.clear_to_send {
                self.engine.longest = self.physical.longest as usize;
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
        self.config = IxgbeVf::new(self.settings).config;
        self.clear_state();
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let own = [
            ("resets", self.resets),
            ("filtered", self.filtered),
            ("messages", self.physical.messages),
        ];
        counters(&self.engine, own)
    }
}
