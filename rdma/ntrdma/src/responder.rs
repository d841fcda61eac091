//! The receiving side of a queue pair: executes the peer's entries, within the access that their keys
//! grant.
//!
//! An entry is loaded once, into private words. All its fields are checked: the location of its
//! payload against the memory for payload, its key by `Memory`, its length against both. The
//! payload itself may change while it is copied, which only affects the peer that wrote it.

use super::counters::Wrong;
use super::layout::{ANSWER, ENTRY, INLINE};
use super::qp::{Completer, Ctx, Identity, RemoteQp, Wire};
use super::requester::MAX_MESSAGE;
use super::wire::{Answer, ENTRY_WORDS, Entry, Opcode, Place};
use drivers::hal::Window;
use drivers::ntb::Bridge;
use softverbs::memory::{Memory, Refusal};
use softverbs::receive_queue::ReceiveQueue;
use verbs::{Access, CompletedOperation, RemoteAddress, SendWith, Status};

/// Bytes that one queue pair may move before other queue pairs get their turn.
const BUDGET: usize = 512 << 10;

/// The message that is arriving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Incoming {
    None,
    Send { received: u32 },
    Write { to: RemoteAddress, left: u32 },
}

/// Why an entry was not executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// No receive is posted; retried later.
    NotReady,
    /// There is no memory on demand; retried later.
    NoMemory,
    /// The entry is refused, which is reported to the peer.
    Refused(Status),
}

const INVALID: Fault = Fault::Refused(Status::RemoteInvalidRequest);
const BROKEN: Fault = Fault::Refused(Status::RemoteOperation);

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NoMemory => Fault::NoMemory,
            _ => Fault::Refused(Status::RemoteAccess),
        }
    }
}

/// The receiving side.
#[derive(Debug)]
pub struct Responder {
    /// Entries that the peer has written.
    pub produced: u32,
    /// Entries that were executed.
    pub consumed: u32,
    incoming: Incoming,
    /// Whether it waits for memory on demand, for which there is no event.
    pub waits_for_memory: bool,
    /// Bytes that were copied and not counted yet.
    copied: u64,
}

/// Context for executing an entry.
struct EntryCtx<'a, 'w, 'c, B: ?Sized> {
    peer: &'a RemoteQp,
    receives: &'a mut ReceiveQueue,
    completer: Completer<'c>,
    wire: &'a mut Wire<'w, B>,
    memory: &'a mut Memory,
}

impl Responder {
    /// A responder that has received no entry.
    pub fn new() -> Self {
        Responder {
            produced: 0,
            consumed: 0,
            incoming: Incoming::None,
            waits_for_memory: false,
            copied: 0,
        }
    }

    /// Executes entries that have arrived, up to a budget. Returns whether more can be executed now; an error is the
    /// status to report to the peer if the queue pair fails.
    #[inline]
    pub fn serve<B: Bridge + ?Sized>(
        &mut self,
        peer: &RemoteQp,
        identity: &Identity,
        receives: &mut ReceiveQueue,
        wire: &mut Wire<'_, B>,
        ctx: &mut Ctx<'_>,
    ) -> Result<bool, Status> {
        let Ctx { memory, cqs, counters, .. } = ctx;
        let lost = &mut counters.completions_lost;
        let completer = Completer { identity, cqs, lost };
        self.waits_for_memory = false;
        let mut budget = BUDGET;
        if self.produced.wrapping_sub(self.consumed) > wire.depth {
            counters.wrong(Wrong::EntryBell);
            return Err(Status::RemoteInvalidRequest);
        }
        let mut ctx = EntryCtx { peer, receives, completer, wire, memory };
        while self.produced != self.consumed {
            if budget == 0 {
                return Ok(true);
            }
            let executed = self.execute_next(&mut ctx);
            counters.bytes_copied += core::mem::take(&mut self.copied);
            match executed {
                Ok(length) => budget = budget.saturating_sub(length as usize),
                Err(Fault::Refused(status)) => {
                    if status == Status::RemoteInvalidRequest {
                        counters.wrong(Wrong::Entry);
                    }
                    return Err(status);
                }
                Err(fault) => {
                    counters.not_ready += 1;
                    self.waits_for_memory = fault == Fault::NoMemory;
                    return Ok(false);
                }
            }
            self.consumed = self.consumed.wrapping_add(1);
            counters.entries_received += 1;
        }
        Ok(false)
    }

    /// Loads and executes the next entry; returns the bytes that it moved.
    #[inline]
    fn execute_next<B: Bridge + ?Sized>(
        &mut self,
        ctx: &mut EntryCtx<'_, '_, '_, B>,
    ) -> Result<u32, Fault> {
        let identity = ctx.completer.identity;
        let at = identity.places.entry(self.consumed);
        let mut words = [0; ENTRY_WORDS];
        ctx.wire.exposed.load_words(at, &mut words);
        let entry = Entry::parse(&words).ok_or(INVALID)?;
        if entry.index != self.consumed || entry.qpn != identity.number {
            return Err(INVALID);
        }
        self.perform(&entry, at, ctx)?;
        Ok(entry.length)
    }

    /// Executes an entry.
    #[inline]
    fn perform<B: Bridge + ?Sized>(
        &mut self,
        entry: &Entry,
        at: usize,
        ctx: &mut EntryCtx<'_, '_, '_, B>,
    ) -> Result<(), Fault> {
        if entry.total as usize > MAX_MESSAGE || entry.length > entry.total {
            return Err(INVALID);
        }
        match entry.opcode {
            Opcode::Send | Opcode::SendImmediate | Opcode::SendInvalidate => {
                let payload = payload(entry, at, ctx)?;
                self.send(entry, &payload, ctx)
            }
            Opcode::Write | Opcode::WriteImmediate => {
                let payload = payload(entry, at, ctx)?;
                self.write(entry, &payload, ctx)
            }
            Opcode::Read => self.read(entry, ctx),
            Opcode::CompareSwap | Opcode::FetchAdd => self.atomic(entry, ctx),
        }
    }

    #[inline]
    fn send<B: Bridge + ?Sized>(
        &mut self,
        entry: &Entry,
        payload: &Window,
        ctx: &mut EntryCtx<'_, '_, '_, B>,
    ) -> Result<(), Fault> {
        let received = match (entry.first, self.incoming) {
            (true, Incoming::None) => 0,
            (false, Incoming::Send { received }) => received,
            _ => return Err(INVALID),
        };
        let length = received + entry.length;
        if entry.last != (length == entry.total) || length > entry.total {
            return Err(INVALID);
        }
        if ctx.receives.is_empty() {
            return Err(Fault::NotReady);
        }
        if !ctx.receives.write(received as usize, payload) {
            fail_receive(ctx, Status::LocalLength);
            return Err(INVALID);
        }
        self.copied += u64::from(entry.length);
        if !entry.last {
            self.incoming = Incoming::Send { received: length };
            return Ok(());
        }
        let with = match entry.opcode {
            Opcode::SendImmediate => SendWith::Immediate(entry.extra),
            Opcode::SendInvalidate => {
                if ctx.memory.invalidate(ctx.completer.identity.pd, entry.extra).is_err() {
                    fail_receive(ctx, Status::LocalProtection);
                    return Err(BROKEN);
                }
                SendWith::Invalidate(entry.extra)
            }
            _ => SendWith::Nothing,
        };
        self.incoming = Incoming::None;
        if let Some(id) = ctx.receives.pop() {
            ctx.completer.receive(id, CompletedOperation::Recv { length, with });
        }
        Ok(())
    }

    fn write<B: Bridge + ?Sized>(
        &mut self,
        entry: &Entry,
        payload: &Window,
        ctx: &mut EntryCtx<'_, '_, '_, B>,
    ) -> Result<(), Fault> {
        let pd = ctx.completer.identity.pd;
        let (to, left) = match (entry.first, self.incoming) {
            (true, Incoming::None) => {
                (RemoteAddress { address: entry.address, rkey: entry.rkey }, entry.total)
            }
            (false, Incoming::Write { to, left }) => (to, left),
            _ => return Err(INVALID),
        };
        if entry.length > left || entry.last != (entry.length == left) {
            return Err(INVALID);
        }
        let immediate = entry.opcode == Opcode::WriteImmediate && entry.last;
        if immediate && ctx.receives.is_empty() {
            return Err(Fault::NotReady);
        }
        if entry.first && entry.total > 0 {
            ctx.memory.begin_write(pd, to, entry.total)?;
        }
        if entry.length > 0 {
            // Every piece is checked, so that a key that is revoked meanwhile stops the rest.
            let window = ctx.memory.write(pd, to, entry.length)?;
            match entry.place {
                // The payload is in place if its location is the destination.
                Place::Placed(_) if window.as_ptr() == payload.as_ptr() => {}
                Place::Placed(_) => return Err(INVALID),
                _ => {
                    window.write_window(0, payload).map_err(|_| BROKEN)?;
                    self.copied += u64::from(entry.length);
                }
            }
        }
        if !entry.last {
            let address = to.address.wrapping_add(u64::from(entry.length));
            self.incoming =
                Incoming::Write { to: RemoteAddress { address, ..to }, left: left - entry.length };
            return Ok(());
        }
        self.incoming = Incoming::None;
        if immediate && let Some(id) = ctx.receives.pop() {
            let operation = CompletedOperation::RecvWriteImmediate {
                length: entry.total,
                immediate: entry.extra,
            };
            ctx.completer.receive(id, operation);
        }
        Ok(())
    }

    /// Every piece of a READ is executed as a separate request.
    fn read<B: Bridge + ?Sized>(
        &self,
        entry: &Entry,
        ctx: &mut EntryCtx<'_, '_, '_, B>,
    ) -> Result<(), Fault> {
        let (Incoming::None, Place::Staged(offset)) = (self.incoming, entry.place) else {
            return Err(INVALID);
        };
        let (wire, peer) = (&mut *ctx.wire, ctx.peer);
        let landing = wire.landing as usize;
        let (offset, length) = (offset as usize, entry.length as usize);
        if offset > landing || length > landing - offset {
            return Err(INVALID);
        }
        if length == 0 {
            return Ok(());
        }
        let pd = ctx.completer.identity.pd;
        let from = RemoteAddress { address: entry.address, rkey: entry.rkey };
        let from = ctx.memory.check(pd, Access::REMOTE_READ, from, entry.length)?;
        let to = wire.window.slice(peer.places.landing + offset, length).ok_or(BROKEN)?;
        wire.bridge.submit(&to, &from);
        Ok(())
    }

    fn atomic<B: Bridge + ?Sized>(
        &self,
        entry: &Entry,
        ctx: &mut EntryCtx<'_, '_, '_, B>,
    ) -> Result<(), Fault> {
        if self.incoming != Incoming::None || !entry.address.is_multiple_of(8) || entry.length != 8
        {
            return Err(INVALID);
        }
        let pd = ctx.completer.identity.pd;
        let at = RemoteAddress { address: entry.address, rkey: entry.rkey };
        let window = ctx.memory.check(pd, Access::REMOTE_ATOMIC, at, 8)?;
        let mut bytes = [0; 8];
        window.read(0, &mut bytes).map_err(|_| BROKEN)?;
        let original = u64::from_ne_bytes(bytes);
        let to = ctx.peer.places.answer(entry.index);
        let to = ctx.wire.window.slice(to, ANSWER).ok_or(BROKEN)?;
        let value = match entry.opcode {
            Opcode::FetchAdd => original.wrapping_add(entry.compare_add),
            _ if original == entry.compare_add => entry.swap,
            _ => original,
        };
        window.write(0, &value.to_ne_bytes()).map_err(|_| BROKEN)?;
        let answer = Answer { index: entry.index, value: original };
        ctx.wire.bridge.put(&to, &answer.emit());
        Ok(())
    }
}

/// Completes the oldest receive with an error.
fn fail_receive<B: Bridge + ?Sized>(ctx: &mut EntryCtx<'_, '_, '_, B>, status: Status) {
    if let Some(id) = ctx.receives.pop() {
        ctx.completer.fail_receive(id, status);
    }
}

/// The payload of an entry, if its location is valid.
#[inline]
fn payload<B: Bridge + ?Sized>(
    entry: &Entry,
    at: usize,
    ctx: &EntryCtx<'_, '_, '_, B>,
) -> Result<Window, Fault> {
    let (wire, length) = (&*ctx.wire, entry.length as usize);
    let place = match entry.place {
        Place::Inline if length <= INLINE => wire.exposed.slice(at + ENTRY - INLINE, length),
        Place::Inline => None,
        Place::Staged(offset) => {
            let all = wire.staging as usize;
            let first = ctx.completer.identity.places.staging;
            wire.exposed.slice(first, all).and_then(|all| all.slice(offset as usize, length))
        }
        Place::Lent(offset) if wire.we_load => {
            usize::try_from(offset).ok().and_then(|offset| wire.window.slice(offset, length))
        }
        Place::Lent(_) => None,
        // For a WRITE. `write` checks that this is the destination that the key grants.
        Place::Placed(offset) if matches!(entry.opcode, Opcode::Write | Opcode::WriteImmediate) => {
            usize::try_from(offset).ok().and_then(|offset| wire.exposed.slice(offset, length))
        }
        Place::Placed(_) => None,
    };
    place.ok_or(INVALID)
}
