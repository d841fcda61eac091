//! The mailbox between a virtual function and the driver of its physical function (82576, 7.8.2.8 and 9.7; 82599,
//! 7.10.2.9; messages as in `mbx.h` of Linux's `igbvf` and `ixgbevf`): one request at a time, each with one answer. No
//! function waits.

use super::registers::ALL_ONES;
use super::{Error, chip};
use crate::ethernet::is_station;
use crate::hal::Registers;

const REQUEST: u32 = 1;
const ACKNOWLEDGE: u32 = 1 << 1;
const OWNED: u32 = 1 << 2;
const MESSAGE: u32 = 1 << 4;
const ACKNOWLEDGED: u32 = 1 << 5;
const RESET_BEGUN: u32 = 1 << 6;
const RESET_DONE: u32 = 1 << 7;
/// Bits that are cleared by reading.
const READ_ONCE: u32 = MESSAGE | ACKNOWLEDGED | RESET_DONE;

/// Request: resets the function.
const RESET: u32 = 1;
/// First word of an answer: the request was accepted.
pub const ACCEPTED: u32 = 1 << 31;
/// First word of an answer: the request was refused.
const REFUSED: u32 = 1 << 30;
/// The physical function is up.
const CLEAR_TO_SEND: u32 = 1 << 29;

/// The words of a message that are used.
pub type Message = [u32; 3];

/// The virtual function's side of the mailbox.
pub struct Mailbox {
    /// Offset of the control register.
    register: usize,
    /// Offset of the message memory.
    memory: usize,
    /// Bits that were read, and thereby cleared, but not handled yet.
    kept: u32,
    /// First word of the request that waits for its answer.
    pending: Option<u32>,
}

impl Mailbox {
    /// The mailbox with these registers.
    pub fn new(register: usize, memory: usize) -> Self {
        Mailbox { register, memory, kept: 0, pending: None }
    }

    /// The control register, with bits that were read earlier and not handled yet. An error if the function is absent.
    fn status(&mut self, registers: &dyn Registers) -> Result<u32, Error> {
        let now = registers.read32(self.register);
        if now == ALL_ONES {
            return Err(Error::Absent);
        }
        let all = now | self.kept;
        self.kept = all & READ_ONCE;
        Ok(all)
    }

    /// Returns to the state after a reset.
    pub fn clear(&mut self) {
        *self = Mailbox::new(self.register, self.memory);
    }

    /// Requests a reset of this function. Returns the MAC address that it gets; None until the answer has come, and
    /// `refused` as the error if it is refused.
    pub fn request_reset(
        &mut self,
        registers: &dyn Registers,
        refused: Error,
    ) -> Result<Option<[u8; 6]>, Error> {
        let Some([kind, low, high]) = self.request(registers, [RESET, 0, 0])? else {
            return Ok(None);
        };
        if kind & REFUSED != 0 {
            return Err(refused);
        }
        let mac = chip::to_address(low, high);
        if is_station(mac) { Ok(Some(mac)) } else { Err(Error::NoMac) }
    }

    /// Whether the physical function has reset this function, or itself.
    pub fn was_reset(&mut self, registers: &dyn Registers) -> Result<bool, Error> {
        let found = self.status(registers)? & (RESET_BEGUN | RESET_DONE) != 0;
        self.kept &= !RESET_DONE;
        Ok(found)
    }

    /// Whether the physical function's driver has dropped this function: it has sent an unsolicited message without
    /// "clear to send".
    pub fn was_dropped(&mut self, registers: &dyn Registers) -> Result<bool, Error> {
        if self.pending.is_some() || self.status(registers)? & MESSAGE == 0 {
            return Ok(false);
        }
        let message = self.take(registers)?;
        Ok(message.is_some_and(|message| message[0] & CLEAR_TO_SEND == 0))
    }

    fn lock(&mut self, registers: &dyn Registers) -> Result<bool, Error> {
        registers.write32(self.register, OWNED);
        Ok(self.status(registers)? & OWNED != 0)
    }

    /// Takes the waiting message. None if the other side is writing one.
    fn take(&mut self, registers: &dyn Registers) -> Result<Option<Message>, Error> {
        if !self.lock(registers)? {
            return Ok(None);
        }
        let message = core::array::from_fn(|n| registers.read32(self.memory + 4 * n));
        self.kept &= !MESSAGE;
        registers.write32(self.register, ACKNOWLEDGE);
        Ok(Some(message))
    }

    /// Sends `request`, unless a request is pending. Returns the answer when it has arrived.
    pub fn request(
        &mut self,
        registers: &dyn Registers,
        request: Message,
    ) -> Result<Option<Message>, Error> {
        let Some(pending) = self.pending else {
            if self.lock(registers)? {
                self.kept &= !(MESSAGE | ACKNOWLEDGED);
                for (n, word) in request.into_iter().enumerate() {
                    registers.write32(self.memory + 4 * n, word);
                }
                registers.write32(self.register, REQUEST);
                self.pending = Some(request[0]);
            }
            return Ok(None);
        };
        if self.status(registers)? & MESSAGE == 0 {
            return Ok(None);
        }
        let Some(answer) = self.take(registers)? else { return Ok(None) };
        // Not the answer to the pending request.
        if answer[0] & 0xffff != pending & 0xffff || answer[0] & (ACCEPTED | REFUSED) == 0 {
            return Ok(None);
        }
        self.pending = None;
        Ok(Some(answer))
    }
}
