//! Interrupts: QEMU registers an eventfd for each vector.

use std::os::fd::OwnedFd;

use models::Interrupt;

use crate::message::{
    BadMessage, IRQ_INTX, IRQ_MSI, IRQ_MSIX, IRQS, SET_DATA_EVENTFD, SET_DATA_NONE, SET_TRIGGER,
};

/// Most vectors of one kind (MSI-X has no more).
const MOST: u32 = 2048;

/// The eventfds of each kind.
#[derive(Default)]
pub struct EventFds {
    by_kind: [Vec<Option<OwnedFd>>; IRQS as usize],
}

impl EventFds {
    /// Handles SET_IRQS. QEMU handles masks itself.
    pub fn set(
        &mut self,
        kind: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: Vec<OwnedFd>,
    ) -> Result<(), BadMessage> {
        let vectors = self.by_kind.get_mut(kind as usize).ok_or(BadMessage)?;
        if flags & SET_TRIGGER == 0 {
            return Ok(());
        }
        if flags & SET_DATA_NONE != 0 && count == 0 {
            vectors.clear();
        } else if flags & SET_DATA_EVENTFD != 0 {
            let end = start.checked_add(count).filter(|end| *end <= MOST).ok_or(BadMessage)?;
            if vectors.len() < end as usize {
                vectors.resize_with(end as usize, || None);
            }
            // With fewer files than vectors, the other vectors are unregistered.
            let mut fds = fds.into_iter();
            vectors[start as usize..end as usize].fill_with(|| fds.next());
        }
        Ok(())
    }

    /// Raises an interrupt. Returns false if the client has registered no eventfd for it.
    pub fn raise(&self, interrupt: Interrupt) -> bool {
        let (kind, vector) = match interrupt {
            Interrupt::Intx => (IRQ_INTX, 0),
            Interrupt::Msi(vector) => (IRQ_MSI, vector),
            Interrupt::Msix(vector) => (IRQ_MSIX, vector),
        };
        let fd = self.by_kind[kind as usize].get(usize::from(vector)).and_then(Option::as_ref);
        // An eventfd takes every write until it has counted to 2^64 - 2.
        fd.is_some_and(|fd| rustix::io::write(fd, &1u64.to_ne_bytes()).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    fn count(fd: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        match rustix::io::read(fd, &mut bytes) {
            Ok(_) => u64::from_ne_bytes(bytes),
            Err(_) => 0,
        }
    }

    #[test]
    fn vectors_signal_their_eventfds_until_unregistered() {
        let fd = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
        let (one, two) = (fd(), fd());
        let mut fds = EventFds::default();
        let flags = SET_DATA_EVENTFD | SET_TRIGGER;
        let given = vec![one.try_clone().unwrap(), two.try_clone().unwrap()];
        fds.set(IRQ_MSIX, flags, 3, 2, given).unwrap();
        assert!(fds.raise(Interrupt::Msix(4)) && fds.raise(Interrupt::Msix(4)));
        assert!(!fds.raise(Interrupt::Msix(2)) && !fds.raise(Interrupt::Msi(4)));
        assert_eq!((count(&one), count(&two)), (0, 2));
        fds.set(IRQ_MSIX, SET_DATA_NONE | SET_TRIGGER, 0, 0, Vec::new()).unwrap();
        assert!(!fds.raise(Interrupt::Msix(4)));
        assert_eq!(fds.set(9, flags, 0, 1, Vec::new()), Err(BadMessage));
        assert_eq!(fds.set(IRQ_MSI, flags, u32::MAX, 2, Vec::new()), Err(BadMessage));
    }
}
