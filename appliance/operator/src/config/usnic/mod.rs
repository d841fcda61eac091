//! `[[usnic]]`: usNIC interfaces of the appliance, and their peers.

mod values;

pub use values::{PacketLayout, PeerModex, Sender, Service};

use super::item::section;
use super::values::Name;
use core::net::{Ipv4Addr, SocketAddr};
use net::hosts::Network;
use usnic::wire::header::Layout;

section! {
    /// A usNIC interface: a module of `btl/usnic` in terms of Open MPI.
    Usnic {
        /// Name of the interface.
        name: Name;
        /// Number of its `[[net]]` in the document.
        net: u8 [0, 63] = 0;
        /// A fixed address of that `[[net]]`, for usNIC.
        address: Ipv4Addr;
        /// UDP port of fragments.
        data_port: u16 [1, 65535];
        /// UDP port of acknowledgements.
        priority_port: u16 [1, 65535];
        /// UDP port of the connectivity checker; disabled without it.
        ping_port: Option<u16> [1, 65535];
        /// TCP port of the rendezvous, at which hosts of `hosts` exchange modexes with the appliance; disabled without
        /// it.
        rendezvous: Option<u16> [1, 65535];
        /// First sequence number, by default random at each boot.
        isn: Option<u16>;
        /// Sender name of the appliance.
        sender: Sender;
        /// Link speed in Mb/s, for packet pacing; 0 disables pacing.
        link_speed: u32 = 10_000;
        /// Retransmission timeout in milliseconds, until round trips are measured. Shorter timeouts do not count
        /// towards giving up the peer.
        retransmit_ms: u16 [1, 10_000] = 5;
        /// Largest packet in bytes, which must equal that of the peers. By default the `mtu` of the `[[net]]`, or 1500.
        mtu: Option<u16> [576, 9216];
        /// Tag of sent messages, by default the tag of the message that is answered.
        tag: Option<u8>;
        /// Packet layout: of Open MPI 4 or 5.
        layout: PacketLayout = PacketLayout(Layout::V4);
        /// Services for messages and PUTs.
        services: Vec<Service>;
        /// Networks whose hosts may be peers; empty admits all.
        hosts: Vec<Network>;
        /// `[[usnic.peer]]`.
        peer: Vec<Peer>;
    }
}

section! {
    /// A peer of a `[[usnic]]`.
    Peer {
        /// Name of the peer.
        name: Name => AtOnce;
        /// Sender name of the peer.
        sender: Sender => AtOnce;
        /// Modex of the peer's interface, or of several. The one in this interface's subnet is used.
        modex: Option<PeerModex> => AtOnce;
        /// Rendezvous address from which to request the modex, of an appliance or another implementation of usNIC's
        /// rendezvous.
        rendezvous: Option<SocketAddr> => AtOnce;
    }
}

impl Usnic {
    /// UDP ports: data, priority, and the connectivity checker.
    pub fn ports(&self) -> impl Iterator<Item = u16> + '_ {
        [Some(self.data_port), Some(self.priority_port), self.ping_port].into_iter().flatten()
    }
}
