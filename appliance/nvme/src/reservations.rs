//! Reservations (Base Specification, sections 7.2 to 7.5 and 8.19; Linux: drivers/nvme/target/pr.c). Those of a
//! namespace are those of its volume: they hold in all subsystems, over RNBD, and when the namespace is away.
//!
//! A change that is kept through a power loss is answered when it is on the disk; commands for the same volume wait for
//! that in order of arrival.

use crate::command::{Command, Outcome, io};
use crate::controller::Of;
use crate::parts::reachable;
use crate::queue::{QueueId, Role};
use crate::request::State;
use crate::rounds::{BUDGET, MANY};
use crate::status::Status;
use crate::target::{Context, Target};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use drivers::hal::Window;
use storage::volume::reservation::{
    self, Effect, HostId, Kind, Notice, Refused, Registrant, Reservations, Stored,
};
use storage::volume::{Hold, VolumeId};

const NOTIFICATION_MASK: u8 = 0x82;
const PERSISTENCE: u8 = 0x83;
/// Namespace identifier that stands for all namespaces.
const ALL: u32 = u32::MAX;
/// Report: the extended form, with host identifiers of 128 bits.
const EXTENDED: u32 = 1;
/// Bytes of the extended report's header, and of a registrant in it.
const REPORTED: u64 = 64;

/// Whether an opcode of I/O queues is one of reservations.
pub fn is_command(opcode: u8) -> bool {
    use io::*;
    matches!(
        opcode,
        RESERVATION_REGISTER | RESERVATION_REPORT | RESERVATION_ACQUIRE | RESERVATION_RELEASE
    )
}

/// Whether a feature is one of reservations.
pub fn is_feature(feature: u8) -> bool {
    matches!(feature, NOTIFICATION_MASK | PERSISTENCE)
}

/// A change of reservations, and what follows from it.
#[derive(Debug)]
struct Change {
    volume: VolumeId,
    /// Its request.
    by: (QueueId, u16),
    notices: Vec<(HostId, Notice)>,
    /// Hosts whose commands are to be aborted.
    aborted: Vec<HostId>,
    /// The volume is not removed before the change is on its disk.
    _hold: Arc<Hold>,
}

/// A command that waits until a volume has ended the commands of preempted hosts.
#[derive(Debug)]
struct Abort {
    by: (QueueId, u16),
    executing: Vec<(QueueId, u16)>,
}

/// Commands on reservations that are not answered at once.
#[derive(Debug, Default)]
pub(crate) struct Reserving {
    /// Changes that are being written, one for a volume at most.
    changes: Vec<Change>,
    /// By volume: commands that wait for such a change, in order of arrival.
    waiting: Vec<(VolumeId, VecDeque<(QueueId, u16)>)>,
    aborts: Vec<Abort>,
    /// Waiting commands may continue.
    is_due: bool,
}

impl Reserving {
    /// Whether commands wait for their turn only.
    pub fn is_due(&self) -> bool {
        self.is_due
    }

    /// A queue is closed: none of its commands waits for aborts any more.
    pub fn forget(&mut self, id: QueueId) {
        self.aborts.retain(|abort| abort.by.0 != id);
    }

    /// Number of commands that wait for aborts.
    #[cfg(test)]
    pub fn waits(&self) -> usize {
        self.aborts.len()
    }

    fn waiting_for(&mut self, volume: VolumeId) -> &mut VecDeque<(QueueId, u16)> {
        let place = self.waiting.iter().position(|(of, _)| *of == volume);
        let place = place.unwrap_or_else(|| {
            self.waiting.push((volume, VecDeque::new()));
            self.waiting.len() - 1
        });
        &mut self.waiting[place].1
    }
}

/// What a command asks for.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    command: Option<reservation::Command>,
    /// Whether reservations are kept through a power loss; None for no change.
    persist: Option<bool>,
    /// Commands of preempted hosts are aborted.
    aborts: bool,
}

impl Wanted {
    /// Whether the host only gives up what it has.
    fn gives_up(&self) -> bool {
        use reservation::Command::{Release, Replace, Unregister};
        matches!(self.command, Some(Unregister { .. } | Replace { key: 0, .. } | Release { .. }))
    }
}

/// Reads the fields of a command, and its data.
fn parse(command: &Command, data: &Window) -> Result<Wanted, Status> {
    use reservation::Command as Wish;
    let fields = command.u32(40);
    let (action, ignores_key) = (fields & 7, fields & 1 << 3 != 0);
    let kind = (fields >> 8) as u8;
    let key = |at| match data.read_array(at) {
        Ok(bytes) => Ok(u64::from_le_bytes(bytes)),
        Err(_) => Err(Status::SGL_LENGTH),
    };
    let mut wanted = Wanted::default();
    let current = key(0)?;
    wanted.command = Some(match (command.opcode(), action) {
        (io::RESERVATION_REGISTER, 0..=2) => {
            wanted.persist = match fields >> 30 {
                0 => None,
                2 => Some(false),
                3 => Some(true),
                _ => return Err(Status::INVALID_FIELD),
            };
            let current = (!ignores_key).then_some(current);
            let key = key(8)?;
            match action {
                0 => Wish::Register { key },
                1 => Wish::Unregister { current },
                _ => Wish::Replace { current, key },
            }
        }
        // The key of a registrant that acquires or releases is always compared.
        _ if ignores_key => return Err(Status::INVALID_FIELD),
        (io::RESERVATION_ACQUIRE, 0..=2) => {
            let kind = Kind::of(kind).ok_or(Status::INVALID_FIELD)?;
            let key = key(8)?;
            wanted.aborts = action == 2;
            match action {
                0 => Wish::Acquire { current, kind },
                _ => Wish::Preempt { current, key, kind },
            }
        }
        (io::RESERVATION_RELEASE, 0) => Wish::Release { current, kind },
        (io::RESERVATION_RELEASE, 1) => Wish::Clear { current },
        _ => return Err(Status::INVALID_FIELD),
    });
    Ok(wanted)
}

impl Target {
    /// Executes a command on reservations.
    pub(crate) fn execute_reservation(
        &mut self,
        id: QueueId,
        slot: u16,
        controller: usize,
        command: &Command,
        ctx: &mut Context<'_>,
    ) {
        if command.opcode() == io::RESERVATION_REPORT {
            return self.report_reservations(id, slot, controller, command, ctx);
        }
        let Some(queue) = self.queue(id) else { return };
        let data = queue.request_mut(slot).window();
        let done = match parse(command, &data) {
            Ok(wanted) => self.reserve((id, slot), controller, command.nsid(), wanted, ctx),
            Err(status) => Err(status),
        };
        if let Err(status) = done {
            self.conclude((id, slot), Err(status));
        }
    }

    /// Executes Set Features and Get Features for a feature of reservations.
    pub(crate) fn reservation_feature(
        &mut self,
        id: QueueId,
        slot: u16,
        controller: usize,
        command: &Command,
        ctx: &mut Context<'_>,
    ) {
        let (nsid, value) = (command.nsid(), command.u32(44));
        let sets = command.opcode() == crate::command::admin::SET_FEATURES;
        let result = match (command.byte(40), sets) {
            (_, false) if command.byte(41) & 7 > 1 => Err(Status::INVALID_FIELD),
            (NOTIFICATION_MASK, true) => self.mask_notices(controller, nsid, value),
            (NOTIFICATION_MASK, false) => self.masked_notices(controller, nsid),
            (_, true) if value > 1 => Err(Status::INVALID_FIELD),
            (_, true) => {
                let wanted = Wanted { persist: Some(value == 1), ..Wanted::default() };
                match self.reserve((id, slot), controller, nsid, wanted, ctx) {
                    Ok(()) => return,
                    Err(status) => Err(status),
                }
            }
            (_, false) => self.reserved_volume(controller, nsid).map(|(volume, ..)| {
                Outcome::with(ctx.volumes.reservations(volume).persist().into())
            }),
        };
        self.finish(id, slot, result.unwrap_or_else(Outcome::from));
    }

    fn mask_notices(
        &mut self,
        controller: usize,
        nsid: u32,
        value: u32,
    ) -> Result<Outcome, Status> {
        if value & !0xe != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let subsystem = self.subsystem_of(controller).ok_or(Status::INTERNAL)?;
        let wanted = |one: &&crate::subsystem::Namespace| nsid == ALL || one.config.nsid == nsid;
        let nsids = subsystem.namespaces.iter().filter(wanted).map(|one| one.config.nsid);
        let nsids: Vec<u32> = nsids.collect();
        if nsids.is_empty() && nsid != ALL {
            return Err(Status::INVALID_NAMESPACE);
        }
        let one = self.controllers.get_mut(controller).ok_or(Status::INTERNAL)?;
        nsids.into_iter().for_each(|nsid| one.events.set_mask(nsid, value as u8));
        Ok(Outcome::SUCCESS)
    }

    fn masked_notices(&self, controller: usize, nsid: u32) -> Result<Outcome, Status> {
        let subsystem = self.subsystem_of(controller).ok_or(Status::INTERNAL)?;
        subsystem.namespace(nsid).ok_or(Status::INVALID_NAMESPACE)?;
        let one = self.controllers.get(controller).ok_or(Status::INTERNAL)?;
        Ok(Outcome::with(one.events.mask(nsid).into()))
    }

    /// Whether a host has a namespace read-only: it must not exclude those that write the volume.
    fn is_read_only(&self, controller: usize, nsid: u32) -> bool {
        let namespace = self.subsystem_of(controller).and_then(|it| it.namespace(nsid));
        namespace.is_some_and(|one| one.config.read_only)
    }

    /// The volume of a namespace, what keeps it, and whether it keeps reservations through a power loss.
    fn reserved_volume(
        &self,
        controller: usize,
        nsid: u32,
    ) -> Result<(VolumeId, Arc<Hold>, bool), Status> {
        let subsystem = self.subsystem_of(controller).ok_or(Status::INVALID_NAMESPACE)?;
        let (_, backing) = reachable(subsystem, nsid)?;
        Ok((backing.volume, backing.hold.clone(), backing.persists))
    }

    /// Changes the reservations of a namespace. The request is completed, or waits; an error completes it.
    fn reserve(
        &mut self,
        by: (QueueId, u16),
        controller: usize,
        nsid: u32,
        wanted: Wanted,
        ctx: &mut Context<'_>,
    ) -> Result<(), Status> {
        let host = self.controllers.get(controller).ok_or(Status::INTERNAL)?.host.id;
        let (volume, hold, persists) = self.reserved_volume(controller, nsid)?;
        if host == [0; 16] {
            return Err(Status::OPERATION_DENIED);
        }
        if !wanted.gives_up() && self.is_read_only(controller, nsid) {
            return Err(Status::WRITE_PROTECTED);
        }
        if ctx.volumes.is_persisting(volume) {
            self.await_reservation(by, volume);
            return Ok(());
        }
        let now = ctx.volumes.reservations(volume);
        let unchanged = || Effect { next: now.clone(), notices: Vec::new(), preempted: Vec::new() };
        let effect = match wanted.command {
            Some(command) => now.apply(&host, command),
            None => Ok(unchanged()),
        };
        let mut effect = match effect {
            Ok(effect) => effect,
            Err(Refused::Conflict) => return Err(Status::RESERVATION_CONFLICT),
            Err(Refused::Invalid) => return Err(Status::INVALID_FIELD),
            Err(Refused::Full) => {
                self.refuse_registration(by.0);
                return Err(Status::FULL);
            }
        };
        match wanted.persist {
            Some(true) if !persists => return Err(Status::INVALID_FIELD),
            Some(persist) => effect.next = effect.next.with_persist(persist),
            None => {}
        }
        let Effect { next, notices, preempted } = effect;
        let aborted = if wanted.aborts { preempted } else { Vec::new() };
        let change = Change { volume, by, notices, aborted, _hold: hold };
        if next == *now {
            self.settle(change);
            return Ok(());
        }
        match ctx.volumes.change_reservations(volume, next) {
            Stored::Done => self.settle(change),
            Stored::Pending => {
                if let Some(queue) = self.queue(by.0) {
                    queue.request_mut(by.1).enter(State::Persisting);
                }
                self.reserving.changes.push(change);
            }
            // The disk's table has no room for it, or the volume went at this moment.
            Stored::Refused => return Err(Status::INTERNAL),
        }
        Ok(())
    }

    fn refuse_registration(&mut self, id: QueueId) {
        let Some(ends) = self.queue(id).map(|queue| queue.ends) else { return };
        let advice = "the volume has its most registered hosts; a registered host clears or preempts old ones \
            (`nvme resv-report` lists them)";
        self.refuse(&ends, "reservation", "registrants", advice);
    }

    /// A command waits for the change of its volume's reservations that is being written.
    fn await_reservation(&mut self, (id, slot): (QueueId, u16), volume: VolumeId) {
        let Some(queue) = self.queue(id) else { return };
        queue.request_mut(slot).enter(State::AwaitingReservation);
        let mut list = core::mem::take(self.reserving.waiting_for(volume));
        if list.len() >= MANY && list.len().is_power_of_two() {
            list.retain(|&(id, slot)| self.is_in(id, slot, State::AwaitingReservation));
        }
        list.push_back((id, slot));
        *self.reserving.waiting_for(volume) = list;
    }

    /// A change is in effect: hosts are notified, commands of preempted hosts aborted, and its command is completed.
    fn settle(&mut self, change: Change) {
        let Change { volume, by, notices, aborted, .. } = change;
        self.notify(volume, &notices);
        let executing = self.preempt_requests(volume, by, &aborted);
        if executing.is_empty() {
            return self.conclude(by, Ok(()));
        }
        if let Some(queue) = self.queue(by.0) {
            queue.request_mut(by.1).enter(State::AwaitingAborts);
        }
        self.reserving.aborts.push(Abort { by, executing });
    }

    /// Completes a command on reservations.
    fn conclude(&mut self, (id, slot): (QueueId, u16), result: Result<(), Status>) {
        let Some(role) = self.queue(id).map(|queue| queue.role) else { return };
        match (role, result) {
            (Role::Io { controller }, Ok(())) => self.finish_io(id, slot, controller, 0),
            (Role::Io { controller }, Err(status)) => self.fail_io(id, slot, controller, status),
            (_, Ok(())) => self.finish(id, slot, Outcome::SUCCESS),
            (_, Err(status)) => self.finish(id, slot, status.into()),
        }
    }

    /// Notifies hosts over each of their controllers that have the volume as a namespace.
    fn notify(&mut self, volume: VolumeId, notices: &[(HostId, Notice)]) {
        if notices.is_empty() {
            return;
        }
        let Target { controllers, subsystems, .. } = self;
        let mut notified = Vec::new();
        for (place, one) in controllers.iter_mut() {
            let Of::Subsystem(index) = one.of else { continue };
            let notice = notices.iter().find(|(host, _)| *host == one.host.id);
            let (Some((_, notice)), Some(subsystem)) = (notice, subsystems.get(index)) else {
                continue;
            };
            for (namespace, backing) in subsystem.active() {
                if backing.volume == volume {
                    one.events.note_reservation(*notice, namespace.config.nsid);
                }
            }
            notified.push(place);
        }
        notified.into_iter().for_each(|place| self.report_events(place));
    }

    /// Marks the commands of these hosts for a volume: they are not executed further. Returns those that the volume
    /// has.
    fn preempt_requests(
        &mut self,
        volume: VolumeId,
        by: (QueueId, u16),
        hosts: &[HostId],
    ) -> Vec<(QueueId, u16)> {
        let mut executing = Vec::new();
        if hosts.is_empty() {
            return executing;
        }
        let Target { queues, controllers, subsystems, .. } = self;
        for (_, queue) in queues.iter_mut() {
            let Role::Io { controller } = queue.role else { continue };
            let Some(one) = controllers.get(controller) else { continue };
            let Of::Subsystem(index) = one.of else { continue };
            if !hosts.contains(&one.host.id) {
                continue;
            }
            let id = queue.id;
            let volume_of = |nsid: u32| {
                let namespace = subsystems.get(index)?.namespace(nsid)?;
                Some(namespace.backing.as_ref().ok()?.volume)
            };
            for (slot, request) in queue.requests.iter_mut().enumerate() {
                let (slot, command) = (slot as u16, &request.command);
                let is_other = request.state == State::Free
                    || command.is_fabrics()
                    || is_command(command.opcode())
                    || (id, slot) == by;
                let of = request.volume.or_else(|| volume_of(command.nsid()));
                if is_other || of != Some(volume) {
                    continue;
                }
                request.is_preempted = true;
                if request.state == State::Executing {
                    executing.push((id, slot));
                }
            }
        }
        executing
    }

    /// A volume has ended a command of a preempted host.
    pub(crate) fn preempted_ended(&mut self, id: QueueId, slot: u16) {
        let mut done = Vec::new();
        self.reserving.aborts.retain_mut(|abort| {
            abort.executing.retain(|one| *one != (id, slot));
            if abort.executing.is_empty() {
                done.push(abort.by);
            }
            !abort.executing.is_empty()
        });
        for (id, slot) in done {
            if self.is_in(id, slot, State::AwaitingAborts) {
                self.conclude((id, slot), Ok(()));
            }
        }
    }

    /// Continues commands whose change was written, and those that waited for it. Returns the amount of work.
    pub(crate) fn poll_reservations(&mut self, ctx: &mut Context<'_>) -> usize {
        let mut done = 0;
        while let Some((volume, is_written)) = ctx.volumes.poll_persisted() {
            done += 1;
            self.reserving.is_due = true;
            let changes = &mut self.reserving.changes;
            let Some(place) = changes.iter().position(|one| one.volume == volume) else { continue };
            let change = changes.swap_remove(place);
            let (id, slot) = change.by;
            match (is_written, self.is_in(id, slot, State::Persisting)) {
                (true, true) => self.settle(change),
                // The host has gone meanwhile.
                (true, false) => {
                    self.notify(volume, &change.notices);
                    self.preempt_requests(volume, change.by, &change.aborted);
                }
                (false, true) => self.conclude(change.by, Err(Status::INTERNAL)),
                (false, false) => {}
            }
        }
        if core::mem::take(&mut self.reserving.is_due) {
            done += self.continue_reservations(ctx);
        }
        done
    }

    fn continue_reservations(&mut self, ctx: &mut Context<'_>) -> usize {
        let mut taken = 0;
        for (volume, mut list) in core::mem::take(&mut self.reserving.waiting) {
            while taken < BUDGET
                && !ctx.volumes.is_persisting(volume)
                && let Some((id, slot)) = list.pop_front()
            {
                taken += 1;
                if self.is_in(id, slot, State::AwaitingReservation) {
                    self.execute(id, slot, ctx);
                }
            }
            if !list.is_empty() {
                self.reserving.is_due |= !ctx.volumes.is_persisting(volume);
                // Those that were executed and wait again are behind the others.
                list.append(self.reserving.waiting_for(volume));
                *self.reserving.waiting_for(volume) = list;
            }
        }
        taken
    }

    fn report_reservations(
        &mut self,
        id: QueueId,
        slot: u16,
        controller: usize,
        command: &Command,
        ctx: &mut Context<'_>,
    ) {
        if command.u32(44) & EXTENDED == 0 {
            return self.conclude((id, slot), Err(Status::HOST_ID_FORMAT));
        }
        let now = match self.reserved_volume(controller, command.nsid()) {
            Ok((volume, ..)) => ctx.volumes.reservations(volume),
            Err(status) => return self.conclude((id, slot), Err(status)),
        };
        // Dwords, 0's based.
        let bytes = usize::try_from((u64::from(command.u32(40)) + 1) * 4).unwrap_or(usize::MAX);
        self.finish_with_page(id, slot, (0, bytes), |_, output| {
            put_report(now, |at, bytes| output.put(at, bytes));
            Ok(())
        });
    }

    /// Counts a command that a reservation excluded.
    pub(crate) fn count_conflict(&mut self, controller: usize, nsid: u32) {
        let Some(Of::Subsystem(index)) = self.controllers.get(controller).map(|one| one.of) else {
            return;
        };
        let subsystem = self.subsystems.get_mut(index);
        if let Some(namespace) = subsystem.and_then(|it| it.namespace_mut(nsid)) {
            namespace.counters.conflicts += 1;
        }
    }
}

/// Puts the extended report. All controllers are dynamic, so none is named.
fn put_report(now: &Reservations, mut put: impl FnMut(u64, &[u8])) {
    put(0, &now.generation().to_le_bytes());
    put(4, &[now.kind().map_or(0, |kind| kind as u8)]);
    put(5, &(now.registrants().len() as u16).to_le_bytes());
    put(9, &[now.persist().into()]);
    for (place, Registrant { host, key }) in now.registrants().iter().enumerate() {
        let at = REPORTED * (place as u64 + 1);
        put(at, &u16::MAX.to_le_bytes());
        put(at + 2, &[now.is_holder(host).into()]);
        put(at + 8, &key.to_le_bytes());
        put(at + 16, host);
    }
}
