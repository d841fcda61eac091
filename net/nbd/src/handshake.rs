//! The client's half of the fixed newstyle handshake: structured replies, then `NBD_OPT_GO`.

use crate::export::Export;
use crate::failure::{Failure, Text};
use crate::wire::{self, info, option, reply, u16_at, u32_at, u64_at};
use alloc::vec::Vec;

/// Longest data of a reply. Texts of servers are shorter.
const LONGEST: usize = 64 << 10;
/// Most replies of a server to all options.
const MOST_REPLIES: u32 = 64;
/// Bytes of a reply that are kept.
const KEPT: usize = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    ReplyHeader,
    /// Type of the reply, and bytes of data that are missing.
    ReplyData(u32, usize),
}

/// A handshake.
#[derive(Debug)]
pub(crate) struct Handshake {
    stage: Stage,
    kept: [u8; KEPT],
    length: usize,
    /// The option that the server replies to.
    option: u32,
    replies: u32,
    structured: bool,
    /// Size and flags.
    export: Option<(u64, u16)>,
    blocks: Option<[u32; 3]>,
}

impl Handshake {
    pub fn new() -> Handshake {
        Handshake {
            stage: Stage::Greeting,
            kept: [0; KEPT],
            length: 0,
            option: 0,
            replies: 0,
            structured: false,
            export: None,
            blocks: None,
        }
    }

    /// Takes bytes of the server, and appends answers to `out`. Returns the export once the handshake is complete; the
    /// rest of `bytes` belongs to transmission.
    pub fn receive(
        &mut self,
        bytes: &mut &[u8],
        name: &str,
        out: &mut Vec<u8>,
    ) -> Result<Option<Export>, Failure> {
        while !bytes.is_empty() {
            let wanted = match self.stage {
                Stage::Greeting => wire::GREETING_LENGTH - self.length,
                Stage::ReplyHeader => wire::OPTION_REPLY_LENGTH - self.length,
                Stage::ReplyData(_, left) => left,
            };
            let (taken, rest) = bytes.split_at(wanted.min(bytes.len()));
            *bytes = rest;
            self.keep(taken);
            match self.stage {
                _ if taken.len() < wanted && !matches!(self.stage, Stage::ReplyData(..)) => {
                    return Ok(None);
                }
                Stage::ReplyData(kind, left) if taken.len() < left => {
                    self.stage = Stage::ReplyData(kind, left - taken.len());
                    return Ok(None);
                }
                Stage::Greeting => self.greet(out)?,
                Stage::ReplyHeader => {
                    let (kind, length) = self.header()?;
                    self.stage = Stage::ReplyData(kind, length);
                    self.length = 0;
                    if length == 0
                        && let Some(export) = self.reply(kind, name, out)?
                    {
                        return Ok(Some(export));
                    }
                }
                Stage::ReplyData(kind, _) => {
                    if let Some(export) = self.reply(kind, name, out)? {
                        return Ok(Some(export));
                    }
                }
            }
        }
        Ok(None)
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = self.kept.get_mut(self.length..).unwrap_or_default();
        let kept = bytes.len().min(room.len());
        room[..kept].copy_from_slice(&bytes[..kept]);
        self.length += kept;
    }

    /// Checks the greeting, and asks for structured replies.
    fn greet(&mut self, out: &mut Vec<u8>) -> Result<(), Failure> {
        if u64_at(&self.kept, 0) != wire::GREETING {
            return Err(Failure::NotNbd);
        }
        let flags = u16_at(&self.kept, 16);
        if u64_at(&self.kept, 8) != wire::OPTION || flags & wire::FIXED_NEWSTYLE == 0 {
            return Err(Failure::OldStyle);
        }
        let ours = flags & (wire::FIXED_NEWSTYLE | wire::NO_ZEROES);
        out.extend_from_slice(&u32::from(ours).to_be_bytes());
        self.ask(option::STRUCTURED_REPLY, &[], out);
        Ok(())
    }

    fn ask(&mut self, option: u32, data: &[&[u8]], out: &mut Vec<u8>) {
        let length: usize = data.iter().map(|part| part.len()).sum();
        out.extend_from_slice(&wire::OPTION.to_be_bytes());
        out.extend_from_slice(&option.to_be_bytes());
        out.extend_from_slice(&(length as u32).to_be_bytes());
        data.iter().for_each(|part| out.extend_from_slice(part));
        (self.option, self.stage, self.length) = (option, Stage::ReplyHeader, 0);
    }

    /// Checks the header of a reply. Returns its type, and the length of its data.
    fn header(&mut self) -> Result<(u32, usize), Failure> {
        if u64_at(&self.kept, 0) != wire::OPTION_REPLY {
            return Err(Failure::Handshake("a reply without its first word"));
        }
        if u32_at(&self.kept, 8) != self.option {
            return Err(Failure::Handshake("a reply to another option"));
        }
        self.replies += 1;
        if self.replies > MOST_REPLIES {
            return Err(Failure::Handshake("too many replies"));
        }
        let length = u32_at(&self.kept, 16) as usize;
        if length > LONGEST {
            return Err(Failure::Handshake("a reply is longer than 64 KiB"));
        }
        Ok((u32_at(&self.kept, 12), length))
    }

    /// Handles a reply, whose first bytes are kept.
    fn reply(
        &mut self,
        kind: u32,
        name: &str,
        out: &mut Vec<u8>,
    ) -> Result<Option<Export>, Failure> {
        let data = self.kept.get(..self.length).unwrap_or_default();
        let is_error = kind & reply::ERROR != 0;
        match (self.option, kind) {
            (_, reply::TLS_REQUIRED) => return Err(Failure::WantsTls),
            (option::STRUCTURED_REPLY, _) if kind == reply::ACK || is_error => {
                self.structured = kind == reply::ACK;
                let length = (name.len() as u32).to_be_bytes();
                // One item of information: the block sizes.
                let items = [1u16.to_be_bytes(), info::BLOCK_SIZE.to_be_bytes()].concat();
                self.ask(option::GO, &[&length, name.as_bytes(), &items], out);
                return Ok(None);
            }
            (option::GO, reply::INFO) => match (u16_at(data, 0), data.len()) {
                (info::EXPORT, 12) => self.export = Some((u64_at(data, 2), u16_at(data, 10))),
                (info::BLOCK_SIZE, 14) => {
                    self.blocks = Some([u32_at(data, 2), u32_at(data, 6), u32_at(data, 10)]);
                }
                (info::EXPORT | info::BLOCK_SIZE, _) | (_, 0 | 1) => {
                    return Err(Failure::Handshake("information of a wrong length"));
                }
                _ => {}
            },
            (option::GO, reply::ACK) => {
                let (size, flags) =
                    self.export.ok_or(Failure::Handshake("no size of the export"))?;
                return Export::new(size, flags, self.blocks, self.structured).map(Some);
            }
            (option::GO, reply::UNKNOWN_EXPORT) if data.is_empty() => {
                return Err(Failure::NoExport);
            }
            (option::GO, reply::UNSUPPORTED) => return Err(Failure::OldStyle),
            (option::GO, _) if is_error => return Err(Failure::Option(kind, Text::of(data))),
            _ => return Err(Failure::Handshake("a reply of an unknown type")),
        }
        (self.stage, self.length) = (Stage::ReplyHeader, 0);
        Ok(None)
    }
}
