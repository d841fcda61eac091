//! Servers of the appliance itself, and the names of other machines in the whole document.

use super::item::text_items;
use super::schema::Config;
use super::values::hexadecimal;
use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;
use messaging::names::Target;
use net::dns::{self, Endpoint, Name};
use net::is_host;
use net::sntp;
use net::syslog::Transport;

/// A name server. It has an address, because nothing else could resolve its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameServer(pub SocketAddr);

/// The syslog server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyslogServer {
    /// How messages reach it.
    pub transport: Transport,
    /// The server.
    pub endpoint: Endpoint,
}

/// The SHA-256 of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

/// A time server, by address or by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeServer(pub Endpoint);

text_items! {
    TimeServer: "an address or a name of a time server such as 10.0.0.123, fd00::123 or ntp.example.net";
    NameServer: "the address of a name server such as 10.0.0.53, fd00::53 or 10.0.0.53:5353";
    SyslogServer: "an address or a name, and perhaps a port, such as 10.0.0.9:514, udp://logs.example.net, tcp://logs.example.net:601 or tls://logs.example.net:6514";
    Fingerprint: "the SHA-256 of a certificate, 64 hexadecimal digits, as `openssl x509 -noout -fingerprint -sha256` prints it";
}

impl FromStr for NameServer {
    type Err = String;
    fn from_str(text: &str) -> Result<NameServer, String> {
        let endpoint = Endpoint::parse(text, Some(dns::PORT))?;
        let address = endpoint.address().ok_or("a name server needs an address")?;
        match is_host(address.ip()) {
            true => Ok(NameServer(address)),
            false => Err("no host can have this address".into()),
        }
    }
}

impl fmt::Display for NameServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.port() {
            dns::PORT => self.0.ip().fmt(f),
            _ => self.0.fmt(f),
        }
    }
}

impl FromStr for SyslogServer {
    type Err = String;
    fn from_str(text: &str) -> Result<SyslogServer, String> {
        let (transport, rest) = match text.split_once("://") {
            None => (Transport::Udp, text),
            Some((scheme, rest)) => {
                let known = Transport::ALL.into_iter().find(|one| one.scheme() == scheme);
                (known.ok_or_else(|| format!("{scheme}:// is not a transport"))?, rest)
            }
        };
        let endpoint = Endpoint::parse(rest, Some(transport.port()))?;
        match endpoint.address().is_none_or(|address| is_host(address.ip())) {
            true => Ok(SyslogServer { transport, endpoint }),
            false => Err("no host can have this address".into()),
        }
    }
}

impl fmt::Display for SyslogServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.transport {
            Transport::Udp => self.endpoint.fmt(f),
            other => write!(f, "{}://{}", other.scheme(), self.endpoint),
        }
    }
}

impl FromStr for Fingerprint {
    type Err = String;
    fn from_str(text: &str) -> Result<Fingerprint, String> {
        hexadecimal(&text.replace(':', "")).map(Fingerprint)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for TimeServer {
    type Err = String;
    fn from_str(text: &str) -> Result<TimeServer, String> {
        let endpoint = Endpoint::parse(text, Some(sntp::PORT))?;
        match endpoint.address().is_none_or(|address| is_host(address.ip())) {
            true => Ok(TimeServer(endpoint)),
            false => Err("no host can have this address".into()),
        }
    }
}

impl fmt::Display for TimeServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.port {
            sntp::PORT => self.0.host.fmt(f),
            _ => self.0.fmt(f),
        }
    }
}

impl Config {
    /// The names of other machines, which are resolved as long as the configuration has them.
    pub fn names(&self) -> impl Iterator<Item = &Name> {
        let rules = self.rule.iter().flat_map(|rule| &rule.backend).filter_map(Target::name);
        let remotes = self.remote.iter().flat_map(|remote| &remote.path);
        let remotes = remotes.filter_map(|path| path.to.name());
        let addresses = self.remote.iter().flat_map(|remote| &remote.address);
        let remotes = remotes.chain(addresses.filter_map(|address| address.host().name()));
        let syslog = self.system.syslog.iter().filter_map(|server| server.endpoint.host.name());
        let time = self.system.ntp.iter().filter_map(|server| server.0.host.name());
        rules.chain(remotes).chain(syslog).chain(time)
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn name_servers_have_addresses_and_a_usual_port() {
        for (text, shown) in [
            ("10.0.0.53", "10.0.0.53"),
            ("10.0.0.53:53", "10.0.0.53"),
            ("10.0.0.53:5353", "10.0.0.53:5353"),
            ("fd00::53", "fd00::53"),
            ("[fd00::53]:5353", "[fd00::53]:5353"),
        ] {
            assert_eq!(text.parse::<NameServer>().unwrap().to_string(), shown);
        }
        for wrong in ["ns.example.net", "127.0.0.1", "0.0.0.0", "::1", "10.0.0.53:0", ""] {
            assert!(wrong.parse::<NameServer>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn syslog_servers_have_a_transport_and_its_usual_port() {
        for (text, shown) in [
            ("10.0.0.9:514", "10.0.0.9:514"),
            ("logs.example.net", "logs.example.net:514"),
            ("udp://[fd00::9]:5514", "[fd00::9]:5514"),
            ("tcp://logs.example.net", "tcp://logs.example.net:601"),
            ("tls://10.0.0.9", "tls://10.0.0.9:6514"),
        ] {
            assert_eq!(text.parse::<SyslogServer>().unwrap().to_string(), shown);
        }
        for wrong in ["http://10.0.0.9", "tcp://", "127.0.0.1:514", "tls://10.0.0.9:0"] {
            assert!(wrong.parse::<SyslogServer>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn syslog_over_tls_needs_a_fingerprint() {
        let text = "[system]\nsyslog = \"tls://logs.example.net\"\n";
        assert!(check(text.as_bytes()).unwrap_err()[0].path.contains("syslog_fingerprint"));
        let digits = "AB:".repeat(31) + "ab";
        let good = format!("{text}syslog_fingerprint = \"{digits}\"\n");
        let config = check(good.as_bytes()).unwrap();
        assert_eq!(config.system.syslog_fingerprint.unwrap().to_string(), "ab".repeat(32));
    }

    #[test]
    fn every_name_of_the_document_is_listed() {
        let text = "[system]\nsyslog = \"logs.example.net:514\"\nntp = [\"ntp.example.net\", \"10.0.0.9\"]\n\
            [[remote]]\nname = \"r\"\nsessname = \"s\"\ndevice_path = \"d\"\n\
            path = [\"ip:10.0.0.1@Far.example.net\", \"10.0.0.1@10.0.0.2\"]\n\
            [[rule]]\nname = \"w\"\nlisten = 8000\nbackend = [\"web.example.net:80\", \"10.0.0.3:80\"]\n";
        let config = check(text.as_bytes()).unwrap();
        let names: Vec<&str> = config.names().map(Name::as_str).collect();
        assert_eq!(
            names,
            ["web.example.net", "far.example.net", "logs.example.net", "ntp.example.net"]
        );
    }

    #[test]
    fn allow_lists_refuse_names_with_the_reason() {
        let text = "[http]\nhosts = [\"admin.example.net\"]\n";
        let problems = check(text.as_bytes()).unwrap_err();
        assert!(problems[0].reason.contains("a name proves nothing"), "{}", problems[0].reason);
    }
}
