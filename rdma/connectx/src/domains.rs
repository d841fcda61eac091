//! Protection domains, and their spare keys.

use super::mkey;
use super::send_queue::OnCompletion;
use super::{ConnectX, Error, Job};
use alloc::vec::Vec;
use drivers::ethernet::mlx5::{self, Command};
use rand_core::Rng;
use verbs::{PdId, VerbsError};

pub const CREATE_MKEY: Command = Command(0x200, "CREATE_MKEY");
const ALLOC_PD: Command = Command(0x800, "ALLOC_PD");

/// A protection domain.
#[derive(Debug, Default)]
pub struct Domain {
    /// The card's number of it, and its key for all memory.
    pub number: u32,
    pub key: u32,
    /// Number of its regions, keys and queue pairs that the card has not released.
    pub users: usize,
    /// Keys of this domain that are not granted.
    pub spare: Vec<u32>,
}

impl ConnectX {
    pub(super) fn make_domain(&mut self) -> Result<PdId, VerbsError> {
        let (number, key) = self.make_card_domain().map_err(|_| VerbsError::NoRoom)?;
        let made = self.domains.insert(|_| Domain { number, key, ..Domain::default() });
        if made.is_none() {
            self.free_domain(number, key);
        }
        made.map(PdId).ok_or(VerbsError::NoRoom)
    }

    /// Makes a domain on the card, with a key for all memory.
    pub(super) fn make_card_domain(&mut self) -> Result<(u32, u32), Error> {
        let number = self.create(ALLOC_PD, &[0; 8])?;
        let key = self.create(CREATE_MKEY, &mkey::create_whole(number))? << 8;
        Ok((number, key))
    }

    fn free_domain(&mut self, number: u32, key: u32) {
        self.jobs.push_back(Job::DestroyKey(key >> 8));
        self.jobs.push_back(Job::FreeDomain(number));
    }

    pub(super) fn end_domain(&mut self, pd: PdId) -> Result<(), VerbsError> {
        let found = self.domains.get_mut(pd.0).ok_or(VerbsError::NoSuchObject)?;
        if found.users > 0 {
            return Err(VerbsError::Busy);
        }
        let spare = core::mem::take(&mut found.spare);
        let (number, key) = (found.number, found.key);
        if self.is_up() {
            for &place in &spare {
                self.move_key(place, self.own_domain.0)?;
            }
            self.settle_keys()?;
            self.free_domain(number, key);
            spare.into_iter().for_each(|place| self.pool.put_back(place));
        }
        self.domains.remove(pd.0);
        Ok(())
    }

    pub(super) fn hold(&mut self, pd: PdId) -> Result<(), VerbsError> {
        self.domains.get_mut(pd.0).ok_or(VerbsError::NoSuchObject)?.users += 1;
        Ok(())
    }

    pub(super) fn release(&mut self, pd: PdId) {
        if let Some(found) = self.domains.get_mut(pd.0) {
            found.users = found.users.saturating_sub(1);
        }
    }

    /// Moves a spare key to a domain of the card.
    fn move_key(&mut self, place: u32, domain: u32) -> Result<(), VerbsError> {
        self.make_key_room(mkey::REVOKE_BLOCKS)?;
        let (blocks, control) = mkey::move_to(self.pool.value(place), domain);
        self.key_queue.sends.put(blocks, control);
        self.key_queue.sends.end(OnCompletion::Moved { key: place }, 1);
        Ok(())
    }

    /// Makes keys until `least` are spare or the card has all its keys. Blocks until the firmware has made them; does
    /// nothing once enough were made in the background.
    fn provide_keys(&mut self, least: usize) -> Result<(), VerbsError> {
        while self.pool.spare() < least && self.keys_missing > 0 {
            self.keys_missing -= 1;
            match self.create(CREATE_MKEY, &mkey::create_spare(self.own_domain.0)) {
                Ok(number) => self.pool.add(number),
                // The firmware has no more keys.
                Err(Error::Card(mlx5::Error::Status(..))) => self.keys_missing = 0,
                Err(_) => return Err(VerbsError::Unreachable),
            }
        }
        Ok(())
    }

    /// Fills up the spare keys of a domain.
    pub(super) fn stock(&mut self, pd: PdId, rng: &mut dyn Rng) -> Result<(), VerbsError> {
        let wanted = self.limits.spare_keys;
        self.provide_keys(2 * wanted)?;
        let domain = self.domains.get(pd.0).ok_or(VerbsError::NoSuchObject)?;
        let (number, missing) = (domain.number, wanted.saturating_sub(domain.spare.len()));
        // Leaves as many for others.
        let missing = missing.min(self.pool.spare().saturating_sub(wanted));
        let mut moved = Vec::with_capacity(missing);
        for _ in 0..missing {
            let Some(place) = self.pool.take_spare(rng) else { break };
            self.move_key(place, number)?;
            moved.push(place);
        }
        self.settle_keys()?;
        moved.iter().for_each(|place| self.pool.set_domain(*place, Some(pd)));
        if let Some(domain) = self.domains.get_mut(pd.0) {
            domain.spare.append(&mut moved);
        }
        Ok(())
    }

    /// Draws a key for a domain: one of its own, or of no domain.
    pub(super) fn draw(&mut self, pd: PdId, rng: &mut dyn Rng) -> Result<u32, VerbsError> {
        let least = self.limits.spare_keys;
        let owned = self.domains.get(pd.0).ok_or(VerbsError::NoSuchObject)?.spare.len();
        if owned < least / 2 {
            self.provide_keys((least / 2).max(1))?;
        }
        let domain = self.domains.get_mut(pd.0).ok_or(VerbsError::NoSuchObject)?;
        if domain.spare.len().max(self.pool.spare()) < (least / 2).max(1) {
            return Err(VerbsError::NoRoom);
        }
        let drawn = self.pool.draw(&mut domain.spare, least, rng).ok_or(VerbsError::NoRoom)?;
        // Until the key is revoked.
        domain.users += 1;
        Ok(drawn)
    }
}
