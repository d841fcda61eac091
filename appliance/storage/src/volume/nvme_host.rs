//! A namespace of an NVMe subsystem over TCP, as a volume. Its requests make progress when the owner of its client moves bytes.

use super::{Completion, Operation, Request, Submitted, Tag, Volume, VolumeError, check};
use crate::rnbd::client::Bell;
use alloc::rc::Rc;
use core::cell::RefCell;
use drivers::hal::Geometry;
use nvme_host::{Client, Error, Losses};

/// A host of an NVMe subsystem, shared by its volume and the owner of its connections.
pub type SharedHost = Rc<RefCell<Client<Tag>>>;

/// The namespace of an NVMe subsystem as a volume.
#[derive(Debug)]
pub struct NvmeHostVolume {
    client: SharedHost,
    /// Bell of the owner of its connections: rung when the client has work.
    bell: Option<Bell>,
}

impl NvmeHostVolume {
    /// The volume of a client, whose owner has this bell.
    pub fn new(client: SharedHost, bell: Option<Bell>) -> NvmeHostVolume {
        NvmeHostVolume { client, bell }
    }

    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

fn error_of(error: Error) -> VolumeError {
    match error {
        Error::Busy => VolumeError::Busy,
        Error::Invalid => VolumeError::Invalid,
        Error::PastEnd => VolumeError::PastEnd,
        Error::Reserved => VolumeError::Reserved,
        Error::ReadOnly => VolumeError::ReadOnly,
        Error::Unsupported => VolumeError::Unsupported,
        Error::Io => VolumeError::Io,
        Error::Lost => VolumeError::Lost,
    }
}

impl Volume for NvmeHostVolume {
    fn geometry(&self) -> Geometry {
        self.client.borrow().geometry()
    }

    fn submit(&mut self, request: &Request) -> Result<Submitted, VolumeError> {
        let mut client = self.client.borrow_mut();
        check(&client.geometry(), request)?;
        let operation = match request.operation {
            Operation::Read => nvme_host::Operation::Read,
            Operation::Write { durable } => nvme_host::Operation::Write { durable },
            Operation::Flush => nvme_host::Operation::Flush,
            // `check` compared the sectors with the geometry, whose limits fit into 32 bits of bytes.
            Operation::Discard { sectors } => nvme_host::Operation::Discard(sectors * 512),
            Operation::WriteZeroes { sectors } => nvme_host::Operation::WriteZeroes(sectors * 512),
            Operation::SecureErase { .. } => return Err(VolumeError::Unsupported),
        };
        let Request { tag, sector, data, .. } = *request;
        // `check` did not compare the sector of a flush, which a client has chosen.
        let sector = if operation == nvme_host::Operation::Flush { 0 } else { sector };
        let request = nvme_host::Request { tag, operation, offset: sector * 512, data };
        client.submit(&request).map_err(error_of)?;
        drop(client);
        self.ring();
        Ok(Submitted::Pending)
    }

    fn flush_queue(&mut self) {}

    fn poll(&mut self) -> Option<Completion> {
        let (tag, result) = self.client.borrow_mut().poll_done()?;
        Some(Completion { tag, result: result.map_err(error_of) })
    }

    fn is_idle(&self) -> bool {
        self.client.borrow().is_idle()
    }

    fn wants_turn(&self) -> bool {
        self.client.borrow().done() > 0
    }

    fn give_up(&mut self) {
        self.client.borrow_mut().give_up();
        self.ring();
    }

    /// Data is copied between the connection and the memory of a request in flight. A request that has ended is not in
    /// the client's table any more.
    fn releases_memory(&self) -> bool {
        true
    }

    fn has_another_copy(&mut self, is_there: bool) {
        let losses = if is_there { Losses::ToAll } else { Losses::ToFlush };
        self.client.borrow_mut().report_losses(losses);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drivers::hal::{Arena, Window};
    use nvme_host::{Identity, Settings};

    #[test]
    fn volume_before_the_first_connection_has_no_sectors_and_refuses_requests() {
        let settings = Settings::default();
        let memory = Arena::on_heap(64 << 10).alloc(settings.memory(), 4096).unwrap();
        let identity = Identity {
            host: "nqn.2026-01.example:host".into(),
            subsystem: "nqn.2026-01.example:store".into(),
            secret: None,
            controller_secret: None,
        };
        let client = Client::new(settings, identity, memory).unwrap();
        let mut volume = NvmeHostVolume::new(Rc::new(RefCell::new(client)), None);
        assert_eq!(volume.geometry(), Geometry::ABSENT);
        let request = |operation| {
            let data = Window::empty();
            Request { tag: 1.into(), operation, sector: 1, data }
        };
        let refused = |operation| volume.submit(&request(operation)).map(drop).unwrap_err();
        let errors = [Operation::Read, Operation::Discard { sectors: 8 }].map(refused);
        assert_eq!(errors, [VolumeError::PastEnd, VolumeError::Unsupported]);
        assert!(volume.is_idle() && volume.poll().is_none());
    }
}
