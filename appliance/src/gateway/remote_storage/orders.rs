//! Executes management orders for remote volumes, their sessions, and mirrors.

use super::read_benchmark::Reading;
use super::{Reconnecting, RemoteStorage};
use crate::config::{Config, Mirror, Remote, RemoteKind};
use crate::console::{Managed, Progress};
use crate::families::{self, MEASURE, OfMeasure};
use crate::gateway::plane::DataPlane;
use crate::gateway::storage::Storage;
use drivers::hal::Hold;
use management::orders::{MirrorOrder, Reads, RemotePathOrder, SessionOrder};
use provider_set::ProviderSet;
use storage::volume::VolumeId;
use verbs::Ctx;

const NO_PROVIDER: &str =
    "there is no RDMA provider: no network interface, or `roce.enabled` is false";

/// The remote storage, if there is one.
type Held = Option<Box<RemoteStorage>>;

/// Runs `add` with the remote storage, which is created if there is none, and dropped if it is unused then.
fn add_to<T>(held: &mut Held, add: impl FnOnce(&mut RemoteStorage) -> T) -> T {
    let added = add(held.get_or_insert_default());
    held.take_if(|remote_storage| remote_storage.is_unused());
    added
}

impl DataPlane {
    /// The remote storage, the storage, and the context of RDMA clients. None without an RDMA provider.
    fn remote_parts(&mut self) -> Option<(&mut Held, &mut Storage, Ctx<'_, ProviderSet>)> {
        let provider = &mut self.rdma_stack.as_mut()?.providers;
        let (arena, now, rng) = (&mut self.arena, self.now, &mut *self.rng);
        let ctx = Ctx { provider, arena, now, rng };
        Some((&mut self.users.remote_storage, &mut self.storage, ctx))
    }

    /// Assembles the mirrors, and applies the exports, of volumes that were added to the storage.
    pub(in crate::gateway) fn use_new_volumes(&mut self, config: &Config) {
        let DataPlane { users, storage, arena, now, .. } = self;
        if !config.mirror.is_empty() {
            add_to(&mut users.remote_storage, |one| one.add_mirrors(config, storage, arena, *now));
        }
        storage.apply_exports(config);
    }

    /// Adds a configured remote volume.
    pub(in crate::gateway) fn add_remote(
        &mut self,
        remote: &Remote,
        config: &Config,
    ) -> Result<(), String> {
        if remote.kind != RemoteKind::Rnbd {
            return self.storage.add_tcp_remote(remote, &mut self.arena);
        }
        let (held, storage, mut ctx) = self.remote_parts().ok_or(NO_PROVIDER)?;
        add_to(held, |remote_storage| {
            let added = remote_storage.add_remote(remote, config, storage, &mut ctx).map(drop);
            added.inspect_err(|_| {
                remote_storage.remove_remote(remote.name.as_str(), storage, &mut ctx);
            })
        })
    }

    /// Removes a remote volume.
    pub(in crate::gateway) fn remove_remote(&mut self, name: &str) {
        let now = self.now;
        if self.storage.remove_tcp_remote(name, now) {
            return;
        }
        if let Some((Some(remote_storage), storage, mut ctx)) = self.remote_parts() {
            remote_storage.remove_remote(name, storage, &mut ctx);
        }
    }

    /// Opens a device again, after the server has closed it, or to read its size.
    pub(in crate::gateway) fn remap(&mut self, volume: &str) -> Result<(), String> {
        if self.storage.remap_tcp_remote(volume, self.now) {
            return Ok(());
        }
        let remap = |plane: &mut DataPlane| {
            let (remote_storage, _, mut ctx) = plane.remote_parts()?;
            let sessions = &mut remote_storage.as_mut()?.sessions;
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
    ) -> Result<Managed, String> {
        let (remote_storage, _, mut ctx) = self.remote_parts().ok_or(NO_PROVIDER)?;
        let gone = || format!("there is no session {name:?}");
        let remote_storage = remote_storage.as_mut().ok_or_else(gone)?;
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
                if matches!(order, RemotePathOrder::Remove) {
                    session.forget_named(pair);
                }
                let transport = session.client.transport_mut();
                match order {
                    RemotePathOrder::Reconnect => {
                        transport.reconnect(id, &mut ctx);
                        let waits = Reconnecting::new(name, pair, ctx.now);
                        remote_storage.reconnecting = Some(waits);
                        return Ok(Managed::Started);
                    }
                    RemotePathOrder::Disconnect => transport.disconnect(id, &mut ctx),
                    RemotePathOrder::Remove => transport.remove_path(id, &mut ctx),
                    RemotePathOrder::Reset => transport.reset_stats(id),
                };
            }
        }
        Ok(Managed::Told(String::new()))
    }

    /// The result of a reconnect, once it is known.
    pub(in crate::gateway) fn poll_reconnecting(&mut self) -> Option<Progress> {
        let remote_storage = self.users.remote_storage.as_mut()?;
        let waits = remote_storage.reconnecting.as_ref()?;
        let session = remote_storage.sessions.iter().find(|one| one.name() == waits.session());
        let path = session.and_then(|one| one.path_between(waits.path().from, waits.path().to));
        let result = waits.result(path.as_ref(), self.now)?;
        remote_storage.reconnecting = None;
        Some(Progress::Done(result))
    }

    /// Starts `remote read` of a remote volume or a mirror.
    pub(in crate::gateway) fn read(&mut self, name: &str, reads: Reads) -> Result<Managed, String> {
        if !MEASURE {
            return Err(families::missing("measure"));
        }
        let volumes = &self.storage.volumes;
        let id = volumes.find(name).ok_or_else(|| format!("there is no volume {name:?}"))?;
        let is_over_tcp = self.storage.tcp_remotes.has(name);
        if is_over_tcp && self.rdma_stack.is_some() {
            self.users.remote_storage.get_or_insert_default();
        }
        let remote_storage = self.users.remote_storage.as_mut();
        let remote_storage = remote_storage.ok_or("no volume is from another server")?;
        let ours = is_over_tcp
            || remote_storage.find_device(name).is_some()
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
        let slot = &mut self.users.remote_storage.as_mut()?.reading;
        let result = slot.as_ref()?.result(self.now)?;
        let reading = slot.take()?;
        self.arena.free(reading.memory);
        Some(result)
    }

    /// Ends `mirror remove` once the mirror is idle.
    pub(in crate::gateway) fn poll_ending(&mut self, config: &Config) -> Option<Progress> {
        let remote_storage = self.users.remote_storage.as_mut()?;
        let name = self.storage.dissolving.take()?;
        if !remote_storage.end_mirror(&name, &mut self.storage, &mut self.arena) {
            self.storage.dissolving = Some(name);
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
        self.join_volumes(mirror, Some(uuid))
    }

    /// Assembles a configured mirror of two volumes, which keep their data. Fails if anything uses one of them.
    pub(in crate::gateway) fn assemble_mirror(&mut self, mirror: &Mirror) -> Result<(), String> {
        let (name, volumes) = (mirror.name.as_str(), &self.storage.volumes);
        let held = self.users.remote_storage.as_ref();
        let mirrors = || held.iter().flat_map(|one| &one.mirrors);
        if volumes.find(name).is_some() {
            return Err(format!("a volume has the name {name}"));
        }
        for member in mirror.members.iter().map(|member| member.as_str()) {
            if self.storage.is_coming(member) {
                return Err(format!("volume {member} is being created"));
            }
            let is_member = |members: &[String; 2]| members.iter().any(|one| one == member);
            if let Some(other) = mirrors().find(|other| is_member(&other.members)) {
                return Err(format!("{member} is a member of mirror {}", other.name));
            }
            let volume = volumes.find(member).and_then(|id| volumes.get(id));
            let volume = volume.ok_or_else(|| format!("there is no volume {member}"))?;
            if !volume.is_idle() {
                return Err(format!("{member} has requests in flight"));
            }
        }
        self.join_volumes(mirror, None)
    }

    /// Makes a mirror of two volumes that no core uses: a new one with a `uuid`.
    fn join_volumes(&mut self, mirror: &Mirror, uuid: Option<[u8; 16]>) -> Result<(), String> {
        let storage = &mut self.storage;
        let find = |name: &str| storage.volumes.find(name);
        let members: Vec<(VolumeId, String)> = mirror
            .members
            .iter()
            .filter_map(|m| Some((find(m.as_str())?, m.to_string())))
            .collect();
        let retired = members.iter().try_for_each(|(id, name)| storage.retire_volume(*id, name));
        let made = retired.and_then(|()| {
            add_to(&mut self.users.remote_storage, |remote_storage| {
                remote_storage.add_mirror(mirror, uuid, storage, &mut self.arena, self.now)
            })
        });
        made.inspect_err(|_| {
            let left = members.iter().filter_map(|(id, _)| storage.volumes.open_counts(*id));
            left.for_each(|counts| counts.keep());
        })
    }

    /// Creates a mirror anew whose members do not belong to one mirror.
    pub(in crate::gateway) fn remake_mirror(&mut self, mirror: &Mirror) -> Result<(), String> {
        let name = mirror.name.as_str();
        let ended = self.users.remote_storage.as_mut().is_none_or(|remote_storage| {
            remote_storage.end_mirror(name, &mut self.storage, &mut self.arena)
        });
        if !ended {
            return Err(format!("{name} is busy; try again"));
        }
        let volumes = &self.storage.volumes;
        let missing = mirror.members.iter().find(|name| volumes.find(name.as_str()).is_none());
        let uuid = missing.is_none().then(|| self.new_uuid());
        add_to(&mut self.users.remote_storage, |remote_storage| {
            remote_storage.add_mirror(mirror, uuid, &mut self.storage, &mut self.arena, self.now)
        })?;
        missing.map_or(Ok(()), |missing| Err(format!("there is no volume {:?}", missing.as_str())))
    }

    /// Executes an order on a mirror, and makes the next round poll it.
    pub(in crate::gateway) fn order_mirror(
        &mut self,
        mirror: &str,
        order: MirrorOrder,
    ) -> Result<(), String> {
        let now = self.now;
        let remote_storage = self.users.remote_storage.as_mut();
        let found = remote_storage.and_then(|remote_storage| {
            remote_storage.tend_due = Some(now);
            remote_storage.mirrors.iter().find(|one| one.name == mirror)
        });
        let slot = found.ok_or_else(|| format!("there is no mirror {mirror:?}"))?;
        let mut detached = slot.detached.get();
        match order {
            MirrorOrder::Force => return slot.force(),
            MirrorOrder::Grow => slot.growing.set(true),
            MirrorOrder::End(ends) => slot.ending.set(ends),
            MirrorOrder::Detach(member) => detached[member] = true,
            MirrorOrder::Attach(member) => detached[member] = false,
        }
        slot.detached.set(detached);
        Ok(())
    }

    /// Dissolves a mirror that has no requests in flight.
    pub(in crate::gateway) fn dissolve_mirror(&mut self, name: &str) -> Result<(), String> {
        let Some(held) = &mut self.users.remote_storage else { return Ok(()) };
        match held.end_mirror(name, &mut self.storage, &mut self.arena) {
            true => Ok(()),
            false => Err("requests are in flight".into()),
        }
    }

    /// Starts to dissolve a mirror.
    pub(in crate::gateway) fn rest_mirror(&mut self, name: &str) {
        let Some(remote_storage) = &mut self.users.remote_storage else { return };
        let slot = remote_storage.mirrors.iter().find(|mirror| mirror.name == name);
        slot.inspect(|slot| slot.ending.set(true));
        self.storage.dissolving = Some(name.into());
    }
}
