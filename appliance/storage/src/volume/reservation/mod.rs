//! Reservations of a volume: which hosts may read and write it (NVM Express Base Specification 2.0, section 8.19).
//!
//! [`Reservations`] is a value: a command of a host yields the next value, and the notices that it causes. The caller
//! stores it with [`Volumes::change_reservations`](super::Volumes::change_reservations), which also fences hosts that
//! cannot register, such as those of RNBD ([`OpenCounts::reservation`](super::OpenCounts::reservation)).

mod places;
mod record;
#[cfg(test)]
mod tests;

pub(super) use places::Place;
pub use places::Stored;
pub use record::MAX_RECORD;

use alloc::vec::Vec;

/// Most registrants of a volume.
pub const MAX_REGISTRANTS: usize = 64;

/// Identifier of a host, 128 bits. A registration belongs to a host, not to its connections.
pub type HostId = [u8; 16];

/// Type of a reservation, by its number in commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The holder writes.
    WriteExclusive = 1,
    /// The holder reads and writes.
    ExclusiveAccess = 2,
    /// Registrants write; one of them is the holder.
    WriteExclusiveRegistrants = 3,
    /// Registrants read and write; one of them is the holder.
    ExclusiveAccessRegistrants = 4,
    /// Registrants write; all of them are holders.
    WriteExclusiveAll = 5,
    /// Registrants read and write; all of them are holders.
    ExclusiveAccessAll = 6,
}

impl Kind {
    /// All types.
    pub const ALL: [Kind; 6] = [
        Kind::WriteExclusive,
        Kind::ExclusiveAccess,
        Kind::WriteExclusiveRegistrants,
        Kind::ExclusiveAccessRegistrants,
        Kind::WriteExclusiveAll,
        Kind::ExclusiveAccessAll,
    ];

    /// The type of that number.
    pub fn of(number: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Its name, for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::WriteExclusive => "write-exclusive",
            Kind::ExclusiveAccess => "exclusive-access",
            Kind::WriteExclusiveRegistrants => "write-exclusive-registrants-only",
            Kind::ExclusiveAccessRegistrants => "exclusive-access-registrants-only",
            Kind::WriteExclusiveAll => "write-exclusive-all-registrants",
            Kind::ExclusiveAccessAll => "exclusive-access-all-registrants",
        }
    }

    /// Whether hosts without rights may not even read.
    pub const fn excludes_readers(self) -> bool {
        matches!(
            self,
            Kind::ExclusiveAccess | Kind::ExclusiveAccessRegistrants | Kind::ExclusiveAccessAll
        )
    }

    /// Whether every registrant has the rights of the holder.
    const fn admits_registrants(self) -> bool {
        !matches!(self, Kind::WriteExclusive | Kind::ExclusiveAccess)
    }

    /// Whether every registrant is a holder.
    pub const fn is_held_by_all(self) -> bool {
        matches!(self, Kind::WriteExclusiveAll | Kind::ExclusiveAccessAll)
    }
}

/// What a request does with the contents of a volume. A flush writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads, compares or verifies.
    Read,
    /// It writes, zeroes, deallocates or flushes.
    Write,
}

/// A registered host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// The host.
    pub host: HostId,
    /// Its key, not zero.
    pub key: u64,
}

/// A command of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Registers.
    Register {
        /// The new key.
        key: u64,
    },
    /// Ends the registration.
    Unregister {
        /// The host's key; None if it is not compared.
        current: Option<u64>,
    },
    /// Replaces the key. A host that is not registered becomes so if its key is not compared.
    Replace {
        /// The host's key; None if it is not compared.
        current: Option<u64>,
        /// The new key. Zero ends the registration: so Linux's ioctl unregisters (drivers/nvme/host/pr.c).
        key: u64,
    },
    /// Takes the reservation.
    Acquire {
        /// The host's key.
        current: u64,
        /// The type.
        kind: Kind,
    },
    /// Ends the registrations with a key, and takes the reservation of its holder.
    Preempt {
        /// The host's key.
        current: u64,
        /// The key. Zero stands for all others, if all registrants are holders.
        key: u64,
        /// The type of the new reservation.
        kind: Kind,
    },
    /// Releases the reservation.
    Release {
        /// The host's key.
        current: u64,
        /// The number of the type, which has to be that of the reservation.
        kind: u8,
    },
    /// Releases the reservation and ends all registrations.
    Clear {
        /// The host's key.
        current: u64,
    },
}

/// What other hosts are notified of, by its number in the log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Notice {
    /// Another host ended the host's registration.
    RegistrationPreempted = 1,
    /// The reservation was released.
    Released = 2,
    /// Another host ended the reservation.
    ReservationPreempted = 3,
}

/// Why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The host is not registered, gave another key, or another host has the reservation.
    Conflict,
    /// A parameter is invalid.
    Invalid,
    /// The volume has its most registrants.
    Full,
}

/// Effect of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The reservations afterwards.
    pub next: Reservations,
    /// Hosts to notify.
    pub notices: Vec<(HostId, Notice)>,
    /// Hosts whose registration was ended by a preempting host.
    pub preempted: Vec<HostId>,
}

/// Registrants of a volume, and its reservation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservations {
    /// Increases with each registration, preemption and clearing; wraps. It is zero after power-on.
    generation: u32,
    /// They are kept through a power loss.
    persist: bool,
    registrants: Vec<Registrant>,
    /// The type, and the holder. If all registrants are holders, the one that acquired it, which may be gone.
    held: Option<(Kind, HostId)>,
}

impl Reservations {
    /// None.
    pub const NONE: &'static Reservations =
        &Reservations { generation: 0, persist: false, registrants: Vec::new(), held: None };

    /// See [`Reservations::apply`].
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether they are kept through a power loss.
    pub fn persist(&self) -> bool {
        self.persist
    }

    /// The registered hosts.
    pub fn registrants(&self) -> &[Registrant] {
        &self.registrants
    }

    /// The type of the reservation; None if there is none.
    pub fn kind(&self) -> Option<Kind> {
        self.held.map(|(kind, _)| kind)
    }

    /// Whether a host is registered.
    pub fn is_registered(&self, host: &HostId) -> bool {
        self.key_of(host).is_some()
    }

    /// Whether a host holds the reservation.
    pub fn is_holder(&self, host: &HostId) -> bool {
        match self.held {
            Some((kind, _)) if kind.is_held_by_all() => self.is_registered(host),
            Some((_, holder)) => holder == *host,
            None => false,
        }
    }

    /// Whether a host may access the volume.
    pub fn permits(&self, host: &HostId, access: Access) -> bool {
        let Some((kind, _)) = self.held else { return true };
        (access == Access::Read && !kind.excludes_readers())
            || self.is_holder(host)
            || (kind.admits_registrants() && self.is_registered(host))
    }

    fn key_of(&self, host: &HostId) -> Option<u64> {
        self.registrants.iter().find(|one| one.host == *host).map(|one| one.key)
    }

    /// Changes whether they are kept through a power loss.
    pub fn with_persist(&self, persist: bool) -> Reservations {
        Reservations { persist, ..self.clone() }
    }

    /// The effect of a host's command. Nothing is changed. The generation increases with commands that register,
    /// preempt or clear, and succeed.
    pub fn apply(&self, host: &HostId, command: Command) -> Result<Effect, Refused> {
        let current = match command {
            Command::Register { .. }
            | Command::Unregister { current: None }
            | Command::Replace { current: None, .. } => None,
            Command::Unregister { current: Some(key) }
            | Command::Replace { current: Some(key), .. }
            | Command::Acquire { current: key, .. }
            | Command::Preempt { current: key, .. }
            | Command::Release { current: key, .. }
            | Command::Clear { current: key } => Some(key),
        };
        if let Some(key) = current
            && self.key_of(host) != Some(key)
        {
            return Err(Refused::Conflict);
        }
        let mut effect = Effect { next: self.clone(), notices: Vec::new(), preempted: Vec::new() };
        match command {
            Command::Register { key } => effect.next.register(host, key, false)?,
            Command::Unregister { .. } | Command::Replace { key: 0, .. } => {
                effect.unregister(host)?;
            }
            Command::Replace { key, .. } => effect.next.register(host, key, true)?,
            Command::Acquire { kind, .. } => return effect.acquire(host, kind),
            Command::Preempt { key, kind, .. } => effect.preempt(host, key, kind)?,
            Command::Release { kind, .. } => return effect.release(host, kind),
            Command::Clear { .. } => {
                effect.notify_others(host, Notice::ReservationPreempted);
                effect.next.registrants.clear();
                effect.next.held = None;
            }
        }
        effect.next.generation = self.generation.wrapping_add(1);
        Ok(effect)
    }

    fn register(&mut self, host: &HostId, key: u64, replaces: bool) -> Result<(), Refused> {
        if key == 0 {
            return Err(Refused::Invalid);
        }
        let is_full = self.registrants.len() >= MAX_REGISTRANTS;
        let known = self.registrants.iter_mut().find(|one| one.host == *host);
        match known {
            Some(one) if replaces || one.key == key => one.key = key,
            Some(_) => return Err(Refused::Conflict),
            None if is_full => return Err(Refused::Full),
            None => self.registrants.push(Registrant { host: *host, key }),
        }
        Ok(())
    }
}

impl Effect {
    fn notify_others(&mut self, host: &HostId, notice: Notice) {
        let others = self.next.registrants.iter().filter(|one| one.host != *host);
        self.notices.extend(others.map(|one| (one.host, notice)));
    }

    /// Ends the reservation. Registrants that had its rights are notified of the release.
    fn end_reservation(&mut self, host: &HostId) {
        let Some((kind, _)) = self.next.held.take() else { return };
        if kind.admits_registrants() {
            self.notify_others(host, Notice::Released);
        }
    }

    fn unregister(&mut self, host: &HostId) -> Result<(), Refused> {
        if !self.next.is_registered(host) {
            return Err(Refused::Conflict);
        }
        let was_holder = self.next.is_holder(host);
        self.next.registrants.retain(|one| one.host != *host);
        let others_hold =
            self.next.kind().is_some_and(Kind::is_held_by_all) && !self.next.registrants.is_empty();
        if was_holder && !others_hold {
            self.end_reservation(host);
        }
        Ok(())
    }

    fn acquire(mut self, host: &HostId, kind: Kind) -> Result<Effect, Refused> {
        match self.next.held {
            None => self.next.held = Some((kind, *host)),
            Some((held, _)) if held == kind && self.next.is_holder(host) => {}
            Some(_) => return Err(Refused::Conflict),
        }
        Ok(self)
    }

    fn release(mut self, host: &HostId, kind: u8) -> Result<Effect, Refused> {
        let Some(held) = self.next.kind().filter(|_| self.next.is_holder(host)) else {
            return Ok(self);
        };
        if held as u8 != kind {
            return Err(Refused::Invalid);
        }
        self.end_reservation(host);
        Ok(self)
    }

    fn preempt(&mut self, host: &HostId, key: u64, kind: Kind) -> Result<(), Refused> {
        let held = self.next.held;
        let by_all = held.is_some_and(|(kind, _)| kind.is_held_by_all());
        if key == 0 && !by_all {
            return Err(Refused::Invalid);
        }
        let takes = match held {
            Some(_) if by_all => key == 0,
            Some((_, holder)) => self.next.key_of(&holder) == Some(key),
            None => false,
        };
        // The host keeps its registration if it takes the reservation, even with a key that others have, too.
        let goes = |one: &Registrant| match takes {
            true => one.host != *host && (key == 0 || one.key == key),
            false => one.key == key,
        };
        let gone: Vec<HostId> =
            self.next.registrants.iter().filter(|one| goes(one)).map(|one| one.host).collect();
        if gone.is_empty() && !takes {
            return Err(Refused::Conflict);
        }
        self.next.registrants.retain(|one| !goes(one));
        let others = gone.iter().filter(|one| *one != host);
        self.notices.extend(others.map(|one| (*one, Notice::RegistrationPreempted)));
        if takes {
            if held.is_some_and(|(before, _)| before != kind) {
                self.end_reservation(host);
            }
            self.next.held = Some((kind, *host));
        } else if by_all && self.next.registrants.is_empty() {
            self.next.held = None;
        }
        self.preempted = gone;
        Ok(())
    }
}
