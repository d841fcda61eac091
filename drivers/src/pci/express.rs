//! The PCI Express capability (PCI Express Base 5.0, 7.5.3) and Advanced Error Reporting (7.8.4): order of a function's
//! accesses to memory, pending transactions, error status.

use super::Function;

/// Capability ID.
const EXPRESS: u8 = 0x10;
/// Extended capability ID of Advanced Error Reporting.
const ERROR_REPORTING: u16 = 1;

// Offsets in the PCI Express capability.
const DEVICE_CAPABILITIES: u16 = 0x04;
/// Device Control in the lower half, Device Status in the upper.
const DEVICE_CONTROL: u16 = 0x08;
const DEVICE_CONTROL_2: u16 = 0x28;

// Device Control.
const RELAXED_ORDERING: u32 = 1 << 4;
const NO_SNOOP: u32 = 1 << 11;
// Device Status.
const ERRORS: u32 = 0xf << 16;
const PENDING: u32 = 1 << 21;

// Offsets in Advanced Error Reporting. Both registers are cleared by writing ones.
const UNCORRECTABLE: u16 = 0x04;
const CORRECTABLE: u16 = 0x10;

/// First offset of extended capabilities, and the most of them: each takes 8 bytes or more.
const EXTENDED: u16 = 0x100;
const MOST_EXTENDED: usize = 480;

/// The PCI Express capability of a function.
#[derive(Clone, Copy)]
pub struct Express<'a> {
    function: Function<'a>,
    offset: u16,
}

impl<'a> Function<'a> {
    /// The function's PCI Express capability. Functions of conventional PCI have none.
    pub(super) fn express(&self) -> Option<Express<'a>> {
        let found = self.capabilities().find(|capability| capability.id == EXPRESS)?;
        Some(Express { function: *self, offset: found.offset })
    }

    /// Offset of an extended capability. None without it, or if the machine cannot access extended configuration space.
    pub(super) fn extended_capability(&self, id: u16) -> Option<u16> {
        let mut at = EXTENDED;
        for _ in 0..MOST_EXTENDED {
            let header = self.read32(at);
            if header == 0 || header == u32::MAX {
                return None;
            }
            if header as u16 == id {
                return Some(at);
            }
            at = (header >> 20) as u16 & 0xffc;
            if at < EXTENDED {
                return None;
            }
        }
        None
    }

    /// Offset of Advanced Error Reporting.
    pub(super) fn error_reporting(&self) -> Option<u16> {
        self.extended_capability(ERROR_REPORTING)
    }

    /// Forbids the function to reorder its writes (Relaxed Ordering) and to bypass caches (No Snoop). Both are allowed
    /// after a reset. Drivers here rely on data being in memory before the status or the bell that reports it. Linux
    /// does this for the Tsi721 (`tsi721_probe`) and, except for No Snoop, for I/OAT (`ioat3_dma_probe`).
    pub(super) fn order_strictly(&self) {
        if let Some(express) = self.express() {
            let control = express.control();
            let strict = control & !(RELAXED_ORDERING | NO_SNOOP);
            if strict != control {
                express.write(DEVICE_CONTROL, strict);
            }
        }
    }

    /// Clears error status that an earlier system has left behind.
    pub(super) fn clear_errors(&self) {
        if let Some(express) = self.express() {
            let status = express.read(DEVICE_CONTROL) & ERRORS;
            if status != 0 {
                express.write(DEVICE_CONTROL, express.control() | status);
            }
        }
        for offset in [UNCORRECTABLE, CORRECTABLE] {
            if let Some(at) = self.error_reporting().map(|at| at + offset) {
                let status = self.read32(at);
                if status != 0 && status != u32::MAX {
                    self.write32(at, status);
                }
            }
        }
    }

    /// Sets the time after which a request of the function without completion fails: `range` as encoded in Device
    /// Control 2 (2: 1 to 10 ms).
    pub(crate) fn set_completion_timeout(&self, range: u8) {
        if let Some(express) = self.express() {
            let control = express.read(DEVICE_CONTROL_2) & 0xffff;
            express.write(DEVICE_CONTROL_2, control & !0xf | u32::from(range & 0xf));
        }
    }
}

impl Express<'_> {
    fn read(&self, offset: u16) -> u32 {
        self.function.read32(self.offset + offset)
    }

    fn write(&self, offset: u16, value: u32) {
        self.function.write32(self.offset + offset, value);
    }

    /// Device Capabilities.
    pub fn capabilities(&self) -> u32 {
        self.read(DEVICE_CAPABILITIES)
    }

    /// Device Control.
    pub fn control(&self) -> u32 {
        self.read(DEVICE_CONTROL) & 0xffff
    }

    /// Writes Device Control. Device Status keeps its bits, which only ones clear.
    pub fn set_control(&self, control: u32) {
        self.write(DEVICE_CONTROL, control & 0xffff);
    }

    /// Whether requests of the function have no completion yet. A function that does not answer reads as pending.
    pub fn is_pending(&self) -> bool {
        self.read(DEVICE_CONTROL) & PENDING != 0
    }

    /// Offset of the capability in configuration space.
    pub fn offset(&self) -> u16 {
        self.offset
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::ConfigSpaces;
    use super::*;
    use crate::hal::PciAddress;

    /// A function with a PCI Express capability at 0x40, and Device Control `control`.
    fn spaces(control: u32) -> (ConfigSpaces, PciAddress) {
        let mut spaces = ConfigSpaces::default();
        let address = PciAddress::new(0, 0, 1, 0);
        let space = spaces.function(address, 0x111d, 0x80ab);
        space.set8(6, 0x10);
        space.set8(0x34, 0x40);
        space.set32(0x40, 0x0002_0010);
        space.set32(0x48, control);
        space.set32(0x68, 0x1f0);
        (spaces, address)
    }

    #[test]
    fn order_is_strict_after_preparation() {
        let (spaces, address) = spaces(0x2810);
        let function = Function::new(address, &spaces).unwrap();
        function.prepare();
        assert_eq!(function.read32(0x48), 0x2000);
        assert_eq!(function.read32(4) & 0xffff, 0x402, "no bus mastering yet");
        function.enable_bus_master();
        assert_eq!(function.read32(4) & 0xffff, 0x406);
    }

    #[test]
    fn completion_timeout_changes_only_its_field() {
        let (spaces, address) = spaces(0);
        let function = Function::new(address, &spaces).unwrap();
        function.set_completion_timeout(2);
        assert_eq!(function.read32(0x68), 0x1f2);
    }

    #[test]
    fn function_without_express_or_extended_space_is_prepared() {
        let mut spaces = ConfigSpaces::default();
        let address = PciAddress::new(0, 0, 1, 0);
        spaces.function(address, 0x1af4, 0x1041);
        let function = Function::new(address, &spaces).unwrap();
        function.prepare();
        assert_eq!(function.read32(4) & 0xffff, 0x402);
        assert_eq!(function.error_reporting(), None);
    }
}
