//! What the ports of a controller share: its function, which they use as one bus master.

use super::registers::PortRegisters;
use crate::pci::Function;
use crate::pci::reset::SavedConfig;
use core::cell::Cell;

/// A controller, as its ports share it.
pub struct Controller {
    function: Function<'static>,
    /// Configuration registers as at the opening.
    saved: SavedConfig,
    /// Ports that did not stop, as bits. They may still have commands, so the function must not reach memory.
    stuck: Cell<u32>,
    /// Resets of the whole controller, because of a port that did not stop.
    resets: Cell<u32>,
}

impl Drop for Controller {
    /// The last port is gone: nothing is left for which the controller may reach memory.
    fn drop(&mut self) {
        self.function.disable();
    }
}

impl Controller {
    /// A controller whose ports stand still, and whose function is prepared. It becomes a bus master.
    pub fn new(function: Function<'static>) -> Self {
        let saved = SavedConfig::of(&function);
        function.enable_bus_master();
        Controller { function, saved, stuck: Cell::new(0), resets: Cell::new(0) }
    }

    /// Lets a port that stands still reach memory. False if another port is stuck.
    pub fn allow_memory(&self) -> bool {
        let may = self.stuck.get() == 0;
        if may {
            self.function.enable_bus_master();
        }
        may
    }

    /// Keeps the controller from memory, because a port does not stop. Returns whether the port was known to be stuck.
    pub fn note_stuck(&self, port: &PortRegisters) -> bool {
        // Without bus mastering the controller cannot reach memory, whatever its state.
        self.function.disable();
        let bit = 1 << port.number();
        let before = self.stuck.replace(self.stuck.get() | bit);
        before & bit != 0
    }

    /// Begins a reset of the controller. All ports lose their registers.
    pub fn reset(&self, port: &PortRegisters) {
        self.resets.set(self.resets.get().wrapping_add(1));
        port.reset_controller();
    }

    /// Number of resets so far.
    #[inline]
    pub fn resets(&self) -> u32 {
        self.resets.get()
    }

    /// A port stands still. Returns whether all others do that were stuck.
    pub fn note_stopped(&self, port: &PortRegisters) -> bool {
        let others = self.stuck.get() & !(1 << port.number());
        self.stuck.set(others);
        others == 0
    }

    /// Whether the function does not answer to reads of its configuration.
    pub fn is_absent(&self) -> bool {
        self.function.vendor() == u16::MAX
    }

    /// Restores the function's registers if it has lost them. False if it does not answer.
    pub fn restore_lost(&self) -> bool {
        self.saved.restore_lost(&self.function)
    }
}
