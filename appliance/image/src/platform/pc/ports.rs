//! I/O ports for drivers.

use drivers::hal::IoPorts;
use x86_64::instructions::port::Port;

/// The I/O ports of QEMU's fw_cfg. Reads of other ports return all ones, and writes to them have no effect.
#[derive(Debug)]
pub struct Ports;

/// Selector and data, without DMA (QEMU docs/specs/fw_cfg.rst).
const FW_CFG: core::ops::RangeInclusive<u16> = 0x510..=0x511;

impl IoPorts for Ports {
    fn read8(&mut self, port: u16) -> u8 {
        if !FW_CFG.contains(&port) {
            return u8::MAX;
        }
        // SAFETY: the ports of fw_cfg, which does not access memory without DMA.
        unsafe { Port::new(port).read() }
    }

    fn write16(&mut self, port: u16, value: u16) {
        if FW_CFG.contains(&port) {
            // SAFETY: as above.
            unsafe { Port::new(port).write(value) }
        }
    }
}
