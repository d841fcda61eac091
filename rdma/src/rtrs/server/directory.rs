//! Which server has which session, where the loops of a gateway have a server each. A session belongs to
//! one of them, with all its paths: its chunks and requests are shared by its paths and by no other
//! loop. Asked when sessions come, are named and go, behind a lock; requests never ask.

use crate::rtrs::Name;
use crate::rtrs::wire::Uuid;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use spin::Mutex;

/// The sessions of all servers of a gateway. Copies are the same directory.
#[derive(Clone, Debug, Default)]
pub struct Directory(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    sessions: Mutex<Vec<Entry>>,
    /// Goes up whenever a server has to end a session that another server's replaces.
    changes: AtomicU32,
}

#[derive(Debug)]
struct Entry {
    uuid: Uuid,
    /// Number of the server that has it.
    server: u32,
    /// Empty until the first INFO_REQ.
    name: Name,
    /// From where the name was claimed.
    from: Option<IpAddr>,
    /// It was replaced, and its server has not ended it yet.
    replaced: bool,
}

/// The directory, as one server sees it.
#[derive(Debug, Default)]
pub(super) struct Membership {
    directory: Directory,
    number: u32,
    seen: u32,
}

impl Directory {
    /// Changes when servers have something to end ([`super::Server::end_replaced`]).
    pub fn changes(&self) -> u32 {
        self.0.changes.load(Ordering::Acquire)
    }
}

impl Membership {
    /// Server number `number` of those that share `directory`.
    pub fn new(directory: Directory, number: u32) -> Self {
        let seen = directory.changes();
        Membership { directory, number, seen }
    }

    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// Whether another server has a session.
    pub fn is_elsewhere(&self, uuid: Uuid) -> bool {
        let sessions = self.directory.0.sessions.lock();
        sessions.iter().any(|entry| entry.uuid == uuid && entry.server != self.number)
    }

    /// Enters a session that is new to this server; false if another server has it.
    pub fn enter(&self, uuid: Uuid) -> bool {
        let mut sessions = self.directory.0.sessions.lock();
        if let Some(entry) = sessions.iter().find(|entry| entry.uuid == uuid) {
            return entry.server == self.number;
        }
        let server = self.number;
        sessions.push(Entry { uuid, server, name: Name::default(), from: None, replaced: false });
        true
    }

    /// A session of this server is gone.
    pub fn leave(&self, uuid: Uuid) {
        let mut sessions = self.directory.0.sessions.lock();
        sessions.retain(|entry| entry.uuid != uuid || entry.server != self.number);
    }

    /// Gives a session of this server its name. A session of that name from the same address at
    /// another server is replaced: its server will end it. False if another host uses the name.
    pub fn claim(&self, uuid: Uuid, name: Name, from: IpAddr) -> bool {
        let mut sessions = self.directory.0.sessions.lock();
        let others = |entry: &&mut Entry| {
            entry.server != self.number && entry.name == name && !entry.replaced
        };
        if let Some(other) = sessions.iter_mut().find(others) {
            if other.from != Some(from) {
                return false;
            }
            other.replaced = true;
            self.directory.0.changes.fetch_add(1, Ordering::AcqRel);
        }
        let own = sessions.iter_mut().find(|e| e.uuid == uuid && e.server == self.number);
        if let Some(own) = own {
            own.name = name;
            own.from.get_or_insert(from);
        }
        true
    }

    /// A session of this server's that was replaced, if there is any that was not told yet.
    pub fn next_replaced(&mut self) -> Option<Uuid> {
        let changes = self.directory.changes();
        if changes == self.seen {
            return None;
        }
        let sessions = self.directory.0.sessions.lock();
        let next = sessions.iter().find(|e| e.server == self.number && e.replaced);
        if next.is_none() {
            self.seen = changes;
        }
        next.map(|entry| entry.uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members() -> (Membership, Membership) {
        let directory = Directory::default();
        (Membership::new(directory.clone(), 0), Membership::new(directory, 1))
    }

    const A: Uuid = Uuid([1; 16]);
    const B: Uuid = Uuid([2; 16]);

    #[test]
    fn a_session_is_one_server_s_until_it_leaves() {
        let (first, second) = members();
        assert!(first.enter(A) && first.enter(A));
        assert!(!second.enter(A) && second.is_elsewhere(A) && !first.is_elsewhere(A));
        second.leave(A);
        assert!(!second.enter(A), "only its own server takes it out");
        first.leave(A);
        assert!(second.enter(A));
    }

    #[test]
    fn a_host_that_comes_back_elsewhere_replaces_its_session() {
        let (mut first, mut second) = members();
        let name = Name::new("s1").unwrap();
        let [host, stranger] = ["10.0.0.2", "10.0.0.3"].map(|ip| ip.parse().unwrap());
        assert!(first.enter(A) && first.claim(A, name, host));
        assert!(second.enter(B));
        assert!(!second.claim(B, name, stranger), "another host's name");
        assert_eq!(first.next_replaced(), None);
        assert!(second.claim(B, name, host));
        assert_eq!(first.next_replaced(), Some(A));
        assert_eq!(second.next_replaced(), None);
        first.leave(A);
        assert_eq!(first.next_replaced(), None);
    }
}
