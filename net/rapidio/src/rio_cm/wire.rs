//! Messages of channels (Linux `drivers/rapidio/rio_cm.c`): a header of 20 bytes, big-endian, and data. What is behind
//! the length in a message is old content of the sender's memory, and is never looked at.

use drivers::rapidio::{Destination, Mailbox};

/// Bytes of the header.
pub const HEADER: usize = 20;
/// Bytes of a message at most, header included.
pub const MOST: usize = 4096;

/// Message of a channel; the other type, 0xAA, is thrown away by Linux too.
const CHANNEL: u8 = 0x55;

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A channel wants to be connected to a listening one.
    ConnectRequest,
    /// It is connected; the source is the channel that was made for it.
    ConnectAcknowledge,
    /// The channel is closed; there is no answer.
    Close,
    /// Data.
    Data,
    /// Between our own: how many messages may be sent, and nothing else.
    Credit,
    /// Between our own: nothing more is sent.
    Finish,
}

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Id of the sender.
    pub from: u32,
    /// Id of the receiver. A connecting Linux leaves 0 here in data and close: not to be checked.
    pub to: u32,
    /// Mailbox of the sender, and of the receiver.
    pub mailboxes: [u8; 2],
    /// What it is for.
    pub operation: Operation,
    /// Channel of the receiver.
    pub to_channel: u16,
    /// Channel of the sender.
    pub from_channel: u16,
    /// Of data: bytes of header and data. Of `Finish`: messages sent in all, modulo 2^16. Else 0.
    pub len: u16,
    /// Between our own (`super::flow`): of a request and its acknowledgement that it is so, else how many messages the
    /// receiver may send in all, modulo 2^16. Linux sends 0, or of data whatever its user left there, and does not read it.
    pub word: u16,
}

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than a header.
    Short,
    /// Of another type than channels'.
    Type(u8),
    /// An operation that there is none of.
    Operation(u8),
    /// Data whose length is less than its header, or more than what has arrived.
    Length(u16),
}

impl Header {
    /// One that we send.
    pub fn new(
        from: Destination,
        to: Destination,
        mailbox: Mailbox,
        operation: Operation,
        to_channel: u16,
        from_channel: u16,
    ) -> Header {
        let mailboxes = [mailbox.number(); 2];
        let (from, to) = (from.into(), to.into());
        Header { from, to, mailboxes, operation, to_channel, from_channel, len: 0, word: 0 }
    }

    /// Reads the header of a message that has arrived.
    pub fn read(message: &[u8]) -> Result<Header, Malformed> {
        Header::parse(message.first_chunk::<HEADER>().ok_or(Malformed::Short)?, message.len())
    }

    /// The same, of a message of `length` bytes that begins with these.
    pub fn parse(bytes: &[u8; HEADER], length: usize) -> Result<Header, Malformed> {
        let [a, b, c, d, e, f, g, h, source_box, target_box, kind, operation, rest @ ..] = *bytes;
        if kind != CHANNEL {
            return Err(Malformed::Type(kind));
        }
        let operation = match operation {
            0 => Operation::ConnectRequest,
            1 => Operation::ConnectAcknowledge,
            2 => Operation::Close,
            3 => Operation::Data,
            0x10 => Operation::Credit,
            0x11 => Operation::Finish,
            other => return Err(Malformed::Operation(other)),
        };
        let word = |at: usize| u16::from_be_bytes([rest[at], rest[at + 1]]);
        let len = word(4);
        let is_whole = (HEADER..=length.min(MOST)).contains(&usize::from(len));
        if operation == Operation::Data && !is_whole {
            return Err(Malformed::Length(len));
        }
        Ok(Header {
            from: u32::from_be_bytes([a, b, c, d]),
            to: u32::from_be_bytes([e, f, g, h]),
            mailboxes: [source_box, target_box],
            operation,
            to_channel: word(0),
            from_channel: word(2),
            len,
            word: word(6),
        })
    }

    /// As it goes over the wire.
    pub fn bytes(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let operation = match self.operation {
            Operation::ConnectRequest => 0,
            Operation::ConnectAcknowledge => 1,
            Operation::Close => 2,
            Operation::Data => 3,
            Operation::Credit => 0x10,
            Operation::Finish => 0x11,
        };
        bytes[0..4].copy_from_slice(&self.from.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.to.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.mailboxes);
        (bytes[10], bytes[11]) = (CHANNEL, operation);
        bytes[12..14].copy_from_slice(&self.to_channel.to_be_bytes());
        bytes[14..16].copy_from_slice(&self.from_channel.to_be_bytes());
        bytes[16..18].copy_from_slice(&self.len.to_be_bytes());
        bytes[18..20].copy_from_slice(&self.word.to_be_bytes());
        bytes
    }
}
