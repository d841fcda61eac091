//! Address windows. Inbound: parts of the RapidIO address space that map to memory of this machine. Outbound: parts of
//! this machine's bus address space that map to a device.

use super::registers::{
    Tsi721Registers, WINDOW_ENABLE, WINDOWS, ZONE_DATA, ZONE_GO, ZONE_SELECT, ZONES,
    inbound_window, outbound_window,
};
use crate::hal::{Platform, Registers, Window};
use crate::pci::Bars;
use crate::rapidio::{IdSize, OutboundMap, WindowError};
use alloc::boxed::Box;

const INBOUND_LEAST: u64 = 1 << 12;
const INBOUND_MOST: u64 = 1 << 34;
const OUTBOUND_LEAST: u64 = 1 << 15;
/// Maximum number of bytes of a BAR that are mapped for outbound windows.
const MAPPED_MOST: u64 = 16 << 20;
/// Maximum number of polls for the end of a zone write.
const ZONE_POLLS: u32 = 1000;

/// Zones turn loads into NREAD, and stores into NWRITE with a response.
const ZONE_READS: u32 = 0x100;
const ZONE_WRITES: u32 = 0x4;

/// A BAR for outbound windows.
struct Space {
    address: u64,
    registers: Box<dyn Registers>,
}

#[derive(Clone, Copy)]
struct Outbound {
    offset: u64,
    size: u64,
    ids: IdSize,
    device: u16,
    address: u64,
}

/// All windows.
pub struct Windows {
    /// RapidIO address, and memory.
    inbound: [Option<(u64, Window)>; WINDOWS],
    outbound: [Option<Outbound>; WINDOWS],
    space: Option<Space>,
}

impl Windows {
    /// Closes all windows. Outbound ones use BAR 2, if the bridge is configured to have it.
    pub fn new(bars: &Bars, platform: &mut dyn Platform, registers: &Tsi721Registers) -> Windows {
        close_all(registers);
        let space = bars.get(2).filter(|bar| bar.size >= OUTBOUND_LEAST).and_then(|bar| {
            let len = bar.size.min(MAPPED_MOST) as usize;
            let registers = platform.map_registers(bar.address, len)?;
            Some(Space { address: bar.address, registers })
        });
        Windows { inbound: [None; WINDOWS], outbound: [None; WINDOWS], space }
    }

    /// Opens all windows again after a reset of the bridge.
    pub fn reopen(&self, registers: &Tsi721Registers) {
        close_all(registers);
        for (number, window) in self.inbound.iter().enumerate() {
            if let Some((address, memory)) = window {
                open_inbound(number, *address, memory, registers);
            }
        }
        for (number, window) in self.outbound.iter().enumerate() {
            if let Some((window, space)) = window.as_ref().zip(self.space.as_ref()) {
                open_outbound(number, window, space.address, registers);
            }
        }
    }

    /// See [`crate::rapidio::MasterPort::map_inbound`].
    pub fn map_inbound(
        &mut self,
        address: u64,
        memory: &Window,
        registers: &Tsi721Registers,
    ) -> Result<u8, WindowError> {
        let (size, bus) = (memory.len() as u64, memory.bus_address());
        let fits = size.is_power_of_two() && (INBOUND_LEAST..=INBOUND_MOST).contains(&size);
        if !fits || (address | bus) & (size - 1) != 0 {
            return Err(WindowError::Alignment);
        }
        let free = self.inbound.iter().position(Option::is_none).ok_or(WindowError::NoneLeft)?;
        self.inbound[free] = Some((address, *memory));
        open_inbound(free, address, memory, registers);
        Ok(free as u8)
    }

    /// Closes an inbound window.
    pub fn unmap_inbound(&mut self, number: u8, registers: &Tsi721Registers) {
        let number = usize::from(number);
        if let Some(used) = self.inbound.get_mut(number) {
            *used = None;
            registers.write(inbound_window(number), 0);
            registers.read(inbound_window(number));
        }
    }

    /// See [`crate::rapidio::MasterPort::map_outbound`].
    pub fn map_outbound(
        &mut self,
        ids: IdSize,
        device: u16,
        address: u64,
        size: u64,
        registers: &Tsi721Registers,
    ) -> Result<OutboundMap, WindowError> {
        let space = self.space.as_ref().ok_or(WindowError::Unsupported)?;
        let len = space.registers.len() as u64;
        let fits = size.is_power_of_two() && (OUTBOUND_LEAST..=len).contains(&size);
        if !fits || address & (size - 1) != 0 {
            return Err(WindowError::Alignment);
        }
        let number = self.outbound.iter().position(Option::is_none);
        let number = number.ok_or(WindowError::NoneLeft)?;
        let is_free = |offset: u64| {
            let mut others = self.outbound.iter().flatten();
            others.all(|other| offset + size <= other.offset || other.offset + other.size <= offset)
        };
        let mut places = (0..len / size).map(|n| n * size);
        let offset = places.find(|&offset| is_free(offset)).ok_or(WindowError::NoneLeft)?;
        let window = Outbound { offset, size, ids, device, address };
        open_outbound(number, &window, space.address, registers);
        self.outbound[number] = Some(window);
        Ok(OutboundMap { number: number as u8, size })
    }

    fn place(&self, map: &OutboundMap, offset: u64) -> Option<(&Space, usize)> {
        let window = self.outbound.get(usize::from(map.number)).copied().flatten()?;
        let inside = offset.checked_add(4)? <= window.size;
        inside.then_some((self.space.as_ref()?, (window.offset + offset) as usize))
    }

    /// Loads through a window.
    pub fn load(&self, map: &OutboundMap, offset: u64) -> u32 {
        self.place(map, offset).map_or(u32::MAX, |(space, at)| space.registers.read32(at))
    }

    /// Stores through a window.
    pub fn store(&self, map: &OutboundMap, offset: u64, value: u32) {
        if let Some((space, at)) = self.place(map, offset) {
            space.registers.write32(at, value);
        }
    }

    /// Closes an outbound window.
    pub fn unmap_outbound(&mut self, map: &OutboundMap, registers: &Tsi721Registers) {
        let number = usize::from(map.number);
        if let Some(window) = self.outbound.get_mut(number) {
            *window = None;
            registers.write(outbound_window(number), 0);
            registers.read(outbound_window(number));
        }
    }
}

/// Closes all windows.
fn close_all(registers: &Tsi721Registers) {
    for number in 0..WINDOWS {
        registers.write(inbound_window(number), 0);
        registers.write(outbound_window(number), 0);
        for zone in 0..ZONES {
            // The ECC bits of zone memory are invalid before its first write.
            write_zone(number, zone, [0; 3], registers);
        }
    }
}

fn open_inbound(number: usize, address: u64, memory: &Window, registers: &Tsi721Registers) {
    let (at, size) = (inbound_window(number), memory.len() as u64);
    registers.write(at + 8, (size.ilog2() - 12) << 8);
    registers.write_address(at + 0xc, at + 0x10, memory.bus_address());
    registers.write(at + 4, (address >> 32) as u32);
    registers.write(at, address as u32 | WINDOW_ENABLE);
}

/// `space` is the bus address of the BAR.
fn open_outbound(number: usize, window: &Outbound, space: u64, registers: &Tsi721Registers) {
    let step = window.size / ZONES as u64;
    for zone in 0..ZONES {
        let start = window.address + zone as u64 * step;
        let data0 = start as u32 & 0xffff_f000 | ZONE_READS | ZONE_WRITES;
        let data2 = window.ids.code() << 16 | u32::from(window.device);
        write_zone(number, zone, [data0, (start >> 32) as u32, data2], registers);
    }
    let (at, base) = (outbound_window(number), space + window.offset);
    registers.write(at + 8, (window.size.ilog2() - 15) << 8);
    registers.write(at + 4, (base >> 32) as u32);
    registers.write(at, base as u32 & 0xffff_8000 | WINDOW_ENABLE);
}

fn write_zone(window: usize, zone: usize, data: [u32; 3], registers: &Tsi721Registers) {
    for _ in 0..ZONE_POLLS {
        if registers.read(ZONE_SELECT) & ZONE_GO == 0 {
            break;
        }
    }
    for (n, word) in data.into_iter().enumerate() {
        registers.write(ZONE_DATA + 4 * n, word);
    }
    registers.write(ZONE_SELECT, ZONE_GO | (window << 3 | zone) as u32);
}
