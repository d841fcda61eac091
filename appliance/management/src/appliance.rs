//! What management needs the appliance for.

use crate::config::{Document, Export, Name, Volume};
use crate::console::{Managed, Progress};
use crate::log_ring::LogRing;
use crate::orders::Order;
use crate::status::{
    BridgeStatus, DiskStatus, LinxStatus, MachineStatus, PlaneReport, PortStatus, QueueStatus,
    RapidioStatus, RemoteStatus, RoceStatus, SmcStatus, StorageStatus, TlsStatus, TransportStatus,
    UdpEngineStatus, UpgradeStatus,
};

/// What came of an order, or why it is not done.
pub type Told = Result<Managed, String>;

/// The appliance, as management sees it. A status is made when it is asked for, of all cores where several have a part
/// in it; nobody asks on the data path.
pub trait Appliance {
    /// The machine, this build, and what was said of them.
    fn machine(&self) -> MachineStatus<'_>;
    /// The log.
    fn log(&self) -> &LogRing;
    /// Bytes of the arena, and how many of them are free.
    fn arena(&self) -> (usize, usize);
    /// Whether the configuration was changed since it was read or saved.
    fn has_unsaved(&self) -> bool;
    /// The configuration that is in force, …
    fn document(&self) -> &Document;
    /// … to change it: an [`Order`] puts in force what can be.
    fn document_mut(&mut self) -> &mut Document;
    /// Network interfaces, by number.
    fn ports(&self) -> Vec<PortStatus<'_>>;
    /// Ports that several cores share, by core.
    fn queues(&self) -> Vec<QueueStatus<'_>>;
    /// Disks, by number.
    fn disks(&self) -> Vec<DiskStatus<'_>>;
    /// The loops, by the number of their core; None where one has not said anything for a while.
    fn loops(&self) -> Vec<(usize, Option<PlaneReport>)>;
    /// The provider in software of the first loop.
    fn roce(&self) -> Option<RoceStatus<'_>>;
    /// Bridges to other appliances.
    fn bridges(&self) -> Vec<BridgeStatus>;
    /// Bridges to stock Linux hosts.
    fn transports(&self) -> Vec<TransportStatus<'_>>;
    /// RapidIO ports.
    fn rapidio(&self) -> Vec<RapidioStatus<'_>>;
    /// LINX, if it is configured.
    fn linx(&self) -> Option<LinxStatus<'_>>;
    /// Engines over UDP.
    fn udp_engines(&self) -> Vec<UdpEngineStatus<'_>>;
    /// SMC-R and the rules, if anything of them is configured.
    fn smc(&self) -> Option<SmcStatus<'_>>;
    /// Volumes, and who serves them.
    fn storage(&self) -> StorageStatus<'_>;
    /// What is from other servers, and mirrors.
    fn remote(&self) -> RemoteStatus<'_>;
    /// What is to be exported.
    fn wanted_exports(&self) -> Vec<Export>;
    /// Volumes of disks that have one of these names and are not in the configuration.
    fn undeclared(&self, named: &[Name]) -> Vec<Volume>;
    /// TLS of the HTTP servers, if they speak it.
    fn tls(&self) -> Option<TlsStatus<'_>>;
    /// The slots that releases boot from.
    fn upgrade(&self) -> UpgradeStatus<'_>;
    /// What was captured.
    fn capture(&self) -> &net::capture::Capture;

    /// Carries an order out, or begins to.
    fn carry_out(&mut self, order: Order<'_>) -> Told;
    /// News of what was begun.
    fn progress(&mut self) -> Option<Progress>;
    /// Takes note of what an HTTP server has refused.
    fn refuse(&mut self, refusal: net::refusal::Refusal);
}
