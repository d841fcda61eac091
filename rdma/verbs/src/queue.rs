//! Queue pairs, completion queues, work requests and completions.

use super::{MrId, PdId, RemoteAddress};
use alloc::vec::Vec;
use core::net::IpAddr;
use drivers::hal::Window;

/// Name of a queue pair here (not its number on the wire).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpId(pub u32);

/// Name of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub u32);

/// Payload bytes that a packet carries at most, as encoded on the wire (1 to 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl PathMtu {
    /// From the code on the wire.
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => PathMtu::Mtu256,
            2 => PathMtu::Mtu512,
            3 => PathMtu::Mtu1024,
            4 => PathMtu::Mtu2048,
            5 => PathMtu::Mtu4096,
            _ => return None,
        })
    }

    /// In bytes.
    pub const fn bytes(self) -> usize {
        128 << self as usize
    }

    /// The largest that fits an Ethernet MTU with all RoCE headers (96 bytes, as Linux reckons).
    pub const fn for_ethernet(mtu: usize) -> Option<Self> {
        let room = mtu.saturating_sub(96);
        let mut code = 5;
        while code > 0 {
            if 128usize << code <= room {
                return Self::from_code(code);
            }
            code -= 1;
        }
        None
    }
}

/// Transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpType {
    /// Reliable connected.
    Rc,
    /// Unreliable datagram.
    Ud {
        /// Key that arriving datagrams have to carry.
        qkey: u32,
    },
}

/// State of a queue pair (vol. 1, 10.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpState {
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// Everything posted is flushed.
    Error,
}

/// How to make a queue pair. Its memory is taken here, once.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Transport service.
    pub kind: QpType,
    /// Protection domain.
    pub pd: PdId,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// Send work requests that can be outstanding.
    pub max_send_wr: u32,
    /// Receive work requests that can be outstanding.
    pub max_recv_wr: u32,
    /// Windows in a send work request, at most the device's `max_sge`.
    pub max_send_sge: usize,
    /// Windows in a receive work request, at most the device's `max_sge`.
    pub max_recv_sge: usize,
    /// Bytes of an inline payload, at most the device's `max_inline`.
    pub max_inline: usize,
}

/// What a queue pair has to know of its peer to receive.
#[derive(Clone, Copy, Debug)]
pub struct ReadyToReceive {
    /// Number of the peer's queue pair.
    pub remote_qpn: u32,
    /// PSN of the peer's first packet.
    pub rq_psn: u32,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// The way to the peer.
    pub address: AddressVector,
    /// RDMA READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Code (0 to 31) of the pause that RNR NAKs ask for.
    pub min_rnr_timer: u8,
}

/// What a queue pair has to know to send.
#[derive(Clone, Copy, Debug)]
pub struct ReadyToSend {
    /// PSN of our first packet.
    pub sq_psn: u32,
    /// RDMA READs and atomics that we may have outstanding.
    pub max_rd_atomic: u8,
    /// Local ACK timeout code: 4.096 us << code, 0 for never.
    pub ack_timeout: u8,
    /// Retries after timeouts and NAKs (0 to 7).
    pub retry_count: u8,
    /// Retries after RNR NAKs (0 to 6; 7 is for ever).
    pub rnr_retry: u8,
}

/// Encapsulation that a GID stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidType {
    /// RoCEv1: a global route header directly over Ethernet.
    RoceV1,
    /// RoCEv2: UDP over IP.
    RoceV2,
}

/// The way to a peer: addresses of both ends, and the link-layer address of the next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// Our address (the source GID).
    pub local: IpAddr,
    /// The peer's address (the destination GID).
    pub remote: IpAddr,
    /// Encapsulation.
    pub gid_type: GidType,
    /// MAC address of the next hop.
    pub remote_mac: [u8; 6],
    /// UDP source port of what we send (RoCEv2).
    pub source_port: u16,
    /// Traffic class / type of service.
    pub traffic_class: u8,
    /// Hop limit / time to live.
    pub hop_limit: u8,
}

/// What a send work request carries.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Windows, read where they lie until the request completes.
    Windows(&'a [Window]),
    /// Bytes copied at posting, at most the device's `max_inline`.
    Inline(&'a [u8]),
}

impl Payload<'_> {
    /// Bytes in all.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Payload::Windows([only]) => only.len(),
            Payload::Windows(windows) => windows.iter().map(Window::len).sum(),
            Payload::Inline(bytes) => bytes.len(),
        }
    }

    /// Whether it holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a send work request does.
#[derive(Clone, Copy, Debug)]
pub enum SendOperation<'a> {
    /// SEND, optionally with an immediate or with invalidation of a key of the peer.
    Send {
        /// What is sent.
        payload: Payload<'a>,
        /// What goes with it.
        with: SendWith,
    },
    /// RDMA WRITE.
    Write {
        /// What is written.
        payload: Payload<'a>,
        /// Where to, at the peer.
        to: RemoteAddress,
        /// Immediate: the peer gets a completion.
        immediate: Option<u32>,
    },
    /// RDMA READ into windows.
    Read {
        /// Where the bytes go.
        into: &'a [Window],
        /// Where they come from, at the peer.
        from: RemoteAddress,
    },
    /// Compare-and-swap of 8 bytes; the old value is written to `into` (8 bytes, CPU order).
    CompareSwap {
        /// Where the old value goes.
        into: Window,
        /// The 8 bytes at the peer, aligned.
        at: RemoteAddress,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Fetch-and-add on 8 bytes; the old value is written to `into` (8 bytes, CPU order).
    FetchAdd {
        /// Where the old value goes.
        into: Window,
        /// The 8 bytes at the peer, aligned.
        at: RemoteAddress,
        /// What is added.
        add: u64,
    },
}

/// What goes with a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendWith {
    /// Nothing.
    Nothing,
    /// 32 bits of immediate data (CPU byte order here).
    Immediate(u32),
    /// The key of the peer's that dies.
    Invalidate(u32),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// The caller's name for it, given back in its completion.
    pub id: u64,
    /// What to do.
    pub operation: SendOperation<'a>,
    /// Whether success makes a completion (failure always does).
    pub signaled: bool,
    /// Sets the solicited-event bit.
    pub solicited: bool,
    /// For UD only: where to.
    pub datagram: Option<DatagramTo>,
    /// A chunk on demand whose memory is given back when this request ends: its payload lies there.
    pub carries: Option<(MrId, u16)>,
    /// Whoever posts it can wait for its completion, which comes with that of others: where ACKs are shared
    /// ([`Provider::coalesce_acks`](super::Provider::coalesce_acks)), none is asked for on its account, and a card wakes nobody
    /// for its success. It may be left to that of a later request of the queue pair, by which this one is known to be done.
    pub ack_lazily: bool,
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct DatagramTo {
    /// The way.
    pub address: AddressVector,
    /// Queue pair there.
    pub remote_qpn: u32,
    /// Its Q_Key.
    pub remote_qkey: u32,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// The caller's name for it, given back in its completion.
    pub id: u64,
    /// Where a SEND's payload goes (may be empty, for WRITE with immediate).
    pub into: &'a [Window],
}

/// How a work request ended (vol. 1, 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done.
    Success,
    /// A SEND arrived that is longer than its receive.
    LocalLength,
    /// Our request made no sense to our side.
    LocalProtection,
    /// The queue pair went to error before it was done.
    Flushed,
    /// The peer found the request invalid.
    RemoteInvalidRequest,
    /// The peer refused the access.
    RemoteAccess,
    /// The peer could not do it.
    RemoteOperation,
    /// No answer after all retries.
    RetryExceeded,
    /// The peer had no receive posted after all retries.
    RnrRetryExceeded,
}

/// The send requests that were under way at some moment, and may still be read from memory, perhaps to be
/// sent again: see [`Provider::under_way`](super::Provider::under_way).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnderWay {
    /// By queue pair: how many requests had ever been posted to it, modulo 2^32.
    left: Vec<(QpId, u32)>,
    /// Copies that had ever been submitted to engines that carry payload, by device; 0 without one.
    copies: [u64; UnderWay::ENGINES],
}

impl UnderWay {
    /// Devices with engines of their own, at most.
    pub const ENGINES: usize = 3;

    /// Those posted to a queue pair up to its request number `posted`, modulo 2^32.
    pub fn add(&mut self, qp: QpId, posted: u32) {
        self.left.push((qp, posted));
    }

    /// Those that the engine of the device with this number had been given up to its copy number `copies`.
    pub fn add_copies(&mut self, device: usize, copies: u64) {
        if let Some(known) = self.copies.get_mut(device) {
            *known = copies.max(*known);
        }
    }

    /// The number of the copy up to which the engine of a device has to have come.
    pub fn copies(&self, device: usize) -> u64 {
        self.copies.get(device).copied().unwrap_or(0)
    }

    /// Takes out the queue pairs for which `is_past` says that they have done that many; true if none is left.
    pub fn settle(&mut self, mut is_past: impl FnMut(QpId, u32) -> bool) -> bool {
        self.left.retain(|&(qp, posted)| !is_past(qp, posted));
        self.left.is_empty()
    }

    /// The queue pairs that have not done all of it. Who cannot wait for a peer that acknowledges nothing
    /// fails or destroys them: then it is done.
    pub fn queue_pairs(&self) -> impl Iterator<Item = QpId> + '_ {
        self.left.iter().map(|&(qp, _)| qp)
    }
}

/// What a completed work request was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletedOperation {
    /// A send work request.
    Send,
    /// A receive, consumed by a SEND.
    Recv {
        /// Bytes received.
        length: u32,
        /// What came with it: an immediate, or our key that the peer had invalidated.
        with: SendWith,
    },
    /// A receive, consumed by a WRITE with immediate.
    RecvWriteImmediate {
        /// Bytes written.
        length: u32,
        /// The immediate (CPU byte order here).
        immediate: u32,
    },
    /// A change of a key that was posted ([`KeyRequest`](super::KeyRequest)).
    KeyChanged {
        /// The key that is good now; 0 if it was a revocation.
        rkey: u32,
    },
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The work request's id.
    pub id: u64,
    /// The queue pair.
    pub qp: QpId,
    /// How it ended; the rest is only meaningful on success.
    pub status: Status,
    /// What it was.
    pub operation: CompletedOperation,
    /// For UD receives: who sent it (address, queue pair number).
    pub datagram_from: Option<(IpAddr, u32)>,
}
