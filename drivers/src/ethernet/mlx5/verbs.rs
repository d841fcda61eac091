//! What a verbs provider has of the card, which it shares with the port: commands, one at a time; send doorbells; what
//! happens to queue pairs. Everything that it makes is gone after a reset, of which it learns by [`Mlx5Port::life`].

use super::completions::arm;
use super::error::Error;
use super::events::PairEvent;
use super::firmware::{Command, Slot};
use super::port::Mlx5Port;
#[cfg(doc)]
use crate::hal::Port;
use crate::hal::Severity;
use alloc::vec::Vec;

/// In a doorbell page.
const DOORBELL: usize = 0x800;
const SILENT: &str = "the network card's firmware does not do what RDMA asks of it any more: it is reset; renew the firmware";

/// What a provider has to know of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// The doorbell page.
    pub page: u32,
    /// The event queue that completions can be told to.
    pub events: u32,
    /// Atomic operations are carried out, in the byte order of the CPU.
    pub atomics: bool,
}

impl Mlx5Port {
    /// How often the card was reset so far. None while it is not up. What was made in another life is gone.
    pub fn life(&self) -> Option<u64> {
        self.card.as_ref().map(|_| self.keeper.resets)
    }

    /// What there is to know. None while it is not up.
    pub fn abilities(&self) -> Option<Abilities> {
        let card = self.card.as_ref()?;
        let (page, events) = (card.objects.pair.page, card.objects.pair.events);
        Some(Abilities { page, events, atomics: card.atomics })
    }

    /// Gives a command: `input` begins at byte 8, and `output` is how many bytes the answer has. Fails while another is
    /// under way, and while the card is not up.
    pub fn give(
        &mut self,
        command: Command,
        operation: u16,
        input: &[u8],
        output: usize,
    ) -> Result<(), Error> {
        let card = self.card.as_mut().ok_or(Error::Absent)?;
        card.firmware.give(Slot::Ordinary, command, operation, input, output)
    }

    /// The answer to the command, from its status on, if it is there.
    pub fn answer(&mut self) -> Option<Result<Vec<u8>, Error>> {
        match &mut self.card {
            Some(card) => card.firmware.answer(Slot::Ordinary),
            None => Some(Err(Error::Absent)),
        }
    }

    /// Looks whether the card is still there, by a read of a register, for who waits for it. The firmware gets the memory
    /// that it wants for what it is asked to do.
    pub fn look(&mut self) -> Result<(), Error> {
        let card = self.card.as_mut().ok_or(Error::Absent)?;
        card.mind()?;
        card.firmware.is_ready().map(drop)
    }

    /// Resets the card, because it does not do what it was asked.
    pub fn give_up(&mut self) {
        self.reset(SILENT);
    }

    /// Has the operator told of something.
    pub fn advise(&mut self, what: &'static str) {
        self.keeper.note(Severity::Warning, what);
    }

    /// Ends all use of the card, which is reset, and does not reach memory any more.
    pub fn end(&mut self) {
        (self.card, self.steps) = (None, None);
    }

    /// Writes the first 8 bytes of a work request, given as a big-endian number, to the doorbell.
    #[inline]
    pub fn ring(&self, first: u64) {
        if let Some(card) = &self.card {
            card.doorbells().write64(DOORBELL, first.swap_bytes());
        }
    }

    /// Asks for an event at the next completion of a queue: `word` is what its record says.
    pub fn arm(&self, word: u32, queue: u32) {
        if let Some(card) = &self.card {
            arm(card.doorbells(), word, queue);
        }
    }

    /// Asks for an interrupt once more, of whoever has [`Port::set_interrupts`] ask for them: at what comes next, or has come
    /// and was not taken in.
    #[inline]
    pub fn arm_events(&mut self) {
        if let Some(card) = self.card.as_mut().filter(|_| self.routed.is_some()) {
            card.arm();
        }
    }

    /// Takes in what has happened. Reads memory only, unless there is something.
    #[inline]
    pub fn mind(&mut self) {
        if let Some(card) = &mut self.card {
            // What goes wrong with pages is found by the next look at the card.
            let _ = card.mind();
        }
    }

    /// Whether something has happened to a queue pair, or a completion queue, that was not taken.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.card.as_ref().is_some_and(|card| !card.pairs.is_empty() || !card.completed.is_empty())
    }

    /// What has happened to a queue pair, if something has.
    pub fn pair_event(&mut self) -> Option<PairEvent> {
        self.card.as_mut()?.pairs.pop_front()
    }

    /// The completion queue that an event has told of, if one has.
    pub fn told(&mut self) -> Option<u32> {
        self.card.as_mut()?.completed.pop_front()
    }
}
