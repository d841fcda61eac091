//! The rings of an adapter: requests, completions, and their indices (`struct PVSCSIRingsState`, `PVSCSIRingReqDesc`,
//! `PVSCSIRingCmpDesc`). Indices run freely, and count modulo the number of entries. Nothing that the adapter writes is
//! an index here except the end of the completions, which is compared with this driver's own.

use crate::hal::{Arena, Cells, Window};
use core::sync::atomic::{AtomicU64, Ordering, fence};

const PAGE: usize = 4096;
const REQUEST: usize = 128;
const COMPLETION: usize = 32;

// Indices, as offsets in the page of state.
const REQUESTS_END: usize = 0;
const REQUESTS_BEGIN: usize = 4;
const COMPLETIONS_END: usize = 12;
const COMPLETIONS_BEGIN: usize = 16;
const CALL_THRESHOLD: usize = 24;

/// Words of a request's descriptor that are not zero.
pub const WORDS: usize = 9;

/// A request's descriptor.
pub type Descriptor = [u64; WORDS];

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Context of the request.
    pub context: u64,
    /// Bytes that were transferred, where the host's status says that it were fewer than wanted.
    pub bytes: u64,
    /// Bytes of sense data.
    pub sense: u32,
    pub host_status: u16,
    pub scsi_status: u16,
}

/// The rings, of as many entries.
pub struct Rings {
    memory: Window,
    requests: Cells<AtomicU64>,
    completions: Cells<AtomicU64>,
    pages: usize,
    entries: u32,
    completion_entries: u32,
    /// Requests that were put into the ring, and completions that were taken.
    put: u32,
    announced: u32,
    taken: u32,
    returned: u32,
}

impl Rings {
    /// Rings of `pages` pages of requests, a power of two, 32 at most. An error is the number of missing bytes.
    pub fn alloc(pages: usize, arena: &mut Arena) -> Result<Rings, usize> {
        let entries = pages * PAGE / REQUEST;
        // Never fewer completions than requests.
        let completion_pages = (entries * COMPLETION).div_ceil(PAGE);
        let bytes = PAGE * (1 + pages + completion_pages);
        let memory = arena.alloc(bytes, PAGE).ok_or(bytes)?;
        let completion_entries = completion_pages * PAGE / COMPLETION;
        let requests = Cells::new(&memory, PAGE, pages * PAGE / 8).ok_or(bytes)?;
        let completions = Cells::new(&memory, PAGE * (1 + pages), completion_pages * PAGE / 8);
        let mut rings = Rings {
            memory,
            requests,
            completions: completions.ok_or(bytes)?,
            pages,
            entries: entries as u32,
            completion_entries: completion_entries as u32,
            put: 0,
            announced: 0,
            taken: 0,
            returned: 0,
        };
        rings.clear();
        Ok(rings)
    }

    /// Clears the rings. The adapter must not have them.
    pub fn clear(&mut self) {
        self.memory.fill(0);
        (self.put, self.announced, self.taken, self.returned) = (0, 0, 0, 0);
    }

    /// Number of requests that fit.
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Number of the page of indices.
    pub fn state_page(&self) -> u64 {
        self.memory.bus_address() / PAGE as u64
    }

    /// First page of requests, and number of pages.
    pub fn requests(&self) -> (u64, usize) {
        (self.state_page() + 1, self.pages)
    }

    /// First page of completions, and number of pages.
    pub fn completions(&self) -> (u64, usize) {
        let pages = self.completion_entries as usize * COMPLETION / PAGE;
        (self.state_page() + 1 + self.pages as u64, pages)
    }

    /// Puts a request into the ring. The caller ensures that no more requests are in flight than there are entries.
    #[inline]
    pub fn put(&mut self, descriptor: &Descriptor) {
        let at = (self.put & (self.entries - 1)) as usize * (REQUEST / 8);
        for (n, word) in descriptor.iter().enumerate() {
            self.requests.store(at + n, *word);
        }
        self.put = self.put.wrapping_add(1);
    }

    /// Makes requests visible to the adapter. False if there are none.
    #[inline]
    pub fn announce(&mut self) -> bool {
        if self.announced == self.put {
            return false;
        }
        self.announced = self.put;
        self.memory.store32(REQUESTS_END, self.put);
        true
    }

    /// Whether the adapter wants to be notified of reads and writes (`use_req_threshold`).
    #[inline]
    pub fn wants_notice(&self) -> bool {
        // The adapter stops to look at the ring before it wants notices, so its wish must be read after the store of
        // the index.
        fence(Ordering::SeqCst);
        let waiting = self.put.wrapping_sub(self.memory.load32(REQUESTS_BEGIN));
        waiting >= self.memory.load32(CALL_THRESHOLD)
    }

    /// Number of completions that wait. None if the adapter claims more than there can be.
    #[inline]
    fn waiting(&self) -> Option<u32> {
        let waiting = self.memory.load32(COMPLETIONS_END).wrapping_sub(self.taken);
        (waiting <= self.completion_entries).then_some(waiting)
    }

    /// Whether a completion waits.
    pub fn pending(&self) -> bool {
        self.waiting() != Some(0)
    }

    /// The next completion, if there is one. An error if the adapter claims more than there can be.
    #[inline]
    pub fn take(&mut self) -> Result<Option<Completion>, ()> {
        if self.waiting().ok_or(())? == 0 {
            if self.returned != self.taken {
                self.returned = self.taken;
                self.memory.store32(COMPLETIONS_BEGIN, self.taken);
            }
            return Ok(None);
        }
        let at = (self.taken & (self.completion_entries - 1)) as usize * (COMPLETION / 8);
        let [context, bytes, status] = [0, 1, 2].map(|n| self.completions.load(at + n));
        self.taken = self.taken.wrapping_add(1);
        Ok(Some(Completion {
            context,
            bytes,
            sense: status as u32,
            host_status: (status >> 32) as u16,
            scsi_status: (status >> 48) as u16,
        }))
    }

    /// Number of completions that were taken.
    pub fn taken(&self) -> u32 {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_completions_go_around_the_rings() {
        let mut rings = Rings::alloc(1, &mut Arena::on_heap(1 << 16)).unwrap();
        let memory = rings.memory;
        assert_eq!((rings.entries(), rings.completions().1), (32, 1));
        assert!(!rings.announce());
        for n in 0..300u32 {
            rings.put(&[u64::from(n); WORDS]);
            assert!(rings.announce() && !rings.pending());
            assert_eq!(memory.load32(REQUESTS_END), n + 1);
            assert_eq!(memory.load64(PAGE + (n as usize % 32) * REQUEST), u64::from(n));
            let at = 2 * PAGE + (n as usize % 128) * COMPLETION;
            memory.store64(at, u64::from(n) + 7);
            memory.store64(at + 16, 2 << 48 | 0x11 << 32 | 18);
            memory.store32(COMPLETIONS_END, n + 1);
            assert!(rings.pending());
            let done = rings.take().unwrap().unwrap();
            assert_eq!((done.context, done.sense), (u64::from(n) + 7, 18));
            assert_eq!((done.host_status, done.scsi_status), (0x11, 2));
            assert_eq!(rings.take(), Ok(None));
            assert_eq!(memory.load32(COMPLETIONS_BEGIN), n + 1);
        }
        memory.store32(COMPLETIONS_END, 5000);
        assert!(rings.pending() && rings.take().is_err());
    }
}
