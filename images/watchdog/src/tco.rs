//! TCO in Intel's chipsets from ICH9 to those of Broadwell (Linux, `drivers/watchdog/iTCO_wdt.c`, version 2 of the device;
//! `drivers/mfd/lpc_ich.c` for its location). The timer expires twice before the machine is reset. The first expiry
//! notifies the firmware by an SMI, which is disabled here.

use crate::{Function, Io};

/// The LPC bridge.
const LPC: Function = Function { device: 31, function: 0 };
/// Ranges of its device ids: ICH9, ICH10, 5, 6, 7, 8 and 9 series, and those of Xeon E5 and D.
const IDS: [(u32, u32); 11] = [
    (0x2910, 0x291f),
    (0x3a14, 0x3a1a),
    (0x3b00, 0x3b1f),
    (0x1c41, 0x1c5f),
    (0x1d40, 0x1d41),
    (0x1e41, 0x1e5f),
    (0x8c41, 0x8c5f),
    (0x8cc1, 0x8cc6),
    (0x8d40, 0x8d5f),
    (0x9c40, 0x9c47),
    (0x9cc1, 0x9cc9),
];
const INTEL: u32 = 0x8086;

// Configuration space of the bridge.
const ACPI_BASE: u8 = 0x40;
const ACPI_CONTROL: u8 = 0x44;
const ACPI_ENABLE: u32 = 1 << 7;
const RCBA: u8 = 0xf0;
const RCBA_ENABLE: u32 = 1;

// Offsets from the base of ACPI's ports.
const SMI_ENABLE: u16 = 0x30;
const SMI_OF_TCO: u16 = 1 << 13;
const TCO: u16 = 0x60;
const RELOAD: u16 = TCO;
const STATUS_1: u16 = TCO + 0x04;
const STATUS_1_TIMEOUT: u16 = 1 << 3;
const STATUS_2: u16 = TCO + 0x06;
const STATUS_2_SECOND: u16 = 1 << 1;
const CONTROL: u16 = TCO + 0x08;
const CONTROL_HALT: u16 = 1 << 11;
const TIMER: u16 = TCO + 0x12;
const TIMER_BITS: u16 = 0x3ff;

/// Offset from RCBA, in memory: general control and status, with the bit that prevents the reset.
const GENERAL_CONTROL: u64 = 0x3410;
const NO_REBOOT: u32 = 1 << 5;

/// The device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    base: u16,
    /// Address of general control and status.
    control: u64,
}

/// The device at a function, if that is a bridge with TCO that can reset the machine.
pub(crate) fn open(io: &mut dyn Io, function: Function, id: u32) -> Option<Device> {
    let known = IDS.iter().any(|&(from, to)| (from..=to).contains(&(id >> 16)));
    if function != LPC || id & 0xffff != INTEL || !known {
        return None;
    }
    let base = (io.config_read(LPC, ACPI_BASE) & 0xff80) as u16;
    let enabled = io.config_read(LPC, ACPI_CONTROL) & ACPI_ENABLE != 0;
    let rcba = io.config_read(LPC, RCBA);
    if base == 0 || !enabled || rcba & RCBA_ENABLE == 0 {
        return None;
    }
    let control = u64::from(rcba & !0x3fff) + GENERAL_CONTROL;
    let device = Device { base, control };
    let value = io.memory_read(control);
    if value & NO_REBOOT != 0 {
        // A strap on the board may have set the bit permanently. The bit stays set until `start`, because the timer may
        // run, as it does after power-on.
        device.enable_reset(io, true);
        let is_stuck = io.memory_read(control) & NO_REBOOT != 0;
        device.enable_reset(io, false);
        if is_stuck {
            return None;
        }
    }
    Some(device)
}

impl Device {
    /// Sets whether the second expiry of the timer resets the machine.
    fn enable_reset(&self, io: &mut dyn Io, wanted: bool) {
        let value = io.memory_read(self.control) & !NO_REBOOT;
        io.memory_write(self.control, if wanted { value } else { value | NO_REBOOT });
    }

    pub fn touch(&self, io: &mut dyn Io) {
        io.memory_read(self.control);
    }

    pub fn start(&self, io: &mut dyn Io, seconds: u16) {
        let smi = io.port_read(self.base + SMI_ENABLE);
        io.port_write(self.base + SMI_ENABLE, smi & !SMI_OF_TCO);
        io.port_write(self.base + STATUS_1, STATUS_1_TIMEOUT);
        io.port_write(self.base + STATUS_2, STATUS_2_SECOND);
        // Ticks of 0.6 s.
        let ticks = (u32::from(seconds) * 10).div_ceil(6).clamp(2, TIMER_BITS.into()) as u16;
        let rest = io.port_read(self.base + TIMER) & !TIMER_BITS;
        io.port_write(self.base + TIMER, rest | ticks);
        self.see_to(io);
        self.enable_reset(io, true);
        let control = io.port_read(self.base + CONTROL);
        io.port_write(self.base + CONTROL, control & !CONTROL_HALT);
    }

    pub fn see_to(&self, io: &mut dyn Io) {
        io.port_write(self.base + STATUS_1, STATUS_1_TIMEOUT);
        io.port_write(self.base + RELOAD, 1);
    }

    pub fn stop(&self, io: &mut dyn Io) {
        let control = io.port_read(self.base + CONTROL);
        io.port_write(self.base + CONTROL, control | CONTROL_HALT);
        self.enable_reset(io, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Watchdog;
    use crate::testing::Machine;

    fn machine() -> Machine {
        let mut machine = Machine::default();
        machine.set(LPC, 0, 0x2918_8086);
        machine.set(LPC, ACPI_BASE, 0x601);
        machine.set(LPC, ACPI_CONTROL, ACPI_ENABLE);
        machine.set(LPC, RCBA, 0xfed1_c001);
        machine.memory.insert(0xfed1_f410, NO_REBOOT);
        machine.ports.insert(0x668, CONTROL_HALT);
        machine.ports.insert(0x630, SMI_OF_TCO | 1);
        machine
    }

    #[test]
    fn watchdog_can_reset_the_machine_from_start_to_stop() {
        let mut machine = machine();
        let watchdog = Watchdog::find(&mut machine).unwrap();
        assert_eq!(watchdog.name(), "iTCO_wdt");
        watchdog.touch(&mut machine);
        assert_eq!(
            machine.memory[&0xfed1_f410], NO_REBOOT,
            "the reset stays disabled: the timer may run already"
        );
        assert_eq!(machine.ports.get(&0x660), None, "the timer is not reloaded before the start");
        watchdog.start(&mut machine, 30);
        assert_eq!(machine.memory[&0xfed1_f410], 0);
        assert_eq!((machine.ports[&0x672], machine.ports[&0x660]), (50, 1));
        assert_eq!((machine.ports[&0x668], machine.ports[&0x630]), (0, 1));
        watchdog.stop(&mut machine);
        assert_eq!(
            (machine.ports[&0x668], machine.memory[&0xfed1_f410]),
            (CONTROL_HALT, NO_REBOOT)
        );
        watchdog.start(&mut machine, u16::MAX);
        assert_eq!(machine.ports[&0x672], 1000, "the longest time");
    }

    #[test]
    fn watchdog_strapped_against_reset_is_not_found() {
        let mut machine = machine();
        machine.strapped = Some(0xfed1_f410);
        assert_eq!(Watchdog::find(&mut machine), None);
    }

    #[test]
    fn unknown_chipsets_are_ignored() {
        for id in [0x2918_1022, 0xa145_8086, 0x2920_8086, u32::MAX] {
            let mut machine = machine();
            machine.set(LPC, 0, id);
            assert_eq!(Watchdog::find(&mut machine), None, "{id:#x}");
        }
    }
}
