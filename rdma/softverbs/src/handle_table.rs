//! A table of objects with a limit. Handles carry a generation, so that the handle of a removed object does not reach
//! the next one in its place.

use alloc::vec::Vec;

const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
/// The two highest bits of a handle are free: users with several tables distinguish them by these bits.
const NAME_MASK: u32 = u32::MAX >> 2;

/// Most objects in a table.
pub const MAX: usize = 1 << INDEX_BITS;

#[derive(Debug)]
struct Slot<T> {
    /// Handle of the present object, or of the next one here.
    name: u32,
    object: Option<T>,
}

/// The table.
#[derive(Debug)]
pub struct HandleTable<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    limit: usize,
}

impl<T> HandleTable<T> {
    /// For up to `limit` objects (at most [`MAX`]).
    pub fn new(limit: usize) -> Self {
        HandleTable { slots: Vec::new(), free: Vec::new(), limit: limit.min(MAX) }
    }

    /// Place in the table of a handle.
    pub const fn index(name: u32) -> usize {
        (name & INDEX_MASK) as usize
    }

    /// Adds an object; `make` gets its handle. None if the table is full.
    pub fn insert(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.slots.len() < self.limit => {
                let index = self.slots.len() as u32;
                self.slots.push(Slot { name: index, object: None });
                index
            }
            None => return None,
        };
        let slot = self.slots.get_mut(index as usize)?;
        slot.object = Some(make(slot.name));
        Some(slot.name)
    }

    /// The object with this handle.
    #[inline]
    pub fn get(&self, name: u32) -> Option<&T> {
        self.slots.get(Self::index(name)).filter(|slot| slot.name == name)?.object.as_ref()
    }

    /// The object with this handle, mutable.
    #[inline]
    pub fn get_mut(&mut self, name: u32) -> Option<&mut T> {
        self.slots.get_mut(Self::index(name)).filter(|slot| slot.name == name)?.object.as_mut()
    }

    /// The object at a place of the table.
    #[inline]
    pub fn at(&self, index: usize) -> Option<&T> {
        self.slots.get(index)?.object.as_ref()
    }

    /// The object at a place of the table, mutable.
    #[inline]
    pub fn at_mut(&mut self, index: usize) -> Option<&mut T> {
        self.slots.get_mut(index)?.object.as_mut()
    }

    /// Handle of the object at a place of the table.
    pub fn name_at(&self, index: usize) -> Option<u32> {
        self.slots.get(index).filter(|slot| slot.object.is_some()).map(|slot| slot.name)
    }

    /// Removes the object with this handle and returns it.
    pub fn remove(&mut self, name: u32) -> Option<T> {
        let slot = self.slots.get_mut(Self::index(name)).filter(|slot| slot.name == name)?;
        let object = slot.object.take()?;
        slot.name = slot.name.wrapping_add(1 << INDEX_BITS) & NAME_MASK;
        self.free.push(name & INDEX_MASK);
        Some(object)
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.object.as_ref())
    }

    /// Number of places ever used.
    pub fn places(&self) -> usize {
        self.slots.len()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handle_of_a_removed_object_is_invalid() {
        let mut slots = HandleTable::new(2);
        let a = slots.insert(|_| 'a').unwrap();
        let b = slots.insert(|_| 'b').unwrap();
        assert_eq!(slots.insert(|_| 'x'), None);
        assert_eq!(slots.remove(a), Some('a'));
        let c = slots.insert(|_| 'c').unwrap();
        assert_eq!((slots.get(a), slots.get(b), slots.get(c)), (None, Some(&'b'), Some(&'c')));
        assert_eq!(slots.remove(a), None);
        assert_eq!(slots.len(), 2);
    }
}
