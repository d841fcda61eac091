//! What the model does wrong.

/// What the model does wrong, on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No interrupts are raised.
    NoInterrupts,
    /// The channel of this number stops with an error at its next descriptor.
    AbortsDma(usize),
    /// It takes the next descriptor and does nothing with it.
    HangsDma(usize),
    /// The next completion of this channel names an address that is no descriptor.
    NamesNoDescriptor(usize),
    /// The next message for this mailbox is described as lying in memory that is no buffer.
    NamesNoBuffer(usize),
    /// The next message for this mailbox is put where the last one was.
    NamesBufferTwice(usize),
    /// The next message for this mailbox has an error in its status.
    MessageStatus(usize),
    /// A write of the next message for this mailbox to memory fails, and the channel stops.
    MessageMemory(usize),
    /// Memory of the inbound channel of this mailbox has an error that was corrected, or not.
    Ecc {
        /// Whose.
        mailbox: usize,
        /// It was.
        corrected: bool,
    },
}
