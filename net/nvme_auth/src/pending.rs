//! A bound on authentications that have begun and are not complete, by host and in all.

use alloc::vec::Vec;

/// Unfinished authentications. One table for a whole target, which all its queues share.
#[derive(Debug)]
pub struct Pending {
    /// The host of each, by a key of the caller, such as a hash of its address.
    hosts: Vec<u64>,
    total: usize,
    by_host: usize,
}

impl Pending {
    /// At most `total` at a time, and `by_host` of one host.
    pub fn new(total: usize, by_host: usize) -> Pending {
        Pending { hosts: Vec::with_capacity(total), total, by_host }
    }

    /// Counts one more of a host. False if there are too many; the caller rejects the host's Negotiate with a status
    /// that lets it try again.
    pub fn begin(&mut self, host: u64) -> bool {
        let of_host = self.hosts.iter().filter(|other| **other == host).count();
        let fits = self.hosts.len() < self.total && of_host < self.by_host;
        if fits {
            self.hosts.push(host);
        }
        fits
    }

    /// Counts one less of a host, of which [`Pending::begin`] was true.
    pub fn end(&mut self, host: u64) {
        if let Some(place) = self.hosts.iter().position(|other| *other == host) {
            self.hosts.swap_remove(place);
        }
    }

    /// Number of unfinished authentications.
    pub fn count(&self) -> usize {
        self.hosts.len()
    }
}
