//! Queue pair 1, with the MADs of the connection manager ([`cm`]). The card does not report the source MAC address of a
//! MAD: answers go to the address in the neighbour table ([`ConnectX::learn_neighbour`]).

use super::context::{Make, Service, gid};
use super::memory::Buffer;
use super::pair::{RECORD, destination, source};
use super::receive_queue::{ReceiveQueue, Shape};
use super::requests::{self, RequestLimits};
use super::ring::{Entry, Kind};
use super::send_queue::{LONGEST, OnCompletion, SendQueue, Success};
use super::{ConnectX, Error};
use alloc::collections::VecDeque;
use cm::wire::mad;
use cm::{Arrival, Cm, Counted, Manager, Transport};
use core::net::IpAddr;
use drivers::hal::{Arena, Instant, Window};
use net::refusal::Refusals;
use verbs::{
    ConnectionId, DatagramTo, GidType, PathMtu, Payload, QpId, QpState, QpType, RecvRequest,
    SendOperation, SendRequest, SendWith, VerbsError,
};

/// Identifier of queue pair 1 in completions (`user_index`).
pub const USER: u32 = 0xff_fffd;
/// MADs in flight, and posted receives, as log2.
const SENDS_LOG: u32 = 5;
const RECEIVES_LOG: u32 = 7;
/// Blocks of a MAD to send, as log2: control, address, a memory segment.
const BLOCKS_LOG: u32 = 1;
/// Bytes before a datagram in its receive.
const HEADER: usize = 40;
/// Bytes of a receive: header and MAD.
const RECEIVE: usize = 512;

/// The bytes before a datagram in its receive.
pub fn header(windows: &[Window]) -> [u8; HEADER] {
    let (mut header, mut at) = ([0; HEADER], 0);
    for window in windows {
        let count = window.len().min(HEADER - at);
        if let Some(part) = header.get_mut(at..at + count) {
            let _ = window.read(0, part);
        }
        at += count;
    }
    header
}

/// Queue pair 1.
pub struct Management {
    number: u32,
    sends: SendQueue,
    receives: ReceiveQueue,
    buffer: Buffer,
    record: Window,
    /// Memory of sent MADs.
    sent: Window,
    received: Window,
    next: usize,
    /// MADs that arrived in this round.
    arrived: VecDeque<(Arrival, [u8; mad::LEN])>,
}

impl Management {
    pub fn new(arena: &mut Arena) -> Result<Self, Error> {
        let shape = Self::shape();
        let bytes = shape.bytes() + (64 << (SENDS_LOG + BLOCKS_LOG));
        let mut alloc = |bytes| arena.alloc(bytes, 64).ok_or(Error::NoMemory);
        let sent = alloc(mad::LEN << SENDS_LOG)?;
        let received = alloc(RECEIVE << RECEIVES_LOG)?;
        let record = alloc(RECORD)?;
        let buffer = Buffer::new(bytes, arena).map_err(|_| Error::NoMemory)?;
        let (sends, receives) = Self::queues(&buffer, record)?;
        Ok(Management {
            number: 0,
            sends,
            receives,
            buffer,
            record,
            sent,
            received,
            next: 0,
            arrived: VecDeque::with_capacity(1 << RECEIVES_LOG),
        })
    }

    fn shape() -> Shape {
        Shape::new(1 << RECEIVES_LOG, 1)
    }

    fn queues(buffer: &Buffer, record: Window) -> Result<(SendQueue, ReceiveQueue), Error> {
        let (shape, memory) = (Self::shape(), &buffer.window);
        record.fill(0);
        let (log, limit) = (SENDS_LOG + BLOCKS_LOG, 1 << SENDS_LOG);
        let sends = SendQueue::new(memory, shape.bytes(), log, record, limit, 1 << BLOCKS_LOG);
        let receives = ReceiveQueue::new(memory, record, shape, 1 << RECEIVES_LOG, 1, false);
        Ok((sends.map_err(|_| Error::NoMemory)?, receives.map_err(|_| Error::NoMemory)?))
    }

    /// Its memory.
    pub fn memory(&self) -> [Window; 4] {
        [self.buffer.window, self.record, self.sent, self.received]
    }

    /// Whether MADs have arrived that were not handled yet.
    pub fn has_arrivals(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Drops everything after a reset of the card.
    pub fn reset(&mut self) {
        while self.sends.drop_oldest().is_some() {}
        self.arrived.clear();
    }

    /// Posts the receive with this number.
    fn post(&mut self, number: u64, key: u32) {
        let into = self.received.slice(number as usize * RECEIVE, RECEIVE);
        let into = into.unwrap_or(Window::empty());
        // There is room: a receive is posted again only after its completion.
        let _ = self.receives.post(&RecvRequest { id: number, into: &[into] }, key);
    }
}

impl ConnectX {
    /// Makes queue pair 1.
    pub(super) fn make_management(&mut self) -> Result<(), Error> {
        let Management { buffer, record, .. } = self.management;
        let shape = Management::shape();
        let make = Make {
            service: Service::Management,
            domain: self.own_domain.0,
            page: self.abilities.page,
            completions: [self.ring.completions.number(); 2],
            counters: self.readings.set,
            user: USER,
            buffer,
            record,
            receives: Some((shape.log, shape.log_bytes)),
            send_log: SENDS_LOG + BLOCKS_LOG,
        };
        (self.management.sends, self.management.receives) = Management::queues(&buffer, record)?;
        let number = self.make_own_pair(&make, mad::GSI_QKEY)?;
        self.reserved += 1 << SENDS_LOG | 1 << RECEIVES_LOG;
        self.management.number = number;
        self.management.sends.set_number(number);
        (0..1 << RECEIVES_LOG).for_each(|n| self.management.post(n, self.own_domain.1));
        Ok(())
    }

    /// Takes an answer of the neighbour table: the next hop to a host, and whether that is a router.
    pub fn learn_neighbour(&mut self, ip: IpAddr, mac: [u8; 6], routed: bool) {
        Manager::of(self).learn_neighbour(0, ip, mac, routed);
    }

    /// Adds a host, like a permanent entry of a neighbour table.
    pub fn pin_neighbour(&mut self, ip: IpAddr, mac: [u8; 6]) {
        self.cm.pin_neighbour(0, ip, mac);
    }

    /// The neighbour table failed to resolve a host.
    pub fn lose_neighbour(&mut self, ip: IpAddr) {
        let now = self.now;
        Manager::of(self).lose_neighbour(0, ip, now);
    }

    /// The next host that the neighbour table is to resolve. Messages of the host wait for the answer.
    pub fn next_stranger(&mut self) -> Option<IpAddr> {
        self.cm.next_wanted().map(|(_, host)| host)
    }

    /// Refused connection requests, for the caller to take out.
    pub fn refusals(&mut self) -> &mut Refusals {
        self.cm.refusals()
    }

    /// Disconnects all connections in order.
    pub fn disconnect_all(&mut self, now: Instant) {
        Manager::of(self).disconnect_all(now);
    }

    /// Whether all peers have answered, or need not answer.
    pub fn is_disconnected(&self) -> bool {
        self.cm.is_disconnected()
    }

    pub(super) fn management_entry(&mut self, entry: &Entry) {
        if entry.number != self.management.number {
            return;
        }
        match entry.kind {
            Kind::Requested => {
                while let Some((_, is_last)) = self.management.sends.retire(entry.counter)
                    && !is_last
                {}
            }
            Kind::Send | Kind::SendImmediate => self.handle_mad_entry(entry),
            // Queue pair 1 has failed.
            _ => self.function.reset(),
        }
    }

    fn handle_mad_entry(&mut self, entry: &Entry) {
        let management = &mut self.management;
        let Some(number) = management.receives.retire(entry.counter) else {
            self.counters.completions_unknown += 1;
            return;
        };
        let place = number as usize * RECEIVE;
        let (mut front, mut mad) = ([0; HEADER], [0; mad::LEN]);
        let read = management.received.read(place, &mut front);
        let read = read.and_then(|()| management.received.read(place + HEADER, &mut mad));
        let is_whole = entry.length as usize >= HEADER + mad::LEN && read.is_ok();
        management.post(number, self.own_domain.1);
        self.counters.mads_received += 1;
        let from = source(&front, entry.is_ipv4);
        if !is_whole || entry.source != mad::GSI_QPN {
            self.counters.mads_dropped += 1;
            return;
        }
        let traffic_class = match entry.is_ipv4 {
            true => front[21],
            false => front[0] << 4 | front[1] >> 4,
        };
        let arrival = Arrival {
            place: 0,
            source: from,
            destination: destination(&front, entry.is_ipv4),
            is_mapped: !entry.is_ipv4 && from.is_ipv4(),
            source_mac: None,
            gid_type: GidType::RoceV2,
            traffic_class,
        };
        let queue = &mut self.management.arrived;
        if queue.len() == 1 << RECEIVES_LOG {
            // The oldest MAD is the likeliest to be retransmitted.
            queue.pop_front();
            self.counters.mads_dropped += 1;
        }
        queue.push_back((arrival, mad));
    }

    /// Passes received MADs to the connection manager, runs its timers, and sends its messages.
    #[inline]
    pub(super) fn manage(&mut self, now: Instant) {
        while let Some((arrival, mad)) = self.management.arrived.pop_front() {
            Manager::of(self).handle_mad(&arrival, &mad, now);
        }
        if self.cm.deadline().is_some_and(|at| at <= now) {
            Manager::of(self).run_timers(now);
        }
        if self.cm.has_messages() && self.is_up() {
            self.send_mads();
        }
    }

    fn send_mads(&mut self) {
        while self.management.sends.has_room()
            && let Some(datagram) = Manager::of(self).next_datagram(0)
        {
            let management = &mut self.management;
            let place = management.next % (1 << SENDS_LOG) * mad::LEN;
            let Some(window) = management.sent.slice(place, mad::LEN) else { continue };
            let _ = window.write(0, &datagram.bytes);
            let local = datagram.address.local;
            let Some(index) = self.addresses.iter().position(|known| *known == Some(local)) else {
                continue;
            };
            let windows = [window];
            let to = DatagramTo {
                address: datagram.address,
                remote_qpn: mad::GSI_QPN,
                remote_qkey: mad::GSI_QKEY,
            };
            let request = SendRequest {
                id: 0,
                operation: SendOperation::Send {
                    payload: Payload::Windows(&windows),
                    with: SendWith::Nothing,
                },
                signaled: false,
                solicited: false,
                datagram: Some(to),
                carries: None,
                ack_lazily: false,
            };
            let limits = RequestLimits { windows: 1, inline: 0, message: mad::LEN };
            let mut words = [0; LONGEST];
            let key = self.own_domain.1;
            let built =
                requests::build(&request, key, &limits, Some((&to, index as u8)), &mut words);
            let Ok(control) = built else { continue };
            let then = OnCompletion::User { id: 0, success: Success::Unsignaled };
            self.management.sends.write(&mut words, control, then);
            self.management.next += 1;
            self.counters.mads_sent += 1;
        }
        self.management.sends.flush(&self.function);
    }
}

impl Transport for ConnectX {
    fn cm(&self) -> &Cm {
        &self.cm
    }

    fn cm_mut(&mut self) -> &mut Cm {
        &mut self.cm
    }

    fn port_of(&self, address: IpAddr) -> Option<usize> {
        self.addresses.contains(&Some(address)).then_some(0)
    }

    fn has_address(&self, _: usize, address: IpAddr) -> bool {
        let own = |known: &IpAddr| gid(*known) == gid(address);
        self.addresses.iter().flatten().any(own)
    }

    fn path_mtu(&self, _: usize, remote: IpAddr) -> PathMtu {
        let [v4, v6] = self.mtus;
        let mtu = if remote.is_ipv4() { v4 } else { v6 };
        PathMtu::for_ethernet(mtu.min(self.function.mtu())).unwrap_or(PathMtu::Mtu256)
    }

    fn numbers(&self, qp: QpId) -> Option<(u32, u32)> {
        self.pairs.get(qp.0).map(|pair| (pair.number, pair.initial_psn))
    }

    fn connectable(&self, qp: QpId) -> Result<(u32, u32), VerbsError> {
        let pair = self.pairs.get(qp.0).ok_or(VerbsError::NoSuchObject)?;
        let fits =
            pair.kind == QpType::Rc && pair.requested == QpState::Init && pair.connection.is_none();
        fits.then_some((pair.number, pair.initial_psn)).ok_or(VerbsError::WrongState)
    }

    fn readdress(&mut self, _: QpId, _: [u8; 6]) {
        // The card keeps the former address. The queue pair fails when its retries are used up.
    }

    fn set_connection(&mut self, qp: QpId, connection: Option<ConnectionId>) {
        if let Some(pair) = self.pairs.get_mut(qp.0) {
            pair.connection = connection;
        }
    }

    fn count(&mut self, what: Counted) {
        if let Counted::Malformed | Counted::WrongPeer | Counted::NoWayBack = what {
            self.counters.mads_dropped += 1;
        }
    }
}

::cm::connection_manager!(ConnectX);
