//! Names of a rule's ends: ports, socket addresses, and ends of message transports.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::net::SocketAddr;
use core::str::FromStr;
use net::dns::{Endpoint, Host, Name};

/// An end that carries messages.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MessageName {
    /// `linx:LINK/NAME`: an endpoint that this machine publishes on the link, or an endpoint of the link's peer.
    Linx {
        /// Name of the link.
        link: String,
        /// Name of the endpoint.
        name: String,
    },
    /// `rio_cm:ID:CHANNEL`: our own ID and a channel to listen on, or ID and channel of another device.
    RioCm {
        /// RapidIO destination ID.
        id: u16,
        /// Number of the channel.
        channel: u16,
    },
    /// `usnic:INTERFACE/PEER`.
    Usnic {
        /// Name of the interface.
        interface: String,
        /// Name of the peer.
        peer: String,
    },
}

impl FromStr for MessageName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |form: &str| format!("not of the form {form}");
        let pair = |rest: &str, form: &str| {
            let (first, second) = rest.split_once('/').ok_or_else(|| wrong(form))?;
            let is_name = |part: &str| {
                (1..=1024).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_graphic())
            };
            match is_name(first) && is_name(second) {
                true => Ok((first.to_string(), second.to_string())),
                false => Err(wrong(form)),
            }
        };
        if let Some(rest) = text.strip_prefix("linx:") {
            let (link, name) = pair(rest, "linx:LINK/NAME")?;
            Ok(MessageName::Linx { link, name })
        } else if let Some(rest) = text.strip_prefix("usnic:") {
            let (interface, peer) = pair(rest, "usnic:INTERFACE/PEER")?;
            Ok(MessageName::Usnic { interface, peer })
        } else if let Some(rest) = text.strip_prefix("rio_cm:") {
            let numbers = rest.split_once(':');
            let numbers =
                numbers.and_then(|(id, channel)| Some((id.parse().ok()?, channel.parse().ok()?)));
            let (id, channel) = numbers.ok_or_else(|| wrong("rio_cm:ID:CHANNEL"))?;
            match channel {
                0 => Err("channel 0 is not valid".into()),
                _ => Ok(MessageName::RioCm { id, channel }),
            }
        } else {
            Err("not the name of a message transport's end".into())
        }
    }
}

impl fmt::Display for MessageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageName::Linx { link, name } => write!(f, "linx:{link}/{name}"),
            MessageName::RioCm { id, channel } => write!(f, "rio_cm:{id}:{channel}"),
            MessageName::Usnic { interface, peer } => write!(f, "usnic:{interface}/{peer}"),
        }
    }
}

/// The end that a rule listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A port, over TCP and SMC-R.
    Port(u16),
    /// An end that carries messages.
    Message(MessageName),
}

impl Listen {
    /// The port, if the rule listens on one.
    pub fn port(&self) -> Option<u16> {
        match self {
            Listen::Port(port) => Some(*port),
            Listen::Message(_) => None,
        }
    }
}

impl FromStr for Listen {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(0) => Err("port 0 is not valid".into()),
            Ok(port) => Ok(Listen::Port(port)),
            Err(_) => text.parse().map(Listen::Message),
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Port(port) => port.fmt(f),
            Listen::Message(name) => name.fmt(f),
        }
    }
}

/// A server of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An address and a port, over TCP or SMC-R.
    Socket(SocketAddr),
    /// A name and a port. The caller replaces it by the addresses of the name before a rule runs.
    Name(Name, u16),
    /// An end that carries messages.
    Message(MessageName),
}

impl Target {
    /// The address, if the server has one.
    pub fn socket(&self) -> Option<SocketAddr> {
        match self {
            Target::Socket(address) => Some(*address),
            Target::Name(..) | Target::Message(_) => None,
        }
    }

    /// The name, if the server is named.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Target::Name(name, _) => Some(name),
            Target::Socket(_) | Target::Message(_) => None,
        }
    }
}

impl FromStr for Target {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let is_message = ["linx:", "usnic:", "rio_cm:"].iter().any(|kind| text.starts_with(kind));
        if is_message {
            return text.parse().map(Target::Message);
        }
        let Endpoint { host, port } = Endpoint::parse(text, None)?;
        Ok(match host {
            Host::Address(address) => Target::Socket(SocketAddr::new(address, port)),
            Host::Name(name) => Target::Name(name, port),
        })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Socket(address) => address.fmt(f),
            Target::Name(name, port) => write!(f, "{name}:{port}"),
            Target::Message(name) => name.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsed_names_display_unchanged() {
        for text in ["linx:board/server", "rio_cm:3:300", "usnic:mpi/rank0"] {
            assert_eq!(text.parse::<MessageName>().unwrap().to_string(), text);
        }
        for text in ["80", "linx:board/a/b"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        assert_eq!("10.0.0.1:80".parse::<Target>().unwrap().socket().unwrap().port(), 80);
        for text in ["10.0.0.1:80", "[fd00::1]:80", "web.example.net:80", "linx:board/a"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in ["web.example.net", "10.0.0.1", "10.0.1:80", "localhost:80", "web:0", "lin:a/b"]
        {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn parse_rejects_malformed_names() {
        let wrong = [
            "linx:board",
            "linx:/a",
            "linx:a/",
            "rio_cm:3",
            "rio_cm:3:0",
            "rio_cm:70000:1",
            "usnic:a",
            "tcp:1",
            "",
            "linx:a/b c",
        ];
        for text in wrong {
            assert!(text.parse::<MessageName>().is_err(), "{text}");
        }
        assert!("0".parse::<Listen>().is_err() && "70000".parse::<Listen>().is_err());
    }
}
