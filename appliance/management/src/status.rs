//! Statuses: what management reads. They are plain: numbers and names, and what engines below tell of themselves.

use crate::config;
use crate::crash::History;
use crate::loops::LoopCounters;
use crate::refused::Refused;
use crate::storage_rows::StorageRows;
use crate::unclaimed_devices::UnclaimedDevice;
pub use crate::wall_clock::WallClock;
use core::net::IpAddr;
use drivers::dma;
use drivers::hal::{Geometry, Health, Instant, PortCounters, QueueCount};
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

/// What is known of the machine, for show.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The commit that it was built of; with a `+` if there was more than is in that.
    pub commit: &'static str,
    /// When that was made, in seconds since 1970; 0 if that is not known.
    pub committed: u64,
    /// What names this build and its `isthmus.symbols`.
    pub build_id: &'static str,
    /// How it was booted (`pvh`, `multiboot2`, …).
    pub boot: &'static str,
    /// Processors that run.
    pub cpus: usize,
    /// Bytes of RAM in all.
    pub memory: u64,
    /// Where randomness comes from.
    pub entropy: &'static str,
    /// Bytes of the heap that are in use.
    pub heap_used: fn() -> usize,
}

/// The machine, and what was said of it.
pub struct MachineStatus<'a> {
    /// What does not change.
    pub facts: Facts,
    /// The present.
    pub now: Instant,
    /// The wall clock.
    pub clock: WallClock,
    /// Seconds since the appliance came up.
    pub uptime: f64,
    /// What was wrong with the configuration at boot.
    pub problems: &'a [String],
    /// What was left out of it, while the rest holds.
    pub warnings: &'a [String],
    /// What was said in panics.
    pub crashes: &'a History,
    /// What was refused.
    pub refused: &'a Refused,
    /// Devices that nobody uses.
    pub unclaimed: &'a [UnclaimedDevice],
}

/// What is shown of a port's IP interface.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    /// With their prefixes.
    pub list: Vec<String>,
    /// Its gateways.
    pub gateways: Vec<String>,
    /// DHCP has given one.
    pub lease: bool,
    /// Largest packets of IPv4 and of IPv6, and who says so, once the interface has told.
    pub mtus: Option<[(usize, net::MtuOrigin); 2]>,
    /// What the interface has counted.
    pub counters: net::Counters,
}

/// What a loop tells of a port.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortReport {
    /// The device's.
    pub counters: PortCounters,
    /// Datagrams echoed.
    pub echoes: u64,
    /// Of the card that does RoCE there, if one does.
    pub card: Option<CardReport>,
}

impl core::ops::AddAssign for PortReport {
    /// Of further queues of its device.
    fn add_assign(&mut self, more: PortReport) {
        self.counters += more.counters;
        self.echoes += more.echoes;
    }
}

/// What a loop tells of itself.
#[derive(Clone, Debug, Default)]
pub struct PlaneReport {
    /// What it did with its time.
    pub counters: LoopCounters,
    /// By place.
    pub ports: Vec<PortReport>,
}

/// A network interface.
pub struct PortStatus<'a> {
    /// `net0` and so on.
    pub name: &'a str,
    /// Where it is.
    pub location: &'a str,
    /// Name of its driver; empty if it has none.
    pub driver: &'static str,
    /// Its address.
    pub mac: [u8; 6],
    /// Largest layer 3 packet.
    pub mtu: usize,
    /// The link is up.
    pub link: bool,
    /// Of its IP interface.
    pub addresses: &'a Addresses,
    /// The core that has it, and others that have queues of it.
    pub core: usize,
    /// See `core`.
    pub others: &'a [usize],
    /// The first loop has it.
    pub is_own: bool,
    /// Of all its queues.
    pub report: PortReport,
    /// Frames for the control plane that were lost between loops.
    pub control_dropped: u64,
    /// Datagrams for engines over UDP that were lost between loops, where they cross.
    pub forwarding_dropped: Option<u64>,
}

/// What one core has of a port that several share.
pub struct QueueStatus<'a> {
    /// Name of the port.
    pub port: &'a str,
    /// Number of the core.
    pub core: usize,
    /// The device's, of this core's queues; None if the core does not say.
    pub counters: Option<PortCounters>,
    /// Frames that it passed on to the control plane.
    pub punted: u64,
    /// It is not the core that has the port.
    pub is_further: bool,
}

/// A disk.
pub struct DiskStatus<'a> {
    /// `disk0` and so on.
    pub name: &'a str,
    /// What names it for good.
    pub device: &'a str,
    /// Empty if it has none.
    pub serial: &'a str,
    /// Empty if it does not say.
    pub model: &'a str,
    /// Empty if it does not say.
    pub firmware: &'a str,
    /// Where it is.
    pub location: &'a str,
    /// Its shape.
    pub geometry: Geometry,
    /// What it is used for.
    pub role: &'static str,
    /// Requests that it takes.
    pub depth: usize,
    /// Interrupts that it raised.
    pub interrupts: u64,
    /// Its queues, if they are counted.
    pub queues: Vec<QueueCount>,
    /// How it fares, if it says.
    pub health: Option<Health>,
}

/// The provider in software.
pub struct RoceStatus<'a> {
    /// What it has counted.
    pub counters: &'a roce::Counters,
    /// Queue pairs that there are.
    pub queue_pairs: usize,
    /// Connections, made, being made and ending.
    pub connections: usize,
    /// Memory that sessions share, if they do.
    pub on_demand: Option<OnDemandStatus>,
}

/// What is told of a card that does RoCE itself.
#[cfg(feature = "mlx5")]
#[derive(Clone, Copy, Debug)]
pub struct CardReport {
    /// It does RoCE now.
    pub is_active: bool,
    /// Queue pairs that there are.
    pub queue_pairs: usize,
    /// Connections, made, being made and ending.
    pub connections: usize,
    /// What the driver has counted.
    pub counters: connectx::Counters,
    /// What the card has.
    pub card_counters: connectx::CardCounters,
    /// How it is told to wait.
    pub flow_control: connectx::FlowControl,
}

/// There is none.
#[cfg(not(feature = "mlx5"))]
#[derive(Clone, Copy, Debug)]
pub enum CardReport {}

impl CardReport {
    /// How flow control is set at the port, if the card tells.
    pub fn flow_control(&self) -> Option<String> {
        #[cfg(feature = "mlx5")]
        return self.flow_control.in_words();
        #[cfg(not(feature = "mlx5"))]
        match *self {}
    }
}

/// What a hardware bridge has, for metrics.
#[derive(Clone, Copy, Debug)]
pub struct Hardware {
    /// Generation of PCI Express and lanes of the link, 0 while there is none.
    pub link: (u8, u8),
    /// Bytes of the peer's memory that can be written.
    pub window: u64,
    /// Bytes of ours that the peer can write.
    pub exposed: u64,
    /// Bytes written through it by the CPU.
    pub by_cpu: u64,
    /// Bytes written through it by the engine.
    pub by_engine: u64,
    /// Resets of the engine's channel.
    pub resets: u64,
    /// Completions that it did not tell of as it should.
    pub missed: u64,
}

/// What carries bytes through a bridge.
#[derive(Clone, Debug)]
pub struct CarrierStatus {
    /// How the device tells of doorbells.
    pub doorbell: &'static str,
    /// In words.
    pub link_speed: Option<String>,
    /// CPU or engine.
    pub carried_by: String,
    /// Bytes that the CPU wrote.
    pub by_cpu: Option<u64>,
    /// What the engine did.
    pub engine: Option<dma::ChannelCounters>,
    /// Bytes of the peer's memory that can be written.
    pub window: usize,
    /// Bytes of ours that the peer can write.
    pub exposed: usize,
    /// Interrupts that the device raised.
    pub interrupts: u64,
    /// For metrics, of hardware.
    pub hardware: Option<Hardware>,
}

/// A bridge to another appliance.
#[derive(Clone, Debug)]
pub struct BridgeStatus {
    /// `ntb` and its number.
    pub name: String,
    /// The core that has it.
    pub core: usize,
    /// Its link.
    pub link: ntrdma::State,
    /// Our address, and the peer's.
    pub addresses: (IpAddr, IpAddr),
    /// What it is, and where.
    pub device: String,
    /// What kind of device carries it, and whether that reaches the other machine.
    pub reached: (&'static str, bool),
    /// How a connection stands, if it goes over one.
    pub connection: Option<&'static str>,
    /// Which end we are.
    pub side: u8,
    /// What carries its bytes.
    pub carrier: CarrierStatus,
    /// Queue pairs: used and free.
    pub queue_pairs: (usize, usize),
    /// Connections.
    pub connections: usize,
    /// What its provider has counted.
    pub counters: ntrdma::Counters,
    /// What the device saw that no honest peer does.
    pub device_violations: u64,
    /// What was measured last.
    pub measured: Vec<Measured>,
}

/// A bridge to a stock Linux host.
pub struct TransportStatus<'a> {
    /// `ntb` and its number.
    pub name: &'a str,
    /// How its link stands.
    pub state: drivers::ntb::transport::State,
    /// Its network interface.
    pub interface: Option<&'a str>,
    /// Driver and place of the device.
    pub device: (&'static str, &'a str),
    /// Which end we are.
    pub side: u8,
    /// What carries its bytes.
    pub carrier: CarrierStatus,
    /// Times that the link came up.
    pub ups: u64,
    /// Of its Ethernet.
    pub counters: PortCounters,
    /// What the peer wrote that no honest one does.
    pub violations: u64,
}

/// A RapidIO port.
pub struct RapidioStatus<'a> {
    /// `rio0` and so on.
    pub name: &'a str,
    /// Driver and place of the device.
    pub device: (&'static str, &'a str),
    /// Of its `[[rapidio]]`.
    pub number: usize,
    /// Its network interface.
    pub interface: Option<&'a str>,
    /// What it is on its network.
    pub end_point: &'a EndPoint,
}

/// LINX.
pub struct LinxStatus<'a> {
    /// The links, as they are configured, and as they stand.
    pub links: Vec<(&'a config::Linx, Option<linx::LinkStatus>)>,
    /// Signals to a rule's name that were dropped: of another number, and of another link's peer.
    pub dropped: (u64, u64),
    /// Signals sent back.
    pub echoed: u64,
}

/// What went wrong below an engine over UDP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Losses {
    /// Datagrams with a wrong checksum, or without one.
    pub checksum: u64,
    /// Frames whose lengths do not go together.
    pub malformed: u64,
    /// Frames for another station or address.
    pub not_ours: u64,
    /// Datagrams in a peer's name from another MAC address than the peer's.
    pub wrong_mac: u64,
    /// Datagrams to hosts whose hardware address is not known yet, or that are no peers.
    pub no_next_hop: u64,
}

/// An engine over UDP.
pub struct UdpEngineStatus<'a> {
    /// What commands and `show` call it.
    pub name: &'static str,
    /// What went wrong below it.
    pub losses: Losses,
    /// What it tells.
    pub usnic: UsnicStatus<'a>,
}

/// usNIC.
pub struct UsnicStatus<'a> {
    /// The engine.
    pub engine: &'a usnic::Engine,
    /// Interfaces, by number: as they are configured, and what the engine knows of them.
    pub interfaces: Vec<(&'a config::usnic::Usnic, &'a InterfaceConfig)>,
    /// All peers.
    pub peers: Vec<UsnicPeer<'a>>,
}

/// What was counted of a peer of usNIC.
#[derive(Clone, Copy, Debug, Default)]
pub struct UsnicCounts {
    /// Messages that came.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Those that went back.
    pub echoed: u64,
    /// Those for which there is no service.
    pub unserved: u64,
}

/// What MPI does with a peer of usNIC.
#[derive(Clone, Copy, Debug)]
pub struct MpiStatus {
    /// What was counted.
    pub counters: usnic::ob1::Counters,
    /// Messages under way, and those that wait.
    pub under_way: (usize, usize),
}

/// A peer of usNIC.
pub struct UsnicPeer<'a> {
    /// As it is configured.
    pub config: &'a config::usnic::Peer,
    /// Number of its interface.
    pub interface: usize,
    /// Its endpoint, or why it has none.
    pub endpoint: Option<EndpointId>,
    /// See `endpoint`.
    pub not_admitted: Option<&'a str>,
    /// It has come by rendezvous.
    pub has_come: bool,
    /// What it is, if that is known.
    pub modex: Option<Modex>,
    /// What was counted.
    pub counts: UsnicCounts,
    /// The process that it is, if it has an endpoint.
    pub process: Option<usize>,
    /// Whether that is reached over more than one interface.
    pub has_several: bool,
    /// By which address, and how many bytes, it can PUT.
    pub sink: Option<(u64, usize)>,
    /// What MPI does with it.
    pub mpi: Option<MpiStatus>,
}

/// SMC-R and the rules.
pub struct SmcStatus<'a> {
    /// The engine.
    pub engine: &'a Engine,
    /// Who uses it.
    pub users: &'a Users,
    /// Rules that cannot be, and why.
    pub left_out: &'a [(String, String)],
    /// Bytes of buffers that are kept for the next connection.
    pub kept: Option<u64>,
}

/// A disk that holds volumes, or is looked at.
pub struct PoolStatus<'a> {
    /// Number of the disk, and its sectors.
    pub disk: (usize, u64),
    /// What is known of it.
    pub state: StoreState,
    /// What is on it.
    pub table: &'a Table,
    /// Names of volumes of which something is to be done there.
    pub coming: Vec<&'a str>,
}

impl PoolStatus<'_> {
    /// Bytes that are free.
    pub fn free(&self) -> u64 {
        self.table.free(self.disk.1).iter().map(|extent| extent.sectors * 512).sum()
    }
}

/// Volumes, and who serves them.
pub struct StorageStatus<'a> {
    /// The first loop's server, if it runs.
    pub server: Option<&'a Server>,
    /// All volumes.
    pub volumes: &'a Volumes,
    /// Disks that hold volumes.
    pub pools: Vec<PoolStatus<'a>>,
    /// What other loops tell of their clients.
    pub others: Vec<Arc<StorageRows>>,
}

/// A session with another server.
pub struct RemoteSession<'a> {
    /// What it does.
    pub client: &'a Client,
    /// Its devices, by the names of their volumes here.
    pub devices: &'a [(String, DeviceId)],
    /// Attempts to connect a path again.
    pub max_reconnect_attempts: Option<u16>,
}

impl RemoteSession<'_> {
    /// Its name.
    pub fn name(&self) -> &str {
        self.client.transport().name().as_str()
    }

    /// The device behind a volume.
    pub fn device(&self, volume: &str) -> Option<DeviceStatus> {
        let (_, id) = self.devices.iter().find(|(name, _)| name == volume)?;
        self.client.devices().find(|device| device.id == *id)
    }
}

/// A mirror.
pub struct MirrorStatus<'a> {
    /// Its name, and its members'.
    pub name: &'a str,
    /// See `name`.
    pub members: &'a [String; 2],
    /// How it stands.
    pub status: Status,
    /// Since when members are not in sync that were left out.
    pub out_since: [Option<Instant>; 2],
    /// Members that the operator wants to do without.
    pub detached: [bool; 2],
}

impl MirrorStatus<'_> {
    /// Sectors of a member.
    pub fn member_sectors(&self, name: &str) -> Option<u64> {
        let place = self.members.iter().position(|member| member == name)?;
        self.status.member_sectors.get(place).copied()
    }
}

/// What is from other servers, and mirrors.
#[derive(Default)]
pub struct RemoteStatus<'a> {
    /// There is, or was, anything of it.
    pub is_there: bool,
    /// Sessions.
    pub sessions: Vec<RemoteSession<'a>>,
    /// Mirrors.
    pub mirrors: Vec<MirrorStatus<'a>>,
}

/// TLS of the HTTP servers.
pub struct TlsStatus<'a> {
    /// The certificate.
    pub tls: &'a Tls,
    /// Where it comes from, in words.
    pub origin: &'a str,
}

/// A slot that releases boot from.
#[derive(Clone, Copy, Debug)]
pub struct SlotStatus<'a> {
    /// Its letter.
    pub name: &'static str,
    /// Of the release in it; empty if there is none.
    pub version: &'a str,
    /// Bytes of it.
    pub bytes: u64,
    /// When it was made, seconds since 1970.
    pub made: u64,
    /// It runs.
    pub runs: bool,
    /// Whether it is what boots next.
    pub boots: &'static str,
}

/// The slots of the disk that the appliance was booted from.
pub struct SlotsStatus<'a> {
    /// The slot that runs.
    pub runs: &'static str,
    /// It is on trial.
    pub trial: bool,
    /// The trial before this start has failed.
    pub failed: Option<&'static str>,
    /// Both.
    pub slots: [SlotStatus<'a>; 2],
}

/// What `upgrade` works on.
pub struct UpgradeStatus<'a> {
    /// The watchdog's driver, and the seconds that it runs with.
    pub watchdog: (Option<&'static str>, u16),
    /// None without slots.
    pub slots: Option<SlotsStatus<'a>>,
}
