//! Faults of the model.

/// Faults to inject. They happen once, except `NoInterrupts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No interrupts are raised.
    NoInterrupts,
    /// The DMA channel of this number stops with an error at its next descriptor.
    AbortsDma(usize),
    /// The DMA channel of this number hangs in its next descriptor.
    HangsDma(usize),
    /// The next completion of this DMA channel names an address that is not a descriptor's.
    NamesNoDescriptor(usize),
    /// The descriptor of the next message for this mailbox names an address that is not a buffer's.
    NamesNoBuffer(usize),
    /// The descriptor of the next message for this mailbox names the previous message's buffer.
    NamesBufferTwice(usize),
    /// The next message for this mailbox has an error in its status.
    MessageStatus(usize),
    /// Writing the next message for this mailbox to memory fails, and the channel stops.
    MessageMemory(usize),
    /// The memory of a mailbox's inbound channel has an ECC error.
    Ecc {
        /// The mailbox.
        mailbox: usize,
        /// The error was corrected.
        corrected: bool,
    },
}
