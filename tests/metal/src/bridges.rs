//! Bridges: models of two functions, one in each of two machines, and the drivers on them.

use crate::Metal;
use drivers::hal::Platform;
use drivers::ntb::{NtbDevice, Side};
use drivers::registry::Class;
use models::Function;
use models::ntb::amd::{self, AmdNtb};
use models::ntb::intel::{self, IntelNtb};
use models::ntb::switchtec::{self, Switchtec};

/// Bytes of a window, and of a machine's memory.
pub const BAR: u64 = 4 << 20;
/// See [`BAR`].
pub const MEMORY: usize = 12 << 20;

/// A bridge whose two functions are one model.
pub trait Joined: Function + Send + Sized + 'static {
    /// The driver's name.
    const DRIVER: &str;
    /// Where in memory the driver is expected to expose it, and how many bytes.
    const EXPOSED: (u64, u64);

    /// The cable is pulled out, or put back.
    fn set_cable(&self, there: bool);

    /// Where the other's accesses end in this one's memory, as far as the model says.
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
    // Half of its BAR are windows by lookup.
    const EXPOSED: (u64, u64) = (BAR, BAR);

    fn set_cable(&self, there: bool) {
        self.set_cable(there);
    }

    fn exposed(&mut self) -> Option<(u64, u64)> {
        None
    }
}

/// Intel's third generation.
pub fn gen3() -> [IntelNtb; 2] {
    IntelNtb::pair(good())
}

/// Intel's fourth, in Ice Lake.
pub fn ice_lake() -> [IntelNtb; 2] {
    IntelNtb::pair(intel::Config::new(intel::GEN4, BAR))
}

/// The same in Sapphire Rapids.
pub fn sapphire_rapids() -> [IntelNtb; 2] {
    IntelNtb::pair(intel::Config { revision: 0x20, ..intel::Config::new(intel::GEN4, BAR) })
}

/// The same in Granite Rapids.
pub fn granite_rapids() -> [IntelNtb; 2] {
    IntelNtb::pair(intel::Config::new(intel::GRANITE_RAPIDS, BAR))
}

/// AMD's with two windows.
pub fn amd() -> [AmdNtb; 2] {
    AmdNtb::pair(amd::Config::new(amd::DEVICE, BAR))
}

/// AMD's with three.
pub fn amd_with_three_windows() -> [AmdNtb; 2] {
    AmdNtb::pair(amd::Config::new(amd::THREE_WINDOWS, BAR))
}

/// Switchtec's, whose direct window is as large as the others'.
pub fn switchtec() -> [Switchtec; 2] {
    Switchtec::pair(switchtec::Config { entries: 64, ..switchtec::Config::new(2 * BAR) })
}

/// Intel's third generation, as it should be.
pub fn good() -> intel::Config {
    intel::Config::new(intel::DEVICE, BAR)
}

/// Machines that are joined. Where the CPU writes to a window it writes to where the other is expected to
/// expose memory.
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

/// Sets a machine's bridge up; or why not, with all memory given back.
pub fn open<M: Joined>(machine: &mut Metal<M>) -> Result<Box<dyn NtbDevice>, String> {
    open_as(machine, None)
}

/// The same as the side that is said.
pub fn open_as<M: Joined>(
    machine: &mut Metal<M>,
    side: Option<Side>,
) -> Result<Box<dyn NtbDevice>, String> {
    let device = machine.find().take(Class::Bridge).remove(0);
    assert_eq!(device.driver(), M::DRIVER);
    let free = machine.arena().available();
    device.open_bridge(machine, side, true).map_err(|why| {
        assert_eq!(machine.arena().available(), free, "memory is given back");
        why.to_string()
    })
}
