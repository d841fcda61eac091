//! Executes management orders for remote volumes, their sessions, and mirrors.

use super::read_benchmark::Reading;
use crate::config::{Config, Mirror, Remote};
use crate::console::{Managed, Progress};
use crate::families::{self, MEASURE, OfMeasure};
use crate::gateway::plane::DataPlane;
use drivers::hal::Hold;
use management::orders::{MirrorOrder, Reads, RemotePathOrder, SessionOrder};
use provider_set::ProviderSet;
use storage::volume::VolumeId;
use verbs::EngineContext;

const NO_PROVIDER: &str =
    "there is no RDMA provider: no network interface, or `roce.enabled` is false";

impl DataPlane {
    /// The storage, and the context of its RDMA clients.
    fn storage_with_context(
        &mut self,
    ) -> Option<(&mut super::Storage, EngineContext<'_, ProviderSet>)> {
        let provider = &mut self.rdma_stack.as_mut()?.providers;
        let (arena, now, rng) = (&mut self.arena, self.now, &mut *self.rng);
        Some((&mut self.storage, EngineContext { provider, arena, now, rng }))
    }

    /// Adds a configured remote volume.
    pub(in crate::gateway) fn add_remote(
        &mut self,
        remote: &Remote,
        config: &Config,
    ) -> Result<(), String> {
        let (storage, mut ctx) = self.storage_with_context().ok_or(NO_PROVIDER)?;
        storage.add_remote(remote, config, &mut ctx).map(drop).inspect_err(|_| {
            storage.remove_remote(remote.name.as_str(), &mut ctx);
        })
    }

    /// Removes a remote volume.
    pub(in crate::gateway) fn remove_remote(&mut self, name: &str) {
        if let Some((storage, mut ctx)) = self.storage_with_context() {
            storage.remove_remote(name, &mut ctx);
        }
    }

    /// Opens a device again, after the server has closed it, or to read its size.
    pub(in crate::gateway) fn remap(&mut self, volume: &str) -> Result<(), String> {
        let remap = |plane: &mut DataPlane| {
            let (storage, mut ctx) = plane.storage_with_context()?;
            let sessions = &mut storage.remote_storage.as_mut()?.sessions;
            sessions.iter_mut().find_map(|session| {
                let id = session.device(volume)?.id;
                session.client.remap(id, &mut ctx).then_some(())
            })
        };
        remap(self).ok_or_else(|| format!("there is no remote volume {volume:?}"))
    }

    /// Executes an order on the session `name`.
    pub(in crate::gateway) fn order_session(
        &mut self,
        name: &str,
        order: SessionOrder,
    ) -> Result<(), String> {
        let (storage, mut ctx) = self.storage_with_context().ok_or(NO_PROVIDER)?;
        let gone = || format!("there is no session {name:?}");
        let remote_storage = storage.remote_storage.as_mut().ok_or_else(gone)?;
        remote_storage.resolve_due = Some(ctx.now);
        let session = remote_storage.sessions.iter_mut().find(|session| session.name() == name);
        let session = session.ok_or_else(gone)?;
        match order {
            SessionOrder::AddPath(pair) => {
                session.add_path(pair, &mut ctx).map_err(|why| why.to_string())?;
            }
            SessionOrder::Attempts(attempts) => {
                session.max_reconnect_attempts = attempts.0;
                session.client.transport_mut().set_max_reconnect_attempts(attempts.0);
            }
            SessionOrder::Policy(policy) => session.client.transport_mut().set_policy(policy.0),
            SessionOrder::Path(pair, order) => {
                let path = session.path_between(pair.from, pair.to);
                let id = path.ok_or_else(|| format!("there is no path {pair}"))?.id;
                let transport = session.client.transport_mut();
                match order {
                    RemotePathOrder::Reconnect => transport.reconnect(id, &mut ctx),
                    RemotePathOrder::Disconnect => transport.disconnect(id, &mut ctx),
                    RemotePathOrder::Remove => transport.remove_path(id, &mut ctx),
                    RemotePathOrder::Reset => transport.reset_stats(id),
                };
            }
        }
        Ok(())
    }

    /// Starts `remote read` of a remote volume or a mirror.
    pub(in crate::gateway) fn read(&mut self, name: &str, reads: Reads) -> Result<Managed, String> {
        if !MEASURE {
            return Err(families::missing("measure"));
        }
        let volumes = &self.storage.volumes;
        let id = volumes.find(name).ok_or_else(|| format!("there is no volume {name:?}"))?;
        let remote_storage = self.storage.remote_storage.as_mut();
        let remote_storage = remote_storage.ok_or("no volume is from another server")?;
        let ours = remote_storage.find_device(name).is_some()
            || remote_storage.mirrors.iter().any(|mirror| mirror.name == name);
        let volume = volumes.get(id).filter(|_| ours);
        let volume =
            volume.ok_or_else(|| format!("{name} is neither a remote volume nor a mirror"))?;
        if remote_storage.reading.is_some() {
            return Err("another `remote read` is running".into());
        }
        let reading = Reading::start(id, volume, reads, &mut self.arena, self.now)?;
        remote_storage.reading = OfMeasure::hold(|| reading);
        Ok(Managed::Started)
    }

    /// Ends a finished `remote read`. Returns its result.
    pub(in crate::gateway) fn poll_reading(&mut self) -> Option<Progress> {
        let slot = &mut self.storage.remote_storage.as_mut()?.reading;
        let result = slot.as_ref()?.result(self.now)?;
        let reading = slot.take()?;
        self.arena.free(reading.memory);
        Some(result)
    }

    /// Ends `mirror remove` once the mirror is idle.
    pub(in crate::gateway) fn poll_ending(&mut self, config: &Config) -> Option<Progress> {
        let name = self.storage.remote_storage.as_mut()?.ending.take()?;
        if !self.storage.end_mirror(&name, &mut self.arena) {
            self.storage.remote_storage.as_mut()?.ending = Some(name);
            return None;
        }
        self.storage.apply_exports(config);
        Some(Progress::Done(Ok("in force now; `save` keeps it".into())))
    }

    fn new_uuid(&mut self) -> [u8; 16] {
        let mut uuid = [0; 16];
        self.rng.fill_bytes(&mut uuid);
        uuid
    }

    /// Creates a mirror of two volumes. Fails if any core uses one of them.
    pub(in crate::gateway) fn make_mirror(&mut self, mirror: &Mirror) -> Result<(), String> {
        let uuid = self.new_uuid();
        let storage = &mut self.storage;
        let find = |name: &str| storage.volumes.find(name);
        let members: Vec<(VolumeId, String)> = mirror
            .members
            .iter()
            .filter_map(|m| Some((find(m.as_str())?, m.to_string())))
            .collect();
        let retired = members.iter().try_for_each(|(id, name)| storage.retire_volume(*id, name));
        let made = retired
            .and_then(|()| storage.add_mirror(mirror, Some(uuid), &mut self.arena, self.now));
        made.inspect_err(|_| {
            let left = members.iter().filter_map(|(id, _)| storage.volumes.open_counts(*id));
            left.for_each(|counts| counts.keep());
        })
    }

    /// Creates a mirror anew whose members do not belong to one mirror.
    pub(in crate::gateway) fn remake_mirror(&mut self, mirror: &Mirror) -> Result<(), String> {
        let name = mirror.name.as_str();
        if !self.storage.end_mirror(name, &mut self.arena) {
            return Err(format!("{name} is busy; try again"));
        }
        let volumes = &self.storage.volumes;
        let missing = mirror.members.iter().find(|name| volumes.find(name.as_str()).is_none());
        let uuid = missing.is_none().then(|| self.new_uuid());
        self.storage.add_mirror(mirror, uuid, &mut self.arena, self.now)?;
        missing.map_or(Ok(()), |missing| Err(format!("there is no volume {:?}", missing.as_str())))
    }

    /// Executes an order on a mirror, and makes the next round poll it.
    pub(in crate::gateway) fn order_mirror(
        &mut self,
        mirror: &str,
        order: MirrorOrder,
    ) -> Result<(), String> {
        let now = self.now;
        let remote_storage = self.storage.remote_storage.as_mut();
        let found = remote_storage.and_then(|remote_storage| {
            remote_storage.tend_due = Some(now);
            remote_storage.mirrors.iter().find(|one| one.name == mirror)
        });
        let slot = found.ok_or_else(|| format!("there is no mirror {mirror:?}"))?;
        let mut detached = slot.detached.get();
        match order {
            MirrorOrder::Force => return slot.force(),
            MirrorOrder::Grow => slot.growing.set(true),
            MirrorOrder::Detach(member) => detached[member] = true,
            MirrorOrder::Attach(member) => detached[member] = false,
        }
        slot.detached.set(detached);
        Ok(())
    }

    /// Starts to dissolve a mirror.
    pub(in crate::gateway) fn rest_mirror(&mut self, name: &str) {
        let Some(remote_storage) = &mut self.storage.remote_storage else { return };
        let slot = remote_storage.mirrors.iter().find(|mirror| mirror.name == name);
        slot.inspect(|slot| slot.ending.set(true));
        remote_storage.ending = Some(name.into());
    }
}
