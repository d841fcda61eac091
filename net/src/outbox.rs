//! Outgoing UDP and ICMP packets that wait for their neighbour's resolution. Packets beyond the limits are dropped.

use crate::link::{ETHERNET_HEADER, Queue};
use crate::neighbour::{Hop, Table};
use crate::routes::Routes;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use drivers::hal::Instant;

/// Packets that wait for one neighbour, and for all neighbours.
const OF_EACH: usize = 4;
const OF_ALL: usize = 64;
/// Packets that sockets write in one poll.
const DEPTH: usize = 4;

/// Outgoing packets.
#[derive(Debug)]
pub struct Outbox {
    /// Frames that sockets have just written, without destination MAC address.
    packets: Queue,
    waiting: VecDeque<(IpAddr, Box<[u8]>)>,
}

impl Outbox {
    /// An empty outbox for frames of up to `slot` bytes.
    pub fn new(slot: usize) -> Self {
        Outbox { packets: Queue::new(DEPTH, slot), waiting: VecDeque::new() }
    }

    /// The queue to which sockets write, before [`Outbox::send`].
    pub fn packets(&mut self) -> &mut Queue {
        &mut self.packets
    }

    /// Sends the packets that sockets have written. A packet waits if its neighbour is in resolution; it is dropped if
    /// there is no route, it exceeds the MTU, or the neighbour has recently not answered.
    pub fn send(&mut self, routes: &Routes, table: &mut Table, queue: &mut Queue, now: Instant) {
        while let Some(frame) = self.packets.front() {
            let fits = |ip: &IpAddr| frame.len() - ETHERNET_HEADER <= routes.mtu_to(*ip);
            let hop = destination(frame).filter(fits).and_then(|ip| routes.next_hop(ip));
            match hop.map(|hop| (hop, table.hop(hop, now))) {
                Some((_, Hop::At(mac, _))) => push(frame, mac, queue),
                Some((hop, Hop::Pending)) => {
                    let of_it = self.waiting.iter().filter(|(ip, _)| *ip == hop).count();
                    if of_it < OF_EACH && self.waiting.len() < OF_ALL {
                        self.waiting.push_back((hop, frame.into()));
                    }
                }
                Some((_, Hop::Unreachable(_))) | None => {}
            }
            self.packets.pop();
        }
    }

    /// Sends the packets that wait for a neighbour, or drops them if its resolution failed (`mac` is None).
    pub fn settled(&mut self, neighbour: IpAddr, mac: Option<[u8; 6]>, queue: &mut Queue) {
        self.waiting.retain(|(ip, frame)| {
            if let Some(mac) = mac.filter(|_| *ip == neighbour) {
                push(frame, mac, queue);
            }
            *ip != neighbour
        });
    }
}

fn push(frame: &[u8], mac: [u8; 6], queue: &mut Queue) {
    queue.append(frame.len(), |room| {
        room[..frame.len()].copy_from_slice(frame);
        room[..6].copy_from_slice(&mac);
        ((), frame.len())
    });
}

/// Destination address of the IP packet in a frame.
fn destination(frame: &[u8]) -> Option<IpAddr> {
    let packet = frame.get(ETHERNET_HEADER..)?;
    match packet.first()? >> 4 {
        4 => Some(Ipv4Addr::from(*packet.get(16..20)?.first_chunk::<4>()?).into()),
        _ => Some(Ipv6Addr::from(*packet.get(24..40)?.first_chunk::<16>()?).into()),
    }
}
