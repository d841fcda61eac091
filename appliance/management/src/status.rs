//! Statuses: plain structures of numbers, names and engine states that management reads for its reports.

use crate::config;
use crate::crash::History;
use crate::loops::LoopCounters;
pub use crate::nbd_client::NbdStatus;
pub use crate::nvme_host::NvmeHostStatus;
use crate::refused::Refused;
use crate::storage_rows::StorageRows;
use crate::unclaimed_devices::UnclaimedDevice;
pub use crate::upgrade_status::{SlotStatus, SlotsStatus, UpgradeStatus};
pub use crate::wall_clock::WallClock;
use core::net::IpAddr;
use drivers::dma;
use drivers::hal::{DeviceLife, Geometry, Health, Instant, PortCounters, QueueCount};
use messaging::Users;
use net::tls::Tls;
use perf_responders::ntb_perf::Measured;
use rapidio::end_point::EndPoint;
use smcr::engine::Engine;
use std::sync::Arc;
use storage::rnbd::client::{Client, DeviceId, DeviceStatus};
use storage::rnbd::server::Server;
use storage::volume::Volumes;
use storage::volume::extents::{StoreState, Table};
use storage::volume::mirror::Status;
use usnic::wire::modex::Modex;
use usnic::{EndpointId, InterfaceConfig};
use verbs::OnDemandStatus;

/// Constant facts of the build and the machine.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// Commit of the build, with a `+` if the tree had uncommitted changes.
    pub commit: &'static str,
    /// Time of the commit in seconds since 1970; 0 if unknown.
    pub committed: u64,
    /// Identifies this build and its `isthmus.symbols`.
    pub build_id: &'static str,
    /// Boot protocol (`pvh`, `multiboot2`, …).
    pub boot: &'static str,
    /// Online processors.
    pub cpus: usize,
    /// Total RAM in bytes.
    pub memory: u64,
    /// Source of entropy.
    pub entropy: &'static str,
    /// Returns the heap bytes in use.
    pub heap_used: fn() -> usize,
}

/// The machine, and the problems found on it.
pub struct MachineStatus<'a> {
    /// Constant facts.
    pub facts: Facts,
    /// The current time.
    pub now: Instant,
    /// The wall clock.
    pub clock: WallClock,
    /// Seconds since the appliance started.
    pub uptime: f64,
    /// Errors of the configuration at boot.
    pub problems: &'a [String],
    /// Ignored parts of the configuration, such as unknown keys. The rest is in force.
    pub warnings: &'a [String],
    /// Records of earlier crashes.
    pub crashes: &'a History,
    /// Refused requests.
    pub refused: &'a Refused,
    /// Devices that the appliance does not use.
    pub unclaimed: &'a [UnclaimedDevice],
}

/// State of a port's IP interface.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// Addresses with their prefix lengths.
    pub list: Vec<String>,
    /// Default gateways.
    pub gateways: Vec<String>,
    /// An address is leased by DHCP.
    pub lease: bool,
    /// MTU of IPv4 and of IPv6 with its origin. None before the interface reports them.
    pub mtus: Option<[(usize, net::MtuOrigin); 2]>,
    /// Counters of the interface.
    pub counters: net::Counters,
}

/// A loop's report on a port.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortReport {
    /// Counters of the device.
    pub counters: PortCounters,
    /// State of the device.
    pub life: DeviceLife,
    /// Datagrams echoed.
    pub echoes: u64,
    /// Report on the port's card, if it does RoCE in hardware.
    pub card: Option<CardReport>,
}

impl core::ops::AddAssign for PortReport {
    /// Adds the counters of further queues of the same device.
    fn add_assign(&mut self, more: PortReport) {
        self.counters += more.counters;
        self.echoes += more.echoes;
    }
}

/// A loop's report on itself and its ports.
#[derive(Clone, Debug, Default)]
pub struct PlaneReport {
    /// Time and stage counters.
    pub counters: LoopCounters,
    /// Ports, indexed by place in the loop.
    pub ports: Vec<PortReport>,
}

/// A network interface.
pub struct PortStatus<'a> {
    /// `net0` and so on.
    pub name: &'a str,
    /// Location of the device.
    pub location: &'a str,
    /// Name of the driver; empty without one.
    pub driver: &'static str,
    /// MAC address.
    pub mac: [u8; 6],
    /// Largest layer 3 packet.
    pub mtu: usize,
    /// The link is up.
    pub link: bool,
    /// State of the IP interface.
    pub addresses: &'a Addresses,
    /// The core that polls the port.
    pub core: usize,
    /// Other cores that poll queues of the port.
    pub others: &'a [usize],
    /// The first loop polls the port.
    pub is_own: bool,
    /// Counters of all queues.
    pub report: PortReport,
    /// Frames for the control plane that were dropped between loops.
    pub control_dropped: u64,
    /// Datagrams for engines over UDP that were dropped between loops. None if none are forwarded.
    pub forwarding_dropped: Option<u64>,
}

/// One core's queues of a port that several cores share.
pub struct QueueStatus<'a> {
    /// Name of the port.
    pub port: &'a str,
    /// Number of the core.
    pub core: usize,
    /// Counters of this core's queues. None if the core does not report.
    pub counters: Option<PortCounters>,
    /// Frames passed to the control plane.
    pub punted: u64,
    /// This core is not the port's main core.
    pub is_further: bool,
}

/// A disk.
pub struct DiskStatus<'a> {
    /// `disk0` and so on.
    pub name: &'a str,
    /// Persistent name of the disk.
    pub device: &'a str,
    /// Serial number; empty without one.
    pub serial: &'a str,
    /// Model; empty if not reported.
    pub model: &'a str,
    /// Firmware version; empty if not reported.
    pub firmware: &'a str,
    /// Location of the device.
    pub location: &'a str,
    /// Size, block sizes and features.
    pub geometry: Geometry,
    /// Use of the disk.
    pub role: &'static str,
    /// Queue depth.
    pub depth: usize,
    /// Interrupts that the disk raised.
    pub interrupts: u64,
    /// Counters per queue, if kept.
    pub queues: Vec<QueueCount>,
    /// Health, if reported.
    pub health: Option<Health>,
    /// State of the device.
    pub life: DeviceLife,
}

/// The software RoCE provider.
pub struct RoceStatus<'a> {
    /// Counters of the provider.
    pub counters: &'a roce::Counters,
    /// Existing queue pairs.
    pub queue_pairs: usize,
    /// Connections that are open, opening or closing.
    pub connections: usize,
    /// Pool of memory that sessions share, if configured.
    pub on_demand: Option<OnDemandStatus>,
}

/// Report on a card with RoCE in hardware.
#[cfg(feature = "mlx5")]
#[derive(Clone, Copy, Debug)]
pub struct CardReport {
    /// RoCE is active on the card.
    pub is_active: bool,
    /// Existing queue pairs.
    pub queue_pairs: usize,
    /// Connections that are open, opening or closing.
    pub connections: usize,
    /// Counters of the driver.
    pub counters: connectx::Counters,
    /// Counters of the card.
    pub card_counters: connectx::CardCounters,
    /// Flow control settings of the port.
    pub flow_control: connectx::FlowControl,
}

/// No such card exists in a build without `mlx5`.
#[cfg(not(feature = "mlx5"))]
#[derive(Clone, Copy, Debug)]
pub enum CardReport {}

impl CardReport {
    /// Flow control of the port in words, if the card reports it.
    pub fn flow_control(&self) -> Option<String> {
        #[cfg(feature = "mlx5")]
        return self.flow_control.in_words();
        #[cfg(not(feature = "mlx5"))]
        match *self {}
    }
}

/// Metrics of a hardware bridge.
#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    /// PCI Express generation and lanes of the link; 0 while it is down.
    pub link: (u8, u8),
    /// Bytes of the peer's memory that the appliance can write.
    pub window: u64,
    /// Bytes of the appliance's memory that the peer can write.
    pub exposed: u64,
    /// Bytes written through the bridge by the CPU.
    pub by_cpu: u64,
    /// Bytes written through the bridge by the DMA engine.
    pub by_engine: u64,
    /// Resets of the engine's channel.
    pub resets: u64,
    /// Completions that the engine failed to signal.
    pub missed: u64,
}

/// The path of bytes through a bridge: window, CPU or DMA engine.
#[derive(Clone, Debug)]
pub struct CarrierStatus {
    /// How the device signals doorbells.
    pub doorbell: &'static str,
    /// Link speed, in words.
    pub link_speed: Option<String>,
    /// Whether the CPU or a DMA engine writes.
    pub carried_by: String,
    /// Bytes written by the CPU.
    pub by_cpu: Option<u64>,
    /// Counters of the DMA engine's channel.
    pub engine: Option<dma::ChannelCounters>,
    /// Bytes of the peer's memory that the appliance can write.
    pub window: usize,
    /// Bytes of the appliance's memory that the peer can write.
    pub exposed: usize,
    /// Interrupts that the device raised.
    pub interrupts: u64,
    /// Metrics, for a hardware bridge.
    pub hardware: Option<Hardware>,
}

/// A bridge to another appliance.
#[derive(Clone, Debug)]
pub struct BridgeStatus {
    /// `ntb` and its number.
    pub name: String,
    /// The core that polls the bridge.
    pub core: usize,
    /// State of the link.
    pub link: ntrdma::State,
    /// Address of the appliance, and of the peer.
    pub addresses: (IpAddr, IpAddr),
    /// Kind and location of the device.
    pub device: String,
    /// Kind of the device below the bridge, and whether it reaches the other machine.
    pub reached: (&'static str, bool),
    /// State of the connection below the bridge, if it uses one.
    pub connection: Option<&'static str>,
    /// This end's side number.
    pub side: u8,
    /// The path of bytes through the bridge.
    pub carrier: CarrierStatus,
    /// Used and free queue pairs.
    pub queue_pairs: (usize, usize),
    /// Connections over the bridge.
    pub connections: usize,
    /// Counters of the provider.
    pub counters: ntrdma::Counters,
    /// Protocol violations of the peer that the device detected.
    pub device_violations: u64,
    /// Results of the last `ntb measure`.
    pub measured: Vec<Measured>,
}

/// A bridge to a stock Linux host.
pub struct TransportStatus<'a> {
    /// `ntb` and its number.
    pub name: &'a str,
    /// State of the link.
    pub state: drivers::ntb::transport::State,
    /// Network interface of the bridge.
    pub interface: Option<&'a str>,
    /// Driver and place of the device.
    pub device: (&'static str, &'a str),
    /// This end's side number.
    pub side: u8,
    /// The path of bytes through the bridge.
    pub carrier: CarrierStatus,
    /// Times that the link came up.
    pub ups: u64,
    /// Counters of the Ethernet interface.
    pub counters: PortCounters,
    /// Protocol violations in data that the peer wrote.
    pub violations: u64,
}

/// A RapidIO port.
pub struct RapidioStatus<'a> {
    /// `rio0` and so on.
    pub name: &'a str,
    /// Driver and place of the device.
    pub device: (&'static str, &'a str),
    /// Index of its `[[rapidio]]`.
    pub number: usize,
    /// Network interface of the bridge.
    pub interface: Option<&'a str>,
    /// End point on the RapidIO network.
    pub end_point: &'a EndPoint,
}

/// LINX.
pub struct LinxStatus<'a> {
    /// Configuration and state of each link.
    pub links: Vec<(&'a config::Linx, Option<linx::LinkStatus>)>,
    /// Signals to a rule's name that were dropped: with the wrong signal number, and from another link's peer.
    pub dropped: (u64, u64),
    /// Signals echoed.
    pub echoed: u64,
    /// RapidIO messages in LINX's mailboxes that belong to no connection.
    pub strays: linx::riocm::StrayCounters,
}

/// Datagrams dropped below an engine over UDP, by reason.
#[derive(Clone, Copy, Debug, Default)]
pub struct Losses {
    /// Datagrams with a wrong checksum, or without one.
    pub checksum: u64,
    /// Frames with inconsistent lengths.
    pub malformed: u64,
    /// Frames for another MAC or IP address.
    pub not_ours: u64,
    /// Datagrams with a peer's IP address from a MAC address that is not the peer's.
    pub wrong_mac: u64,
    /// Datagrams to hosts whose MAC address is unresolved, or that are not peers.
    pub no_next_hop: u64,
}

/// An engine over UDP.
pub struct UdpEngineStatus<'a> {
    /// Name in commands and `show`.
    pub name: &'static str,
    /// Datagrams dropped below the engine.
    pub losses: Losses,
    /// State of the engine.
    pub usnic: UsnicStatus<'a>,
}

/// usNIC.
pub struct UsnicStatus<'a> {
    /// The engine.
    pub engine: &'a usnic::Engine,
    /// Interfaces by number: configuration, and the engine's parameters.
    pub interfaces: Vec<(&'a config::usnic::Usnic, &'a InterfaceConfig)>,
    /// All peers.
    pub peers: Vec<UsnicPeer<'a>>,
}

/// Counters of a usNIC peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsnicCounts {
    /// Messages received.
    pub messages: u64,
    /// Bytes of messages received.
    pub bytes: u64,
    /// Messages echoed.
    pub echoed: u64,
    /// Messages without a service.
    pub unserved: u64,
}

/// MPI traffic with a usNIC peer.
#[derive(Clone, Copy, Debug)]
pub struct MpiStatus {
    /// Counters of MPI.
    pub counters: usnic::ob1::Counters,
    /// Messages in transfer, and messages waiting.
    pub under_way: (usize, usize),
}

/// A peer of usNIC.
pub struct UsnicPeer<'a> {
    /// Configuration of the peer.
    pub config: &'a config::usnic::Peer,
    /// Number of the peer's interface.
    pub interface: usize,
    /// Endpoint of the peer, if admitted.
    pub endpoint: Option<EndpointId>,
    /// Reason why the peer has no endpoint.
    pub not_admitted: Option<&'a str>,
    /// The peer registered itself by rendezvous.
    pub has_come: bool,
    /// The peer's modex, if known.
    pub modex: Option<Modex>,
    /// Message counters.
    pub counts: UsnicCounts,
    /// Number of the process that the peer belongs to, if it has an endpoint.
    pub process: Option<usize>,
    /// Whether the process is reached over more than one interface.
    pub has_several: bool,
    /// Address and size of the memory that the peer can PUT to.
    pub sink: Option<(u64, usize)>,
    /// MPI traffic with the peer.
    pub mpi: Option<MpiStatus>,
}

/// SMC-R and the rules.
pub struct SmcStatus<'a> {
    /// The engine.
    pub engine: &'a Engine,
    /// Services and rules on top of the engine.
    pub users: &'a Users,
    /// Rules that are not in force, with the reason.
    pub left_out: &'a [(String, String)],
    /// Bytes of buffers that are kept for the next connection.
    pub kept: Option<u64>,
}

/// A disk with volumes in extents, or a disk that is being examined.
pub struct PoolStatus<'a> {
    /// Number of the disk, and its size in sectors.
    pub disk: (usize, u64),
    /// State of the disk's volume table.
    pub state: StoreState,
    /// The volume table.
    pub table: &'a Table,
    /// Names of volumes with pending orders on the disk.
    pub coming: Vec<&'a str>,
}

impl PoolStatus<'_> {
    /// Free bytes.
    pub fn free(&self) -> u64 {
        self.table.free(self.disk.1).iter().map(|extent| extent.sectors * 512).sum()
    }
}

/// Volumes and storage servers.
pub struct StorageStatus<'a> {
    /// The server of the first loop, if it runs.
    pub server: Option<&'a Server>,
    /// All volumes.
    pub volumes: &'a Volumes,
    /// Disks that hold volumes.
    pub pools: Vec<PoolStatus<'a>>,
    /// Clients of other loops, as those loops published them.
    pub others: Vec<Arc<StorageRows>>,
}

/// A session with a remote server.
pub struct RemoteSession<'a> {
    /// RNBD client of the session.
    pub client: &'a Client,
    /// Devices of the session, by local volume name.
    pub devices: &'a [(String, DeviceId)],
    /// Maximum reconnect attempts of a path. None for unlimited.
    pub max_reconnect_attempts: Option<u16>,
}

impl RemoteSession<'_> {
    /// Name of the session.
    pub fn name(&self) -> &str {
        self.client.transport().name().as_str()
    }

    /// Additional connections of each path (`nr_poll_queues`).
    pub fn poll_queues(&self) -> u16 {
        self.client.transport().config().connections.saturating_sub(1)
    }

    /// The device behind a volume.
    pub fn device(&self, volume: &str) -> Option<DeviceStatus> {
        let (_, id) = self.devices.iter().find(|(name, _)| name == volume)?;
        self.client.devices().find(|device| device.id == *id)
    }
}

/// A mirror.
pub struct MirrorStatus<'a> {
    /// Name of the mirror.
    pub name: &'a str,
    /// Names of the members.
    pub members: &'a [String; 2],
    /// State of the mirror.
    pub status: Status,
    /// For each member that was dropped: since when it has been out of sync.
    pub out_since: [Option<Instant>; 2],
    /// Members that the operator detached.
    pub detached: [bool; 2],
}

impl MirrorStatus<'_> {
    /// Sectors of a member.
    pub fn member_sectors(&self, name: &str) -> Option<u64> {
        let place = self.members.iter().position(|member| member == name)?;
        self.status.member_sectors.get(place).copied()
    }
}

/// Sessions with remote servers, remotes over TCP, and mirrors.
#[derive(Default)]
pub struct RemoteStatus<'a> {
    /// A remote volume or mirror exists, or existed since boot.
    pub is_there: bool,
    /// Sessions with remote servers.
    pub sessions: Vec<RemoteSession<'a>>,
    /// Mirrors.
    pub mirrors: Vec<MirrorStatus<'a>>,
    /// Remotes over NBD.
    pub nbd: Vec<NbdStatus<'a>>,
    /// Remotes over NVMe/TCP.
    pub nvme: Vec<NvmeHostStatus<'a>>,
}

impl RemoteStatus<'_> {
    /// The remote over NBD behind a volume.
    pub fn nbd(&self, volume: &str) -> Option<&NbdStatus<'_>> {
        self.nbd.iter().find(|one| one.name == volume)
    }

    /// The remote over NVMe/TCP behind a volume.
    pub fn nvme(&self, volume: &str) -> Option<&NvmeHostStatus<'_>> {
        self.nvme.iter().find(|one| one.name == volume)
    }
}

/// Probes of paths to peers, which run when an operator asks.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathProbes<'a> {
    /// Probes run, or wait for their start.
    pub is_running: bool,
    /// Results since the last start.
    pub results: &'a [net::path_probe::Outcome],
    /// When the last probe ended.
    pub finished: Option<Instant>,
}

/// TLS of the HTTP servers.
pub struct TlsStatus<'a> {
    /// The certificate.
    pub tls: &'a Tls,
    /// Origin of the certificate, in words.
    pub origin: &'a str,
}
