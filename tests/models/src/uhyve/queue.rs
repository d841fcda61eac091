//! The device side of a virtqueue as in rust-vmm's `virtio-queue`, without event indices.

use crate::{Machine, Unreachable};

/// Entries.
const SIZE: u16 = 256;
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// A queue.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// Descriptor table, available ring, used ring.
    addresses: [u64; 3],
    pub ready: bool,
    next_available: u16,
    next_used: u16,
}

/// A descriptor chain.
pub struct Chain {
    pub head: u16,
    /// Address, length, and whether the part is device-writable.
    pub parts: Vec<(u64, u32, bool)>,
}

/// Reason why a queue is invalid.
#[derive(Debug)]
pub struct Wrong(pub String);

impl From<Unreachable> for Wrong {
    fn from(Unreachable(address): Unreachable) -> Self {
        Wrong(format!("{address:#x} is not in memory"))
    }
}

fn u16_at(memory: &mut dyn Machine, address: u64) -> Result<u16, Wrong> {
    let mut bytes = [0; 2];
    memory.read(address, &mut bytes)?;
    Ok(u16::from_le_bytes(bytes))
}

impl Queue {
    /// Sets a half of an address. A misaligned address is ignored.
    pub fn set_address(&mut self, half: u8, part: u32) {
        const ALIGN: [u64; 3] = [16, 2, 4];
        let which = usize::from(half / 2);
        let address = &mut self.addresses[which];
        let new = match half % 2 {
            0 => *address & !0xffff_ffff | u64::from(part),
            _ => *address & 0xffff_ffff | u64::from(part) << 32,
        };
        if new.is_multiple_of(ALIGN[which]) {
            *address = new;
        }
    }

    /// Whether the queue is ready and in memory.
    pub fn is_valid(&self, memory: &mut dyn Machine) -> bool {
        let size = u64::from(SIZE);
        let [table, available, used] = self.addresses;
        let ends = [table + size * 16 - 1, available + 4 + size * 2 + 1, used + 4 + size * 8 + 1];
        self.ready && ends.into_iter().all(|end| memory.read(end, &mut [0]).is_ok())
    }

    /// Enables or disables notifications from the driver.
    pub fn want_notification(&self, memory: &mut dyn Machine, wanted: bool) -> Result<(), Wrong> {
        Ok(memory.write(self.addresses[2], &u16::from(!wanted).to_le_bytes())?)
    }

    /// Takes the next chain.
    pub fn pop(&mut self, memory: &mut dyn Machine) -> Result<Option<Chain>, Wrong> {
        let [table, available, _] = self.addresses;
        let offered = u16_at(memory, available + 2)?.wrapping_sub(self.next_available);
        if offered > SIZE {
            return Err(Wrong(format!("{offered} chains are offered in a queue of {SIZE}")));
        }
        if offered == 0 {
            return Ok(None);
        }
        let at = u64::from(self.next_available % SIZE);
        let head = u16_at(memory, available + 4 + at * 2)?;
        self.next_available = self.next_available.wrapping_add(1);
        let (mut parts, mut index) = (Vec::new(), head);
        for _ in 0..SIZE {
            if index >= SIZE {
                break;
            }
            let mut bytes = [0; 16];
            memory.read(table + u64::from(index) * 16, &mut bytes)?;
            let [address, rest] =
                [0, 8].map(|i| u64::from_le_bytes(bytes[i..i + 8].try_into().unwrap()));
            let (flags, next) = ((rest >> 32) as u16, (rest >> 48) as u16);
            parts.push((address, rest as u32, flags & WRITE != 0));
            if flags & NEXT == 0 {
                break;
            }
            index = next;
        }
        Ok(Some(Chain { head, parts }))
    }

    /// Returns a chain to the driver.
    pub fn add_used(
        &mut self,
        memory: &mut dyn Machine,
        head: u16,
        written: u32,
    ) -> Result<(), Wrong> {
        if head >= SIZE {
            return Err(Wrong(format!("there is no descriptor {head}")));
        }
        self.put_used(memory, head.into(), written, self.next_used.wrapping_add(1))
    }

    /// Writes a used entry and the index, without checks.
    pub fn put_used(
        &mut self,
        memory: &mut dyn Machine,
        head: u32,
        written: u32,
        index: u16,
    ) -> Result<(), Wrong> {
        let used = self.addresses[2];
        let at = used + 4 + u64::from(self.next_used % SIZE) * 8;
        memory.write(at, &[head.to_le_bytes(), written.to_le_bytes()].concat())?;
        self.next_used = index;
        Ok(memory.write(used + 2, &index.to_le_bytes())?)
    }
}
