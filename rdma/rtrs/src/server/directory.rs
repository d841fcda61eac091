//! Directory of the sessions of all cores' servers. Each server has its own sessions. The directory has the facts that
//! other servers need: the owner of a name, the core of a session, and the share of a host.
//!
//! It is used when a connection is requested, and when a session is named or ends: never for a request.

use crate::Name;
use crate::wire::Uuid;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, Ordering};
use net::hosts::accountable;
use spin::Mutex;

/// A session of a server.
#[derive(Clone, Debug)]
struct Claim {
    core: usize,
    uuid: Uuid,
    name: Name,
    /// The host that created it.
    host: IpAddr,
    /// Source addresses of its paths.
    from: Vec<IpAddr>,
    /// Bytes of its chunks.
    bytes: u64,
    /// A session on another core has taken the name: this one must end.
    evicted: bool,
}

/// Wakes the loop of a core.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// The sessions of all servers.
pub struct Directory {
    claims: Mutex<Vec<Claim>>,
    /// By core: whether it has evicted sessions, and its wake-up.
    evictions: Vec<(AtomicBool, Wake)>,
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").field("claims", &self.claims).finish_non_exhaustive()
    }
}

/// Sessions and memory of a host on other cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Number of sessions.
    pub sessions: usize,
    /// Bytes of their chunks.
    pub bytes: u64,
}

impl Directory {
    /// Creates a directory for cores with these wake-ups, in the order of the cores.
    pub fn new(cores: Vec<Wake>) -> Self {
        let evictions = cores.into_iter().map(|wake| (AtomicBool::default(), wake)).collect();
        Directory { claims: Mutex::default(), evictions }
    }

    /// Enters a new session of a core. Returns false if another core has the session.
    pub(super) fn enter(&self, core: usize, uuid: Uuid, host: IpAddr) -> bool {
        let mut claims = self.claims.lock();
        if claims.iter().any(|claim| claim.uuid == uuid && claim.core != core) {
            return false;
        }
        let (name, from, bytes, evicted) = (Name::default(), Vec::new(), 0, false);
        claims.push(Claim { core, uuid, name, host, from, bytes, evicted });
        true
    }

    /// Whether another core has the session.
    pub(super) fn is_elsewhere(&self, core: usize, uuid: Uuid) -> bool {
        self.claims.lock().iter().any(|claim| claim.uuid == uuid && claim.core != core)
    }

    /// The share of a host on cores other than `core`.
    pub(super) fn share(&self, core: usize, host: IpAddr) -> Share {
        let owner = accountable(host);
        let claims = self.claims.lock();
        let theirs = claims.iter().filter(|c| c.core != core && accountable(c.host) == owner);
        theirs.fold(Share::default(), |share, claim| Share {
            sessions: share.sessions + 1,
            bytes: share.bytes + claim.bytes,
        })
    }

    /// Updates addresses and memory of a session.
    pub(super) fn note(&self, core: usize, uuid: Uuid, from: Vec<IpAddr>, bytes: u64) {
        let mut claims = self.claims.lock();
        if let Some(claim) = claims.iter_mut().find(|c| c.core == core && c.uuid == uuid) {
            (claim.from, claim.bytes) = (from, bytes);
        }
    }

    /// Names a session. If sessions of other cores have the name, `from` must be an address of one of them, and they
    /// are evicted. Returns false if the name belongs to another host.
    pub(super) fn name(&self, core: usize, uuid: Uuid, name: Name, from: IpAddr) -> bool {
        let mut claims = self.claims.lock();
        let theirs = |claim: &Claim| claim.core != core && claim.name == name && !claim.evicted;
        let mut holders = claims.iter().filter(|claim| theirs(claim)).peekable();
        if holders.peek().is_some() && !holders.any(|claim| claim.from.contains(&from)) {
            return false;
        }
        for claim in claims.iter_mut().filter(|claim| theirs(claim)) {
            claim.evicted = true;
            if let Some((flag, wake)) = self.evictions.get(claim.core) {
                flag.store(true, Ordering::Release);
                wake();
            }
        }
        if let Some(claim) = claims.iter_mut().find(|c| c.core == core && c.uuid == uuid) {
            claim.name = name;
        }
        true
    }

    /// Evicted sessions of a core; None if there are no new ones since the last call.
    pub(super) fn evicted(&self, core: usize) -> Option<Vec<Uuid>> {
        let (flag, _) = self.evictions.get(core)?;
        if !flag.load(Ordering::Acquire) {
            return None;
        }
        flag.store(false, Ordering::Release);
        let claims = self.claims.lock();
        Some(claims.iter().filter(|c| c.core == core && c.evicted).map(|c| c.uuid).collect())
    }

    /// Removes a session.
    pub(super) fn leave(&self, core: usize, uuid: Uuid) {
        self.claims.lock().retain(|claim| claim.core != core || claim.uuid != uuid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    fn host(last: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, last).into()
    }

    fn directory(cores: usize) -> Directory {
        Directory::new((0..cores).map(|_| Box::new(|| ()) as Wake).collect())
    }

    fn uuid(n: u8) -> Uuid {
        Uuid([n; 16])
    }

    #[test]
    fn session_is_limited_to_one_core() {
        let directory = directory(2);
        assert!(directory.enter(0, uuid(1), host(1)));
        assert!(!directory.enter(1, uuid(1), host(1)));
        assert!(directory.is_elsewhere(1, uuid(1)) && !directory.is_elsewhere(0, uuid(1)));
        directory.leave(0, uuid(1));
        assert!(directory.enter(1, uuid(1), host(1)));
    }

    #[test]
    fn share_of_a_host_covers_all_other_cores() {
        let directory = directory(3);
        for (core, session) in [(0, 1), (1, 2), (2, 3)] {
            assert!(directory.enter(core, uuid(session), host(7)));
            directory.note(core, uuid(session), Vec::new(), 10);
        }
        assert!(directory.enter(1, uuid(4), host(8)));
        assert_eq!(directory.share(0, host(7)), Share { sessions: 2, bytes: 20 });
        assert_eq!(directory.share(1, host(8)), Share::default());
    }

    #[test]
    fn name_moves_only_to_a_session_of_the_same_host() {
        let directory = directory(2);
        let name = Name::new("db1").unwrap();
        for (core, session, from) in [(0, 1, 1), (1, 2, 2), (1, 3, 1)] {
            assert!(directory.enter(core, uuid(session), host(from)));
        }
        directory.note(0, uuid(1), [host(1)].into(), 0);
        assert!(directory.name(0, uuid(1), name, host(1)));
        assert!(!directory.name(1, uuid(2), name, host(2)), "the name belongs to host 1");
        assert_eq!(directory.evicted(0), None);
        assert!(directory.name(1, uuid(3), name, host(1)));
        assert_eq!(directory.evicted(0), Some([uuid(1)].into()));
        assert_eq!(directory.evicted(0), None);
        assert!(directory.name(1, uuid(3), name, host(1)), "the evicted session has lost the name");
    }

    #[test]
    fn name_belongs_to_one_session_of_its_core() {
        let directory = directory(2);
        let [a, b] = ["a", "b"].map(|name| Name::new(name).unwrap());
        for (core, session, from) in [(0, 1, 1), (0, 2, 2), (1, 3, 3)] {
            assert!(directory.enter(core, uuid(session), host(from)));
        }
        assert!(directory.name(0, uuid(1), a, host(1)));
        assert!(directory.name(0, uuid(2), b, host(2)));
        for taken in [a, b] {
            assert!(
                !directory.name(1, uuid(3), taken, host(3)),
                "the name belongs to another host"
            );
        }
        // One session leaves; the other one is unaffected.
        directory.leave(0, uuid(1));
        directory.leave(1, uuid(2));
        assert!(directory.name(1, uuid(3), a, host(3)));
        assert!(!directory.name(1, uuid(3), b, host(3)));
        assert_eq!(directory.evicted(0), None);
    }
}
