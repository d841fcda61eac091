//! Wire format of channel messages (Linux `drivers/rapidio/rio_cm.c`): a header of 20 bytes, big-endian, and data.
//! Bytes beyond the length are stale contents of the sender's memory, and are never read.

use drivers::rapidio::{Destination, Mailbox};

/// Bytes of the header.
pub const HEADER: usize = 20;
/// Maximum length of a message in bytes, header included.
pub const MOST: usize = 4096;

/// Message type of channels. The other type, 0xAA, is discarded, as in Linux.
const CHANNEL: u8 = 0x55;

/// Operation of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Requests a connection to a listening channel.
    ConnectRequest,
    /// Accepts the request; the source is the new channel.
    ConnectAcknowledge,
    /// Closes the channel; it is not answered.
    Close,
    /// Data.
    Data,
    /// Flow control: a credit without data.
    Credit,
    /// Flow control: the sender sends no more data.
    Finish,
}

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Id of the sender.
    pub from: u32,
    /// Id of the receiver. Do not check it: the connecting side of Linux sends 0 in data and close.
    pub to: u32,
    /// Mailbox of the sender, and of the receiver.
    pub mailboxes: [u8; 2],
    /// Operation.
    pub operation: Operation,
    /// Channel of the receiver.
    pub to_channel: u16,
    /// Channel of the sender.
    pub from_channel: u16,
    /// Data: bytes of header and data. `Finish`: total of messages sent, modulo 2^16. Otherwise 0.
    pub len: u16,
    /// Flow control (`super::flow`): the offer in a request and its acknowledgement; otherwise the credit, the total of
    /// messages that the receiver may send, modulo 2^16. Linux does not read it. It sends 0, or in data messages
    /// uninitialized bytes of its user.
    pub word: u16,
}

/// Why a message is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than a header.
    Short,
    /// Not of the channel message type.
    Type(u8),
    /// Unknown operation.
    Operation(u8),
    /// Data whose length is less than the header, or more than the message.
    Length(u16),
}

impl Header {
    /// A header of an outgoing message.
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

    /// Parses the header of a received message.
    pub fn read(message: &[u8]) -> Result<Header, Malformed> {
        Header::parse(message.first_chunk::<HEADER>().ok_or(Malformed::Short)?, message.len())
    }

    /// Parses the header `bytes` of a message of `length` bytes.
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

    /// The header in wire format.
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
