//! The card's interface for a verbs provider, which shares it with the port: commands, one at a time; send doorbells;
//! events of queue pairs. A reset, which the provider detects by [`Mlx5Port::life`], destroys all its objects.

use super::completions::arm;
use super::error::Error;
use super::events::PairEvent;
use super::firmware::{Command, Slot};
use super::port::Mlx5Port;
#[cfg(doc)]
use crate::hal::Port;
use crate::hal::Severity;
use alloc::vec::Vec;

/// Doorbell page: send doorbell.
const DOORBELL: usize = 0x800;
const SILENT: &str = "the network card's firmware does not complete what RDMA asks of it: it is reset; update the firmware";

/// Properties of the card for a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// The doorbell page.
    pub page: u32,
    /// Number of the event queue for completion queues.
    pub events: u32,
    /// The card executes atomic operations, in the byte order of the CPU.
    pub atomics: bool,
}

impl Mlx5Port {
    /// Number of resets of the card; None while it is not up. Objects that were created with another number do not
    /// exist any more.
    pub fn life(&self) -> Option<u64> {
        self.card.as_ref().map(|_| self.reset_log.resets)
    }

    /// Properties of the card; None while it is not up.
    pub fn abilities(&self) -> Option<Abilities> {
        let card = self.card.as_ref()?;
        let (page, events) = (card.objects.pair.page, card.objects.pair.events);
        Some(Abilities { page, events, atomics: card.atomics })
    }

    /// Posts a command. `input` begins at byte 8, `output` is the length of the answer in bytes. Fails while another
    /// command is in flight, and while the card is not up.
    pub fn give(
        &mut self,
        command: Command,
        operation: u16,
        input: &[u8],
        output: usize,
    ) -> Result<(), Error> {
        let card = self.card.as_mut().ok_or(Error::Absent)?;
        card.firmware.post(Slot::Ordinary, command, operation, input, output)
    }

    /// The answer to the command, from its status on, if the command is done.
    pub fn answer(&mut self) -> Option<Result<Vec<u8>, Error>> {
        match &mut self.card {
            Some(card) => card.firmware.answer(Slot::Ordinary),
            None => Some(Err(Error::Absent)),
        }
    }

    /// Checks by a register read that the card is present, for a caller that waits for a command. Gives the firmware
    /// memory that it requests for the command.
    pub fn look(&mut self) -> Result<(), Error> {
        let card = self.card.as_mut().ok_or(Error::Absent)?;
        card.process_events()?;
        card.firmware.is_ready().map(drop)
    }

    /// Resets the card, because it does not complete a command.
    pub fn give_up(&mut self) {
        self.reset(SILENT);
    }

    /// Adds a warning for the operator.
    pub fn advise(&mut self, what: &'static str) {
        self.reset_log.note(Severity::Warning, what);
    }

    /// Ends all use of the card: resets it, so that it does not access memory any more.
    pub fn end(&mut self) {
        (self.card, self.steps, self.failed) = (None, None, None);
    }

    /// Rings the send doorbell with the first 8 bytes of a work request, read as a big-endian number.
    #[inline]
    pub fn ring(&self, first: u64) {
        if let Some(card) = &self.card {
            card.doorbells().write64(DOORBELL, first.swap_bytes());
        }
    }

    /// Arms completion queue `queue`, whose record contains `word`.
    pub fn arm(&self, word: u32, queue: u32) {
        if let Some(card) = &self.card {
            arm(card.doorbells(), word, queue);
        }
    }

    /// Enables the interrupt again, for a provider whose loop has called [`Port::set_interrupts`]: for the next event,
    /// and for events that were not processed yet.
    #[inline]
    pub fn arm_events(&mut self) {
        if let Some(card) = self.card.as_mut().filter(|_| self.routed.is_some()) {
            card.arm();
        }
    }

    /// Processes events. Without events it only reads memory.
    #[inline]
    pub fn mind(&mut self) {
        if let Some(card) = &mut self.card {
            // The next check of the card finds errors of page commands.
            let _ = card.process_events();
        }
    }

    /// Whether events of queue pairs or completion queues wait.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.card.as_ref().is_some_and(|card| !card.pairs.is_empty() || !card.completed.is_empty())
    }

    /// The next event of a queue pair.
    pub fn pair_event(&mut self) -> Option<PairEvent> {
        self.card.as_mut()?.pairs.pop_front()
    }

    /// The next completion queue that an event has named.
    pub fn told(&mut self) -> Option<u32> {
        self.card.as_mut()?.completed.pop_front()
    }
}
