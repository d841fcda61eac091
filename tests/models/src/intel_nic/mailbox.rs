//! The physical function's driver as seen by a virtual function: the mailbox, and replies as Linux's `igb` sends them.

const MAILBOX: u64 = 0x0c40;
const MEMORY: core::ops::Range<u64> = 0x0800..0x0840;

const REQUEST: u32 = 1;
const ACKNOWLEDGE: u32 = 1 << 1;
const OURS: u32 = 1 << 2;
const MESSAGE: u32 = 1 << 4;
const ACKNOWLEDGED: u32 = 1 << 5;
const RESET_BEGUN: u32 = 1 << 6;
const RESET_DONE: u32 = 1 << 7;

const ACCEPTED: u32 = 1 << 31;
const REFUSED: u32 = 1 << 30;
const CLEAR_TO_SEND: u32 = 1 << 29;
/// Type of an unsolicited message from the physical function.
const CONTROL: u32 = 0x100;

/// The driver of the physical function.
#[derive(Default)]
pub struct PhysicalFunction {
    bits: u32,
    memory: [u32; 16],
    requested: bool,
    pub clear_to_send: bool,
    pub longest: u32,
    pub all_multicast: bool,
}

impl PhysicalFunction {
    /// The virtual function has reset itself. The physical function is notified, the virtual one is not: RSTI and RSTD
    /// report resets by the physical function, as in QEMU's igb. `stuck`: such a reset has begun, and never completes.
    pub fn reset_function(&mut self, stuck: bool) {
        let bits = if stuck { RESET_BEGUN } else { 0 };
        *self = PhysicalFunction { bits, ..PhysicalFunction::default() };
    }

    /// The physical function resets, and notifies the virtual function.
    pub fn restart(&mut self) {
        self.reset_function(false);
        self.memory[0] = CONTROL;
        self.bits = RESET_DONE | MESSAGE;
    }

    /// Sends an unsolicited message, as Linux's `igb_ping_all_vfs` does. `lost`: the physical function has lost the
    /// virtual function's state, and withdraws clear-to-send.
    pub fn ping(&mut self, lost: bool) {
        self.clear_to_send &= !lost;
        self.memory[0] = CONTROL | if self.clear_to_send { CLEAR_TO_SEND } else { 0 };
        self.bits |= MESSAGE;
    }

    pub fn read(&mut self, at: u64) -> Option<u32> {
        if at == MAILBOX {
            let bits = self.bits;
            self.bits &= !(MESSAGE | ACKNOWLEDGED | RESET_DONE);
            return Some(bits);
        }
        MEMORY.contains(&at).then(|| self.memory[((at - MEMORY.start) / 4) as usize])
    }

    /// Returns false if the address is not one of the mailbox registers.
    pub fn write(&mut self, at: u64, value: u32) -> bool {
        if at == MAILBOX {
            self.bits = self.bits & !OURS | value & OURS;
            self.requested |= value & REQUEST != 0;
            _ = value & ACKNOWLEDGE;
        } else if MEMORY.contains(&at) {
            self.memory[((at - MEMORY.start) / 4) as usize] = value;
        } else {
            return false;
        }
        true
    }

    /// Replies to the pending request.
    pub fn work(&mut self, deaf: bool, refused: Option<u32>) {
        if !core::mem::take(&mut self.requested) || deaf {
            return;
        }
        let question = self.memory[0];
        let kind = question & 0xffff;
        let good = refused != Some(kind) && (kind == 1 || self.clear_to_send);
        match kind {
            1 if good => {
                let [a, b, c, d, e, f] = super::MAC;
                self.memory[1] = u32::from_le_bytes([a, b, c, d]);
                self.memory[2] = u32::from_le_bytes([e, f, 0, 0]);
                self.clear_to_send = true;
            }
            5 if good => self.longest = self.memory[1],
            6 if good => self.all_multicast = question >> 16 & 2 != 0,
            _ => {}
        }
        let answer = if good { ACCEPTED } else { REFUSED };
        let clear = if self.clear_to_send && kind != 1 { CLEAR_TO_SEND } else { 0 };
        self.memory[0] = question | answer | clear;
        self.bits |= MESSAGE | ACKNOWLEDGED;
    }
}
