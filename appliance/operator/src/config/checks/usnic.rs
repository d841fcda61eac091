//! Cross-section validation of `[[usnic]]`.

use super::messaging::listener;
use super::report::Report;
use crate::config::schema::{Config, Net};
use crate::config::usnic::{Peer, Service, Usnic};
use core::net::SocketAddr;
use usnic::wire::modex::Modex;

/// The user of a UDP port at an interface, usNIC excepted.
fn taken(config: &Config, net: &Net, port: u16) -> Option<&'static str> {
    match port {
        4791 if config.roce.enabled => Some("RoCE"),
        7 if config.services.udp_echo => Some("services.udp_echo"),
        net::syslog::PORT if config.system.syslog.is_some() => Some("system.syslog"),
        68 if net.dhcp() => Some("the DHCP client"),
        _ => None,
    }
}

/// Checks usNIC interfaces and peers against each other and against other sections.
pub(super) fn check(config: &Config, report: &mut Report<'_>) {
    for (i, usnic) in config.usnic.iter().enumerate() {
        let key = |key: &str| format!("usnic.{i}.{key}");
        let earlier = &config.usnic[..i];
        if earlier.iter().any(|other| other.name == usnic.name) {
            let reason = format!("another usnic is called {:?}", usnic.name.as_str());
            report.add(key("name"), reason, "");
        }
        let of_messages = [Service::Echo, Service::Discard, Service::MpiMirror];
        let wanted = of_messages.iter().filter(|service| usnic.services.contains(service));
        if wanted.count() > 1 {
            let reason = "echo, discard and mpi-mirror exclude each other".into();
            report.add(
                key("services"),
                reason,
                "one of echo, discard and mpi-mirror, and put-sink",
            );
        }
        let Some(net) = config.net.get(usize::from(usnic.net)) else {
            report.add(key("net"), format!("there is no net.{}", usnic.net), "a [[net]]");
            continue;
        };
        check_ports(config, i, net, report);
        check_rendezvous(config, i, report);
        let Some(interface) = usnic.interface(net, 0) else {
            let accepted: Vec<String> = net
                .fixed()
                .filter(|(address, _)| address.is_ipv4())
                .map(|(address, _)| address.to_string())
                .collect();
            let reason = format!("{} is not a fixed address of net.{}", usnic.address, usnic.net);
            report.add(key("address"), reason, &accepted.join(", "));
            continue;
        };
        if net.mtu.is_some_and(|mtu| mtu < interface.mtu) {
            let reason = format!("net.{}.mtu is {}", usnic.net, net.mtu.unwrap_or(0));
            report.add(key("mtu"), reason, "at most that of the interface");
        }
        check_peers(config, i, &interface.modex(), report);
    }
}

fn check_ports(config: &Config, i: usize, net: &Net, report: &mut Report<'_>) {
    let usnic = &config.usnic[i];
    let names = ["data_port", "priority_port", "ping_port"];
    let ports = [Some(usnic.data_port), Some(usnic.priority_port), usnic.ping_port];
    for (k, (name, port)) in names.into_iter().zip(ports).enumerate() {
        let Some(port) = port else { continue };
        let same = |other: &&Usnic| other.net == usnic.net && other.ports().any(|p| p == port);
        let other = config.usnic[..i].iter().find(same);
        let other = other.map(|other| format!("usnic {:?}", other.name.as_str()));
        let own = ports[..k].contains(&Some(port)).then(|| "the same usnic".to_string());
        let taken = taken(config, net, port).map(ToString::to_string);
        if let Some(who) = own.or(other).or(taken) {
            let reason = format!("{who} uses UDP port {port}");
            report.add(format!("usnic.{i}.{name}"), reason, "another port");
        }
    }
}

fn check_rendezvous(config: &Config, i: usize, report: &mut Report<'_>) {
    let usnic = &config.usnic[i];
    let Some(port) = usnic.rendezvous else { return };
    let same = |other: &&Usnic| other.rendezvous == Some(port) && other.net == usnic.net;
    let other = config.usnic[..i].iter().find(same);
    let other = other.map(|other| format!("usnic {:?}", other.name.as_str()));
    let rule = config.rule.iter().find(|rule| rule.listen.port() == Some(port));
    let rule = rule.map(|rule| format!("rule {:?}", rule.name.as_str()));
    let others = || listener(config, port).filter(|other| other != "usnic");
    if let Some(who) = other.or(rule).or_else(others) {
        let reason = format!("{who} listens on port {port}");
        report.add(format!("usnic.{i}.rendezvous"), reason, "another port");
    }
}

/// The reason and the accepted values if a peer's rendezvous address is wrong.
fn wrong_rendezvous(usnic: &Usnic, at: SocketAddr) -> Option<(&'static str, &'static str)> {
    match at {
        _ if at.port() == 0 => Some(("port 0 is invalid", "1 to 65535")),
        SocketAddr::V6(_) => Some(("usNIC has no IPv6", "an IPv4 address and a port")),
        SocketAddr::V4(at) if *at.ip() == usnic.address => {
            Some(("the peer has the address of this interface", "another host's"))
        }
        SocketAddr::V4(_) => None,
    }
}

fn check_peers(config: &Config, i: usize, ours: &Modex, report: &mut Report<'_>) {
    let usnic = &config.usnic[i];
    for (j, peer) in usnic.peer.iter().enumerate() {
        let key = |key: &str| format!("usnic.{i}.peer.{j}.{key}");
        let before = config.usnic[..i].iter().flat_map(|other| &other.peer);
        if before.chain(&usnic.peer[..j]).any(|other| other.name == peer.name) {
            let reason = format!("another peer is called {:?}", peer.name.as_str());
            report.add(key("name"), reason, "");
        }
        match (peer.modex.is_some(), peer.rendezvous.is_some()) {
            (false, false) => {
                report.missing(key("modex"), "missing".into(), "either modex or rendezvous");
            }
            (true, true) => {
                let reason = "modex and rendezvous exclude each other".into();
                report.add(key("modex"), reason, "either modex or rendezvous");
            }
            _ => {}
        }
        if let Some((reason, accepted)) = peer.rendezvous.and_then(|at| wrong_rendezvous(usnic, at))
        {
            report.add(key("rendezvous"), reason.into(), accepted);
        }
        let twice =
            |other: &&Peer| other.rendezvous.is_some() && other.rendezvous == peer.rendezvous;
        if let Some(other) = usnic.peer[..j].iter().find(twice) {
            let reason = format!("peer {:?} has the same rendezvous", other.name.as_str());
            report.add(key("rendezvous"), reason, "another one");
        }
        let Some(all) = &peer.modex else { continue };
        let Some(modex) = all.at(ours) else {
            let reason = format!(
                "none of the peer's {} interfaces is in the subnet of this one",
                all.0.len()
            );
            report.add(
                key("modex"),
                reason,
                "a modex of one interface, or with an interface in this subnet",
            );
            continue;
        };
        if modex.max_message != ours.max_message {
            let [theirs, ours] = [&modex, ours].map(|modex| modex.datagram() + 28);
            let reason = format!("the peer's MTU is {theirs} and this interface's is {ours}");
            report.add(key("modex"), reason, "a peer with the same MTU");
        }
        if modex.address == usnic.address {
            report.add(
                key("modex"),
                "the peer has the address of this interface".into(),
                "another host's",
            );
        }
        let ends = |modex: &Modex| (modex.address, [modex.data_port, modex.priority_port]);
        let (address, ports) = ends(&modex);
        let same = |other: &&Peer| {
            let theirs = other.modex.as_ref().and_then(|modex| modex.at(ours));
            let Some((theirs, taken)) = theirs.as_ref().map(ends) else { return false };
            theirs == address && taken.iter().any(|port| ports.contains(port))
        };
        if let Some(other) = usnic.peer[..j].iter().find(same) {
            let reason = format!("peer {:?} has the same address and port", other.name.as_str());
            report.add(key("modex"), reason, "another interface of a peer");
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::check;

    const GOOD: &str = "[[net]]\naddress = [\"10.77.0.1/24\", \"fd00::1/64\"]\n[[usnic]]\nname = \"u\"\n\
        address = \"10.77.0.1\"\ndata_port = 7001\npriority_port = 7002\nping_port = 7003\nisn = 5\n\
        sender = \"1.0\"\nservices = [\"echo\", \"put-sink\"]\n[[usnic.peer]]\nname = \"a\"\n\
        sender = \"1.1\"\nmodex = \"0a4d00026d960000b1cf0000ffffff0094c50000102700000006881305000000\"\n";

    #[test]
    fn fixed_configuration_gives_a_fixed_modex() {
        let config = check(GOOD.as_bytes()).unwrap();
        let usnic = &config.usnic[0];
        let interface = usnic.interface(&config.net[0], usnic.isn.unwrap()).unwrap();
        assert_eq!(
            interface.modex().to_string(),
            "0a4d00015a1b0000591b0000ffffff005b1b0000102700000006050005000000"
        );
        assert_eq!((usnic.sender.0, usnic.peer[0].sender.0), (1 << 32, 1 << 32 | 1));
    }

    #[test]
    fn invalid_usnic_is_reported() {
        let second = "[[usnic]]\nname = \"v\"\naddress = \"10.77.0.1\"\ndata_port = 7003\n\
            priority_port = 8002\nsender = \"1.2\"\n";
        let peer = "\n[[usnic.peer]]\nname = \"b\"\nsender = \"1.2\"\nmodex = \
            \"0a4d000200960000b1cf0000ffffff0094c50000102700000006881305000000\"\n";
        // A peer with two interfaces, of which the second has this address.
        let several = |address: &str| {
            let (before, record) = peer.split_once("modex = \"").unwrap_or_default();
            let digits = &record[..64];
            let second = digits.replacen("0a4d0002", address, 1);
            format!("{before}modex = \"{}{second}\"\n", digits.replacen("0a4d0002", "0a4f0002", 1))
        };
        let cases = [
            ("[[usnic]]", "[[usnic]]\nnet = 3", "there is no net.3"),
            ("10.77.0.1/24", "dhcp", "10.77.0.1 is not a fixed address of net.0"),
            ("\"fd00::1/64\"]", "\"fd00::1/64\"]\ncore = 1", ""),
            (
                "\"fd00::1/64\"]",
                "\"fd00::1/64\"]\nmtu = 1400",
                "the peer's MTU is 1500 and this interface's is 1400",
            ),
            ("isn = 5", "mtu = 9000", "the peer's MTU is 1500 and this interface's is 9000"),
            ("7001", "7002", "the same usnic uses UDP port 7002"),
            ("7001", "4791", "RoCE uses UDP port 4791"),
            ("[[net]]", "[services]\nudp_echo = true\n[[net]]", ""),
            ("sender = \"1.0\"", "sender = \"1\"", "not a job and a rank"),
            ("isn = 5", "layout = \"6\"", "unknown layout"),
            ("\"echo\", ", "\"echo\", \"discard\", ", "exclude each other"),
            ("0a4d00026d", "0a4d00016d", "the peer has the address of this interface"),
            ("0a4d00026d", "004d00026", "64 hexadecimal digits"),
            ("isn = 5", "rendezvous = 80", "http listens on port 80"),
            ("isn = 5", "rendezvous = 7004", ""),
            (
                "modex = \"",
                "rendezvous = \"10.77.0.2:7004\"\nmodex = \"",
                "either modex or rendezvous",
            ),
        ];
        for (from, to, expected) in cases {
            assert!(GOOD.contains(from), "{from}");
            let reported: Vec<String> = match check(GOOD.replacen(from, to, 1).as_bytes()) {
                Ok(_) => Vec::new(),
                Err(problems) => problems.iter().map(ToString::to_string).collect(),
            };
            assert!(reported.join("\n").contains(expected), "{to}: {reported:?}");
            assert_eq!(reported.is_empty(), expected.is_empty(), "{to}: {reported:?}");
        }
        for (added, expected) in [
            (second, "usnic \"u\" uses UDP port 7003"),
            (&*second.replace("\"v\"", "\"u\""), "another usnic is called \"u\""),
            (peer, "peer \"a\" has the same address and port"),
            (&*several("0a4d0002"), "peer \"a\" has the same address and port"),
            (&*several("0a4e0002"), "none of the peer's 2 interfaces is in the subnet"),
            ("\n[[usnic.peer]]\nname = \"b\"\nsender = \"1.2\"\n", "either modex or rendezvous"),
            (
                "\n[[usnic.peer]]\nname = \"b\"\nsender = \"1.2\"\nrendezvous = \"10.77.0.1:1\"\n",
                "the peer has the address of this interface",
            ),
            (
                "\n[[usnic.peer]]\nname = \"b\"\nsender = \"1.2\"\nrendezvous = \"[fd00::2]:1\"\n",
                "usNIC has no IPv6",
            ),
            (&*peer.replace("\"b\"", "\"a\""), "another peer is called \"a\""),
        ] {
            let problems = check([GOOD, added].concat().as_bytes()).unwrap_err();
            let reported: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert!(reported.join("\n").contains(expected), "{reported:?}");
        }
    }
}
