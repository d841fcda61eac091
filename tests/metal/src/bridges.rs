//! Bridges: models of two joined functions, each in a machine of its own, and their drivers.

use crate::Metal;
use drivers::driver::Class;
use drivers::hal::Platform;
use drivers::ntb::{NtbDevice, Side};
use models::Function;
use models::ntb::amd::{self, AmdNtb};
use models::ntb::intel::{self, IntelNtb};
use models::ntb::switchtec::{self, Switchtec};

/// Bytes of a window.
pub const BAR: u64 = 4 << 20;
/// Bytes of a machine's memory.
pub const MEMORY: usize = 12 << 20;

/// A bridge model with two functions.
pub trait Joined: Function + Send + Sized + 'static {
    /// The driver's name.
    const DRIVER: &str;
    /// The memory that the driver is expected to expose: start and bytes.
    const EXPOSED: (u64, u64);

    /// Unplugs the cable, or plugs it in.
    fn set_cable(&self, there: bool);

    /// The memory that the other function's accesses reach, if the model reports it: start and bytes.
    fn exposed(&mut self) -> Option<(u64, u64)>;
}

impl Joined for IntelNtb {
    const DRIVER: &str = "ntb_hw_intel";
    // The first multiple of the BAR's size.
    const EXPOSED: (u64, u64) = (BAR, BAR);

    fn set_cable(&self, there: bool) {
        self.set_cable(there);
    }

    fn exposed(&mut self) -> Option<(u64, u64)> {
        Some(self.exposed())
    }
}

impl Joined for AmdNtb {
    const DRIVER: &str = "ntb_hw_amd";
    // The first page.
    const EXPOSED: (u64, u64) = (0x10_0000, BAR);

    fn set_cable(&self, there: bool) {
        self.set_cable(there);
    }

    fn exposed(&mut self) -> Option<(u64, u64)> {
        Some(AmdNtb::exposed(self))
    }
}

impl Joined for Switchtec {
    const DRIVER: &str = "ntb_hw_switchtec";
    // Half of the BAR has lookup windows.
    const EXPOSED: (u64, u64) = (BAR, BAR);

    fn set_cable(&self, there: bool) {
        self.set_cable(there);
    }

    fn exposed(&mut self) -> Option<(u64, u64)> {
        None
    }
}

/// Intel's third generation: Skylake.
pub fn gen3() -> [IntelNtb; 2] {
    IntelNtb::pair(good())
}

/// Intel's fourth generation in Ice Lake.
pub fn ice_lake() -> [IntelNtb; 2] {
    IntelNtb::pair(intel::Config::new(intel::GEN4, BAR))
}

/// Intel's fourth generation in Sapphire Rapids.
pub fn sapphire_rapids() -> [IntelNtb; 2] {
    IntelNtb::pair(intel::Config { revision: 0x20, ..intel::Config::new(intel::GEN4, BAR) })
}

/// Intel's fourth generation in Granite Rapids.
pub fn granite_rapids() -> [IntelNtb; 2] {
    IntelNtb::pair(intel::Config::new(intel::GRANITE_RAPIDS, BAR))
}

/// AMD's bridge with two windows.
pub fn amd() -> [AmdNtb; 2] {
    AmdNtb::pair(amd::Config::new(amd::DEVICE, BAR))
}

/// AMD's bridge with three windows.
pub fn amd_with_three_windows() -> [AmdNtb; 2] {
    AmdNtb::pair(amd::Config::new(amd::THREE_WINDOWS, BAR))
}

/// A Switchtec whose direct window has [`BAR`] bytes.
pub fn switchtec() -> [Switchtec; 2] {
    Switchtec::pair(switchtec::Config { entries: 64, ..switchtec::Config::new(2 * BAR) })
}

/// A configuration of Intel's third generation without a fault.
pub fn good() -> intel::Config {
    intel::Config::new(intel::DEVICE, BAR)
}

/// Creates joined machines. The CPU's writes to a window go to the memory that the other driver is expected to expose.
pub fn machines<M: Joined>(functions: [M; 2], memory: usize) -> [Metal<M>; 2] {
    let machines = functions.map(|function| Metal::new(function, memory));
    if memory == MEMORY {
        let (start, len) = M::EXPOSED;
        for n in 0..2 {
            machines[n].put_behind(2, machines[1 - n].memory(start, len as usize));
        }
    }
    machines
}

/// Opens a machine's bridge. An error is the reason; all memory is then freed.
pub fn open<M: Joined>(machine: &mut Metal<M>) -> Result<Box<dyn NtbDevice>, String> {
    open_as(machine, None)
}

/// Opens a machine's bridge as the given side.
pub fn open_as<M: Joined>(
    machine: &mut Metal<M>,
    side: Option<Side>,
) -> Result<Box<dyn NtbDevice>, String> {
    let device = machine.find().take(Class::Bridge).remove(0);
    assert_eq!(device.driver(), M::DRIVER);
    let free = machine.arena().available();
    device.open_bridge(machine, side, true).map_err(|why| {
        assert_eq!(machine.arena().available(), free, "memory is freed");
        why.to_string()
    })
}
