//! `[[remote]]`: devices of other servers, with the options of rnbd-client's `map_device`; and `[[mirror]]`: two
//! volumes with the same data.

use super::item::{Item, Range, integer, problem, section, text_items};
use super::origin::Problem;
use super::tree::{Node, Value};
use super::values::Name;
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use rtrs::client::Policy;
use storage::rnbd::wire::AccessMode;

section! {
    /// A device of another server, as a local volume. Remotes of one session share its paths and settings. Those of the
    /// first remote apply.
    Remote {
        /// Local name of the volume.
        name: Name;
        /// Name of the session.
        sessname: SessName;
        /// Paths of the session, from an address of the appliance to one of the server.
        path: Vec<PathPair>;
        /// The server's port.
        dest_port: u16 [1, 65535] = 1234;
        /// Name of the device on the server.
        device_path: DevicePath;
        /// Access mode.
        access_mode: Access = Access(AccessMode::ReadWrite);
        /// Additional connections of each path.
        nr_poll_queues: u16 [0, 64] = 0;
        /// Reconnect attempts before a path is given up; -1 for no limit.
        max_reconnect_attempts: Attempts = Attempts(None);
        /// Multipath policy.
        mp_policy: MpPolicy = MpPolicy(Policy::MinInflight);
        /// Seconds that requests wait while no path is up; 0 fails them immediately, as Linux does.
        wait_seconds: u16 = 60;
    }
}

section! {
    /// Two volumes with the same data, under one name. The members are not exported themselves.
    Mirror {
        /// Name of the mirror.
        name: Name;
        /// Names of the two members.
        members: Vec<Name>;
        /// Milliseconds that a write waits for a silent member before that member is dropped.
        timeout_ms: u32 [100, 3_600_000] = Mirror::TIMEOUT_MS;
    }
}

text_items! {
    SessName: "1 to 254 visible characters without '/' and '.'";
    DevicePath: "1 to 254 visible characters without '..'";
    PathPair: "SOURCE@DESTINATION, such as ip:10.0.0.1@ip:10.0.0.2 or fd00::1@fd00::2";
    Access: "ro, rw or migration";
    MpPolicy: "round-robin, min-inflight or min-latency";
}

/// Name of a session with a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessName(String);

/// Name of a device on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePath(String);

fn visible(text: &str) -> bool {
    (1..=254).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

impl SessName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl DevicePath {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SessName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let valid = visible(text) && !text.contains(['/', '.']);
        if valid { Ok(SessName(text.into())) } else { Err("not a session name".into()) }
    }
}

impl FromStr for DevicePath {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let valid = visible(text) && !text.contains("..");
        if valid { Ok(DevicePath(text.into())) } else { Err("not the name of a device".into()) }
    }
}

impl fmt::Display for SessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for DevicePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The two ends of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathPair {
    /// Address of the appliance.
    pub from: IpAddr,
    /// Address of the server.
    pub to: IpAddr,
}

impl FromStr for PathPair {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once('@').ok_or("no '@' between two addresses")?;
        let address = |text: &str| {
            let address = text.strip_prefix("ip:").unwrap_or(text).parse();
            address.map_err(|_| format!("{text:?} is not an address"))
        };
        let (from, to): (IpAddr, IpAddr) = (address(from)?, address(to)?);
        if from.is_ipv4() != to.is_ipv4() {
            return Err("one address is IPv4, the other IPv6".into());
        }
        Ok(PathPair { from, to })
    }
}

impl fmt::Display for PathPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ip:{}@ip:{}", self.from, self.to)
    }
}

/// Access mode of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access(pub AccessMode);

impl FromStr for Access {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Access(match text {
            "ro" => AccessMode::ReadOnly,
            "rw" => AccessMode::ReadWrite,
            "migration" => AccessMode::Migration,
            _ => return Err("not an access mode".into()),
        }))
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            AccessMode::ReadOnly => "ro",
            AccessMode::ReadWrite => "rw",
            AccessMode::Migration => "migration",
        })
    }
}

/// Multipath policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MpPolicy(pub Policy);

impl FromStr for MpPolicy {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Policy::parse(text).map(MpPolicy).ok_or_else(|| "not a policy".into())
    }
}

impl fmt::Display for MpPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str())
    }
}

/// Maximum reconnect attempts. None for no limit, written as -1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempts(pub Option<u16>);

impl Attempts {
    const ACCEPTED: &str = "-1 for no limit, or 0 to 9999";

    fn of(number: i64) -> Option<Self> {
        match number {
            -1 => Some(Attempts(None)),
            0..=9999 => Some(Attempts(u16::try_from(number).ok())),
            _ => None,
        }
    }
}

impl FromStr for Attempts {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse().ok().and_then(Attempts::of);
        number.ok_or_else(|| format!("accepted: {}", Self::ACCEPTED))
    }
}

impl fmt::Display for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.map_or(-1, i32::from))
    }
}

impl Item for Attempts {
    fn accepts(_: Option<Range>) -> String {
        Self::ACCEPTED.into()
    }
    fn decode(n: &Node, path: &str, _: Option<Range>, out: &mut Vec<Problem>) -> Option<Self> {
        let attempts = integer(n).and_then(Attempts::of);
        if attempts.is_none() {
            let reason = "not a number of attempts".into();
            out.push(problem(n, path, reason, Self::accepts(None)));
        }
        attempts
    }
    fn encode(&self) -> Option<Value> {
        Some(Value::Integer(self.0.map_or(-1, i64::from)))
    }
}

impl Mirror {
    /// Default time that a write waits for a member.
    pub const TIMEOUT_MS: u32 = 5000;
}

#[cfg(test)]
mod tests {
    use super::super::check;

    const GOOD: &str = "[[volume]]\nname = \"d\"\ndisk = 0\n[[remote]]\nname = \"r\"\n\
        sessname = \"s\"\npath = [\"ip:10.0.0.1@ip:10.0.0.2\", \"fd00::1@fd00::2\"]\n\
        device_path = \"/dev/ram0\"\naccess_mode = \"migration\"\nmax_reconnect_attempts = -1\n\
        mp_policy = \"rr\"\n[[mirror]]\nname = \"m\"\nmembers = [\"d\", \"r\"]\n";

    fn problems(text: &str) -> Vec<String> {
        check(text.as_bytes()).unwrap_err().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn remotes_and_mirrors_are_read() {
        let config = check(GOOD.as_bytes()).unwrap();
        let remote = &config.remote[0];
        assert_eq!(remote.path[0].to_string(), "ip:10.0.0.1@ip:10.0.0.2");
        assert_eq!(remote.mp_policy.to_string(), "round-robin");
        assert_eq!(remote.max_reconnect_attempts.0, None);
        assert_eq!(config.mirror_of("r").unwrap().name.as_str(), "m");
        let exports: Vec<String> = config.exports().iter().map(|e| e.name.to_string()).collect();
        assert_eq!(exports, ["m"], "members are not exported");
    }

    #[test]
    fn invalid_remote_or_mirror_is_reported() {
        let cases = [
            ("ip:10.0.0.1@ip:10.0.0.2", "10.0.0.1", "no '@' between two addresses"),
            ("ip:10.0.0.2", "fd00::2", "one address is IPv4, the other IPv6"),
            ("/dev/ram0", "../ram0", "not the name of a device"),
            ("= -1", "= 10000", "not a number of attempts"),
            ("\"rr\"", "\"best\"", "not a policy"),
            ("migration", "rwx", "not an access mode"),
            ("sessname = \"s\"", "sessname = \"a/b\"", "not a session name"),
            ("[\"d\", \"r\"]", "[\"d\", \"d\"]", "both members are the same volume"),
            ("[\"d\", \"r\"]", "[\"d\", \"x\"]", "there is no volume x"),
            ("[\"d\", \"r\"]", "[\"d\"]", "not two members"),
            ("name = \"m\"", "name = \"d\"", "another volume is called d"),
            ("name = \"r\"", "name = \"d\"", "another volume is called \"d\""),
        ];
        for (from, to, expected) in cases {
            assert!(GOOD.contains(from), "{from}");
            let reported = problems(&GOOD.replacen(from, to, 1)).join("\n");
            assert!(reported.contains(expected), "{to}: {reported}");
        }
        let without_path =
            GOOD.replacen("path = [\"ip:10.0.0.1@ip:10.0.0.2\", \"fd00::1@fd00::2\"]\n", "", 1);
        assert!(problems(&without_path)[0].contains("the session s has no path"));
        for core in ["1", "[0, 1]"] {
            let moved = format!("{GOOD}[[net]]\naddress = \"10.0.0.1/24\"\ncore = {core}\n");
            let reason = &problems(&moved)[0];
            assert!(
                reason.contains("10.0.0.1 belongs to net.0, which core 0 does not serve alone"),
                "{reason}"
            );
        }
        let exported = format!("{GOOD}[[export]]\nname = \"x\"\nvolume = \"d\"\n");
        assert!(problems(&exported)[0].contains("d is a member of mirror m"));
    }
}
