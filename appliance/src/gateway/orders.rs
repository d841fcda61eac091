//! Dispatches management orders to the owning subsystems.

use super::bridge::orders as bridges;
use super::clients;
use super::disk_pool::Order as DiskOrder;
use super::disks::{Role, number_of};
use super::plane::DataPlane;
use super::remote_storage::Reconnecting;
use super::revisions::Waiting;
use super::rping::Rping;
use super::startable;
use super::state::{PingOrder, State};
use super::tcp_remotes::TcpRemoteService;
use super::upgrade::{Terms, UNSAVED};
use crate::config::{Mirror, Source};
use crate::console::{Managed, Progress};
use crate::crash;
use crate::families::{self, MEASURE, OfMeasure};
use crate::log_ring::set_levels;
use core::net::IpAddr;
use core::time::Duration;
use drivers::hal::Hold;
use management::orders::{Capturing, Order};
use management::{Appliance, Told, at_once, not_ready};
use nvme::AnaState;
use perf_responders::rping::Options;
use rand_core::Rng;

pub(super) const NO_DISK: &str = "there is no config disk: make one with `./isthmus image config-disk` \
                       and attach it with the serial number isthmus-config";

/// Executes an order, or starts to.
pub(super) fn carry_out(state: &mut State, order: Order<'_>) -> Told {
    let State { plane, workers, document, disks, now, .. } = state;
    let done = |()| Managed::Told(String::new());
    match order {
        Order::PutInForce(path) => state.put_in_force(path),
        Order::Check(config) => {
            startable::check(config, document.config(), disks, plane.arena.capacity() as u64)?;
        }
        Order::ArmTrial(text, seconds) => return state.arm_trial(text, seconds),
        Order::ApplyExports => state.apply_exports(),
        Order::Save => return state.save(),
        Order::WipeConfig(typed) => return state.wipe_config(typed),
        Order::WipeDisk(number) => return plane.storage.wipe(number, disks, &mut plane.arena),
        Order::Ping(address, count, size) => {
            start_ping(state, PingOrder::Start(address, count, size))?;
        }
        Order::ProbePaths(targets) => state.path_probes.start(targets, *now),
        Order::Resolve(name) => return state.names.resolve(name, *now).map(|_| Managed::Started),
        Order::Rping(address, options) => start_rping(plane, address, options)?,
        Order::Cancel => state.cancel(),
        Order::End(how) => state.end = Some(how),
        Order::Capture(Capturing::Start(filter, bytes)) => plane.capture.start(filter, bytes),
        Order::Capture(Capturing::Stop) => plane.capture.stop(),
        Order::Capture(Capturing::Discard) => plane.capture.discard(),
        Order::Clients(order, places) => {
            return clients::carry_out(&order, plane, workers, places).map(done);
        }
        Order::MakeVolume(volume) => plane.storage.add_volume(volume, disks, &mut plane.arena)?,
        Order::CreateOnDisk { disk, name, bytes, force } => {
            let change = DiskOrder::Create { name: name.into(), bytes, force };
            let number = number_of(disks, disk)?;
            plane.storage.order(number, change, disks, &mut plane.arena)?;
            return Ok(Managed::Started);
        }
        Order::Grow(number, name, bytes) => {
            let change = DiskOrder::Grow { name: name.into(), bytes };
            plane.storage.order(number, change, disks, &mut plane.arena)?;
            return Ok(Managed::Started);
        }
        Order::RetireVolume(name) => {
            if let Some(id) = plane.storage.volumes.find(name) {
                plane.storage.retire_volume(id, name)?;
            }
        }
        Order::DeleteVolume(name, disk) => {
            let provider = plane.rdma_stack.as_ref().map(|rdma_stack| &rdma_stack.providers);
            let (arena, storage) = (&mut plane.arena, &mut plane.storage);
            let disk = disk.and_then(|disk| number_of(disks, disk).ok());
            let is_begun = storage.delete_volume(name, disk, disks, arena, provider, *now)?;
            return Ok(if is_begun { Managed::Started } else { at_once() });
        }
        Order::AddRemote(remote, config) => {
            plane.add_remote(remote, config)?;
            TcpRemoteService::start(&mut state.services.tcp_remotes, plane);
            state.names.is_changed = true;
        }
        Order::RemoveRemote(name) => plane.remove_remote(name),
        Order::Remap(volume) => plane.remap(volume)?,
        Order::Read(name, reads) => return plane.read(name, reads),
        Order::Session(name, order) => return plane.order_session(name, order),
        Order::MakeMirror(mirror) => plane.make_mirror(mirror)?,
        Order::RemakeMirror(mirror) => plane.remake_mirror(mirror)?,
        Order::AssembleMirror(mirror) => state.assemble_mirror(mirror)?,
        Order::Mirror(name, order) => plane.order_mirror(name, order)?,
        Order::DissolveMirror(name) => plane.dissolve_mirror(name)?,
        Order::EndMirror(name) => {
            plane.rest_mirror(name);
            return Ok(Managed::Started);
        }
        Order::ResetBridge(name) => bridges::reset(plane, workers, name)?,
        Order::MeasureBridge(name, time) => return bridges::measure(plane, workers, name, time),
        Order::ConfirmUpgrade => return state.confirm_upgrade(),
        Order::AnaState(group, wanted) => state.set_ana_state(group, wanted)?,
        Order::Upgrade(words) => return state.order_upgrade(words, false),
        Order::Usnic(verb, words) => return plane.udp_engines.order("usnic", verb, words, *now),
    }
    Ok(Managed::Told(String::new()))
}

/// Starts a ping.
fn start_ping(state: &mut State, order: PingOrder) -> Result<(), String> {
    if state.pinging {
        return Err("a ping is running".into());
    }
    state.pinging = true;
    state.ping_order = Some(order);
    Ok(())
}

/// Starts an rping.
fn start_rping(plane: &mut DataPlane, peer: IpAddr, options: Options) -> Result<(), String> {
    if !MEASURE {
        return Err(families::missing("measure"));
    }
    if plane.rdma_stack.is_none() {
        return Err(
            "there is no RDMA provider: no network interface, or `roce.enabled` is false".into()
        );
    }
    plane.users.rping = OfMeasure::hold(|| Rping::new(peer, options, plane.now));
    Ok(())
}

/// The next progress of started orders, for the console.
pub(super) fn progress(state: &mut State) -> Option<Progress> {
    let (plane, now) = (&mut state.plane, state.now);
    let rping = plane.users.rping.as_mut().and_then(|rping| rping.progress());
    plane.users.rping.take_if(|rping| rping.is_over());
    rping
        .or_else(|| plane.poll_reading())
        .or_else(|| plane.poll_reconnecting())
        .or_else(|| plane.poll_ending(state.document.config()))
        .or_else(|| bridges::measure_result(plane))
        .or_else(|| plane.udp_engines.progress(now))
        .or_else(|| state.progress.pop_front())
}

impl State {
    /// Applies a change at `path`, as far as it can take effect at once.
    fn put_in_force(&mut self, path: &str) {
        let config = self.document.config();
        set_levels(config.system.log_level, &config.log.by_subject());
        crash::set_policy(config.system.on_panic);
        if let Some(secure) = &self.secure {
            secure.configure(config);
        }
        let quiet_time = Duration::from_micros(config.system.idle_after_us.into());
        let echo = config.services.udp_echo;
        self.order_planes(move |plane| plane.configure(quiet_time, echo));
        self.network_changed = true;
        self.names.is_changed = true;
        self.time.is_changed = true;
        self.apply_exports();
        let section = path.split('.').next().unwrap_or_default();
        self.rules_changed |= matches!(section, "rule" | "");
        self.subsystems_changed |= matches!(section, "subsystem" | "nvme_host" | "nvme" | "");
        self.linx_changed |= matches!(section, "linx" | "");
        // Of an engine's settings only its peers take effect before the next start.
        if matches!(section, "usnic" | "") {
            self.plane.udp_engines.configure(self.document.config(), self.now);
        }
    }

    fn assemble_mirror(&mut self, mirror: &Mirror) -> Result<(), String> {
        self.plane.assemble_mirror(mirror)?;
        self.apply_exports();
        Ok(())
    }

    /// Applies the exports of the configuration. Volumes that wait for their removal are not
    /// exported by default.
    fn apply_exports(&mut self) {
        let leaving = self.lifecycle.leaving.iter().map(|one| one.name().to_string());
        self.plane.storage.leaving = leaving.collect();
        self.plane.storage.apply_exports(self.document.config());
    }

    /// Sets the state of an ANA group, and reports it to hosts.
    fn set_ana_state(&mut self, group: u32, wanted: AnaState) -> Result<(), String> {
        let nvme = self.services.nvme.as_mut().ok_or("the NVMe target does not run")?;
        if !nvme.target_mut().set_ana_state(group, wanted) {
            return Err(format!("there is no ANA group {group}: 1 to 32 exist"));
        }
        Ok(())
    }

    /// Ends the trial of the running release.
    pub(super) fn confirm_upgrade(&mut self) -> Told {
        if self.services.upgrade.is_some() && self.is_recording() {
            return self.wait(Waiting::ConfirmUpgrade);
        }
        let saves = self.is_saving();
        let upgrade = self.services.upgrade.as_mut().ok_or("no release is on trial")?;
        upgrade.order_confirm(saves)
    }

    /// Starts to write a document that the next boot tries.
    pub(super) fn arm_trial(&mut self, text: &str, seconds: u64) -> Told {
        if self.services.upgrade.as_ref().is_some_and(|upgrade| upgrade.is_busy()) {
            return Err("the disk is being written for an upgrade; try again later".into());
        }
        if self.is_recording() {
            return self.wait(Waiting::Arm(text.into(), seconds));
        }
        let Some((_, engine)) = &mut self.config_disk else { return Err(NO_DISK.into()) };
        engine.arm(text, seconds)?;
        self.arming = true;
        Ok(Managed::Started)
    }

    /// Starts to write the configuration to the config disk.
    pub(super) fn save(&mut self) -> Told {
        if self.lifecycle.trial.is_some() {
            return Err("a commit waits for its confirmation: `confirm` first".into());
        }
        if self.is_recording() {
            return self.wait(Waiting::Save);
        }
        if self.config_disk.is_some()
            && let Some(offered) = self.plane.storage.offered
        {
            offered.keep(&mut self.document, self.plane.arena.capacity() as u64);
        }
        let text = self.document.to_toml();
        let Some((index, engine)) = &mut self.config_disk else { return Err(NO_DISK.into()) };
        if self.services.upgrade.as_ref().is_some_and(|upgrade| upgrade.is_busy()) {
            return Err("the disk is being written for an upgrade; try again later".into());
        }
        let arena = self.plane.arena.capacity() as u64;
        startable::check(self.document.config(), &self.kept, &self.disks, arena)?;
        debug_assert!(matches!(self.disks[*index].role, Role::Configuration | Role::Boot));
        engine.save(&text)?;
        self.saving = Some(self.document.config().clone());
        Ok(Managed::Started)
    }

    /// Cancels running operations that can be cancelled.
    fn cancel(&mut self) {
        // A save is not cancelled: it is short.
        if self.pinging {
            self.ping_order = Some(PingOrder::Stop);
        }
        if self.names.cancel() {
            self.progress.push_back(Progress::Done(Err("cancelled".into())));
        }
        let plane = &mut self.plane;
        if let Some(rping) = &mut plane.users.rping {
            rping.cancel();
        }
        let remote_storage = plane.users.remote_storage.as_mut();
        if let Some(remote_storage) = remote_storage {
            remote_storage.reconnecting.iter_mut().for_each(Reconnecting::cancel);
            if let Some(reading) = &mut remote_storage.reading {
                reading.cancel();
            }
        }
        self.upgrade_after_save = None;
        if let Some(upgrade) = &mut self.services.upgrade {
            upgrade.cancel();
        }
        bridges::end_measuring(plane);
        plane.udp_engines.cancel();
    }

    /// Starts to write a release. If the configuration depends on the image's document, it is saved first, because the
    /// next image does not have that document.
    pub(super) fn order_upgrade(&mut self, words: &[&str], is_saved: bool) -> Told {
        let upgrade = self.services.upgrade.as_ref().ok_or(
            "the appliance has no slots: boot it by UEFI from a disk that `./isthmus image raw` has written",
        )?;
        if self.is_recording() {
            return self.wait(Waiting::Upgrade(words.iter().map(ToString::to_string).collect()));
        }
        let force = words.last() == Some(&"force");
        let carries = self.document.depends_on(Source::Image) && !is_saved;
        if carries && self.config_disk.is_none() && !force {
            return Err("the configuration is in the image, and there is no config disk to keep it for the next image: \
                        attach one, or use `upgrade … force`, whose trial waits for `upgrade confirm`"
                .into());
        }
        if carries && self.config_disk.is_some() && !upgrade.is_busy() && !self.is_saving() {
            if self.has_unsaved() && !force {
                return Err(UNSAVED.into());
            }
            self.save()?;
            self.upgrade_after_save = Some(words.iter().map(ToString::to_string).collect());
            return Ok(Managed::Started);
        }
        let terms = Terms {
            key: self.document.config().system.upgrade_key.map(|key| key.0),
            unsaved: self.has_unsaved(),
            is_ready: not_ready(self).is_empty(),
            in_force: self.doors(&self.kept),
            committed: self.facts.committed,
            seed: self.plane.rng.next_u32() as u16,
            now: self.now,
            saves: self.is_saving(),
        };
        let upgrade = self.services.upgrade.as_mut().ok_or("the appliance has no slots")?;
        upgrade.order(words, terms, &mut self.disks)
    }
}
