//! 82540EM and 82545EM (`e1000` of Linux and QEMU; VirtualBox, Bochs, VMware): one pair of queues, legacy descriptors,
//! MSI or the legacy line. Registers: Intel 8254x software developer's manual, chapter 13.

use super::Error;
use super::chip::{self, Causes, Chip, Mode, Model, Setup};
use super::registers::{self as r, ALL_ONES};
use super::transmit::Format;
use crate::ethernet::is_station;
use crate::hal::Registers;
use core::time::Duration;

/// Intel's PCI device IDs: 82540EM, 82545EM, both for copper.
pub const DEVICES: [u16; 2] = [0x100e, 0x100f];

/// Bits of CTRL that must be 0: link reset, loss of signal inverted, reset of the PHY.
const CTRL_NEVER: u32 = 1 << 3 | 1 << 7 | 1 << 31;
/// EEPROM read: start, done, and place of the address.
const EERD_DONE: u32 = 1 << 4;
const EERD_ADDRESS: u32 = 8;
/// Gap between frames, as the manual advises for copper.
const TIPG: usize = 0x0410;
const TIPG_COPPER: u32 = 8 | 8 << 10 | 6 << 20;
/// Delays of interrupts: receive, receive (absolute), transmit, throttling.
const DELAYS: [usize; 4] = [0x2820, 0x282c, 0x3820, 0x00c4];
/// Thresholds in descriptors; each descriptor is written back when it is done.
const QUEUE: u32 = 1 << 24 | 1 << 16;

/// The chip.
#[derive(Default)]
pub struct E1000 {
    /// As read after the first reset. Later ones are in the loop, which must not wait for the EEPROM.
    mac: Option<[u8; 6]>,
}

impl Model for E1000 {
    const IS_VIRTUAL: bool = false;
}

/// Reads the MAC address from the first three words of the EEPROM.
fn read_address(registers: &dyn Registers) -> Result<[u8; 6], Error> {
    const POLLS: u32 = 10_000;
    let mut mac = [0; 6];
    for (word, place) in (0..).zip(mac.chunks_exact_mut(2)) {
        registers.write32(r::EERD, word << EERD_ADDRESS | r::EERD_START);
        let value = (0..POLLS).find_map(|_| {
            let value = registers.read32(r::EERD);
            (value != ALL_ONES && value & EERD_DONE != 0).then_some((value >> 16) as u16)
        });
        place.copy_from_slice(&value.ok_or(Error::NoMac)?.to_le_bytes());
    }
    if is_station(mac) { Ok(mac) } else { Err(Error::NoMac) }
}

impl Chip for E1000 {
    fn registers(&self) -> usize {
        0x2_0000
    }

    fn format(&self) -> Format {
        Format::Legacy
    }

    fn may_need_line(&self) -> bool {
        true
    }

    fn most_mtu(&self) -> u16 {
        9212
    }

    fn reset(&mut self, registers: &dyn Registers) {
        registers.write32(r::IMC, ALL_ONES);
        registers.write32(r::RCTL, 0);
        registers.write32(r::TCTL, 0);
        // The write is posted: without a read the reset might begin before it.
        _ = registers.read32(r::STATUS);
        r::change(registers, r::CTRL, 0, r::CTRL_RESET);
    }

    fn is_reset(
        &mut self,
        registers: &dyn Registers,
        _: Duration,
    ) -> Result<Option<[u8; 6]>, Error> {
        let control = registers.read32(r::CTRL);
        if control == ALL_ONES {
            return Err(Error::Absent);
        }
        if control & r::CTRL_RESET != 0 {
            return Ok(None);
        }
        registers.write32(r::IMC, ALL_ONES);
        registers.write32(r::ICR, ALL_ONES);
        if self.mac.is_none() {
            let mac = chip::received_address(registers, r::RAL);
            self.mac = Some(mac.map_or_else(|| read_address(registers), Ok)?);
        }
        Ok(self.mac)
    }

    fn start(&mut self, registers: &dyn Registers, setup: &Setup<'_>) {
        chip::start_link_and_filters(registers, setup, CTRL_NEVER);
        for rings in setup.rings.iter().take(1) {
            r::give_ring(registers, r::RDBAL, rings.receive.0, rings.receive.1);
            r::give_ring(registers, r::TDBAL, rings.transmit.0, rings.transmit.1);
        }
        registers.write32(r::RXDCTL, QUEUE);
        registers.write32(r::TXDCTL, QUEUE);
        registers.write32(TIPG, TIPG_COPPER);
        DELAYS.into_iter().for_each(|at| registers.write32(at, 0));
        chip::enable_physical(registers);
    }

    fn set_interrupts(&self, registers: &dyn Registers, _: Mode, _: usize, causes: Causes) {
        chip::set_physical_causes(registers, causes);
    }

    fn missed(&self, registers: &dyn Registers) -> u64 {
        chip::missed_by_physical(registers)
    }
}
