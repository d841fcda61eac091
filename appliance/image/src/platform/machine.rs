//! The PC as a `Machine`, for the loop on the first core.

use super::apic::{self, Apic};
use super::clock::Clock;
use super::cores::Ring;
use super::last_words;
use super::timer::Timer;
use super::uart::Uart;
use super::{power, screen};
use appliance::console::Line;
use appliance::crash::Header;
use appliance::machine::{Core, CrashPlace, Ipi, Machine};
use boot::acpi::Tables;
use core::time::Duration;
use drivers::console::ConsoleLine;
use drivers::hal::Instant;
use x86_64::instructions::interrupts;

const LONGEST_HALT: Duration = Duration::from_millis(250);
/// Characters that are drawn on a screen before a halt.
const DRAWN_AT_REST: usize = 64;
/// Characters that are drawn on a screen with each poll of the console.
const DRAWN_AT_WORK: usize = 4;
/// Longest halt while characters wait to be drawn.
const NEXT_LOOK: Duration = Duration::from_millis(1);

/// A PC, for the loop on its first core.
pub struct Pc {
    pub(super) clock: Clock,
    pub(super) timer: Timer,
    pub(super) apic: Apic,
    pub(super) uart: Uart,
    /// The console if there is no serial port.
    pub(super) console: Option<Box<dyn ConsoleLine>>,
    pub(super) acpi: Option<Tables>,
    /// The power button, if it is a fixed feature.
    pub(super) button: Option<power::Button>,
    /// Seconds since 1970 when the clock started.
    pub(super) started: u64,
}

impl Pc {
    /// The clock of the machine.
    pub fn clock(&self) -> Clock {
        self.clock
    }
}

impl Core for Pc {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn halt_until(&mut self, deadline: Option<Instant>) {
        // A limit, so that a console whose interrupts do not arrive is polled, and a screen is drawn soon.
        let longest = if screen::draw(DRAWN_AT_REST) { NEXT_LOOK } else { LONGEST_HALT };
        let longest = self.clock.now() + longest;
        // Interrupts are off here, as always outside of the halt. The APIC keeps an interrupt that is raised from
        // now on, and it ends the halt.
        if self.timer.arm(deadline.map_or(longest, |deadline| deadline.min(longest))) {
            interrupts::enable_and_hlt();
            interrupts::disable();
        }
    }
}

impl Line for Pc {
    fn console_has_rung(&self) -> bool {
        match &self.console {
            Some(console) => console.has_rung(),
            None => self.uart.has_rung(),
        }
    }

    fn console_read(&mut self, into: &mut [u8]) -> usize {
        screen::draw(DRAWN_AT_WORK);
        let taken = match &mut self.console {
            Some(console) => console.read(into),
            None => self.uart.read(into),
        };
        #[cfg(feature = "faults")]
        super::fault_injection::check_keys(&into[..taken]);
        taken
    }

    fn console_write(&mut self, bytes: &[u8]) -> usize {
        let Some(console) = &mut self.console else { return self.uart.write(bytes) };
        let taken = console.write(bytes);
        screen::show(&bytes[..taken]);
        taken
    }
}

impl Machine for Pc {
    fn ipi(&self) -> Box<dyn Ipi> {
        Box::new(Ring { apic: self.apic, target: apic::id() })
    }

    fn unix_seconds(&self) -> u64 {
        self.started + self.clock.now().as_nanos() / 1_000_000_000
    }

    fn power_off(&mut self, code: u8) -> ! {
        power::off(code)
    }

    fn power_button(&mut self) -> bool {
        self.button.as_mut().is_some_and(power::Button::was_pressed)
    }

    fn keep_crashes(&mut self, last: Option<Header>, place: Option<CrashPlace>) {
        last_words::set_place(last, place);
    }

    fn reboot(&mut self) -> ! {
        power::reset(self.acpi.as_ref())
    }
}
