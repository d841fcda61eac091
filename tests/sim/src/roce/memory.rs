//! The memory of a host, and a shadow copy with its expected contents.

use drivers::hal::Window;
use netsim::Rng;
use rand_core::Rng as _;
use std::collections::BTreeMap;

/// Memory with a shadow. A range is either closed (it equals the shadow) or open (peers may write to it, and other
/// checks apply).
#[derive(Debug)]
pub struct Memory {
    all: Window,
    shadow: Vec<u8>,
    /// Open ranges: offset, length.
    open: BTreeMap<usize, usize>,
}

impl Memory {
    /// Fills `all` with random bytes, and closes it.
    pub fn new(all: Window, rng: &mut Rng) -> Self {
        let mut shadow = vec![0; all.len()];
        rng.fill_bytes(&mut shadow);
        all.write(0, &shadow).expect("the lengths are equal");
        Memory { all, shadow, open: BTreeMap::new() }
    }

    fn offset(&self, part: &Window) -> usize {
        (part.bus_address() - self.all.bus_address()) as usize
    }

    /// A write by the host itself.
    pub fn put(&mut self, part: &Window, bytes: &[u8]) {
        let at = self.offset(part);
        part.write(0, bytes).expect("it fits");
        self.shadow[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Contents of the shadow.
    pub fn expected(&self, part: &Window) -> &[u8] {
        &self.shadow[self.offset(part)..][..part.len()]
    }

    /// Lets peers write to `part` from now on.
    pub fn open(&mut self, part: &Window) {
        let was = self.open.insert(self.offset(part), part.len());
        assert_eq!(was, None, "the part was open");
    }

    /// Closes the open `part`: its present contents must stay.
    pub fn close(&mut self, part: &Window) {
        let at = self.offset(part);
        assert_eq!(self.open.remove(&at), Some(part.len()), "the part was not open");
        part.read(0, &mut self.shadow[at..at + part.len()]).expect("it fits");
    }

    /// Panics if a closed byte has changed.
    pub fn check(&self, whose: usize) {
        let bytes = contents(&self.all);
        let mut from = 0;
        for (&at, &len) in self.open.iter().chain([(&self.shadow.len(), &0)]) {
            if bytes[from..at] != self.shadow[from..at] {
                let wrong = (from..at).find(|&n| bytes[n] != self.shadow[n]);
                panic!("byte {wrong:?} of host {whose} was changed, which no peer may write");
            }
            from = at + len;
        }
    }
}

/// The bytes of a window.
pub fn contents(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; window.len()];
    window.read(0, &mut bytes).expect("the lengths are equal");
    bytes
}
