//! `[[ntb]]`: bridges to other machines.

use super::device_name::DeviceName;
use super::item::{section, text_items};
use super::values::Size;
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use core::time::Duration;
use drivers::ntb::Side;
use net::hosts::Network;

section! {
    /// A non-transparent bridge to another machine: a device, or TCP in its place.
    Ntb {
        /// The bridge, as `show devices` names it: `pci:0000:16:00.0`, or its position among bridges; without it
        /// by the place in the list.
        device: Option<DeviceName>;
        /// What is spoken over it: `ntrdma` with another appliance, `ntb_transport` with a stock Linux host.
        protocol: NtbProtocol = NtbProtocol::Ntrdma;
        /// `peer`: the other machine may reach all memory of this one. AMD's and Switchtec's bridges let it, and stay
        /// closed without it.
        trust: Option<NtbTrust>;
        /// Number of the core whose loop has the bridge; 0, the first, without it.
        core: Option<u8> [0, 63];
        /// Which half of the shared memory is ours; without it by the number that the device has
        /// from its server.
        side: Option<u8> [0, 1];
        /// By which address connections name us. It is a name only, of no interface.
        address: Option<IpAddr>;
        /// By which they name the machine at the other end.
        peer: Option<IpAddr>;
        /// Largest packet in bytes of an interface over the bridge, the last of all; without it there
        /// is none. Over `ntb_transport` there is always one: 9000 without it.
        mtu: Option<u16> [68, 65_500];
        /// Milliseconds without a sign of life after which the peer is gone; without it 500, over TCP
        /// 5000.
        peer_timeout_ms: Option<u32> [50, 60_000];
        /// The other machine's address on the network: TCP carries what a device would.
        tcp: Option<IpAddr>;
        /// Whether the other machine connects and we listen.
        listen: bool = false;
        /// The port that one of the two listens on.
        port: u16 [1, 65535] = 7471;
        /// Memory that each exposes to the other over TCP: the same on both.
        memory: Size [1 << 20, 1 << 30] = Size(16 << 20);
        /// Networks whose hosts may connect over TCP, besides that the address must be `tcp`; none given:
        /// all.
        hosts: Vec<Network>;
    }
}

/// Bridges over which NTRDMA goes, at most.
pub const MOST_NTRDMA: usize = 3;

/// What is spoken over a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NtbProtocol {
    /// Verbs with another appliance.
    Ntrdma,
    /// Ethernet with a stock Linux host (`ntb_netdev`).
    NtbTransport,
}

/// Whom a bridge is left to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NtbTrust {
    /// The other machine.
    Peer,
}

text_items! {
    NtbTrust: "peer";
    NtbProtocol: "ntrdma or ntb_transport";
}

impl FromStr for NtbTrust {
    type Err = String;
    fn from_str(text: &str) -> Result<NtbTrust, String> {
        match text {
            "peer" => Ok(NtbTrust::Peer),
            _ => Err("nobody who can be trusted".into()),
        }
    }
}

impl fmt::Display for NtbTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("peer")
    }
}

impl FromStr for NtbProtocol {
    type Err = String;
    fn from_str(text: &str) -> Result<NtbProtocol, String> {
        match text {
            "ntrdma" => Ok(NtbProtocol::Ntrdma),
            "ntb_transport" => Ok(NtbProtocol::NtbTransport),
            _ => Err("no protocol".into()),
        }
    }
}

impl fmt::Display for NtbProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NtbProtocol::Ntrdma => "ntrdma",
            NtbProtocol::NtbTransport => "ntb_transport",
        })
    }
}

impl Ntb {
    /// MTU of an interface over `ntb_transport`.
    pub fn transport_mtu(&self) -> u16 {
        self.mtu.unwrap_or(9000)
    }

    /// By which addresses connections name both ends, of a bridge over which NTRDMA goes.
    pub fn ends(&self) -> Option<(IpAddr, IpAddr)> {
        self.address.zip(self.peer)
    }

    /// Which of the bridge's sides is ours, if that is configured.
    pub fn side(&self) -> Option<Side> {
        self.side.map(|side| if side == 0 { Side::A } else { Side::B })
    }

    /// Whether the other machine may reach all memory of this one.
    pub fn trusts_peer(&self) -> bool {
        self.trust == Some(NtbTrust::Peer)
    }

    pub(super) fn is_transport(&self) -> bool {
        self.protocol == NtbProtocol::NtbTransport
    }

    /// How long the peer may show no sign of life.
    pub fn lost(&self) -> Duration {
        let usual = if self.tcp.is_some() { 5000 } else { 500 };
        Duration::from_millis(self.peer_timeout_ms.unwrap_or(usual).into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;

    const GOOD: &str = "[[ntb]]\nside = 1\naddress = \"10.9.0.2\"\npeer = \"10.9.0.1\"\n\
        [[net]]\naddress = \"10.0.0.1/24\"\n[[remote]]\nname = \"r\"\nsessname = \"s\"\n\
        path = \"ip:10.9.0.2@ip:10.9.0.1\"\ndevice_path = \"d\"\n";

    #[test]
    fn a_bridge_is_read() {
        let config = check(GOOD.as_bytes()).unwrap();
        assert_eq!((config.ntb[0].side, config.ntb[0].lost().as_millis()), (Some(1), 500));
        assert!(check(GOOD.replace("side = 1\n", "").as_bytes()).is_ok());
        let tcp = GOOD.replace("side = 1", "tcp = \"10.0.0.2\"\nlisten = true");
        let ntb = &check(tcp.as_bytes()).unwrap().ntb[0];
        assert_eq!((ntb.listen, ntb.port, ntb.memory.0), (true, 7471, 16 << 20));
        assert_eq!(ntb.lost().as_millis(), 5000);
    }

    #[test]
    fn the_peer_is_trusted_only_where_the_document_says_so() {
        assert!(!check(GOOD.as_bytes()).unwrap().ntb[0].trusts_peer());
        let with = |text: &str| check(GOOD.replace("side = 1", text).as_bytes());
        assert!(with("side = 1\ntrust = \"peer\"").unwrap().ntb[0].trusts_peer());
        for wrong in ["trust = \"all\"", "trust = true", "trust = \"\"", "trust = \"Peer\""] {
            let told = with(&format!("side = 1\n{wrong}")).unwrap_err();
            assert!(told.iter().any(|it| it.to_string().contains("ntb.0.trust")), "{wrong}");
        }
    }

    #[test]
    fn bridges_are_found_by_device_or_place() {
        let more = "[[ntb]]\nprotocol = \"ntb_transport\"\ndevice = \"pci:0000:16:00.0\"\n\
            [[ntb]]\nprotocol = \"ntb_transport\"\nmtu = 1500\n[[net]]";
        let text = GOOD.replacen("[[net]]", more, 1);
        let config = check(text.as_bytes()).unwrap();
        let found = |index, location: &str| config.bridge(index, location).map(|(n, _)| n);
        assert_eq!(found(0, "pci:0000:10:00.0"), Some(0));
        assert_eq!(found(1, "pci:0000:16:00.0"), Some(1));
        assert_eq!(found(2, "pci:0000:17:00.0"), Some(2));
        assert_eq!((found(1, "pci:0000:17:00.0"), found(3, "pci:0000:18:00.0")), (None, None));
        let mtus: Vec<u16> = config.ntb[1..].iter().map(super::Ntb::transport_mtu).collect();
        assert_eq!(mtus, [9000, 1500]);
        // The entry of TCP takes no device.
        let tcp = check(text.replace("side = 1", "tcp = \"10.0.0.2\"").as_bytes()).unwrap();
        assert_eq!(tcp.bridge(1, "pci:0000:17:00.0").map(|(n, _)| n), Some(2));
        assert_eq!(tcp.bridge(0, "pci:0000:17:00.0"), None);
    }

    #[test]
    fn several_bridges_have_ends_of_their_own() {
        let more = "[[ntb]]\naddress = \"fd00::1\"\npeer = \"fd00::2\"\n[[ntb]]\n\
            protocol = \"ntb_transport\"\n[[ntb]]\naddress = \"10.9.1.2\"\npeer = \"10.9.1.1\"\n[[net]]";
        let config = check(GOOD.replacen("[[net]]", more, 1).as_bytes()).unwrap();
        let numbers: Vec<usize> = config.ntrdma().map(|(number, _)| number).collect();
        assert_eq!(numbers, [0, 1, 3]);
    }

    #[test]
    fn mistakes_in_it_are_told() {
        let cases = [
            ("side = 1", "side = 2", "2 is out of range"),
            ("side = 1", "side = 1\ntcp = \"10.0.0.2\"", "TCP has no sides"),
            ("side = 1", "listen = true", "nobody may connect"),
            ("side = 1", "tcp = \"::1\"\nlisten = true\nport = 80", "http listens on port 80"),
            ("side = 1", "tcp = \"10.0.0.2\"\nmemory = \"1KiB\"", "1KiB is out of range"),
            (
                "side = 1",
                "tcp = \"10.0.0.2\"\nhosts = [\"10.0.1.0/24\"]",
                "ntb.0.hosts: 10.0.0.2, the address in `tcp`, is in none",
            ),
            ("peer = \"10.9.0.1\"\n", "", "ntb.0.peer: missing"),
            ("peer = \"10.9.0.1\"", "peer = \"10.9.0.2\"", "cannot be the two ends"),
            ("peer = \"10.9.0.1\"", "peer = \"fd00::1\"", "cannot be the two ends"),
            ("10.0.0.1/24", "10.9.0.1/24", "10.9.0.1 is net.0's"),
            ("@ip:10.9.0.1", "@ip:10.9.0.3", "only 10.9.0.1 is at the other end"),
            ("[[net]]", "[rnbd]\noversubscribe = 2\n[[net]]", "memory of their own"),
            ("[[net]]", "[roce]\nenabled = false\n[[net]]", "true with an [[ntb]]"),
            (
                "[[net]]",
                "[[ntb]]\naddress = \"10.9.0.2\"\npeer = \"10.9.0.3\"\n[[net]]",
                "ntb.1.address: 10.9.0.2 is ntb.0's",
            ),
            (
                "[[net]]",
                "[[ntb]]\naddress = \"::1\"\npeer = \"::2\"\ntcp = \"10.0.0.9\"\n[[net]]",
                "ntb.1.tcp: only the first",
            ),
            (
                "[[net]]",
                "[[ntb]]\naddress = \"::1\"\npeer = \"::2\"\n[[ntb]]\naddress = \"::3\"\n\
                 peer = \"::4\"\n[[ntb]]\naddress = \"::5\"\npeer = \"::6\"\n[[net]]",
                "ntb.3.protocol: NTRDMA goes over 3 bridges at most",
            ),
            ("[[net]]", "[[ntb]]\naddress = \"::1\"\n[[net]]", "ntb.1.peer: missing"),
            ("side = 1", "side = 1\ndevice = \"mac:02:00:00:00:00:01\"", "no MAC address"),
            ("side = 1", "tcp = \"10.0.0.2\"\ndevice = 0", "TCP has no device"),
            ("side = 1", "protocol = \"ntb_transport\"", "ntb.0.address: the addresses of its"),
            ("side = 1", "protocol = \"verbs\"", "accepted: ntrdma or ntb_transport"),
            ("side = 1", "core = 1", "remote.0.path: 10.9.0.2 is of ntb.0, which another core has"),
            ("side = 1", "core = 64", "64 is out of range"),
            ("side = 1", "core = 1\ntcp = \"10.0.0.2\"", "ntb.0.core: TCP is carried by core 0"),
            (
                "[[net]]",
                "[[ntb]]\nprotocol = \"ntb_transport\"\ncore = 1\n[[net]]",
                "ntb.1.core: its interface is core 0's",
            ),
            (
                "[[net]]",
                "[[ntb]]\ndevice = 0\nprotocol = \"ntb_transport\"\n[[net]]",
                "ntb.1.device: the same bridge as ntb.0",
            ),
            (
                "[[net]]",
                "[[ntb]]\nprotocol = \"ntb_transport\"\nlisten = true\n[[net]]",
                "ntb.1.listen: nobody may connect",
            ),
        ];
        for (from, to, expected) in cases {
            assert!(GOOD.contains(from), "{from}");
            let problems = check(GOOD.replacen(from, to, 1).as_bytes()).unwrap_err();
            let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert!(told.join("\n").contains(expected), "{to}: {told:?}");
        }
    }
}
