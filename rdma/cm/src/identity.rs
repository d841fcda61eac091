//! Verification of a message's sender by the neighbour table.

use super::neighbours::{NextHop, Verdict, mac_of_gid};
use super::receive::Arrival;
use super::table::Host;
use super::wire::message::Message;
use super::{Cm, Counted, Manager, Transport};
use alloc::format;
use core::net::IpAddr;
use drivers::hal::Instant;
use net::foreign::ForeignFrame;
use net::refusal::Refusal;
use verbs::GidType;

impl Cm {
    /// Reports a frame of another station with the address of a host, once a minute for each host. `what` is a label,
    /// as [`Refusal::what`]; `macs` are the frame's MAC address and that of the host by the neighbour table.
    pub fn note_foreign(
        &mut self,
        what: &'static str,
        host: Host,
        macs: [[u8; 6]; 2],
        now: Instant,
    ) {
        let [is, says] = macs;
        let asked = format!("port {}", host.0);
        let frame = ForeignFrame { what, asked, host, is, says };
        frame.note(&mut self.refusals, &mut self.neighbours.reported, now);
    }
}

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
        let is = arrival.source_mac.unwrap_or_default();
        self.cm().note_foreign("rdma_connection", arrival.host(), [is, next_hop.mac], now);
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
        if !self.cm().neighbours.reported.should_report(host, now) {
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
