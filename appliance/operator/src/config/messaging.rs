//! `[smc]` and `[[rule]]`: the messaging gateway.

use super::item::{Item, Range, Shape, decode_text, integer, section, text_items};
use super::origin::Problem;
use super::tree::{Node, Value};
use super::values::{Name, Size};
use core::fmt;
use core::str::FromStr;
use messaging::names::{Listen, Target};
use net::hosts::Network;
use smcr::engine::PnetId;
use smcr::wire::Eid;

section! {
    /// SMC-R.
    Smc {
        /// Whether the echo (port 7) and discard (port 9) services run over SMC-R and TCP.
        services: bool = false;
        /// UEIDs (enterprises) of the appliance. In version 2, peers must share one.
        ueid: Vec<Ueid>;
        /// Whether to use version 1 (over RoCEv1) with hosts of the same subnet that lack version 2 or share no UEID.
        version1: bool = true;
        /// Bytes of a connection's send buffer, a power of two: at most as much is on the way to the peer.
        send_buffer: Size [16 << 10, 1 << 20] = Size(64 << 10);
        /// Bytes of a connection's receive buffer, a power of two.
        receive_buffer: Size [16 << 10, 1 << 20] = Size(64 << 10);
        /// Maximum concurrent connections of each service.
        connections: u16 [1, 4096] = 128;
        /// Maximum concurrent connections of one host, by default three quarters.
        connections_per_host: Option<u16> [1, 4096];
        /// Networks whose hosts are served over SMC-R; empty admits all.
        hosts: Vec<Network>;
    }
}

section! {
    /// A rule of the messaging gateway. It relays clients that connect to its port over SMC-R or TCP, or that send
    /// messages to its end, to one of its servers.
    Rule {
        /// Name of the rule.
        name: Name => AtOnce;
        /// The port to listen on, or an end that carries messages.
        listen: Listen => AtOnce;
        /// The servers: addresses or names, or ends that carry messages.
        backend: Vec<Target> => AtOnce;
        /// Signal number of all LINX signals. Without it each message begins with its signal number.
        signal: Option<u32> => AtOnce;
        /// Framing of messages in a stream.
        framing: RuleFraming = RuleFraming::Length => AtOnce;
        /// Longest message in bytes.
        max_message: Size [64, 1 << 20] = Size(64 << 10) => AtOnce;
        /// Whether to offer SMC-R to servers.
        backend_smc: bool = false => AtOnce;
        /// Whether to send the client's address to servers (PROXY protocol, version 2).
        proxy_protocol: bool = false => AtOnce;
        /// Maximum concurrent connections.
        connections: u16 [1, 4096] = 64 => AtOnce;
        /// Maximum concurrent connections of one host, by default three quarters.
        connections_per_host: Option<u16> [1, 4096] => AtOnce;
        /// Buffer of each TCP connection in bytes, per direction.
        buffer_size: Size [1 << 10, 1 << 20] = Size(16 << 10) => AtOnce;
        /// Bytes of the send buffer of each SMC-R connection, a power of two. By default `smc.send_buffer`.
        send_buffer: Option<Size> [16 << 10, 1 << 20] => AtOnce;
        /// Bytes of the receive buffer of each SMC-R connection, a power of two. By default `smc.receive_buffer`.
        receive_buffer: Option<Size> [16 << 10, 1 << 20] => AtOnce;
        /// Milliseconds to wait for a server before trying another.
        connect_timeout_ms: u32 [10, 60_000] = 3000 => AtOnce;
        /// Idle timeout of a connection in seconds; 0 for none. By default a week, or 300 for transports that do not
        /// detect a lost peer.
        idle_timeout_s: Option<u32> [0, 1_000_000] => AtOnce;
        /// Seconds between health checks of servers; none without it.
        health_interval_s: Option<u16> [1, 3600] => AtOnce;
        /// Networks whose hosts are served; empty admits all.
        hosts: Vec<Network> => AtOnce;
    }
}

/// Framing of messages in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleFraming {
    /// Each message is preceded by its length.
    Length,
    /// Messages are written without framing. Each piece read from the stream becomes a message.
    None,
}

/// Name of an enterprise, as `smcr ueid add` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ueid(
    /// The wire format.
    pub Eid,
);

text_items! {
    Ueid: "1 to 32 letters A-Z, digits, '-' and single dots, the first a letter or digit";
    PnetId: "1 to 16 letters A-Z and digits";
    RuleFraming: "length or none";
    Target: "an address or a name and a port such as 10.0.0.1:514, [fd00::1]:514 or host.example.net:514, \
             linx:LINK/NAME, usnic:INTERFACE/PEER or rio_cm:ID:CHANNEL";
}

impl FromStr for RuleFraming {
    type Err = String;
    fn from_str(text: &str) -> Result<RuleFraming, String> {
        match text {
            "length" => Ok(RuleFraming::Length),
            "none" => Ok(RuleFraming::None),
            _ => Err("unknown framing".into()),
        }
    }
}

impl fmt::Display for RuleFraming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RuleFraming::Length => "length",
            RuleFraming::None => "none",
        })
    }
}

/// A port is written as a number, any other end as text.
impl Item for Listen {
    const SHAPE: Shape = Shape::TextOrInteger;
    fn accepts(_: Option<Range>) -> String {
        "a whole number from 1 to 65535, linx:LINK/NAME, usnic:INTERFACE/PEER or rio_cm:ID:CHANNEL"
            .into()
    }
    fn decode(
        node: &Node,
        path: &str,
        _: Option<Range>,
        problems: &mut Vec<Problem>,
    ) -> Option<Listen> {
        match integer(node) {
            Some(_) => u16::decode(node, path, Some((1, 65_535)), problems).map(Listen::Port),
            None => decode_text(node, path, Self::accepts(None), problems),
        }
    }
    fn encode(&self) -> Option<Value> {
        Some(match self {
            Listen::Port(port) => Value::Integer((*port).into()),
            Listen::Message(name) => Value::Text(name.to_string()),
        })
    }
}

impl FromStr for Ueid {
    type Err = String;
    fn from_str(text: &str) -> Result<Ueid, String> {
        Eid::new(text).map(Ueid).ok_or_else(|| "not an enterprise name".into())
    }
}

impl fmt::Display for Ueid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use messaging::names::{Listen, MessageName, Target};

    const GOOD: &str = "[[linx]]\nname = \"far\"\ntransport = \"tcp\"\naddress = \"10.0.0.7\"\nservices = [\"echo\"]\n\
        [[rule]]\nname = \"in\"\nlisten = \"linx:far/gate\"\nbackend = [\"10.0.0.9:7000\"]\nsignal = 7\n\
        [[rule]]\nname = \"out\"\nlisten = 7000\nbackend = [\"linx:far/cli\"]\nframing = \"none\"\n";

    #[test]
    fn buffers_of_connections_are_read() {
        let text = "[smc]\nsend_buffer = \"1MiB\"\nbuffer_size = \"128KiB\"\n[[rule]]\nname = \"r\"\n\
            listen = 7001\nbackend = [\"10.0.0.9:7000\"]\nreceive_buffer = \"1MiB\"\n";
        let config = check(text.as_bytes()).unwrap();
        // The old name of a key is still read.
        assert_eq!((config.smc.send_buffer.0, config.smc.receive_buffer.0), (1 << 20, 128 << 10));
        assert_eq!(config.rule[0].send_buffer, None);
        assert_eq!(config.rule[0].receive_buffer.map(|size| size.0), Some(1 << 20));
        for (from, to, path) in [
            ("\"1MiB\"\nbuffer", "\"96KiB\"\nbuffer", "smc.send_buffer"),
            ("receive_buffer = \"1MiB\"", "receive_buffer = \"2MiB\"", "rule.0.receive_buffer"),
            ("receive_buffer = \"1MiB\"", "send_buffer = \"24KiB\"", "rule.0.send_buffer"),
        ] {
            let problems = check(text.replacen(from, to, 1).as_bytes()).unwrap_err();
            assert!(problems.iter().any(|problem| problem.path == path), "{problems:?}");
        }
    }

    #[test]
    fn ends_that_carry_messages_are_read() {
        let config = check(GOOD.as_bytes()).unwrap();
        let name = MessageName::Linx { link: "far".into(), name: "gate".into() };
        assert_eq!(config.rule[0].listen, Listen::Message(name));
        assert_eq!(config.rule[0].signal, Some(7));
        assert_eq!(config.rule[1].listen, Listen::Port(7000));
        assert!(matches!(&config.rule[1].backend[..], [Target::Message(_)]));
    }

    #[test]
    fn invalid_rule_end_is_reported() {
        let cases = [
            ("linx:far/gate", "linx:near/gate", "there is no [[linx]] named near"),
            ("linx:far/gate", "linx:far", "not of the form linx:LINK/NAME"),
            ("linx:far/gate", "linx:far/echo", "the name echo is published already"),
            ("linx:far/gate", "usnic:mpi/a", "there is no [[usnic]] mpi with a peer a"),
            ("linx:far/cli", "rio_cm:3:300", "there is no [[rapidio]]"),
            ("linx:far/cli", "rio_cm:3", "not of the form rio_cm:ID:CHANNEL"),
            ("signal = 7", "proxy_protocol = true", "one end carries messages"),
            ("linx:far/cli\"]", "10.0.0.9:1\"]\nsignal = 1", "only LINX has signals"),
            ("\"none\"", "\"some\"", "unknown framing"),
        ];
        for (from, to, expected) in cases {
            assert!(GOOD.contains(from), "{from}");
            let problems = check(GOOD.replacen(from, to, 1).as_bytes()).unwrap_err();
            let reported: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert!(reported.join("\n").contains(expected), "{to}: {reported:?}");
        }
    }
}
