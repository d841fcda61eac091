//! Sessions of the servers on all cores of a gateway. Each server has its sessions for itself; what has to be known of
//! those of the others is here: whose a name is, which core has the paths of a session, and how much a host has.
//!
//! It is looked into when a connection is asked for, a session is named or ends: never for a request.

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
    /// The host that made it.
    host: IpAddr,
    /// Where its paths come from.
    from: Vec<IpAddr>,
    /// Bytes of its chunks.
    bytes: u64,
    /// The name went to another core's session: this one has to end.
    evicted: bool,
}

/// Has the loop of a core look what there is to do.
pub type Wake = Box<dyn Fn() + Send + Sync>;

/// The sessions of all servers.
pub struct Directory {
    claims: Mutex<Vec<Claim>>,
    /// By core: sessions of it have to end, and how it is told.
    evictions: Vec<(AtomicBool, Wake)>,
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").field("claims", &self.claims).finish_non_exhaustive()
    }
}

/// What other cores have of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Its sessions.
    pub sessions: usize,
    /// Bytes of their chunks.
    pub bytes: u64,
}

impl Directory {
    /// For as many cores as can be told, in their order.
    pub fn new(cores: Vec<Wake>) -> Self {
        let evictions = cores.into_iter().map(|wake| (AtomicBool::default(), wake)).collect();
        Directory { claims: Mutex::default(), evictions }
    }

    /// A session was made on a core; false if another core has it already.
    pub(super) fn enter(&self, core: usize, uuid: Uuid, host: IpAddr) -> bool {
        let mut claims = self.claims.lock();
        if claims.iter().any(|claim| claim.uuid == uuid && claim.core != core) {
            return false;
        }
        let (name, from, bytes, evicted) = (Name::default(), Vec::new(), 0, false);
        claims.push(Claim { core, uuid, name, host, from, bytes, evicted });
        true
    }

    /// Whether another core has a session.
    pub(super) fn is_elsewhere(&self, core: usize, uuid: Uuid) -> bool {
        self.claims.lock().iter().any(|claim| claim.uuid == uuid && claim.core != core)
    }

    /// What other cores than this one have of a host.
    pub(super) fn share(&self, core: usize, host: IpAddr) -> Share {
        let owner = accountable(host);
        let claims = self.claims.lock();
        let theirs = claims.iter().filter(|c| c.core != core && accountable(c.host) == owner);
        theirs.fold(Share::default(), |share, claim| Share {
            sessions: share.sessions + 1,
            bytes: share.bytes + claim.bytes,
        })
    }

    /// Takes note of what a session has by now.
    pub(super) fn note(&self, core: usize, uuid: Uuid, from: Vec<IpAddr>, bytes: u64) {
        let mut claims = self.claims.lock();
        if let Some(claim) = claims.iter_mut().find(|c| c.core == core && c.uuid == uuid) {
            (claim.from, claim.bytes) = (from, bytes);
        }
    }

    /// Gives a session its name. If sessions of other cores have it, it must come from an address of one of theirs:
    /// these end. False if it is another's.
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

    /// Sessions of a core that have to end, if there are any since it was asked last.
    pub(super) fn evicted(&self, core: usize) -> Option<Vec<Uuid>> {
        let (flag, _) = self.evictions.get(core)?;
        if !flag.load(Ordering::Acquire) {
            return None;
        }
        flag.store(false, Ordering::Release);
        let claims = self.claims.lock();
        Some(claims.iter().filter(|c| c.core == core && c.evicted).map(|c| c.uuid).collect())
    }

    /// A session is no more.
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
    fn a_session_has_its_paths_on_one_core() {
        let directory = directory(2);
        assert!(directory.enter(0, uuid(1), host(1)));
        assert!(!directory.enter(1, uuid(1), host(1)));
        assert!(directory.is_elsewhere(1, uuid(1)) && !directory.is_elsewhere(0, uuid(1)));
        directory.leave(0, uuid(1));
        assert!(directory.enter(1, uuid(1), host(1)));
    }

    #[test]
    fn a_host_is_counted_on_all_cores() {
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
    fn a_name_goes_over_to_its_own_host_only() {
        let directory = directory(2);
        let name = Name::new("db1").unwrap();
        for (core, session, from) in [(0, 1, 1), (1, 2, 2), (1, 3, 1)] {
            assert!(directory.enter(core, uuid(session), host(from)));
        }
        directory.note(0, uuid(1), [host(1)].into(), 0);
        assert!(directory.name(0, uuid(1), name, host(1)));
        assert!(!directory.name(1, uuid(2), name, host(2)), "it is host 1's");
        assert_eq!(directory.evicted(0), None);
        assert!(directory.name(1, uuid(3), name, host(1)));
        assert_eq!(directory.evicted(0), Some([uuid(1)].into()));
        assert_eq!(directory.evicted(0), None);
        assert!(directory.name(1, uuid(3), name, host(1)), "the evicted one has it no more");
    }

    #[test]
    fn a_name_is_that_of_one_session_of_its_core() {
        let directory = directory(2);
        let [a, b] = ["a", "b"].map(|name| Name::new(name).unwrap());
        for (core, session, from) in [(0, 1, 1), (0, 2, 2), (1, 3, 3)] {
            assert!(directory.enter(core, uuid(session), host(from)));
        }
        assert!(directory.name(0, uuid(1), a, host(1)));
        assert!(directory.name(0, uuid(2), b, host(2)));
        for taken in [a, b] {
            assert!(!directory.name(1, uuid(3), taken, host(3)), "it is another host's");
        }
        // One of them leaves; the other one stays what it is.
        directory.leave(0, uuid(1));
        directory.leave(1, uuid(2));
        assert!(directory.name(1, uuid(3), a, host(3)));
        assert!(!directory.name(1, uuid(3), b, host(3)));
        assert_eq!(directory.evicted(0), None);
    }
}
