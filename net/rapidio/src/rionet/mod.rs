//! Ethernet over RapidIO messages (Linux `drivers/net/rionet.c`): a frame without FCS is a message of mailbox 0. Its
//! length is padded to a multiple of 8, so a received frame may end with padding.
//!
//! A MAC address is derived from a destination id. Peers join and leave by doorbells: JOIN, which a peer answers if the
//! sender was new to it, and LEAVE. Broadcasts and multicasts are sent to each joined peer individually, in parts if a
//! mailbox cannot hold all of them (`broadcast`).
//!
//! A stock peer does not answer a JOIN of a sender that it considers joined. So LEAVE is sent first, in case this end
//! point crashed without the peer noticing. A peer to which a message cannot be delivered counts as gone until it joins
//! again, which is requested every few seconds.

mod broadcast;
mod peers;

use crate::enumeration::Network;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use broadcast::{AT_ONCE, Broadcast};
use core::cell::{Cell, RefCell};
use core::time::Duration;
use drivers::hal::{Frame, Instant, Packet, Port, PortCounters, TransmitError, TransmitProgress};
use drivers::rapidio::{Destination, Doorbell, Mailbox, OpenPort, SendError, Undelivered};
use peers::Peers;

/// Mailbox for frames.
pub const MAILBOX: Mailbox = Mailbox::ALL[0];
/// Layer 3 packet that fits into the largest message.
pub const MTU: usize = MOST - HEADER;
/// Doorbell: the sender joins.
pub const JOIN: u16 = 0x1000;
/// Doorbell: the sender leaves.
pub const LEAVE: u16 = 0x1001;

const MOST: usize = 4096;
const HEADER: usize = 14;
/// First four bytes of MAC addresses; the last two are the id.
const PREFIX: [u8; 4] = [0, 1, 0, 1];
/// Maximum number of received frames that the port's user may hold.
const BUFFERS: usize = 64;
/// Interval of join requests to peers that have not joined.
const JOIN_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of doorbells that wait for room.
const MOST_DOORBELLS: usize = 1024;

/// A master port that is shared by engines of one loop.
pub type SharedPort = Rc<RefCell<OpenPort>>;

/// The MAC address for an id.
pub const fn mac_of(id: Destination) -> [u8; 6] {
    let [a, b, c, d] = PREFIX;
    let [high, low] = id.to_be_bytes();
    [a, b, c, d, high, low]
}

/// The id in a MAC address; None if the address is not a rionet one.
pub fn id_of(mac: [u8; 6]) -> Option<Destination> {
    let (prefix, id) = mac.split_first_chunk::<4>()?;
    (*prefix == PREFIX).then(|| u16::from_be_bytes([id[0], id[1]]))
}

/// Counters that [`PortCounters`] does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames to a MAC address that is not of a joined peer.
    pub tx_unknown: u64,
    /// Messages that are not frames, or not from a peer.
    pub rx_refused: u64,
    /// Messages that were not delivered.
    pub undelivered: u64,
}

/// State of the network's peers, shared by [`Rionet`] and [`Members`].
#[derive(Default)]
struct Shared {
    own_id: Destination,
    /// The network is enumerated.
    is_known: bool,
    peers: Peers,
    /// Doorbells that wait for room: destination and value.
    doorbells: VecDeque<(Destination, u16)>,
    /// Time of the last join requests.
    last_join: Instant,
    counters: Counters,
}

/// A master port as an Ethernet port. Its link is up while the network is known. Its MAC address is derived from its
/// id.
pub struct Rionet {
    port: SharedPort,
    shared: Rc<RefCell<Shared>>,
    buffers: Vec<Box<[u8; MOST]>>,
    free: Vec<u32>,
    refused_transmit: Cell<bool>,
    broadcast: Broadcast,
    counters: PortCounters,
}

/// The end point's side of the Ethernet port: sets the possible peers, and handles their doorbells.
pub struct Members {
    port: SharedPort,
    shared: Rc<RefCell<Shared>>,
}

/// An Ethernet port without peers, and its [`Members`]. Its mailbox must be open.
pub fn open(port: &SharedPort) -> (Rionet, Members) {
    let doorbells = VecDeque::with_capacity(MOST_DOORBELLS);
    let shared = Rc::new(RefCell::new(Shared { doorbells, ..Shared::default() }));
    let rionet = Rionet {
        port: port.clone(),
        shared: shared.clone(),
        buffers: (0..BUFFERS).map(|_| Box::new([0; MOST])).collect(),
        free: (0..BUFFERS as u32).rev().collect(),
        refused_transmit: Cell::new(false),
        broadcast: Broadcast::new(),
        counters: PortCounters::default(),
    };
    (rionet, Members { port: port.clone(), shared })
}

impl Members {
    /// Sets the possible peers after the network was enumerated or has changed. Sends joins to new ones.
    pub fn set_network(&mut self, network: &Network) {
        let shared = &mut *self.shared.borrow_mut();
        shared.own_id = network.own_id;
        shared.is_known = true;
        let all = network.end_points().filter(|device| device.has_messages());
        for id in shared.peers.update(all.map(|device| device.id)) {
            shared.ring(&self.port, id, LEAVE);
            shared.ring(&self.port, id, JOIN);
        }
    }

    /// Removes all peers, because the network is not known any more.
    pub fn network_lost(&mut self) {
        let shared = &mut *self.shared.borrow_mut();
        shared.is_known = false;
        shared.doorbells.clear();
        shared.peers.update(core::iter::empty());
    }

    /// Sends a leave to all peers.
    pub fn leave(&mut self) {
        let shared = &mut *self.shared.borrow_mut();
        for id in shared.peers.all() {
            shared.ring(&self.port, id, LEAVE);
        }
    }

    /// Handles a received doorbell; false if it is not one of rionet's.
    pub fn on_doorbell(&mut self, doorbell: &Doorbell) -> bool {
        let shared = &mut *self.shared.borrow_mut();
        match doorbell.info {
            JOIN => {
                if shared.peers.join(doorbell.from) {
                    shared.ring(&self.port, doorbell.from, JOIN);
                }
            }
            LEAVE => shared.peers.leave(doorbell.from),
            _ => return false,
        }
        true
    }

    /// Handles an undelivered message of mailbox 0: its receiver counts as gone.
    pub fn undelivered(&mut self, what: &Undelivered) {
        let shared = &mut *self.shared.borrow_mut();
        shared.counters.undelivered += 1;
        shared.peers.leave(what.to);
    }

    /// Sends waiting doorbells, and periodically joins to peers that have not joined.
    pub fn poll(&mut self, now: Instant) {
        let shared = &mut *self.shared.borrow_mut();
        shared.send_doorbells(&self.port);
        if now.since(shared.last_join) < JOIN_INTERVAL || !shared.is_known {
            return;
        }
        shared.last_join = now;
        for id in shared.peers.absent() {
            shared.ring(&self.port, id, LEAVE);
            shared.ring(&self.port, id, JOIN);
        }
    }

    /// When [`Members::poll`] must be called; None if all peers have joined.
    pub fn deadline(&self) -> Option<Instant> {
        let shared = self.shared.borrow();
        (shared.is_known && shared.peers.has_absent()).then_some(shared.last_join + JOIN_INTERVAL)
    }

    /// Whether a peer has joined.
    pub fn is_active(&self, id: Destination) -> bool {
        self.shared.borrow().peers.is_active(id)
    }

    /// Number of joined peers.
    pub fn active_count(&self) -> usize {
        self.shared.borrow().peers.active_count()
    }

    /// Counters beside [`Port::counters`].
    pub fn counters(&self) -> Counters {
        self.shared.borrow().counters
    }
}

impl Shared {
    fn ring(&mut self, port: &SharedPort, to: Destination, info: u16) {
        if self.doorbells.len() < MOST_DOORBELLS {
            self.doorbells.push_back((to, info));
        }
        self.send_doorbells(port);
    }

    fn send_doorbells(&mut self, port: &SharedPort) {
        while let Some(&(to, info)) = self.doorbells.front() {
            if port.borrow_mut().ring_doorbell(to, info).is_err() {
                return;
            }
            self.doorbells.pop_front();
        }
    }
}

impl Rionet {
    fn send_to(&mut self, id: Destination, packet: &Packet<'_>) -> Result<(), TransmitError> {
        let sent = self.port.borrow_mut().send(MAILBOX, id, packet);
        match sent {
            Ok(()) => Ok(()),
            Err(SendError::Full) => Err(TransmitError::Full),
            Err(SendError::Length) => Err(TransmitError::TooLarge),
            // The link is down: the frame is lost.
            Err(SendError::Closed) => Ok(()),
        }
    }

    /// Continues a broadcast, as far as the mailbox has room; true once all peers have it.
    fn broadcast(&mut self) -> bool {
        while self.broadcast.in_progress() {
            let shared = self.shared.borrow();
            let Some((to, frame)) = self.broadcast.next(&shared.peers) else { return true };
            let packet = Packet { header: frame, payload: &[], trailer: &[] };
            if self.port.borrow_mut().send(MAILBOX, to, &packet) == Err(SendError::Full) {
                return false;
            }
            self.broadcast.was_sent(to);
        }
        true
    }

    fn count(&mut self, packet: &Packet<'_>) {
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += packet.len() as u64;
    }

    fn refuse(&mut self) {
        self.counters.tx_full += 1;
        self.refused_transmit.set(true);
    }
}

impl Port for Rionet {
    fn mac(&self) -> [u8; 6] {
        mac_of(self.shared.borrow().own_id)
    }

    fn mtu(&self) -> usize {
        MTU
    }

    fn link_up(&mut self) -> bool {
        self.shared.borrow().is_known && self.port.borrow().link_up()
    }

    fn receive(&mut self) -> Option<Frame> {
        let port = &mut *self.port.borrow_mut();
        loop {
            let buffer = self.free.last().copied()?;
            let message = port.receive(MAILBOX)?;
            let len = usize::from(message.len);
            let is_frame = len >= HEADER && self.shared.borrow().peers.knows(message.from);
            let place = self.buffers.get_mut(buffer as usize).map(|bytes| &mut bytes[..]);
            let place = place.and_then(|bytes| bytes.get_mut(..len)).filter(|_| is_frame);
            let copied = place.map(|bytes| port.payload(&message).read(0, bytes));
            port.recycle(message);
            if copied != Some(Ok(())) {
                self.shared.borrow_mut().counters.rx_refused += 1;
                continue;
            }
            self.free.pop();
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += len as u64;
            return Some(Frame { buffer, len: len as u32 });
        }
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        let bytes = self.buffers.get(frame.buffer as usize);
        bytes.and_then(|bytes| bytes.get(..frame.len as usize)).unwrap_or_default()
    }

    fn recycle(&mut self, frame: Frame) {
        self.free.push(frame.buffer);
    }

    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        if packet.len() > MOST {
            return Err(TransmitError::TooLarge);
        }
        let Some(mac) = packet.header.first_chunk::<6>() else {
            return Err(TransmitError::TooLarge);
        };
        if mac[0] & 1 != 0 {
            let count = self.shared.borrow().peers.active_count();
            let has_room =
                self.broadcast() && self.port.borrow().has_room(MAILBOX, count.min(AT_ONCE));
            if !has_room {
                self.refuse();
                return Err(TransmitError::Full);
            }
            if count > AT_ONCE {
                if !self.broadcast.begin(packet) {
                    return Err(TransmitError::TooLarge);
                }
                self.count(packet);
                self.broadcast();
                return Ok(());
            }
            for n in 0..count {
                let Some(id) = self.shared.borrow().peers.active(n) else { break };
                self.send_to(id, packet)?;
            }
            self.count(packet);
            return Ok(());
        }
        let id = id_of(*mac).filter(|id| self.shared.borrow().peers.is_active(*id));
        let Some(id) = id else {
            self.shared.borrow_mut().counters.tx_unknown += 1;
            return Ok(());
        };
        let sent = self.send_to(id, packet);
        match sent {
            Ok(()) => self.count(packet),
            Err(_) => self.refuse(),
        }
        sent
    }

    /// Frames are copied.
    fn progress(&mut self) -> TransmitProgress {
        TransmitProgress::NOTHING_HELD
    }

    fn flush(&mut self) {
        self.broadcast();
        self.port.borrow_mut().flush();
    }

    fn set_interrupts(&mut self, wanted: bool) {
        self.port.borrow_mut().set_interrupts(wanted);
    }

    fn pending(&self) -> bool {
        let port = self.port.borrow();
        port.pending()
            || self.refused_transmit.get() && self.has_room()
            || self.broadcast.in_progress() && port.has_room(MAILBOX, 1)
    }

    fn has_room(&self) -> bool {
        let most = self.shared.borrow().peers.active_count().clamp(1, AT_ONCE);
        let room = !self.broadcast.in_progress() && self.port.borrow().has_room(MAILBOX, most);
        if room {
            self.refused_transmit.set(false);
        }
        room
    }

    fn wakes(&self) -> bool {
        self.port.borrow().wakes()
    }

    fn counters(&self) -> PortCounters {
        PortCounters { interrupts: self.port.borrow().counters().interrupts, ..self.counters }
    }
}
