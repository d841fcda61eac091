//! Faults of the model.

/// Faults to inject. A fault happens once unless its description says "Lasts".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The resource table has a wrong magic number. Lasts.
    NoTable,
    /// The table places work queues beyond the end of the BAR. Lasts.
    TableBeyondBar,
    /// The table has no end marker. Lasts.
    TableWithoutEnd,
    /// The table lists no completion queues. Lasts.
    NoCompletionQueues,
    /// The MAC address is zero. Lasts.
    NoAddress,
    /// Every register reads as all ones. Lasts.
    AllOnes,
    /// No interrupts are raised. Lasts.
    NoInterrupts,
    /// Commands of this number never complete. Lasts.
    NeverDone(u32),
    /// The next command of this number fails with this error.
    Fails(u32, u32),
    /// The next command's result has the previous lap's colour, so the driver sees no result.
    ResultColour,
    /// Open and reset never complete. Lasts.
    StaysInProgress,
    /// Stopped queues report that they run. Lasts.
    StuckRunning,
    /// The port sends nothing until a reset.
    NeverCompletes,
    /// The next transmit completion names a descriptor this far after the right one.
    CompletesAnother(u16),
    /// The next transmit completion is written twice.
    CompletesTwice,
    /// The next transmit completion has the previous lap's colour.
    CompletionColour,
    /// The next transmit completion names this queue.
    CompletesQueue(u16),
    /// The next frame's completion names a buffer this far after the right one.
    ReceivesAt(u16),
    /// The next frame is completed twice.
    ReceivesTwice,
    /// The next frame's completion has the previous lap's colour.
    ReceiveColour,
    /// The next frame is completed with this length (14 bits).
    Length(u16),
    /// The next frame is completed with an error.
    Damaged,
    /// The next frame's completion has no end-of-packet bit.
    NoEnd,
    /// The receive queue of this number stops with an error.
    QueueError(usize),
    /// The firmware reports a fatal error until a reset.
    Fatal,
    /// The checksum of the notify area is wrong. Lasts.
    NotifySum,
}

impl Fault {
    /// Faults that the command line offers, with their names.
    pub const NAMED: [(&str, Fault); 3] = [
        ("no-interrupts", Fault::NoInterrupts),
        ("never-opens", Fault::StaysInProgress),
        ("no-table", Fault::NoTable),
    ];

    /// Whether the fault stays until `repair`.
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
