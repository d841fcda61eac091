//! Parts that an image may be built without (`./isthmus build --without FAMILY`).
//!
//! In an image with a family, its state is held by a `Box`. Without it, by an [`Absent`], a type without values: an
//! `Option` of it is always None, and the compiler removes all code that uses it. The source is the same, and is
//! checked in every build.

use alloc::boxed::Box;
use core::convert::Infallible;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

/// Owner of a part: a `Box`, or an [`Absent`] in an image without the part.
pub trait Hold<T>: DerefMut<Target = T> + Sized {
    /// Makes and holds the part. None, without calling `make`, in an image without it.
    fn hold(make: impl FnOnce() -> T) -> Option<Self>;

    /// The part itself.
    fn into_part(self) -> T;
}

impl<T> Hold<T> for Box<T> {
    fn hold(make: impl FnOnce() -> T) -> Option<Self> {
        Some(Box::new(make()))
    }
    fn into_part(self) -> T {
        *self
    }
}

/// Replaces `Box` in an image without the part. It has no values.
pub struct Absent<T>(Infallible, PhantomData<T>);

impl<T> Deref for Absent<T> {
    type Target = T;
    fn deref(&self) -> &T {
        match self.0 {}
    }
}

impl<T> DerefMut for Absent<T> {
    fn deref_mut(&mut self) -> &mut T {
        match self.0 {}
    }
}

impl<T> Hold<T> for Absent<T> {
    fn hold(_: impl FnOnce() -> T) -> Option<Self> {
        None
    }
    fn into_part(self) -> T {
        match self.0 {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_part_is_never_made_and_takes_no_room() {
        let held = Box::hold(|| [7; 100]);
        assert_eq!(held.map(|part| part[3]), Some(7));
        let held: Option<Absent<[u8; 100]>> = Hold::hold(|| panic!("made"));
        assert!(held.is_none());
        assert_eq!(size_of_val(&held), 0);
    }
}
