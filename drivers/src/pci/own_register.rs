//! Device-specific registers of configuration space: the complete list of those that drivers may write.

use super::Function;

/// A register that is safe to write, because it moves no memory of this program. Only this file makes values of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnRegister {
    offset: u16,
    vendor: u16,
    /// Device ID, if a single device has the register.
    device: Option<u16>,
    /// Base class and subclass, if several devices have it.
    class: Option<u32>,
}

impl OwnRegister {
    /// Tsi721: unlocks [`OwnRegister::TSI721_TABLE`] and [`OwnRegister::TSI721_PENDING`].
    pub const TSI721_UNLOCK: OwnRegister = OwnRegister::tsi721(0x400);
    /// Tsi721: location of the MSI-X table in the function's BAR.
    pub const TSI721_TABLE: OwnRegister = OwnRegister::tsi721(0xa4);
    /// Tsi721: location of the MSI-X pending bits in the function's BAR.
    pub const TSI721_PENDING: OwnRegister = OwnRegister::tsi721(0xa8);
    /// I/OAT: copy of the engine's error bits. Versions before 3.3 need them cleared here as well, by writing ones.
    pub const IOAT_ERRORS: OwnRegister =
        OwnRegister { offset: 0x180, vendor: 0x8086, device: None, class: Some(0x0880) };

    const fn tsi721(offset: u16) -> OwnRegister {
        OwnRegister { offset, vendor: 0x111d, device: Some(0x80ab), class: None }
    }

    /// Offset in configuration space.
    pub const fn offset(self) -> u16 {
        self.offset
    }

    /// Whether `function` has this register.
    pub(super) fn is_of(self, function: &Function<'_>) -> bool {
        function.vendor() == self.vendor
            && self.device.is_none_or(|device| device == function.device())
            && self.class.is_none_or(|class| class == function.class() >> 8)
    }
}
