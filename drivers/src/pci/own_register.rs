//! Registers of configuration space that only one kind of function has. All that drivers may write there are here.

use super::Function;

/// A register that moves no memory of ours: each is looked at here, and none can be made elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnRegister {
    offset: u16,
    vendor: u16,
    /// Device ID, if there is one alone.
    device: Option<u16>,
    /// Base class and subclass, if there are several devices.
    class: Option<u32>,
}

impl OwnRegister {
    /// Tsi721: lets the next two be written. They say where in the function's own BAR its table of MSI-X and its pending
    /// bits lie.
    pub const TSI721_UNLOCK: OwnRegister = OwnRegister::tsi721(0x400);
    /// Tsi721: the table of MSI-X.
    pub const TSI721_TABLE: OwnRegister = OwnRegister::tsi721(0xa4);
    /// Tsi721: the pending bits.
    pub const TSI721_PENDING: OwnRegister = OwnRegister::tsi721(0xa8);
    /// I/OAT: errors of the engine once more, which versions before 3.3 want cleared here as well, each by a one.
    pub const IOAT_ERRORS: OwnRegister =
        OwnRegister { offset: 0x180, vendor: 0x8086, device: None, class: Some(0x0880) };

    const fn tsi721(offset: u16) -> OwnRegister {
        OwnRegister { offset, vendor: 0x111d, device: Some(0x80ab), class: None }
    }

    /// Where it is.
    pub const fn offset(self) -> u16 {
        self.offset
    }

    /// Whether a function has it.
    pub(super) fn is_of(self, function: &Function<'_>) -> bool {
        function.vendor() == self.vendor
            && self.device.is_none_or(|device| device == function.device())
            && self.class.is_none_or(|class| class == function.class() >> 8)
    }
}
