//! `[[linx]]`: links to LINX nodes, over RapidIO messages or TCP.

use super::item::{section, text_items};
use super::values::{Name, Size};
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use net::hosts::Network;

/// Default TCP port of LINX.
const TCP_PORT: u16 = 19790;
/// Default mailbox. Mailbox 0 belongs to rionet and 1 to rio_cm.
const MAILBOX: u8 = 2;

section! {
    /// A link to a LINX node.
    Linx {
        /// Name of the link. Endpoints of the peer are `NAME/ENDPOINT`.
        name: Name => AtOnce;
        /// Transport of the link.
        transport: LinxTransport => AtOnce;
        /// Over RapidIO: number of the `[[rapidio]]` whose port the link uses.
        rapidio: Option<u8> [0, 63] => AtOnce;
        /// Over RapidIO: the appliance's mailbox. Mailbox 0 belongs to rionet and 1 to rio_cm.
        mailbox: Option<u8> [2, 3] => AtOnce;
        /// Over RapidIO: the peer's destination id.
        peer_id: Option<u16> [0, 65_534] => AtOnce;
        /// Over RapidIO: the peer's mailbox.
        peer_mailbox: Option<u8> [2, 3] => AtOnce;
        /// Over RapidIO: the appliance's RIOCM port. Over TCP: the port to listen on, by default 19790.
        port: Option<u16> => AtOnce;
        /// The peer's RIOCM or TCP port.
        peer_port: Option<u16> => AtOnce;
        /// Over TCP: the peer's address.
        address: Option<IpAddr> => AtOnce;
        /// Over RapidIO: longest packet in bytes, by default the port's maximum.
        mtu: Option<u16> [65, 4096] => AtOnce;
        /// Milliseconds between heartbeats, over RapidIO in steps of 100. By default 500, over TCP 1000.
        heartbeat_ms: Option<u32> [100, 25_500] => AtOnce;
        /// Longest signal in bytes, in both directions.
        max_message: Size [64, 1 << 20] = Size(64 << 10) => AtOnce;
        /// Names that the appliance may publish to the peer at a time: the `linx_max_sockets_per_link` of LINX for
        /// Linux.
        addresses: u32 [2, 65_536] = 1024 => AtOnce;
        /// Attributes of the link, as in `mklink` of LINX for Linux: shown in reports, and not interpreted.
        attributes: Option<LinxName> => AtOnce;
        /// Networks whose hosts may connect over TCP; empty admits all. The peer must also have `address`.
        hosts: Vec<Network> => AtOnce;
        /// Names under which peers of all links find the services, by default each service's own name.
        publish: Vec<LinxName> => AtOnce;
        /// Services over signals.
        services: Vec<LinxService> => AtOnce;
    }
}

/// Transport of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinxTransport {
    /// RapidIO messages.
    Riocm,
    /// TCP.
    Tcp,
}

/// A service over signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinxService {
    /// Sends each signal back to its sender.
    Echo,
}

/// Name of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinxName(String);

impl LinxName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

text_items! {
    LinxTransport: "riocm or tcp";
    LinxService: "echo";
    LinxName: "1 to 1024 visible characters";
}

impl FromStr for LinxTransport {
    type Err = String;
    fn from_str(text: &str) -> Result<LinxTransport, String> {
        match text {
            "riocm" => Ok(LinxTransport::Riocm),
            "tcp" => Ok(LinxTransport::Tcp),
            _ => Err("unknown transport".into()),
        }
    }
}

impl fmt::Display for LinxTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinxTransport::Riocm => "riocm",
            LinxTransport::Tcp => "tcp",
        })
    }
}

impl FromStr for LinxService {
    type Err = String;
    fn from_str(text: &str) -> Result<LinxService, String> {
        match text {
            "echo" => Ok(LinxService::Echo),
            _ => Err("unknown service".into()),
        }
    }
}

impl fmt::Display for LinxService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("echo")
    }
}

impl FromStr for LinxName {
    type Err = String;
    fn from_str(text: &str) -> Result<LinxName, String> {
        match (1..=1024).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic()) {
            true => Ok(LinxName(text.into())),
            false => Err("not an endpoint name".into()),
        }
    }
}

impl fmt::Display for LinxName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Linx {
    /// Whether a link with these settings can become one with the `other` ones while it is up: they differ in what
    /// endpoints and reports use alone.
    pub fn is_same_link(&self, other: &Linx) -> bool {
        let Linx { publish, services, hosts, attributes, .. } = other.clone();
        Linx { publish, services, hosts, attributes, ..self.clone() } == *other
    }

    /// Over TCP: the appliance's listening port, and the peer's.
    pub fn tcp_ports(&self) -> (u16, u16) {
        (self.port.unwrap_or(TCP_PORT), self.peer_port.unwrap_or(TCP_PORT))
    }

    /// Over RapidIO: the appliance's mailbox, and the peer's.
    pub fn mailboxes(&self) -> (u8, u8) {
        (self.mailbox.unwrap_or(MAILBOX), self.peer_mailbox.unwrap_or(MAILBOX))
    }

    /// Published names of the echo service.
    pub fn echoes(&self) -> Vec<&str> {
        match (self.services.contains(&LinxService::Echo), self.publish.is_empty()) {
            (false, _) => Vec::new(),
            (true, true) => vec!["echo"],
            (true, false) => self.publish.iter().map(LinxName::as_str).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::LinxName;

    const GOOD: &str = "[[rapidio]]\nrole = \"host\"\nid = 1\n\
        [[linx]]\nname = \"board\"\ntransport = \"riocm\"\nrapidio = 0\npeer_id = 3\nport = 11\npeer_port = 22\n\
        [[linx]]\nname = \"far\"\ntransport = \"tcp\"\naddress = \"10.0.0.7\"\nservices = [\"echo\"]\n";

    #[test]
    fn links_are_read() {
        let config = check(GOOD.as_bytes()).unwrap();
        assert_eq!(config.linx[0].mailboxes(), (2, 2));
        assert_eq!(config.linx[1].tcp_ports(), (19790, 19790));
        assert_eq!(config.linx[1].echoes(), ["echo"]);
        assert_eq!(config.linx[0].echoes(), [""; 0]);
        let described = GOOD.replace("port = 11", "port = 11\nattributes = \"rack:3,board\"");
        let described = check(described.as_bytes()).unwrap();
        let attributes = described.linx[0].attributes.as_ref().map(LinxName::as_str);
        assert_eq!(attributes, Some("rack:3,board"));
        let named = GOOD.replace("services", "publish = [\"a\", \"b\"]\nservices");
        assert_eq!(check(named.as_bytes()).unwrap().linx[1].echoes(), ["a", "b"]);
    }

    #[test]
    fn invalid_link_is_reported() {
        let cases = [
            ("\"riocm\"", "\"udp\"", "\"udp\": unknown transport"),
            ("peer_id = 3\n", "", "linx.0.peer_id: missing"),
            ("peer_port = 22\n", "", "linx.0.peer_port: missing"),
            ("rapidio = 0", "rapidio = 1", "there is no such [[rapidio]]"),
            ("rapidio = 0", "rapidio = 0\nmailbox = 1", "1 is out of range"),
            ("rapidio = 0", "rapidio = 0\naddresses = 65537", "65537 is out of range"),
            ("rapidio = 0", "rapidio = 0\naddress = \"::1\"", "has an id, not an address"),
            ("\"far\"", "\"board\"", "another link is called board"),
            ("address = \"10.0.0.7\"", "", "linx.1.address: missing"),
            ("\"10.0.0.7\"", "\"10.0.0.7\"\nmtu = 512", "linx.1.mtu: not a key of transport tcp"),
            ("\"10.0.0.7\"", "\"10.0.0.7\"\nport = 80", "http listens on port 80"),
            (
                "\"10.0.0.7\"",
                "\"10.0.0.7\"\nhosts = [\"10.1.0.0/16\"]",
                "in none of these networks",
            ),
            ("services = [\"echo\"]", "publish = [\"a\"]", "no service is configured"),
        ];
        for (from, to, expected) in cases {
            assert!(GOOD.contains(from), "{from}");
            let problems = check(GOOD.replacen(from, to, 1).as_bytes()).unwrap_err();
            let reported: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert!(reported.join("\n").contains(expected), "{to}: {reported:?}");
        }
    }
}
