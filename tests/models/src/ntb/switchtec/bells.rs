//! Doorbells and messages of a partition, with their masks.

use crate::registers::with_half;

/// The doorbell whose vector the first message uses.
const MESSAGE_BELL: usize = 60;

#[derive(Clone, Copy, Debug, Default)]
struct Message {
    value: u32,
    arrived: bool,
    enabled: bool,
    from: u8,
}

#[derive(Clone, Debug)]
pub struct Bells {
    out_enabled: u64,
    rung: u64,
    enabled: u64,
    vectors: [u8; 64],
    /// Source of each message slot: partition and message number.
    map: u32,
    sent: [u32; 4],
    slots: [Message; 4],
    /// Vectors to raise, a bit each.
    pub due: u64,
}

impl Bells {
    pub fn new() -> Self {
        Bells {
            out_enabled: 0,
            rung: 0,
            enabled: 0,
            vectors: [0; 64],
            map: 0,
            sent: [0; 4],
            slots: [Message::default(); 4],
            due: 0,
        }
    }

    /// The doorbells that the outbound mask lets through.
    pub fn leaving(&self, bells: u64) -> u64 {
        bells & self.out_enabled
    }

    /// Handles doorbells from the other partition.
    pub fn ring(&mut self, bells: u64) {
        self.rung |= bells;
        self.raise(bells & self.enabled);
    }

    fn raise(&mut self, bells: u64) {
        for bell in (0..64).filter(|bell| bells >> bell & 1 == 1) {
            self.due |= 1 << (self.vectors[bell] & 63);
        }
    }

    /// Handles a message from a partition. It is dropped unless a slot is mapped to it.
    pub fn receive(&mut self, partition: usize, number: usize, value: u32) {
        for n in 0..4 {
            if (self.map >> (8 * n)) as u8 != (partition << 2 | number) as u8 {
                continue;
            }
            let place = &mut self.slots[n];
            (place.value, place.arrived, place.from) = (value, true, partition as u8);
            let bell = MESSAGE_BELL + n;
            if place.enabled && self.enabled >> bell & 1 == 1 {
                self.due |= 1 << (self.vectors[bell] & 63);
            }
        }
    }

    pub fn read(&self, at: u64) -> u32 {
        let half = |value: u64| (value >> (8 * (at % 8))) as u32;
        match at {
            0x1008 | 0x100c => half(self.out_enabled),
            0x1010 | 0x1014 => half(self.rung),
            0x1018 | 0x101c => half(self.enabled),
            0x1020..0x1060 => {
                let n = (at - 0x1020) as usize;
                u32::from_le_bytes(core::array::from_fn(|byte| self.vectors[n + byte]))
            }
            0x1060 => self.map,
            0x1068..0x1088 if at.is_multiple_of(8) => self.sent[(at - 0x1068) as usize / 8],
            0x1088..0x10a8 => {
                let place = &self.slots[(at - 0x1088) as usize / 8];
                let state = |bit: bool, shift: u32| u32::from(bit) << shift;
                match at % 8 {
                    0 => place.value,
                    _ => {
                        state(place.arrived, 0)
                            | state(place.enabled, 8)
                            | u32::from(place.from) << 16
                    }
                }
            }
            _ => 0,
        }
    }

    /// Handles a write of a word that has no effect on the other partition.
    pub fn write(&mut self, at: u64, value: u32) {
        let part = with_half(0, at % 8, value);
        match at {
            0x1008 | 0x100c => self.out_enabled = with_half(self.out_enabled, at % 8, value),
            0x1010 | 0x1014 => self.rung &= !part,
            0x1018 | 0x101c => {
                let before = self.enabled;
                self.enabled = with_half(before, at % 8, value);
                self.raise(self.rung & self.enabled & !before);
            }
            0x1060 => self.map = value,
            0x1068..0x1088 if at.is_multiple_of(8) => self.sent[(at - 0x1068) as usize / 8] = value,
            0x1088..0x10a8 if at % 8 == 4 => {
                let place = &mut self.slots[(at - 0x1088) as usize / 8];
                place.arrived &= value & 1 == 0;
                place.enabled = value & 0x100 != 0;
            }
            _ => {}
        }
    }

    /// Handles a write of bytes: vectors, or the acknowledgement of a message.
    pub fn write_bytes(&mut self, at: u64, bytes: &[u8]) {
        for (at, &byte) in (at..).zip(bytes) {
            match at {
                0x1020..0x1060 => self.vectors[(at - 0x1020) as usize] = byte,
                0x1088..0x10a8 if at % 8 == 4 && byte & 1 != 0 => {
                    self.slots[(at - 0x1088) as usize / 8].arrived = false;
                }
                _ => {}
            }
        }
    }
}
