//! Names of hosts, and the places of an operator's document where a host is named or addressed.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::str::FromStr;

/// Longest name, without a final dot (RFC 1035 section 2.3.4: 255 bytes on the wire).
const LONGEST: usize = 253;
/// Longest label (RFC 1035 section 2.3.4).
const LONGEST_LABEL: usize = 63;

/// A host's name in the DNS: labels of letters, digits and hyphens (RFC 1123 section 2.1), joined by dots, in lower case
/// and without the final dot. Names are absolute: there are no search domains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = String;

    /// Refuses what is a mistyped or legacy form of an IPv4 address (`10.1`, `0x7f000001`), which has no top-level
    /// domain, and `localhost`, which must not be resolved by a server (RFC 6761 section 6.3).
    fn from_str(text: &str) -> Result<Name, String> {
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if name.is_empty() || name.len() > LONGEST {
            return Err(format!("a name has 1 to {LONGEST} characters"));
        }
        let is_label = |label: &str| {
            (1..=LONGEST_LABEL).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        if !name.split('.').all(is_label) {
            return Err(
                "not a name: parts of 1 to 63 letters, digits and hyphens, joined by dots".into()
            );
        }
        let last = name.rsplit('.').next().unwrap_or_default();
        let is_hexadecimal = |digits: &str| digits.bytes().all(|b| b.is_ascii_hexdigit());
        if last.bytes().all(|b| b.is_ascii_digit())
            || last.strip_prefix("0x").is_some_and(is_hexadecimal)
        {
            return Err("neither an address, which has four numbers or colons, nor a name, whose last part is not a number"
                .into());
        }
        if last == "localhost" {
            return Err("localhost is the appliance itself".into());
        }
        Ok(Name(name))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Another machine, by address or by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// Its address.
    Address(IpAddr),
    /// Its name.
    Name(Name),
}

impl Host {
    /// The name, if it is named.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Host::Address(_) => None,
            Host::Name(name) => Some(name),
        }
    }
}

impl FromStr for Host {
    type Err = String;
    fn from_str(text: &str) -> Result<Host, String> {
        match text.parse() {
            Ok(address) => Ok(Host::Address(address)),
            Err(_) if text.contains(':') => Err("not an IPv6 address".into()),
            Err(_) => text.parse().map(Host::Name),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Address(address) => address.fmt(f),
            Host::Name(name) => name.fmt(f),
        }
    }
}

/// A port of another machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// The machine.
    pub host: Host,
    /// The port, not 0.
    pub port: u16,
}

impl Endpoint {
    /// Parses `10.0.0.1:80`, `[fd00::1]:80` or `name:80`. With `default`, the port may be missing, and brackets with it.
    pub fn parse(text: &str, default: Option<u16>) -> Result<Endpoint, String> {
        let without = || default.ok_or_else(|| "no port".to_string());
        let (host, port) = if let Ok(address) = text.parse::<IpAddr>() {
            (Host::Address(address), without()?)
        } else if let Some(rest) = text.strip_prefix('[') {
            let (address, rest) = rest.split_once(']').ok_or("no ']' after an IPv6 address")?;
            let address: core::net::Ipv6Addr =
                address.parse().map_err(|_| "not an IPv6 address in brackets")?;
            let port = match rest.strip_prefix(':') {
                Some(port) => port_of(port)?,
                None if rest.is_empty() => without()?,
                None => return Err("text after ']'".into()),
            };
            (Host::Address(address.into()), port)
        } else {
            match text.rsplit_once(':') {
                Some((host, port)) => (host.parse()?, port_of(port)?),
                None => (text.parse()?, without()?),
            }
        };
        match port {
            0 => Err("port 0 is not valid".into()),
            _ => Ok(Endpoint { host, port }),
        }
    }

    /// The address and port, unless the host is named.
    pub fn address(&self) -> Option<SocketAddr> {
        match &self.host {
            Host::Address(address) => Some(SocketAddr::new(*address, self.port)),
            Host::Name(_) => None,
        }
    }
}

fn port_of(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| format!("{text:?} is not a port"))
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Endpoint {
        Endpoint { host: Host::Address(address.ip()), port: address.port() }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Address(address) => SocketAddr::new(*address, self.port).fmt(f),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lower_case_and_without_the_final_dot() {
        for (text, name) in [
            ("Files.Example.NET.", "files.example.net"),
            ("nas", "nas"),
            ("4.3.2.1.in-addr.arpa", "4.3.2.1.in-addr.arpa"),
            ("7zip.org", "7zip.org"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ] {
            assert_eq!(text.parse::<Name>().unwrap().as_str(), name);
        }
    }

    #[test]
    fn malformed_and_numeric_names_are_refused() {
        let long = format!("{}.example", "a".repeat(64));
        let longer = "a.".repeat(128);
        for text in [
            "",
            ".",
            "a..b",
            "-a.b",
            "a-.b",
            "a_b",
            "a b",
            "bücher.example",
            &long,
            &longer,
            "10",
            "10.0.0",
            "10.0.0.256",
            "0x7f000001",
            "0x7f.0x1",
            "1.2.3.4.5",
            "localhost",
            "a.LOCALHOST.",
            "10.0.0.1",
        ] {
            assert!(text.parse::<Name>().is_err(), "{text}");
        }
    }

    #[test]
    fn endpoints_take_addresses_and_names() {
        for (text, shown) in [
            ("10.0.0.1:80", "10.0.0.1:80"),
            ("[fd00::1]:80", "[fd00::1]:80"),
            ("Db.Example:80", "db.example:80"),
        ] {
            assert_eq!(Endpoint::parse(text, None).unwrap().to_string(), shown);
            assert_eq!(Endpoint::parse(text, Some(53)).unwrap().to_string(), shown);
        }
        for (text, shown) in [
            ("10.0.0.1", "10.0.0.1:53"),
            ("fd00::1", "[fd00::1]:53"),
            ("[fd00::1]", "[fd00::1]:53"),
            ("ns.example", "ns.example:53"),
        ] {
            assert_eq!(Endpoint::parse(text, Some(53)).unwrap().to_string(), shown);
            assert!(Endpoint::parse(text, None).is_err(), "{text}");
        }
        for text in ["a:0", "a:65536", "a:", ":80", "[10.0.0.1]:80", "[fd00::1", "[fd00::1]x", ""] {
            assert!(Endpoint::parse(text, Some(53)).is_err(), "{text}");
        }
    }
}
