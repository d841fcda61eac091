//! A port of the provider: its addresses, and its queue pairs that have packets to send.

use super::PortConfig;
use super::qp::Peer;
use super::responder::FinalNak;
use super::wire::frame::Gid;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use verbs::PathMtu;

/// Most NAKs and ACKs of destroyed queue pairs that wait to be sent.
const MAX_FINAL_NAKS: usize = 16;

/// A port.
#[derive(Debug)]
pub struct Port {
    pub config: PortConfig,
    /// Largest path MTUs over IPv4 and over IPv6.
    path_mtus: [PathMtu; 2],
    /// Whether its link is up.
    pub link: bool,
    /// Its addresses, in wire format.
    pub gids: Vec<Gid>,
    /// Places of queue pairs that have an ACK or NAK to send.
    pub replies: VecDeque<u32>,
    /// NAKs and ACKs of destroyed queue pairs.
    pub final_naks: VecDeque<(Peer, FinalNak)>,
    /// Places of queue pairs that have anything else to send, in the order of their turns.
    pub sends: VecDeque<u32>,
    /// Packets sent in the present turn.
    pub burst: u8,
}

impl Port {
    /// A port with room for no queue pair.
    pub fn new(config: PortConfig) -> Self {
        let final_naks = VecDeque::with_capacity(MAX_FINAL_NAKS);
        let (replies, sends) = (VecDeque::new(), VecDeque::new());
        let gids = gids(&config.addresses);
        let path_mtus = [path_mtu(config.mtu); 2];
        Port { gids, path_mtus, link: true, replies, final_naks, sends, burst: 0, config }
    }

    /// Makes room for `qps` queue pairs, so that listing them does not allocate.
    pub fn make_room(&mut self, qps: usize) {
        for list in [&mut self.replies, &mut self.sends] {
            list.reserve(qps.saturating_sub(list.len()));
        }
    }

    pub fn set_addresses(&mut self, addresses: Vec<IpAddr>) {
        self.gids = gids(&addresses);
        self.config.addresses = addresses;
    }

    /// Limits packets to `mtus` bytes (layer 3) over IPv4 and over IPv6; the device's limit stays.
    pub fn set_mtus(&mut self, mtus: [usize; 2]) {
        self.path_mtus = mtus.map(|mtu| path_mtu(mtu.min(self.config.mtu)));
    }

    /// Largest path MTU to an address of the family of `remote`.
    #[inline]
    pub fn path_mtu(&self, remote: IpAddr) -> PathMtu {
        let [v4, v6] = self.path_mtus;
        if remote.is_ipv4() { v4 } else { v6 }
    }

    /// Largest path MTU to any address.
    pub fn largest_path_mtu(&self) -> PathMtu {
        let [v4, v6] = self.path_mtus;
        v4.max(v6)
    }

    /// Whether an ACK or NAK may be due.
    #[inline]
    pub fn has_replies(&self) -> bool {
        !self.replies.is_empty() || !self.final_naks.is_empty()
    }

    /// Keeps the NAK or ACK of a queue pair that is destroyed. If there are too many, its peer times out.
    pub fn keep_final_nak(&mut self, peer: Peer, nak: FinalNak) {
        if self.final_naks.len() < MAX_FINAL_NAKS {
            self.final_naks.push_back((peer, nak));
        }
    }

    /// Removes a queue pair from the lists.
    pub fn forget(&mut self, place: u32) {
        self.replies.retain(|&p| p != place);
        self.sends.retain(|&p| p != place);
        self.burst = 0;
    }
}

/// The largest path MTU for packets of `mtu` bytes.
fn path_mtu(mtu: usize) -> PathMtu {
    PathMtu::for_ethernet(mtu).unwrap_or(PathMtu::Mtu256)
}

fn gids(addresses: &[IpAddr]) -> Vec<Gid> {
    addresses.iter().copied().map(Gid::from).collect()
}
