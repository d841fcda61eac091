//! Makes the statuses that management reads, of all cores, on request.

use super::orders;
use super::ports::PortSlot;
use super::punt::PuntPort;
use super::state::State;
use super::worker::Worker;
use crate::audit::Trail;
use crate::config::{Config, Document, Export, Lifecycle, Name, Volume};
use crate::console::Progress;
use crate::log_ring::LogRing;
use drivers::hal::{Disk, Port as _, PortCounters};
use management::orders::Order;
use management::status::{
    BridgeStatus, DiskStatus, LinxStatus, MachineStatus, PathProbes, PlaneReport, PortReport,
    PortStatus, QueueStatus, RapidioStatus, RemoteStatus, RoceStatus, SmcStatus, StorageStatus,
    TlsStatus, TransportStatus, UdpEngineStatus, UpgradeStatus,
};
use management::task::Task;
use management::{Appliance, Told};
use net::capture::Capture;
use net::refusal::Refusal;
use verbs::ChunksOnDemand;

impl State {
    /// Report of the port with index `place` on the loop of `core`.
    fn port_report(
        loops: &[(usize, Option<PlaneReport>)],
        core: usize,
        place: usize,
    ) -> Option<PortReport> {
        let (_, report) = loops.iter().find(|(number, _)| *number == core)?;
        report.as_ref()?.ports.get(place).copied()
    }

    fn port_status<'a>(
        &'a self,
        number: usize,
        slot: &'a PortSlot,
        loops: &[(usize, Option<PlaneReport>)],
    ) -> PortStatus<'a> {
        let is_own = slot.punt_port.is_none();
        // An interface over a bridge has only the counters of the control plane's end.
        let seen = slot.punt_port.as_ref().map(PuntPort::counters);
        let seen = seen.map(|counters| PortReport { counters, ..PortReport::default() });
        let mut report =
            Self::port_report(loops, slot.core, slot.place).or(seen).unwrap_or_default();
        let mut control_dropped = slot.punt_port.as_ref().map_or(0, PuntPort::dropped);
        for queue in self.queues.iter().filter(|queue| queue.port == number) {
            if let Some(more) = Self::port_report(loops, queue.core, queue.place) {
                report += more;
            }
            control_dropped += queue.punt_port.dropped();
        }
        let forwarding = slot.forwarding.and_then(|place| self.plane.ports.get(place));
        PortStatus {
            name: &slot.name,
            location: &slot.location,
            driver: slot.driver,
            mac: slot.mac,
            mtu: slot.mtu,
            link: slot.link,
            addresses: &slot.addresses,
            core: slot.core,
            others: &slot.others,
            is_own,
            report,
            control_dropped,
            forwarding_dropped: forwarding.map(|port| port.port.counters().rx_missed),
        }
    }
}

impl Appliance for State {
    fn machine(&self) -> MachineStatus<'_> {
        MachineStatus {
            facts: self.facts,
            now: self.now,
            clock: self.clock,
            uptime: self.now.since(self.started).as_secs_f64(),
            problems: &self.problems,
            warnings: &self.warnings,
            crashes: &self.crashes,
            refused: &self.refused,
            unclaimed: &self.unclaimed,
        }
    }

    fn log(&self) -> &LogRing {
        self.log
    }

    fn audit(&self) -> &Trail {
        &self.audit
    }

    fn arena(&self) -> (usize, usize) {
        (self.plane.arena.capacity(), self.plane.arena.available())
    }

    fn has_unsaved(&self) -> bool {
        *self.document.config() != self.kept || !self.document.pending().is_empty()
    }

    fn document(&self) -> &Document {
        &self.document
    }

    fn document_mut(&mut self) -> &mut Document {
        &mut self.document
    }

    fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    fn lifecycle_mut(&mut self) -> &mut Lifecycle {
        &mut self.lifecycle
    }

    fn task(&mut self) -> &mut Task {
        &mut self.task
    }

    fn exports_under(&self, config: &Config) -> Vec<Export> {
        self.plane.storage.wanted_exports(config)
    }

    fn ports(&self) -> Vec<PortStatus<'_>> {
        let loops = self.loops();
        let all = self.ports.iter().enumerate();
        all.map(|(number, slot)| self.port_status(number, slot, &loops)).collect()
    }

    fn queues(&self) -> Vec<QueueStatus<'_>> {
        if self.queues.is_empty() {
            return Vec::new();
        }
        let loops = self.loops();
        let counters = |core, place| -> Option<PortCounters> {
            Some(Self::port_report(&loops, core, place)?.counters)
        };
        let punted = |punt_port: &PuntPort| punt_port.counters().rx_frames;
        let shared = self.ports.iter().filter(|slot| !slot.others.is_empty());
        let first = shared.map(|slot| QueueStatus {
            port: &slot.name,
            core: slot.core,
            counters: counters(slot.core, slot.place),
            punted: slot.punt_port.as_ref().map_or(0, punted),
            is_further: false,
        });
        let further = self.queues.iter().map(|queue| QueueStatus {
            port: &self.ports[queue.port].name,
            core: queue.core,
            counters: counters(queue.core, queue.place),
            punted: punted(&queue.punt_port),
            is_further: true,
        });
        first.chain(further).collect()
    }

    fn disks(&self) -> Vec<DiskStatus<'_>> {
        let status = self.disks.iter().map(|slot| DiskStatus {
            name: &slot.name,
            device: &slot.device,
            serial: &slot.serial,
            model: &slot.model,
            firmware: &slot.firmware,
            location: &slot.location,
            geometry: slot.geometry,
            role: slot.role.name(),
            depth: slot.disk.depth(),
            interrupts: slot.disk.interrupts(),
            queues: slot.disk.queue_counts(),
            health: slot.disk.health(),
            life: slot.disk.life(),
        });
        status.collect()
    }

    fn loops(&self) -> Vec<(usize, Option<PlaneReport>)> {
        let now = self.log.now();
        let mut all = vec![(0, Some(self.plane.report()))];
        all.extend(self.workers.iter().map(|worker| (worker.core, worker.report(now))));
        all
    }

    fn roce(&self) -> Option<RoceStatus<'_>> {
        let roce = &self.plane.rdma_stack.as_ref()?.providers.roce;
        Some(RoceStatus {
            counters: roce.counters(),
            queue_pairs: roce.queue_pairs(),
            connections: roce.connections(),
            on_demand: roce.on_demand(),
        })
    }

    fn bridges(&self) -> Vec<BridgeStatus> {
        let others = self.workers.iter().map(Worker::bridges);
        let others = others.flat_map(|bridges| bridges.to_vec());
        self.plane.bridge_statuses(0).chain(others).collect()
    }

    fn transports(&self) -> Vec<TransportStatus<'_>> {
        self.plane.transports.iter().map(|one| one.status(&self.ports)).collect()
    }

    fn rapidio(&self) -> Vec<RapidioStatus<'_>> {
        self.plane.rapidio.iter().map(|port| port.status(&self.ports)).collect()
    }

    fn nvme(&self) -> Option<&::nvme::Target> {
        self.services.nvme.as_ref().map(|nvme| nvme.target())
    }

    fn linx(&self) -> Option<LinxStatus<'_>> {
        self.plane.linx.as_ref().map(|linx| linx.status())
    }

    fn udp_engines(&self) -> Vec<UdpEngineStatus<'_>> {
        self.plane.udp_engines.statuses()
    }

    fn smc(&self) -> Option<SmcStatus<'_>> {
        self.services.smc.as_ref().map(|smc| smc.status(self.plane.rdma_stack.as_ref()))
    }

    fn storage(&self) -> StorageStatus<'_> {
        let storage = &self.plane.storage;
        StorageStatus {
            server: storage.server.as_ref(),
            volumes: &storage.volumes,
            pools: storage.pools.iter().map(|pool| pool.status()).collect(),
            others: self.workers.iter().map(Worker::storage_rows).collect(),
        }
    }

    fn remote(&self) -> RemoteStatus<'_> {
        let remote_storage = self.plane.users.remote_storage.as_ref();
        let rest = remote_storage.map(|one| one.status()).unwrap_or_default();
        let remotes = &self.plane.storage.tcp_remotes;
        RemoteStatus { nbd: remotes.nbd(), nvme: remotes.nvme(), ..rest }
    }

    fn wanted_exports(&self) -> Vec<Export> {
        self.plane.storage.wanted_exports(self.document.config())
    }

    fn undeclared(&self, named: &[Name]) -> Vec<Volume> {
        self.plane.storage.undeclared(self.document.config(), named)
    }

    fn resolver(&self) -> &net::dns::Resolver {
        &self.names.resolver
    }

    fn time_client(&self) -> &net::sntp::Client {
        &self.time.client
    }

    fn path_probes(&self) -> PathProbes<'_> {
        self.path_probes.status()
    }

    fn tls(&self) -> Option<TlsStatus<'_>> {
        self.secure.as_ref().map(|secure| TlsStatus { tls: &secure.tls, origin: &secure.origin })
    }

    fn upgrade(&self) -> UpgradeStatus<'_> {
        let slots = self.services.upgrade.as_ref().map(|upgrade| upgrade.status());
        UpgradeStatus { watchdog: self.watchdog.report(), slots }
    }

    fn capture(&self) -> &Capture {
        &self.plane.capture
    }

    fn carry_out(&mut self, order: Order<'_>) -> Told {
        orders::carry_out(self, order)
    }

    fn progress(&mut self) -> Option<Progress> {
        orders::progress(self)
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.refused.add(refusal, self.now);
    }
}
