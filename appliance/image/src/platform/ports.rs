//! I/O ports, as drivers use them.

use drivers::hal::IoPorts;
use x86_64::instructions::port::Port;

/// The machine's I/O ports.
#[derive(Debug)]
pub struct Ports;

impl IoPorts for Ports {
    fn read8(&mut self, port: u16) -> u8 {
        // SAFETY: drivers name the ports of their own device; port I/O does not touch memory.
        unsafe { Port::new(port).read() }
    }

    fn write16(&mut self, port: u16, value: u16) {
        // SAFETY: as above.
        unsafe { Port::new(port).write(value) }
    }
}
