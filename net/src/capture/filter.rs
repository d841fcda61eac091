//! Capture filter: a frame is kept if all words match. `payload` keeps payload in addition to headers.

use core::fmt;
use core::net::IpAddr;

/// Kinds of frames that a filter can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Arp,
    Icmp,
    Tcp,
    Udp,
    Roce,
    Rapidio,
}

/// A filter: every field that is set must match. The default keeps every frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    kind: Option<Kind>,
    interface: Option<usize>,
    host: Option<IpAddr>,
    port: Option<u16>,
    qp: Option<u32>,
    payload: bool,
}

/// A syntax error in a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// The unknown or invalid word; empty if an argument is missing at the end.
    pub word: alloc::string::String,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accepted =
            "arp, icmp, tcp, udp, roce, rapidio, netN, host ADDRESS, port N, qp N, payload";
        if self.word.is_empty() {
            write!(f, "the filter ends too early; accepted: {accepted}")
        } else {
            write!(f, "filter: `{}` is not understood; accepted: {accepted}", self.word)
        }
    }
}

impl Filter {
    /// The keywords of a filter, besides the names of ports.
    pub const WORDS: &[&str] =
        &["arp", "host", "icmp", "payload", "port", "qp", "rapidio", "roce", "tcp", "udp"];

    /// Whether a keyword is followed by an argument.
    pub fn takes_argument(word: &str) -> bool {
        matches!(word, "host" | "port" | "qp")
    }

    /// Reads words such as `roce host 10.0.0.2 qp 17`.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        let mut filter = Filter::default();
        let mut words = text.split_ascii_whitespace();
        let wrong = |word: &str| FilterError { word: word.into() };
        while let Some(word) = words.next() {
            let mut argument = || words.next().ok_or_else(|| wrong(""));
            match word {
                "arp" => filter.kind = Some(Kind::Arp),
                "icmp" => filter.kind = Some(Kind::Icmp),
                "tcp" => filter.kind = Some(Kind::Tcp),
                "udp" => filter.kind = Some(Kind::Udp),
                "roce" => filter.kind = Some(Kind::Roce),
                "rapidio" => filter.kind = Some(Kind::Rapidio),
                "payload" => filter.payload = true,
                "host" => {
                    let a = argument()?;
                    filter.host = Some(a.parse().map_err(|_| wrong(a))?);
                }
                "port" => {
                    let a = argument()?;
                    filter.port = Some(a.parse().map_err(|_| wrong(a))?);
                }
                "qp" => {
                    let a = argument()?;
                    filter.qp = Some(a.parse().map_err(|_| wrong(a))?);
                }
                _ => {
                    let n = word.strip_prefix("net").and_then(|n| n.parse().ok());
                    filter.interface = Some(n.ok_or_else(|| wrong(word))?);
                }
            }
        }
        Ok(filter)
    }

    /// Whether payload is kept in addition to headers.
    pub(super) fn payload(&self) -> bool {
        self.payload
    }

    /// Whether RapidIO messages are kept. They match only filters without interface, host, port and QP.
    pub(super) fn matches_message(&self) -> bool {
        let Filter { kind, payload, .. } = *self;
        let is_wanted = matches!(kind, None | Some(Kind::Rapidio));
        is_wanted && *self == (Filter { kind, payload, ..Filter::default() })
    }

    /// Whether `frame` of port `interface` is kept.
    pub(super) fn matches(&self, interface: usize, frame: &[u8]) -> bool {
        if self.interface.is_some_and(|i| i != interface) {
            return false;
        }
        let Filter { interface, payload, .. } = *self;
        if *self == (Filter { interface, payload, ..Filter::default() }) {
            return true;
        }
        let Some(seen) = Seen::of(frame) else { return false };
        self.kind.is_none_or(|k| k == seen.kind || (k == Kind::Udp && seen.kind == Kind::Roce))
            && self.host.is_none_or(|h| seen.hosts.contains(&Some(h)))
            && self.port.is_none_or(|p| seen.ports.contains(&Some(p)))
            && self.qp.is_none_or(|q| seen.qp == Some(q))
    }
}

/// The fields of a frame that a filter compares.
struct Seen {
    kind: Kind,
    hosts: [Option<IpAddr>; 2],
    ports: [Option<u16>; 2],
    qp: Option<u32>,
}

impl Seen {
    fn of(frame: &[u8]) -> Option<Seen> {
        let be16 = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
        let qp_at = |bth: usize| Some(u32::from_be_bytes(*frame.get(bth + 4..)?.first_chunk()?));
        let qp_at = |bth: usize| qp_at(bth).map(|q| q & 0xff_ffff);
        let none = Seen { kind: Kind::Arp, hosts: [None; 2], ports: [None; 2], qp: None };
        let (protocol, hosts, next) = match be16(12)? {
            0x0806 => return Some(none),
            0x8915 => return Some(Seen { kind: Kind::Roce, qp: qp_at(54), ..none }),
            0x0800 => {
                let header = usize::from(frame.get(14)? & 15) * 4;
                let v4 = |at: usize| Some(IpAddr::from(*frame.get(at..)?.first_chunk::<4>()?));
                (*frame.get(23)?, [v4(26), v4(30)], 14 + header)
            }
            0x86dd => {
                let v6 = |at: usize| Some(IpAddr::from(*frame.get(at..)?.first_chunk::<16>()?));
                (*frame.get(20)?, [v6(22), v6(38)], 54)
            }
            _ => return None,
        };
        let ports = [be16(next), be16(next + 2)];
        Some(match protocol {
            1 | 58 => Seen { kind: Kind::Icmp, hosts, ..none },
            6 => Seen { kind: Kind::Tcp, hosts, ports, qp: None },
            17 if ports[1] == Some(4791) => {
                Seen { kind: Kind::Roce, hosts, ports, qp: qp_at(next + 8) }
            }
            17 => Seen { kind: Kind::Udp, hosts, ports, qp: None },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    fn roce(qp: u32) -> Vec<u8> {
        let mut f = alloc::vec![0u8; 70];
        f[12..14].copy_from_slice(&[8, 0]);
        f[14] = 0x45;
        f[23] = 17;
        f[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        f[36..38].copy_from_slice(&4791u16.to_be_bytes());
        f[46..50].copy_from_slice(&qp.to_be_bytes());
        f
    }

    #[test]
    fn filter_keeps_a_frame_only_if_all_words_match() {
        let keeps = |text: &str| Filter::parse(text).unwrap().matches(1, &roce(17));
        assert!(keeps(""));
        assert!(keeps("payload") && keeps("roce net1 host 10.0.0.2 qp 17 payload"));
        assert!(!Filter::default().payload() && Filter::parse("payload").unwrap().payload());
        assert!(keeps("udp port 4791"));
        assert!(!keeps("net0"));
        assert!(!keeps("tcp"));
        assert!(!keeps("qp 18"));
        assert!(!keeps("host 10.0.0.3"));
        assert_eq!(Filter::parse("roce host").unwrap_err().word, "");
        assert_eq!(Filter::parse("rocky").unwrap_err().word, "rocky");
        assert_eq!(Filter::parse("port 70000").unwrap_err().word, "70000");
    }

    #[test]
    fn parse_accepts_every_keyword() {
        for word in Filter::WORDS {
            let argument = if Filter::takes_argument(word) { " 1" } else { "" };
            let argument = if *word == "host" { " ::1" } else { argument };
            Filter::parse(&format!("{word}{argument}")).unwrap();
        }
    }

    proptest! {
        #[test]
        fn no_frame_and_no_text_panics(
            frame in proptest::collection::vec(any::<u8>(), 0..100),
            text in ".{0,40}",
        ) {
            let _ = Filter::parse("roce qp 1").unwrap().matches(0, &frame);
            if let Ok(filter) = Filter::parse(&text) {
                let _ = filter.matches(0, &frame);
            }
        }
    }
}
