//! PUTs of the peer: it writes into local regions that were granted to it. PUTs to other addresses are refused
//! and counted. (The stock receiver accepts any address.)

use super::endpoint::{Endpoint, Grant};
use super::shared::Shared;
use super::{EndpointId, Engine};
use alloc::collections::BTreeMap;
use core::fmt;
use drivers::hal::Window;

/// Why a region was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantError {
    /// The endpoint does not exist or has failed.
    Closed,
    /// The region is empty, begins at 0 (the value for "no PUT"), or exceeds the address space.
    Range,
    /// The region overlaps another one.
    Overlaps,
    /// The limit of regions is reached.
    Full,
}

impl fmt::Display for GrantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GrantError::Closed => "the endpoint is closed or has failed",
            GrantError::Range => "a region must not be empty or begin at address 0",
            GrantError::Overlaps => "the region overlaps one that was granted before",
            GrantError::Full => "the limit of granted regions is reached",
        })
    }
}

impl core::error::Error for GrantError {}

/// Regions granted to peers, by the index of the endpoint and the first address.
#[derive(Debug, Default)]
pub(super) struct Grants {
    all: BTreeMap<(u32, u64), Grant>,
}

impl Grants {
    /// The last region of an endpoint that begins at or before an address.
    fn at_or_before(&self, place: u32, address: u64) -> Option<&Grant> {
        self.all.range((place, 0)..=(place, address)).next_back().map(|(_, grant)| grant)
    }
}

impl Engine {
    /// Grants the peer of an endpoint write access to `memory`, which it addresses from `base` on.
    pub fn grant(&mut self, id: EndpointId, base: u64, memory: Window) -> Result<(), GrantError> {
        self.endpoint(id).filter(|endpoint| endpoint.is_alive()).ok_or(GrantError::Closed)?;
        let end = base.checked_add(memory.len() as u64).filter(|_| base > 0 && !memory.is_empty());
        let end = end.ok_or(GrantError::Range)?;
        let before = self.shared.grants.at_or_before(id.place, end - 1);
        let over = |grant: &Grant| grant.base + grant.memory.len() as u64 > base;
        if before.is_some_and(over) {
            return Err(GrantError::Overlaps);
        }
        if self.shared.grants.all.len() >= self.shared.config.grants {
            return Err(GrantError::Full);
        }
        self.shared.grants.all.insert((id.place, base), Grant { base, memory });
        Ok(())
    }

    /// Revokes a region. The peer cannot write to it any more.
    pub fn revoke(&mut self, id: EndpointId, base: u64) {
        let Some(endpoint) = super::find(&mut self.endpoints, id) else { return };
        endpoint.invalidate_grants(&mut self.shared);
        self.shared.grants.all.remove(&(id.place, base));
    }
}

impl Endpoint {
    /// Revokes all regions.
    pub(super) fn revoke_all(&mut self, shared: &mut Shared) {
        self.invalidate_grants(shared);
        shared.grants.all.retain(|(place, _), _| *place != self.id.place);
    }

    /// Makes PUTs in progress look up their regions again.
    fn invalidate_grants(&mut self, shared: &mut Shared) {
        self.last_grant = None;
        let mut next = self.arriving;
        while let Some(message) = shared.messages.get_mut(next.into()) {
            if message.put_address != 0 {
                message.window = Window::empty();
            }
            next = message.after;
        }
    }

    /// The window of a PUT of `size` bytes, if all of it is granted.
    #[inline]
    pub(super) fn granted(&mut self, grants: &Grants, address: u64, size: u32) -> Option<Window> {
        match self.last_grant.as_ref().and_then(|grant| grant.part(address, size)) {
            Some(window) => Some(window),
            None => self.look_up_grant(grants, address, size),
        }
    }

    #[inline(never)]
    fn look_up_grant(&mut self, grants: &Grants, address: u64, size: u32) -> Option<Window> {
        let place = self.id.place;
        let found = grants.at_or_before(place, address);
        let granted = found.and_then(|grant| Some((*grant, grant.part(address, size)?)));
        match granted {
            Some((grant, window)) => {
                self.last_grant = Some(grant);
                Some(window)
            }
            None => {
                self.counters.puts_refused += 1;
                None
            }
        }
    }
}

impl Grant {
    /// The `size` bytes at an address.
    #[inline]
    fn part(&self, address: u64, size: u32) -> Option<Window> {
        let at = usize::try_from(address.checked_sub(self.base)?).ok()?;
        self.memory.slice(at, size as usize)
    }
}
