//! Reservations against a model of one row per host, and their records.

use super::*;
use proptest::prelude::*;
use std::vec;

const A: HostId = [1; 16];
const B: HostId = [2; 16];
const C: HostId = [3; 16];
const HOSTS: [HostId; 3] = [A, B, C];

/// What a host may do, for each type: read and write as holder, as registrant, and as another host (Base
/// Specification, section 8.19, the table of commands in the presence of a reservation).
const RIGHTS: [(Kind, [&str; 3]); 6] = [
    (Kind::WriteExclusive, ["rw", "r", "r"]),
    (Kind::ExclusiveAccess, ["rw", "", ""]),
    (Kind::WriteExclusiveRegistrants, ["rw", "rw", "r"]),
    (Kind::ExclusiveAccessRegistrants, ["rw", "rw", ""]),
    (Kind::WriteExclusiveAll, ["rw", "rw", "r"]),
    (Kind::ExclusiveAccessAll, ["rw", "rw", ""]),
];

fn run(commands: &[(HostId, Command)]) -> Reservations {
    commands.iter().fold(Reservations::default(), |now, (host, command)| {
        now.apply(host, *command).expect("the command succeeds").next
    })
}

fn registered() -> [(HostId, Command); 2] {
    [(A, Command::Register { key: 1 }), (B, Command::Register { key: 2 })]
}

#[test]
fn rights_are_those_of_the_table_for_each_type() {
    for (kind, rights) in RIGHTS {
        let mut now = run(&registered());
        now = now.apply(&A, Command::Acquire { current: 1, kind }).unwrap().next;
        for (host, rights) in HOSTS.iter().zip(rights) {
            assert_eq!(now.permits(host, Access::Read), rights.contains('r'), "{kind:?} {host:?}");
            assert_eq!(now.permits(host, Access::Write), rights.contains('w'), "{kind:?} {host:?}");
        }
        assert_eq!(now.is_holder(&B), kind.is_held_by_all());
        assert_eq!(Kind::of(kind as u8), Some(kind));
    }
}

#[test]
fn release_is_by_the_holder_and_of_the_same_type() {
    let kind = Kind::WriteExclusiveRegistrants;
    let mut now = run(&registered());
    now = now.apply(&A, Command::Acquire { current: 1, kind }).unwrap().next;
    let by_other = now.apply(&B, Command::Release { current: 2, kind: 3 }).unwrap();
    assert_eq!((&by_other.next, by_other.notices.len()), (&now, 0));
    assert_eq!(now.apply(&A, Command::Release { current: 1, kind: 1 }), Err(Refused::Invalid));
    assert_eq!(now.apply(&A, Command::Release { current: 9, kind: 3 }), Err(Refused::Conflict));
    let released = now.apply(&A, Command::Release { current: 1, kind: 3 }).unwrap();
    assert_eq!((released.next.kind(), released.notices), (None, vec![(B, Notice::Released)]));
    assert_eq!(released.next.generation(), now.generation());
}

#[test]
fn preempted_hosts_lose_their_registration_and_are_notified() {
    let kind = Kind::ExclusiveAccess;
    let mut now = run(&registered());
    now = now.apply(&C, Command::Register { key: 2 }).unwrap().next;
    now = now.apply(&B, Command::Acquire { current: 2, kind }).unwrap().next;
    let preempt = |current, key| Command::Preempt { current, key, kind: Kind::WriteExclusive };
    assert_eq!(now.apply(&A, preempt(1, 0)), Err(Refused::Invalid));
    assert_eq!(now.apply(&A, preempt(1, 7)), Err(Refused::Conflict), "none has that key");
    let effect = now.apply(&A, preempt(1, 2)).unwrap();
    assert_eq!(effect.preempted, [B, C]);
    assert_eq!(effect.notices, [B, C].map(|host| (host, Notice::RegistrationPreempted)));
    assert!(effect.next.is_holder(&A) && !effect.next.permits(&B, Access::Write));
    assert_eq!(effect.next.kind(), Some(Kind::WriteExclusive));
    assert_eq!(effect.next.generation(), now.generation() + 1);
    // The holder preempts itself: the type changes.
    let itself = effect.next.apply(&A, preempt(1, 1)).unwrap();
    assert!(itself.next.is_holder(&A) && itself.preempted.is_empty());
}

#[test]
fn preempting_key_zero_ends_all_other_holders() {
    let mut now = run(&registered());
    let kind = Kind::WriteExclusiveAll;
    now = now.apply(&A, Command::Acquire { current: 1, kind }).unwrap().next;
    let preempt = Command::Preempt { current: 2, key: 0, kind: Kind::ExclusiveAccess };
    let effect = now.apply(&B, preempt).unwrap();
    assert_eq!(effect.preempted, [A]);
    assert_eq!(
        (effect.next.kind(), effect.next.registrants().len()),
        (Some(Kind::ExclusiveAccess), 1)
    );
    // The last registrant takes the reservation with it.
    let one = now.apply(&A, Command::Unregister { current: Some(1) }).unwrap().next;
    assert_eq!(one.kind(), Some(kind));
    let none = one.apply(&B, Command::Unregister { current: None }).unwrap().next;
    assert_eq!((none.kind(), none.registrants().len()), (None, 0));
}

#[test]
fn registration_beyond_the_most_is_refused_and_a_known_host_still_changes_its_key() {
    let mut now = Reservations::default();
    for host in 1..=MAX_REGISTRANTS as u8 {
        now = now.apply(&[host; 16], Command::Register { key: 5 }).unwrap().next;
    }
    assert_eq!(now.apply(&[99; 16], Command::Register { key: 5 }), Err(Refused::Full));
    let replace = Command::Replace { current: None, key: 6 };
    assert_eq!(now.apply(&[99; 16], replace), Err(Refused::Full));
    assert!(now.apply(&[7; 16], replace).is_ok());
    assert!(now.with_persist(true).encode().len() <= MAX_RECORD);
    let zero = Command::Register { key: 0 };
    assert_eq!(Reservations::default().apply(&A, zero), Err(Refused::Invalid));
}

#[test]
fn key_of_zero_in_a_replacement_unregisters() {
    let now = run(&registered());
    assert_eq!(
        now.apply(&A, Command::Replace { current: Some(2), key: 0 }),
        Err(Refused::Conflict)
    );
    let gone = now.apply(&A, Command::Replace { current: Some(1), key: 0 }).unwrap().next;
    assert!(!gone.is_registered(&A) && gone.is_registered(&B));
    assert_eq!(gone.apply(&A, Command::Unregister { current: None }), Err(Refused::Conflict));
}

/// A model: the key of each host, and who holds what.
#[derive(Clone, Debug, Default)]
struct Model {
    keys: [u64; 3],
    kind: u8,
    holder: usize,
}

impl Model {
    fn holds(&self, host: usize) -> bool {
        match self.kind {
            0 => false,
            5 | 6 => self.keys[host] != 0,
            _ => self.holder == host,
        }
    }

    fn drop_host(&mut self, host: usize) {
        let held = self.holds(host);
        self.keys[host] = 0;
        if held && (self.kind < 5 || self.keys == [0; 3]) {
            self.kind = 0;
        }
    }

    /// Whether the command succeeds.
    fn apply(&mut self, host: usize, command: Command) -> bool {
        let own = self.keys[host];
        let matches = |current: u64| own != 0 && own == current;
        match command {
            Command::Register { key } => {
                let allowed = key != 0 && (own == 0 || own == key);
                if allowed {
                    self.keys[host] = key;
                }
                allowed
            }
            Command::Unregister { current } | Command::Replace { current, key: 0 } => {
                let allowed = own != 0 && current.is_none_or(matches);
                if allowed {
                    self.drop_host(host);
                }
                allowed
            }
            Command::Replace { current, key } => {
                let allowed = current.is_none_or(matches);
                if allowed {
                    self.keys[host] = key;
                }
                allowed
            }
            Command::Acquire { current, kind } => {
                let free = self.kind == 0 || (self.kind == kind as u8 && self.holds(host));
                let allowed = matches(current) && free;
                if allowed && self.kind == 0 {
                    (self.kind, self.holder) = (kind as u8, host);
                }
                allowed
            }
            Command::Preempt { current, key, kind } => {
                let all = self.kind >= 5;
                if !matches(current) || (key == 0 && !all) {
                    return false;
                }
                let takes = match self.kind {
                    0 => false,
                    5.. => key == 0,
                    _ => self.keys[self.holder] == key,
                };
                let goes = |other: usize| {
                    self.keys[other] != 0
                        && (key == 0 || self.keys[other] == key)
                        && !(takes && other == host)
                };
                let gone: Vec<usize> = (0..3).filter(|&other| goes(other)).collect();
                gone.iter().for_each(|&other| self.keys[other] = 0);
                if takes {
                    (self.kind, self.holder) = (kind as u8, host);
                } else if all && self.keys == [0; 3] {
                    self.kind = 0;
                }
                takes || !gone.is_empty()
            }
            Command::Release { current, kind } => {
                let allowed = matches(current) && (!self.holds(host) || self.kind == kind);
                if allowed && self.holds(host) {
                    self.kind = 0;
                }
                allowed
            }
            Command::Clear { current } => {
                let allowed = matches(current);
                if allowed {
                    *self = Model::default();
                }
                allowed
            }
        }
    }
}

fn command() -> impl Strategy<Value = (usize, Command)> {
    let key = || 0..4u64;
    let current = || prop::option::of(1..4u64);
    let kind = || prop::sample::select(Kind::ALL.to_vec());
    let any = prop_oneof![
        key().prop_map(|key| Command::Register { key }),
        current().prop_map(|current| Command::Unregister { current }),
        (current(), key()).prop_map(|(current, key)| Command::Replace { current, key }),
        (1..4u64, kind()).prop_map(|(current, kind)| Command::Acquire { current, kind }),
        (1..4u64, key(), kind()).prop_map(|(current, key, kind)| Command::Preempt {
            current,
            key,
            kind
        }),
        (1..4u64, 1..7u8).prop_map(|(current, kind)| Command::Release { current, kind }),
        (1..4u64).prop_map(|current| Command::Clear { current }),
    ];
    (0..3usize, any)
}

proptest! {
    #[test]
    fn commands_of_three_hosts_have_the_effects_of_the_model(
        commands in prop::collection::vec(command(), 1..60),
    ) {
        let mut now = Reservations::default().with_persist(true);
        let mut model = Model::default();
        for (host, command) in commands {
            let before = now.clone();
            let result = now.apply(&HOSTS[host], command);
            let allowed = model.apply(host, command);
            prop_assert_eq!(result.is_ok(), allowed, "{:?}", command);
            if let Ok(effect) = result {
                now = effect.next;
                for (notified, _) in effect.notices {
                    prop_assert!(notified != HOSTS[host] && before.is_registered(&notified));
                }
            }
            for (place, host) in HOSTS.iter().enumerate() {
                prop_assert_eq!(now.key_of(host).unwrap_or(0), model.keys[place]);
                prop_assert_eq!(now.is_holder(host), model.holds(place));
            }
            prop_assert_eq!(now.kind().map_or(0, |kind| kind as u8), model.kind);
            let read = Reservations::decode(&now.encode());
            prop_assert_eq!(read, Some(Reservations { generation: 0, ..now.clone() }));
        }
    }

    #[test]
    fn decode_of_a_changed_record_is_invalid_or_sound(
        at in 0..68usize, value in any::<u8>(), cut in 0..69usize,
    ) {
        let kind = Kind::ExclusiveAccess;
        let mut now = run(&registered()).with_persist(true);
        now = now.apply(&A, Command::Acquire { current: 1, kind }).unwrap().next;
        let mut record = now.encode();
        prop_assert_eq!(record.len(), 68);
        record[at] = value;
        record.truncate(cut);
        if let Some(read) = Reservations::decode(&record) {
            let holder = HOSTS.iter().chain([&[0; 16]]).any(|host| read.is_holder(host));
            prop_assert!(read.kind().is_none() || holder || at >= 4);
        }
    }
}

#[test]
fn change_to_keep_takes_effect_when_it_is_written() {
    use crate::volume::{RamVolume, Volumes};
    let mut arena = drivers::hal::Arena::on_heap(1 << 20);
    let memory = arena.alloc(64 << 10, 4096).unwrap();
    let mut volumes = Volumes::new();
    let volume = alloc::boxed::Box::new(RamVolume::new(memory, false));
    let id = volumes.add(rtrs::Name::new("v").unwrap(), volume).unwrap();
    let hold = volumes.open_counts(id).unwrap().open(None).unwrap();
    let mut held = run(&registered());
    let kind = Kind::WriteExclusive;
    held = held.apply(&A, Command::Acquire { current: 1, kind }).unwrap().next;
    assert_eq!(volumes.change_reservations(id, held.with_persist(true)), Stored::Refused);
    assert_eq!(volumes.change_reservations(id, held.clone()), Stored::Done);
    assert!(hold.excludes(Access::Write) && !hold.excludes(Access::Read));
    assert_eq!(volumes.change_reservations(id, Reservations::default()), Stored::Done);
    assert!(!hold.is_reserved());

    assert!(volumes.restore_reservations(id, &[]) && volumes.persists_reservations(id));
    let held = held.with_persist(true);
    for written in [false, true] {
        assert_eq!(volumes.change_reservations(id, held.clone()), Stored::Pending);
        assert_eq!(volumes.change_reservations(id, held.clone()), Stored::Refused, "one at a time");
        assert_eq!(volumes.next_unpersisted(), Some((id, held.encode())));
        assert!(!hold.is_reserved(), "it is not on the disk yet");
        volumes.reservations_persisted(id, written);
        assert_eq!(volumes.poll_persisted(), Some((id, written)));
        assert_eq!(hold.reservation(), if written { (Some(kind), 2) } else { (None, 0) });
    }
    assert!(volumes.restore_reservations(id, &held.encode()));
    assert_eq!(volumes.reservations(id).registrants().len(), 2);
    assert!(!volumes.restore_reservations(id, &[9]));
}
