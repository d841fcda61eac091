//! `[[ntb]]`: bridges to other machines.

use super::checks::Report;
use super::device_name::DeviceName;
use super::item::{section, text_items};
use super::messaging::listener;
use super::schema::Config;
use super::values::Size;
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use core::time::Duration;
use drivers::ntb::Side;
use net::hosts::{Hosts, Network};

section! {
    /// A non-transparent bridge to another machine: a device, or TCP in its place.
    Ntb {
        /// The bridge, as `show devices` names it: `pci:0000:16:00.0`, or its position among bridges; without it
        /// by the place in the list.
        device: Option<DeviceName>;
        /// What is spoken over it: `ntrdma` with another appliance, `ntb_transport` with a stock Linux host.
        protocol: NtbProtocol = NtbProtocol::Ntrdma;
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
const MOST_NTRDMA: usize = 3;

/// What is spoken over a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NtbProtocol {
    /// Verbs with another appliance.
    Ntrdma,
    /// Ethernet with a stock Linux host (`ntb_netdev`).
    NtbTransport,
}

text_items! {
    NtbProtocol: "ntrdma or ntb_transport";
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

    fn is_transport(&self) -> bool {
        self.protocol == NtbProtocol::NtbTransport
    }

    /// How long the peer may show no sign of life.
    pub fn lost(&self) -> Duration {
        let usual = if self.tcp.is_some() { 5000 } else { 500 };
        Duration::from_millis(self.peer_timeout_ms.unwrap_or(usual).into())
    }
}

impl Config {
    /// The bridges over which NTRDMA goes, with their numbers in the document.
    pub fn ntrdma(&self) -> impl Iterator<Item = (usize, &Ntb)> {
        self.ntb.iter().enumerate().filter(|(_, ntb)| !ntb.is_transport())
    }

    /// What is configured of the bridge at this position and location, and its number in the document.
    pub fn bridge(&self, index: usize, location: &str) -> Option<(usize, &Ntb)> {
        let devices = self.ntb.iter().enumerate().filter(|(_, ntb)| ntb.tcp.is_none());
        let mut devices = devices.enumerate();
        let found = devices.find(|(place, (_, ntb))| match &ntb.device {
            Some(device) => device.is_port(index, location, [0; 6]),
            None => *place == index,
        });
        found.map(|(_, ntb)| ntb)
    }
}

/// Checks what bridges have to do with the rest.
pub fn check(config: &Config, report: &mut Report<'_>) {
    check_devices(config, report);
    for (i, ntb) in config.ntb.iter().enumerate().filter(|(_, ntb)| ntb.is_transport()) {
        check_transport(i, ntb, report);
    }
    for (i, _) in config.ntrdma().skip(MOST_NTRDMA) {
        let reason = format!("NTRDMA goes over {MOST_NTRDMA} bridges at most");
        report.add(format!("ntb.{i}.protocol"), reason, "ntb_transport");
    }
    for (i, ntb) in config.ntrdma() {
        check_ends(config, i, ntb, report);
        check_tcp(config, i, ntb, report);
    }
    if config.ntrdma().next().is_none() {
        return;
    }
    if config.rnbd.oversubscribe > 1 {
        let reason = "sessions over a bridge have memory of their own".into();
        report.add("rnbd.oversubscribe".into(), reason, "1 with an [[ntb]]");
    }
    if !config.roce.enabled {
        let reason = "the bridge's device stands beside that of the interfaces".into();
        report.add("roce.enabled".into(), reason, "true with an [[ntb]]");
    }
}

/// The names of the two ends of a bridge over which NTRDMA goes.
fn check_ends(config: &Config, i: usize, ntb: &Ntb, report: &mut Report<'_>) {
    for (key, is_there) in [("address", ntb.address.is_some()), ("peer", ntb.peer.is_some())] {
        if !is_there {
            let accepted = "an IPv4 or IPv6 address such as 10.0.0.1 or fd00::1";
            report.missing(format!("ntb.{i}.{key}"), "missing".into(), accepted);
        }
    }
    let Some((address, peer)) = ntb.ends() else { return };
    if address.is_ipv4() != peer.is_ipv4() || address == peer {
        let reason = format!("{address} and {peer} cannot be the two ends");
        report.add(format!("ntb.{i}.peer"), reason, "another address of the same family");
    }
    let mut before = config.ntrdma().take_while(|(n, _)| *n < i);
    if let Some((n, _)) = before.find(|(_, other)| other.address == Some(address)) {
        let reason = format!("{address} is ntb.{n}'s");
        report.add(format!("ntb.{i}.address"), reason, "an address of its own");
    }
    for (n, net) in config.net.iter().enumerate() {
        let taken = |(one, _): &(IpAddr, u8)| [address, peer].contains(one);
        if let Some((address, _)) = net.fixed().find(taken) {
            let reason = format!("{address} is net.{n}'s");
            report.add(format!("ntb.{i}.address"), reason, "addresses of no interface");
        }
    }
    let elsewhere = ntb.core.is_some_and(|core| core > 0);
    for (n, remote) in config.remote.iter().enumerate() {
        if elsewhere && remote.path.iter().any(|path| path.from == address) {
            let reason = format!("{address} is of ntb.{i}, which another core has");
            let accepted = "addresses of core 0, which connects to other servers";
            report.add(format!("remote.{n}.path"), reason, accepted);
        }
        if remote.path.iter().any(|path| path.from == address && path.to != peer) {
            let reason = format!("only {peer} is at the other end of the bridge");
            report.add(format!("remote.{n}.path"), reason, "");
        }
    }
}

/// No device is named twice, nor by what a bridge does not have.
fn check_devices(config: &Config, report: &mut Report<'_>) {
    let devices = config.ntb.iter().enumerate().filter(|(_, ntb)| ntb.tcp.is_none());
    let devices: Vec<(usize, &Ntb)> = devices.collect();
    let place = |n: usize| match &devices[n].1.device {
        Some(DeviceName::Position(position)) => Ok(usize::from(*position)),
        Some(device) => Err(device),
        None => Ok(n),
    };
    for (n, &(i, ntb)) in devices.iter().enumerate() {
        if let Some(other) = (0..n).find(|other| place(*other) == place(n)) {
            let reason = format!("the same bridge as ntb.{}", devices[other].0);
            report.add(format!("ntb.{i}.device"), reason, "a bridge of its own");
        }
        if !matches!(&ntb.device, None | Some(DeviceName::Position(_) | DeviceName::Location(_))) {
            let reason = "a bridge has no serial number and no MAC address".into();
            report.add(format!("ntb.{i}.device"), reason, "\"pci:…\" or a position");
        }
    }
}

/// What only NTRDMA has.
fn check_transport(i: usize, ntb: &Ntb, report: &mut Report<'_>) {
    let given = [
        ("address", ntb.address.is_some(), "the addresses of its interface are `net.N.address`"),
        ("peer", ntb.peer.is_some(), "the peer is whoever is at the other end"),
        (
            "tcp",
            ntb.tcp.is_some(),
            "a host at the other end of a TCP connection has no such bridge",
        ),
        ("listen", ntb.listen, "nobody may connect"),
        ("peer_timeout_ms", ntb.peer_timeout_ms.is_some(), "Linux gives no sign of life"),
        ("core", ntb.core.is_some_and(|core| core > 0), "its interface is core 0's"),
    ];
    for (key, _, reason) in given.into_iter().filter(|(_, is_given, _)| *is_given) {
        report.add(format!("ntb.{i}.{key}"), reason.into(), "nothing with protocol ntb_transport");
    }
}

/// TCP in the place of a device.
fn check_tcp(config: &Config, i: usize, ntb: &Ntb, report: &mut Report<'_>) {
    if i > 0 {
        for (key, is_given) in [("tcp", ntb.tcp.is_some()), ("listen", ntb.listen)] {
            if is_given {
                let reason = "only the first [[ntb]] can go over TCP".into();
                report.add(format!("ntb.{i}.{key}"), reason, "nothing");
            }
        }
        return;
    }
    if ntb.tcp.is_some() && ntb.core.is_some_and(|core| core > 0) {
        let reason = "TCP is carried by core 0".into();
        report.add("ntb.0.core".into(), reason, "0 with `tcp`");
    }
    if ntb.tcp.is_some() && ntb.side.is_some() {
        let reason = "TCP has no sides".into();
        report.add("ntb.0.side".into(), reason, "either `side` or `tcp`");
    }
    if ntb.tcp.is_some() && ntb.device.is_some() {
        let reason = "TCP has no device".into();
        report.add("ntb.0.device".into(), reason, "either `device` or `tcp`");
    }
    // Over TCP nobody but the peer may connect, so that `hosts` is obeyed if it admits the peer.
    if let Some(peer) = ntb.tcp
        && !Hosts::new(ntb.hosts.clone()).admits(peer)
    {
        let reason = format!("{peer}, the address in `tcp`, is in none of these networks");
        report.add("ntb.0.hosts".into(), reason, "networks with the peer in one of them");
    }
    if ntb.tcp.is_none() && ntb.listen {
        let reason = "nobody may connect".into();
        report.add("ntb.0.listen".into(), reason, "true only with `tcp`, the peer's address");
    }
    let other = listener(config, ntb.port).filter(|other| ntb.listen && other != "ntb.0");
    if let Some(other) = other {
        let reason = format!("{other} listens on port {}", ntb.port);
        report.add("ntb.0.port".into(), reason, "another port");
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
