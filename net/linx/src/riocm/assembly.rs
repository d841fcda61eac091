//! Reassembly of messages in parts. The parts of a message come in order and carry its id. Several messages may be in
//! reassembly at a time.
//!
//! The sender of a patched message overwrites bytes of the message with headers: 32 bytes before the payload of
//! PATCH_START, and 16 before the payload of each FRAG. The overwritten bytes follow in PATCHes: first the 32 bytes,
//! then the 16 of each FRAG, each of these within one PATCH. The remaining bytes of the PATCHes are the end of the
//! message.

use super::arrival::Payload;
use super::connection::{ASSEMBLIES, Connection};
use super::{Fault, Message};
use crate::pool::{Chain, Pool};
use crate::wire::riocm::{self, FRAG_PATCH, HEAD_PATCH, Part};

/// A message in reassembly.
#[derive(Debug)]
pub(super) struct Assembly {
    id: u8,
    message: riocm::Message,
    pub chain: Chain,
    /// Bytes of the message in the chain, including holes.
    placed: usize,
    patching: Option<Patching>,
}

/// Patching state of a message.
#[derive(Debug)]
struct Patching {
    fragments: u16,
    patches: u16,
    /// Received fragments that are not patched yet.
    unpatched: u16,
    head_is_done: bool,
    /// Offsets of the next and the last hole in the memory. Each hole stores the offset of the following one.
    hole: usize,
    last: usize,
}

impl Patching {
    /// Records a fragment with a hole in front.
    #[inline]
    fn add(&mut self, pool: &Pool, hole: usize) {
        match self.head_is_done && self.unpatched == 0 {
            true => self.hole = hole,
            false => pool.keep(self.last, hole),
        }
        self.last = hole;
        self.unpatched += 1;
    }

    /// Fills the next hole. The caller has checked that there is one.
    #[inline]
    fn fill<const N: usize>(&mut self, pool: &Pool, patch: &[u8; N]) -> Result<(), Fault> {
        self.hole = pool.fill(self.hole, patch).ok_or(Fault::Patches)?;
        Ok(())
    }
}

impl Assembly {
    fn left(&self) -> usize {
        (self.message.size as usize).saturating_sub(self.placed)
    }
}

/// Why a part is refused.
pub(super) enum Refused {
    Fault(Fault),
    NoRoom,
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Refused::Fault(fault)
    }
}

impl Connection {
    /// Adds a part to its message. Returns the message if it is complete.
    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
    #[inline(always)]
    pub(super) fn place(
        &mut self,
        pool: &mut Pool,
        id: u8,
        part: Part,
        payload: Payload<'_>,
    ) -> Result<Option<Message>, Refused> {
        match part {
            Part::Single(message) => self.place_single(pool, message, payload),
            Part::Fragment => self.place_fragment(pool, id, payload),
            Part::Start(_) | Part::PatchStart { .. } => self.place_start(pool, id, part, payload),
            Part::Patch => self.place_patch(pool, id, payload),
        }
    }

    /// Handles a message of one part. Every delivered message takes at least one piece, so there are no more messages
    /// than pieces.
    #[inline(never)]
    fn place_single(
        &mut self,
        pool: &mut Pool,
        message: riocm::Message,
        payload: Payload<'_>,
    ) -> Result<Option<Message>, Refused> {
        let riocm::Message { source, destination, size } = message;
        if let Err(refused) = self.check_single(size, payload.len()) {
            payload.drop(pool);
            return Err(refused);
        }
        let chain = match payload {
            Payload::Received(bytes) => {
                let bytes = bytes.get(..size as usize).unwrap_or_default();
                pool.begin(self.receive_account, &[], bytes).ok_or(Refused::NoRoom)?
            }
            Payload::Kept(mut chain) => {
                pool.truncate(&mut chain, size as usize);
                chain
            }
        };
        Ok(Some(Message { source, destination, chain }))
    }

    /// Checks that one part of `len` bytes can be a whole message of `size` bytes.
    #[inline]
    pub(super) fn check_single(&self, size: u32, len: usize) -> Result<(), Refused> {
        if size > self.max_message {
            Err(Fault::TooLong(size).into())
        } else if len < size as usize {
            Err(Fault::Part.into())
        } else {
            Ok(())
        }
    }

    /// Handles the first part of a message.
    #[inline(never)]
    fn place_start(
        &mut self,
        pool: &mut Pool,
        id: u8,
        part: Part,
        payload: Payload<'_>,
    ) -> Result<Option<Message>, Refused> {
        let (message, most, mut patching) = match part {
            Part::Single(message) | Part::Start(message) => {
                (message, self.agreed.start_len(), None)
            }
            Part::PatchStart { message, fragments, patches } => {
                let patching = Patching {
                    fragments,
                    patches,
                    unpatched: 0,
                    head_is_done: false,
                    hole: 0,
                    last: 0,
                };
                (message, self.agreed.patch_start_len(), Some(patching))
            }
            Part::Fragment | Part::Patch => return Ok(None),
        };
        let size = message.size as usize;
        let check = || {
            if message.size > self.max_message {
                return Err(Fault::TooLong(message.size));
            }
            if payload.len() < size.min(most) && patching.is_none() {
                return Err(Fault::Part);
            }
            if self.assemblies.iter().any(|it| it.id == id) {
                return Err(Fault::Begun);
            }
            if self.assemblies.len() >= ASSEMBLIES {
                return Err(Fault::TooMany);
            }
            match &patching {
                None if size <= most => Err(Fault::Part),
                None => Ok(()),
                Some(patching) => {
                    let holes = HEAD_PATCH + FRAG_PATCH * usize::from(patching.fragments);
                    if patching.patches == 0 || holes > size { Err(Fault::Patches) } else { Ok(()) }
                }
            }
        };
        if let Err(fault) = check() {
            payload.drop(pool);
            return Err(fault.into());
        }
        let mut chain = Chain::new(self.receive_account);
        let hole = if patching.is_some() { HEAD_PATCH } else { 0 };
        let limit = most.min(size - hole.min(size));
        let Some((taken, at)) = payload.put(pool, &mut chain, limit, hole) else {
            pool.free(chain);
            return Err(Refused::NoRoom);
        };
        if let Some(patching) = &mut patching {
            (patching.hole, patching.last) = (at, at);
        }
        self.assemblies.push(Assembly { id, message, chain, placed: hole + taken, patching });
        Ok(None)
    }

    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
    #[inline(always)]
    pub(super) fn place_fragment(
        &mut self,
        pool: &mut Pool,
        id: u8,
        payload: Payload<'_>,
    ) -> Result<Option<Message>, Refused> {
        let most = self.agreed.fragment_len();
        let Some(at) = self.assemblies.iter().position(|it| it.id == id) else {
            payload.drop(pool);
            return Err(Fault::NoMessage.into());
        };
        let assembly = &mut self.assemblies[at];
        let left = assembly.left();
        let (hole, limit) = match &mut assembly.patching {
            None if payload.len() >= left.min(most) => (0, left.min(most)),
            Some(patching) if patching.fragments > 0 && left >= FRAG_PATCH => {
                patching.fragments -= 1;
                (FRAG_PATCH, most.min(left - FRAG_PATCH))
            }
            _ => {
                payload.drop(pool);
                return Err(Fault::Part.into());
            }
        };
        let put = payload.put(pool, &mut assembly.chain, limit, hole);
        let (taken, place) = put.ok_or(Refused::NoRoom)?;
        assembly.placed += hole + taken;
        if let Some(patching) = &mut assembly.patching {
            patching.add(pool, place);
            return Ok(None);
        }
        if assembly.left() > 0 {
            return Ok(None);
        }
        let Assembly { message, chain, .. } = self.assemblies.swap_remove(at);
        let riocm::Message { source, destination, .. } = message;
        Ok(Some(Message { source, destination, chain }))
    }

    #[inline(never)]
    fn place_patch(
        &mut self,
        pool: &mut Pool,
        id: u8,
        payload: Payload<'_>,
    ) -> Result<Option<Message>, Refused> {
        match payload {
            Payload::Received(bytes) => self.patch(pool, id, bytes),
            Payload::Kept(chain) => self.patch_kept(pool, id, chain),
        }
    }

    /// Handles a PATCH that came early: its bytes are copied once more, which is rare and short.
    #[inline(never)]
    fn patch_kept(
        &mut self,
        pool: &mut Pool,
        id: u8,
        chain: Chain,
    ) -> Result<Option<Message>, Refused> {
        let mut kept = [0; riocm::LARGEST];
        let len = pool.read(&chain, 0, &mut kept);
        pool.free(chain);
        self.patch(pool, id, &kept[..len])
    }

    fn patch(&mut self, pool: &mut Pool, id: u8, bytes: &[u8]) -> Result<Option<Message>, Refused> {
        let Some(at) = self.assemblies.iter().position(|it| it.id == id) else {
            return Err(Fault::NoMessage.into());
        };
        let bytes = &bytes[..bytes.len().min(self.agreed.fragment_len())];
        let assembly = &mut self.assemblies[at];
        let is_whole = assembly.patch(pool, bytes)?;
        if !is_whole {
            return Ok(None);
        }
        let Assembly { message, chain, .. } = self.assemblies.swap_remove(at);
        let riocm::Message { source, destination, .. } = message;
        Ok(Some(Message { source, destination, chain }))
    }
}

impl Assembly {
    /// Applies the bytes of a PATCH. Returns whether the message is complete.
    fn patch(&mut self, pool: &mut Pool, mut bytes: &[u8]) -> Result<bool, Refused> {
        let left = self.left();
        let Assembly { chain, patching: Some(patching), .. } = self else {
            return Err(Fault::Patches.into());
        };
        if !patching.head_is_done {
            let (patch, rest) = bytes.split_first_chunk::<HEAD_PATCH>().ok_or(Fault::Patches)?;
            patching.fill(pool, patch)?;
            (bytes, patching.head_is_done) = (rest, true);
        }
        while patching.unpatched > 0
            && let Some((patch, rest)) = bytes.split_first_chunk::<FRAG_PATCH>()
        {
            patching.fill(pool, patch)?;
            patching.unpatched -= 1;
            bytes = rest;
        }
        let bytes = &bytes[..bytes.len().min(left)];
        if !bytes.is_empty() {
            if patching.unpatched > 0 || patching.fragments > 0 {
                return Err(Fault::Patches.into());
            }
            if !pool.append(chain, bytes) {
                return Err(Refused::NoRoom);
            }
            self.placed += bytes.len();
        }
        patching.patches -= 1;
        if patching.patches > 0 {
            return Ok(false);
        }
        let is_patched = patching.unpatched == 0 && patching.fragments == 0;
        if is_patched && self.left() == 0 { Ok(true) } else { Err(Fault::Patches.into()) }
    }
}

impl Payload<'_> {
    fn len(&self) -> usize {
        match self {
            Payload::Received(bytes) => bytes.len(),
            Payload::Kept(chain) => chain.len(),
        }
    }

    fn drop(self, pool: &mut Pool) {
        if let Payload::Kept(chain) = self {
            pool.free(chain);
        }
    }

    /// Appends at most `limit` bytes to a chain, with a hole in front. Returns the number of bytes, and the offset of
    /// the hole. None without room.
    // Inlined with the rest of the path of a message: 1,038 instructions for 64 bytes instead of 1,131 (`bench riocm`).
    #[inline(always)]
    fn put(
        self,
        pool: &mut Pool,
        chain: &mut Chain,
        limit: usize,
        hole: usize,
    ) -> Option<(usize, usize)> {
        match self {
            Payload::Received(bytes) => {
                let bytes = &bytes[..bytes.len().min(limit)];
                Some((bytes.len(), pool.append_behind(chain, hole, bytes)?))
            }
            Payload::Kept(kept) => put_kept(pool, chain, kept, limit, hole),
        }
    }
}

/// As `put`, for a payload that came early.
#[inline(never)]
fn put_kept(
    pool: &mut Pool,
    chain: &mut Chain,
    mut kept: Chain,
    limit: usize,
    hole: usize,
) -> Option<(usize, usize)> {
    pool.truncate(&mut kept, limit);
    let len = kept.len();
    let at = if hole > 0 { pool.open_front(&mut kept, hole) } else { Some(0) };
    match at {
        Some(at) => {
            pool.join(chain, kept);
            Some((len, at))
        }
        None => {
            pool.free(kept);
            None
        }
    }
}
