//! Extended feature blocks (RapidIO part 6, 6.1; part 8, 2.1): a linked list in a device's registers.

use super::walk::{Fabric, Failed, Path};
use drivers::rapidio::csr;

/// Maximum number of blocks that are read, in case the list is circular.
const MOST: usize = 16;

/// The LP-Serial block: its offset and register layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Serial {
    pub offset: u32,
    /// Distance in bytes between the registers of two ports.
    pub stride: u32,
}

impl Serial {
    /// Error and status of a port.
    pub fn status(&self, port: u8) -> u32 {
        self.offset + csr::PORT_STATUS + self.stride * u32::from(port)
    }

    /// Control of a port.
    pub fn control(&self, port: u8) -> u32 {
        self.offset + csr::PORT_CONTROL + self.stride * u32::from(port)
    }

    /// General control.
    pub fn general(&self) -> u32 {
        self.offset + csr::GENERAL_CONTROL
    }
}

/// The LP-Serial block of a device, and the offset of its error management block.
pub async fn find(
    fabric: &Fabric,
    path: Path,
    first: u32,
) -> Result<(Option<Serial>, Option<u32>), Failed> {
    let (mut serial, mut management) = (None, None);
    let mut offset = first & 0xfffc;
    for _ in 0..MOST {
        if offset == 0 {
            break;
        }
        let header = fabric.read(path, offset).await?;
        match header & 0xffff {
            1 | 2 | 3 | 9 if serial.is_none() => serial = Some(Serial { offset, stride: 0x20 }),
            0x11 | 0x12 | 0x13 | 0x19 if serial.is_none() => {
                serial = Some(Serial { offset, stride: 0x40 });
            }
            7 | 0x17 if management.is_none() => management = Some(offset),
            _ => {}
        }
        offset = header >> 16 & 0xfffc;
    }
    Ok((serial, management))
}
