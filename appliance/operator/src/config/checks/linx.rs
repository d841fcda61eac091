//! Cross-section validation of `[[linx]]`.

use super::messaging::listener;
use super::report::Report;
use crate::config::linx::{Linx, LinxTransport};
use crate::config::schema::Config;
use net::hosts::Hosts;

/// Checks links against each other and against other sections.
pub(super) fn check(config: &Config, report: &mut Report<'_>) {
    for (i, link) in config.linx.iter().enumerate() {
        let path = |key: &str| format!("linx.{i}.{key}");
        let earlier = &config.linx[..i];
        if earlier.iter().any(|other| other.name == link.name) {
            report.add(path("name"), format!("another link is called {}", link.name), "");
        }
        if !link.publish.is_empty() && link.services.is_empty() {
            let reason = "names are published but no service is configured".into();
            report.add(path("publish"), reason, "names with `services`");
        }
        let riocm = [
            ("rapidio", link.rapidio.is_some()),
            ("mailbox", link.mailbox.is_some()),
            ("peer_id", link.peer_id.is_some()),
            ("peer_mailbox", link.peer_mailbox.is_some()),
            ("mtu", link.mtu.is_some()),
        ];
        match link.transport {
            LinxTransport::Tcp => {
                for (key, _) in riocm.iter().filter(|(_, given)| *given) {
                    report.add(path(key), "not a key of transport tcp".into(), "only with riocm");
                }
                check_tcp(config, i, link, report);
            }
            LinxTransport::Riocm => {
                for (key, _) in riocm[..3].iter().filter(|(key, given)| *key != "mailbox" && !given)
                {
                    report.missing(path(key), "missing".into(), "a number");
                }
                for (key, given) in [("port", link.port), ("peer_port", link.peer_port)] {
                    if given.is_none() {
                        report.missing(path(key), "missing".into(), "a RIOCM port");
                    }
                }
                if link.address.is_some() || !link.hosts.is_empty() {
                    let reason = "a RapidIO peer has an id, not an address".into();
                    report.add(path("address"), reason, "only with tcp");
                }
                let number = link.rapidio.map(usize::from);
                if number.is_some_and(|number| number >= config.rapidio.len()) {
                    let reason = "there is no such [[rapidio]]".into();
                    report.add(path("rapidio"), reason, "the number of one, from 0");
                }
                let ends = |link: &Linx| (link.rapidio, link.peer_id, link.port, link.peer_port);
                let same =
                    |other: &&Linx| other.transport == link.transport && ends(other) == ends(link);
                if let Some(other) = earlier.iter().find(same) {
                    let reason = format!("link {} has the same ends", other.name);
                    report.add(path("port"), reason, "another port");
                }
            }
        }
    }
}

fn check_tcp(config: &Config, i: usize, link: &Linx, report: &mut Report<'_>) {
    let path = |key: &str| format!("linx.{i}.{key}");
    let Some(address) = link.address else {
        return report.missing(path("address"), "missing".into(), "the peer's address");
    };
    let (port, peer_port) = link.tcp_ports();
    if port == 0 || peer_port == 0 {
        report.add(path("port"), "port 0 is invalid".into(), "1 to 65535");
    }
    let tcp = |other: &&Linx| other.transport == LinxTransport::Tcp;
    let mut earlier = config.linx[..i].iter().filter(tcp);
    if let Some(other) = earlier.find(|other| other.address == link.address) {
        let reason = format!("link {} has the same peer", other.name);
        report.add(path("address"), reason, "another address");
    }
    if !Hosts::new(link.hosts.clone()).admits(address) {
        let reason = format!("the peer's address {address} is in none of these networks");
        report.add(path("hosts"), reason, "networks with the peer in one of them");
    }
    let rule = config.rule.iter().find(|rule| rule.listen.port() == Some(port));
    let rule = rule.map(|rule| format!("rule {:?}", rule.name.as_str()));
    if let Some(other) = rule.or_else(|| listener(config, port).filter(|other| other != "linx")) {
        report.add(path("port"), format!("{other} listens on port {port}"), "another port");
    }
}
