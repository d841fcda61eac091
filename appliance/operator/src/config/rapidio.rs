//! `[[rapidio]]`: the ports of the machine to RapidIO networks.

use super::device_name::DeviceName;
use super::item::{section, text_items};
use core::fmt;
use core::str::FromStr;

section! {
    /// A RapidIO port, identified by `device` or else by its place in the list. A port without an entry is not used.
    Rapidio {
        /// The port, as in `show devices`: `pci:0000:03:00.0`, or its position among RapidIO ports.
        device: Option<DeviceName>;
        /// Whether the port enumerates the network, or waits for a host that does.
        role: RapidioRole = RapidioRole::Agent;
        /// Bits of destination ids, 8 or 16. Must be equal on the whole network.
        id_size: u8 [8, 16] = 8;
        /// The host's own id. The host assigns the ids of agents.
        id: Option<u16> [0, 65_534];
        /// Services over `rio_cm`, Linux's channels.
        services: Vec<RapidioService>;
        /// The channel of the service `echo`.
        echo_channel: u16 [1, 65_535] = 7;
    }
}

/// Role of an end point in its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RapidioRole {
    /// Assigns ids and routes to all devices.
    Host,
    /// Waits for enumeration by a host.
    Agent,
}

/// A service over channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RapidioService {
    /// Sends each message back.
    Echo,
}

text_items! {
    RapidioRole: "host or agent";
    RapidioService: "echo";
}

impl FromStr for RapidioRole {
    type Err = String;
    fn from_str(text: &str) -> Result<RapidioRole, String> {
        match text {
            "host" => Ok(RapidioRole::Host),
            "agent" => Ok(RapidioRole::Agent),
            _ => Err("unknown role".into()),
        }
    }
}

impl fmt::Display for RapidioRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RapidioRole::Host => "host",
            RapidioRole::Agent => "agent",
        })
    }
}

impl FromStr for RapidioService {
    type Err = String;
    fn from_str(text: &str) -> Result<RapidioService, String> {
        match text {
            "echo" => Ok(RapidioService::Echo),
            _ => Err("unknown service".into()),
        }
    }
}

impl fmt::Display for RapidioService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("echo")
    }
}

impl Rapidio {
    /// Whether the echo service is configured.
    pub fn echoes(&self) -> bool {
        self.services.contains(&RapidioService::Echo)
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;

    const GOOD: &str = "[[rapidio]]\nrole = \"host\"\nid = 1\nservices = [\"echo\"]\n\
        [[rapidio]]\ndevice = \"pci:0000:03:00.0\"\nid_size = 16\n";

    #[test]
    fn ports_are_read() {
        let config = check(GOOD.as_bytes()).unwrap();
        let (number, one) = config.rapidio_port(0, "pci:0000:02:00.0").unwrap();
        assert_eq!((number, one.id, one.echoes(), one.echo_channel), (0, Some(1), true, 7));
        let (number, one) = config.rapidio_port(5, "pci:0000:03:00.0").unwrap();
        assert_eq!((number, one.id, one.echoes(), one.id_size), (1, None, false, 16));
        assert!(config.rapidio_port(1, "pci:0000:04:00.0").is_none());
    }

    #[test]
    fn invalid_port_is_reported() {
        let cases = [
            ("role = \"host\"", "role = \"boss\"", "\"boss\": unknown role"),
            ("id = 1\n", "", "rapidio.0.id: a host needs an id"),
            ("id = 1", "id = 255", "255 is out of range; accepted: 0 to 254"),
            ("id_size = 16", "id_size = 12", "12 is not a size of ids"),
            ("id_size = 16", "id = 3", "an agent gets its id from the host"),
            ("[\"echo\"]", "[\"ping\"]", "\"ping\": unknown service"),
            ("pci:0000:03:00.0", "serial:1", "no serial number"),
            ("\"pci:0000:03:00.0\"", "0", "the same port as rapidio.0"),
        ];
        for (from, to, expected) in cases {
            assert!(GOOD.contains(from), "{from}");
            let problems = check(GOOD.replacen(from, to, 1).as_bytes()).unwrap_err();
            let reported: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert!(reported.join("\n").contains(expected), "{to}: {reported:?}");
        }
    }
}
