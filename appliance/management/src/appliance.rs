//! [`Appliance`]: the interface through which management reads the appliance and gives it orders.

use crate::audit::Trail;
use crate::config::{Config, Document, Export, Lifecycle, Name, Volume};
use crate::console::{Managed, Progress};
use crate::log_ring::LogRing;
use crate::orders::Order;
use crate::status::{
    BridgeStatus, DiskStatus, LinxStatus, MachineStatus, PathProbes, PlaneReport, PortStatus,
    QueueStatus, RapidioStatus, RemoteStatus, RoceStatus, SmcStatus, StorageStatus, TlsStatus,
    TransportStatus, UdpEngineStatus, UpgradeStatus,
};
use crate::task::Task;

/// Result of an order: output for the console, or the reason for a refusal.
pub type Told = Result<Managed, String>;

/// The appliance, as management sees it. Each call builds a status, from all cores involved. The data path never calls
/// these.
pub trait Appliance {
    /// The machine, this build, problems of the configuration, crashes and refusals.
    fn machine(&self) -> MachineStatus<'_>;
    /// The log.
    fn log(&self) -> &LogRing;
    /// The audit log.
    fn audit(&self) -> &Trail;
    /// Size of the arena and its free part, in bytes.
    fn arena(&self) -> (usize, usize);
    /// Whether the configuration was changed since it was read or saved.
    fn has_unsaved(&self) -> bool;
    /// The configuration in force.
    fn document(&self) -> &Document;
    /// The configuration, for changes. An [`Order`] puts a change in force where that needs no restart.
    fn document_mut(&mut self) -> &mut Document;
    /// The candidate, the revisions, and a commit that waits for its confirmation.
    fn lifecycle(&self) -> &Lifecycle;
    /// The same, for changes.
    fn lifecycle_mut(&mut self) -> &mut Lifecycle;
    /// Network interfaces, by number.
    fn ports(&self) -> Vec<PortStatus<'_>>;
    /// Queues of ports that several cores share, one entry per port and core.
    fn queues(&self) -> Vec<QueueStatus<'_>>;
    /// Disks, by number.
    fn disks(&self) -> Vec<DiskStatus<'_>>;
    /// The loops by core number. None for a loop that has not reported recently.
    fn loops(&self) -> Vec<(usize, Option<PlaneReport>)>;
    /// The software RoCE provider of the first loop.
    fn roce(&self) -> Option<RoceStatus<'_>>;
    /// Bridges to other appliances.
    fn bridges(&self) -> Vec<BridgeStatus>;
    /// Bridges to stock Linux hosts.
    fn transports(&self) -> Vec<TransportStatus<'_>>;
    /// RapidIO ports.
    fn rapidio(&self) -> Vec<RapidioStatus<'_>>;
    /// LINX, if it is configured.
    fn linx(&self) -> Option<LinxStatus<'_>>;
    /// The NVMe-oF target, if there is a subsystem.
    fn nvme(&self) -> Option<&nvme::Target>;
    /// Engines over UDP.
    fn udp_engines(&self) -> Vec<UdpEngineStatus<'_>>;
    /// SMC-R and the rules, if any are configured.
    fn smc(&self) -> Option<SmcStatus<'_>>;
    /// Volumes and the server that exports them.
    fn storage(&self) -> StorageStatus<'_>;
    /// Sessions with other servers, and mirrors.
    fn remote(&self) -> RemoteStatus<'_>;
    /// Exports to serve: those of the configuration, or one per volume without `[[export]]`.
    fn wanted_exports(&self) -> Vec<Export>;
    /// Exports to serve under another configuration.
    fn exports_under(&self, config: &Config) -> Vec<Export>;
    /// Volumes on disks with one of these names that the configuration lacks.
    fn undeclared(&self, named: &[Name]) -> Vec<Volume>;
    /// The DNS client.
    fn resolver(&self) -> &net::dns::Resolver;
    /// The time client.
    fn time_client(&self) -> &net::sntp::Client;
    /// Probes of paths to peers.
    fn path_probes(&self) -> PathProbes<'_>;
    /// TLS of the HTTP servers, if enabled.
    fn tls(&self) -> Option<TlsStatus<'_>>;
    /// The slots that releases boot from.
    fn upgrade(&self) -> UpgradeStatus<'_>;
    /// The packet capture.
    fn capture(&self) -> &net::capture::Capture;

    /// Executes or starts an order.
    fn carry_out(&mut self, order: Order<'_>) -> Told;
    /// The command that runs.
    fn task(&mut self) -> &mut Task;
    /// Progress of a started order.
    fn progress(&mut self) -> Option<Progress>;
    /// Counts and records a request that an HTTP server refused.
    fn refuse(&mut self, refusal: net::refusal::Refusal);
}
