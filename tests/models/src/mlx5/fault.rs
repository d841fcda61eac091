//! Faults of the model.

/// Faults to inject. A fault happens once unless its description says "Lasts".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The firmware never becomes ready. Lasts.
    NeverReady,
    /// The command interface has an unknown revision. Lasts.
    OtherRevision,
    /// Every register reads as all ones, until a function-level reset.
    AllOnes,
    /// Every register reads as all ones, also after a reset. Lasts.
    AllOnesForEver,
    /// No interrupts are raised. Lasts.
    NoInterrupts,
    /// The health counter stands still. Lasts.
    StuckHealth,
    /// The firmware reports a fatal error with this syndrome until a reset.
    Fatal(u8),
    /// Completions have the previous lap's owner bit. Lasts.
    OwnerBit,
    /// Received frames are reported with wrong checksums. Lasts.
    Checksum,
    /// Commands complete this many nanoseconds late. Lasts.
    Late(u64),
    /// Commands complete out of order. Lasts.
    OutOfOrder,
    /// The next command of this number never completes.
    NeverAnswers(u16),
    /// The next command of this number fails with this status.
    Fails(u16, u8),
    /// Until a reset only this many commands of this number succeed, then resources are exhausted. Lasts.
    Few(u16, usize),
    /// The next command of this number has this delivery status.
    Delivers(u16, u8),
    /// A capability is missing. Parameters: type, first bit, width of the field. Lasts.
    Lacks(u16, usize, usize),
    /// The next command that creates an object waits for this many pages, which an event requests.
    AsksForPages(u32),
    /// The next transmit completion names a work request this far after the right one.
    CompletesAnother(u16),
    /// The next received frame's completion names a buffer this far after the right one.
    ReceivesAt(u16),
    /// The next received frame is completed with this length.
    Length(u32),
    /// The next received frame is completed with this opcode.
    Opcode(u8),
    /// The next transmit completion has an error with this syndrome.
    SendFails(u8),
    /// The next received frame is completed with this error syndrome.
    ReceiveFails(u8),
    /// The next completed request of a queue pair fails with this syndrome.
    RequestFails(u8),
    /// The next received message of a queue pair fails with this syndrome.
    MessageFails(u8),
    /// The port sends nothing. Lasts.
    NeverSends,
    /// This send queue, counted from the first, sends nothing until a reset.
    QueueHangs(usize),
    /// The next arriving RoCE packet is lost.
    LosesPacket,
    /// RoCE packets are sent with a wrong invariant CRC. Lasts.
    PacketCrc,
    /// No RoCE packet is acknowledged. Lasts.
    NeverAcknowledges,
}

impl Fault {
    /// Faults that the command line offers, with their names.
    pub const NAMED: [(&str, Fault); 12] = [
        ("never-ready", Fault::NeverReady),
        ("other-revision", Fault::OtherRevision),
        ("no-interrupts", Fault::NoInterrupts),
        ("stuck-health", Fault::StuckHealth),
        ("owner-bit", Fault::OwnerBit),
        ("checksum", Fault::Checksum),
        ("packet-crc", Fault::PacketCrc),
        ("never-acknowledges", Fault::NeverAcknowledges),
        ("all-ones", Fault::AllOnes),
        ("fatal", Fault::Fatal(1)),
        ("gone", Fault::AllOnesForEver),
        ("loses-packet", Fault::LosesPacket),
    ];

    /// The fault with this name. An error lists all names.
    pub fn named(text: &str) -> Result<Fault, String> {
        let known = Fault::NAMED.iter().find(|(name, _)| *name == text);
        let names = || Fault::NAMED.map(|(name, _)| name).join(", ");
        known.map(|(_, fault)| *fault).ok_or_else(|| format!("accepted: {}", names()))
    }

    /// Whether the fault stays until `repair`.
    pub(super) fn lasts(self) -> bool {
        use Fault::*;
        matches!(
            self,
            NeverReady
                | OtherRevision
                | AllOnesForEver
                | NoInterrupts
                | StuckHealth
                | OwnerBit
                | Checksum
                | Late(_)
                | OutOfOrder
                | Lacks(..)
                | NeverSends
                | Few(..)
                | QueueHangs(_)
                | PacketCrc
                | NeverAcknowledges
        )
    }
}
