//! `[[ntb]]`: the bridge to another machine.

use super::checks::Report;
use super::item::section;
use super::messaging::listener;
use super::schema::Config;
use super::values::Size;
use core::net::IpAddr;
use core::time::Duration;
use net::hosts::{Hosts, Network};

section! {
    /// A non-transparent bridge to another appliance: a device, or TCP in its place.
    Ntb {
        /// Which half of the shared memory is ours; without it by the number that the device has
        /// from its server.
        side: Option<u8> [0, 1];
        /// By which address connections name us. It is a name only, of no interface.
        address: IpAddr;
        /// By which they name the machine at the other end.
        peer: IpAddr;
        /// Largest packet in bytes of an interface over the bridge, the last of all; without it there
        /// is none.
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

impl Ntb {
    /// How long the peer may show no sign of life.
    pub fn lost(&self) -> Duration {
        let usual = if self.tcp.is_some() { 5000 } else { 500 };
        Duration::from_millis(self.peer_timeout_ms.unwrap_or(usual).into())
    }
}

/// Checks what bridges have to do with the rest.
pub fn check(config: &Config, report: &mut Report<'_>) {
    if config.ntb.len() > 1 {
        report.add("ntb.1".into(), "there is one bridge at most".into(), "one [[ntb]]");
    }
    let Some(ntb) = config.ntb.first() else { return };
    if ntb.address.is_ipv4() != ntb.peer.is_ipv4() || ntb.address == ntb.peer {
        let reason = format!("{} and {} cannot be the two ends", ntb.address, ntb.peer);
        report.add("ntb.0.peer".into(), reason, "another address of the same family");
    }
    for (i, net) in config.net.iter().enumerate() {
        let taken = |(address, _): &(IpAddr, u8)| [ntb.address, ntb.peer].contains(address);
        if let Some((address, _)) = net.fixed().find(taken) {
            let reason = format!("{address} is net.{i}'s");
            report.add("ntb.0.address".into(), reason, "addresses of no interface");
        }
    }
    for (i, remote) in config.remote.iter().enumerate() {
        if remote.path.iter().any(|path| path.from == ntb.address && path.to != ntb.peer) {
            let reason = format!("only {} is at the other end of the bridge", ntb.peer);
            report.add(format!("remote.{i}.path"), reason, "");
        }
    }
    if ntb.tcp.is_some() && ntb.side.is_some() {
        let reason = "TCP has no sides".into();
        report.add("ntb.0.side".into(), reason, "either `side` or `tcp`");
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
    if config.rnbd.oversubscribe > 1 {
        let reason = "sessions over a bridge have memory of their own".into();
        report.add("rnbd.oversubscribe".into(), reason, "1 with an [[ntb]]");
    }
    if !config.roce.enabled {
        let reason = "the bridge's device stands beside that of the interfaces".into();
        report.add("roce.enabled".into(), reason, "true with an [[ntb]]");
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
                "[[ntb]]\naddress = \"::1\"\npeer = \"::2\"\n[[net]]",
                "one bridge at most",
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
