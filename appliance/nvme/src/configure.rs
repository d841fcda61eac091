//! Changes of subsystems, namespaces, volumes and ANA states at run time, while hosts are connected.

use crate::controller::{ControllerView, Of};
use crate::events::Event;
use crate::subsystem::{
    Absent, AnaState, Backing, Namespace, NamespaceConfig, NamespaceView, Subsystem,
    SubsystemConfig,
};
use crate::target::Target;
use alloc::sync::Arc;
use alloc::vec::Vec;
use storage::volume::Volumes;

impl Target {
    /// Serves these subsystems, and no others. Hosts of subsystems that are gone, or do not admit them any more, are
    /// disconnected; hosts of other subsystems get an asynchronous event for changed namespaces.
    pub fn configure(&mut self, wanted: Vec<SubsystemConfig>, volumes: &Volumes) {
        let mut changed = false;
        let gone = self
            .subsystems
            .iter()
            .filter(|(_, one)| wanted.iter().all(|config| config.nqn != one.config.nqn));
        let gone: Vec<usize> = gone.map(|(index, _)| index).collect();
        for index in gone {
            changed = true;
            self.end_controllers(|one| one.of == Of::Subsystem(index));
            // Controllers that are ending refer to the place until they are gone.
            if let Some(subsystem) = self.subsystems.get_mut(index) {
                for mut namespace in subsystem.namespaces.drain(..) {
                    self.throttles.release(&mut namespace);
                }
                subsystem.config.hosts = crate::subsystem::HostList::Closed;
                subsystem.config.nqn.clear();
            }
        }
        self.forget_subsystems();
        for config in wanted {
            let found = self.subsystems.iter().find(|(_, one)| one.config.nqn == config.nqn);
            let index = match found {
                Some((index, one)) if one.config == config => {
                    self.look_up(index, volumes);
                    continue;
                }
                Some((index, one)) => {
                    changed |= !one.config.is_same(&config);
                    index
                }
                None => {
                    changed = true;
                    self.subsystems.insert(Subsystem::new(config.clone()))
                }
            };
            if let Some(subsystem) = self.subsystems.get_mut(index) {
                subsystem.serial = config.serial();
                subsystem.config = config;
            }
            self.apply_namespaces(index, volumes);
            let Some(subsystem) = self.subsystems.get(index) else { continue };
            let refused: Vec<usize> = self
                .controllers
                .iter()
                .filter(|(_, one)| {
                    one.of == Of::Subsystem(index)
                        && subsystem.admits(&one.host.nqn, one.host.address).is_err()
                })
                .map(|(index, _)| index)
                .collect();
            refused.into_iter().for_each(|index| self.end_controller(index));
        }
        self.end_unproven();
        if changed {
            self.discovery_changed();
        }
        self.volumes_revision = volumes.revision();
    }

    /// Removes subsystems that are not configured any more and have no controllers.
    fn forget_subsystems(&mut self) {
        let controllers = &self.controllers;
        self.subsystems.retain(|index, one| {
            !one.config.nqn.is_empty()
                || controllers.iter().any(|(_, it)| it.of == Of::Subsystem(index))
        });
    }

    fn end_controllers(&mut self, which: impl Fn(&crate::controller::Controller) -> bool) {
        let found = self.controllers.iter().filter(|(_, one)| which(one));
        let found: Vec<usize> = found.map(|(index, _)| index).collect();
        found.into_iter().for_each(|index| self.end_controller(index));
    }

    /// Applies the configured namespaces of a subsystem.
    fn apply_namespaces(&mut self, index: usize, volumes: &Volumes) {
        let Some(subsystem) = self.subsystems.get_mut(index) else { return };
        let mut wanted: Vec<NamespaceConfig> = subsystem.config.namespaces.clone();
        wanted.sort_by_key(|one| one.nsid);
        let mut old = core::mem::take(&mut subsystem.namespaces);
        let mut changed: Vec<u32> = Vec::new();
        for config in wanted {
            let known = old.iter().position(|one| one.config.is_same(&config));
            let mut namespace = match known {
                Some(place) => Namespace { config, ..old.remove(place) },
                None => {
                    changed.push(config.nsid);
                    let derived = || Namespace::derived_uuid(&subsystem.config.nqn, &config);
                    Namespace {
                        uuid: config.uuid.unwrap_or_else(derived),
                        backing: back(&config, volumes),
                        config,
                        counters: Default::default(),
                        limiter: Arc::default(),
                        throttle: None,
                    }
                }
            };
            self.throttles.apply(&mut namespace);
            subsystem.namespaces.push(namespace);
        }
        changed.extend(old.iter().map(|one| one.config.nsid));
        old.iter_mut().for_each(|one| self.throttles.release(one));
        self.namespaces_changed(index, &changed);
        self.look_up(index, volumes);
    }

    /// Looks up the volumes of a subsystem's namespaces again: they may have come, gone or grown.
    fn look_up(&mut self, index: usize, volumes: &Volumes) {
        let Some(subsystem) = self.subsystems.get_mut(index) else { return };
        let mut changed = Vec::new();
        for namespace in &mut subsystem.namespaces {
            let name = namespace.config.volume.as_str();
            // Each second for each namespace: a search of all volumes is for those that have changed.
            let known = namespace.backing.as_ref().ok().map(|backing| backing.volume);
            let known = known.filter(|&volume| volumes.name(volume) == Some(name));
            let current = known.or_else(|| volumes.find(name));
            let same = match (&mut namespace.backing, current) {
                (Ok(backing), Some(id)) if backing.volume == id => match volumes.geometry(id) {
                    Some(geometry) => {
                        let same = backing.geometry == geometry;
                        backing.geometry = geometry;
                        same
                    }
                    None => true,
                },
                (Err(Absent::NoVolume), None) => true,
                _ => {
                    let before = namespace.backing.as_ref().err().copied();
                    namespace.backing = back(&namespace.config, volumes);
                    before.is_some() && namespace.backing.as_ref().err().copied() == before
                }
            };
            if !same {
                changed.push(namespace.config.nsid);
            }
        }
        self.namespaces_changed(index, &changed);
    }

    /// Looks up all volumes again, if any was added or removed, or has another size.
    pub(crate) fn check_volumes(&mut self, volumes: &Volumes) {
        self.volumes_revision = volumes.revision();
        let indices: Vec<usize> = self.subsystems.iter().map(|(index, _)| index).collect();
        indices.into_iter().for_each(|index| self.look_up(index, volumes));
        self.forget_subsystems();
    }

    /// Whether volumes were added or removed since namespaces were looked up.
    pub fn volumes_have_changed(&self, volumes: &Volumes) -> bool {
        self.volumes_revision != volumes.revision()
    }

    /// Looks up all volumes again.
    pub fn refresh_volumes(&mut self, volumes: &Volumes) {
        self.check_volumes(volumes);
    }

    /// Tells the hosts of a subsystem of changed namespaces.
    fn namespaces_changed(&mut self, index: usize, changed: &[u32]) {
        if changed.is_empty() {
            return;
        }
        self.raise(index, &[Event::Namespaces, Event::Ana], changed);
    }

    fn raise(&mut self, index: usize, events: &[Event], changed: &[u32]) {
        let all = self.controllers.iter_mut();
        let mut told = Vec::new();
        for (place, one) in all.filter(|(_, one)| one.of == Of::Subsystem(index)) {
            changed.iter().for_each(|&nsid| one.events.note_changed(nsid));
            events.iter().for_each(|&event| one.events.raise(event));
            told.push(place);
        }
        told.into_iter().for_each(|place| self.report_events(place));
    }

    /// Sets the state of an ANA group of all subsystems. False if there is no such group.
    pub fn set_ana_state(&mut self, group: u32, state: AnaState) -> bool {
        let Some(place) = (group as usize).checked_sub(1) else { return false };
        let mut any = false;
        let mut changed = Vec::new();
        for (index, subsystem) in self.subsystems.iter_mut() {
            let Some((current, changes)) = subsystem.groups.get_mut(place) else { continue };
            any = true;
            if core::mem::replace(current, state) != state {
                *changes += 1;
                subsystem.ana_changes += 1;
                changed.push(index);
            }
        }
        changed.into_iter().for_each(|index| self.raise(index, &[Event::Ana], &[]));
        any
    }

    /// Whether a host would be admitted to a subsystem; otherwise a label of the reason.
    pub fn check_host(
        &self,
        subsystem: &str,
        host: &str,
        address: core::net::IpAddr,
    ) -> Result<(), &'static str> {
        let found = self.subsystems.iter().find(|(_, one)| one.config.nqn == subsystem);
        found.map_or(Err("no_such_subsystem"), |(_, one)| one.admits(host, address))
    }

    /// The subsystems, with their namespaces.
    pub fn view(&self) -> impl Iterator<Item = (&SubsystemConfig, &str, Vec<NamespaceView>)> {
        let configured = self.subsystems.iter().filter(|(_, one)| !one.config.nqn.is_empty());
        configured.map(|(_, one)| {
            let namespaces = one.namespaces.iter().map(|namespace| NamespaceView {
                config: namespace.config.clone(),
                uuid: namespace.uuid,
                size: match &namespace.backing {
                    Ok(backing) => Ok((backing.blocks() * u64::from(backing.block), backing.block)),
                    Err(absent) => Err(absent.reason()),
                },
                reads: (namespace.counters.reads, namespace.counters.read_bytes),
                writes: (namespace.counters.writes, namespace.counters.write_bytes),
                errors: namespace.counters.errors,
                conflicts: namespace.counters.conflicts,
                delays: namespace.limiter.delays(),
                reservation: match &namespace.backing {
                    Ok(backing) => {
                        let (kind, registrants) = backing.hold.reservation();
                        (kind.map(|kind| kind.name()), registrants)
                    }
                    Err(_) => (None, 0),
                },
            });
            (&one.config, one.serial.as_str(), namespaces.collect())
        })
    }

    /// The controllers.
    pub fn controllers(&self) -> impl Iterator<Item = ControllerView> + '_ {
        self.controllers.iter().map(|(_, one)| {
            let subsystem = match one.of {
                Of::Discovery => crate::discovery::DISCOVERY_NQN.into(),
                Of::Subsystem(index) => {
                    self.subsystems.get(index).map(|it| it.config.nqn.clone()).unwrap_or_default()
                }
            };
            ControllerView {
                subsystem,
                cntlid: one.cntlid,
                host: one.host.nqn.clone(),
                host_id: one.host.id,
                address: one.host.address,
                queues: one.io.iter().flatten().count(),
                kato: one.kato,
                connected: one.connected,
                proof: one.proof,
            }
        })
    }

    /// The state of an ANA group of a subsystem.
    pub fn ana_state(&self, subsystem: &str, group: u32) -> Option<AnaState> {
        let found = self.subsystems.iter().find(|(_, one)| one.config.nqn == subsystem);
        found.map(|(_, one)| one.group(group))
    }
}

/// Finds the volume of a namespace, and keeps it from being removed.
fn back(config: &NamespaceConfig, volumes: &Volumes) -> Result<Backing, Absent> {
    let volume = volumes.find(&config.volume).ok_or(Absent::NoVolume)?;
    let geometry = volumes.geometry(volume).ok_or(Absent::NoVolume)?;
    let counts = volumes.open_counts(volume).ok_or(Absent::NoVolume)?;
    let block = config.block_size.unwrap_or(geometry.logical_block);
    if !matches!(block, 512 | 4096) || block < geometry.logical_block {
        return Err(Absent::BlockSize);
    }
    // Hosts of both protocols may write: this counts as an open, and does not exclude other writers.
    let hold = counts.open(None).map_err(|_| Absent::Retired)?;
    let persists = volumes.persists_reservations(volume);
    Ok(Backing { volume, geometry, block, hold: Arc::new(hold), persists })
}
