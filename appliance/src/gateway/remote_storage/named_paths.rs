//! Paths to servers that the configuration names. A path goes to the first address of the name. When the answer changes,
//! a path that is up stays, and one that is down moves to the new address. What the operator does with a path stays: one
//! that was disconnected is not connected by an answer of the DNS, and one that was removed does not return.

use super::RemoteStorage;
use super::sessions::Session;
use crate::config::PathPair;
use core::net::IpAddr;
use drivers::hal::Instant;
use net::dns::{Lookup, Name};
use provider_set::ProviderSet;
use rtrs::client::PathState;
use verbs::Ctx;

/// A configured path to a named server.
pub(super) struct NamedPath {
    from: IpAddr,
    name: Name,
    /// The present addresses of the name.
    addresses: Vec<IpAddr>,
    /// Where its path goes, if there is one. A path is known by its ends, because its number may belong to another one
    /// after it was removed.
    to: Option<IpAddr>,
}

impl Session {
    /// Adds a path to a named server. It gets an address by [`RemoteStorage::set_addresses`].
    pub(super) fn add_named(&mut self, from: IpAddr, name: &Name) {
        if self.named.iter().all(|one| (one.from, &one.name) != (from, name)) {
            self.named.push(NamedPath {
                from,
                name: name.clone(),
                addresses: Vec::new(),
                to: None,
            });
        }
    }

    /// Forgets the name of a path that the operator has removed.
    pub(super) fn forget_named(&mut self, removed: PathPair) {
        self.named.retain(|one| (one.from, one.to) != (removed.from, Some(removed.to)));
    }

    /// Moves a path that is being retried to one of the present addresses of its name.
    fn follow_name(&mut self, place: usize, ctx: &mut Ctx<'_, ProviderSet>) {
        let NamedPath { from, to: before, addresses, .. } = &self.named[place];
        let (from, before) = (*from, *before);
        let path = before.and_then(|to| self.path_between(from, to));
        let path = path.map(|path| (path.id, path.state));
        if path.is_some_and(|(_, state)| state != PathState::Reconnecting)
            || before.is_some_and(|to| addresses.contains(&to))
        {
            return;
        }
        let is_reachable = |to: &&IpAddr| to.is_ipv4() == from.is_ipv4();
        let Some(&to) = addresses.iter().find(is_reachable) else { return };
        if self.path_between(from, to).is_some() {
            // Another path of the session goes there.
            return;
        }
        if let Some((id, _)) = path {
            self.client.transport_mut().remove_path(id, ctx);
        }
        self.named[place].to = None;
        let added = self.add_path(PathPair { from, to }, ctx);
        let name = &self.named[place].name;
        match added {
            Ok(_) => {
                log::info!("session {}: path {from}@{name} goes to {to}", self.name());
                self.named[place].to = Some(to);
            }
            Err(why) => log::error!("session {}: path {from}@{name}: {why}", self.name()),
        }
    }
}

impl RemoteStorage {
    /// Records the present addresses of the servers' names. Paths follow them when paths are resolved next.
    pub fn set_addresses(&mut self, lookup: impl Fn(&Name) -> Lookup, now: Instant) {
        let sessions = self.sessions.iter_mut();
        for named in sessions.flat_map(|session| &mut session.named) {
            if let Lookup::Known(addresses) = lookup(&named.name) {
                named.addresses = addresses;
                self.resolve_due = Some(now);
            }
        }
    }

    /// Moves paths to the present addresses of their servers.
    pub(super) fn follow_names(&mut self, ctx: &mut Ctx<'_, ProviderSet>) {
        for session in &mut self.sessions {
            for place in 0..session.named.len() {
                session.follow_name(place, ctx);
            }
        }
    }
}
