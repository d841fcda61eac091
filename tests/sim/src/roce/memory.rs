//! The memory of a host, and a copy of it that says what has to be there.

use drivers::hal::Window;
use netsim::Rng;
use rand_core::RngCore;
use std::collections::BTreeMap;

/// Memory with a shadow. A stretch is either closed (it holds what the shadow holds) or open (others
/// may be writing there, and somebody else knows what).
#[derive(Debug)]
pub struct Memory {
    all: Window,
    shadow: Vec<u8>,
    /// Open stretches: offset, length.
    open: BTreeMap<usize, usize>,
}

impl Memory {
    /// `all`, filled by chance, and closed.
    pub fn new(all: Window, rng: &mut Rng) -> Self {
        let mut shadow = vec![0; all.len()];
        rng.fill_bytes(&mut shadow);
        all.write(0, &shadow).expect("its own length");
        Memory { all, shadow, open: BTreeMap::new() }
    }

    fn offset(&self, part: &Window) -> usize {
        (part.bus_address() - self.all.bus_address()) as usize
    }

    /// Writes, as the host itself does.
    pub fn put(&mut self, part: &Window, bytes: &[u8]) {
        let at = self.offset(part);
        part.write(0, bytes).expect("it fits");
        self.shadow[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// What the shadow says.
    pub fn expected(&self, part: &Window) -> &[u8] {
        &self.shadow[self.offset(part)..][..part.len()]
    }

    /// Others may write to `part` from now on.
    pub fn open(&mut self, part: &Window) {
        let was = self.open.insert(self.offset(part), part.len());
        assert_eq!(was, None, "it was open");
    }

    /// `part` was open; what lies there now has to stay.
    pub fn close(&mut self, part: &Window) {
        let at = self.offset(part);
        assert_eq!(self.open.remove(&at), Some(part.len()), "it was not open");
        part.read(0, &mut self.shadow[at..at + part.len()]).expect("it fits");
    }

    /// Panics if a closed byte is not what it has to be.
    pub fn check(&self, whose: usize) {
        let bytes = contents(&self.all);
        let mut from = 0;
        for (&at, &len) in self.open.iter().chain([(&self.shadow.len(), &0)]) {
            if bytes[from..at] != self.shadow[from..at] {
                let wrong = (from..at).find(|&n| bytes[n] != self.shadow[n]);
                panic!("byte {wrong:?} of host {whose} was touched, which was granted to nobody");
            }
            from = at + len;
        }
    }
}

/// The bytes of a window.
pub fn contents(window: &Window) -> Vec<u8> {
    let mut bytes = vec![0; window.len()];
    window.read(0, &mut bytes).expect("its own length");
    bytes
}
