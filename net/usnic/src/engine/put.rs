//! PUTs of the peer: it writes into regions of ours, at addresses that we gave it. What we did not give is refused,
//! and counted; the stock receiver believes any address.

use super::endpoint::{Endpoint, Grant};
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
        let before = self.grants.range(..(id.place, end)).next_back();
        let over = |grant: &Grant| grant.base + grant.memory.len() as u64 > base;
        if before.is_some_and(|(&(place, _), grant)| place == id.place && over(grant)) {
            return Err(GrantError::Overlaps);
        }
        if self.grants.len() >= self.config.grants {
            return Err(GrantError::Full);
        }
        self.grants.insert((id.place, base), Grant { base, memory });
        Ok(())
    }

    /// Takes a region back. Nothing is written to it from now on.
    pub fn revoke(&mut self, id: EndpointId, base: u64) {
        let Some(endpoint) = self.endpoint_mut(id) else { return };
        endpoint.last_grant = None;
        self.grants.remove(&(id.place, base));
    }

    /// Takes all regions of an endpoint back.
    pub(super) fn revoke_all(&mut self, place: u32) {
        if let Some(endpoint) = self.at(place) {
            endpoint.last_grant = None;
        }
        self.grants.retain(|&(other, _), _| other != place);
    }

    /// Whether the peer may write all of `size` bytes at an address.
    pub(super) fn is_granted(&mut self, place: u32, address: u64, size: usize) -> bool {
        self.granted(place, address, size).is_some()
    }

    /// The window of a PUT, if the peer may write there.
    fn granted(&mut self, place: u32, address: u64, size: usize) -> Option<Window> {
        let Engine { endpoints, grants, .. } = self;
        let endpoint: &mut Endpoint = endpoints.get_mut(place as usize)?.as_mut()?;
        let part = |grant: &Grant| {
            let at = usize::try_from(address.checked_sub(grant.base)?).ok()?;
            grant.memory.slice(at, size)
        };
        if let Some(window) = endpoint.last_grant.as_ref().and_then(part) {
            return Some(window);
        }
        let (_, grant) = grants.range((place, 0)..=(place, address)).next_back()?;
        let window = part(grant)?;
        endpoint.last_grant = Some(*grant);
        Some(window)
    }

    /// Writes a payload at `offset` of a PUT of `size` bytes; false if the peer may not.
    pub(super) fn write_granted(
        &mut self,
        place: u32,
        address: u64,
        size: usize,
        offset: u32,
        payload: &[u8],
    ) -> bool {
        let window = self.granted(place, address, size);
        let written = window.is_some_and(|window| window.write(offset as usize, payload).is_ok());
        if !written {
            self.refuse_put(place);
        }
        written
    }

    pub(super) fn refuse_put(&mut self, place: u32) {
        if let Some(endpoint) = self.at(place) {
            endpoint.counters.puts_refused += 1;
        }
    }
}
