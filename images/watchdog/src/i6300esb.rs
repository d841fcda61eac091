//! Intel's 6300ESB (Linux, `drivers/watchdog/i6300esb.c`). It has two stages of the same length; the end of the second
//! resets the machine.

use crate::{Function, Io};

const ID: u32 = 0x25ab_8086;

// Configuration space.
const COMMAND: u8 = 0x04;
const COMMAND_MEMORY: u32 = 1 << 1;
const BAR: u8 = 0x10;
/// 16-bit register, written with 16 bits, because QEMU ignores other widths.
const CONFIG: u8 = 0x60;
/// No interrupt, a clock of 1 kHz, and a reset at the end.
const CONFIG_RESETS: u16 = 3;
/// 8-bit register, written with 8 bits, because QEMU ignores other widths.
const LOCK: u8 = 0x68;
const LOCK_ENABLE: u8 = 1 << 1;
/// The settings cannot be changed before the next reset.
const LOCK_LOCKED: u8 = 1;

// In memory.
const TIMERS: [u64; 2] = [0x00, 0x04];
const RELOAD: u64 = 0x0c;
const RELOAD_NOW: u16 = 1 << 8;
/// Values written to `RELOAD` before each write of a register.
const UNLOCK: [u16; 2] = [0x80, 0x86];

/// The device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    function: Function,
    registers: u64,
}

/// The device at a function, if it is one.
pub(crate) fn open(io: &mut dyn Io, function: Function, id: u32) -> Option<Device> {
    if id != ID {
        return None;
    }
    let registers = u64::from(io.config_read(function, BAR) & !0xf);
    if registers == 0 {
        return None;
    }
    let command = io.config_read(function, COMMAND) & 0xffff;
    io.config_write(function, COMMAND, command | COMMAND_MEMORY);
    Some(Device { function, registers })
}

impl Device {
    fn unlock(&self, io: &mut dyn Io) {
        for value in UNLOCK {
            io.memory_write16(self.registers + RELOAD, value);
        }
    }

    fn lock(&self, io: &mut dyn Io) -> u8 {
        io.config_read(self.function, LOCK) as u8
    }

    pub fn touch(&self, io: &mut dyn Io) {
        io.memory_read(self.registers);
    }

    pub fn start(&self, io: &mut dyn Io, seconds: u16) {
        if self.lock(io) & LOCK_LOCKED != 0 {
            // It runs with the settings of the firmware.
            return self.see_to(io);
        }
        self.stop(io);
        io.config_write16(self.function, CONFIG, CONFIG_RESETS);
        // The time is that of both stages together.
        let half = u32::from(seconds) * 512;
        for timer in TIMERS {
            self.unlock(io);
            io.memory_write(self.registers + timer, half);
        }
        self.see_to(io);
        io.config_write8(self.function, LOCK, LOCK_ENABLE);
    }

    pub fn see_to(&self, io: &mut dyn Io) {
        self.unlock(io);
        io.memory_write16(self.registers + RELOAD, RELOAD_NOW);
    }

    pub fn stop(&self, io: &mut dyn Io) {
        self.see_to(io);
        if self.lock(io) & LOCK_LOCKED == 0 {
            io.config_write8(self.function, LOCK, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Machine;
    use crate::{Function, Watchdog};

    const AT: Function = Function { device: 4, function: 0 };

    fn machine() -> Machine {
        let mut machine = Machine::default();
        machine.set(AT, 0, super::ID);
        machine.set(AT, super::BAR, 0xfebf_0000);
        machine
    }

    #[test]
    fn each_register_is_unlocked_before_it_is_written() {
        let mut machine = machine();
        let watchdog = Watchdog::find(&mut machine).unwrap();
        assert_eq!(watchdog.name(), "i6300esb");
        machine.log.clear();
        watchdog.start(&mut machine, 10);
        let at = 0xfebf_0000;
        let unlock = [(at + 0xc, 0x80), (at + 0xc, 0x86)];
        let one = |address, value| [unlock[0], unlock[1], (address, value)];
        let all = [one(at + 0xc, 0x100), one(at, 5120), one(at + 4, 5120), one(at + 0xc, 0x100)];
        assert_eq!(machine.log, all.concat());
        assert_eq!(machine.get(AT, super::LOCK), super::LOCK_ENABLE.into());
        assert_eq!(machine.get(AT, super::CONFIG), 3);
        watchdog.stop(&mut machine);
        assert_eq!(machine.get(AT, super::LOCK), 0);
    }

    #[test]
    fn locked_watchdog_is_reloaded_and_not_changed() {
        let mut machine = machine();
        let watchdog = Watchdog::find(&mut machine).unwrap();
        machine.set(AT, super::LOCK, 3);
        machine.log.clear();
        watchdog.start(&mut machine, 10);
        watchdog.stop(&mut machine);
        assert_eq!(machine.log.len(), 6, "two reloads");
        assert_eq!(machine.get(AT, super::LOCK), 3);
    }

    #[test]
    fn watchdog_without_registers_is_not_found() {
        let mut machine = machine();
        machine.set(AT, super::BAR, 0);
        assert_eq!(Watchdog::find(&mut machine), None);
    }
}
