//! Mirrors of two volumes: assembled from the configuration, or created from the console.

use super::{RemoteStorage, TEND_INTERVAL};
use crate::config::{self, Config, Size};
use crate::families::{self, MIRROR, OfMirror};
use crate::gateway::queue_depth::Offered;
use crate::gateway::storage::{Storage, name};
use core::cell::Cell;
use core::time::Duration;
use drivers::hal::{Arena, Geometry, Hold, Instant, Window};
use management::status::MirrorStatus;
use std::rc::Rc;
use storage::rnbd::client::Losses;
use storage::volume::mirror::{MemberState, Mirror, MirrorState, Status};
use storage::volume::{Completion, Parts, Request, Submitted, Volume, VolumeError};

/// Time for members to come up one after the other at a start, before a warning.
const GRACE: Duration = Duration::from_secs(5);
/// Memory for data in flight to members of a mirror with a local disk.
const BUFFERS: usize = 2 << 20;

/// State of a mirror beside its volume.
pub(in crate::gateway) struct MirrorSlot {
    pub name: String,
    /// Names of the members.
    pub members: [String; 2],
    pub status: Rc<Cell<Status>>,
    /// Set to run on the one readable member.
    pub forced: Rc<Cell<bool>>,
    /// Set to finish all operations, so that the mirror can be dissolved.
    pub ending: Rc<Cell<bool>>,
    /// Set to grow to the size of its members.
    pub growing: Rc<Cell<bool>>,
    /// Members that the operator has detached.
    pub detached: Rc<Cell<[bool; 2]>>,
    /// Status that was logged last.
    logged: Status,
    /// State, since when, and whether it was logged.
    state: Option<(MirrorState, Instant, bool)>,
    /// Since when each member is out of sync after it was left out.
    out_since: [Option<Instant>; 2],
}

impl MirrorSlot {
    /// Status for reports.
    pub fn status(&self) -> MirrorStatus<'_> {
        let (status, out_since, detached) =
            (self.status.get(), self.out_since, self.detached.get());
        MirrorStatus { name: &self.name, members: &self.members, status, out_since, detached }
    }

    /// Advice if the members do not belong to one mirror.
    pub fn how_to_make(&self) -> String {
        let (mirror, [first, second]) = (&self.name, &self.members);
        format!("`mirror create {mirror} {first} {second} force` makes {second} a copy of {first}")
    }

    /// Makes it run on the one readable member.
    pub fn force(&self) -> Result<(), String> {
        match self.status.get().state {
            MirrorState::Alone => self.forced.set(true),
            MirrorState::Running => return Err("it runs, so there is nothing to force".into()),
            MirrorState::Waiting => return Err("no member can be read yet".into()),
            MirrorState::Strangers => {
                return Err(format!("{}; {}", MirrorState::Strangers, self.how_to_make()));
            }
        }
        Ok(())
    }

    /// Logs changes.
    pub fn log_changes(&mut self, at: Instant) {
        let (now, logged) = (self.status.get(), self.logged);
        self.log_state(at, &now);
        self.log_silence(at, &now);
        self.log_growth(&now);
        for n in 0..2 {
            if now.members[n] != logged.members[n] {
                let (mirror, member) = (&self.name, &self.members[n]);
                let (state, lag) = (now.members[n].as_str(), Size(now.stale_bytes));
                match (now.members[n], now.why[n], self.out_since[n]) {
                    (MemberState::Out, Some(why), _) => log::warn!(
                        "mirror {mirror}: {member} is left out: {why}; {lag} may differ so far"
                    ),
                    (MemberState::Out, None, _) => log::warn!(
                        "mirror {mirror}: {member} is out: it was left out before the start, or cannot be \
                         read; {lag} may differ so far"
                    ),
                    (MemberState::Syncing, ..) => {
                        log::info!("mirror {mirror}: {member} is {state}: {lag} to copy");
                    }
                    (MemberState::InSync, _, Some(since)) => {
                        let seconds = at.since(since).as_secs();
                        log::info!("mirror {mirror}: {member} is {state}, after {seconds} s");
                    }
                    _ => log::info!("mirror {mirror}: {member} is {state}"),
                }
                self.out_since[n] = match now.members[n] {
                    MemberState::Out => now.since[n],
                    MemberState::Syncing => self.out_since[n],
                    MemberState::InSync | MemberState::Unknown => None,
                };
            }
        }
        self.logged = now;
    }

    /// Logs the end of a growth.
    fn log_growth(&self, now: &Status) {
        let (name, bytes) = (&self.name, now.sectors.saturating_mul(512));
        if self.logged.sectors > 0 && now.sectors > self.logged.sectors {
            log::info!("mirror {name}: grew to {}", Size(bytes));
        } else if self.logged.grows && !now.grows {
            log::warn!(
                "mirror {name}: did not grow, because a member failed or was left out: repeat `mirror grow {name}` \
                 when both are in sync"
            );
        }
    }

    /// Logs the state. A missing member is logged only after [`GRACE`], because members may come up one after the
    /// other.
    fn log_state(&mut self, at: Instant, now: &Status) {
        let (state, since, logged) = self.state.unwrap_or((now.state, at, false));
        let (since, logged) = if state == now.state { (since, logged) } else { (at, false) };
        let name = &self.name;
        let due = match now.state {
            MirrorState::Strangers | MirrorState::Running => true,
            MirrorState::Waiting | MirrorState::Alone => at.since(since) >= GRACE,
        };
        if due && !logged {
            match now.state {
                MirrorState::Running => log::info!("mirror {name}: {now}"),
                MirrorState::Strangers => {
                    log::warn!("mirror {name}: {now}; {}", self.how_to_make());
                }
                MirrorState::Alone => log::warn!(
                    "mirror {name}: {now}; `mirror force {name}` runs on the present member"
                ),
                MirrorState::Waiting => {
                    log::warn!("mirror {name}: {now}: no member could be read so far");
                }
            }
        }
        self.state = Some((now.state, since, logged || due));
    }

    /// Logs silent members without which the mirror cannot run.
    fn log_silence(&self, at: Instant, now: &Status) {
        for n in 0..2 {
            let (mirror, member) = (&self.name, &self.members[n]);
            match (self.logged.silent[n], now.silent[n]) {
                (None, Some(_)) => log::warn!(
                    "mirror {mirror}: {member} does not answer, and the mirror cannot run without it: requests \
                     wait"
                ),
                (Some(since), None) if now.members[n] != MemberState::Out => {
                    let seconds = at.since(since).as_secs();
                    log::info!("mirror {mirror}: {member} answers again, after {seconds} s");
                }
                _ => {}
            }
        }
    }
}

/// A missing member: its disk is missing, or has no volume of that name.
struct Missing;

impl Volume for Missing {
    fn geometry(&self) -> Geometry {
        Geometry::ABSENT
    }
    fn submit(&mut self, _: &Request) -> Result<Submitted, VolumeError> {
        Err(VolumeError::Io)
    }
    fn flush_queue(&mut self) {}
    fn poll(&mut self) -> Option<Completion> {
        None
    }
    fn is_idle(&self) -> bool {
        true
    }
    fn releases_memory(&self) -> bool {
        true
    }
}

impl RemoteStorage {
    /// Assembles the configured mirrors that do not exist yet. Failures are logged.
    pub(super) fn add_mirrors(
        &mut self,
        config: &Config,
        storage: &mut Storage,
        arena: &mut Arena,
        now: Instant,
    ) {
        for mirror in &config.mirror {
            let there = storage.volumes.find(mirror.name.as_str()).is_some();
            // Wait for members that are being created, or that a client or another mirror has.
            let waits = |member: &str| storage.is_coming(member) || self.is_taken(member, storage);
            if there || mirror.members.iter().any(|member| waits(member.as_str())) {
                continue;
            }
            if let Err(why) = self.add_mirror(mirror, None, storage, arena, now) {
                log::error!("mirror {}: {why}", mirror.name);
            }
        }
    }

    /// Whether a client has a volume open, or a mirror has it as a member.
    fn is_taken(&self, volume: &str, storage: &Storage) -> bool {
        let counts = storage.volumes.find(volume).and_then(|id| storage.volumes.open_counts(id));
        let mut mirrors = self.mirrors.iter();
        counts.is_some_and(|counts| counts.count() > 0)
            || mirrors.any(|mirror| mirror.members.iter().any(|member| member == volume))
    }

    /// Makes a mirror of two unused volumes of `storage`. With a `uuid` it is a new one, and the second member becomes a copy of the
    /// first.
    pub(super) fn add_mirror(
        &mut self,
        mirror: &config::Mirror,
        uuid: Option<[u8; 16]>,
        storage: &mut Storage,
        arena: &mut Arena,
        now: Instant,
    ) -> Result<(), String> {
        if !MIRROR {
            return Err(families::missing("mirror"));
        }
        let mirror_name = name(&mirror.name)?;
        let members: Vec<String> = mirror.members.iter().map(ToString::to_string).collect();
        let Ok(members) = <[String; 2]>::try_from(members) else {
            return Err("a mirror has two members".into());
        };
        let memory = mirror_memory(&members, storage, arena)?;
        let volumes = [0, 1].map(|n| self.take_member(mirror, &members[n], storage));
        let volume = match uuid {
            Some(uuid) => Mirror::create(volumes, memory, uuid),
            None => Mirror::assemble(volumes, memory),
        };
        let clock = self.clock.clone();
        clock.set(now);
        let volume = volume.with_timeout(clock, Duration::from_millis(mirror.timeout_ms.into()));
        let (status, forced, ending) = (volume.status(), volume.forced(), volume.ending());
        let (growing, detached) = (volume.growing(), volume.detached());
        storage.volumes.add(mirror_name, Box::new(volume)).ok_or("the name is taken")?;
        let (name, logged) = (mirror.name.to_string(), Status::default());
        let (state, out_since) = (None, [None; 2]);
        let slot = MirrorSlot {
            name,
            members,
            status,
            forced,
            ending,
            growing,
            detached,
            logged,
            state,
            out_since,
        };
        self.mirrors.extend(OfMirror::hold(|| slot));
        self.tend_due.get_or_insert(now + TEND_INTERVAL / 10);
        Ok(())
    }

    /// Dissolves a mirror without operations in flight: its members become volumes of their own. False if it is not
    /// idle.
    pub(super) fn end_mirror(
        &mut self,
        mirror: &str,
        storage: &mut Storage,
        arena: &mut Arena,
    ) -> bool {
        let volumes = &mut storage.volumes;
        let Some(id) = volumes.find(mirror) else { return true };
        if volumes.get(id).is_some_and(|volume| !volume.is_idle()) {
            return false;
        }
        let Some(volume) = volumes.remove(id) else { return true };
        let Parts { memory, members, .. } = volume.into_parts();
        memory.into_iter().for_each(|memory| arena.free(memory));
        let place = self.mirrors.iter().position(|one| one.name == mirror);
        let Some(place) = place else { return true };
        let slot = self.mirrors.remove(place);
        for (member, mut volume) in slot.members.iter().zip(members) {
            volume.has_another_copy(false);
            let mut sessions = self.sessions.iter_mut();
            let mut device = sessions.find_map(|s| s.device(member).map(|device| (s, device.id)));
            if let Some((session, device)) = &mut device {
                session.client.tell_losses(*device, Losses::ToFlush);
            }
            // Not a member that is missing.
            let is_over_tcp = storage.tcp_remotes.has(member);
            if (device.is_some() || is_over_tcp || volume.geometry().sectors > 0)
                && let Ok(name) = name(member)
            {
                volumes.add(name, volume);
            }
        }
        true
    }

    fn take_member(
        &mut self,
        mirror: &config::Mirror,
        member: &str,
        storage: &mut Storage,
    ) -> Box<dyn Volume> {
        for session in &mut self.sessions {
            if let Some(device) = session.device(member) {
                session.client.tell_losses(device.id, Losses::ToAll);
            }
        }
        let id = storage.volumes.find(member);
        let volume = id.and_then(|id| storage.volumes.remove(id)).map(|mut volume| {
            volume.has_another_copy(true);
            volume
        });
        volume.unwrap_or_else(|| {
            log::error!("mirror {}: there is no volume {member}", mirror.name);
            Box::new(Missing)
        })
    }
}

/// Allocates memory for a mirror of these volumes. Requests to disks cannot be recalled, so their data needs memory
/// of its own.
fn mirror_memory(
    members: &[String; 2],
    storage: &Storage,
    arena: &mut Arena,
) -> Result<Window, String> {
    let keeps_memory = |member: &String| {
        let volume = storage.volumes.find(member).and_then(|id| storage.volumes.get(id));
        volume.is_some_and(|volume| !volume.releases_memory())
    };
    // The largest request is a chunk, or a request of `remote read`.
    let chunk = storage.offered.map_or(0, Offered::chunk_size);
    let mut buffers = match members.iter().any(keeps_memory) {
        true => BUFFERS.max(2 * chunk),
        false => 0,
    };
    let least = chunk.max(BUFFERS / 2).min(buffers);
    loop {
        match arena.alloc(Mirror::MEMORY + buffers, 4096) {
            Some(memory) => return Ok(memory),
            None if buffers > least => buffers = (buffers / 2).max(least),
            None => break,
        }
    }
    let wanted = Size((Mirror::MEMORY + least) as u64);
    Err(format!("no {wanted} of memory are free in one piece; `show memory` shows the free memory"))
}
