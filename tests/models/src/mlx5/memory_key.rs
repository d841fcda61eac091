//! Memory keys: translation of key and address to bus memory, with access checks.

use super::command::{BAD_PARAMETER, BAD_RESOURCE, Reply, done, made, refuse};
use super::fields::{be32, be64, get, put32};
use super::{Mlx5, fields};
use crate::Machine;

/// The reserved key. Queues with the right to use it access bus addresses.
pub const RESERVED_KEY: u32 = 0x700;
/// The key that ends a list of segments.
pub const TERMINATE: u32 = 0x100;
/// The null key: writes to its memory are discarded.
const NULL_KEY: u32 = 0x500;

/// Access rights of a key: bit numbers in its context.
pub const ATOMIC: usize = 0x11;
pub const REMOTE_WRITE: usize = 0x12;
pub const REMOTE_READ: usize = 0x13;
pub const LOCAL_WRITE: usize = 0x14;
pub const LOCAL_READ: usize = 0x15;

/// Syndromes of completions.
pub const LOCAL_PROTECTION: u8 = 4;

/// Enable bits of a page entry (Linux: `MLX5_EN_RD`, `MLX5_EN_WR`). A page without is not present. Entries of
/// CREATE_MKEY go without them, those of UMR work requests need them.
const ENABLE_READ: u64 = 1;
const ENABLE_WRITE: u64 = 2;

/// Bytes of a key's list of translations.
const MOST_TRANSLATIONS: usize = 4 << 20;
/// Most levels of indirect keys.
const DEEPEST: u32 = 2;

/// A memory key.
#[derive(Clone, Debug, Default)]
pub struct MemoryKey {
    /// Context of the mkey command.
    pub context: Vec<u8>,
    /// Page addresses, or entries of length, key and address.
    pub translations: Vec<u8>,
    /// Most bytes of translations.
    pub room: usize,
}

impl MemoryKey {
    pub fn domain(&self) -> u32 {
        get(&self.context, 0x68, 24) as u32
    }

    /// Whether the key is in the free state.
    pub fn is_free(&self) -> bool {
        get(&self.context, 1, 1) == 1
    }

    /// The lower eight bits of the key, which its user chooses.
    fn variant(&self) -> u32 {
        get(&self.context, 0x38, 8) as u32
    }

    fn has(&self, right: usize) -> bool {
        get(&self.context, right, 1) == 1
    }

    fn mode(&self) -> u64 {
        get(&self.context, 3, 3) << 2 | get(&self.context, 0x16, 2)
    }
}

/// Rights and origin of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The protection domain. Ethernet send queues have none.
    pub domain: Option<u32>,
    /// The required access right.
    pub right: usize,
    /// The reserved key is permitted.
    pub reserved_key: bool,
    /// The queue pair, if one makes the access.
    pub pair: Option<u32>,
}

/// Bus addresses and lengths.
type Pieces = Vec<(u64, u64)>;

impl Mlx5 {
    pub(super) fn key_command(&mut self, opcode: u16, input: &[u8]) -> Reply {
        let index = be32(input, 8) & 0xff_ffff;
        match opcode {
            0x200 => self.create_key(input),
            0x201 => {
                let Some(key) = self.state.keys.get(&index) else {
                    return refuse(BAD_RESOURCE, format!("key {index:#x}"));
                };
                let mut output = vec![0; 16];
                output.extend_from_slice(&key.context);
                output.resize(0x130, 0);
                Ok(output)
            }
            0x202 => match self.state.keys.remove(&index) {
                Some(_) => done(),
                None => refuse(BAD_RESOURCE, format!("key {index:#x}")),
            },
            _ => {
                let mut output = vec![0; 0x20];
                put32(&mut output, 0x08, 0x200);
                put32(&mut output, 0x0c, RESERVED_KEY);
                put32(&mut output, 0x10, NULL_KEY);
                put32(&mut output, 0x14, TERMINATE);
                Ok(output)
            }
        }
    }

    fn create_key(&mut self, input: &[u8]) -> Reply {
        let context = input[0x10..0x50].to_vec();
        let mut translations = input[0x110..].to_vec();
        // Both in units of 16 bytes: size of the translation table, and entries in this command.
        let room = get(&context, 0x1a0, 32) as usize * 16;
        let given = be32(input, 0x60) as usize * 16;
        let key = MemoryKey { context, translations: Vec::new(), room };
        if key.mode() > 3 {
            return refuse(BAD_PARAMETER, format!("access mode {}", key.mode()));
        }
        if room > MOST_TRANSLATIONS || given > room || translations.len() < given {
            let have = translations.len();
            let why =
                format!("{given} bytes of translations, {have} of them there, room for {room}");
            return refuse(BAD_PARAMETER, why);
        }
        // A free key of domain 0 is filled later by UMR work requests.
        if !key.is_free() || key.domain() != 0 {
            self.check_domain(key.domain())?;
        }
        if key.mode() != 0 && !key.is_free() && key.mode() == 1 {
            let (start, length) = (get(&key.context, 0x80, 64), get(&key.context, 0xc0, 64));
            let shift = page_shift(&key.context);
            let pages = ((start & ((1 << shift) - 1)) + length).div_ceil(1 << shift);
            if (given as u64) < 8 * pages {
                return refuse(
                    BAD_PARAMETER,
                    format!("{length:#x} bytes in {given} of translations"),
                );
            }
        }
        translations.truncate(given);
        if key.mode() == 1 {
            let enabled = (ENABLE_READ | ENABLE_WRITE) as u8;
            translations.chunks_exact_mut(8).for_each(|entry| entry[7] |= enabled);
        }
        let index = self.state.number(0x200, 0x100);
        self.state.keys.insert(index, MemoryKey { translations, ..key });
        made(index)
    }

    /// Translates a key and an address to bus memory, if the access has the rights.
    fn resolve(
        &self,
        access: Access,
        key: u32,
        address: u64,
        length: u64,
        depth: u32,
        pieces: &mut Pieces,
    ) -> Option<()> {
        if length == 0 {
            return Some(());
        }
        if key == RESERVED_KEY && access.reserved_key {
            pieces.push((address, length));
            return Some(());
        }
        let found = self.state.keys.get(&(key >> 8))?;
        let context = &found.context;
        let pair = get(context, 0x20, 24) as u32;
        let is_its = pair == 0xff_ffff || access.pair == Some(pair);
        let right = found.has(access.right) || depth > 0;
        if found.variant() != key & 0xff || found.is_free() || !is_its || !right {
            return None;
        }
        if access.domain.is_some_and(|domain| domain != found.domain()) {
            return None;
        }
        let (start, size) = (get(context, 0x80, 64), get(context, 0xc0, 64));
        let whole = get(context, 0x60, 1) == 1;
        if !whole && (address < start || address.checked_add(length)? > start.checked_add(size)?) {
            return None;
        }
        match found.mode() {
            0 => pieces.push((address, length)),
            1 => {
                let shift = page_shift(context);
                let mask = (1u64 << shift) - 1;
                let (mut at, mut left) = (address - start + (start & mask), length);
                while left > 0 {
                    let index = (at >> shift) as usize * 8;
                    let entry = be64(found.translations.get(index..index + 8)?, 0);
                    let writes = matches!(access.right, LOCAL_WRITE | REMOTE_WRITE | ATOMIC);
                    let needed = if writes { ENABLE_WRITE } else { ENABLE_READ };
                    if entry & needed == 0 {
                        return None;
                    }
                    let page = entry & !0xfff;
                    let count = (mask + 1 - (at & mask)).min(left);
                    pieces.push((page + (at & mask), count));
                    (at, left) = (at + count, left - count);
                }
            }
            // Entries of length, key and address. In mode 3 all have the same length.
            mode => {
                if depth >= DEEPEST {
                    return None;
                }
                let fixed = (mode == 3).then(|| 1u64 << page_shift(context));
                let (mut at, mut left) = (address - start, length);
                for entry in found.translations.chunks_exact(16) {
                    let size = fixed.unwrap_or(be32(entry, 0).into());
                    if at >= size {
                        at -= size;
                        continue;
                    }
                    let count = (size - at).min(left);
                    let (key, address) = (be32(entry, 4), be64(entry, 8) + at);
                    self.resolve(access, key, address, count, depth + 1, pieces)?;
                    (at, left) = (0, left - count);
                    if left == 0 {
                        return Some(());
                    }
                }
                return None;
            }
        }
        Some(())
    }

    /// Whether the access to this memory is permitted.
    pub(super) fn may_reach(&self, access: Access, key: u32, address: u64, length: u64) -> bool {
        self.resolve(access, key, address, length, 0, &mut Pieces::new()).is_some()
    }

    /// Reads memory and appends it to `into`. An error is the syndrome.
    pub(super) fn gather(
        &self,
        access: Access,
        key: u32,
        address: u64,
        length: usize,
        into: &mut Vec<u8>,
        machine: &mut dyn Machine,
    ) -> Result<(), u8> {
        let mut pieces = Pieces::new();
        let found = self.resolve(access, key, address, length as u64, 0, &mut pieces);
        found.ok_or(LOCAL_PROTECTION)?;
        for (at, count) in pieces {
            let from = into.len();
            into.resize(from + count as usize, 0);
            machine.read(at, &mut into[from..]).map_err(|_| LOCAL_PROTECTION)?;
        }
        Ok(())
    }

    /// Writes bytes to memory. An error is the syndrome.
    pub(super) fn scatter(
        &self,
        access: Access,
        key: u32,
        address: u64,
        bytes: &[u8],
        machine: &mut dyn Machine,
    ) -> Result<(), u8> {
        let mut pieces = Pieces::new();
        let found = self.resolve(access, key, address, bytes.len() as u64, 0, &mut pieces);
        found.ok_or(LOCAL_PROTECTION)?;
        let mut rest = bytes;
        for (at, count) in pieces {
            let (part, behind) = rest.split_at(count as usize);
            machine.write(at, part).map_err(|_| LOCAL_PROTECTION)?;
            rest = behind;
        }
        Ok(())
    }
}

/// Log2 of the bytes of a page of a key.
fn page_shift(context: &[u8]) -> u32 {
    match fields::get(context, 0x1da, 6) as u32 {
        0 => 12,
        shift => shift.min(40),
    }
}
