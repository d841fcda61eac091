//! Whether a message came from the host that it says, by the answers of the neighbour table.

use super::neighbours::{Verdict, Way, mac_of_gid};
use super::receive::Arrival;
use super::wire::message::Message;
use super::{Counted, Manager, Transport};
use alloc::format;
use core::fmt;
use core::net::IpAddr;
use drivers::hal::Instant;
use net::refusal::Refusal;
use verbs::GidType;

impl<T: Transport + ?Sized> Manager<'_, T> {
    /// Whether a message came from the host that it says.
    pub(super) fn judge(&mut self, arrival: &Arrival, message: &Message, now: Instant) -> Verdict {
        let (host, mac) = (arrival.host(), arrival.source_mac);
        let by_gid = mac_of_gid(host.1).filter(|_| arrival.gid_type == GidType::RoceV1);
        if let Some(own) = by_gid {
            let way = Way { mac: own, routed: false };
            return if way.fits(mac) { Verdict::From(way) } else { Verdict::Elsewhere(way) };
        }
        // The table was asked when the connection was made.
        let named = match message {
            Message::Req(_) => None,
            Message::Rep(rep) => Some(rep.remote_id),
            Message::Rej(rej) => Some(rej.remote_id),
            Message::Brief(brief) => Some(brief.remote_id),
        };
        let connection = named.and_then(|id| self.cm_ref().table.by_wire_id(id));
        if let Some(connection) = connection.filter(|one| one.host() == host) {
            let way = Way { mac: connection.address.remote_mac, routed: false };
            if mac.is_some() && way.fits(mac) {
                return Verdict::From(way);
            }
        }
        self.cm().neighbours.judge(host, mac, now)
    }

    /// A message in the name of a host came from another station.
    pub(super) fn note_foreign(&mut self, arrival: &Arrival, way: Way, now: Instant) {
        self.over.count(Counted::WrongPeer);
        let (what, reason) = ("rdma_connection", "wrong_mac");
        if !self.cm().neighbours.reports(arrival.host(), now) {
            return self.cm().refusals.count(what, reason, 1);
        }
        let (is, says) = (Mac(arrival.source_mac.unwrap_or_default()), Mac(way.mac));
        let advice = format!(
            "the frame came from MAC address {is}, but the address is at {says} by ARP or neighbour discovery: find the \
             second station with that address; if it is a second card of the same host, let each card answer ARP for its \
             own addresses only (Linux: arp_ignore=1, arp_announce=2)"
        );
        let (who, asked) = (Some(arrival.source), format!("port {}", arrival.place));
        let refusal = Refusal { who, what, asked, reason, advice: advice.into() };
        self.cm().refusals.push(refusal);
    }

    /// Takes the answer of the neighbour table of the port at a place: the next hop to a host, and whether that is a
    /// router. Connections with the host move along.
    pub fn learn_neighbour(&mut self, place: usize, ip: IpAddr, mac: [u8; 6], routed: bool) {
        let host = (place, ip);
        self.cm().neighbours.learn(host, Way { mac, routed });
        for id in self.cm_ref().table.with(host) {
            let Some(connection) = self.cm().table.get_mut(id) else { continue };
            let by_gid = mac_of_gid(ip).filter(|_| connection.address.gid_type == GidType::RoceV1);
            if by_gid.is_some() || connection.address.remote_mac == mac {
                continue;
            }
            connection.address.remote_mac = mac;
            if let Some(qp) = connection.qp {
                self.over.readdress(qp, mac);
            }
        }
    }

    /// The neighbour table has no way to a host: its messages are dropped.
    pub fn lose_neighbour(&mut self, place: usize, ip: IpAddr, now: Instant) {
        let host = (place, ip);
        let dropped = self.cm().neighbours.lose(host);
        if dropped == 0 {
            return;
        }
        (0..dropped).for_each(|_| self.over.count(Counted::NoWayBack));
        let (what, reason) = ("rdma_connection", "no_way_back");
        if !self.cm().neighbours.reports(host, now) {
            return self.cm().refusals.count(what, reason, dropped as u64);
        }
        let advice = "no station answers ARP or neighbour discovery for this address, or no network and no gateway \
                      leads there: see net.N.address and net.N.gateway";
        let (who, asked) = (Some(ip), format!("port {place}"));
        self.cm().refusals.push(Refusal { who, what, asked, reason, advice: advice.into() });
    }

    /// Handles messages whose hosts the neighbour table has told of.
    pub(super) fn handle_released(&mut self, now: Instant) {
        while let Some(released) = self.cm().neighbours.next_released(now) {
            match released {
                Ok((arrival, mad)) => self.handle_mad(&arrival, &mad, now),
                Err(()) => self.over.count(Counted::NoWayBack),
            }
        }
    }
}

/// A MAC address in text.
struct Mac([u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}
