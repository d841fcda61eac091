//! UMR: work requests that change memory keys.

use super::Mlx5;
use super::fields::{be16, be32, be64, get, set};
use super::memory_key::{Access, LOCAL_PROTECTION, LOCAL_READ};
use crate::Machine;

/// Syndrome of a failed UMR.
const BIND: u8 = 6;
/// Single-bit fields: bit in the mask, bit in the context.
const SINGLE: [(u32, usize); 7] =
    [(8, 0x67), (17, 0x15), (18, 0x14), (19, 0x13), (20, 0x12), (21, 0x11), (29, 1)];

impl Mlx5 {
    /// Executes the work request. An error is the syndrome.
    pub(super) fn change_key(
        &mut self,
        access: Access,
        request: &[u8],
        machine: &mut dyn Machine,
    ) -> Result<(), u8> {
        let control = request.get(16..64).ok_or(BIND)?;
        let wanted = request.get(64..128).ok_or(BIND)?;
        let (flags, size, mask) =
            (control[0], usize::from(be16(control, 4)) * 16, be64(control, 8));
        let key = be32(request, 12);
        let mut list = Vec::new();
        if size > 0 && flags & 0x80 != 0 {
            list.extend_from_slice(request.get(128..128 + size).ok_or(BIND)?);
        } else if size > 0 {
            let data = request.get(128..144).ok_or(BIND)?;
            let (count, from, address) = (be32(data, 0), be32(data, 4), be64(data, 8));
            let access = Access { right: LOCAL_READ, ..access };
            self.gather(access, from, address, count as usize, &mut list, machine)?;
            list.truncate(size);
        }
        let offset = match flags & 0x10 != 0 {
            true => ((be32(control, 16) as usize) << 16 | usize::from(be16(control, 6))) * 16,
            false => 0,
        };
        let Some(found) = self.state.keys.get_mut(&(key >> 8)) else { return Err(BIND) };
        let is_free = found.is_free();
        let refused = match flags >> 5 & 3 {
            1 => !is_free,
            2 => is_free,
            _ => false,
        };
        // Lists are padded to 64 bytes.
        let room = found.room.next_multiple_of(64);
        // Only a key that was created with UMR enabled can be changed.
        if refused || get(&found.context, 0x10, 1) == 0 || offset + list.len() > room {
            return Err(BIND);
        }
        let domain = get(wanted, 0x68, 24) as u32;
        if mask >> 7 & 1 == 1 && access.domain.is_some_and(|own| own != domain) {
            return Err(LOCAL_PROTECTION);
        }
        if !list.is_empty() {
            let end = offset + list.len();
            if found.translations.len() < end {
                found.translations.resize(end, 0);
            }
            found.translations[offset..end].copy_from_slice(&list);
        }
        let context = &mut found.context;
        let mut take = |select: u32, bit: usize, width: usize| {
            if mask >> select & 1 == 1 {
                set(context, bit, width, get(wanted, bit, width));
            }
        };
        take(0, 0xc0, 64);
        take(0, 0x60, 1);
        take(1, 0x1da, 6);
        take(6, 0x80, 64);
        take(7, 0x68, 24);
        take(13, 0x38, 8);
        take(14, 0x20, 24);
        SINGLE.into_iter().for_each(|(select, bit)| take(select, bit, 1));
        Ok(())
    }

    /// Invalidates a key for a received SEND with invalidate. Returns whether that is permitted.
    pub(super) fn invalidate(&mut self, key: u32, domain: u32) -> bool {
        let Some(found) = self.state.keys.get_mut(&(key >> 8)) else { return false };
        let allowed = get(&found.context, 0x67, 1) == 1 && found.domain() == domain;
        if allowed {
            set(&mut found.context, 1, 1, 1);
        }
        allowed
    }
}
