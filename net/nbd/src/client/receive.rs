//! Receiving: the handshake, then replies, simple or in chunks.

use super::Client;
use crate::connection::{Connection, Expect, Life};
use crate::failure::Failure;
use crate::wire::{self, chunk, errno, u16_at, u32_at, u64_at};
use drivers::hal::Instant;

/// Most chunks of a reply.
const MOST_CHUNKS: u32 = 4096;
/// Longest payload of an error: the text has at most 4096 bytes.
const LONGEST_ERROR: u32 = 4096 + 16;

impl<T: Copy> Client<T> {
    /// Takes bytes that a connection received.
    pub fn receive(&mut self, connection: usize, mut bytes: &[u8], now: Instant) {
        while !bytes.is_empty() {
            let name = &self.name;
            let Some(one) = self.connections.get_mut(connection) else { return };
            let Connection { life, out, .. } = one;
            let result = match life {
                Life::Greeting(_, handshake) => {
                    let export = handshake.receive(&mut bytes, name, out);
                    export.and_then(|export| match export {
                        Some(export) => self.adopt(connection, export, now),
                        None => Ok(()),
                    })
                }
                Life::Ready(_) => self.parse(connection, &mut bytes),
                // Nothing is expected, or the connection is being closed.
                Life::Down(_) | Life::Opening(_) | Life::Leaving(_) => return,
            };
            if let Err(failure) = result {
                return self.fail(connection, failure, now);
            }
        }
    }

    /// Takes the next part of a reply.
    fn parse(&mut self, connection: usize, bytes: &mut &[u8]) -> Result<(), Failure> {
        let Some(one) = self.connections.get_mut(connection) else { return Ok(()) };
        let wanted = match one.expect {
            Expect::Word => 4,
            Expect::Simple => wire::SIMPLE_LENGTH,
            Expect::Chunk => wire::CHUNK_LENGTH,
            Expect::Offset(..) => 8,
            Expect::Hole(..) => 12,
            Expect::Error(..) => 6,
            Expect::Data(slot, at, left, last) => {
                return self.take_data(connection, bytes, (slot, at, left, last));
            }
            Expect::Skip(slot, left, last) => {
                let (taken, rest) = bytes.split_at(left.min(bytes.len()));
                *bytes = rest;
                one.expect = Expect::Skip(slot, left - taken.len(), last);
                return match left == taken.len() {
                    true => self.end_chunk(connection, slot, last),
                    false => Ok(()),
                };
            }
        };
        if !one.gather(bytes, wanted) {
            return Ok(());
        }
        let kept = one.kept;
        if one.expect != Expect::Word {
            one.length = 0;
        }
        match one.expect {
            Expect::Word => {
                one.expect = match u32_at(&kept, 0) {
                    wire::SIMPLE_REPLY => Expect::Simple,
                    wire::STRUCTURED_REPLY if one.structured => Expect::Chunk,
                    wire::STRUCTURED_REPLY => {
                        return Err(Failure::Reply(
                            "a structured reply, without an agreement on them",
                        ));
                    }
                    _ => return Err(Failure::Reply("it does not begin like one")),
                };
                Ok(())
            }
            Expect::Simple => self.simple(connection, &kept),
            Expect::Chunk => self.chunk(connection, &kept),
            Expect::Offset(slot, length, last) => {
                let (at, part) = self.range(slot, u64_at(&kept, 0), length - 8)?;
                self.expect(connection, Expect::Data(slot, at, part, last));
                Ok(())
            }
            Expect::Hole(slot, last) => {
                let (at, part) = self.range(slot, u64_at(&kept, 0), u32_at(&kept, 8))?;
                let active = self.active(slot);
                if let Some(hole) = active.and_then(|active| active.data.slice(at, part)) {
                    hole.fill(0);
                }
                self.end_chunk(connection, slot, last)
            }
            Expect::Error(slot, length, last) => {
                let (number, text) = (u32_at(&kept, 0), u32::from(u16_at(&kept, 4)));
                if number == 0 || text > length - 6 {
                    return Err(Failure::Reply("an error without a number, or with a wrong text"));
                }
                self.note_error(slot, number)?;
                let rest = (length - 6) as usize;
                match rest {
                    0 => self.end_chunk(connection, slot, last),
                    _ => {
                        self.expect(connection, Expect::Skip(slot, rest, last));
                        Ok(())
                    }
                }
            }
            Expect::Data(..) | Expect::Skip(..) => Ok(()),
        }
    }

    fn expect(&mut self, connection: usize, expect: Expect) {
        if let Some(one) = self.connections.get_mut(connection) {
            one.expect = expect;
        }
    }

    /// The request of a cookie, if it was sent completely on this connection.
    fn find(&mut self, connection: usize, cookie: u64) -> Result<u16, Failure> {
        let slot = cookie as u16;
        let active = self.active(slot).filter(|active| active.cookie == cookie);
        let active = active.filter(|active| active.on == Some(connection as u16));
        match active {
            Some(active) if active.is_sent => Ok(slot),
            Some(_) => Err(Failure::Reply("it answers a request that was not sent completely")),
            None => Err(Failure::Reply("its cookie is not that of a request in flight")),
        }
    }

    /// Records the first error of a reply.
    fn note_error(&mut self, slot: u16, number: u32) -> Result<(), Failure> {
        if number == errno::ESHUTDOWN {
            return Err(Failure::ShuttingDown);
        }
        if let Some(active) = self.active(slot) {
            active.error.get_or_insert(number);
        }
        Ok(())
    }

    /// Handles a simple reply.
    fn simple(&mut self, connection: usize, head: &[u8]) -> Result<(), Failure> {
        let (number, slot) = (u32_at(head, 4), self.find(connection, u64_at(head, 8))?);
        let structured = self.connections.get(connection).is_some_and(|one| one.structured);
        let Some(active) = self.active(slot) else { return Ok(()) };
        if active.receives_data() && structured {
            return Err(Failure::Reply(
                "a simple reply to a read, after structured ones were agreed on",
            ));
        }
        if active.chunks > 0 {
            return Err(Failure::Reply("a simple reply behind chunks of a structured one"));
        }
        if number == 0 && active.receives_data() {
            let (at, part) = (active.done, active.part);
            active.coverage.add(0, part).map_err(Failure::Reply)?;
            self.expect(connection, Expect::Data(slot, at, part as usize, true));
            return Ok(());
        }
        if number != 0 {
            self.note_error(slot, number)?;
        }
        self.end_chunk(connection, slot, true)
    }

    /// Handles the header of a chunk.
    fn chunk(&mut self, connection: usize, head: &[u8]) -> Result<(), Failure> {
        let (flags, kind, length) = (u16_at(head, 4), u16_at(head, 6), u32_at(head, 16));
        let last = flags & chunk::DONE != 0;
        let slot = self.find(connection, u64_at(head, 8))?;
        let Some(active) = self.active(slot) else { return Ok(()) };
        active.chunks += 1;
        if active.chunks > MOST_CHUNKS {
            return Err(Failure::Reply("it has too many chunks"));
        }
        let (reads, part) = (active.receives_data(), active.part);
        let expect = match kind {
            chunk::NONE if length == 0 && last => return self.end_chunk(connection, slot, true),
            chunk::NONE => {
                return Err(Failure::Reply("an empty chunk that is not empty or not the last"));
            }
            chunk::DATA | chunk::HOLE if !reads => {
                return Err(Failure::Reply("data for a request that is not a read"));
            }
            chunk::DATA if length <= 8 || length - 8 > part => {
                return Err(Failure::Reply("a chunk with no data, or more than was asked for"));
            }
            chunk::DATA => Expect::Offset(slot, length, last),
            chunk::HOLE if length != 12 => return Err(Failure::Reply("a hole of a wrong length")),
            chunk::HOLE => Expect::Hole(slot, last),
            _ if kind & chunk::ERROR == 0 => {
                return Err(Failure::Reply("a chunk of an unknown type"));
            }
            _ if !(6..=LONGEST_ERROR).contains(&length) => {
                return Err(Failure::Reply("an error of a wrong length"));
            }
            _ => Expect::Error(slot, length, last),
        };
        self.expect(connection, expect);
        Ok(())
    }

    /// Checks the range of a chunk, and marks it as arrived. Returns its place in the window, and its length.
    fn range(&mut self, slot: u16, offset: u64, length: u32) -> Result<(usize, usize), Failure> {
        let wrong = Failure::Reply("a chunk outside of what was asked for");
        let Some(active) = self.active(slot) else { return Err(wrong) };
        let start = offset.checked_sub(active.offset + active.done as u64).ok_or(wrong)?;
        let end = start.checked_add(length.into()).ok_or(wrong)?;
        if length == 0 || end > u64::from(active.part) {
            return Err(wrong);
        }
        active.coverage.add(start as u32, end as u32).map_err(Failure::Reply)?;
        Ok((active.done + start as usize, length as usize))
    }

    /// Copies data to the window of a request.
    fn take_data(
        &mut self,
        connection: usize,
        bytes: &mut &[u8],
        (slot, at, left, last): (u16, usize, usize, bool),
    ) -> Result<(), Failure> {
        let (taken, rest) = bytes.split_at(left.min(bytes.len()));
        *bytes = rest;
        if let Some(active) = self.active(slot) {
            let written = active.data.write(at, taken);
            written.map_err(|_| Failure::Reply("data outside of the request's memory"))?;
        }
        if taken.len() == left {
            return self.end_chunk(connection, slot, last);
        }
        self.expect(connection, Expect::Data(slot, at + taken.len(), left - taken.len(), last));
        Ok(())
    }

    /// The end of a chunk or of a simple reply.
    fn end_chunk(&mut self, connection: usize, slot: u16, last: bool) -> Result<(), Failure> {
        let Some(one) = self.connections.get_mut(connection) else { return Ok(()) };
        (one.expect, one.length) = (Expect::Word, 0);
        if !last {
            return Ok(());
        }
        let Some(active) = self.active(slot) else { return Ok(()) };
        let is_short = active.receives_data() && !active.coverage.is_whole(active.part);
        if active.error.is_none() && is_short {
            return Err(Failure::Reply("a read ended before all of its data"));
        }
        active.on = None;
        if let Some(one) = self.connections.get_mut(connection) {
            one.in_flight -= 1;
        }
        self.end_step(slot);
        Ok(())
    }
}
