//! Tables of the engine: sockets, link groups and links.

use super::State;
use super::config::{Device, address_of};
use super::devices::SecondaryRegion;
use super::failover::{Nudge, PendingDelete};
use super::flow::Flow;
use super::ids::SocketId;
use super::peer_buffers::PeerBuffers;
use super::spare::BufferSizes;
use crate::SmcDevice;
use crate::wire::cdc::{End, Producer};
use crate::wire::llc::{KeyMove, Order};
use crate::wire::{Eid, PeerId, Reason};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use drivers::hal::{Instant, Window};
use verbs::{PathMtu, PdId, QpId, RecvRequest, Region};

/// Links of a group: two, and a third while one replaces another.
pub(super) const LINKS: usize = 3;
/// Most CDC messages of a link under way: a third of the receives that Linux posts.
pub(super) const CDC_SLOTS: usize = 16;
/// Most LLC messages of a link under way.
pub(super) const LLC_SLOTS: usize = 16;
/// Receives that a link posts.
pub(super) const RECEIVES: usize = 64;
/// Bytes between receives, of which a message fills 44.
pub(super) const RECEIVE_STRIDE: usize = 64;
/// Most buffers of the peer that a group stores, as with Linux.
pub(super) const TOKENS: usize = 255;

/// Our role in a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// We proposed.
    Client,
    /// The peer proposed.
    Server,
}

bitflags::bitflags! {
    /// Events of a socket.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Ready: u8 {
        /// The socket may send and receive.
        const ESTABLISHED = 1;
        /// Data or the end of the stream can be read.
        const READABLE = 2;
        /// There is room to write again.
        const WRITABLE = 4;
        /// The handshake fell back: TCP carries the bytes from here on ([`super::Engine::fallback`]). The user sends
        /// the remaining CLC bytes first, then closes the socket.
        const FALLBACK = 8;
        /// The handshake failed: the TCP connection is unusable.
        const FAILED = 16;
        /// The connection is lost: the peer aborted, or the last link failed.
        const ABORTED = 32;
        /// Both sides have closed.
        const CLOSED = 64;
        /// The handshake has bytes to send on TCP, or accepts bytes again.
        const CLC = 128;
    }
}

/// Phase of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Server: waits for a Proposal, or holds one.
    Proposal,
    /// Server: waits for a Confirm.
    Confirm,
    /// Client: waits for an Accept, or holds one.
    Accept,
    /// Waits for CONFIRM_LINK.
    Link,
    /// Waits for the response to CONFIRM_RKEY, before it sends the prepared Accept or Confirm.
    Key,
    /// Complete.
    Done,
    /// Fell back to TCP.
    Fallback(Reason),
    /// Failed.
    Failed,
}

/// CLC state of a socket.
#[derive(Debug)]
pub(super) struct Handshake {
    pub phase: Phase,
    /// An incomplete or held message.
    pub input: Vec<u8>,
    /// CLC bytes still to be sent over TCP.
    pub output: Vec<u8>,
    /// Start of the handshake.
    pub opened: Instant,
    /// When the current phase times out.
    pub deadline: Instant,
    /// When a held message is retried.
    pub retry: Option<Instant>,
    /// Pause before the next retry.
    pub pause: Duration,
    /// This handshake creates the link group.
    pub first_contact: bool,
    /// The version that the peer understands (client: 2 until its Accept): it would ignore a Decline of a later
    /// version.
    pub version: u8,
    /// Accept or Confirm to send after the CONFIRM_RKEY response.
    pub held_back: Vec<u8>,
    /// As client: the response to CONFIRM_LINK is sent but not acknowledged, so the server may use SMC-R.
    pub answered: bool,
    /// Our Accept or Confirm is sent: the peer may write to our receive buffer.
    pub offered: bool,
    /// The buffer's key was sent to the peer.
    pub key_announced: bool,
    /// As server: the link of our Accept is lost. The client decides what follows: our Decline could cross its own, and
    /// be read as data.
    pub link_lost: bool,
}

/// Location and size of a peer's receive buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeerBuffer {
    /// 0 until known.
    pub size: u32,
    pub rkey: u32,
    /// Address of the connection's element (RMBE).
    pub address: u64,
    /// Offset of the element in the buffer (RMB).
    pub offset: u64,
    /// The peer's token of the connection.
    pub token: u32,
}

/// A socket. Positions are counts of bytes of the stream, from its beginning.
#[derive(Debug)]
pub(super) struct Socket {
    pub id: SocketId,
    pub role: Role,
    pub local: IpAddr,
    pub remote: IpAddr,
    /// The caller's tag, from [`super::Engine::open`].
    pub owner: u32,
    pub handshake: Option<Box<Handshake>>,
    pub group: Option<usize>,
    /// Index in `Group::members`.
    pub member: usize,
    /// Slot of the link in use.
    pub link: usize,
    /// A failover has moved the connection to this link.
    pub moved: bool,
    /// Slot of the link that the connection moves to, once all data that it has sent is acknowledged.
    pub returns: Option<usize>,
    pub state: State,
    pub established: bool,
    /// Our user has closed, and gets no more events.
    pub released: bool,
    /// Charged to the share of its host until it is removed, after our user has closed.
    pub pinned: bool,

    /// Receive buffer at the device of the connection's first link.
    pub rmb: Option<Region>,
    /// Protection domain of `rmb`.
    pub rmb_pd: PdId,
    /// Registrations at the devices of the group's other links.
    pub secondary_regions: Vec<SecondaryRegion>,
    pub rmb_size: u32,
    /// Sizes of its buffers.
    pub sizes: BufferSizes,
    /// Listed in `Engine::filled`.
    pub filled: bool,
    /// `produced` at the last search for idle buffers.
    pub swept: u64,
    /// Bytes written to the buffer at the last search for idle buffers.
    pub swept_written: u64,
    /// The peer has failed over, and has repeated WRITEs whose arrival it did not know of. So more bytes were written
    /// than announced, permanently.
    pub rewritten: bool,
    /// Announced by the peer.
    pub produced: u64,
    /// Read by our user.
    pub consumed: u64,
    /// Consumed as last sent to the peer.
    pub confirmed: u64,
    pub rx_seqno: u16,
    pub rx_producer: Producer,
    pub rx_end: End,
    /// `rx_end` was set by a timeout, not by the peer.
    pub end_missed: bool,
    /// Position behind the peer's unread urgent byte.
    pub rx_urgent: Option<u64>,

    pub buffer: Option<Window>,
    pub peer: PeerBuffer,
    /// Accepted from our user.
    pub accepted: u64,
    pub sent: u64,
    /// Acknowledged by the peer's queue pair.
    pub completed: u64,
    /// Consumed by the peer's user.
    pub peer_consumed: u64,
    /// Maximum of `sent`: more bytes may have arrived over a lost link than `sent` has after a failover.
    pub furthest: u64,
    pub tx_seqno: u16,
    /// Sequence number of the last acknowledged message.
    pub completed_seqno: u16,
    pub tx_end: End,
    /// Position behind our unsent urgent byte.
    pub tx_urgent: Option<u64>,
    /// CDC messages under way.
    pub in_flight: u16,

    /// A failover validation message is due.
    pub validate: bool,
    /// A CDC message is due, even without data.
    pub cdc_due: bool,
    /// The next CDC message requests an update.
    pub requests_update: bool,
    /// After a failover: when the peer is nudged.
    pub nudge: Option<Nudge>,
    /// Listed in `Engine::dirty`.
    pub dirty: bool,
    /// Listed in `Link::waiting`, for room on the link.
    pub waiting: bool,
    /// Our user found no room: a `WRITABLE` is due.
    pub wants_room: bool,
    pub wants_shutdown: bool,
    pub wants_close: bool,
    /// The close is an abort.
    pub aborts: bool,
    /// `CLOSED` was reported to our user.
    pub close_reported: bool,
    /// When an unfinished close becomes an abort.
    pub linger: Option<Instant>,
    /// The peer has sent a FIN on TCP: when its CLOSED or ABORT times out, and its last CDC sequence number at the FIN.
    pub tcp_finished: Option<(Instant, u16)>,
    pub ready: Ready,
    /// Listed in `Engine::announced`.
    pub announced: bool,
}

impl Socket {
    /// Queues events for the user.
    #[inline]
    pub fn announce(&mut self, ready: Ready, announced: &mut VecDeque<usize>) {
        self.ready |= ready;
        if !self.announced && !self.released {
            self.announced = true;
            announced.push_back(self.id.key());
        }
    }

    /// Marks the socket for the next flush.
    #[inline]
    pub fn touch(&mut self, dirty: &mut VecDeque<usize>) {
        if !core::mem::replace(&mut self.dirty, true) {
            dirty.push_back(self.id.key());
        }
    }

    pub fn new(id: SocketId, role: Role, ends: [IpAddr; 2], owner: u32, hs: Handshake) -> Self {
        let [local, remote] = ends;
        Socket {
            id,
            role,
            local,
            remote,
            owner,
            handshake: Some(Box::new(hs)),
            group: None,
            member: 0,
            link: 0,
            moved: false,
            returns: None,
            state: State::Init,
            established: false,
            released: false,
            pinned: false,
            rmb: None,
            rmb_pd: PdId(0),
            secondary_regions: Vec::new(),
            rmb_size: 0,
            sizes: BufferSizes { send: 0, receive: 0 },
            filled: false,
            swept: 0,
            swept_written: 0,
            rewritten: false,
            produced: 0,
            consumed: 0,
            confirmed: 0,
            rx_seqno: 0,
            rx_producer: Producer::empty(),
            rx_end: End::empty(),
            end_missed: false,
            rx_urgent: None,
            buffer: None,
            peer: PeerBuffer::default(),
            accepted: 0,
            sent: 0,
            furthest: 0,
            completed: 0,
            peer_consumed: 0,
            tx_seqno: 0,
            completed_seqno: 0,
            tx_end: End::empty(),
            tx_urgent: None,
            in_flight: 0,
            validate: false,
            cdc_due: false,
            requests_update: false,
            nudge: None,
            dirty: false,
            waiting: false,
            wants_room: false,
            wants_shutdown: false,
            wants_close: false,
            aborts: false,
            close_reported: false,
            linger: None,
            tcp_finished: None,
            ready: Ready::empty(),
            announced: false,
        }
    }

    pub fn phase(&self) -> Option<Phase> {
        self.handshake.as_ref().map(|hs| hs.phase)
    }

    /// Bytes that may be written to the peer's buffer now.
    pub fn window(&self) -> u64 {
        (u64::from(self.peer.size) + self.peer_consumed).saturating_sub(self.sent)
    }
}

/// State of a link group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupState {
    /// In first contact, by this socket.
    Making(usize),
    /// Accepts connections.
    Active,
    /// Ended; its queue pairs remain until this time, to acknowledge the peer's messages.
    Ending(Instant),
}

/// A link group: the links to a peer, and the peer's receive buffers.
#[derive(Debug)]
pub(super) struct Group {
    pub id: u32,
    pub role: Role,
    pub state: GroupState,
    /// Peer ID in the peer's Proposals (Linux: zero), by which a server finds the group.
    pub peer_id: PeerId,
    /// Peer ID in its Accept or Confirm.
    pub peer_name: PeerId,
    /// The peer's GID at first contact.
    pub peer_gid: Ipv6Addr,
    /// Version 1: the peer's MAC address at first contact.
    pub peer_mac: [u8; 6],
    /// The peer's TCP address at first contact: no other address joins the group.
    pub remote: IpAddr,
    /// 1 or 2. Version 1 has no EIDs and releases.
    pub version: u8,
    pub eid: Eid,
    pub release: u8,
    pub direct: bool,
    pub max_conns: u8,
    pub max_links: u8,
    pub order: Order,
    pub pd: PdId,
    pub links: [Option<Link>; LINKS],
    pub next_link: u8,
    /// Sockets of the group.
    pub members: Vec<usize>,
    /// Since when the group has no members.
    pub idle: Option<Instant>,
    /// Removed sockets whose receive buffers the peer has not released.
    pub retained: Vec<SocketId>,
    /// The group accepts no more connections.
    pub is_retiring: bool,
    /// The peer's receive buffers.
    pub buffers: PeerBuffers,
    pub flow: Option<(Flow, Instant)>,
    /// An offer of a second link is due.
    pub wants_link: bool,
    /// Version 1: our keys on a new link that are still to be sent.
    pub moves: Vec<KeyMove>,
    /// DELETE_LINK messages without a response.
    pub pending_deletes: [Option<PendingDelete>; LINKS],
    /// A link is missing: time of the next attempt, and the pause after it.
    pub remake: Option<(Instant, Duration)>,
    /// Revoked keys to be sent in DELETE_RKEY, with their protection domains.
    pub dead_keys: Vec<(PdId, u32)>,
    /// Sockets whose key is to be sent in CONFIRM_RKEY.
    pub new_keys: VecDeque<SocketId>,
    /// Sockets whose key is to be sent in CONFIRM_RKEY once the link that is being added is up.
    pub late_keys: Vec<SocketId>,
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// Queue pair not confirmed yet.
    Making,
    /// Carries connections.
    Active,
    /// Being deleted: messages of the peer are still received, until it has answered.
    Leaving,
}

/// A SEND under way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pending {
    Cdc {
        socket: SocketId,
        sent: u64,
        seqno: u16,
    },
    Llc,
    /// As client: the response to the first CONFIRM_LINK.
    Confirmation,
    /// An LLC message in the buffer for long messages.
    LongLlc,
}

/// The peer's end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerEnd {
    pub gid: Ipv6Addr,
    pub qpn: u32,
}

/// A link: a queue pair, and the messages under way on it.
#[derive(Debug)]
pub(super) struct Link {
    pub state: LinkState,
    /// Its number in LLC messages.
    pub number: u8,
    pub device: Device,
    /// The group's protection domain at the device.
    pub pd: PdId,
    /// Our GID.
    pub gid: Ipv6Addr,
    /// MAC address of the next hop to the peer.
    pub mac: [u8; 6],
    pub qp: QpId,
    pub qpn: u32,
    pub psn: u32,
    pub peer: PeerEnd,
    /// What we offer; after connecting, the smaller one of both sides.
    pub path_mtu: PathMtu,
    /// Receive slots, their common tail for long messages, and one long message to be sent.
    pub memory: Window,
    /// Unacknowledged SENDs.
    pub pending: VecDeque<Pending>,
    /// Number of acknowledged SENDs, modulo 2^16.
    pub arrived: u16,
    pub cdc_under_way: usize,
    pub long_under_way: bool,
    /// Sockets that wait for a CDC slot.
    pub waiting: VecDeque<usize>,
    pub last_rx: Instant,
    /// Deadline of a TEST_LINK under way.
    pub test: Option<Instant>,
}

/// Bytes of a long message behind the first 44.
pub(super) const TAIL: usize = crate::wire::llc::MAX_LEN - crate::wire::llc::LEN;
/// Offset of the tail in a link's memory.
const TAIL_AT: usize = RECEIVES * RECEIVE_STRIDE;
/// Offset of the long message to be sent.
const LONG_AT: usize = TAIL_AT + crate::wire::llc::MAX_LEN;
/// Bytes of a link's memory.
pub(super) const LINK_MEMORY: usize = LONG_AT + crate::wire::llc::MAX_LEN;

impl Link {
    /// The number of the next SEND.
    #[inline]
    pub fn next_send(&self) -> u16 {
        self.arrived.wrapping_add(self.pending.len() as u16)
    }

    /// Takes the oldest unacknowledged SEND, up to `send`.
    #[inline]
    pub fn take_arrived(&mut self, send: u16) -> Option<Pending> {
        if usize::from(send.wrapping_sub(self.arrived)) >= self.pending.len() {
            return None;
        }
        self.arrived = self.arrived.wrapping_add(1);
        self.pending.pop_front()
    }

    /// Forgets a socket that has moved to another link. What is under way here counts neither as its messages nor as
    /// its bytes: the socket sends its state, and unacknowledged bytes, again.
    pub fn disown(&mut self, id: SocketId) {
        for pending in &mut self.pending {
            if let Pending::Cdc { socket, .. } = pending
                && *socket == id
            {
                *socket = SocketId::NONE;
            }
        }
        self.waiting.retain(|key| *key != id.key());
    }

    /// The first 44 bytes of receive `n`, which is all of most messages.
    #[inline]
    pub fn head(&self, n: usize) -> Option<[u8; crate::wire::llc::LEN]> {
        self.memory.read_array(n * RECEIVE_STRIDE).ok()
    }

    /// Memory of receive `n`.
    #[inline]
    pub fn receive(&self, n: usize) -> [Window; 2] {
        let head = self.memory.slice(n * RECEIVE_STRIDE, crate::wire::llc::LEN);
        [head.unwrap_or(Window::empty()), self.tail()]
    }

    /// Posts a consumed receive again. Cannot fail for lack of room; in the error state its flush is reported as a
    /// completion.
    #[inline]
    pub fn repost<P: SmcDevice + ?Sized>(&self, id: u64, n: usize, provider: &mut P) {
        if !provider.repost_recv(self.qp, id) {
            let _ = provider.post_recv(self.qp, &RecvRequest { id, into: &self.receive(n) });
        }
    }

    pub fn tail(&self) -> Window {
        self.memory.slice(TAIL_AT, TAIL).unwrap_or(Window::empty())
    }

    /// As client: whether our response to the first CONFIRM_LINK is under way.
    pub fn answers_confirm(&self) -> bool {
        self.pending.iter().any(|pending| matches!(pending, Pending::Confirmation))
    }

    /// Whether the link uses neither the local port `here` nor the peer's port `there`.
    pub fn is_apart(&self, here: Ipv4Addr, there: Ipv6Addr) -> bool {
        self.device.ip != here && self.peer.gid != there
    }

    /// Memory for sending a long message of `len` bytes.
    pub fn long(&self, len: usize) -> Option<Window> {
        self.memory.slice(LONG_AT, len)
    }
}

impl Group {
    /// The peer's address in reports.
    #[inline(never)]
    pub fn peer(&self) -> IpAddr {
        if self.version == 1 { self.remote } else { address_of(self.peer_gid) }
    }

    /// The first link that carries connections.
    pub fn active_link(&self) -> Option<usize> {
        let active =
            |link: &Option<Link>| link.as_ref().is_some_and(|link| link.state == LinkState::Active);
        self.links.iter().position(active)
    }

    /// Links that carry connections.
    pub fn active_links(&self) -> usize {
        self.links.iter().flatten().filter(|link| link.state == LinkState::Active).count()
    }

    /// Whether another link would add redundancy: there is only one link, or two that share a port.
    #[inline(never)]
    pub fn lacks_link(&self) -> bool {
        let mut links = self.links.iter().flatten();
        let Some(one) = links.next() else { return false };
        match (links.next(), links.next()) {
            (None, _) => true,
            (Some(other), None) => {
                self.active_links() == 2 && !one.is_apart(other.device.ip, other.peer.gid)
            }
            _ => false,
        }
    }

    /// The asymmetric link, if the two others share no port: it shares one with each of them.
    pub fn superfluous_link(&self) -> Option<usize> {
        if self.active_links() < LINKS {
            return None;
        }
        let [Some(a), Some(b), Some(c)] = &self.links else { return None };
        let shares = |link: &Link, with: &Link, and: &Link| {
            link.device.ip == with.device.ip && link.peer.gid == and.peer.gid
        };
        let turns = [(a, b, c), (b, c, a), (c, a, b)];
        turns.iter().position(|&(link, one, two)| shares(link, one, two) || shares(link, two, one))
    }
}
