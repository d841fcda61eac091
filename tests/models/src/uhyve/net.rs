//! The network device: 256 bytes that are both configuration space and registers.

use super::queue::Queue;
use super::{Tap, World};
use crate::Machine;

// Configuration space.
const COMMAND: u8 = 0x04;
const STATUS: u8 = 0x06;
const BAR: u8 = 0x10;
const CAPABILITIES: u8 = 0x34;
const INTERRUPT: u8 = 0x3c;
/// Alignment of BAR addresses.
const BAR_SIZE: u64 = 0x20_0000;
/// BAR type: prefetchable, 64 bits.
const BAR_FLAGS: u64 = 0xc;

// The structures to which the capabilities refer.
const COMMON: u8 = 0x88;
const ISR: u8 = 0xc8;
const BEHIND_ISR: u8 = ISR + 1;
const NOTIFY: u8 = 0xd0;
const DEVICE: u8 = 0xd8;
const END: u8 = 0xf0;

const DEVICE_FEATURE_SELECT: u8 = COMMON;
const DEVICE_FEATURE: u8 = COMMON + 0x04;
const DRIVER_FEATURE_SELECT: u8 = COMMON + 0x08;
const DRIVER_FEATURE: u8 = COMMON + 0x0c;
const NUM_QUEUES: u8 = COMMON + 0x12;
const DEVICE_STATUS: u8 = COMMON + 0x14;
const GENERATION: u8 = COMMON + 0x15;
const QUEUE_SELECT: u8 = COMMON + 0x16;
const QUEUE_SIZE: u8 = COMMON + 0x18;
const QUEUE_ENABLE: u8 = COMMON + 0x1c;
const QUEUE_NOTIFY_OFF: u8 = COMMON + 0x1e;
const QUEUE_DESC: u8 = COMMON + 0x20;
const QUEUE_DEVICE_END: u8 = COMMON + 0x38;
const QUEUE_RESET: u8 = COMMON + 0x3a;
const MAC_END: u8 = DEVICE + 6;
const NET_STATUS: u8 = DEVICE + 6;
const MTU: u8 = DEVICE + 0x0a;

const ACKNOWLEDGE: u16 = 1;
const DRIVER: u16 = 2;
const DRIVER_OK: u16 = 4;
const FEATURES_OK: u16 = 8;
const CAPABILITY_LIST: u16 = 16;
const NEEDS_RESET: u16 = 64;

/// CSUM, GUEST_CSUM, MTU, MAC, STATUS.
const FEATURES_LOW: u32 = 1 | 1 << 1 | 1 << 3 | 1 << 5 | 1 << 16;
/// VERSION_1.
const FEATURES_HIGH: u32 = 1;

/// The queue of the doorbell at an address.
pub fn queue_of_doorbell(address: u64) -> Option<usize> {
    let doorbell = super::REGISTERS + u64::from(NOTIFY);
    [doorbell, doorbell + 4].iter().position(|&one| one == address)
}

/// The device.
#[derive(Debug)]
pub struct Net {
    bytes: [u8; 256],
    /// Device status and PCI status in one word.
    status: u16,
    bars: [u64; 3],
    generation: (bool, u8),
    queue_select: u16,
    /// Size of both queues. It stays 0 once the driver has selected a third queue.
    queue_size: u16,
    /// Receive and transmit queue, until the threads take them.
    pub(super) queues: Option<[Queue; 2]>,
    /// The queues in the threads.
    pub(super) running: Option<[Queue; 2]>,
    /// Threads that have panicked, with the reason.
    pub dead_threads: [Option<String>; 2],
    pub(super) notified: [bool; 2],
    pub(super) isr: bool,
    /// The host's end of the TAP device.
    pub tap: Tap,
    /// Frames that were truncated.
    pub cut: u64,
    /// Interrupts raised.
    pub interrupts: u64,
}

impl Net {
    pub(super) fn new(mac: [u8; 6], mtu: u16) -> Self {
        let mut bytes = [0; 256];
        let mut put = |at: u8, value: &[u8]| {
            bytes[usize::from(at)..usize::from(at) + value.len()].copy_from_slice(value);
        };
        put(0, &[0xf4, 0x1a, 0x41, 0x10]);
        put(CAPABILITIES, &[0x40]);
        put(INTERRUPT, &[11, 1]);
        let capability = |next, len, kind, at: u8, bytes: u8| {
            [9, next, len, kind, 0, 0, 0, 0, at, 0, 0, 0, bytes, 0, 0, 0]
        };
        put(0x40, &capability(0x50, 16, 1, COMMON, 64));
        put(0x50, &capability(0x60, 16, 3, ISR, 1));
        put(0x60, &capability(0x78, 20, 2, NOTIFY, 8));
        put(0x70, &[4]);
        put(0x78, &capability(0, 16, 4, DEVICE, 24));
        put(COMMON + 0x10, &[0xff, 0xff]);
        put(NUM_QUEUES, &[2]);
        put(DEVICE, &mac);
        // The link is up.
        put(NET_STATUS, &[1]);
        put(MTU, &mtu.to_le_bytes());
        Net {
            bytes,
            status: NEEDS_RESET | CAPABILITY_LIST,
            bars: [super::REGISTERS | BAR_FLAGS, BAR_FLAGS, BAR_FLAGS],
            generation: (false, 0),
            queue_select: 0,
            queue_size: 256,
            queues: Some(Default::default()),
            running: None,
            dead_threads: [None, None],
            notified: [false; 2],
            isr: false,
            tap: Tap::default(),
            cut: 0,
            interrupts: 0,
        }
    }

    /// Whether the driver has set DRIVER_OK.
    pub fn is_live(&self) -> bool {
        self.status & DRIVER_OK != 0
    }

    fn changed(&mut self) {
        if !self.generation.0 {
            self.generation = (true, self.generation.1.wrapping_add(1));
        }
    }

    fn word(&self, at: u8) -> u32 {
        let at = usize::from(at);
        u32::from_le_bytes([
            self.bytes[at],
            self.bytes[at + 1],
            self.bytes[at + 2],
            self.bytes[at + 3],
        ])
    }

    /// All bytes, including the BARs and the status.
    fn image(&self) -> [u8; 256] {
        let mut bytes = self.bytes;
        bytes[usize::from(STATUS)..][..2].copy_from_slice(&self.status.to_le_bytes());
        for (bar, place) in self.bars.iter().zip(bytes[usize::from(BAR)..].chunks_exact_mut(8)) {
            place.copy_from_slice(&bar.to_le_bytes());
        }
        bytes
    }

    /// Handles a read of a register or of configuration space.
    pub(super) fn read(&mut self, offset: u8, into: &mut [u8], world: &mut World) {
        let exactly = |len: usize, world: &mut World| {
            let fits = into.len() == len;
            if !fits {
                world.panic(format!("a read of {} bytes at {offset:#x}, not {len}", into.len()));
            }
            fits
        };
        match offset {
            ISR => {
                // Without an interrupt, uhyve leaves the buffer unchanged.
                if std::mem::take(&mut self.isr) {
                    into[0] = 1;
                }
            }
            DEVICE_STATUS => into[0] = self.status as u8,
            DEVICE_FEATURE if exactly(4, world) => {
                let high = self.word(DEVICE_FEATURE_SELECT) == 1;
                let features = if high { FEATURES_HIGH } else { FEATURES_LOW };
                into.copy_from_slice(&features.to_le_bytes());
            }
            GENERATION if exactly(1, world) => {
                into[0] = self.generation.1;
                self.generation.0 = false;
            }
            QUEUE_SIZE if exactly(2, world) => into.copy_from_slice(&self.queue_size.to_le_bytes()),
            QUEUE_NOTIFY_OFF if exactly(2, world) => {
                if self.queue_select > 1 {
                    world.complain("driver reads invalid queue");
                }
                into.copy_from_slice(&[u8::from(self.queue_select == 1), 0]);
            }
            DEVICE..MAC_END => {
                let mac = &self.bytes[usize::from(offset)..usize::from(MAC_END)];
                into.iter_mut().zip(mac).for_each(|(place, &byte)| *place = byte);
            }
            NET_STATUS => {
                let status = self.bytes[usize::from(NET_STATUS)..][..2].iter();
                into.iter_mut().zip(status).for_each(|(place, &byte)| *place = byte);
            }
            MTU if exactly(2, world) => {
                into.copy_from_slice(&self.bytes[usize::from(MTU)..][..2]);
            }
            QUEUE_RESET => into[0] = 0,
            DEVICE_FEATURE | GENERATION | QUEUE_SIZE | QUEUE_NOTIFY_OFF | MTU => {}
            BEHIND_ISR..DEVICE => {
                world.panic(format!("a read at {offset:#x}, which is unreachable"))
            }
            offset if offset < END - 1 => {
                match self.image().get(usize::from(offset)..usize::from(offset) + into.len()) {
                    Some(bytes) => into.copy_from_slice(bytes),
                    None => world.panic("a read beyond the end"),
                }
            }
            _ => world.complain(format!("PCI Read error: invalid offset {offset:#x}")),
        }
    }

    /// Handles a write to a register or to configuration space.
    pub(super) fn write(
        &mut self,
        offset: u8,
        bytes: &[u8],
        memory: &mut dyn Machine,
        world: &mut World,
    ) {
        let word = |world: &mut World| {
            let word = bytes.try_into().map(u32::from_le_bytes);
            word.map_err(|_| {
                world.panic(format!("a write of {} bytes at {offset:#x}", bytes.len()))
            })
            .ok()
        };
        match offset {
            DEVICE_STATUS => self.write_status(bytes[0], world),
            DEVICE_FEATURE_SELECT | DRIVER_FEATURE_SELECT => {
                let Some(select) = word(world) else { return };
                let select = u32::from(select == 1).to_le_bytes();
                self.bytes[usize::from(offset)..][..4].copy_from_slice(&select);
            }
            DRIVER_FEATURE => {
                let Some(requested) = word(world) else { return };
                if self.status & (ACKNOWLEDGE | DRIVER) == ACKNOWLEDGE | DRIVER {
                    let high = self.word(DRIVER_FEATURE_SELECT) == 1;
                    let mask = if high { FEATURES_HIGH } else { FEATURES_LOW };
                    // uhyve merges the upper half into the lower one.
                    let agreed = (self.word(DRIVER_FEATURE) | requested) & mask;
                    self.bytes[usize::from(DRIVER_FEATURE)..][..4]
                        .copy_from_slice(&agreed.to_le_bytes());
                }
            }
            QUEUE_SELECT => {
                self.queue_select = bytes[0].into();
                if self.queue_select > 1 {
                    self.queue_size = 0;
                }
            }
            QUEUE_ENABLE => match (bytes[0], &mut self.queues) {
                (0 | 1, Some(queues)) if self.queue_select < 2 => {
                    let queue = &mut queues[usize::from(self.queue_select)];
                    queue.ready = bytes[0] == 1;
                    if queue.ready && !queue.is_valid(memory) {
                        world.complain("tried to set queue as ready, but is not valid");
                    }
                }
                _ => world.panic("an unknown queue is enabled, or with a wrong value"),
            },
            QUEUE_DESC..QUEUE_DEVICE_END if (offset - QUEUE_DESC).is_multiple_of(4) => {
                let Some(part) = word(world) else { return };
                if self.status & FEATURES_OK == 0 || self.status & DRIVER_OK != 0 {
                    return world.panic("the address of a queue is set too early or too late");
                }
                let Some(queues) = self.queues.as_mut().filter(|_| self.queue_select < 2) else {
                    return world.panic("invalid queue selected");
                };
                queues[usize::from(self.queue_select)].set_address((offset - QUEUE_DESC) / 4, part);
            }
            QUEUE_RESET => {}
            ISR => return world.panic("Guest should not write to ISR!"),
            NOTIFY..DEVICE => return world.panic("Writing to MemNotify address!"),
            0..0x40 => return self.write_config(offset, bytes, world),
            _ => return world.complain(format!("PCI Write error: read-only {offset:#x}")),
        }
        self.changed();
    }

    fn write_status(&mut self, status: u8, world: &mut World) {
        if status == 0 {
            self.status = 0;
            self.bytes[usize::from(DRIVER_FEATURE)..][..4].fill(0);
            self.queue_select = 0;
            match &mut self.queues {
                Some(queues) => *queues = Default::default(),
                None => world.panic("the device is reset, but threads have its queues"),
            }
            return;
        }
        if self.status & NEEDS_RESET != 0 {
            return world.complain("Virtio PCI device needs reset but is written to anyway");
        }
        const STEPS: [u16; 4] = [ACKNOWLEDGE, DRIVER, FEATURES_OK, DRIVER_OK];
        let mut before = 0;
        let step = STEPS.into_iter().find(|step| {
            let is_next = self.status == before;
            before |= step;
            is_next
        });
        match step {
            Some(step) if u16::from(status) == self.status | step => {
                self.status |= step;
                if step == DRIVER_OK {
                    self.running = self.queues.take();
                }
            }
            _ => {
                world.complain(format!("Invalid status register operation: {status:#x}"));
                self.status = NEEDS_RESET;
            }
        }
    }

    fn write_config(&mut self, offset: u8, bytes: &[u8], world: &mut World) {
        match offset {
            COMMAND if bytes.len() >= 2 => {
                self.bytes[usize::from(COMMAND)..][..2].copy_from_slice(&bytes[..2])
            }
            BAR..0x28 if offset.is_multiple_of(4) => {
                let bar = &mut self.bars[usize::from((offset - BAR) / 8)];
                let flags = *bar & (BAR_SIZE - 1);
                match (bytes.len(), offset.is_multiple_of(8)) {
                    (4, true) => {
                        let low = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                        *bar = u64::from(low) & !(BAR_SIZE - 1) | flags;
                    }
                    (4, false) => {
                        let high = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                        *bar = *bar & 0xffff_ffff | u64::from(high) << 32;
                    }
                    _ => world.complain("PCI Write error: a part of a BAR"),
                }
            }
            _ => world.complain(format!("PCI Write error: invalid offset {offset:#x}")),
        }
    }
}
