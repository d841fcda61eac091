//! The host's side of a connection: sends capsules, and moves data of commands. For initiators.
//!
//! A command has a window for its data, and an identifier below the depth of the queue. Data of a write that is not in
//! its capsule is sent when the controller asks for it.

use crate::transmit::Transmit;
use crate::wire::{
    CAPSULE, COMMON, CQE, Common, DDGST, DIGEST, Data, Fatal, Fes, HDGST, HEADER_DIGESTS, IC, Kind,
    LAST, Parameters, SHORT, SQE, SUCCESS, data_offset, u16_at, u32_at,
};
use alloc::vec::Vec;
use drivers::hal::{Crc32c, Window};

/// Largest header with its digest that this side sends.
const OWN_HEADER: usize = CAPSULE + DIGEST;

/// Result of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The parameters were exchanged.
    Open,
    /// A completion, with the identifier of a command in flight. `intact`: every data digest was right.
    Completed {
        /// The completion queue entry.
        cqe: [u8; CQE],
        /// Whether all data of the command was intact.
        intact: bool,
        /// Bytes of data that arrived.
        data: usize,
    },
    /// The connection has ended.
    Over,
}

#[derive(Clone, Copy, Debug)]
struct Command {
    window: Window,
    /// Whether the window is to be filled by the controller.
    reads: bool,
    /// Bytes that have arrived, or were asked for.
    at: usize,
    intact: bool,
    /// A PDU of the command is queued: its capsule, or data.
    is_queued: bool,
    /// What is left of an R2T.
    asked: Option<Asked>,
}

/// Data that an R2T asked for and that is not queued yet.
#[derive(Clone, Copy, Debug)]
struct Asked {
    ttag: u16,
    at: usize,
    end: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    Padding { left: usize },
    Data { cid: u16, left: u32 },
    Digest { cid: u16 },
    Over,
}

/// The host's side of a connection.
#[derive(Debug)]
pub struct Connection {
    state: State,
    is_open: bool,
    asked: Parameters,
    /// Alignment for data that the controller sends, as we asked for it.
    alignment: u8,
    max_h2c_data: u32,
    header: [u8; IC + DIGEST],
    have: usize,
    want: usize,
    common: Common,
    crc: Crc32c,
    digest: [u8; DIGEST],
    commands: Vec<Option<Command>>,
    transmit: Transmit<OWN_HEADER>,
    /// Status of the controller's TermReq, if it sent one.
    reported: Option<u16>,
    /// What the controller did wrong.
    fault: Option<Fatal>,
}

impl Connection {
    /// A new connection, which asks for these digests and this alignment, for `depth` commands at a time.
    pub fn new(digests: u8, alignment: u8, depth: usize) -> Self {
        let mut transmit = Transmit::new();
        // A command has one PDU at a time in the queue.
        transmit.reserve(depth + 2);
        let asked = Parameters { version: 0, alignment, digests, limit: 0 };
        transmit.push_plain(&asked.emit(Kind::IcReq));
        let mut commands = Vec::new();
        commands.resize(depth, None);
        Connection {
            state: State::Header,
            is_open: false,
            asked,
            alignment,
            max_h2c_data: 4096,
            header: [0; IC + DIGEST],
            have: 0,
            want: COMMON,
            common: Common { kind: 0, flags: 0, hlen: 0, pdo: 0, plen: 0 },
            crc: transmit.fresh_crc(),
            digest: [0; DIGEST],
            commands,
            transmit,
            reported: None,
            fault: None,
        }
    }

    /// Sends a command. Its data is `window`: `in_capsule` sends it in the capsule, `reads` says that the controller
    /// fills it. The identifier is at offset 2 of the entry. False if it is in use or too large, or the parameters were
    /// not exchanged yet.
    pub fn submit(
        &mut self,
        sqe: &[u8; SQE],
        window: Window,
        reads: bool,
        in_capsule: bool,
    ) -> bool {
        let cid = u16_at(sqe, 2);
        if !self.is_open {
            return false;
        }
        let Some(place @ None) = self.commands.get_mut(usize::from(cid)) else { return false };
        let at = if in_capsule { window.len() } else { 0 };
        *place = Some(Command { window, reads, at, intact: true, is_queued: true, asked: None });
        let data = if in_capsule { window } else { Window::empty() };
        self.transmit.push(Kind::CapsuleCmd, 0, sqe, data, Some(cid));
        true
    }

    /// Whether the parameters were exchanged.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether the connection has ended.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Status of the controller's TermReq, if it sent one.
    pub fn reported(&self) -> Option<u16> {
        self.reported
    }

    /// What the controller did wrong, if that ended the connection.
    pub fn fault(&self) -> Option<Fatal> {
        self.fault
    }

    /// Whether there are bytes to send.
    pub fn wants_transmit(&self) -> bool {
        !self.transmit.is_empty()
    }

    /// Bytes to send. Returns their number.
    pub fn transmit(&mut self, into: &mut [u8]) -> usize {
        let mut filled = 0;
        while let Some(room) = into.get_mut(filled..) {
            filled += self.transmit.fill(room);
            let mut has_more = false;
            while let Some(cid) = self.transmit.next_sent() {
                has_more |= self.continue_write(cid);
            }
            if !has_more {
                break;
            }
        }
        filled
    }

    /// Handles received bytes. Returns the number that it took, which is smaller than their number only with an event.
    pub fn receive(&mut self, bytes: &[u8]) -> (usize, Option<Event>) {
        let mut taken = 0;
        loop {
            let rest = bytes.get(taken..).unwrap_or_default();
            let (used, event) = match self.state {
                State::Over => return (bytes.len(), None),
                State::Header => self.receive_header(rest),
                State::Padding { left } => self.skip_padding(rest, left),
                State::Data { cid, left } => self.receive_data(rest, cid, left),
                State::Digest { cid } => self.receive_digest(rest, cid),
            };
            taken += used;
            if event.is_some() || used == 0 {
                return (taken, event);
            }
        }
    }

    fn fail(&mut self, fatal: Fatal) -> Option<Event> {
        let header = self.header.get(..self.have).unwrap_or_default();
        self.transmit.terminate(Kind::H2cTermReq, fatal, header);
        self.fault = Some(fatal);
        self.state = State::Over;
        Some(Event::Over)
    }

    fn receive_header(&mut self, bytes: &[u8]) -> (usize, Option<Event>) {
        let n = bytes.len().min(self.want.saturating_sub(self.have));
        if let Some(place) = self.header.get_mut(self.have..self.have + n) {
            place.copy_from_slice(&bytes[..n]);
        }
        self.have += n;
        if self.have < self.want {
            return (n, None);
        }
        let checked = match self.want {
            COMMON => self.check_common().map(|()| None),
            _ => self.finish_header(),
        };
        let event = checked.unwrap_or_else(|fatal| self.fail(fatal));
        (n, event)
    }

    fn check_common(&mut self) -> Result<(), Fatal> {
        let Some(common) = self.header.first_chunk().map(Common::parse) else {
            return Err(Fatal::SEQUENCE);
        };
        self.common = common;
        let kind = Kind::of(common.kind).ok_or(Fatal::field(0))?;
        let expected = match self.is_open {
            false => matches!(kind, Kind::IcResp | Kind::C2hTermReq),
            true => {
                matches!(kind, Kind::CapsuleResp | Kind::C2hData | Kind::R2t | Kind::C2hTermReq)
            }
        };
        if !expected {
            return Err(Fatal::SEQUENCE);
        }
        let header = kind.header_len();
        if usize::from(common.hlen) != header {
            return Err(Fatal::field(2));
        }
        let header_digest = self.transmit.header_digest && kind.may_have_digests();
        if header_digest != (common.flags & HDGST != 0) {
            return Err(Fatal::field(1));
        }
        self.want = header + if header_digest { DIGEST } else { 0 };
        let plen = common.plen as usize;
        let has_length = match kind {
            Kind::C2hData | Kind::C2hTermReq => plen >= self.want,
            _ => plen == self.want,
        };
        if has_length { Ok(()) } else { Err(Fatal::field(4)) }
    }

    fn finish_header(&mut self) -> Result<Option<Event>, Fatal> {
        let kind = Kind::of(self.common.kind).ok_or(Fatal::field(0))?;
        if self.common.flags & HDGST != 0 {
            let (covered, digest) = self.header.split_at(kind.header_len());
            let mut crc = self.transmit.fresh_crc();
            crc.update(covered);
            let found = u32_at(digest, 0);
            if crc.finish() != found {
                return Err(Fatal { status: Fes::HeaderDigest, info: found });
            }
        }
        match kind {
            Kind::IcResp => self.open().map(Some),
            Kind::CapsuleResp => {
                let mut cqe = [0; CQE];
                cqe.copy_from_slice(&self.header[COMMON..SHORT]);
                self.next_pdu();
                self.complete(cqe).map(Some)
            }
            Kind::C2hData => self.begin_read().map(|()| None),
            Kind::R2t => self.answer_r2t().map(|()| None),
            _ => {
                self.reported = Some(u16_at(&self.header, 8));
                self.state = State::Over;
                Ok(Some(Event::Over))
            }
        }
    }

    fn open(&mut self) -> Result<Event, Fatal> {
        let Some(pdu) = self.header.first_chunk() else { return Err(Fatal::SEQUENCE) };
        let given = Parameters::parse(pdu);
        let is_valid = given.version == 0
            && given.alignment <= 31
            && given.digests & !self.asked.digests == 0
            && given.limit >= 4096
            && given.limit.is_multiple_of(4);
        if !is_valid {
            return Err(Fatal { status: Fes::Unsupported, info: 8 });
        }
        self.transmit.header_digest = given.digests & HEADER_DIGESTS != 0;
        self.transmit.data_digest = given.digests & !HEADER_DIGESTS != 0;
        self.transmit.alignment = given.alignment;
        self.max_h2c_data = given.limit;
        self.is_open = true;
        self.next_pdu();
        Ok(Event::Open)
    }

    fn complete(&mut self, cqe: [u8; CQE]) -> Result<Event, Fatal> {
        let cid = u16_at(&cqe, 12);
        let place = self.commands.get_mut(usize::from(cid)).ok_or(Fatal::field(20))?;
        // The memory of a completed command belongs to the caller again.
        if place.is_some_and(|command| command.is_queued || command.asked.is_some()) {
            return Err(Fatal::SEQUENCE);
        }
        let command = place.take().ok_or(Fatal::field(20))?;
        Ok(Event::Completed { cqe, intact: command.intact, data: command.at })
    }

    fn begin_read(&mut self) -> Result<(), Fatal> {
        let fields = Data::parse(&self.header);
        let start = data_offset(SHORT, self.transmit.header_digest, self.alignment);
        let has_digest = self.common.flags & DDGST != 0;
        let digest = if has_digest { DIGEST } else { 0 };
        if has_digest != self.transmit.data_digest {
            return Err(Fatal::field(1));
        }
        if usize::from(self.common.pdo) != start
            || self.common.plen as usize != start + fields.length as usize + digest
        {
            return Err(Fatal::field(3));
        }
        let command = self.commands.get(usize::from(fields.cid)).copied().flatten();
        let command = command.filter(|command| command.reads && !command.is_queued);
        let command = command.ok_or(Fatal::field(8))?;
        let left = command.window.len() - command.at;
        if fields.offset as usize != command.at
            || fields.length == 0
            || fields.length as usize > left
        {
            return Err(Fatal { status: Fes::Range, info: 12 });
        }
        let padding = start - self.want;
        self.crc = self.transmit.fresh_crc();
        self.state = match padding {
            0 => State::Data { cid: fields.cid, left: fields.length },
            left => State::Padding { left },
        };
        Ok(())
    }

    fn skip_padding(&mut self, bytes: &[u8], left: usize) -> (usize, Option<Event>) {
        let n = bytes.len().min(left);
        self.state = match left - n {
            0 => {
                let fields = Data::parse(&self.header);
                State::Data { cid: fields.cid, left: fields.length }
            }
            left => State::Padding { left },
        };
        (n, None)
    }

    fn receive_data(&mut self, bytes: &[u8], cid: u16, left: u32) -> (usize, Option<Event>) {
        let n = bytes.len().min(left as usize);
        let part = &bytes[..n];
        if let Some(Some(command)) = self.commands.get_mut(usize::from(cid)) {
            // Checked in `begin_read`.
            let _ = command.window.write(command.at, part);
            command.at += n;
        }
        if self.common.flags & DDGST != 0 {
            self.crc.update(part);
        }
        let left = left - n as u32;
        self.state = State::Data { cid, left };
        if left > 0 {
            return (n, None);
        }
        if self.common.flags & DDGST != 0 {
            self.have = 0;
            self.state = State::Digest { cid };
            return (n, None);
        }
        (n, self.end_data(cid))
    }

    fn receive_digest(&mut self, bytes: &[u8], cid: u16) -> (usize, Option<Event>) {
        let n = bytes.len().min(DIGEST - self.have);
        self.digest[self.have..self.have + n].copy_from_slice(&bytes[..n]);
        self.have += n;
        if self.have < DIGEST {
            return (n, None);
        }
        let intact = u32::from_le_bytes(self.digest) == self.crc.finish();
        if let Some(Some(command)) = self.commands.get_mut(usize::from(cid)) {
            command.intact &= intact;
        }
        (n, self.end_data(cid))
    }

    fn end_data(&mut self, cid: u16) -> Option<Event> {
        let flags = self.common.flags;
        self.next_pdu();
        if flags & SUCCESS == 0 {
            return None;
        }
        if flags & LAST == 0 {
            return self.fail(Fatal::field(1));
        }
        let mut cqe = [0; CQE];
        cqe[12..14].copy_from_slice(&cid.to_le_bytes());
        match self.complete(cqe) {
            Ok(event) => Some(event),
            Err(fatal) => self.fail(fatal),
        }
    }

    /// Takes an R2T. Its data is sent in pieces of at most MAXH2CDATA. MAXR2T is 0: the data of one R2T is sent before
    /// the controller sends the next.
    fn answer_r2t(&mut self) -> Result<(), Fatal> {
        let asked = Data::parse(&self.header);
        let place = self.commands.get_mut(usize::from(asked.cid));
        let command = place.and_then(Option::as_mut).filter(|command| !command.reads);
        let command = command.ok_or(Fatal::field(8))?;
        if command.is_queued || command.asked.is_some() {
            return Err(Fatal { status: Fes::Limit, info: 0 });
        }
        let (at, length) = (asked.offset as usize, asked.length as usize);
        let range = Fatal { status: Fes::Range, info: 12 };
        let end = at.checked_add(length).filter(|end| *end <= command.window.len()).ok_or(range)?;
        if at != command.at || length == 0 {
            return Err(range);
        }
        command.at = end;
        command.asked = Some(Asked { ttag: asked.ttag, at, end });
        command.is_queued = true;
        self.continue_write(asked.cid);
        self.next_pdu();
        Ok(())
    }

    /// A PDU of a command was sent: queues the next piece of what an R2T asked for. Returns whether there was one.
    fn continue_write(&mut self, cid: u16) -> bool {
        let place = self.commands.get_mut(usize::from(cid));
        let Some(command) = place.and_then(Option::as_mut) else { return false };
        command.is_queued = false;
        let Some(Asked { ttag, at, end }) = command.asked.take() else { return false };
        let n = (end - at).min(self.max_h2c_data as usize);
        let Some(part) = command.window.slice(at, n) else { return false };
        let is_last = at + n == end;
        if !is_last {
            command.asked = Some(Asked { ttag, at: at + n, end });
        }
        command.is_queued = true;
        let fields = Data { cid, ttag, offset: at as u32, length: n as u32 };
        let none = Common { kind: 0, flags: 0, hlen: 0, pdo: 0, plen: 0 };
        let header = fields.emit(&none);
        let flags = if is_last { LAST } else { 0 };
        self.transmit.push(Kind::H2cData, flags, &header[COMMON..], part, Some(cid));
        true
    }

    fn next_pdu(&mut self) {
        self.have = 0;
        self.want = COMMON;
        self.state = State::Header;
    }
}
