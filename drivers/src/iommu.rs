//! Turns off IOMMUs that firmware has left on to keep devices from its memory. No code here programs an IOMMU: with
//! translation on, devices could not reach their buffers, and with remapping on, their interrupts would be lost.
//!
//! Intel VT-d 4.1, chapter 11; AMD I/O Virtualization 3.08, 3.4.

use crate::hal::{Clock, Registers};
use core::time::Duration;

/// Maker of an IOMMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// Intel's VT-d.
    Intel,
    /// AMD's IOMMU.
    Amd,
}

/// Result of turning an IOMMU off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The IOMMU was off already, or is absent.
    WasOff,
    /// The IOMMU is off now.
    IsOff,
    /// The IOMMU is still on after the disabling write.
    StaysOn,
}

/// Bytes of registers that are used.
pub const LEN: usize = 0x100;
/// Longest time for one part to turn off.
const TIMEOUT: Duration = Duration::from_millis(100);

/// Global command register, and the global status register that shows its effect.
const COMMAND: usize = 0x18;
const STATUS: usize = 0x1c;
/// Status bits that are written back as commands. The others are one-shot, and must not be written back.
const STATES: u32 = 0x96ff_ffff;
const TRANSLATION: u32 = 1 << 31;
const REMAPPING: u32 = 1 << 25;
const CAPABILITY: usize = 8;
/// Capability bits: protected low and high regions of memory, which no device can reach.
const PROTECTED_REGIONS: u64 = 3 << 5;
const PROTECTION: usize = 0x64;
const PROTECTION_ENABLE: u32 = 1 << 31;
const PROTECTION_STATUS: u32 = 1;

/// AMD's control register: translation, logs, commands and their interrupts.
const AMD_CONTROL: usize = 0x18;
const AMD_PARTS: u64 = 1 | 1 << 2 | 1 << 3 | 7 << 12 | 3 << 28;

/// Turns an IOMMU off.
pub fn turn_off(maker: Maker, registers: &dyn Registers, clock: &dyn Clock) -> Outcome {
    match maker {
        Maker::Intel => turn_off_intel(registers, clock),
        Maker::Amd => turn_off_amd(registers, clock),
    }
}

fn turn_off_intel(registers: &dyn Registers, clock: &dyn Clock) -> Outcome {
    let status = registers.read32(STATUS);
    if status == u32::MAX {
        return Outcome::WasOff;
    }
    let mut outcome = Outcome::WasOff;
    let mut record = |done| match (outcome, done) {
        (Outcome::StaysOn, _) | (_, false) => outcome = Outcome::StaysOn,
        _ => outcome = Outcome::IsOff,
    };
    // One at a time: a command has to be done before the next.
    for state in [REMAPPING, TRANSLATION] {
        let status = registers.read32(STATUS);
        if status & state != 0 {
            registers.write32(COMMAND, status & STATES & !state);
            record(until(clock, || registers.read32(STATUS) & state == 0));
        }
    }
    if registers.read64(CAPABILITY) & PROTECTED_REGIONS != 0 {
        let protection = registers.read32(PROTECTION);
        if protection & (PROTECTION_ENABLE | PROTECTION_STATUS) != 0 {
            registers.write32(PROTECTION, protection & !PROTECTION_ENABLE);
            record(until(clock, || registers.read32(PROTECTION) & PROTECTION_STATUS == 0));
        }
    }
    outcome
}

fn turn_off_amd(registers: &dyn Registers, clock: &dyn Clock) -> Outcome {
    let control = registers.read64(AMD_CONTROL);
    if control == u64::MAX || control & 1 == 0 {
        return Outcome::WasOff;
    }
    registers.write64(AMD_CONTROL, control & !AMD_PARTS);
    match until(clock, || registers.read64(AMD_CONTROL) & 1 == 0) {
        true => Outcome::IsOff,
        false => Outcome::StaysOn,
    }
}

fn until(clock: &dyn Clock, done: impl Fn() -> bool) -> bool {
    let deadline = clock.now() + TIMEOUT;
    loop {
        if done() {
            return true;
        }
        if clock.now() >= deadline {
            return false;
        }
        crate::hal::relax();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hal::Instant;
    use std::cell::Cell;
    use std::sync::Mutex;
    use std::vec::Vec;

    /// Model of an IOMMU: its registers, the bits that stick, and the commands that were written.
    struct Model(Mutex<State>);

    #[derive(Default)]
    struct State {
        status: u32,
        protection: u32,
        amd: u64,
        stuck: u64,
        commands: Vec<u32>,
        gone: bool,
    }

    impl Registers for Model {
        fn len(&self) -> usize {
            LEN
        }
        fn read8(&self, _: usize) -> u8 {
            unreachable!()
        }
        fn read16(&self, _: usize) -> u16 {
            unreachable!()
        }
        fn read32(&self, offset: usize) -> u32 {
            let state = self.0.lock().unwrap();
            match offset {
                _ if state.gone => u32::MAX,
                STATUS => state.status,
                PROTECTION => state.protection,
                _ => unreachable!(),
            }
        }
        fn read64(&self, offset: usize) -> u64 {
            let state = self.0.lock().unwrap();
            match offset {
                _ if state.gone => u64::MAX,
                CAPABILITY => PROTECTED_REGIONS,
                AMD_CONTROL => state.amd,
                _ => unreachable!(),
            }
        }
        fn write8(&self, _: usize, _: u8) {
            unreachable!()
        }
        fn write16(&self, _: usize, _: u16) {
            unreachable!()
        }
        fn write32(&self, offset: usize, value: u32) {
            let state = &mut *self.0.lock().unwrap();
            match offset {
                COMMAND => {
                    // VT-d 11.4.4: one change in each command.
                    assert_eq!(((state.status & STATES) ^ value).count_ones(), 1, "{value:#x}");
                    state.commands.push(value);
                    state.status = state.status & !STATES | value | state.stuck as u32;
                }
                PROTECTION => {
                    let on = value & PROTECTION_ENABLE != 0 || state.stuck & 1 != 0;
                    state.protection = value & !1 | u32::from(on);
                }
                _ => unreachable!(),
            }
        }
        fn write64(&self, offset: usize, value: u64) {
            let state = &mut *self.0.lock().unwrap();
            assert_eq!(offset, AMD_CONTROL);
            state.amd = value | state.stuck;
        }
    }

    struct StepClock(Cell<u64>);

    impl Clock for StepClock {
        fn now(&self) -> Instant {
            self.0.set(self.0.get() + 1_000_000);
            Instant::from_nanos(self.0.get())
        }
    }

    fn after(maker: Maker, state: State) -> (Outcome, State) {
        let model = Model(Mutex::new(state));
        let outcome = turn_off(maker, &model, &StepClock(Cell::new(0)));
        (outcome, model.0.into_inner().unwrap())
    }

    #[test]
    fn iommu_that_firmware_left_on_is_turned_off_and_other_bits_kept() {
        const QUEUE: u32 = 1 << 26;
        const POINTERS: u32 = 1 << 30 | 1 << 24;
        for (on, commands) in [
            (REMAPPING, std::vec![QUEUE]),
            (TRANSLATION, std::vec![QUEUE]),
            (REMAPPING | TRANSLATION, std::vec![QUEUE | TRANSLATION, QUEUE]),
        ] {
            let status = on | QUEUE | POINTERS;
            let (outcome, state) = after(Maker::Intel, State { status, ..State::default() });
            assert_eq!((outcome, state.status), (Outcome::IsOff, QUEUE | POINTERS));
            assert_eq!(state.commands, commands);
        }
        let protection = PROTECTION_ENABLE | PROTECTION_STATUS;
        let (outcome, state) = after(Maker::Intel, State { protection, ..State::default() });
        assert_eq!((outcome, state.protection), (Outcome::IsOff, 0));
        let (outcome, state) =
            after(Maker::Amd, State { amd: 1 | 1 << 12 | 1 << 5, ..State::default() });
        assert_eq!((outcome, state.amd), (Outcome::IsOff, 1 << 5));
    }

    #[test]
    fn iommu_that_is_off_or_absent_is_left_alone() {
        for maker in [Maker::Intel, Maker::Amd] {
            for gone in [false, true] {
                let (outcome, state) = after(maker, State { gone, ..State::default() });
                assert_eq!((outcome, state.commands.len()), (Outcome::WasOff, 0));
            }
        }
    }

    #[test]
    fn iommu_that_stays_on_is_reported() {
        for (maker, state) in [
            (
                Maker::Intel,
                State { status: REMAPPING, stuck: REMAPPING.into(), ..State::default() },
            ),
            (
                Maker::Intel,
                State { status: TRANSLATION, stuck: TRANSLATION.into(), ..State::default() },
            ),
            (Maker::Intel, State { protection: 1 << 31 | 1, stuck: 1, ..State::default() }),
            (Maker::Amd, State { amd: 1, stuck: 1, ..State::default() }),
        ] {
            assert_eq!(after(maker, state).0, Outcome::StaysOn);
        }
    }
}
