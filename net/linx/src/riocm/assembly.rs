//! Messages in parts. The parts of a message come in order and carry its id; several messages may be under way.
//!
//! A patched message is one whose sender wrote headers over its bytes: 32 bytes in front of what PATCH_START carries,
//! and 16 in front of what each FRAG does. What was there comes behind, in PATCHes: the 32 bytes, then 16 for each
//! FRAG, each of them whole in one PATCH; what is left over is the end of the message.

use super::arrival::Payload;
use super::connection::{ASSEMBLIES, Connection};
use super::{Down, Event, Fault, Message, Riocm};
use crate::pool::{Chain, Cursor, Pool};
use crate::wire::riocm::{self, FRAG_PATCH, HEAD_PATCH, Part};

/// A message of which parts are missing.
#[derive(Debug)]
pub(super) struct Assembly {
    id: u8,
    message: riocm::Message,
    pub chain: Chain,
    /// Bytes of the message that have their place in the chain, holes included.
    placed: usize,
    patching: Option<Patching>,
}

/// What is to be patched.
#[derive(Debug)]
struct Patching {
    fragments: u16,
    patches: u16,
    /// Fragments that have come, and are not patched yet.
    unpatched: u16,
    head_is_done: bool,
    /// Where the next hole is. A hole has the distance to the one behind it in its first bytes.
    hole: usize,
    cursor: Option<Cursor>,
}

impl Assembly {
    fn left(&self) -> usize {
        (self.message.size as usize).saturating_sub(self.placed)
    }
}

/// Why a part is not taken.
enum Refused {
    Fault(Fault),
    NoRoom,
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Refused::Fault(fault)
    }
}

impl Riocm {
    /// Takes the next part that counts; false if that ended the connection.
    #[inline]
    pub(super) fn take_part(
        &mut self,
        pool: &mut Pool,
        cid: u8,
        id: u8,
        part: Part,
        payload: Payload<'_>,
    ) -> bool {
        let Some(connection) = self.at(cid) else { return false };
        let whole = match connection.place(pool, id, part, payload) {
            Ok(whole) => whole,
            Err(Refused::Fault(fault)) => {
                self.end(pool, cid, Down::Fault(fault));
                return false;
            }
            Err(Refused::NoRoom) => {
                self.no_room(pool, cid);
                return false;
            }
        };
        if let Some((message, chain)) = whole {
            connection.counters.received_messages += 1;
            let connection = connection.id;
            let riocm::Message { source, destination, .. } = message;
            let message = Message { source, destination, chain };
            self.events.push_back(Event::Message { connection, message });
        }
        true
    }
}

impl Connection {
    /// Puts a part where it belongs; the message, if that was the last of it.
    #[inline]
    fn place(
        &mut self,
        pool: &mut Pool,
        id: u8,
        part: Part,
        payload: Payload<'_>,
    ) -> Result<Option<(riocm::Message, Chain)>, Refused> {
        let (message, most) = match part {
            Part::Single(message) => (message, usize::MAX),
            Part::Start(message) => (message, self.agreed.start_len()),
            Part::PatchStart { message, .. } => (message, self.agreed.patch_start_len()),
            Part::Fragment => return self.place_fragment(pool, id, payload),
            Part::Patch => return self.place_patch(pool, id, payload),
        };
        let size = message.size as usize;
        let mut chain = Chain::new(self.receive_account);
        let check = || {
            if message.size > self.max_message {
                return Err(Fault::TooLong(message.size));
            }
            if payload.len() < size.min(most) && !matches!(part, Part::PatchStart { .. }) {
                return Err(Fault::Part);
            }
            if let Part::Single(_) = part {
                return Ok(());
            }
            let has_begun = self.assemblies.iter().any(|it| it.id == id);
            match part {
                _ if has_begun => Err(Fault::Begun),
                _ if self.assemblies.len() >= ASSEMBLIES => Err(Fault::TooMany),
                Part::Start(_) if size <= most => Err(Fault::Part),
                Part::PatchStart { fragments, patches, .. } => {
                    let holes = HEAD_PATCH + FRAG_PATCH * usize::from(fragments);
                    if patches == 0 || holes > size { Err(Fault::Patches) } else { Ok(()) }
                }
                _ => Ok(()),
            }
        };
        if let Err(fault) = check() {
            payload.drop(pool);
            return Err(fault.into());
        }
        let patching = match part {
            Part::PatchStart { fragments, patches, .. } => Some(Patching {
                fragments,
                patches,
                unpatched: 0,
                head_is_done: false,
                hole: 0,
                cursor: None,
            }),
            _ => None,
        };
        let hole = if patching.is_some() { HEAD_PATCH } else { 0 };
        let limit = most.min(size - hole.min(size));
        let Some(taken) = payload.put(pool, &mut chain, limit, hole, true) else {
            pool.free(chain);
            return Err(Refused::NoRoom);
        };
        if let Part::Single(_) = part {
            return Ok(Some((message, chain)));
        }
        self.assemblies.push(Assembly { id, message, chain, placed: hole + taken, patching });
        Ok(None)
    }

    fn place_fragment(
        &mut self,
        pool: &mut Pool,
        id: u8,
        payload: Payload<'_>,
    ) -> Result<Option<(riocm::Message, Chain)>, Refused> {
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
                patching.unpatched += 1;
                (FRAG_PATCH, most.min(left - FRAG_PATCH))
            }
            _ => {
                payload.drop(pool);
                return Err(Fault::Part.into());
            }
        };
        let taken = payload.put(pool, &mut assembly.chain, limit, hole, false);
        assembly.placed += hole + taken.ok_or(Refused::NoRoom)?;
        if assembly.patching.is_some() || assembly.left() > 0 {
            return Ok(None);
        }
        let Assembly { message, chain, .. } = self.assemblies.swap_remove(at);
        Ok(Some((message, chain)))
    }

    #[inline(never)]
    fn place_patch(
        &mut self,
        pool: &mut Pool,
        id: u8,
        payload: Payload<'_>,
    ) -> Result<Option<(riocm::Message, Chain)>, Refused> {
        let Some(at) = self.assemblies.iter().position(|it| it.id == id) else {
            payload.drop(pool);
            return Err(Fault::NoMessage.into());
        };
        // The bytes are looked at here: whatever came early is copied out once more, which is seldom and short.
        let mut kept = [0; riocm::LARGEST];
        let bytes: &[u8] = match payload {
            Payload::Received(bytes) => bytes,
            Payload::Kept(chain) => {
                let len = pool.read(&chain, 0, &mut kept);
                pool.free(chain);
                &kept[..len]
            }
        };
        let bytes = &bytes[..bytes.len().min(self.agreed.fragment_len())];
        let assembly = &mut self.assemblies[at];
        let is_whole = assembly.patch(pool, bytes)?;
        if !is_whole {
            return Ok(None);
        }
        let Assembly { message, chain, .. } = self.assemblies.swap_remove(at);
        Ok(Some((message, chain)))
    }
}

impl Assembly {
    /// Takes the bytes of a PATCH; whether the message is whole.
    fn patch(&mut self, pool: &mut Pool, mut bytes: &[u8]) -> Result<bool, Refused> {
        let left = self.left();
        let Assembly { chain, patching: Some(patching), .. } = self else {
            return Err(Fault::Patches.into());
        };
        let mut fill = |bytes: &mut &[u8], len: usize, chain: &Chain| {
            let (patch, rest) = bytes.split_at_checked(len).ok_or(Fault::Patches)?;
            *bytes = rest;
            let cursor = patching.cursor.get_or_insert(pool.start(chain));
            let mut distance = [0; 4];
            let done = pool.peek(cursor, patching.hole, &mut distance)
                && pool.overwrite(&mut cursor.clone(), patching.hole, patch);
            patching.hole += u32::from_be_bytes(distance) as usize;
            done.then_some(()).ok_or(Fault::Patches)
        };
        if !patching.head_is_done {
            fill(&mut bytes, HEAD_PATCH, chain)?;
            patching.head_is_done = true;
        }
        while patching.unpatched > 0 && bytes.len() >= FRAG_PATCH {
            fill(&mut bytes, FRAG_PATCH, chain)?;
            patching.unpatched -= 1;
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

    /// Puts `limit` bytes at most behind a chain, with a hole in front; how many, unless there is no room.
    #[inline]
    fn put(
        self,
        pool: &mut Pool,
        chain: &mut Chain,
        limit: usize,
        hole: usize,
        is_first: bool,
    ) -> Option<usize> {
        let len = self.len().min(limit);
        let mut front = [0; HEAD_PATCH];
        front[..4].copy_from_slice(&((hole + len) as u32).to_be_bytes());
        match self {
            Payload::Received(bytes) => {
                let bytes = &bytes[..len];
                // Whatever is delivered has a piece at least: so there are no more messages than pieces.
                let done = if is_first && hole + len == 0 {
                    pool.append_apart(chain, 0, bytes)
                } else {
                    (hole == 0 || pool.append(chain, &front[..hole])) && pool.append(chain, bytes)
                };
                done.then_some(len)
            }
            Payload::Kept(mut kept) => {
                pool.truncate(&mut kept, limit);
                if hole > 0 && !pool.fill_front(&mut kept, &front[..hole]) {
                    pool.free(kept);
                    return None;
                }
                pool.join(chain, kept);
                Some(len)
            }
        }
    }
}
