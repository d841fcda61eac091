//! A queue over NVMe/TCP: joins a connection of [`nvme_tcp`] to a queue of the target, with TLS in between if the host
//! begins it. Bytes are arguments; the caller moves them between here and its TCP connection.

use crate::queue::{Action, Ends, QueueId};
use crate::target::{Context, Placement, Target};
use crate::tls::{FIRST_BYTE, Tried};
use alloc::boxed::Box;
use nvme_tcp::target::{Cause, Connection, Event};
use nvme_tcp::wire::{DATA_DIGESTS, Fatal, HEADER_DIGESTS};
use tls_psk::Session;

/// The security layer between NVMe/TCP and TCP.
#[derive(Debug)]
enum Channel {
    /// The first byte decides.
    Undecided,
    Clear,
    Tls(Box<Session>),
}

/// A queue over NVMe/TCP.
#[derive(Debug)]
pub struct TcpQueue {
    connection: Connection,
    id: QueueId,
    /// A command whose data has no place yet.
    stalled: Option<([u8; 64], u32)>,
    depth: u16,
    /// The target wants the connection closed.
    is_closing: bool,
    /// The target wants it closed at once.
    is_cut: bool,
    channel: Channel,
    /// TLS was ended from this side.
    is_tls_closed: bool,
}

impl TcpQueue {
    /// A queue for a new connection. None if the target refuses it.
    pub fn open(target: &mut Target, ends: Ends, ctx: &mut Context<'_>) -> Option<TcpQueue> {
        let id = target.open_queue(ends, ctx)?;
        let (max_in_capsule, depth) = target.limits(id)?;
        let settings = nvme_tcp::target::Settings {
            max_h2c_data: target.settings().max_transfer(),
            max_in_capsule,
            digests: HEADER_DIGESTS | DATA_DIGESTS,
        };
        let mut connection = Connection::new(settings);
        connection.set_depth(depth.into());
        Some(TcpQueue {
            connection,
            id,
            stalled: None,
            depth,
            is_closing: false,
            is_cut: false,
            channel: Channel::Undecided,
            is_tls_closed: false,
        })
    }

    /// The target's queue.
    pub fn id(&self) -> QueueId {
        self.id
    }

    /// Why the connection has ended, if its host ended it or sent an invalid PDU.
    pub fn cause(&self) -> Option<Cause> {
        self.connection.cause()
    }

    /// Digests in use: of headers, and of data.
    pub fn digests(&self) -> (bool, bool) {
        self.connection.digests()
    }

    /// Whether received bytes are taken at present.
    pub fn takes_bytes(&self) -> bool {
        let waits = matches!(&self.channel, Channel::Tls(session) if session.wants_key());
        self.stalled.is_none() && self.connection.takes_bytes() && !waits
    }

    /// Whether the connection uses TLS.
    pub fn uses_tls(&self) -> bool {
        matches!(self.channel, Channel::Tls(_))
    }

    /// Whether there are bytes to send.
    pub fn wants_transmit(&self) -> bool {
        match &self.channel {
            Channel::Tls(session) => {
                !session.outgoing().is_empty()
                    || (session.is_open() && self.connection.wants_transmit())
                    || (self.is_over() && !self.is_tls_closed)
            }
            _ => self.connection.wants_transmit(),
        }
    }

    /// Whether the connection has no more PDUs to send.
    fn is_over(&self) -> bool {
        self.connection.is_finished() || (self.is_closing && !self.connection.wants_transmit())
    }

    /// Whether the TCP connection is to be closed: all is sent, and the target or the host has ended the queue.
    pub fn is_finished(&self) -> bool {
        let is_sent = match &self.channel {
            Channel::Tls(session) if session.failure().is_none() => {
                self.is_over() && self.is_tls_closed && session.outgoing().is_empty()
            }
            // A failed session encrypts no further PDUs: only its outgoing records are sent.
            Channel::Tls(session) => self.is_closing && session.outgoing().is_empty(),
            _ => self.is_over(),
        };
        self.is_cut || is_sent
    }

    /// Handles received bytes. Returns the number that it took: fewer than there are while a command waits for memory.
    pub fn receive(&mut self, bytes: &[u8], target: &mut Target, ctx: &mut Context<'_>) -> usize {
        match &self.channel {
            Channel::Clear => self.receive_clear(bytes, target, ctx),
            Channel::Tls(_) => self.receive_tls(bytes, target, ctx),
            Channel::Undecided => {
                self.channel = match bytes.first() {
                    None => return 0,
                    Some(&FIRST_BYTE) => match target.begin_tls(self.id, ctx) {
                        Some(session) => Channel::Tls(session),
                        None => {
                            self.is_cut = true;
                            return bytes.len();
                        }
                    },
                    Some(_) => Channel::Clear,
                };
                self.receive(bytes, target, ctx)
            }
        }
    }

    /// Handles received records.
    fn receive_tls(&mut self, bytes: &[u8], target: &mut Target, ctx: &mut Context<'_>) -> usize {
        let mut taken = 0;
        loop {
            let Channel::Tls(session) = &mut self.channel else { return taken };
            let used = session.receive(bytes.get(taken..).unwrap_or_default(), ctx.now);
            taken += used;
            if !self.pump(target, ctx) && used == 0 {
                return taken;
            }
        }
    }

    /// Passes on what TLS has decrypted, and looks up the client's key. Returns whether anything moved.
    fn pump(&mut self, target: &mut Target, ctx: &mut Context<'_>) -> bool {
        let Channel::Tls(mut session) = core::mem::replace(&mut self.channel, Channel::Undecided)
        else {
            self.channel = Channel::Clear;
            return false;
        };
        let mut moved = false;
        if session.wants_key() && !self.is_closing {
            let tried = target.try_keys(self.id, &mut session, ctx.now);
            moved |= tried != Tried::Later;
            if tried == Tried::Refused {
                target.end_queue(self.id);
                self.act(target);
            }
        }
        while !session.text().is_empty() {
            let taken = self.receive_clear(session.text(), target, ctx);
            if taken == 0 {
                break;
            }
            session.consume_text(taken);
            moved = true;
        }
        if !self.is_closing {
            if let Some(failure) = session.failure() {
                target.end_tls(self.id, failure, ctx.now);
                self.act(target);
            } else if session.is_ended() {
                target.end_queue(self.id);
                self.act(target);
            }
        }
        self.channel = Channel::Tls(session);
        moved
    }

    fn receive_clear(&mut self, bytes: &[u8], target: &mut Target, ctx: &mut Context<'_>) -> usize {
        let mut taken = 0;
        loop {
            if self.stalled.is_some() || self.is_closing {
                return if self.is_closing { bytes.len() } else { taken };
            }
            let rest = bytes.get(taken..).unwrap_or_default();
            let (used, event) = self.connection.receive(rest);
            taken += used;
            match event {
                None => break,
                Some(Event::Command { sqe, data }) => self.command(sqe, data, target, ctx),
                Some(Event::Arrived { tag, intact }) => {
                    target.data_arrived(self.id, tag, intact, ctx);
                    self.act(target);
                }
                Some(Event::Over) => {
                    target.refuse_pdu(self.id, self.connection.cause());
                    target.end_queue(self.id);
                    self.act(target);
                    break;
                }
            }
        }
        taken
    }

    fn command(&mut self, sqe: [u8; 64], data: u32, target: &mut Target, ctx: &mut Context<'_>) {
        match target.command(self.id, &sqe, data, ctx) {
            Placement::None => {}
            Placement::Into { slot, window } => self.connection.place(slot, window),
            Placement::Discard => self.connection.discard(),
            Placement::Wait => self.stalled = Some((sqe, data)),
            Placement::Fatal => {
                self.connection.fail(Fatal::SEQUENCE);
                target.refuse_pdu(self.id, self.connection.cause());
                target.end_queue(self.id);
            }
        }
        self.act(target);
    }

    /// Executes the target's actions, and retries a command that waited for memory. Call it for each queue that
    /// [`Target::next_ready`] returns.
    pub fn advance(&mut self, target: &mut Target, ctx: &mut Context<'_>) {
        self.act(target);
        if let Some((sqe, data)) = self.stalled.take() {
            self.command(sqe, data, target, ctx);
        }
        if self.uses_tls() {
            self.pump(target, ctx);
        }
    }

    fn act(&mut self, target: &mut Target) {
        if let Some((max_in_capsule, depth)) = target.limits(self.id)
            && depth != self.depth
        {
            self.depth = depth;
            self.connection.set_depth(depth.into());
            self.connection.set_max_in_capsule(max_in_capsule);
        }
        while let Some(action) = target.next_action(self.id) {
            match action {
                Action::Fetch { cid, slot, window } => self.connection.fetch(cid, slot, window),
                Action::Send { cid, slot, window, success } => {
                    self.connection.send_data(cid, slot, window, success);
                }
                Action::Complete { cqe } => self.connection.complete(&cqe),
                Action::Close => self.is_closing = true,
                Action::Cut => self.is_cut = true,
            }
        }
    }

    /// Fills `into` with bytes to send. Returns their number.
    pub fn transmit(
        &mut self,
        into: &mut [u8],
        target: &mut Target,
        ctx: &mut Context<'_>,
    ) -> usize {
        let filled = match &mut self.channel {
            Channel::Tls(_) => self.transmit_tls(into),
            _ => self.connection.transmit(into),
        };
        while let Some(slot) = self.connection.next_sent() {
            target.data_sent(self.id, slot, ctx);
        }
        // Memory that became free may have let other commands continue.
        self.act(target);
        if self.uses_tls() {
            self.pump(target, ctx);
        }
        filled
    }

    /// Encrypts what there is to send, record by record, and fills `into`.
    fn transmit_tls(&mut self, into: &mut [u8]) -> usize {
        let is_over = self.is_over();
        let Channel::Tls(session) = &mut self.channel else { return 0 };
        let mut filled = 0;
        while let Some(room) = into.get_mut(filled..).filter(|room| !room.is_empty()) {
            if session.outgoing().is_empty() {
                // A record takes what the connection has, and no copy of it.
                let pending = self.connection.pending(session.room());
                let connection = &mut self.connection;
                session.write_with(pending, |record| {
                    connection.transmit(record);
                });
            }
            if session.outgoing().is_empty() && is_over && !self.is_tls_closed {
                self.is_tls_closed = true;
                session.close();
            }
            let records = session.outgoing();
            let count = records.len().min(room.len());
            if count == 0 {
                break;
            }
            room[..count].copy_from_slice(&records[..count]);
            session.consume(count);
            filled += count;
        }
        filled
    }

    /// The TCP connection has ended.
    pub fn close(self, target: &mut Target, ctx: &mut Context<'_>) {
        target.close_queue(self.id, ctx);
    }
}
