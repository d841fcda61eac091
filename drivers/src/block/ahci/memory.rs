//! Memory of a port that the controller reads and writes: the command list, received FISes, and a table for each command
//! (AHCI 1.3.1, chapter 4). A window of data is contiguous on the bus, so one entry of a scatter list describes it.

use super::command::Fis;
use crate::hal::{Arena, Window};

/// Slots of a port.
pub const SLOTS: u8 = 32;
/// The table of the driver's own commands.
pub const OWN: u8 = SLOTS;
/// Most bytes of a block of data in a table.
pub const DATA: usize = 512;

/// Most bytes of an entry of a scatter list.
#[cfg(test)]
const MOST_ENTRY: usize = 4 << 20;

const HEADER: usize = 32;
const AT_RECEIVED: usize = 1024;
const AT_TABLES: usize = 2048;
const TABLE: usize = 1024;
const AT_SCATTER: usize = 0x80;
const AT_DATA: usize = 0x200;
const BYTES: usize = AT_TABLES + TABLE * (SLOTS as usize + 1);

/// Received FISes: register FIS and set device bits FIS, with the drive's status in their third bytes.
const AT_REGISTERS: usize = AT_RECEIVED + 0x40;
const AT_DEVICE_BITS: usize = AT_RECEIVED + 0x58;
/// The error bit of the status, in the first two words of 16 bits of a FIS.
const ERROR: u16 = 1;

// A command's header: 5 words of command FIS; the device writes or reads memory; one entry of the scatter list.
const WORDS: u64 = 5;
const TO_DRIVE: u64 = 1 << 6;
const ONE_ENTRY: u64 = 1 << 16;

/// Direction of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    FromDrive,
    ToDrive,
}

/// The memory of a port.
#[derive(Clone, Copy)]
pub struct PortMemory(Window);

impl PortMemory {
    /// Allocates the memory, or says how many bytes the arena lacks.
    pub fn alloc(arena: &mut Arena) -> Result<PortMemory, usize> {
        let window = arena.alloc(BYTES, 1024).ok_or(BYTES)?;
        window.fill(0);
        Ok(PortMemory(window))
    }

    /// The memory, to free it.
    pub fn window(self) -> Window {
        self.0
    }

    /// Bus addresses of the command list and of received FISes.
    pub fn addresses(self) -> [u64; 2] {
        let start = self.0.bus_address();
        [start, start + AT_RECEIVED as u64]
    }

    /// Block of data in a command's table.
    pub fn data(self, table: u8) -> Window {
        let at = AT_TABLES + TABLE * usize::from(table) + AT_DATA;
        self.0.slice(at, DATA).unwrap_or(Window::empty())
    }

    /// Writes the command of a table, with its data.
    #[inline]
    pub fn put(self, table: u8, fis: Fis, data: Option<(u64, usize)>) {
        let at = AT_TABLES + TABLE * usize::from(table);
        self.0.store64(at, fis[0]);
        self.0.store64(at + 8, fis[1]);
        self.0.store64(at + 16, 0);
        if let Some((address, len)) = data {
            self.0.store64(at + AT_SCATTER, address);
            self.0.store64(at + AT_SCATTER + 8, (len as u64 - 1) << 32);
        }
    }

    /// Makes a slot refer to the command of a table.
    #[inline]
    pub fn refer(self, slot: u8, table: u8, direction: Option<Direction>) {
        let header = match direction {
            None => WORDS,
            Some(Direction::FromDrive) => WORDS | ONE_ENTRY,
            Some(Direction::ToDrive) => WORDS | ONE_ENTRY | TO_DRIVE,
        };
        let at = HEADER * usize::from(slot);
        let address = self.0.bus_address() + (AT_TABLES + TABLE * usize::from(table)) as u64;
        self.0.store64(at, header);
        self.0.store64(at + 8, address);
    }

    /// Whether a received FIS reports an error.
    #[inline]
    pub fn has_error(self) -> bool {
        let status = self.0.load16(AT_REGISTERS + 2) | self.0.load16(AT_DEVICE_BITS + 2);
        status & ERROR != 0
    }

    /// Forgets received FISes. Nothing may be received meanwhile that matters.
    pub fn forget_received(self) {
        self.0.store64(AT_REGISTERS, 0);
        self.0.store64(AT_DEVICE_BITS, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_table_describe_a_command() {
        let memory = PortMemory::alloc(&mut Arena::on_heap(1 << 16)).unwrap();
        memory.put(3, [0x11, 0x22], Some((0x12_3456_7800, MOST_ENTRY)));
        memory.refer(3, 3, Some(Direction::ToDrive));
        let window = memory.window();
        assert_eq!(window.load32(96), 5 | 1 << 6 | 1 << 16);
        let table = (window.load64(104) - window.bus_address()) as usize;
        assert!(table.is_multiple_of(128));
        assert_eq!((window.load64(table), window.load64(table + 8)), (0x11, 0x22));
        assert_eq!(window.load64(table + 0x80), 0x12_3456_7800);
        assert_eq!(window.load32(table + 0x8c), 0x3f_ffff);
        assert_eq!(memory.data(OWN).len(), DATA);
        window.store16(AT_RECEIVED + 0x5a, 0x51);
        assert!(memory.has_error());
        memory.forget_received();
        assert!(!memory.has_error());
    }
}
