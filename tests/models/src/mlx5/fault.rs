//! What the model does wrong.

/// What the model does wrong, on demand. What is not said to last happens once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The firmware never comes up. Lasts.
    NeverReady,
    /// The revision of the command interface is another. Lasts.
    OtherRevision,
    /// Every register reads as all ones, until a function-level reset.
    AllOnes,
    /// The same, whatever is done. Lasts.
    AllOnesForEver,
    /// No interrupts are raised. Lasts.
    NoInterrupts,
    /// The health counter stands still. Lasts.
    StuckHealth,
    /// The firmware says that it has failed with this syndrome, until a reset.
    Fatal(u8),
    /// Completions have the owner bit of the lap before. Lasts.
    OwnerBit,
    /// Checksums of received frames are wrong. Lasts.
    Checksum,
    /// Commands are answered so many nanoseconds late. Lasts.
    Late(u64),
    /// Commands are answered in another order. Lasts.
    OutOfOrder,
    /// The next command of this number is never answered.
    NeverAnswers(u16),
    /// The next command of this number fails with this status.
    Fails(u16, u8),
    /// Of the commands of this number so many succeed until a reset: there is no more of what they make. Lasts.
    Few(u16, usize),
    /// The next command of this number is delivered with this status.
    Delivers(u16, u8),
    /// It is missing in general capabilities: a field of so many bits at this bit. Lasts.
    Lacks(u16, usize, usize),
    /// The next command that makes an object waits for so many pages, for which an event asks.
    AsksForPages(u32),
    /// The next completion of the queue names a work request so much further on.
    CompletesAnother(u16),
    /// The completion of the next received frame names a buffer so much further on.
    ReceivesAt(u16),
    /// The next received frame is completed with this length.
    Length(u32),
    /// The next received frame is completed with this opcode.
    Opcode(u8),
    /// The next frame to be sent fails with this syndrome.
    SendFails(u8),
    /// The next received frame fails with this syndrome.
    ReceiveFails(u8),
    /// The next request of a queue pair that is done has failed with this syndrome.
    RequestFails(u8),
    /// The next message that a queue pair receives fails with this syndrome.
    MessageFails(u8),
    /// Nothing is sent any more. Lasts.
    NeverSends,
    /// The send queue that was made that many after the first sends nothing more, until a reset.
    QueueHangs(usize),
    /// The next RoCE packet that arrives is lost.
    LosesPacket,
    /// The invariant CRC of RoCE packets is wrong. Lasts.
    PacketCrc,
    /// No RoCE packet is acknowledged. Lasts.
    NeverAcknowledges,
}

impl Fault {
    /// Those that a user can ask for, with their names.
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

    /// That of a name. An error says which there are.
    pub fn named(text: &str) -> Result<Fault, String> {
        let known = Fault::NAMED.iter().find(|(name, _)| *name == text);
        let names = || Fault::NAMED.map(|(name, _)| name).join(", ");
        known.map(|(_, fault)| *fault).ok_or_else(|| format!("accepted: {}", names()))
    }

    /// Whether it stays until it is taken back.
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
