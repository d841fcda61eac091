//! A subsystem: its namespaces, and the hosts that may use it.

use crate::keys::Demand;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::{Features, Geometry};
use net::hosts::Hosts;
use sha2::{Digest, Sha256};
use storage::limits::{Limiter, Limits};
use storage::volume::{Hold, VolumeId};

/// Longest NQN in bytes.
pub const LONGEST_NQN: usize = 223;
/// Largest namespace identifier, which is the number of namespaces that a subsystem can have.
pub const MAX_NSID: u32 = 1024;
/// Largest identifier of an ANA group.
pub const MAX_GROUP: u32 = 32;
/// Largest identifier of a controller.
pub const MAX_CNTLID: u16 = 0xffef;

/// Whether a text is an NVMe Qualified Name: `nqn.`, at most 223 bytes, printable and without spaces.
pub fn is_nqn(text: &str) -> bool {
    text.starts_with("nqn.")
        && text.len() > 4
        && text.len() <= LONGEST_NQN
        && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Hosts that may use a subsystem, by the name that they give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostList {
    /// None.
    #[default]
    Closed,
    /// Those with these NQNs.
    Listed(Vec<String>),
    /// All.
    All,
}

impl HostList {
    /// Whether a host of that NQN is in the list.
    pub fn admits(&self, nqn: &str) -> bool {
        match self {
            HostList::Closed => false,
            HostList::Listed(nqns) => nqns.iter().any(|one| one == nqn),
            HostList::All => true,
        }
    }
}

/// Configuration of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// Its identifier, 1 to 1024.
    pub nsid: u32,
    /// Name of its volume.
    pub volume: String,
    /// Its UUID. By default one that is derived from subsystem, identifier and volume.
    pub uuid: Option<[u8; 16]>,
    /// Its ANA group, 1 to 32.
    pub ana_group: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Bytes of a block, by default that of the volume.
    pub block_size: Option<u32>,
    /// Its limits.
    pub limits: Limits,
}

impl NamespaceConfig {
    /// Whether hosts see the same: all but the limits.
    pub(crate) fn is_same(&self, other: &NamespaceConfig) -> bool {
        let limits = other.limits;
        NamespaceConfig { limits, ..self.clone() } == *other
    }
}

/// Configuration of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemConfig {
    /// Its NQN.
    pub nqn: String,
    /// Serial number of at most 20 characters, by default derived from the NQN.
    pub serial: Option<String>,
    /// Model of at most 40 characters.
    pub model: String,
    /// Hosts that may use it.
    pub hosts: HostList,
    /// Networks whose hosts may use it; empty admits all.
    pub networks: Hosts,
    /// Smallest and largest identifier of its controllers.
    pub cntlids: (u16, u16),
    /// Whether each host has to authenticate by DH-HMAC-CHAP.
    pub dhchap: Demand,
    /// Whether each host has to use TLS.
    pub tls: Demand,
    /// Its namespaces.
    pub namespaces: Vec<NamespaceConfig>,
}

impl SubsystemConfig {
    /// Whether hosts see the same: all but limits.
    pub(crate) fn is_same(&self, other: &SubsystemConfig) -> bool {
        let plain = |config: &SubsystemConfig| {
            let mut plain = config.clone();
            plain.namespaces.iter_mut().for_each(|one| one.limits = Limits::default());
            plain
        };
        plain(self) == plain(other)
    }

    /// The serial number.
    pub fn serial(&self) -> String {
        self.serial.clone().unwrap_or_else(|| {
            let digest = Sha256::digest(self.nqn.as_bytes());
            digest.iter().take(8).map(|byte| alloc::format!("{byte:02X}")).collect()
        })
    }
}

/// State of an ANA group (Base Specification, section 8.1). The numbers are those of the log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AnaState {
    /// The best way to the namespaces.
    Optimized = 1,
    /// A way to the namespaces.
    NonOptimized = 2,
    /// No way at present.
    Inaccessible = 3,
    /// No way for ever.
    PersistentLoss = 4,
    /// The state is changing.
    Change = 15,
}

/// Why a namespace is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// There is no volume of that name.
    NoVolume,
    /// The volume is about to be removed.
    Retired,
    /// The volume cannot be addressed in blocks of that size.
    BlockSize,
}

impl Absent {
    /// The reason, for the operator.
    pub fn reason(self) -> &'static str {
        match self {
            Absent::NoVolume => "there is no volume of that name (yet)",
            Absent::Retired => "the volume is being removed",
            Absent::BlockSize => {
                "`block_size` must be 512 or 4096, and not smaller than the volume's blocks"
            }
        }
    }
}

/// The volume behind a namespace.
#[derive(Debug)]
pub struct Backing {
    pub volume: VolumeId,
    pub geometry: Geometry,
    /// Bytes of a block.
    pub block: u32,
    /// Keeps the volume from being removed.
    pub hold: Arc<Hold>,
    /// The volume keeps reservations through a power loss.
    pub persists: bool,
}

impl Backing {
    /// Number of whole blocks.
    pub fn blocks(&self) -> u64 {
        self.geometry.sectors / u64::from(self.block / 512)
    }

    /// Whether the volume supports an operation.
    pub fn has(&self, feature: Features) -> bool {
        self.geometry.features.contains(feature)
    }
}

/// Counters of a namespace.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    pub reads: u64,
    pub read_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub others: u64,
    pub errors: u64,
    pub conflicts: u64,
}

/// A namespace.
#[derive(Debug)]
pub struct Namespace {
    pub config: NamespaceConfig,
    pub uuid: [u8; 16],
    pub backing: Result<Backing, Absent>,
    pub counters: Counters,
    /// Its limits in force, and the place of the commands that wait for them.
    pub limiter: Arc<Limiter>,
    pub throttle: Option<usize>,
}

impl Namespace {
    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        let fixed = self.backing.as_ref().is_ok_and(|it| it.has(Features::READ_ONLY));
        self.config.read_only || fixed
    }

    /// The UUID of a namespace without a configured one (RFC 9562, version 8): the same after each boot, and another
    /// for another subsystem, identifier or volume.
    pub fn derived_uuid(nqn: &str, config: &NamespaceConfig) -> [u8; 16] {
        let mut hash = Sha256::new();
        hash.update(b"isthmus namespace\0");
        hash.update(nqn.as_bytes());
        hash.update([0]);
        hash.update(config.nsid.to_le_bytes());
        hash.update(config.volume.as_bytes());
        let digest = hash.finalize();
        let mut uuid: [u8; 16] = core::array::from_fn(|i| digest[i]);
        uuid[6] = uuid[6] & 0x0f | 0x80;
        uuid[8] = uuid[8] & 0x3f | 0x80;
        uuid
    }
}

/// A namespace as reports show it.
#[derive(Clone, Debug)]
pub struct NamespaceView {
    /// Its configuration.
    pub config: NamespaceConfig,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Bytes, and bytes of a block; or why it is not served.
    pub size: Result<(u64, u32), &'static str>,
    /// Requests and bytes: reads, writes.
    pub reads: (u64, u64),
    /// See `reads`.
    pub writes: (u64, u64),
    /// Requests that ended in an error.
    pub errors: u64,
    /// Those of them that a reservation excluded.
    pub conflicts: u64,
    /// Commands that had to wait for limits, and the time in which any did.
    pub delays: (u64, Duration),
    /// Type of the reservation, if there is one, and number of registered hosts.
    pub reservation: (Option<&'static str>, usize),
}

/// A subsystem.
#[derive(Debug)]
pub struct Subsystem {
    pub config: SubsystemConfig,
    pub serial: String,
    /// By ascending identifier.
    pub namespaces: Vec<Namespace>,
    /// By group, from 1: its state, and how often it changed.
    pub groups: Vec<(AnaState, u64)>,
    /// How often any group changed.
    pub ana_changes: u64,
    /// Identifier of the next controller.
    pub next_cntlid: u16,
}

impl Subsystem {
    pub fn new(config: SubsystemConfig) -> Subsystem {
        Subsystem {
            serial: config.serial(),
            next_cntlid: config.cntlids.0,
            namespaces: Vec::new(),
            groups: alloc::vec![(AnaState::Optimized, 0); MAX_GROUP as usize],
            ana_changes: 0,
            config,
        }
    }

    /// Whether a host may use it; otherwise a label of the reason.
    pub fn admits(&self, nqn: &str, address: IpAddr) -> Result<(), &'static str> {
        if self.config.hosts == HostList::Closed {
            return Err("no_hosts");
        }
        if !self.config.hosts.admits(nqn) {
            return Err("host_not_admitted");
        }
        match self.config.networks.admits(address) {
            true => Ok(()),
            false => Err("network_not_admitted"),
        }
    }

    fn position(&self, nsid: u32) -> Option<usize> {
        self.namespaces.binary_search_by_key(&nsid, |one| one.config.nsid).ok()
    }

    /// The namespace with an identifier.
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        self.namespaces.get(self.position(nsid)?)
    }

    /// See [`Subsystem::namespace`].
    pub fn namespace_mut(&mut self, nsid: u32) -> Option<&mut Namespace> {
        let position = self.position(nsid)?;
        self.namespaces.get_mut(position)
    }

    /// The namespaces that are served, by ascending identifier.
    pub fn active(&self) -> impl Iterator<Item = (&Namespace, &Backing)> {
        self.namespaces.iter().filter_map(|one| Some((one, one.backing.as_ref().ok()?)))
    }

    /// The state of a group.
    pub fn group(&self, group: u32) -> AnaState {
        let place = (group as usize).checked_sub(1).and_then(|at| self.groups.get(at));
        place.map_or(AnaState::Inaccessible, |(state, _)| *state)
    }
}
