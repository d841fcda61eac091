//! The port of a walk.

use drivers::rapidio::{Busy, IdSize, Maintained, Maintenance, MasterPort, OpenPort, PortWrite};

/// The part of [`MasterPort`] that enumeration uses.
pub trait Reach {
    /// See [`MasterPort::link_up`].
    fn link_up(&self) -> bool;
    /// See [`MasterPort::set_own_id`].
    fn set_own_id(&mut self, size: IdSize, id: u16);
    /// See [`MasterPort::own_id`].
    fn own_id(&mut self) -> u16;
    /// See [`MasterPort::read_own`].
    fn read_own(&mut self, offset: u32) -> u32;
    /// See [`MasterPort::write_own`].
    fn write_own(&mut self, offset: u32, value: u32);
    /// See [`MasterPort::maintain`].
    fn maintain(&mut self, request: &Maintenance) -> Result<(), Busy>;
    /// See [`MasterPort::maintained`].
    fn maintained(&mut self) -> Option<Maintained>;
    /// See [`MasterPort::port_write`].
    fn port_write(&mut self) -> Option<PortWrite>;
}

impl Reach for OpenPort {
    fn link_up(&self) -> bool {
        MasterPort::link_up(&**self)
    }
    fn set_own_id(&mut self, size: IdSize, id: u16) {
        MasterPort::set_own_id(&mut **self, size, id);
    }
    fn own_id(&mut self) -> u16 {
        MasterPort::own_id(&mut **self)
    }
    fn read_own(&mut self, offset: u32) -> u32 {
        MasterPort::read_own(&mut **self, offset)
    }
    fn write_own(&mut self, offset: u32, value: u32) {
        MasterPort::write_own(&mut **self, offset, value);
    }
    fn maintain(&mut self, request: &Maintenance) -> Result<(), Busy> {
        MasterPort::maintain(&mut **self, request)
    }
    fn maintained(&mut self) -> Option<Maintained> {
        MasterPort::maintained(&mut **self)
    }
    fn port_write(&mut self) -> Option<PortWrite> {
        MasterPort::port_write(&mut **self)
    }
}
