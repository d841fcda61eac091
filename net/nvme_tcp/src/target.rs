//! The controller's side of a connection: receives capsules and data of a host, and sends completions and data.
//!
//! The caller feeds received bytes with [`Connection::receive`] until it has taken all of them, and acts on each event:
//!
//! | event | what the caller does |
//! |---|---|
//! | [`Event::Command`] without data | executes the command |
//! | [`Event::Command`] with data | names a tag and a window for the data ([`Connection::place`]), or fails the connection |
//! | [`Event::Arrived`] | the data of that tag is complete |
//! | [`Event::Over`] | sends what is left, and closes the TCP connection |
//!
//! Data of a write that is not in its capsule is asked for with [`Connection::fetch`]. Tags are indices of a table with
//! as many entries as the queue has commands.

use crate::transmit::Transmit;
use crate::wire::{
    CAPSULE, COMMON, CQE, Common, DATA_DIGESTS, DDGST, DIGEST, Data, Fatal, Fes, HDGST,
    HEADER_DIGESTS, IC, Kind, LAST, Parameters, SHORT, SQE, SUCCESS, data_offset,
};
use alloc::vec::Vec;
use drivers::hal::{Crc32c, Window};

/// Largest header with its digest that this side sends.
const OWN_HEADER: usize = 28;
/// Largest alignment that a host may ask for, in units of 4 bytes, 0's based.
const MAX_ALIGNMENT: u8 = 31;

/// Settings of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Most bytes that an H2CData may have: at least 4096, and a multiple of 4.
    pub max_h2c_data: u32,
    /// Most bytes of data in a capsule.
    pub max_in_capsule: u32,
    /// Digests that hosts may ask for ([`HEADER_DIGESTS`], [`DATA_DIGESTS`]).
    pub digests: u8,
}

/// Result of received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A command. Its capsule has `data` bytes of data.
    Command {
        /// The submission queue entry.
        sqe: [u8; SQE],
        /// Bytes of data in the capsule. If there are any, call [`Connection::place`] before more is received.
        data: u32,
    },
    /// All data of a transfer has arrived.
    Arrived {
        /// Tag of the transfer.
        tag: u16,
        /// Whether every data digest was right.
        intact: bool,
    },
    /// The connection has ended: the host sent a TermReq, or an invalid PDU, which a TermReq answers.
    Over,
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The host sent an invalid PDU.
    Host(Fatal),
    /// The host sent a TermReq with this status.
    Reported(u16),
}

/// A transfer of data from the host.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    cid: u16,
    window: Window,
    /// Bytes that have arrived.
    at: usize,
    intact: bool,
}

/// What the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The header of a PDU.
    Header,
    /// Data in a capsule, of that many bytes, which has no place yet.
    Unplaced {
        data: u32,
    },
    /// Data: the transfer's tag, None if it is discarded, and the number of bytes.
    Data {
        tag: Option<u16>,
        left: u32,
    },
    /// The digest of data.
    Digest {
        tag: Option<u16>,
    },
    Over,
}

/// The controller's side of a connection.
#[derive(Debug)]
pub struct Connection {
    settings: Settings,
    state: State,
    /// The parameters were exchanged.
    is_open: bool,
    /// The PDU's header, and its digest.
    header: [u8; IC + DIGEST],
    have: usize,
    /// Bytes of the header, with digest and padding; known once the common header is there.
    want: usize,
    common: Common,
    /// Digest of the data so far.
    crc: Crc32c,
    /// The data digest that arrives.
    digest: [u8; DIGEST],
    /// This PDU is the last of its transfer's R2T.
    is_last: bool,
    transfers: Vec<Option<Transfer>>,
    transmit: Transmit<OWN_HEADER>,
    cause: Option<Cause>,
}

impl Connection {
    /// A connection that a host has opened.
    pub fn new(settings: Settings) -> Self {
        let transmit = Transmit::new();
        Connection {
            settings,
            state: State::Header,
            is_open: false,
            header: [0; IC + DIGEST],
            have: 0,
            want: COMMON,
            common: Common { kind: 0, flags: 0, hlen: 0, pdo: 0, plen: 0 },
            crc: transmit.fresh_crc(),
            digest: [0; DIGEST],
            is_last: false,
            transfers: Vec::new(),
            transmit,
            cause: None,
        }
    }

    /// Allocates for `commands` commands at a time. Tags are below that number.
    pub fn set_depth(&mut self, commands: usize) {
        self.transfers.resize(commands.max(self.transfers.len()), None);
        self.transmit.reserve(self.most_unsent());
    }

    /// Sets the most bytes of data in a capsule.
    pub fn set_max_in_capsule(&mut self, bytes: u32) {
        self.settings.max_in_capsule = bytes;
    }

    /// Whether the parameters were exchanged.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Digests in use: of headers, and of data.
    pub fn digests(&self) -> (bool, bool) {
        (self.transmit.header_digest, self.transmit.data_digest)
    }

    /// Why the connection has ended, if it has.
    pub fn cause(&self) -> Option<Cause> {
        self.cause
    }

    /// Whether the connection has ended, and all was sent.
    pub fn is_finished(&self) -> bool {
        self.state == State::Over && self.transmit.is_empty()
    }

    /// Whether received bytes are taken at present: not while data of a capsule has no place, nor while the host leaves
    /// as many PDUs unread as its commands can have.
    pub fn takes_bytes(&self) -> bool {
        !matches!(self.state, State::Unplaced { .. }) && !self.is_congested()
    }

    /// Most PDUs to send: a command has its R2T, or its data and its completion.
    fn most_unsent(&self) -> usize {
        2 * self.transfers.len() + 2
    }

    /// Whether the next PDU has to wait until the host has read others. A host that sends commands and reads nothing
    /// would otherwise fill the memory with their completions.
    fn is_congested(&self) -> bool {
        self.state == State::Header && self.have == 0 && self.transmit.len() >= self.most_unsent()
    }

    /// Handles received bytes. Returns the number that it took, which is smaller than their number only with an event,
    /// or while [`Connection::takes_bytes`] is false.
    pub fn receive(&mut self, bytes: &[u8]) -> (usize, Option<Event>) {
        let mut taken = 0;
        loop {
            let rest = bytes.get(taken..).unwrap_or_default();
            let (used, event) = match self.state {
                State::Over => return (bytes.len(), None),
                State::Unplaced { .. } => return (taken, None),
                State::Header if self.is_congested() => return (taken, None),
                State::Header => self.receive_header(rest),
                State::Data { tag, left } => self.receive_data(rest, tag, left),
                State::Digest { tag } => self.receive_digest(rest, tag),
            };
            taken += used;
            if event.is_some() || used == 0 {
                return (taken, event);
            }
        }
    }

    /// Names the place of the data in the command's capsule: a tag, and a window of the data's length.
    ///
    /// # Panics
    /// If the window has another length.
    pub fn place(&mut self, tag: u16, window: Window) {
        let State::Unplaced { data } = self.state else { return };
        assert_eq!(window.len(), data as usize, "the window has the length of the data");
        self.add_transfer(tag, 0, window);
        self.is_last = true;
        self.begin_data(Some(tag), data);
    }

    /// Discards the data in the command's capsule. No event follows.
    pub fn discard(&mut self) {
        let State::Unplaced { data } = self.state else { return };
        self.is_last = true;
        self.begin_data(None, data);
    }

    /// Asks the host for data of a command, into `window`, with an R2T.
    pub fn fetch(&mut self, cid: u16, tag: u16, window: Window) {
        self.add_transfer(tag, cid, window);
        let (offset, length) = (0, window.len() as u32);
        let fields = Data { cid, ttag: tag, offset, length };
        self.push_data(Kind::R2t, 0, &fields, Window::empty(), None);
    }

    /// Sends data of a command. [`Connection::next_sent`] returns the tag once it is copied. With `success`, it also
    /// completes the command.
    pub fn send_data(&mut self, cid: u16, tag: u16, window: Window, success: bool) {
        let fields = Data { cid, ttag: 0, offset: 0, length: window.len() as u32 };
        let flags = LAST | if success { SUCCESS } else { 0 };
        self.push_data(Kind::C2hData, flags, &fields, window, Some(tag));
    }

    /// Sends a completion.
    pub fn complete(&mut self, cqe: &[u8; CQE]) {
        self.transmit.push(Kind::CapsuleResp, 0, cqe, Window::empty(), None);
    }

    /// Ends the connection with a TermReq.
    pub fn fail(&mut self, fatal: Fatal) {
        if self.state == State::Over {
            return;
        }
        let header = self.header.get(..self.have).unwrap_or_default();
        self.transmit.terminate(Kind::C2hTermReq, fatal, header);
        self.cause = Some(Cause::Host(fatal));
        self.state = State::Over;
    }

    /// Bytes to send. Returns their number.
    pub fn transmit(&mut self, into: &mut [u8]) -> usize {
        self.transmit.fill(into)
    }

    /// Number of bytes to send at present, at most `limit`: [`Connection::transmit`] fills as many.
    pub fn pending(&self, limit: usize) -> usize {
        self.transmit.pending(limit)
    }

    /// Whether there are bytes to send.
    pub fn wants_transmit(&self) -> bool {
        !self.transmit.is_empty()
    }

    /// The tag of the next data that is copied: its window is free.
    pub fn next_sent(&mut self) -> Option<u16> {
        self.transmit.next_sent()
    }

    fn push_data(&mut self, kind: Kind, flags: u8, data: &Data, window: Window, tag: Option<u16>) {
        let common = Common { kind: 0, flags: 0, hlen: 0, pdo: 0, plen: 0 };
        let header = data.emit(&common);
        self.transmit.push(kind, flags, &header[COMMON..], window, tag);
    }

    fn add_transfer(&mut self, tag: u16, cid: u16, window: Window) {
        if let Some(place) = self.transfers.get_mut(usize::from(tag)) {
            *place = Some(Transfer { cid, window, at: 0, intact: true });
        }
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
        match checked {
            Ok(event) => (n, event),
            Err(fatal) => {
                self.fail(fatal);
                (n, Some(Event::Over))
            }
        }
    }

    /// Checks the common header, and sets how many bytes the whole header has.
    fn check_common(&mut self) -> Result<(), Fatal> {
        let Some(common) = self.header.first_chunk().map(Common::parse) else {
            return Err(Fatal::SEQUENCE);
        };
        self.common = common;
        let kind = Kind::of(common.kind).ok_or(Fatal::field(0))?;
        let expected = match self.is_open {
            false => matches!(kind, Kind::IcReq),
            true => matches!(kind, Kind::CapsuleCmd | Kind::H2cData | Kind::H2cTermReq),
        };
        if !expected {
            return Err(match kind {
                Kind::IcReq | Kind::CapsuleCmd | Kind::H2cData | Kind::H2cTermReq => {
                    Fatal::SEQUENCE
                }
                // Only a controller sends it.
                _ => Fatal::field(0),
            });
        }
        let header = kind.header_len();
        if usize::from(common.hlen) != header {
            return Err(Fatal::field(2));
        }
        let header_digest = self.transmit.header_digest && kind.may_have_digests();
        if header_digest != (common.flags & HDGST != 0) {
            return Err(Fatal::field(1));
        }
        if matches!(kind, Kind::IcReq) && common.plen as usize != IC {
            return Err(Fatal::field(4));
        }
        self.want = header + if header_digest { DIGEST } else { 0 };
        match (common.plen as usize) < self.want {
            true => Err(Fatal::field(4)),
            false => Ok(()),
        }
    }

    /// Handles a complete header.
    fn finish_header(&mut self) -> Result<Option<Event>, Fatal> {
        let kind = Kind::of(self.common.kind).ok_or(Fatal::field(0))?;
        let header_len = kind.header_len();
        if self.common.flags & HDGST != 0 {
            let (covered, digest) = self.header.split_at(header_len);
            let mut crc = self.transmit.fresh_crc();
            crc.update(covered);
            let found = crate::wire::u32_at(digest, 0);
            if crc.finish() != found {
                return Err(Fatal { status: Fes::HeaderDigest, info: found });
            }
        }
        match kind {
            Kind::IcReq => self.open().map(|()| None),
            Kind::CapsuleCmd => self.receive_capsule().map(Some),
            Kind::H2cData => self.receive_h2c_data(),
            Kind::H2cTermReq => {
                let status = crate::wire::u16_at(&self.header, 8);
                self.cause = Some(Cause::Reported(status));
                self.transmit.close();
                self.state = State::Over;
                Ok(Some(Event::Over))
            }
            _ => Err(Fatal::field(0)),
        }
    }

    /// Handles an ICReq.
    fn open(&mut self) -> Result<(), Fatal> {
        let Some(pdu) = self.header.first_chunk() else { return Err(Fatal::SEQUENCE) };
        let asked = Parameters::parse(pdu);
        let unsupported = |info| Err(Fatal { status: Fes::Unsupported, info });
        if asked.version != 0 {
            return unsupported(8);
        }
        if asked.alignment > MAX_ALIGNMENT {
            return unsupported(10);
        }
        let digests = asked.digests & self.settings.digests & (HEADER_DIGESTS | DATA_DIGESTS);
        let limit = self.settings.max_h2c_data;
        let answer = Parameters { version: 0, alignment: 0, digests, limit };
        self.transmit.push_plain(&answer.emit(Kind::IcResp));
        self.transmit.header_digest = digests & HEADER_DIGESTS != 0;
        self.transmit.data_digest = digests & DATA_DIGESTS != 0;
        self.transmit.alignment = asked.alignment;
        self.is_open = true;
        self.next_pdu();
        Ok(())
    }

    /// Length of the data of the PDU, without its digest. Checks the data's place in the PDU.
    fn data_length(&self, header: usize) -> Result<u32, Fatal> {
        let Common { flags, pdo, plen, .. } = self.common;
        let header_end = self.want as u32;
        if plen == header_end {
            return Ok(0);
        }
        let start = data_offset(header, self.transmit.header_digest, 0);
        if usize::from(pdo) != start {
            return Err(Fatal::field(3));
        }
        if self.transmit.data_digest != (flags & DDGST != 0) {
            return Err(Fatal::field(1));
        }
        let digest = if flags & DDGST != 0 { DIGEST as u32 } else { 0 };
        match plen.checked_sub(start as u32 + digest) {
            None | Some(0) => Err(Fatal::field(4)),
            Some(length) => Ok(length),
        }
    }

    fn receive_capsule(&mut self) -> Result<Event, Fatal> {
        let data = self.data_length(CAPSULE)?;
        if data > self.settings.max_in_capsule {
            return Err(Fatal::field(4));
        }
        let mut sqe = [0; SQE];
        if let Some(entry) = self.header.get(COMMON..CAPSULE) {
            sqe.copy_from_slice(entry);
        }
        match data {
            0 => self.next_pdu(),
            _ => self.state = State::Unplaced { data },
        }
        Ok(Event::Command { sqe, data })
    }

    fn receive_h2c_data(&mut self) -> Result<Option<Event>, Fatal> {
        let length = self.data_length(SHORT)?;
        let fields = Data::parse(&self.header);
        if fields.length != length {
            return Err(Fatal::field(16));
        }
        if length == 0 {
            return Err(Fatal::field(16));
        }
        let entry = self.transfers.get(usize::from(fields.ttag)).copied().flatten();
        let Some(transfer) = entry else { return Err(Fatal::field(10)) };
        if transfer.cid != fields.cid {
            return Err(Fatal::field(8));
        }
        if length > self.settings.max_h2c_data {
            return Err(Fatal { status: Fes::Limit, info: 16 });
        }
        let left = transfer.window.len() - transfer.at;
        if fields.offset as usize != transfer.at || length as usize > left {
            return Err(Fatal { status: Fes::Range, info: 12 });
        }
        // The flag ends the response to the R2T, which asked for all of the data.
        self.is_last = self.common.flags & LAST != 0;
        if self.is_last != (length as usize == left) {
            return Err(Fatal::field(1));
        }
        self.begin_data(Some(fields.ttag), length);
        Ok(None)
    }

    fn begin_data(&mut self, tag: Option<u16>, left: u32) {
        self.crc = self.transmit.fresh_crc();
        self.have = 0;
        self.state = State::Data { tag, left };
    }

    fn receive_data(
        &mut self,
        bytes: &[u8],
        tag: Option<u16>,
        left: u32,
    ) -> (usize, Option<Event>) {
        let n = bytes.len().min(left as usize);
        let part = &bytes[..n];
        if let Some(transfer) = self.transfer(tag) {
            // The window was chosen for the whole transfer, so the bytes fit.
            let _ = transfer.window.write(transfer.at, part);
            transfer.at += n;
        }
        if self.common.flags & DDGST != 0 {
            self.crc.update(part);
        }
        let left = left - n as u32;
        self.state = State::Data { tag, left };
        if left > 0 {
            return (n, None);
        }
        if self.common.flags & DDGST != 0 {
            self.have = 0;
            self.state = State::Digest { tag };
            return (n, None);
        }
        (n, self.end_data(tag))
    }

    fn receive_digest(&mut self, bytes: &[u8], tag: Option<u16>) -> (usize, Option<Event>) {
        let n = bytes.len().min(DIGEST - self.have);
        self.digest[self.have..self.have + n].copy_from_slice(&bytes[..n]);
        self.have += n;
        if self.have < DIGEST {
            return (n, None);
        }
        let intact = u32::from_le_bytes(self.digest) == self.crc.finish();
        if let Some(transfer) = self.transfer(tag) {
            transfer.intact &= intact;
        }
        (n, self.end_data(tag))
    }

    fn transfer(&mut self, tag: Option<u16>) -> Option<&mut Transfer> {
        self.transfers.get_mut(usize::from(tag?))?.as_mut()
    }

    /// The data of a PDU is complete.
    fn end_data(&mut self, tag: Option<u16>) -> Option<Event> {
        let is_last = self.is_last;
        self.next_pdu();
        let tag = tag.filter(|_| is_last)?;
        let transfer = self.transfers.get_mut(usize::from(tag))?.take()?;
        Some(Event::Arrived { tag, intact: transfer.intact })
    }

    fn next_pdu(&mut self) {
        self.have = 0;
        self.want = COMMON;
        self.state = State::Header;
    }
}
