//! The initialization segment and the doorbells.

use super::fields::{be32, be64};
use super::state::Stage;
use super::{Fault, MSIX_PENDING, MSIX_TABLE, Mlx5};
use crate::Machine;

/// Firmware 16.35, sub-minor 1012.
const FIRMWARE: u32 = 35 << 16 | 16;
const SUB_MINOR: u32 = 1012;
/// Revision of the command interface.
const REVISION: u32 = 5;
/// Log2 of the command queue's entries, and of an entry's bytes.
pub const LOG_ENTRIES: u32 = 5;
pub const LOG_STRIDE: u32 = 6;

const QUEUE_HIGH: u64 = 0x10;
const QUEUE_LOW: u64 = 0x14;
const COMMAND_DOORBELL: u64 = 0x18;
const TIMER_HIGH: u64 = 0x1000;
const TIMER_LOW: u64 = 0x1004;

impl Mlx5 {
    /// Whether the firmware is ready.
    pub(super) fn is_ready(&self) -> bool {
        self.now >= self.state.ready && !self.has(Fault::NeverReady)
    }

    /// The word at this offset of the segment.
    pub(super) fn segment_word(&self, offset: u64) -> u32 {
        let state = &self.state;
        match offset {
            0x0 => FIRMWARE,
            0x4 => match self.has(Fault::OtherRevision) {
                true => (REVISION + 1) << 16 | SUB_MINOR,
                false => REVISION << 16 | SUB_MINOR,
            },
            QUEUE_HIGH => state.queue_high,
            QUEUE_LOW => {
                let low = state.queue as u32 & !0xfff | u32::from(state.interface) << 8;
                low | LOG_ENTRIES << 4 | LOG_STRIDE
            }
            0x1fc => u32::from(!self.is_ready()) << 31,
            0x200..0x240 | 0x1010 => self.health_word(offset),
            TIMER_HIGH => (self.now >> 32) as u32,
            TIMER_LOW => self.now as u32,
            _ => 0,
        }
    }

    /// Handles the driver's write to the segment.
    pub(super) fn write_segment(&mut self, offset: u64, bytes: &[u8], machine: &mut dyn Machine) {
        // QEMU or the machine handles the MSI-X table.
        if (u64::from(MSIX_TABLE)..u64::from(MSIX_PENDING) + 0x1000).contains(&offset) {
            return;
        }
        let value = be32(bytes, 0);
        match (offset, bytes.len()) {
            (QUEUE_HIGH, 4) => self.state.queue_high = value,
            (QUEUE_LOW, 4) => {
                self.state.interface = (value >> 8 & 7) as u8;
                if value & 0xff != 0 && value & 0xff != LOG_ENTRIES << 4 | LOG_STRIDE {
                    self.complain(format!("{value:#x} is written as address of the command queue"));
                }
                if value & !0xfff != 0 {
                    let high = u64::from(self.state.queue_high) << 32;
                    self.state.queue = high | u64::from(value & !0xfff);
                    if self.state.interface == 0 && self.state.stage == Stage::Off {
                        // The firmware takes the address over, and is busy meanwhile.
                        self.state.ready = self.state.ready.max(self.now + self.settings.load);
                    }
                }
            }
            (COMMAND_DOORBELL, 4) => self.take_commands(value, machine),
            _ => {
                let length = bytes.len();
                self.complain(format!("{length} bytes go to {offset:#x}, where nothing is"));
            }
        }
    }

    /// Handles the driver's write to a doorbell page.
    pub(super) fn doorbell(&mut self, offset: u64, bytes: &[u8], machine: &mut dyn Machine) {
        let (page, at) = ((offset >> 12) as u32, offset & 0xfff);
        if !self.config.is_bus_master() {
            return self.complain("a doorbell is rung without bus mastering");
        }
        match (at, bytes.len()) {
            (0x20, 8) => self.arm_completion_queue(page, be32(bytes, 4), be32(bytes, 0), machine),
            (0x40 | 0x48, 4) => self.update_event_queue(page, be32(bytes, 0), at == 0x40, machine),
            // The first 8 bytes of each half of a BlueFlame register are the doorbell, the others a copy of the work
            // request.
            (0x800..0x1000, 8) if at & 0xff == 0 => {
                self.send_doorbell(page, be64(bytes, 0), machine)
            }
            (0x800..0x1000, _) => {}
            (_, length) => {
                self.complain(format!("{length} bytes go to {at:#x} of a doorbell page"))
            }
        }
    }

    /// Handles a send doorbell: the first 8 bytes of a work request.
    fn send_doorbell(&mut self, page: u32, value: u64, machine: &mut dyn Machine) {
        let number = (value >> 8 & 0xff_ffff) as u32;
        if let Some(queue) = self.state.send_queues.get(&number) {
            if queue.uar != page {
                self.complain(format!("send queue {number:#x} is rung on page {page:#x}"));
            }
            return self.run_send_queue(number, machine);
        }
        if let Some(pair) = self.state.queue_pairs.get(&number) {
            if pair.uar != page {
                self.complain(format!("queue pair {number:#x} is rung on page {page:#x}"));
            }
            self.state.active.insert(number);
            return self.run_queue_pair(number, machine);
        }
        // The second half of a copy that begins in another register, or a destroyed queue.
        self.counts.unmatched += 1;
    }
}
