//! Function-level reset (PCI Express Base 5.0, 6.6.2), for drivers that need one: waits for pending transactions, starts
//! the reset, waits while the function answers configuration requests with retries, and restores the registers that the
//! reset clears. The order and the times are those of Linux (`pcie_flr`, `pci_dev_wait`, `pci_restore_state`).

use super::{Function, express::Express};
use crate::hal::Instant;
use core::time::Duration;

const MSIX: u8 = 0x11;
const MSI: u8 = 0x05;
/// Device Capabilities: the function supports the reset.
const CAPABLE: u32 = 1 << 28;
/// Device Control: starts the reset.
const START: u32 = 1 << 15;
/// Longest wait for pending transactions before the reset. Linux waits 100 + 200 + 400 ms.
const PENDING_TIMEOUT: Duration = Duration::from_millis(700);
/// Time in which the function must not be accessed.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// Longest time of configuration retries after that (Linux: `PCIE_RESET_READY_POLL_MS`).
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
/// Vendor ID that a root port returns while the function answers with retries, if it makes retries visible.
const RETRY: u16 = 0x0001;

/// Registers of the header that a reset clears: cache line size and latency timer, BARs, expansion ROM, interrupt line.
const HEADER: [u16; 9] = [0x0c, 0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x30, 0x3c];
/// Registers of the PCI Express capability: Device Control, Link Control, Device Control 2, Link Control 2. Their upper
/// halves are status registers.
const EXPRESS: [u16; 4] = [0x08, 0x10, 0x28, 0x30];
/// Registers of Advanced Error Reporting: both masks, the severity, control.
const ERROR_REPORTING: [u16; 4] = [0x08, 0x0c, 0x14, 0x18];

/// Registers of configuration space that a reset clears. A driver saves them when it opens the function: a reset by the
/// machine (hot reset, Downstream Port Containment, power) leaves nothing to save.
#[derive(Clone, Copy, Debug)]
pub struct SavedConfig {
    /// Vendor and device ID.
    id: u32,
    header: [u32; HEADER.len()],
    /// Offset of the capability, and its registers.
    express: Option<(u16, [u32; EXPRESS.len()])>,
    error_reporting: Option<(u16, [u32; ERROR_REPORTING.len()])>,
    /// Offset and control word of MSI and MSI-X.
    messages: [Option<(u16, u32)>; 2],
}

impl SavedConfig {
    /// Saves the registers of a function that its driver has prepared.
    pub fn of(function: &Function<'_>) -> Self {
        let words = |start: u16, offset: u16| function.read32(start + offset);
        let control = |id: u8| {
            let found = function.capabilities().find(|capability| capability.id == id)?;
            Some((found.offset, function.read32(found.offset)))
        };
        let express = |express: Express<'_>| {
            let at = express.offset();
            (at, EXPRESS.map(|offset| words(at, offset) & 0xffff))
        };
        SavedConfig {
            id: function.read32(0),
            header: HEADER.map(|offset| words(0, offset)),
            express: function.express().map(express),
            error_reporting: function
                .error_reporting()
                .map(|at| (at, ERROR_REPORTING.map(|offset| words(at, offset)))),
            messages: [control(MSIX), control(MSI)],
        }
    }

    /// Restores the registers, and prepares the function. Bus mastering is off.
    pub fn restore(&self, function: &Function<'_>) {
        function.disable();
        function.stop_decoding();
        for (offset, value) in HEADER.into_iter().zip(self.header) {
            function.write32(offset, value);
        }
        if let Some((at, values)) = self.express {
            for (offset, value) in EXPRESS.into_iter().zip(values) {
                function.write32(at + offset, value & !START);
            }
        }
        if let Some((at, values)) = self.error_reporting {
            for (offset, value) in ERROR_REPORTING.into_iter().zip(values) {
                function.write32(at + offset, value);
            }
        }
        for (at, control) in self.messages.into_iter().flatten() {
            function.write32(at, control);
        }
        function.prepare();
    }

    /// Restores the registers if the function has lost them, as after a reset by the machine. False if the function does
    /// not answer, or is another device in its place.
    pub fn restore_lost(&self, function: &Function<'_>) -> bool {
        if function.read32(0) != self.id {
            return false;
        }
        let lost = |n: usize| function.read32(HEADER[n]) != self.header[n];
        // The BARs.
        if (1..7).any(lost) {
            self.restore(function);
        }
        true
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for pending transactions.
    Draining,
    /// The reset was started.
    Settling,
    /// Waiting for an answer to configuration requests.
    Retrying,
    Done,
}

/// Progress of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Call [`FunctionReset::step`] again.
    Waiting,
    /// The function is reset: registers are restored and decoded, bus mastering is off.
    Done,
    /// The function is absent, or does not answer within a minute.
    NoAnswer,
}

/// A reset in progress.
#[derive(Clone, Copy, Debug)]
pub struct FunctionReset {
    saved: SavedConfig,
    phase: Phase,
    since: Instant,
}

impl FunctionReset {
    /// Whether a function supports the reset.
    pub fn is_supported(function: &Function<'_>) -> bool {
        function.express().is_some_and(|express| express.capabilities() & CAPABLE != 0)
    }

    /// Stops the bus mastering of a function that supports the reset, so that it starts no new requests. After the reset
    /// its registers will be as in `saved`.
    pub fn begin(function: &Function<'_>, saved: SavedConfig, now: Instant) -> Self {
        function.disable();
        FunctionReset { saved, phase: Phase::Draining, since: now }
    }

    /// Takes the next step if it is due. Never waits itself.
    pub fn step(&mut self, function: &Function<'_>, now: Instant) -> Progress {
        let waited = now.since(self.since);
        match self.phase {
            Phase::Draining => {
                let Some(express) = function.express().filter(|_| answers(function)) else {
                    return Progress::NoAnswer;
                };
                if !express.is_pending() || waited >= PENDING_TIMEOUT {
                    express.set_control(express.control() | START);
                    (self.phase, self.since) = (Phase::Settling, now);
                }
                Progress::Waiting
            }
            Phase::Settling => {
                if waited >= SETTLE_TIME {
                    self.phase = Phase::Retrying;
                }
                Progress::Waiting
            }
            Phase::Retrying if answers(function) => {
                self.saved.restore(function);
                self.phase = Phase::Done;
                Progress::Done
            }
            Phase::Retrying if waited >= SETTLE_TIME + RETRY_TIMEOUT => Progress::NoAnswer,
            Phase::Retrying => Progress::Waiting,
            Phase::Done => Progress::Done,
        }
    }
}

/// Starts a reset without waiting for its end, for a function that is not used any more.
pub fn abandon(function: &Function<'_>) {
    function.disable();
    let express = function.express().filter(|express| express.capabilities() & CAPABLE != 0);
    if let Some(express) = express.filter(|_| answers(function)) {
        express.set_control(express.control() | START);
    }
}

/// Whether the function answers configuration requests, neither absent nor with a retry.
pub fn answers(function: &Function<'_>) -> bool {
    !matches!(function.vendor(), u16::MAX | RETRY)
}

#[cfg(test)]
mod tests {
    use super::super::model::ConfigSpaces;
    use super::*;
    use crate::hal::PciAddress;

    /// The configuration spaces of the test refuse to move an address while memory is decoded.
    #[test]
    fn base_addresses_are_restored_while_memory_is_not_decoded() {
        let mut spaces = ConfigSpaces::default();
        let address = PciAddress::new(0, 0, 1, 0);
        spaces.function(address, 0x1af4, 0x1041).set32(0x10, 0xfe80_0000);
        let function = Function::new(address, &spaces).unwrap();
        function.prepare();
        let saved = SavedConfig::of(&function);
        function.enable_bus_master();
        spaces.0.get(&address).unwrap().lock().unwrap().set32(0x10, 0);
        assert!(saved.restore_lost(&function));
        assert_eq!(function.read32(0x10), 0xfe80_0000);
        assert_eq!(function.read32(4) & 6, 2, "memory is decoded, bus mastering is off");
    }
}
