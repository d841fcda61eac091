//! Values of keys about remotes over TCP: addresses, exports of NBD servers, digests of NVMe/TCP.

use super::item::text_items;
use super::nvme_host::DhchapText;
use super::remote::Remote;
use core::fmt;
use core::str::FromStr;
use net::dns::{Endpoint, Host};
use net::is_host;

text_items! {
    RemoteAddress: "an address or a name, and perhaps a port, such as 10.0.0.9, [fd00::9]:10809 or nbd.example.net:10810";
    Digests: "none, header, data or both";
    RemoteExport: "at most 1024 visible characters or spaces";
}

/// An address of a server over TCP, and perhaps a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    endpoint: Endpoint,
    /// The port was given.
    has_port: bool,
}

impl RemoteAddress {
    /// The host.
    pub fn host(&self) -> &Host {
        &self.endpoint.host
    }

    /// The address with its port, or this one if it was given without.
    pub fn endpoint(&self, port: u16) -> Endpoint {
        let port = if self.has_port { self.endpoint.port } else { port };
        Endpoint { port, ..self.endpoint.clone() }
    }
}

impl FromStr for RemoteAddress {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let endpoint = Endpoint::parse(text, Some(nbd::PORT))?;
        let has_port = Endpoint::parse(text, None).is_ok();
        match endpoint.address().is_none_or(|address| is_host(address.ip())) {
            true => Ok(RemoteAddress { endpoint, has_port }),
            false => Err("no host can have this address".into()),
        }
    }
}

impl fmt::Display for RemoteAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.has_port {
            true => self.endpoint.fmt(f),
            false => self.endpoint.host.fmt(f),
        }
    }
}

impl Remote {
    /// Names and secrets of the two ends of a remote over NVMe/TCP. None if a name is missing.
    pub fn nvme_identity(&self) -> Option<nvme_host::Identity> {
        let secret = |text: &Option<DhchapText>| text.as_ref().map(|text| text.secret().clone());
        Some(nvme_host::Identity {
            host: self.host_nqn.as_ref()?.as_str().into(),
            subsystem: self.nqn.as_ref()?.as_str().into(),
            secret: secret(&self.dhchap_secret),
            controller_secret: secret(&self.dhchap_controller_secret),
        })
    }
}

/// Digests that protect PDUs of NVMe/TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digests {
    /// None.
    None,
    /// Of headers.
    Header,
    /// Of data.
    Data,
    /// Of headers and data.
    Both,
}

impl Digests {
    const ALL: [(Digests, &str); 4] = [
        (Digests::None, "none"),
        (Digests::Header, "header"),
        (Digests::Data, "data"),
        (Digests::Both, "both"),
    ];

    /// Bit 0: of headers. Bit 1: of data.
    pub fn bits(self) -> u8 {
        match self {
            Digests::None => 0,
            Digests::Header => 1,
            Digests::Data => 2,
            Digests::Both => 3,
        }
    }
}

impl FromStr for Digests {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Digests::ALL.into_iter().find(|(_, name)| *name == text);
        found.map(|(digests, _)| digests).ok_or_else(|| "not digests".into())
    }
}

impl fmt::Display for Digests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Digests::ALL.into_iter().find(|(digests, _)| digests == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}

/// Name of an export on a server. It may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteExport(String);

impl RemoteExport {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for RemoteExport {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let visible = text.chars().all(|c| !c.is_control());
        let valid = visible && text.len() <= nbd::LONGEST_NAME;
        if valid { Ok(RemoteExport(text.into())) } else { Err("not the name of an export".into()) }
    }
}

impl fmt::Display for RemoteExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
