//! The narrow interface between protocols and providers: protection domains, memory regions, queue pairs, completion
//! queues, work requests and completions, in the terms of the InfiniBand specification (vol. 1, ch. 10 and 11).
//!
//! Protocols are written once, above it. Providers implement it: RoCE in software, NTRDMA over an NTB, hardware NICs.
//! Posting is asynchronous, completions are polled, and the owner's loop drives the provider. Local memory is named by
//! [`Window`]s alone (all DMA memory is registered with a hardware provider once, at set-up). Remote memory is named by a
//! [`RemoteAddress`], which is a claim until the owner of the memory has checked it.
//!
//! # Verbs with a default
//!
//! Some verbs have a default made of others, which a card replaces: [`Provider::post_empty_recvs`] posts several receives
//! without memory (RTRS posts eight), [`Provider::repost_recv`] posts a receive again while its work request is still in
//! the ring, [`Provider::post_announced`] is one record for a WRITE and the SEND that announces it. Of signaled requests
//! with `ack_lazily` only the last completion found in one poll is reported; the user derives from its number which
//! requests are done.
//!
//! # Reuse of memory
//!
//! [`Provider::under_way`] returns the send requests in flight, and [`Provider::is_done`] reports when none of them can
//! be repeated. To give memory another use, its owner stops posting it and revokes its keys, then calls the first, then
//! waits for the second. A peer that acknowledges nothing loses its queue pair after its capped retries, 20 s at most.
//! One with endless RNR NAKs loses it after 60 s without progress. One that acknowledges slowly loses it when another
//! user has waited for the memory for 60 s (`Storage::free_retired`).
//!
//! Acknowledged does not mean sent: a port reads payload in place, some time after a frame was queued. The frame of a
//! repeated packet, or of one that a malicious peer acknowledged early, would carry the memory's next contents. So
//! returned memory (blocks of the pool, windows of the arena, volumes) is free after a grace period, as in RCU:
//! `hal::Retired` waits until each port that may send it has sent all that was queued at the start of the period.
//! `Port::progress` reports this; a round asks for it only if memory waits (`gateway/lent_memory.rs`). A port that does
//! not send delays only the blocks of its own queue pairs. Memory of ended sessions and volumes, and chunks in a gateway
//! with remote servers, waits for all ports. So drivers must not keep frames for ever: they reset a device that hangs.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod cm;
mod context;
mod keys;
mod memory;
mod queue;

pub use cm::*;
pub use context::EngineContext;
pub use keys::{KeyChange, KeyRequest};
pub use memory::*;
pub use queue::*;

use core::fmt;
use core::net::IpAddr;
use drivers::hal::{Instant, Window};
use rand_core::RngCore;

/// What a provider can do. Limits are per object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// EUI-64 of the node or port, as the connection manager sends it.
    pub guid: u64,
    /// Largest number of work requests in a send or receive queue.
    pub max_wr: u32,
    /// Largest number of windows in one work request.
    pub max_sge: usize,
    /// Largest inline payload in bytes.
    pub max_inline: usize,
    /// RDMA READs and atomics that one queue pair may have outstanding, as target and as initiator.
    pub max_rd_atomic: u8,
    /// Largest message in bytes.
    pub max_message: u32,
    /// Largest path MTU (payload bytes in a packet).
    pub max_path_mtu: PathMtu,
    /// Whether atomics are offered.
    pub atomics: bool,
    /// Whether SEND with invalidate is offered.
    pub send_with_invalidate: bool,
}

/// Something that happened to a port or a queue pair, not to a work request (vol. 1, 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// The port at that place came up.
    PortActive(usize),
    /// The port at that place went down. Its queue pairs go on and try until their timers run out:
    /// a link may come back sooner.
    PortError(usize),
    /// The queue pair went to the error state.
    QpError(QpId),
    /// The first packet arrived on a queue pair that was ready to receive, before the RTU.
    CommunicationEstablished(QpId),
}

/// Why a verb was refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbsError {
    /// The object does not exist (any more).
    NoSuchObject,
    /// The limit given at construction is reached.
    NoRoom,
    /// The queue is full: poll its completion queue.
    QueueFull,
    /// The queue pair is not in a state that allows this.
    WrongState,
    /// A parameter is beyond the device attributes or makes no sense.
    Invalid,
    /// The object is still used by another.
    Busy,
    /// No way to the peer is known.
    Unreachable,
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VerbsError::NoSuchObject => "the RDMA provider does not have this object (any more)",
            VerbsError::NoRoom => "the RDMA provider is at its limit for such objects: end sessions or connections that are not needed",
            VerbsError::QueueFull => "the queue is full until its completion queue is polled",
            VerbsError::WrongState => "the queue pair is not in a state that allows this",
            VerbsError::Invalid => "the RDMA provider cannot do what was asked for (size, alignment or rights)",
            VerbsError::Busy => "the object is still used by another",
            VerbsError::Unreachable => "no route to the peer: check addresses, netmasks and the link of the port",
        })
    }
}

impl core::error::Error for VerbsError {}

/// [`Provider::post_announced`] by two posts.
#[inline(never)]
pub fn post_both<P: Provider + ?Sized>(
    provider: &mut P,
    qp: QpId,
    write: &SendRequest<'_>,
    send: &SendRequest<'_>,
) -> Result<(), VerbsError> {
    provider.post_send(qp, write)?;
    provider.post_send(qp, send)
}

/// A verbs provider. It is owned by one loop; nothing blocks. Objects are made and destroyed at
/// set-up and connection time (this may allocate); posting and polling never allocate.
pub trait Provider {
    /// What it can do.
    fn attributes(&self) -> DeviceAttributes;

    /// Makes a protection domain.
    fn alloc_pd(&mut self) -> Result<PdId, VerbsError>;
    /// Destroys a protection domain; `Busy` while regions or queue pairs use it, also such that were given up and
    /// whose end hardware has not confirmed: their memory is not to be used for anything else before.
    fn dealloc_pd(&mut self, pd: PdId) -> Result<(), VerbsError>;

    /// The domain as the device with the address `local` of ours has it, for a provider of several
    /// devices: what is made in that domain is that device's.
    fn pd_on(&self, pd: PdId, _local: IpAddr) -> PdId {
        pd
    }

    /// Registers `memory` for remote access under a fresh unpredictable key; remote addresses of
    /// its bytes start at the region's `address`.
    fn register(
        &mut self,
        pd: PdId,
        memory: Window,
        access: Access,
        rng: &mut dyn RngCore,
    ) -> Result<Region, VerbsError>;
    /// Registers `length` bytes for RDMA WRITE that have no memory yet: it comes out of the pool
    /// when a peer begins to write, which gets an RNR NAK while there is none. `Invalid` if the
    /// provider cannot do this.
    fn register_on_demand(
        &mut self,
        _pd: PdId,
        _length: usize,
        _rng: &mut dyn RngCore,
    ) -> Result<Region, VerbsError> {
        Err(VerbsError::Invalid)
    }
    /// Puts memory into the pool of on-demand regions. It is zeroed, and as long as any of them.
    fn add_to_odp_pool(&mut self, _memory: Window) {}
    /// How many regions the pool is good for.
    fn odp_pool(&self) -> usize {
        0
    }
    /// The memory of an on-demand region, if it has any, and how many bytes peers have written to it, in
    /// all.
    fn on_demand_memory(&self, _region: MrId) -> Option<(Window, u64)> {
        None
    }
    /// Takes the memory of an on-demand region away, until a peer writes again. What was written is lost.
    fn take_on_demand_memory(&mut self, _region: MrId) -> Option<Window> {
        None
    }
    /// Revokes the region's present key at once and gives it a fresh unpredictable one. Cheap: it
    /// is meant to be done for each I/O.
    fn rotate_key(&mut self, region: MrId, rng: &mut dyn RngCore) -> Result<u32, VerbsError>;
    /// Points the region at other memory, under a fresh unpredictable key; the key that it had is
    /// revoked (fast registration). Cheap: it is meant to be done for each I/O.
    fn remap(
        &mut self,
        region: MrId,
        memory: Window,
        rng: &mut dyn RngCore,
    ) -> Result<Region, VerbsError>;
    /// Revokes the region's key; until `rotate_key` or `remap` no peer reaches it. Hardware may take a moment,
    /// in which [`Provider::dealloc_pd`] says `Busy`.
    fn revoke_key(&mut self, region: MrId) -> Result<(), VerbsError>;
    /// As [`Provider::revoke_key`], for those who wait until it is in force.
    fn revoke_key_by(
        &mut self,
        region: MrId,
        _request: KeyRequest,
    ) -> Result<KeyChange<()>, VerbsError> {
        self.revoke_key(region).map(KeyChange::Done)
    }
    /// Memory that the device with the address `local` of ours lends to its peer, which reads it and writes to it
    /// whenever it likes, whatever keys grant: WRITEs to a region in it go straight there. None if the device lends none, or
    /// has not so many bytes left.
    fn lend(&mut self, _local: IpAddr, _length: usize) -> Option<Window> {
        None
    }
    /// Takes memory back that [`Provider::lend`] gave, as a whole; false if it is none of that.
    fn take_back(&mut self, _memory: Window) -> bool {
        false
    }
    /// Ends a registration: from then on no peer reaches its memory, which may be used for something else.
    fn deregister(&mut self, region: MrId) -> Result<(), VerbsError>;

    /// Registers `count` chunks of `size` bytes for RDMA WRITE, each under a fresh key: of `memory`
    /// (as many bytes), or without it on demand. `rotate_chunk_key` and `chunk_key` are for them;
    /// `revoke_key` revokes all their keys.
    fn register_chunks(
        &mut self,
        pd: PdId,
        count: u16,
        size: u32,
        memory: Option<Window>,
        rng: &mut dyn RngCore,
    ) -> Result<ChunkedRegion, VerbsError>;
    /// The key of a chunk.
    fn chunk_key(&mut self, region: MrId, chunk: u16) -> Result<u32, VerbsError>;
    /// Revokes the key of a chunk and gives it a fresh one: at once, or by the request. From then on the peer
    /// cannot change the chunk.
    fn rotate_chunk_key(
        &mut self,
        region: MrId,
        chunk: u16,
        request: KeyRequest,
        rng: &mut dyn RngCore,
    ) -> Result<KeyChange<u32>, VerbsError>;

    /// Gives the provider memory for chunks on demand, for good: such a chunk has memory only from
    /// the WRITE that a peer begins in it until its owner gives it back. While there is none, peers'
    /// WRITEs get RNR NAKs; room for one block of `largest` bytes is kept for `back_chunk`.
    /// `Invalid` if the provider cannot do this, or has memory already.
    fn give_memory(&mut self, _memory: Window, _largest: usize) -> Result<(), VerbsError> {
        Err(VerbsError::Invalid)
    }
    /// How that memory stands; None if there is none.
    fn on_demand(&self) -> Option<OnDemandStatus> {
        None
    }
    /// Takes what a peer wrote into a chunk on demand: at which offset it begins, and where it
    /// lies. Peers do not write to the chunk until it is given back. None if there is nothing.
    fn take_chunk(&mut self, _region: MrId, _chunk: u16) -> Option<(usize, Window)> {
        None
    }
    /// Gives a chunk that was taken memory from offset 0 on, what is in it stays; all of it. None
    /// if there is no memory now.
    fn back_chunk(&mut self, _region: MrId, _chunk: u16) -> Option<Window> {
        None
    }
    /// Gives the memory of a chunk that was taken back.
    fn release_chunk(&mut self, _region: MrId, _chunk: u16) {}
    /// Counts on for chunks on demand that a peer wrote to and nobody took: how often this was called
    /// for the region since the WRITE that has waited longest began; 0 if none waits.
    fn age_chunks(&mut self, _region: MrId) -> u8 {
        0
    }

    /// Makes a completion queue for up to `depth` completions.
    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError>;
    /// Destroys a completion queue; `Busy` while queue pairs use it (those that were destroyed do not).
    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError>;
    /// The next completion, if any.
    fn poll_cq(&mut self, cq: CqId) -> Option<Completion>;

    /// Has a completion queue told of by [`Provider::next_watched`], under `number`, when it gets completions:
    /// for a user with many queues, most of which are empty.
    fn watch_cq(&mut self, cq: CqId, number: u32);
    /// The number of a watched queue that has got completions since it was told of last; all of them are to be
    /// polled. (It may be told of and be empty, and two devices tell of it twice.)
    fn next_watched(&mut self) -> Option<u32>;

    /// Makes a queue pair in the state Init.
    fn create_qp(&mut self, init: &QpInit, rng: &mut dyn RngCore) -> Result<QpId, VerbsError>;
    /// Its number on the wire, 24 bits.
    fn qp_number(&self, qp: QpId) -> Result<u32, VerbsError>;
    /// The state that it has reached. With hardware, changes that were asked for are reached a while later, in
    /// the order in which they were asked for. What can be seen to be wrong is refused at once; what the device
    /// refuses later brings the queue pair to error ([`AsyncEvent::QpError`]). Requests may be posted as soon as
    /// the state was asked for in which they are allowed: they are done once it is reached.
    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError>;
    /// Init to ready-to-receive: the peer is known. (The connection manager does this for
    /// connections that it makes.)
    fn ready_to_receive(&mut self, qp: QpId, peer: &ReadyToReceive) -> Result<(), VerbsError>;
    /// Ready-to-receive to ready-to-send.
    fn ready_to_send(&mut self, qp: QpId, to: &ReadyToSend) -> Result<(), VerbsError>;
    /// Any state to error: everything posted is flushed to the completion queues, and nothing is taken from now
    /// on.
    fn fail_qp(&mut self, qp: QpId) -> Result<(), VerbsError>;
    /// Destroys a queue pair; completions not yet polled are dropped. A connection that it carries
    /// is disconnected in order, without an event.
    fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError>;

    /// Posts a send work request.
    fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError>;
    /// Posts a WRITE that is not signaled and the SEND that announces it. The user gets the completion of the SEND; if either
    /// fails, one with the id of the request that failed, or of the SEND. If this returns an error, the SEND was not posted.
    fn post_announced(
        &mut self,
        qp: QpId,
        write: &SendRequest<'_>,
        send: &SendRequest<'_>,
    ) -> Result<(), VerbsError> {
        post_both(self, qp, write, send)
    }
    /// Posts a receive work request.
    fn post_recv(&mut self, qp: QpId, request: &RecvRequest<'_>) -> Result<(), VerbsError>;
    /// Posts a receive again whose id always stands for the same memory on this queue pair, if the device still has its
    /// work request; false: it is to be posted by [`Provider::post_recv`].
    fn repost_recv(&mut self, _qp: QpId, _id: u64) -> bool {
        false
    }
    /// Posts so many receives without memory, for WRITEs with immediates, with an id that no other receive of the queue pair
    /// has. If it fails, none or some of them were posted.
    fn post_empty_recvs(&mut self, qp: QpId, id: u64, count: u32) -> Result<(), VerbsError> {
        (0..count).try_for_each(|_| self.post_recv(qp, &RecvRequest { id, into: &[] }))
    }

    /// Lets the provider be a while in asking the peer whether requests have arrived that are not signaled
    /// and carry no chunk, or ack_lazily, so that many share an ACK: for users that do not wait for any of
    /// them, nor for room in the queue. To be said before the queue pair is ready to send.
    fn coalesce_acks(&mut self, _qp: QpId) {}
    /// Says that the peer's WRITEs are announced by a message right behind them, before which nobody here
    /// looks at them: the provider may then acknowledge them with that. To be said before the queue pair
    /// is ready to receive.
    fn writes_precede_send(&mut self, _qp: QpId) {}

    /// Whether the queue pair went to error by itself: not because somebody here or the peer ended its
    /// connection.
    fn failed_by_itself(&self, qp: QpId) -> bool;

    /// PSNs of requests of any kind that the peer has made, modulo 2^32, be it that nothing completes by them; None
    /// where only the peer knows, as with hardware, whose users have to look at the memory.
    fn requests_seen(&self, _qp: QpId) -> Option<u32> {
        None
    }

    /// The send requests that are under way now, on any queue pair. Memory that must not be read or written
    /// for them any more, because others are to have it, is taken back in this order: nobody posts requests
    /// with it any more, and its keys are revoked; then this is asked; then it is free when
    /// [`Provider::is_done`] says so. Looks at all queue pairs: for what is rare.
    fn under_way(&self) -> UnderWay {
        UnderWay::default()
    }
    /// Whether those requests are done: acknowledged, failed, or their queue pairs destroyed, so that nothing
    /// of them is repeated. (Devices may read what was handed to them for a moment longer, well below a
    /// millisecond.) Looks only at the queue pairs that were not done the last time.
    fn is_done(&self, under_way: &mut UnderWay) -> bool {
        under_way.settle(|_, _| false)
    }

    /// The next asynchronous event, if any.
    fn poll_event(&mut self) -> Option<AsyncEvent>;
    /// When `handle_timeout` wants to be called, if ever.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Runs the timers that have expired.
    fn handle_timeout(&mut self, now: Instant);
}

/// A provider with its connection manager: what upper-layer protocols are written for.
pub trait RdmaDevice: Provider + ConnectionManager {}

impl<T: Provider + ConnectionManager + ?Sized> RdmaDevice for T {}
