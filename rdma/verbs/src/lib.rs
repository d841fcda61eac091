//! The narrow interface between protocols and providers: protection domains, memory regions, queue pairs, completion
//! queues, work requests and completions, in the terms of the InfiniBand specification (vol. 1, ch. 10 and 11).
//!
//! ```text
//!    rtrs      smcr      perf_responders            users: post, poll completions, own memory
//!       └────────┼────────────┘
//!         Provider and its memory traits
//!       ┌────────┼────────────┐
//!    roce     connectx     ntrdma                   providers: move bytes, check keys
//! ```
//!
//! Invariants:
//!
//! * A remote address is a claim until the owner of the memory has checked it.
//! * Every posted request completes, if only as flushed.
//!
//! Tests: `tests/conformance`: a case for each promise, run on every provider and on a provider that breaks one
//! promise.
//!
//! Protocols are written once, above it. Providers implement it: RoCE in software, NTRDMA over an NTB, hardware NICs.
//! Posting is asynchronous, completions are polled, and the owner's loop drives the provider. Local memory is named by
//! [`Window`](drivers::hal::Window)s alone (all DMA memory is registered with a hardware provider once, at set-up).
//! Remote memory is named by a [`RemoteAddress`], which is a claim until the owner of the memory has checked it.
//!
//! [`Provider`] is what every device does. Some devices also have memory on demand ([`ChunksOnDemand`],
//! [`RegionsOnDemand`]) or lend memory ([`Lending`]).
//!
//! # Verbs with a default
//!
//! Some verbs have a default made of others, which a card replaces: [`Provider::post_empty_recvs`] posts several
//! receives without memory (RTRS posts eight), [`Provider::repost_recv`] posts a receive again while its work request
//! is still in the ring, [`Provider::post_announced`] is one record for a WRITE and the SEND that announces it. Of
//! several signaled requests with `ack_lazily`, one poll reports only the last completion; the user derives from its
//! number which requests are done.
//!
//! # Reuse of memory
//!
//! [`Provider::under_way`] returns the send requests in flight, and [`Provider::is_done`] reports when none of them can
//! be retransmitted. To reuse memory, its owner stops posting it, revokes its keys, calls the first and then waits for
//! the second. A peer that acknowledges nothing loses its queue pair after its capped retries, 20 s at most. A peer
//! with endless RNR NAKs loses it after 60 s without progress. A peer that acknowledges slowly loses it when another
//! user has waited for the memory for 60 s (`Storage::free_retired`).
//!
//! Acknowledged does not mean sent: a port reads payload in place, some time after a frame was queued. The frame of a
//! retransmitted packet, or of a packet that a malicious peer acknowledged early, would carry the memory's next
//! contents. So returned memory (blocks of the pool, windows of the arena, volumes) is free after a grace period, as in
//! RCU: `hal::Retired` waits until each port that may send from the memory has sent all frames that were queued at the
//! start of the period. `Port::progress` reports this; a round calls it only if memory waits
//! (`gateway/lent_memory.rs`). A port that does not send delays only the blocks of its own queue pairs. Memory of ended
//! sessions and volumes, and chunks in a gateway with remote servers, waits for all ports. So drivers must not keep
//! frames for ever: they reset a device that hangs.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

mod cm;
mod ctx;
mod keys;
mod memory;
mod on_demand;
mod queue;

pub use cm::*;
pub use ctx::Ctx;
pub use keys::{KeyChange, KeyRequest};
pub use memory::*;
pub use on_demand::*;
pub use queue::*;

use core::fmt;
use core::net::IpAddr;
use drivers::hal::Instant;
use rand_core::Rng;

/// Capabilities of a provider. Limits are per object.
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

/// An event of a port or a queue pair, not of a work request (vol. 1, 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// The port with this index came up.
    PortActive(usize),
    /// The port with this index went down. Its queue pairs retry until their timers expire, because the link may come
    /// back before.
    PortError(usize),
    /// The queue pair went to the error state.
    QpError(QpId),
    /// The first packet arrived on a queue pair that was ready to receive, before the RTU.
    CommunicationEstablished(QpId),
}

/// Why a verb was refused. A refused verb changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerbsError {
    /// The object does not exist (any more).
    NoSuchObject,
    /// The limit set at construction is reached.
    NoRoom,
    /// The queue is full: poll its completion queue.
    QueueFull,
    /// The queue pair is not in a state that allows this.
    WrongState,
    /// A parameter exceeds the device attributes or is inconsistent.
    Invalid,
    /// The object is still used by another.
    Busy,
    /// No route to the peer.
    Unreachable,
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VerbsError::NoSuchObject => "the RDMA provider has no such object, or has destroyed it",
            VerbsError::NoRoom => "the RDMA provider is at its limit for such objects: end sessions or connections that are not needed",
            VerbsError::QueueFull => "the queue is full until its completion queue is polled",
            VerbsError::WrongState => "the queue pair is not in a state that allows this",
            VerbsError::Invalid => "the RDMA provider does not support this request (size, alignment or access rights)",
            VerbsError::Busy => "the object is still in use",
            VerbsError::Unreachable => "no route to the peer: check addresses, netmasks and the link of the port",
        })
    }
}

impl core::error::Error for VerbsError {}

/// Implements [`Provider::post_announced`] by two posts.
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

/// A verbs provider. One loop owns it; no call blocks. Objects are made and destroyed at set-up and connection time
/// (this may allocate); posting and polling never allocate.
pub trait Provider: MemoryVerbs {
    /// Its capabilities.
    fn attributes(&self) -> DeviceAttributes;
    /// The largest path MTU between a local address and a remote one that is known to pass: that of the port and its
    /// network, and of the path as far as it is known.
    fn path_mtu_to(&self, _local: IpAddr, _remote: IpAddr, _now: Instant) -> PathMtu {
        self.attributes().max_path_mtu
    }
    /// Its memory to lend, if it has any.
    fn lending(&mut self) -> Option<&mut dyn Lending> {
        None
    }

    /// Makes a completion queue for up to `depth` completions.
    fn create_cq(&mut self, depth: u32) -> Result<CqId, VerbsError>;
    /// Destroys a completion queue; `Busy` while queue pairs use it (destroyed queue pairs do not count).
    fn destroy_cq(&mut self, cq: CqId) -> Result<(), VerbsError>;
    /// The next completion, if any.
    fn poll_cq(&mut self, cq: CqId) -> Option<Completion>;

    /// Lets [`Provider::next_watched`] report a completion queue under `number` when it receives completions: for a
    /// user with many queues, most of which are empty.
    fn watch_cq(&mut self, cq: CqId, number: u32);
    /// The number of a watched queue that received completions since its last report. The caller polls it until it is
    /// empty. (A reported queue may be empty, and each of two devices reports it.)
    fn next_watched(&mut self) -> Option<u32>;

    /// Makes a queue pair in the state Init.
    fn create_qp(&mut self, init: &QpInit, rng: &mut dyn Rng) -> Result<QpId, VerbsError>;
    /// The queue pair's number on the wire, 24 bits.
    fn qp_number(&self, qp: QpId) -> Result<u32, VerbsError>;
    /// State that the queue pair has reached. Hardware completes a requested transition later, in the order of the
    /// requests. Detectable errors are refused at once; a transition that the device refuses later moves the queue pair
    /// to error ([`AsyncEvent::QpError`]). A work request may be posted as soon as a state that allows it was
    /// requested: it executes once the state is reached.
    fn qp_state(&self, qp: QpId) -> Result<QpState, VerbsError>;
    /// Init to ready-to-receive, with the parameters of the peer. (The connection manager does this for its
    /// connections.)
    fn ready_to_receive(&mut self, qp: QpId, peer: &ReadyToReceive) -> Result<(), VerbsError>;
    /// Ready-to-receive to ready-to-send.
    fn ready_to_send(&mut self, qp: QpId, to: &ReadyToSend) -> Result<(), VerbsError>;
    /// Any state to error: all posted work requests are flushed to the completion queues. From then on posts are
    /// refused and packets dropped.
    fn fail_qp(&mut self, qp: QpId) -> Result<(), VerbsError>;
    /// Destroys a queue pair; completions not yet polled are dropped. Its connection is disconnected in order, without
    /// an event.
    fn destroy_qp(&mut self, qp: QpId) -> Result<(), VerbsError>;

    /// Posts a send work request.
    fn post_send(&mut self, qp: QpId, request: &SendRequest<'_>) -> Result<(), VerbsError>;
    /// Posts an unsignaled WRITE and the SEND that announces it. The user gets the completion of the SEND. If either
    /// fails, that completion has the id of the failed request or of the SEND. If this returns an error, the SEND was
    /// not posted.
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
    /// work request. False: the caller posts it by [`Provider::post_recv`].
    fn repost_recv(&mut self, _qp: QpId, _id: u64) -> bool {
        false
    }
    /// Posts `count` receives without memory, for WRITEs with immediates, under an id that no other receive of the
    /// queue pair has. On failure none or some of them were posted.
    fn post_empty_recvs(&mut self, qp: QpId, id: u64, count: u32) -> Result<(), VerbsError> {
        (0..count).try_for_each(|_| self.post_recv(qp, &RecvRequest { id, into: &[] }))
    }

    /// Lets the provider delay the ACK request for requests that are not signaled and carry no chunk, or are
    /// `ack_lazily`, so that many share an ACK: for users that do not wait for any of them, nor for room in the queue.
    /// Call it before the queue pair is ready to send.
    fn coalesce_acks(&mut self, _qp: QpId) {}
    /// Declares that a message follows the peer's WRITEs and announces them, and that the user reads them only after
    /// it: the provider may then acknowledge them with that message. Call it before the queue pair is ready to receive.
    fn writes_precede_send(&mut self, _qp: QpId) {}

    /// Whether the queue pair went to error by itself: neither its user nor the peer ended its connection.
    fn failed_by_itself(&self, qp: QpId) -> bool;

    /// Number of PSNs of all requests of the peer, modulo 2^32, including those that make no completion. None with
    /// hardware, where only the peer knows: its users look at the memory.
    fn requests_seen(&self, _qp: QpId) -> Option<u32> {
        None
    }

    /// The send requests in flight on all queue pairs. Memory is taken back from them for reuse in this order: its
    /// owner posts no more requests with it, and revokes its keys; then it calls this; the memory is free when
    /// [`Provider::is_done`] returns true. This looks at all queue pairs, so it is for rare operations.
    fn under_way(&self) -> UnderWay {
        UnderWay::default()
    }
    /// Whether those requests are done: acknowledged, failed, or their queue pairs destroyed, so that none of them is
    /// retransmitted. (Devices may read handed-over memory for a moment longer, well below a millisecond.) Looks only
    /// at the queue pairs that were not done at the last call.
    fn is_done(&self, under_way: &mut UnderWay) -> bool {
        under_way.settle(|_, _| false)
    }

    /// The next asynchronous event, if any.
    fn poll_event(&mut self) -> Option<AsyncEvent>;
    /// Deadline by which `handle_timeout` is to be called, if any.
    fn poll_timeout(&self) -> Option<Instant>;
    /// Runs the expired timers.
    fn handle_timeout(&mut self, now: Instant);
}

/// A provider with its connection manager: the interface for upper-layer protocols.
pub trait RdmaDevice: Provider + ConnectionManager {}

impl<T: Provider + ConnectionManager + ?Sized> RdmaDevice for T {}
