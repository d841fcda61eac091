//! `[[remote]]`: devices of other servers, over RNBD with the options of rnbd-client's `map_device`, over NBD, or over
//! NVMe/TCP; and `[[mirror]]`: two volumes with the same data.

use super::item::{Item, Range, Shape, integer, problem, section, text_items};
use super::nvme::Nqn;
use super::nvme_host::DhchapText;
use super::origin::Problem;
use super::remote_tcp::{Digests, RemoteAddress, RemoteExport};
use super::tree::{Node, Value};
use super::values::Name;
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use net::dns::Host;
use rtrs::client::Policy;
use storage::rnbd::wire::AccessMode;

section! {
    /// A device of another server, as a local volume. Remotes of one RNBD session share its paths and settings. Those of
    /// the first remote apply.
    Remote {
        /// Local name of the volume.
        name: Name;
        /// Protocol of the server.
        kind: RemoteKind = RemoteKind::Rnbd;
        /// Name of the session, of kind `rnbd`.
        sessname: Option<SessName>;
        /// Paths of the session, from an address of the appliance to one of the server, of kind `rnbd`.
        path: Vec<RemotePath>;
        /// The server's port.
        dest_port: u16 [1, 65535] = 1234;
        /// Name of the device on the server, of kind `rnbd`.
        device_path: Option<DevicePath>;
        /// Access mode. Kinds `nbd` and `nvme-tcp` know `ro` and `rw`.
        access_mode: Access = Access(AccessMode::ReadWrite);
        /// Additional connections of each path.
        nr_poll_queues: u16 [0, 64] = 0;
        /// Reconnect attempts before a path is given up; -1 for no limit.
        max_reconnect_attempts: Attempts = Attempts(None);
        /// Multipath policy.
        mp_policy: MpPolicy = MpPolicy(Policy::MinInflight);
        /// Seconds that requests wait while no path is up; 0 fails them immediately, as Linux does.
        wait_seconds: u16 = 60;
        /// Addresses of the server, of kinds `nbd`, which uses one at a time, and `nvme-tcp`, for which each is a path.
        address: Vec<RemoteAddress>;
        /// Name of the export on the server, of kind `nbd`; by default the server's default export.
        export: Option<RemoteExport>;
        /// Connections to the server, of kind `nbd`, if the server allows several; I/O queues of each path, of kind
        /// `nvme-tcp`.
        connections: u16 [1, 16] = 1;
        /// Every write is durable before it completes (FUA), of kinds `nbd` and `nvme-tcp`: a restart of the server loses
        /// none.
        write_through: bool = false;
        /// Milliseconds from a request to its complete reply after which the connection is closed, of kinds `nbd` and
        /// `nvme-tcp`, for which it is the keep alive timeout, too.
        keepalive_ms: u32 [100, 3_600_000] = 30_000;
        /// Milliseconds before a connection is opened again, of kinds `nbd` and `nvme-tcp`. They double up to eight times
        /// this.
        reconnect_ms: u32 [10, 3_600_000] = 1000;
        /// Milliseconds that requests wait without a connection before they fail, of kinds `nbd` and `nvme-tcp`; 0 fails
        /// them at once.
        give_up_ms: u32 [0, 86_400_000] = 60_000;
        /// NQN of the subsystem, of kind `nvme-tcp`.
        nqn: Option<Nqn>;
        /// Number of the namespace, of kind `nvme-tcp`; by default the only one that this host may use.
        nsid: Option<u32> [1, 4_294_967_294];
        /// NQN by which the appliance calls itself as a host, of kind `nvme-tcp`.
        host_nqn: Option<Nqn>;
        /// Secret of DH-HMAC-CHAP of this host, of kind `nvme-tcp`, for subsystems that ask for it.
        dhchap_secret: Option<DhchapText>;
        /// Secret of DH-HMAC-CHAP of the controller, of kind `nvme-tcp`: with it, a controller has to prove its name.
        dhchap_controller_secret: Option<DhchapText>;
        /// Digests that protect PDUs, of kind `nvme-tcp`.
        digests: Digests = Digests::None;
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
    RemoteKind: "rnbd, nbd or nvme-tcp";
    SessName: "1 to 254 visible characters without '/' and '.'";
    DevicePath: "1 to 254 visible characters without '..'";
    RemotePath: "SOURCE@DESTINATION, such as ip:10.0.0.1@ip:10.0.0.2 or fd00::1@far.example.net";
    Access: "ro, rw or migration";
    MpPolicy: "round-robin, min-inflight or min-latency";
}

/// Protocol of a remote's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteKind {
    /// RNBD over RTRS: Linux's rnbd-server, or another appliance.
    Rnbd,
    /// NBD over TCP: qemu-nbd, nbdkit, nbd-server.
    Nbd,
    /// NVMe/TCP: arrays, Linux's nvmet, SPDK, or another appliance.
    NvmeTcp,
}

impl RemoteKind {
    /// The kind as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            RemoteKind::Rnbd => "rnbd",
            RemoteKind::Nbd => "nbd",
            RemoteKind::NvmeTcp => "nvme-tcp",
        }
    }

    /// TCP port of servers that are given without one.
    pub fn port(self) -> u16 {
        match self {
            RemoteKind::Rnbd | RemoteKind::Nbd => nbd::PORT,
            RemoteKind::NvmeTcp => nvme_host::PORT,
        }
    }
}

impl FromStr for RemoteKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let kinds = [RemoteKind::Rnbd, RemoteKind::Nbd, RemoteKind::NvmeTcp];
        let kind = kinds.into_iter().find(|one| one.as_str() == text);
        kind.ok_or_else(|| "not a kind of remote".into())
    }
}

impl fmt::Display for RemoteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
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

impl PathPair {
    /// The path between two addresses of one family.
    pub fn of(from: IpAddr, to: IpAddr) -> Result<Self, String> {
        match from.is_ipv4() == to.is_ipv4() {
            true => Ok(PathPair { from, to }),
            false => Err("one address is IPv4, the other IPv6".into()),
        }
    }
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
        PathPair::of(from, to)
    }
}

impl fmt::Display for PathPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ip:{}@ip:{}", self.from, self.to)
    }
}

/// The two ends of a configured path, whose server may be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemotePath {
    /// Address of the appliance.
    pub from: IpAddr,
    /// The server.
    pub to: Host,
}

impl FromStr for RemotePath {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once('@').ok_or("no '@' between two addresses")?;
        let plain = |text| str::strip_prefix(text, "ip:").unwrap_or(text).to_string();
        let (from, to) = (plain(from), plain(to));
        let from: IpAddr = from.parse().map_err(|_| format!("{from:?} is not an address"))?;
        let to: Host = to.parse().map_err(|why| format!("{to:?}: {why}"))?;
        if matches!(to, Host::Address(to) if from.is_ipv4() != to.is_ipv4()) {
            return Err("one address is IPv4, the other IPv6".into());
        }
        Ok(RemotePath { from, to })
    }
}

impl fmt::Display for RemotePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.to {
            Host::Address(to) => PathPair { from: self.from, to: *to }.fmt(f),
            Host::Name(name) => write!(f, "ip:{}@{name}", self.from),
        }
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
    const SHAPE: Shape = Shape::TextOrInteger;
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

    /// Whether another one has its name and its members.
    pub fn is_same(&self, other: &Mirror) -> bool {
        self.name == other.name && self.members == other.members
    }
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

    const NBD: &str = "[[remote]]\nname = \"r\"\nkind = \"nbd\"\n\
        address = [\"10.0.0.2\", \"disks.example.net:10810\"]\nexport = \"a b\"\nconnections = 4\n";

    #[test]
    fn nbd_remote_needs_an_address_and_no_session() {
        let config = check(NBD.as_bytes()).unwrap();
        let remote = &config.remote[0];
        assert_eq!(remote.address[0].to_string(), "10.0.0.2");
        let endpoint = |address: &crate::config::RemoteAddress| {
            address.endpoint(remote.kind.port()).to_string()
        };
        assert_eq!(endpoint(&remote.address[0]), "10.0.0.2:10809");
        assert_eq!(endpoint(&remote.address[1]), "disks.example.net:10810");
        assert_eq!(remote.export.as_ref().unwrap().as_str(), "a b");
        let names: Vec<&str> = config.names().map(net::dns::Name::as_str).collect();
        assert_eq!(names, ["disks.example.net"]);
        let cases = [
            ("kind = \"nbd\"", "kind = \"iscsi\"", "not a kind of remote"),
            ("kind = \"nbd\"\n", "", "address is a key of kinds nbd and nvme-tcp"),
            ("10.0.0.2", "127.0.0.1", "no host can have this address"),
            ("10.0.0.2", "10.0.0.2:0", "0"),
            ("export = \"a b\"", "sessname = \"s\"", "sessname is a key of kind rnbd"),
            ("export = \"a b\"", "access_mode = \"migration\"", "migration is a mode of kind rnbd"),
            ("connections = 4", "connections = 17", "out of range"),
            (
                "address = [\"10.0.0.2\", \"disks.example.net:10810\"]",
                "",
                "no address of the server",
            ),
        ];
        for (from, to, expected) in cases {
            assert!(NBD.contains(from), "{from}");
            let reported = problems(&NBD.replacen(from, to, 1)).join("\n");
            assert!(reported.contains(expected), "{to}: {reported}");
        }
        let many: Vec<String> = (1..=17).map(|n| format!("\"10.0.0.{n}\"")).collect();
        let many = NBD.replacen("\"10.0.0.2\"", &many.join(", "), 1);
        assert!(problems(&many).join("\n").contains("more than 16 addresses"));
    }

    const NVME: &str = "[[remote]]\nname = \"r\"\nkind = \"nvme-tcp\"\naddress = [\"10.0.0.2\", \"10.0.0.3:4421\"]\n\
        nqn = \"nqn.2026-01.x:a\"\nhost_nqn = \"nqn.2026-01.x:h\"\nnsid = 7\ndigests = \"both\"\n\
        dhchap_secret = \"DHHC-1:00:YfEJbVxTwBJm0HgvAvpxdtBua+7LJGXnu8AvjEi9WPWDgsdm:\"\n";

    #[test]
    fn nvme_remote_needs_both_names() {
        let config = check(NVME.as_bytes()).unwrap();
        let remote = &config.remote[0];
        assert_eq!(remote.address[0].endpoint(remote.kind.port()).to_string(), "10.0.0.2:4420");
        assert_eq!((remote.nsid, remote.digests.bits()), (Some(7), 3));
        let identity = remote.nvme_identity().unwrap();
        assert_eq!((identity.host.as_str(), identity.secret.is_some()), ("nqn.2026-01.x:h", true));
        assert!(crate::config::is_secret("remote.0.dhchap_secret"));
        let cases = [
            ("nqn = \"nqn.2026-01.x:a\"\n", "", "the name of the subsystem is missing"),
            ("host_nqn = \"nqn.2026-01.x:h\"\n", "", "the name of this host is missing"),
            ("nqn.2026-01.x:a", "iqn.2026", "not an NQN"),
            ("nsid = 7", "nsid = 0", "out of range"),
            ("nsid = 7", "export = \"x\"", "export is a key of kind nbd"),
            ("\"both\"", "\"md5\"", "not digests"),
            ("kind = \"nvme-tcp\"", "kind = \"nbd\"", "nqn is a key of kind nvme-tcp"),
            (
                "dhchap_secret",
                "dhchap_controller_secret",
                "the controller's secret without that of the host",
            ),
        ];
        for (from, to, expected) in cases {
            assert!(NVME.contains(from), "{from}");
            let reported = problems(&NVME.replacen(from, to, 1)).join("\n");
            assert!(reported.contains(expected), "{to}: {reported}");
        }
    }

    #[test]
    fn invalid_remote_or_mirror_is_reported() {
        let cases = [
            ("ip:10.0.0.1@ip:10.0.0.2", "10.0.0.1", "no '@' between two addresses"),
            ("ip:10.0.0.2", "fd00::2", "one address is IPv4, the other IPv6"),
            ("ip:10.0.0.2", "10.0.0", "neither an address, which has four numbers"),
            ("ip:10.0.0.1@", "far.example.net@", "is not an address"),
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
