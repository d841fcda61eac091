//! What the model does wrong.

/// What the model does wrong, on demand. What is not said to last happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The magic number of the resource table is another. Lasts.
    NoTable,
    /// The table says that work queues lie beyond the end of the BAR. Lasts.
    TableBeyondBar,
    /// The table has no end. Lasts.
    TableWithoutEnd,
    /// There are no completion queues. Lasts.
    NoCompletionQueues,
    /// It has no MAC address. Lasts.
    NoAddress,
    /// Every register reads as all ones. Lasts.
    AllOnes,
    /// No interrupts are raised. Lasts.
    NoInterrupts,
    /// Commands of this number are never done. Lasts.
    NeverDone(u32),
    /// The next command of this number fails with this error.
    Fails(u32, u32),
    /// The result of the next command has the colour of the lap before: there seems to be none.
    ResultColour,
    /// Opening, or a reset, never ends. Lasts.
    StaysInProgress,
    /// Queues say that they run, though they were stopped. Lasts.
    StuckRunning,
    /// Nothing is sent any more, until a reset.
    NeverCompletes,
    /// The completion of the next packets names a descriptor so much further on.
    CompletesAnother(u16),
    /// The next packets are completed twice.
    CompletesTwice,
    /// The completion of the next packets has the colour of the lap before.
    CompletionColour,
    /// The completion of the next packets says that it is of another queue.
    CompletesQueue(u16),
    /// The completion of the next frame names a buffer so much further on.
    ReceivesAt(u16),
    /// The next frame is completed twice.
    ReceivesTwice,
    /// The completion of the next frame has the colour of the lap before.
    ReceiveColour,
    /// The next frame is completed with this length (14 bits).
    Length(u16),
    /// The next frame is completed as damaged.
    Damaged,
    /// The next frame ends nowhere.
    NoEnd,
    /// The receive queue of this number has stopped because of an error.
    QueueError(usize),
    /// The firmware says that it has failed, until a reset.
    Fatal,
    /// The checksum of the notify area is wrong. Lasts.
    NotifySum,
}

impl Fault {
    /// Those that a user can ask for, with their names.
    pub const NAMED: [(&str, Fault); 3] = [
        ("no-interrupts", Fault::NoInterrupts),
        ("never-opens", Fault::StaysInProgress),
        ("no-table", Fault::NoTable),
    ];

    /// Whether it stays until it is taken back.
    pub(super) fn lasts(self) -> bool {
        use Fault::*;
        matches!(
            self,
            NoTable
                | TableBeyondBar
                | TableWithoutEnd
                | NoCompletionQueues
                | NoAddress
                | AllOnes
                | NoInterrupts
                | NeverDone(_)
                | StaysInProgress
                | StuckRunning
                | NotifySum
        )
    }
}
