//! The interface between driver and firmware: semaphores (82599, 10.5.4), and host interface commands.

use super::engine::Engine;
use super::fault::Fault;
use super::registers as r;

const SOFTWARE: u32 = 1;
const EEPROM: u32 = 1 << 1;
/// SW_FW_SYNC bit of this port's SFP+ module.
const MODULE: u32 = 1 << 1;

const ENABLED: u32 = 1;
const COMMAND: u32 = 1 << 1;
const VALID: u32 = 1 << 2;
/// The only supported command: driver information.
const DRIVER_INFORMATION: u32 = 0xdd;
const SUCCESS: u32 = 1;

/// FWSM: the firmware is present and valid.
pub const RUNS: u32 = 1 << 15;

/// The semaphores and the command memory.
pub struct Firmware {
    semaphore: u32,
    owned: u32,
    memory: [u32; 448],
    pub commands: u64,
}

impl Firmware {
    pub fn new() -> Self {
        Firmware { semaphore: 0, owned: 0, memory: [0; 448], commands: 0 }
    }

    /// Restores the power-on state, except for counters.
    pub fn reset(&mut self) {
        *self = Firmware { commands: self.commands, ..Firmware::new() };
    }

    /// Whether the driver holds the module's semaphore.
    pub fn may_use_module(&self) -> bool {
        self.owned & MODULE != 0
    }

    pub fn read(&mut self, at: u64, engine: &Engine) -> Option<u32> {
        let stuck = engine.faults.has(Fault::StuckSemaphore);
        Some(match at {
            // The read acquires SMBI.
            r::SWSM => {
                let before = self.semaphore;
                self.semaphore |= SOFTWARE;
                if stuck { SOFTWARE } else { before }
            }
            r::SW_FW_SYNC => self.owned,
            r::FWSM => RUNS,
            r::HICR => ENABLED | VALID,
            at if r::FLEX_MNG.contains(&at) => self.memory[((at - r::FLEX_MNG.start) / 4) as usize],
            _ => return None,
        })
    }

    /// Returns false if the address is none of the firmware registers.
    pub fn write(&mut self, at: u64, value: u32, engine: &mut Engine) -> bool {
        match at {
            r::SWSM => {
                if value & EEPROM != 0 && self.semaphore & SOFTWARE == 0 {
                    engine.complain("SWSM.SWESMBI is requested without SWSM.SMBI");
                }
                self.semaphore = value & (SOFTWARE | EEPROM);
            }
            r::SW_FW_SYNC => match self.semaphore {
                both if both == SOFTWARE | EEPROM => self.owned = value,
                _ => engine.complain("SW_FW_SYNC is written without the semaphores"),
            },
            r::HICR if value & COMMAND != 0 => {
                self.commands += 1;
                let [command, ..] = self.memory[0].to_le_bytes();
                if u32::from(command) == DRIVER_INFORMATION {
                    self.memory[0] = self.memory[0] & !0x00ff_0000 | SUCCESS << 16;
                } else {
                    engine.complain(format!("the firmware does not know the command {command:#x}"));
                }
            }
            r::HICR | r::FWSM => {}
            at if r::FLEX_MNG.contains(&at) => {
                self.memory[((at - r::FLEX_MNG.start) / 4) as usize] = value;
            }
            _ => return false,
        }
        true
    }
}
