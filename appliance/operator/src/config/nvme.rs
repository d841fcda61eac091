//! `[nvme]` and `[[subsystem]]`: volumes as NVMe namespaces.

use super::dhchap::{Demanded, DhchapGroup, DhchapHash};
use super::item::{section, text_items};
use super::schema::Config;
use super::values::{Name, Size};
use core::fmt;
use core::str::FromStr;
use net::hosts::{Hosts, Network};
use nvme::{Demand, HostList, NamespaceConfig, SubsystemConfig, is_nqn};
use nvme_auth::{DhGroup, Hash};

section! {
    /// The NVMe-oF target. It listens if there is a `[[subsystem]]`.
    Nvme {
        /// TCP port of the I/O controllers; 0 for none.
        tcp: u16 = 4420;
        /// TCP port of discovery, which the port of the I/O controllers serves as well; 0 for none.
        discovery: u16 = 8009;
        /// Hashes of DH-HMAC-CHAP, the best first.
        dhchap_hashes: Vec<DhchapHash> =
            [Hash::Sha256, Hash::Sha384, Hash::Sha512].map(DhchapHash).into() => AtOnce;
        /// Diffie-Hellman groups of DH-HMAC-CHAP, the best first. Each authentication takes two exponentiations; those
        /// of groups above ffdhe3072 are long.
        dhchap_groups: Vec<DhchapGroup> =
            DhGroup::USUAL.iter().copied().map(DhchapGroup).collect() => AtOnce;
    }
}

section! {
    /// A subsystem: namespaces for the hosts that may use them.
    Subsystem {
        /// NVMe Qualified Name of the subsystem. It must be unique among all storage of its hosts.
        nqn: Nqn => AtOnce;
        /// Serial number, by default derived from the NQN.
        serial: Option<Serial> => AtOnce;
        /// Model number.
        model: Model = Model("Isthmus".into()) => AtOnce;
        /// NQNs of hosts that may use the subsystem; "*" admits all. Without it, none may.
        hosts: Vec<HostNqn> => AtOnce;
        /// Networks whose hosts may use the subsystem; empty admits all.
        networks: Vec<Network> => AtOnce;
        /// Smallest identifier of a controller. Appliances that serve the same subsystem need disjoint ranges.
        cntlid_min: u16 [1, 65519] = 1 => AtOnce;
        /// Largest identifier of a controller.
        cntlid_max: u16 [1, 65519] = 65519 => AtOnce;
        /// Whether each host has to authenticate by DH-HMAC-CHAP, or only those with a `dhchap_secret`.
        dhchap: Demanded = Demanded(Demand::Optional) => AtOnce;
        /// Whether each host has to use TLS, or only those with a `tls_psk` alone.
        tls: Demanded = Demanded(Demand::Optional) => AtOnce;
        /// `[[subsystem.namespace]]`.
        namespace: Vec<Namespace> => AtOnce;
    }
}

section! {
    /// A namespace of a `[[subsystem]]`.
    Namespace {
        /// Its identifier.
        nsid: u32 [1, 1024] => AtOnce;
        /// Name of its volume.
        volume: Name => AtOnce;
        /// Its UUID, by default derived from the NQN, the identifier and the volume's name.
        uuid: Option<Uuid> => AtOnce;
        /// Its ANA group.
        ana_group: u32 [1, 32] = 1 => AtOnce;
        /// Whether writes are refused.
        read_only: bool = false => AtOnce;
        /// Bytes of a block, 512 or 4096, by default that of the volume.
        block_size: Option<u32> [512, 4096] => AtOnce;
        /// Most requests in a second. Each request counts, except flushes.
        iops: Option<u32> [100, 100_000_000] => AtOnce;
        /// Most reads in a second.
        read_iops: Option<u32> [100, 100_000_000] => AtOnce;
        /// Most writes in a second, with zeroing and deallocation.
        write_iops: Option<u32> [100, 100_000_000] => AtOnce;
        /// Most bytes in a second.
        bandwidth: Option<Size> [1 << 20, 1 << 44] => AtOnce;
        /// Most bytes in a second that are read.
        read_bandwidth: Option<Size> [1 << 20, 1 << 44] => AtOnce;
        /// Most bytes in a second that are written.
        write_bandwidth: Option<Size> [1 << 20, 1 << 44] => AtOnce;
    }
}

/// NQN of a host, or `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostNqn(String);

/// NQN of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nqn(String);

/// Serial number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serial(String);

/// Model number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model(String);

/// UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uuid(pub [u8; 16]);

text_items! {
    HostNqn: "the NQN of a host, as in its /etc/nvme/hostnqn, or \"*\" for all hosts";
    Nqn: "an NQN such as nqn.2026-01.com.example:storage, at most 223 visible characters";
    Serial: "1 to 20 visible characters";
    Model: "1 to 40 characters of ASCII";
    Uuid: "a UUID such as 0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f0, not zero";
}

impl Nqn {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl HostNqn {
    /// Whether it stands for all hosts.
    pub fn is_all(&self) -> bool {
        self.0 == "*"
    }
}

macro_rules! texts {
    ($($name:ident: $valid:expr, $why:expr;)*) => {$(
        impl FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<$name, String> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) { Ok($name(text.into())) } else { Err($why.into()) }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

texts! {
    HostNqn: |t| t == "*" || is_nqn(t), "not an NQN";
    Nqn: |t| is_nqn(t) && t != nvme::DISCOVERY_NQN, "not an NQN of a subsystem";
    Serial: |t| (1..=20).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_graphic()),
        "not a serial number";
    Model: |t| (1..=40).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_graphic() || b == b' '),
        "not a model number";
}

impl FromStr for Uuid {
    type Err = String;
    fn from_str(text: &str) -> Result<Uuid, String> {
        let wrong = || "not a UUID".to_string();
        let dashes = text.len() == 36
            && text.bytes().enumerate().all(|(i, b)| (b == b'-') == matches!(i, 8 | 13 | 18 | 23));
        if !dashes {
            return Err(wrong());
        }
        let digits: Vec<u8> = text.bytes().filter(|b| *b != b'-').collect();
        let mut uuid = [0; 16];
        for (byte, pair) in uuid.iter_mut().zip(digits.chunks(2)) {
            let digit = |b: u8| char::from(b).to_digit(16).ok_or_else(wrong);
            let [high, low] = pair else { return Err(wrong()) };
            *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
        }
        if uuid == [0; 16] { Err(wrong()) } else { Ok(Uuid(uuid)) }
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            let dash = if matches!(i, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl Config {
    /// The subsystems, for the target.
    pub fn subsystems(&self) -> Vec<SubsystemConfig> {
        self.subsystem.iter().map(Subsystem::target_config).collect()
    }

    /// Whether the NVMe-oF target listens on a TCP port.
    pub fn nvme_listens(&self, port: u16) -> bool {
        let ports = [self.nvme.tcp, self.nvme.discovery];
        !self.subsystem.is_empty() && port != 0 && ports.contains(&port)
    }
}

impl Subsystem {
    fn target_config(&self) -> SubsystemConfig {
        let hosts = match self.hosts.as_slice() {
            [] => HostList::Closed,
            hosts if hosts.iter().any(HostNqn::is_all) => HostList::All,
            hosts => HostList::Listed(hosts.iter().map(ToString::to_string).collect()),
        };
        let namespace = |one: &Namespace| NamespaceConfig {
            nsid: one.nsid,
            volume: one.volume.to_string(),
            uuid: one.uuid.map(|uuid| uuid.0),
            ana_group: one.ana_group,
            read_only: one.read_only,
            block_size: one.block_size,
            limits: one.limits(),
        };
        SubsystemConfig {
            nqn: self.nqn.to_string(),
            serial: self.serial.as_ref().map(ToString::to_string),
            model: self.model.to_string(),
            hosts,
            networks: Hosts::new(self.networks.clone()),
            cntlids: (self.cntlid_min, self.cntlid_max),
            dhchap: self.dhchap.0,
            tls: self.tls.0,
            namespaces: self.namespace.iter().map(namespace).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Document, Sources, check};

    const GOOD: &str = "[[subsystem]]\nnqn = \"nqn.2026-01.x:a\"\nhosts = [\"nqn.2026-01.h:1\"]\n\
        [[subsystem.namespace]]\nnsid = 1\nvolume = \"ram0\"\n\
        [[subsystem.namespace]]\nnsid = 3\nvolume = \"ram0\"\nread_only = true\n\
        uuid = \"0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f0\"\nblock_size = 4096\nana_group = 2\n";

    #[test]
    fn subsystem_without_hosts_is_closed() {
        let load = |text: &str| {
            let sources = Sources { disk: Some(text.as_bytes()), ..Sources::default() };
            let (document, problems) = Document::load(&sources);
            assert_eq!(problems, []);
            document.config().subsystems().remove(0)
        };
        let listed = load(GOOD);
        assert_eq!(listed.hosts, HostList::Listed(vec!["nqn.2026-01.h:1".into()]));
        assert_eq!((listed.namespaces.len(), listed.namespaces[1].uuid.unwrap()[0]), (2, 0x0f));
        let hosts = "hosts = [\"nqn.2026-01.h:1\"]\n";
        assert_eq!(load(&GOOD.replace(hosts, "")).hosts, HostList::Closed);
        let all = load(&GOOD.replace(hosts, "hosts = [\"nqn.2026-01.h:1\", \"*\"]\n"));
        assert_eq!(all.hosts, HostList::All);
    }

    #[test]
    fn mistakes_are_reported_at_their_key() {
        assert!(check(GOOD.as_bytes()).is_ok());
        let more = |text: &str| format!("{GOOD}{text}");
        let second = "[[subsystem]]\nnqn = \"nqn.2026-01.x:a\"\n";
        let conflict = "[[rule]]\nname = \"r\"\nlisten = 4420\nbackend = [\"10.0.0.9:1\"]\n";
        for (text, wanted) in [
            (GOOD.replace("nqn.2026-01.x:a", "iqn.2026"), "subsystem.0.nqn"),
            (GOOD.replace("nqn.2026-01.x:a", nvme::DISCOVERY_NQN), "subsystem.0.nqn"),
            (GOOD.replace("nqn.2026-01.h:1", "host"), "subsystem.0.hosts"),
            (GOOD.replace("nsid = 3", "nsid = 1"), "subsystem.0.namespace.1.nsid"),
            (GOOD.replace("nsid = 3", "nsid = 0"), "subsystem.0.namespace.1.nsid"),
            (GOOD.replace("4096", "1024"), "subsystem.0.namespace.1.block_size"),
            (GOOD.replace("\"ram0\"\nread", "\"none\"\nread"), "subsystem.0.namespace.1.volume"),
            (GOOD.replace("0f1e", "0f1g"), "subsystem.0.namespace.1.uuid"),
            (more(second), "subsystem.1.nqn"),
            (more(conflict), "rule.0.listen"),
            (more("[nvme]\ntcp = 8009\n"), "nvme.tcp"),
            (more("[nvme]\ntcp = 80\n"), "nvme.tcp"),
        ] {
            let problems = check(text.as_bytes()).unwrap_err();
            assert!(
                problems.iter().any(|one| one.path.starts_with(wanted)),
                "{wanted}: {problems:?}"
            );
        }
    }

    #[test]
    fn uuids_are_parsed_and_displayed() {
        let text = "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f0";
        assert_eq!(text.parse::<Uuid>().unwrap().to_string(), text);
        for wrong in
            ["", "0f1e2d3c4b5a49788695a4b3c2d1e0f0", "00000000-0000-0000-0000-000000000000"]
        {
            assert!(wrong.parse::<Uuid>().is_err(), "{wrong}");
        }
    }
}
