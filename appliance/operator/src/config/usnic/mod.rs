//! `[[usnic]]`: interfaces of ours that speak usNIC, and their peers.

mod values;

pub use values::{PacketLayout, PeerModex, Sender, Service};

use super::item::section;
use super::values::Name;
use core::net::{Ipv4Addr, SocketAddr};
use net::hosts::Network;
use usnic::wire::header::Layout;

section! {
    /// An interface that speaks usNIC: what Open MPI calls a module of `btl/usnic`.
    Usnic {
        /// Its name.
        name: Name;
        /// The `[[net]]` that it is on, by its place in the document.
        net: u8 [0, 63] = 0;
        /// Which of that interface's fixed addresses is its own.
        address: Ipv4Addr;
        /// UDP port of fragments.
        data_port: u16 [1, 65535];
        /// UDP port of acknowledgements.
        priority_port: u16 [1, 65535];
        /// UDP port of the connectivity checker; without it there is none.
        ping_port: Option<u16> [1, 65535];
        /// TCP port by which hosts of `hosts` tell us their modexes, and we them ours; without it there is none.
        rendezvous: Option<u16> [1, 65535];
        /// First sequence number; without it another one at each start.
        isn: Option<u16>;
        /// Who we say that we are.
        sender: Sender;
        /// Speed of the link in Mb/s, which packets are paced by; 0 for no pacing.
        link_speed: u32 = 10_000;
        /// Milliseconds that an acknowledgement is waited for before packets are sent again, until round trips were measured;
        /// what waits less is not counted towards giving the peer up.
        retransmit_ms: u16 [1, 10_000] = 5;
        /// Largest packet in bytes, the same as the peers'; without it the interface's `mtu`, or 1500.
        mtu: Option<u16> [576, 9216];
        /// The tag that messages are sent with; without it, that of the message which is answered.
        tag: Option<u8>;
        /// How packets are laid out: as by Open MPI 4 or 5.
        layout: PacketLayout = PacketLayout(Layout::V4);
        /// What becomes of messages and PUTs.
        services: Vec<Service>;
        /// Networks whose hosts may be peers; none given: all.
        hosts: Vec<Network>;
        /// `[[usnic.peer]]`.
        peer: Vec<Peer>;
    }
}

section! {
    /// A peer of a `[[usnic]]`.
    Peer {
        /// Its name.
        name: Name => AtOnce;
        /// Who it says that it is.
        sender: Sender => AtOnce;
        /// How it describes its interface, or several, of which the one in our interface's subnet counts.
        modex: Option<PeerModex> => AtOnce;
        /// Where it is asked for that, if it is an appliance, or something else that speaks usNIC's rendezvous.
        rendezvous: Option<SocketAddr> => AtOnce;
    }
}

impl Usnic {
    /// Its UDP ports: data, priority, and that of the connectivity checker.
    pub fn ports(&self) -> impl Iterator<Item = u16> + '_ {
        [Some(self.data_port), Some(self.priority_port), self.ping_port].into_iter().flatten()
    }
}
