//! Messages of vfio-user (QEMU, docs/interop/vfio-user.rst; numbers of Linux, include/uapi/linux/vfio.h).
//! All numbers are little-endian.

/// Bytes of a header: id (2), command (2), size of the whole message (4), flags (4), error (4).
pub const HEADER: usize = 16;
/// Most bytes of a message.
pub const LONGEST: usize = 2 << 20;
/// Most bytes of one read or write of a region.
pub const LONGEST_ACCESS: usize = 1 << 20;

/// Header flags: the message is a reply; no reply is wanted; the reply has an error.
pub const REPLY: u32 = 1;
pub const NO_REPLY: u32 = 1 << 4;
pub const ERROR: u32 = 1 << 5;

/// Configuration space's index, and the number of regions. Lower indices are BARs and the ROM.
pub const CONFIG_REGION: u32 = 7;
pub const REGIONS: u32 = 9;

/// Kinds of interrupts.
pub const IRQ_INTX: u32 = 0;
pub const IRQ_MSI: u32 = 1;
pub const IRQ_MSIX: u32 = 2;
pub const IRQS: u32 = 5;

/// Flags of a device's information: it can be reset, and is a PCI function.
pub const DEVICE_FLAGS: u32 = 3;
/// Flags of a region: it can be read and written.
pub const REGION_FLAGS: u32 = 3;
/// Flag of a region that can also be mapped: the reply carries its file.
pub const REGION_MAPPABLE: u32 = 4;
/// Flags of interrupts: signalled by eventfd; maskable; masked automatically when signalled.
pub const IRQ_EVENTFD: u32 = 1;
pub const IRQ_MASKABLE: u32 = 2;
pub const IRQ_AUTOMASKED: u32 = 4;

/// Flags of SET_IRQS: no data, or eventfds; the action is to trigger.
pub const SET_DATA_NONE: u32 = 1;
pub const SET_DATA_EVENTFD: u32 = 4;
pub const SET_TRIGGER: u32 = 32;

/// Flags of DMA_MAP and DMA_UNMAP.
pub const DMA_WRITABLE: u32 = 2;
pub const UNMAP_ALL: u32 = 2;

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    Version,
    DmaMap,
    DmaUnmap,
    DeviceInfo,
    RegionInfo,
    IrqInfo,
    SetIrqs,
    RegionRead,
    RegionWrite,
    DeviceReset,
    WriteMultiple,
    Unknown,
}

impl Command {
    fn of(number: u16) -> Self {
        match number {
            1 => Command::Version,
            2 => Command::DmaMap,
            3 => Command::DmaUnmap,
            4 => Command::DeviceInfo,
            5 => Command::RegionInfo,
            7 => Command::IrqInfo,
            8 => Command::SetIrqs,
            9 => Command::RegionRead,
            10 => Command::RegionWrite,
            13 => Command::DeviceReset,
            15 => Command::WriteMultiple,
            _ => Command::Unknown,
        }
    }
}

/// A received message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Header and body.
    bytes: &'a [u8],
}

impl<'a> Message<'a> {
    /// The first message in `bytes`: None while it is incomplete, an error if its size is impossible.
    pub fn first(bytes: &'a [u8]) -> Result<Option<Self>, String> {
        if bytes.len() < HEADER {
            return Ok(None);
        }
        let size = Message { bytes }.header(4) as usize;
        if !(HEADER..=LONGEST).contains(&size) {
            return Err(format!("a message of {size} bytes"));
        }
        Ok(bytes.get(..size).map(|bytes| Message { bytes }))
    }

    /// Its size in bytes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// The request's command.
    pub fn command(&self) -> Command {
        Command::of((self.header(0) >> 16) as u16)
    }

    /// Whether the client wants a reply.
    pub fn wants_reply(&self) -> bool {
        self.header(8) & NO_REPLY == 0
    }

    /// The bytes after the header.
    pub fn body(&self) -> Body<'a> {
        Body(&self.bytes[HEADER..])
    }

    fn header(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.bytes[at..at + 4].try_into().expect("four bytes"))
    }

    /// The complete reply, with a body or an error number.
    pub fn reply(&self, result: Result<&[u8], u32>) -> Vec<u8> {
        let (flags, error, body) = match result {
            Ok(body) => (REPLY, 0, body),
            Err(number) => (REPLY | ERROR, number, &[][..]),
        };
        let mut reply = self.bytes[..4].to_vec();
        for number in [(HEADER + body.len()) as u32, flags, error] {
            reply.extend(number.to_le_bytes());
        }
        reply.extend(body);
        reply
    }
}

/// The body of a message. A read beyond its end fails: the client's message is too short.
#[derive(Clone, Copy, Debug)]
pub struct Body<'a>(pub &'a [u8]);

impl<'a> Body<'a> {
    /// The number of 4 bytes at an offset.
    pub fn u32(&self, at: usize) -> Result<u32, BadMessage> {
        self.bytes(at, 4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")))
    }

    /// The number of 8 bytes at an offset.
    pub fn u64(&self, at: usize) -> Result<u64, BadMessage> {
        self.bytes(at, 8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")))
    }

    /// Bytes at an offset.
    pub fn bytes(&self, at: usize, length: usize) -> Result<&'a [u8], BadMessage> {
        at.checked_add(length).and_then(|end| self.0.get(at..end)).ok_or(BadMessage)
    }
}

/// The message is shorter than its fields require, or names a region or interrupt that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMessage;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_parsed_when_complete() {
        let mut bytes = vec![7, 0, 9, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3];
        assert!(Message::first(&bytes[..15]).unwrap().is_none());
        assert!(Message::first(&bytes).unwrap().is_none());
        bytes.extend([4, 5]);
        let message = Message::first(&bytes).unwrap().unwrap();
        assert_eq!((message.size(), message.command()), (20, Command::RegionRead));
        assert_eq!(message.body().u32(0), Ok(0x0403_0201));
        assert_eq!(message.body().u64(0), Err(BadMessage));
        assert_eq!(
            message.reply(Ok(&[9]))[..],
            [7, 0, 9, 0, 17, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9]
        );
        assert_eq!(message.reply(Err(22))[8..], [0x21, 0, 0, 0, 22, 0, 0, 0]);
    }

    #[test]
    fn impossible_size_is_an_error() {
        for size in [0u32, 15, LONGEST as u32 + 1] {
            let mut bytes = [0; HEADER];
            bytes[4..8].copy_from_slice(&size.to_le_bytes());
            assert!(Message::first(&bytes).is_err(), "{size}");
        }
    }
}
