//! PUTs of the peer: it writes into regions of ours, at addresses that we gave it. What we did not give is refused,
//! and counted; the stock receiver believes any address.

use super::endpoint::{Endpoint, Grant};
use super::shared::{Grants, Shared};
use super::{EndpointId, Engine};
use core::fmt;
use drivers::hal::Window;

/// Why a region was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantError {
    /// There is no such endpoint.
    Closed,
    /// It has no bytes, begins at 0 (which means that there is no PUT), or ends behind the last address.
    Range,
    /// It lies over another.
    Overlaps,
    /// There are as many as there may be.
    Full,
}

impl fmt::Display for GrantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GrantError::Closed => "the endpoint is closed or has failed",
            GrantError::Range => "a region has bytes, and begins at an address that is not 0",
            GrantError::Overlaps => "the region lies over one that was granted before",
            GrantError::Full => "as many regions are granted as may be",
        })
    }
}

impl core::error::Error for GrantError {}

impl Engine {
    /// Lets the peer of an endpoint write into `memory`, which it has to address from `base` on.
    pub fn grant(&mut self, id: EndpointId, base: u64, memory: Window) -> Result<(), GrantError> {
        self.endpoint(id).filter(|endpoint| endpoint.is_alive()).ok_or(GrantError::Closed)?;
        let end = base.checked_add(memory.len() as u64).filter(|_| base > 0 && !memory.is_empty());
        let end = end.ok_or(GrantError::Range)?;
        let before = self.shared.grants.range(..(id.place, end)).next_back();
        let over = |grant: &Grant| grant.base + grant.memory.len() as u64 > base;
        if before.is_some_and(|(&(place, _), grant)| place == id.place && over(grant)) {
            return Err(GrantError::Overlaps);
        }
        if self.shared.grants.len() >= self.shared.config.grants {
            return Err(GrantError::Full);
        }
        self.shared.grants.insert((id.place, base), Grant { base, memory });
        Ok(())
    }

    /// Takes a region back. Nothing is written to it from now on.
    pub fn revoke(&mut self, id: EndpointId, base: u64) {
        let Some(endpoint) = self.endpoint_mut(id) else { return };
        endpoint.last_grant = None;
        self.shared.grants.remove(&(id.place, base));
    }
}

impl Endpoint {
    /// Takes all regions back.
    pub(super) fn revoke_all(&mut self, shared: &mut Shared) {
        self.last_grant = None;
        shared.grants.retain(|&(place, _), _| place != self.id.place);
    }

    /// The window of a PUT of `size` bytes, if the peer may write all of it.
    #[inline(always)]
    pub(super) fn granted(&mut self, grants: &Grants, address: u64, size: u32) -> Option<Window> {
        match self.last_grant.as_ref().and_then(|grant| grant.part(address, size)) {
            Some(window) => Some(window),
            None => self.look_for_grant(grants, address, size),
        }
    }

    #[inline(never)]
    fn look_for_grant(&mut self, grants: &Grants, address: u64, size: u32) -> Option<Window> {
        let place = self.id.place;
        let found = grants.range((place, 0)..=(place, address)).next_back();
        let granted = found.and_then(|(_, grant)| Some((*grant, grant.part(address, size)?)));
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
    /// The part of `size` bytes at an address.
    #[inline(always)]
    fn part(&self, address: u64, size: u32) -> Option<Window> {
        let at = usize::try_from(address.checked_sub(self.base)?).ok()?;
        self.memory.slice(at, size as usize)
    }
}
