//! Function-level reset (PCI Express Base, 6.6.2), which restores the configuration registers that the reset clears.

use super::Function;
use core::time::Duration;

const EXPRESS: u8 = 0x10;
const MSIX: u8 = 0x11;
/// Device capabilities: the function supports the reset.
const CAPABLE: u32 = 1 << 28;
/// Device control: starts the reset.
const RESET: u32 = 1 << 15;
/// Time that a reset may take.
pub const TIME: Duration = Duration::from_millis(100);
/// The first BAR, and the number of BARs.
const BARS: u16 = 0x10;
const WORDS: usize = 6;

/// Registers of configuration space, saved before the reset.
#[derive(Clone, Copy, Debug)]
pub struct SavedConfig {
    bars: [u32; WORDS],
    /// Device control: offset and value.
    control: (u16, u32),
    /// MSI-X control: offset and value.
    msix: Option<(u16, u32)>,
}

/// Begins a reset. None if the function does not support it.
pub fn begin(function: &Function<'_>) -> Option<SavedConfig> {
    let express = function.capabilities().find(|capability| capability.id == EXPRESS)?;
    if function.read32(express.offset + 4) & CAPABLE == 0 {
        return None;
    }
    let msix = function.capabilities().find(|capability| capability.id == MSIX);
    let control = function.read32(express.offset + 8) & 0xffff & !RESET;
    let saved = SavedConfig {
        control: (express.offset + 8, control),
        bars: core::array::from_fn(|n| function.read32(BARS + 4 * n as u16)),
        msix: msix.map(|capability| (capability.offset, function.read32(capability.offset))),
    };
    // The function must not start new requests while those in flight end.
    function.disable();
    function.write32(express.offset + 8, control | RESET);
    Some(saved)
}

/// Ends a reset, [`TIME`] after [`begin`]: restores the registers and enables the function.
pub fn end(function: &Function<'_>, saved: &SavedConfig) {
    for (n, bar) in saved.bars.iter().enumerate() {
        function.write32(BARS + 4 * n as u16, *bar);
    }
    function.write32(saved.control.0, saved.control.1);
    function.enable();
    if let Some((offset, control)) = saved.msix {
        function.write32(offset, control);
    }
}
