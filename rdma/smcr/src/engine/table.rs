//! Sockets, link groups and links.

use super::State;
use super::config::{Device, address_of};
use super::devices::Elsewhere;
use super::flow::Flow;
use super::ids::SocketId;
use super::peer_buffers::PeerBuffers;
use crate::wire::cdc::{End, Producer};
use crate::wire::llc::{DeleteReason, KeyMove, Order};
use crate::wire::{Eid, PeerId, Reason};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;
use drivers::hal::{Instant, Window};
use verbs::{PathMtu, PdId, Provider, QpId, RecvRequest, Region};

/// Links of a group: two, and a third while one replaces another.
pub(super) const LINKS: usize = 3;
/// CDC messages that a link may have under way: a third of the receives that Linux posts.
pub(super) const CDC_SLOTS: usize = 16;
/// LLC messages likewise.
pub(super) const LLC_SLOTS: usize = 16;
/// Receives that a link has posted.
pub(super) const RECEIVES: usize = 64;
/// Bytes between receives, of which a message fills 44.
pub(super) const RECEIVE_STRIDE: usize = 64;
/// Peers' buffers that a group remembers; Linux has as many.
pub(super) const TOKENS: usize = 255;

/// Who listened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// We proposed.
    Client,
    /// The peer proposed.
    Server,
}

bitflags::bitflags! {
    /// What has happened to a socket.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Ready: u8 {
        /// It may send and receive.
        const ESTABLISHED = 1;
        /// There is something to read, or the end.
        const READABLE = 2;
        /// There is room to write again.
        const WRITABLE = 4;
        /// TCP carries the bytes from here on, see [`super::Engine::fallback`]: what CLC still has to
        /// say goes first, then the socket is closed.
        const FALLBACK = 8;
        /// The handshake broke off: the TCP connection is useless.
        const FAILED = 16;
        /// The connection is lost: aborted by the peer, or with its last link.
        const ABORTED = 32;
        /// Both sides have closed.
        const CLOSED = 64;
        /// The handshake has something to say on TCP, or takes bytes again.
        const CLC = 128;
    }
}

/// Where a handshake stands.
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
    /// Waits for the answer to CONFIRM_RKEY; then comes the Accept or Confirm, which is ready.
    Key,
    /// Nothing is left to wait for.
    Done,
    /// Back to TCP.
    Fallback(Reason),
    /// Broken off.
    Failed,
}

/// A handshake: the CLC side of a socket.
#[derive(Debug)]
pub(super) struct Handshake {
    pub phase: Phase,
    /// A message that is not complete, or held.
    pub input: Vec<u8>,
    /// What TCP has not taken yet.
    pub output: Vec<u8>,
    /// Since when.
    pub opened: Instant,
    /// When patience ends.
    pub deadline: Instant,
    /// When a held message is looked at again, and the pause before that.
    pub retry: Option<Instant>,
    pub pause: Duration,
    /// We make the link group.
    pub first_contact: bool,
    /// The version that the peer knows (client: 2 until its Accept): a Decline of a later one is none
    /// to it.
    pub version: u8,
    /// What the answer to CONFIRM_RKEY lets out.
    pub held_back: Vec<u8>,
    /// As client: CONFIRM_LINK was answered, and whether the server has that is not known: it may be on SMC-R.
    pub answered: bool,
    /// Our Accept or Confirm has gone out: the peer may write to our receive buffer.
    pub offered: bool,
    /// The peer was told the buffer's key.
    pub told_key: bool,
    /// As server: the link that our Accept named is gone. What the peer makes of that is its word: a Decline
    /// of ours could meet its own, and be taken for data.
    pub link_lost: bool,
}

/// Where a peer's buffer is, and how large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PeerBuffer {
    /// 0 while it is not known.
    pub size: u32,
    pub rkey: u32,
    /// Of the connection's element.
    pub address: u64,
    /// Where the element lies in the buffer.
    pub offset: u64,
    /// The peer's name of the connection.
    pub token: u32,
}

/// A socket. Positions are counts of bytes of the stream, from its beginning.
#[derive(Debug)]
pub(super) struct Socket {
    pub id: SocketId,
    pub role: Role,
    pub local: IpAddr,
    pub remote: IpAddr,
    /// Whose it is, in the words of who opened it.
    pub owner: u32,
    pub handshake: Option<Box<Handshake>>,
    pub group: Option<usize>,
    /// Its place among the members of its group.
    pub member: usize,
    /// The link that it uses.
    pub link: usize,
    pub state: State,
    pub established: bool,
    /// Our user has closed: it hears nothing more.
    pub released: bool,
    /// It is, and counts against the share of its host until it is gone.
    pub pinned: bool,

    /// As the device has it of the link on which the connection began, in this domain; and others of the group's.
    pub rmb: Option<Region>,
    pub rmb_pd: PdId,
    pub elsewhere: Vec<Elsewhere>,
    pub rmb_size: u32,
    /// It stands in the list of those whose buffer may have memory.
    pub filled: bool,
    /// `produced`, and what was written, when buffers of silent connections were looked for.
    pub swept: u64,
    pub swept_written: u64,
    /// The peer has gone on over another link, and written again what it did not know to have arrived: more
    /// was written than was told of, and always will be.
    pub rewritten: bool,
    /// Written by the peer, read by our user, and told so to the peer.
    pub produced: u64,
    pub consumed: u64,
    pub confirmed: u64,
    pub rx_seqno: u16,
    pub rx_producer: Producer,
    pub rx_end: End,
    /// Its end is not the peer's word: that was missed.
    pub end_missed: bool,
    /// Position behind the peer's urgent byte that was not read yet.
    pub rx_urgent: Option<u64>,

    pub buffer: Option<Window>,
    pub peer: PeerBuffer,
    /// Taken from our user, sent, known to have arrived, and consumed by the peer's user.
    pub accepted: u64,
    pub sent: u64,
    pub completed: u64,
    pub peer_consumed: u64,
    /// The most that was ever sent: over a link that is gone, more may have arrived than `sent` says.
    pub furthest: u64,
    pub tx_seqno: u16,
    /// The last message that is known to have arrived.
    pub completed_seqno: u16,
    pub tx_end: End,
    /// Position behind our urgent byte that is not sent yet.
    pub tx_urgent: Option<u64>,
    /// CDC messages under way.
    pub in_flight: u16,

    /// After a failover: the peer is to be told how far it must have heard us.
    pub validate: bool,
    /// A CDC message is to be sent even without data.
    pub speak: bool,
    /// It asks the peer to say something.
    pub asks: bool,
    /// After a failover: when the peer is asked for what it holds back.
    pub nudge: Option<Nudge>,
    /// It stands in the list of those that may have something to send.
    pub dirty: bool,
    /// It waits for room on its link.
    pub waiting: bool,
    /// Our user was told that there is no room.
    pub wants_room: bool,
    pub wants_shutdown: bool,
    pub wants_close: bool,
    /// It ends by an abort.
    pub aborts: bool,
    /// Our user was told that both sides have closed.
    pub told_closed: bool,
    /// When the sending of the rest ends in an abort.
    pub linger: Option<Instant>,
    /// The peer has ended the TCP connection: when its word on the end of this one is missed, and the last
    /// message from it until then.
    pub tcp_finished: Option<(Instant, u16)>,
    pub ready: Ready,
    /// It stands in the list of those whose user has something to hear.
    pub announced: bool,
}

impl Socket {
    /// Has its user told.
    #[inline]
    pub fn announce(&mut self, ready: Ready, announced: &mut VecDeque<usize>) {
        self.ready |= ready;
        if !self.announced && !self.released {
            self.announced = true;
            announced.push_back(self.id.key());
        }
    }

    /// Has it looked at by the next flush.
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
            state: State::Init,
            established: false,
            released: false,
            pinned: false,
            rmb: None,
            rmb_pd: PdId(0),
            elsewhere: Vec::new(),
            rmb_size: 0,
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
            speak: false,
            asks: false,
            nudge: None,
            dirty: false,
            waiting: false,
            wants_room: false,
            wants_shutdown: false,
            wants_close: false,
            aborts: false,
            told_closed: false,
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

/// Where a link group stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupState {
    /// At its first contact, by this socket.
    Making(usize),
    /// It takes connections.
    Active,
    /// Its end was said; its queue pairs stay until then, to acknowledge that.
    Ending(Instant),
}

/// When a peer is asked for what it holds back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nudge {
    pub at: Instant,
    /// How long nothing had moved then.
    pub pause: Duration,
    /// Bytes in both directions when that was last looked at.
    pub moved: u64,
}

/// A DELETE_LINK that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Farewell {
    /// The number of the link that goes.
    pub number: u8,
    pub reason: DeleteReason,
    /// When it is said again, and how often it may be.
    pub again: Instant,
    pub left: u8,
}

/// A link group: the links with a peer, and what is known of the peer's buffers.
#[derive(Debug)]
pub(super) struct Group {
    pub id: u32,
    pub role: Role,
    pub state: GroupState,
    /// What the peer's Proposals call it (Linux: nothing), by which a server knows it again.
    pub peer_id: PeerId,
    /// What its Accept or Confirm called it.
    pub peer_name: PeerId,
    /// The peer's GID at first contact.
    pub peer_gid: Ipv6Addr,
    /// Version 1: its MAC address then.
    pub peer_mac: [u8; 6],
    /// The peer's TCP address then: nobody else joins the group in its name.
    pub remote: IpAddr,
    /// 1 or 2. Version 1 has no enterprises and releases.
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
    /// Sockets that use it.
    pub members: Vec<usize>,
    /// Since when there are none.
    pub idle: Option<Instant>,
    /// Sockets that are gone, and whose receive buffers the peer has not let go of.
    pub retained: Vec<SocketId>,
    /// It takes no more connections.
    pub is_retiring: bool,
    /// The peer's buffers: where each is, on each link.
    pub buffers: PeerBuffers,
    pub flow: Option<(Flow, Instant)>,
    /// A second link is to be offered.
    pub wants_link: bool,
    /// Version 1: our keys on a new link, as far as the peer was not told them yet.
    pub moves: Vec<KeyMove>,
    /// Links whose end the peer was told, and has not answered.
    pub farewells: [Option<Farewell>; LINKS],
    /// A link is missing: when it is tried again to make it, and how long to wait after that.
    pub remake: Option<(Instant, Duration)>,
    /// Keys whose end the peer is to be told, each as one device or another has it.
    pub dead_keys: Vec<(PdId, u32)>,
    /// Sockets whose key the peer is to be told.
    pub new_keys: VecDeque<SocketId>,
    /// Likewise, once the link stands that was being made when they came.
    pub late_keys: Vec<SocketId>,
}

/// Where a link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    /// Its queue pair is not confirmed yet.
    Making,
    /// It carries connections.
    Active,
    /// It goes: what the peer sends on it is still heard, until it has answered.
    Leaving,
}

/// What a SEND under way was.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pending {
    Cdc {
        socket: SocketId,
        sent: u64,
        seqno: u16,
    },
    Llc,
    /// As client: the answer to the first CONFIRM_LINK.
    Confirmation,
    /// One that lies in the buffer for long messages.
    LongLlc,
}

/// The peer's end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerEnd {
    pub gid: Ipv6Addr,
    pub qpn: u32,
}

/// A link: a queue pair, and what is under way on it.
#[derive(Debug)]
pub(super) struct Link {
    pub state: LinkState,
    /// Its number in LLC messages.
    pub number: u8,
    pub device: Device,
    /// The group's domain at the device.
    pub pd: PdId,
    /// Our GID.
    pub gid: Ipv6Addr,
    /// MAC address of the next hop to the peer.
    pub mac: [u8; 6],
    pub qp: QpId,
    pub qpn: u32,
    pub psn: u32,
    pub peer: PeerEnd,
    pub path_mtu: PathMtu,
    /// Receives, a tail for long messages that they share, and one long message to be sent.
    pub memory: Window,
    /// SENDs that are not known to have arrived, and how many are, modulo 2^16.
    pub pending: VecDeque<Pending>,
    pub arrived: u16,
    pub cdc_under_way: usize,
    pub long_under_way: bool,
    /// Sockets that wait for room.
    pub waiting: VecDeque<usize>,
    pub heard: Instant,
    /// A test is under way; when patience with it ends.
    pub test: Option<Instant>,
}

/// Bytes of a long message behind the first 44.
pub(super) const TAIL: usize = crate::wire::llc::MAX_LEN - crate::wire::llc::LEN;
/// Where the tail and the long message to be sent lie in a link's memory.
const TAIL_AT: usize = RECEIVES * RECEIVE_STRIDE;
const LONG_AT: usize = TAIL_AT + crate::wire::llc::MAX_LEN;
/// Bytes of a link's memory.
pub(super) const LINK_MEMORY: usize = LONG_AT + crate::wire::llc::MAX_LEN;

impl Link {
    /// The number of the next SEND.
    #[inline]
    pub fn next_send(&self) -> u16 {
        self.arrived.wrapping_add(self.pending.len() as u16)
    }

    /// The oldest SEND that was not known to have arrived, up to this one, which has.
    #[inline]
    pub fn take_arrived(&mut self, send: u16) -> Option<Pending> {
        if usize::from(send.wrapping_sub(self.arrived)) >= self.pending.len() {
            return None;
        }
        self.arrived = self.arrived.wrapping_add(1);
        self.pending.pop_front()
    }

    /// What a message in receive `n` begins with, which is all of most.
    #[inline]
    pub fn head(&self, n: usize) -> Option<[u8; crate::wire::llc::LEN]> {
        self.memory.read_array(n * RECEIVE_STRIDE).ok()
    }

    /// Where receive `n` puts a message.
    #[inline]
    pub fn receive(&self, n: usize) -> [Window; 2] {
        let head = self.memory.slice(n * RECEIVE_STRIDE, crate::wire::llc::LEN);
        [head.unwrap_or(Window::empty()), self.tail()]
    }

    /// Posts a receive again, which was just taken: there is room for it. In the error state its flush will be heard of.
    #[inline]
    pub fn repost<P: Provider + ?Sized>(&self, id: u64, n: usize, provider: &mut P) {
        if !provider.repost_recv(self.qp, id) {
            let _ = provider.post_recv(self.qp, &RecvRequest { id, into: &self.receive(n) });
        }
    }

    pub fn tail(&self) -> Window {
        self.memory.slice(TAIL_AT, TAIL).unwrap_or(Window::empty())
    }

    /// As client: whether our answer to the first CONFIRM_LINK is under way.
    pub fn answers_confirm(&self) -> bool {
        self.pending.iter().any(|pending| matches!(pending, Pending::Confirmation))
    }

    /// Whether it uses neither port: not this one here, and not that one there.
    pub fn is_apart(&self, here: Ipv4Addr, there: Ipv6Addr) -> bool {
        self.device.ip != here && self.peer.gid != there
    }

    /// Where a long message of `len` bytes is sent from.
    pub fn long(&self, len: usize) -> Option<Window> {
        self.memory.slice(LONG_AT, len)
    }
}

impl Group {
    /// The peer, as people call it.
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

    /// Whether one more link would make it safer: there is one, or there are two that share a port.
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

    /// The asymmetric link, once two others share no port: it shares one with each of them.
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
