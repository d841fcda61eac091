//! Verification of a message's sender by the neighbour table.

use super::neighbours::{NextHop, Verdict, mac_of_gid};
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
    /// Checks whether a message is from its source address's host.
    pub(super) fn check_sender(
        &mut self,
        arrival: &Arrival,
        message: &Message,
        now: Instant,
    ) -> Verdict {
        let (host, mac) = (arrival.host(), arrival.source_mac);
        let by_gid = mac_of_gid(host.1).filter(|_| arrival.gid_type == GidType::RoceV1);
        if let Some(own) = by_gid {
            let next_hop = NextHop { mac: own, routed: false };
            return if next_hop.fits(mac) {
                Verdict::Genuine(next_hop)
            } else {
                Verdict::OtherStation(next_hop)
            };
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
            let next_hop = NextHop { mac: connection.address.remote_mac, routed: false };
            if mac.is_some() && next_hop.fits(mac) {
                return Verdict::Genuine(next_hop);
            }
        }
        self.cm().neighbours.check_sender(host, mac, now)
    }

    /// Counts and reports a message that another station sent in the name of a host.
    pub(super) fn note_foreign(&mut self, arrival: &Arrival, next_hop: NextHop, now: Instant) {
        self.over.count(Counted::WrongPeer);
        let (what, reason) = ("rdma_connection", "wrong_mac");
        if !self.cm().neighbours.should_report(arrival.host(), now) {
            return self.cm().refusals.count(what, reason, 1);
        }
        let (is, says) = (Mac(arrival.source_mac.unwrap_or_default()), Mac(next_hop.mac));
        let advice = format!(
            "the frame came from MAC address {is}, but ARP or neighbour discovery finds {says} for its address: find the \
             second station with this address; if it is a second card of the same host, let each card answer ARP for its \
             own addresses only (Linux: arp_ignore=1, arp_announce=2)"
        );
        let (who, asked) = (Some(arrival.source), format!("port {}", arrival.place));
        let refusal = Refusal { who, what, asked, reason, advice: advice.into() };
        self.cm().refusals.push(refusal);
    }

    /// Takes an answer of the neighbour table of the port at a place: the next hop to a host, and whether that is a
    /// router. Connections with the host move along.
    pub fn learn_neighbour(&mut self, place: usize, ip: IpAddr, mac: [u8; 6], routed: bool) {
        let host = (place, ip);
        self.cm().neighbours.learn(host, NextHop { mac, routed });
        for id in self.cm_ref().table.with_host(host) {
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

    /// The neighbour table failed to resolve a host: its messages are dropped.
    pub fn lose_neighbour(&mut self, place: usize, ip: IpAddr, now: Instant) {
        let host = (place, ip);
        let dropped = self.cm().neighbours.remove(host);
        if dropped == 0 {
            return;
        }
        (0..dropped).for_each(|_| self.over.count(Counted::NoWayBack));
        let (what, reason) = ("rdma_connection", "no_way_back");
        if !self.cm().neighbours.should_report(host, now) {
            return self.cm().refusals.count(what, reason, dropped as u64);
        }
        let advice = "no station answers ARP or neighbour discovery for this address, or no network and no gateway \
                      leads there: see net.N.address and net.N.gateway";
        let (who, asked) = (Some(ip), format!("port {place}"));
        self.cm().refusals.push(Refusal { who, what, asked, reason, advice: advice.into() });
    }

    /// Handles the messages whose hosts the neighbour table has resolved.
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
