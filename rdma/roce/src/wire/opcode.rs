//! Supported opcodes of the base transport header (vol. 1, table 38): reliable connection without FLUSH and ATOMIC
//! WRITE, and unreliable datagram. UC, RD and XRC are not supported.

use super::Error;
use core::fmt;

/// Transport service, the upper three bits of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connected.
    Rc,
    /// Unreliable datagram.
    Ud,
}

/// Kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Request: SEND.
    Send,
    /// Request: RDMA WRITE.
    Write,
    /// Request: RDMA READ.
    Read,
    /// Request: compare-and-swap or fetch-and-add.
    Atomic,
    /// Answer to RDMA READ.
    ReadResponse,
    /// ACK or NAK.
    Acknowledge,
    /// Answer to an atomic.
    AtomicAcknowledge,
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// An opcode.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Opcode { $($(#[$doc])* $name = $value,)* }

        impl Opcode {
            /// All supported opcodes.
            pub const ALL: &[Opcode] = &[$(Opcode::$name,)*];

            /// From the byte on the wire.
            pub const fn from_byte(byte: u8) -> Result<Self, Error> {
                Ok(match byte { $($value => Opcode::$name,)* _ => return Err(Error::Opcode) })
            }
        }

        impl fmt::Display for Opcode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Opcode::$name => $text,)* })
            }
        }
    };
}

opcodes! {
    /// SEND, first of several packets.
    SendFirst = 0x00, "SEND first";
    /// SEND, neither first nor last.
    SendMiddle = 0x01, "SEND middle";
    /// SEND, last.
    SendLast = 0x02, "SEND last";
    /// SEND, last, with immediate.
    SendLastImmediate = 0x03, "SEND last imm";
    /// SEND of one packet.
    SendOnly = 0x04, "SEND only";
    /// SEND of one packet, with immediate.
    SendOnlyImmediate = 0x05, "SEND only imm";
    /// RDMA WRITE, first.
    WriteFirst = 0x06, "WRITE first";
    /// RDMA WRITE, neither first nor last.
    WriteMiddle = 0x07, "WRITE middle";
    /// RDMA WRITE, last.
    WriteLast = 0x08, "WRITE last";
    /// RDMA WRITE, last, with immediate.
    WriteLastImmediate = 0x09, "WRITE last imm";
    /// RDMA WRITE of one packet.
    WriteOnly = 0x0a, "WRITE only";
    /// RDMA WRITE of one packet, with immediate.
    WriteOnlyImmediate = 0x0b, "WRITE only imm";
    /// RDMA READ request.
    ReadRequest = 0x0c, "READ request";
    /// RDMA READ response, first.
    ReadResponseFirst = 0x0d, "READ response first";
    /// RDMA READ response, neither first nor last.
    ReadResponseMiddle = 0x0e, "READ response middle";
    /// RDMA READ response, last.
    ReadResponseLast = 0x0f, "READ response last";
    /// RDMA READ response of one packet.
    ReadResponseOnly = 0x10, "READ response only";
    /// ACK or NAK.
    Acknowledge = 0x11, "ACK";
    /// Answer to an atomic.
    AtomicAcknowledge = 0x12, "ATOMIC ACK";
    /// Compare-and-swap.
    CompareSwap = 0x13, "CMP_SWAP";
    /// Fetch-and-add.
    FetchAdd = 0x14, "FETCH_ADD";
    /// SEND, last, with invalidate.
    SendLastInvalidate = 0x16, "SEND last inv";
    /// SEND of one packet, with invalidate.
    SendOnlyInvalidate = 0x17, "SEND only inv";
    /// Datagram.
    UdSendOnly = 0x64, "UD SEND only";
    /// Datagram with immediate.
    UdSendOnlyImmediate = 0x65, "UD SEND only imm";
}

impl Opcode {
    /// Transport service.
    #[inline]
    pub const fn service(self) -> Service {
        if self as u8 >> 5 == 3 { Service::Ud } else { Service::Rc }
    }

    /// Kind of the packet.
    #[inline]
    pub const fn class(self) -> Class {
        CLASSES[self as usize]
    }

    /// Whether it is sent by a requester (otherwise by a responder).
    #[inline]
    pub const fn is_request(self) -> bool {
        matches!(self.class(), Class::Send | Class::Write | Class::Read | Class::Atomic)
    }

    /// Whether the packet begins a message.
    #[inline]
    pub const fn begins(self) -> bool {
        TRAITS[self as usize] & BEGINS != 0
    }

    /// Whether the packet ends a message.
    #[inline]
    pub const fn ends(self) -> bool {
        TRAITS[self as usize] & ENDS != 0
    }

    /// Whether it carries immediate data.
    #[inline]
    pub const fn has_immediate(self) -> bool {
        TRAITS[self as usize] & IMMEDIATE != 0
    }

    /// Whether it carries a key to invalidate.
    #[inline]
    pub const fn has_invalidate(self) -> bool {
        matches!(self, Opcode::SendLastInvalidate | Opcode::SendOnlyInvalidate)
    }

    /// Length of the extended headers that follow the BTH, in bytes.
    #[inline]
    pub const fn extended_len(self) -> usize {
        EXTENDED_LENS[self as usize] as usize
    }

    const fn find_traits(self) -> u8 {
        let begins = if self.find_begins() { BEGINS } else { 0 };
        let ends = if self.find_ends() { ENDS } else { 0 };
        begins | ends | if self.find_immediate() { IMMEDIATE } else { 0 }
    }

    const fn find_begins(self) -> bool {
        use Opcode::*;
        !matches!(
            self,
            SendMiddle
                | SendLast
                | SendLastImmediate
                | SendLastInvalidate
                | WriteMiddle
                | WriteLast
                | WriteLastImmediate
                | ReadResponseMiddle
                | ReadResponseLast
        )
    }

    const fn find_ends(self) -> bool {
        use Opcode::*;
        !matches!(
            self,
            SendFirst
                | SendMiddle
                | WriteFirst
                | WriteMiddle
                | ReadResponseFirst
                | ReadResponseMiddle
        )
    }

    const fn find_immediate(self) -> bool {
        use Opcode::*;
        matches!(
            self,
            SendLastImmediate
                | SendOnlyImmediate
                | WriteLastImmediate
                | WriteOnlyImmediate
                | UdSendOnlyImmediate
        )
    }

    const fn find_class(self) -> Class {
        use Opcode::*;
        match self {
            SendFirst | SendMiddle | SendLast | SendLastImmediate | SendOnly
            | SendOnlyImmediate | SendLastInvalidate | SendOnlyInvalidate | UdSendOnly
            | UdSendOnlyImmediate => Class::Send,
            WriteFirst | WriteMiddle | WriteLast | WriteLastImmediate | WriteOnly
            | WriteOnlyImmediate => Class::Write,
            ReadRequest => Class::Read,
            CompareSwap | FetchAdd => Class::Atomic,
            ReadResponseFirst | ReadResponseMiddle | ReadResponseLast | ReadResponseOnly => {
                Class::ReadResponse
            }
            Acknowledge => Class::Acknowledge,
            AtomicAcknowledge => Class::AtomicAcknowledge,
        }
    }

    const fn find_extended_len(self) -> usize {
        use Opcode::*;
        match self {
            SendFirst | SendMiddle | SendLast | SendOnly | WriteMiddle | WriteLast
            | ReadResponseMiddle => 0,
            SendLastImmediate | SendOnlyImmediate | SendLastInvalidate | SendOnlyInvalidate
            | WriteLastImmediate | ReadResponseFirst | ReadResponseLast | ReadResponseOnly
            | Acknowledge => 4,
            UdSendOnly => 8,
            AtomicAcknowledge | UdSendOnlyImmediate => 12,
            WriteFirst | WriteOnly | ReadRequest => 16,
            WriteOnlyImmediate => 20,
            CompareSwap | FetchAdd => 28,
        }
    }
}

/// One more than the highest opcode.
const END: usize = Opcode::UdSendOnlyImmediate as usize + 1;

// Tables, because each packet needs several of these properties.
const CLASSES: [Class; END] = {
    let mut classes = [Class::Send; END];
    let mut at = 0;
    while at < Opcode::ALL.len() {
        classes[Opcode::ALL[at] as usize] = Opcode::ALL[at].find_class();
        at += 1;
    }
    classes
};
const BEGINS: u8 = 1;
const ENDS: u8 = 2;
const IMMEDIATE: u8 = 4;
const TRAITS: [u8; END] = {
    let mut traits = [0; END];
    let mut at = 0;
    while at < Opcode::ALL.len() {
        traits[Opcode::ALL[at] as usize] = Opcode::ALL[at].find_traits();
        at += 1;
    }
    traits
};
const EXTENDED_LENS: [u8; END] = {
    let mut lens = [0; END];
    let mut at = 0;
    while at < Opcode::ALL.len() {
        lens[Opcode::ALL[at] as usize] = Opcode::ALL[at].find_extended_len() as u8;
        at += 1;
    }
    lens
};
