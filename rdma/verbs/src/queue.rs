//! Queue pairs, completion queues, work requests and completions.

use super::{MrId, PdId, RemoteAddress};
use alloc::vec::Vec;
use core::net::IpAddr;
use drivers::hal::Window;

/// Local handle of a queue pair (not its number on the wire).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpId(pub u32);

/// Handle of a completion queue.
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

    /// The largest that fits an Ethernet MTU with all RoCE headers (96 bytes, as in Linux).
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
        /// Key that arriving datagrams must carry.
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
    /// All posted work requests are flushed.
    Error,
}

/// Parameters of a new queue pair. Its memory is allocated once, at creation.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Transport service.
    pub kind: QpType,
    /// Protection domain.
    pub pd: PdId,
    /// Completion queue of sends.
    pub send_cq: CqId,
    /// Completion queue of receives.
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

/// Parameters of the peer that a queue pair needs to receive.
#[derive(Clone, Copy, Debug)]
pub struct ReadyToReceive {
    /// Number of the peer's queue pair.
    pub remote_qpn: u32,
    /// PSN of the peer's first packet.
    pub rq_psn: u32,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Path to the peer.
    pub address: AddressVector,
    /// RDMA READs and atomics that the peer may have outstanding.
    pub max_dest_rd_atomic: u8,
    /// Code (0 to 31) of the pause that RNR NAKs ask for.
    pub min_rnr_timer: u8,
}

/// Parameters that a queue pair needs to send.
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
    /// Retries after RNR NAKs (0 to 6; 7 is unlimited).
    pub rnr_retry: u8,
}

/// Encapsulation of a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidType {
    /// RoCEv1: a global route header directly over Ethernet.
    RoceV1,
    /// RoCEv2: UDP over IP.
    RoceV2,
}

/// Path to a peer: addresses of both ends, and the link-layer address of the next hop.
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
    /// UDP source port of our packets (RoCEv2).
    pub source_port: u16,
    /// Traffic class / type of service.
    pub traffic_class: u8,
    /// Hop limit / time to live.
    pub hop_limit: u8,
}

/// Payload of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Windows, read in place until the request completes.
    Windows(&'a [Window]),
    /// Bytes copied at posting, at most the device's `max_inline`.
    Inline(&'a [u8]),
}

impl Payload<'_> {
    /// Total bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Payload::Windows([only]) => only.len(),
            Payload::Windows(windows) => windows.iter().map(Window::len).sum(),
            Payload::Inline(bytes) => bytes.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Operation of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum SendOperation<'a> {
    /// SEND, optionally with an immediate or with invalidation of a key of the peer.
    Send {
        /// Bytes to send.
        payload: Payload<'a>,
        /// Immediate data or key to invalidate.
        with: SendWith,
    },
    /// RDMA WRITE.
    Write {
        /// Bytes to write.
        payload: Payload<'a>,
        /// Destination at the peer.
        to: RemoteAddress,
        /// Immediate: the peer gets a completion.
        immediate: Option<u32>,
    },
    /// RDMA READ into windows.
    Read {
        /// Destination of the bytes.
        into: &'a [Window],
        /// Source at the peer.
        from: RemoteAddress,
    },
    /// Compare-and-swap of 8 bytes; the old value is written to `into` (8 bytes, CPU order).
    CompareSwap {
        /// Destination of the old value.
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
        /// Destination of the old value.
        into: Window,
        /// The 8 bytes at the peer, aligned.
        at: RemoteAddress,
        /// Addend.
        add: u64,
    },
}

/// Data that accompanies a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendWith {
    /// Nothing.
    Nothing,
    /// 32 bits of immediate data (CPU byte order here).
    Immediate(u32),
    /// Key of the peer to invalidate.
    Invalidate(u32),
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// The caller's identifier, returned in the completion.
    pub id: u64,
    /// Operation.
    pub operation: SendOperation<'a>,
    /// Whether success makes a completion (failure always does).
    pub signaled: bool,
    /// Sets the solicited-event bit.
    pub solicited: bool,
    /// Destination, for UD only.
    pub datagram: Option<DatagramTo>,
    /// The chunk on demand in which the payload lies; its memory is released when this request ends.
    pub carries: Option<(MrId, u16)>,
    /// The caller can wait for its completion until others complete. Where ACKs are shared
    /// ([`Provider::coalesce_acks`](super::Provider::coalesce_acks)), the provider requests no ACK for it, and a card
    /// raises no event for its success. Its completion may be omitted if a later request of the queue pair completes,
    /// which implies this one.
    pub ack_lazily: bool,
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct DatagramTo {
    /// Path.
    pub address: AddressVector,
    /// Destination queue pair.
    pub remote_qpn: u32,
    /// Its Q_Key.
    pub remote_qkey: u32,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// The caller's identifier, returned in the completion.
    pub id: u64,
    /// Destination of a SEND's payload (may be empty, for WRITE with immediate).
    pub into: &'a [Window],
}

/// Outcome of a work request (vol. 1, 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Success,
    /// A SEND arrived that is longer than its receive.
    LocalLength,
    /// Our request made no sense to our side.
    LocalProtection,
    /// The queue pair went to error before the request was done.
    Flushed,
    /// The peer found the request invalid.
    RemoteInvalidRequest,
    /// The peer refused the access.
    RemoteAccess,
    /// The peer failed to execute the request.
    RemoteOperation,
    /// No answer after all retries.
    RetryExceeded,
    /// The peer had no receive posted, after all retries.
    RnrRetryExceeded,
}

/// Send requests that were in flight at some moment. Their memory may still be read, perhaps for a retransmission: see
/// [`Provider::under_way`](super::Provider::under_way).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnderWay {
    /// For each queue pair the number of requests posted to it so far, modulo 2^32.
    left: Vec<(QpId, u32)>,
    /// For each device the number of copies submitted so far to its copy engine; 0 without an engine.
    copies: [u64; UnderWay::ENGINES],
}

impl UnderWay {
    /// Most devices with a copy engine of their own.
    pub const ENGINES: usize = 3;

    /// Adds the requests of a queue pair up to request number `posted`, modulo 2^32.
    pub fn add(&mut self, qp: QpId, posted: u32) {
        self.left.push((qp, posted));
    }

    /// Adds the copies submitted to the engine of a device up to copy number `copies`.
    pub fn add_copies(&mut self, device: usize, copies: u64) {
        if let Some(known) = self.copies.get_mut(device) {
            *known = copies.max(*known);
        }
    }

    /// The copy number that the engine of a device must reach.
    pub fn copies(&self, device: usize) -> u64 {
        self.copies.get(device).copied().unwrap_or(0)
    }

    /// Removes the queue pairs for which `is_past` reports that their requests are done; true if none is left.
    pub fn settle(&mut self, mut is_past: impl FnMut(QpId, u32) -> bool) -> bool {
        self.left.retain(|&(qp, posted)| !is_past(qp, posted));
        self.left.is_empty()
    }

    /// The queue pairs with requests that are not done. A caller that cannot wait for a peer's ACKs fails or destroys
    /// them, which ends their requests.
    pub fn queue_pairs(&self) -> impl Iterator<Item = QpId> + '_ {
        self.left.iter().map(|&(qp, _)| qp)
    }
}

/// Operation of a completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletedOperation {
    /// A send work request.
    Send,
    /// A receive, consumed by a SEND.
    Recv {
        /// Bytes received.
        length: u32,
        /// Immediate data, or the key of ours that the peer invalidated.
        with: SendWith,
    },
    /// A receive, consumed by a WRITE with immediate.
    RecvWriteImmediate {
        /// Bytes written.
        length: u32,
        /// The immediate (CPU byte order here).
        immediate: u32,
    },
    /// A posted key change ([`KeyRequest`](super::KeyRequest)).
    KeyChanged {
        /// The key that is valid now; 0 after a revocation.
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
    /// Outcome. The fields below are valid only on success.
    pub status: Status,
    /// Operation.
    pub operation: CompletedOperation,
    /// For UD receives: the sender (address, queue pair number).
    pub datagram_from: Option<(IpAddr, u32)>,
}
