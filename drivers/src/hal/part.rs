//! Parts that an image may be built without (`./isthmus build --without FAMILY`).
//!
//! Where an image has a family, what is kept of it is a `Box`; where it has not, an [`Absent`], of which there is no
//! value: an `Option` of it is always None, and the compiler leaves out all that would work on it. The code itself is
//! the same, and is checked in every build.

use alloc::boxed::Box;
use core::convert::Infallible;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

/// What holds a part, or none.
pub trait Hold<T>: DerefMut<Target = T> + Sized {
    /// Holds a part; None where the image is without it, and `make` is not called.
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

/// In place of a `Box` in an image without this part. There is no value of it.
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
    fn what_is_absent_is_never_made_and_takes_no_room() {
        let held = Box::hold(|| [7; 100]);
        assert_eq!(held.map(|part| part[3]), Some(7));
        let held: Option<Absent<[u8; 100]>> = Hold::hold(|| panic!("made"));
        assert!(held.is_none());
        assert_eq!(size_of_val(&held), 0);
    }
}
