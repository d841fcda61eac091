//! The registers of a queue: 64 bytes, the same for physical and virtual functions (82599, 8.2.3.8 and 8.2.3.9).

use super::transmit::Context;

/// Bytes of a queue's registers.
pub const SPAN: u64 = 0x40;
/// Bytes of a descriptor.
pub const DESCRIPTOR: u64 = 16;

const BASE_LOW: usize = 0;
const BASE_HIGH: usize = 1;
const LENGTH: usize = 2;
const HEAD: usize = 4;
const SPLIT: usize = 5;
const TAIL: usize = 6;
const CONTROL: usize = 10;
const COALESCE: usize = 11;
const HEAD_WRITE_BACK: usize = 14;

const ENABLE: u32 = 1 << 25;
/// Most bytes of a ring.
const MOST: u32 = 8192 * DESCRIPTOR as u32;

/// Direction of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Receive,
    Transmit,
}

/// Descriptor format of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Legacy,
    Advanced,
}

/// A queue.
#[derive(Debug)]
pub struct Ring {
    kind: Kind,
    words: [u32; 16],
    /// The next read still returns the old enable state.
    lags: bool,
    /// The enable bit always reads as 0 ([`Fault::NeverEnabled`]).
    pub never: bool,
    /// Offload contexts.
    pub contexts: [Option<Context>; 2],
    /// Gathered data of the current packet.
    pub packet: Vec<u8>,
    pub command: u32,
    pub options: u32,
    pub packets: u64,
    pub bytes: u64,
    pub dropped: u64,
}

impl Ring {
    pub fn new(kind: Kind) -> Self {
        Ring {
            kind,
            words: [0; 16],
            lags: false,
            never: false,
            contexts: [None; 2],
            packet: Vec::new(),
            command: 0,
            options: 0,
            packets: 0,
            bytes: 0,
            dropped: 0,
        }
    }

    /// Reads a register.
    pub fn read(&mut self, at: u64) -> u32 {
        let word = self.words[(at / 4) as usize];
        if at / 4 == CONTROL as u64 {
            if std::mem::take(&mut self.lags) {
                return word ^ ENABLE;
            }
            if self.never {
                return word & !ENABLE;
            }
        }
        word
    }

    /// Handles the driver's write. An error describes an invalid write.
    pub fn write(&mut self, at: u64, value: u32) -> Result<(), String> {
        let index = (at / 4) as usize;
        match index {
            BASE_LOW | BASE_HIGH | LENGTH | HEAD if self.is_enabled() => {
                return Err(format!("register {at:#x} of a queue that is enabled is written"));
            }
            BASE_LOW if value & 0x7f != 0 => {
                return Err(format!("a ring at {value:#x} is not on a boundary of 128 bytes"));
            }
            LENGTH if value & 0x7f != 0 || value > MOST => {
                return Err(format!("a ring of {value} bytes"));
            }
            TAIL if value != 0 && !self.works() => {
                return Err(format!(
                    "the tail {value} is written before the queue reads as enabled"
                ));
            }
            TAIL if value != 0 && value >= self.entries() => {
                return Err(format!("the tail {value} of {} descriptors", self.entries()));
            }
            SPLIT if self.kind == Kind::Receive && !matches!(value >> 25 & 7, 0 | 1) => {
                return Err(format!("SRRCTL {value:#x}: headers are not split"));
            }
            SPLIT if self.kind == Kind::Receive && !(1..=16).contains(&(value & 0x1f)) => {
                return Err(format!("SRRCTL {value:#x}: buffers of 1 to 16 KiB"));
            }
            COALESCE if self.kind == Kind::Receive && value & 1 != 0 => {
                return Err("packets are not coalesced".into());
            }
            HEAD_WRITE_BACK if self.kind == Kind::Transmit && value & 1 != 0 => {
                return Err("the head is not written back".into());
            }
            CONTROL => {
                if (self.words[CONTROL] ^ value) & ENABLE != 0 {
                    self.lags = true;
                    self.packet.clear();
                }
                if value & ENABLE != 0 && self.words[LENGTH] == 0 {
                    return Err("a queue without a ring is enabled".into());
                }
            }
            _ => {}
        }
        self.words[index] = value;
        Ok(())
    }

    fn is_enabled(&self) -> bool {
        self.words[CONTROL] & ENABLE != 0
    }

    /// Whether the queue is enabled, and the driver has read that.
    pub fn works(&self) -> bool {
        self.is_enabled() && !self.lags && !self.never
    }

    /// Address of the descriptors.
    pub fn base(&self) -> u64 {
        u64::from(self.words[BASE_HIGH]) << 32 | u64::from(self.words[BASE_LOW])
    }

    pub fn entries(&self) -> u32 {
        self.words[LENGTH] / DESCRIPTOR as u32
    }

    pub fn head(&self) -> u32 {
        self.words[HEAD]
    }

    /// Descriptors that the driver has posted.
    pub fn available(&self) -> u32 {
        let entries = self.entries();
        match entries {
            0 => 0,
            entries => (self.words[TAIL] + entries - self.words[HEAD]) % entries,
        }
    }

    /// Takes the next descriptor, and returns its number and address.
    pub fn take(&mut self) -> Option<(u32, u64)> {
        if self.available() == 0 {
            return None;
        }
        let at = self.head();
        self.words[HEAD] = (at + 1) % self.entries();
        Some((at, self.address(at)))
    }

    /// The address of a descriptor. `at` wraps at the ring's end.
    pub fn address(&self, at: u32) -> u64 {
        self.base() + u64::from(at % self.entries().max(1)) * DESCRIPTOR
    }

    /// Bytes of a receive buffer.
    pub fn buffer(&self) -> usize {
        (self.words[SPLIT] as usize & 0x1f) << 10
    }

    pub fn format(&self) -> Format {
        if self.words[SPLIT] >> 25 & 7 == 0 { Format::Legacy } else { Format::Advanced }
    }

    /// Frames without a buffer are dropped instead of waiting.
    pub fn drops(&self) -> bool {
        self.words[SPLIT] & 1 << 28 != 0
    }

    /// VLAN tags are stripped.
    pub fn strips_tags(&self) -> bool {
        self.words[CONTROL] & 1 << 30 != 0
    }

    /// Sets all state to its reset value, except for counters.
    pub fn reset(&mut self) {
        *self = Ring {
            never: self.never,
            packets: self.packets,
            bytes: self.bytes,
            dropped: self.dropped,
            ..Ring::new(self.kind)
        };
        if self.kind == Kind::Receive {
            self.words[SPLIT] = 2; // buffers of 2 KiB
        }
    }
}
