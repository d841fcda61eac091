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
        /// The bridge, as in `show devices`: `pci:0000:16:00.0`, or its position among bridges. By default its place in
        /// this list.
        device: Option<DeviceName>;
        /// Protocol: `ntrdma` with another appliance, `ntb_transport` with a stock Linux host.
        protocol: NtbProtocol = NtbProtocol::Ntrdma;
        /// `peer`: the other machine may access all memory of this one. Bridges of AMD and Switchtec permit that
        /// access, and stay closed without this key.
        trust: Option<NtbTrust>;
        /// Number of the core that polls the bridge, by default 0, the first.
        core: Option<u8> [0, 63];
        /// The appliance's half of the shared memory, by default by the number that the device has from its server.
        side: Option<u8> [0, 1];
        /// Address that names the appliance in connections. It belongs to no interface.
        address: Option<IpAddr>;
        /// Address that names the other machine in connections.
        peer: Option<IpAddr>;
        /// MTU of a network interface over the bridge, which is numbered after all others. Without it there is no such
        /// interface. Over `ntb_transport` there always is one, by default with 9000.
        mtu: Option<u16> [68, 65_500];
        /// Milliseconds without a heartbeat after which the peer is lost, by default 500, over TCP 5000.
        peer_timeout_ms: Option<u32> [50, 60_000];
        /// The other machine's network address, to use TCP in place of a device.
        tcp: Option<IpAddr>;
        /// Whether the appliance listens and the other machine connects.
        listen: bool = false;
        /// TCP port of the listening machine.
        port: u16 [1, 65535] = 7471;
        /// Memory that each machine exposes to the other over TCP. Must be equal on both.
        memory: Size [1 << 20, 1 << 30] = Size(16 << 20);
        /// Networks whose hosts may connect over TCP; empty admits all. The peer must also have the address `tcp`.
        hosts: Vec<Network>;
    }
}

/// Maximum number of NTRDMA bridges.
pub const MOST_NTRDMA: usize = 3;

/// Protocol of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NtbProtocol {
    /// Verbs with another appliance.
    Ntrdma,
    /// Ethernet with a stock Linux host (`ntb_netdev`).
    NtbTransport,
}

/// Trust in the other machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NtbTrust {
    /// The other machine may access all memory.
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
            _ => Err("unknown trust".into()),
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
            _ => Err("unknown protocol".into()),
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

    /// Addresses that name both ends of an NTRDMA bridge in connections.
    pub fn ends(&self) -> Option<(IpAddr, IpAddr)> {
        self.address.zip(self.peer)
    }

    /// The appliance's side of the bridge, if configured.
    pub fn side(&self) -> Option<Side> {
        self.side.map(|side| if side == 0 { Side::A } else { Side::B })
    }

    /// Whether the other machine may access all memory of this one.
    pub fn trusts_peer(&self) -> bool {
        self.trust == Some(NtbTrust::Peer)
    }

    pub(super) fn is_transport(&self) -> bool {
        self.protocol == NtbProtocol::NtbTransport
    }

    /// Time without a heartbeat after which the peer is lost.
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
    fn bridge_is_read_with_defaults() {
        let config = check(GOOD.as_bytes()).unwrap();
        assert_eq!((config.ntb[0].side, config.ntb[0].lost().as_millis()), (Some(1), 500));
        assert!(check(GOOD.replace("side = 1\n", "").as_bytes()).is_ok());
        let tcp = GOOD.replace("side = 1", "tcp = \"10.0.0.2\"\nlisten = true");
        let ntb = &check(tcp.as_bytes()).unwrap().ntb[0];
        assert_eq!((ntb.listen, ntb.port, ntb.memory.0), (true, 7471, 16 << 20));
        assert_eq!(ntb.lost().as_millis(), 5000);
    }

    #[test]
    fn peer_is_trusted_only_if_configured() {
        assert!(!check(GOOD.as_bytes()).unwrap().ntb[0].trusts_peer());
        let with = |text: &str| check(GOOD.replace("side = 1", text).as_bytes());
        assert!(with("side = 1\ntrust = \"peer\"").unwrap().ntb[0].trusts_peer());
        for wrong in ["trust = \"all\"", "trust = true", "trust = \"\"", "trust = \"Peer\""] {
            let problems = with(&format!("side = 1\n{wrong}")).unwrap_err();
            assert!(problems.iter().any(|it| it.to_string().contains("ntb.0.trust")), "{wrong}");
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
        // The entry with `tcp` claims no device.
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
    fn invalid_bridge_is_reported() {
        let cases = [
            ("side = 1", "side = 2", "2 is out of range"),
            ("side = 1", "side = 1\ntcp = \"10.0.0.2\"", "TCP has no sides"),
            ("side = 1", "listen = true", "no host may connect"),
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
            ("10.0.0.1/24", "10.9.0.1/24", "10.9.0.1 is already used by net.0"),
            ("@ip:10.9.0.1", "@ip:10.9.0.3", "only 10.9.0.1 is at the other end"),
            ("[[net]]", "[rnbd]\noversubscribe = 2\n[[net]]", "cannot share memory"),
            ("[[net]]", "[roce]\nenabled = false\n[[net]]", "true with an [[ntb]]"),
            (
                "[[net]]",
                "[[ntb]]\naddress = \"10.9.0.2\"\npeer = \"10.9.0.3\"\n[[net]]",
                "ntb.1.address: 10.9.0.2 is already used by ntb.0",
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
            ("side = 1", "core = 1", "10.9.0.2 belongs to ntb.0, which another core polls"),
            ("side = 1", "core = 64", "64 is out of range"),
            ("side = 1", "core = 1\ntcp = \"10.0.0.2\"", "ntb.0.core: TCP is carried by core 0"),
            (
                "[[net]]",
                "[[ntb]]\nprotocol = \"ntb_transport\"\ncore = 1\n[[net]]",
                "ntb.1.core: core 0 polls its interface",
            ),
            (
                "[[net]]",
                "[[ntb]]\ndevice = 0\nprotocol = \"ntb_transport\"\n[[net]]",
                "ntb.1.device: the same bridge as ntb.0",
            ),
            (
                "[[net]]",
                "[[ntb]]\nprotocol = \"ntb_transport\"\nlisten = true\n[[net]]",
                "ntb.1.listen: ntb_transport accepts no connections",
            ),
        ];
        for (from, to, expected) in cases {
            assert!(GOOD.contains(from), "{from}");
            let problems = check(GOOD.replacen(from, to, 1).as_bytes()).unwrap_err();
            let reported: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert!(reported.join("\n").contains(expected), "{to}: {reported:?}");
        }
    }
}
