//! The mailbox between a virtual function and the driver of its physical function (82576, 7.8.2.8 and 9.7; 82599, 7.10.2.9;
//! messages as in `mbx.h` of Linux's `igbvf` and `ixgbevf`): one message at a time, each answered by one. Nothing here waits.

use super::Error;
use super::registers::ALL_ONES;
use crate::hal::Registers;

const REQUEST: u32 = 1;
const ACKNOWLEDGE: u32 = 1 << 1;
const OURS: u32 = 1 << 2;
const MESSAGE: u32 = 1 << 4;
const ACKNOWLEDGED: u32 = 1 << 5;
const RESET_BEGUN: u32 = 1 << 6;
const RESET_DONE: u32 = 1 << 7;
/// Bits that reading clears.
const READ_ONCE: u32 = MESSAGE | ACKNOWLEDGED | RESET_DONE;

/// In the first word of an answer.
pub const ACCEPTED: u32 = 1 << 31;
pub const REFUSED: u32 = 1 << 30;
/// The physical function is up.
const CLEAR_TO_SEND: u32 = 1 << 29;

/// Words of a message at most.
pub type Message = [u32; 3];

/// Our side of the mailbox.
pub struct Mailbox {
    /// Its register, and its memory.
    register: usize,
    memory: usize,
    /// Bits that were read, and so cleared, and not used yet.
    kept: u32,
    /// What was asked and not answered.
    asked: Option<u32>,
}

impl Mailbox {
    /// The one with these registers.
    pub fn new(register: usize, memory: usize) -> Self {
        Mailbox { register, memory, kept: 0, asked: None }
    }

    /// What the mailbox says, or that nobody is there.
    fn look(&mut self, registers: &dyn Registers) -> Result<u32, Error> {
        let now = registers.read32(self.register);
        if now == ALL_ONES {
            return Err(Error::Absent);
        }
        let all = now | self.kept;
        self.kept = all & READ_ONCE;
        Ok(all)
    }

    /// As after a reset.
    pub fn clear(&mut self) {
        *self = Mailbox::new(self.register, self.memory);
    }

    /// Whether the physical function has reset us, or itself.
    pub fn was_reset(&mut self, registers: &dyn Registers) -> Result<bool, Error> {
        let found = self.look(registers)? & (RESET_BEGUN | RESET_DONE) != 0;
        self.kept &= !RESET_DONE;
        Ok(found)
    }

    /// Whether the driver of the physical function says that it has lost us: it sends something by itself, without
    /// leave to send.
    pub fn was_forgotten(&mut self, registers: &dyn Registers) -> Result<bool, Error> {
        if self.asked.is_some() || self.look(registers)? & MESSAGE == 0 {
            return Ok(false);
        }
        let message = self.take(registers)?;
        Ok(message.is_some_and(|message| message[0] & CLEAR_TO_SEND == 0))
    }

    fn lock(&mut self, registers: &dyn Registers) -> Result<bool, Error> {
        registers.write32(self.register, OURS);
        Ok(self.look(registers)? & OURS != 0)
    }

    /// Takes the message that is there. None if the other side writes one just now.
    fn take(&mut self, registers: &dyn Registers) -> Result<Option<Message>, Error> {
        if !self.lock(registers)? {
            return Ok(None);
        }
        let message = core::array::from_fn(|n| registers.read32(self.memory + 4 * n));
        self.kept &= !MESSAGE;
        registers.write32(self.register, ACKNOWLEDGE);
        Ok(Some(message))
    }

    /// Asks `question`, if it was not asked yet; the answer, when there is one.
    pub fn ask(
        &mut self,
        registers: &dyn Registers,
        question: Message,
    ) -> Result<Option<Message>, Error> {
        let Some(asked) = self.asked else {
            if self.lock(registers)? {
                self.kept &= !(MESSAGE | ACKNOWLEDGED);
                for (n, word) in question.into_iter().enumerate() {
                    registers.write32(self.memory + 4 * n, word);
                }
                registers.write32(self.register, REQUEST);
                self.asked = Some(question[0]);
            }
            return Ok(None);
        };
        if self.look(registers)? & MESSAGE == 0 {
            return Ok(None);
        }
        let Some(answer) = self.take(registers)? else { return Ok(None) };
        // Something else, which is not waited for.
        if answer[0] & 0xffff != asked & 0xffff || answer[0] & (ACCEPTED | REFUSED) == 0 {
            return Ok(None);
        }
        self.asked = None;
        Ok(Some(answer))
    }
}
