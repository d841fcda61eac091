//! The function-level reset (PCI Express Base, 6.6.2): what it forgets of configuration space is written again.

use super::Function;
use core::time::Duration;

const EXPRESS: u8 = 0x10;
const MSIX: u8 = 0x11;
/// In the device capabilities: the function can be reset.
const CAPABLE: u32 = 1 << 28;
/// In the device control.
const RESET: u32 = 1 << 15;
/// How long it may take.
pub const TIME: Duration = Duration::from_millis(100);
/// The first BAR, and how many words of them there are.
const BARS: u16 = 0x10;
const WORDS: usize = 6;

/// What configuration space had in it before.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    bars: [u32; WORDS],
    /// The device control: where, and what.
    control: (u16, u32),
    /// The control word of MSI-X: where, and what.
    msix: Option<(u16, u32)>,
}

/// Begins a reset. None if the function has none.
pub fn begin(function: &Function<'_>) -> Option<Kept> {
    let express = function.capabilities().find(|capability| capability.id == EXPRESS)?;
    if function.read32(express.offset + 4) & CAPABLE == 0 {
        return None;
    }
    let msix = function.capabilities().find(|capability| capability.id == MSIX);
    let control = function.read32(express.offset + 8) & 0xffff & !RESET;
    let kept = Kept {
        control: (express.offset + 8, control),
        bars: core::array::from_fn(|n| function.read32(BARS + 4 * n as u16)),
        msix: msix.map(|capability| (capability.offset, function.read32(capability.offset))),
    };
    // No new requests of the function while it ends those that it has.
    function.disable();
    function.write32(express.offset + 8, control | RESET);
    Some(kept)
}

/// Ends it, [`TIME`] later: the function has its registers again, and may use the bus.
pub fn end(function: &Function<'_>, kept: &Kept) {
    for (n, bar) in kept.bars.iter().enumerate() {
        function.write32(BARS + 4 * n as u16, *bar);
    }
    function.write32(kept.control.0, kept.control.1);
    function.enable();
    if let Some((offset, control)) = kept.msix {
        function.write32(offset, control);
    }
}
