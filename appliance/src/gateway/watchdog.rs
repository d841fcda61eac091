//! The machine's watchdog, which resets the machine if this loop hangs. It runs if configured, and while an image is on
//! trial, for which the UEFI front end has started it.

use crate::machine::Watchdog;
use core::time::Duration;
use drivers::hal::Instant;

/// Interval of restarting its timer.
const INTERVAL: Duration = Duration::from_secs(1);
/// Timeout in seconds while an image is on trial.
pub(super) const TRIAL: u16 = 120;

/// The watchdog, if the machine has one.
pub(super) struct Keeper {
    device: Option<Box<dyn Watchdog>>,
    /// Timeout in seconds; 0 if it does not run.
    runs: u16,
    due: Instant,
    /// The missing device was logged.
    warned: bool,
}

impl Keeper {
    pub fn new(device: Option<Box<dyn Watchdog>>) -> Keeper {
        Keeper { device, runs: 0, due: Instant::ZERO, warned: false }
    }

    /// Linux's name of its driver, and the timeout in seconds.
    pub fn report(&self) -> (Option<&'static str>, u16) {
        (self.device.as_ref().map(|device| device.name()), self.runs)
    }

    /// Whether it has to be polled now.
    #[inline]
    pub fn wants_poll(&self, wanted: u16, now: Instant) -> bool {
        wanted != self.runs || wanted > 0 && self.due <= now
    }

    /// Runs it with a timeout of `wanted` seconds, or stops it if that is 0. Restarts its timer when due.
    pub fn poll(&mut self, wanted: u16, now: Instant) {
        let Some(device) = &mut self.device else {
            if wanted > 0 && !core::mem::replace(&mut self.warned, true) {
                log::warn!(
                    "watchdog: the machine has no supported watchdog: add an i6300esb or an iTCO"
                );
            }
            return;
        };
        if wanted != self.runs {
            match wanted {
                0 => device.stop(),
                seconds => device.start(seconds),
            }
            log::info!("watchdog: {}: {wanted} s", device.name());
            self.runs = wanted;
        } else if self.runs > 0 && self.due <= now {
            device.see_to();
        } else {
            return;
        }
        self.due = now + INTERVAL;
    }

    /// When its timer has to be restarted.
    pub fn deadline(&self) -> Option<Instant> {
        (self.runs > 0).then_some(self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    struct Model(Rc<RefCell<Vec<String>>>);

    impl Watchdog for Model {
        fn name(&self) -> &'static str {
            "model"
        }
        fn start(&mut self, seconds: u16) {
            self.0.borrow_mut().push(format!("start {seconds}"));
        }
        fn see_to(&mut self) {
            self.0.borrow_mut().push("see to".into());
        }
        fn stop(&mut self) {
            self.0.borrow_mut().push("stop".into());
        }
    }

    #[test]
    fn watchdog_timer_is_restarted_once_a_second_while_wanted() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let mut keeper = Keeper::new(Some(Box::new(Model(log.clone()))));
        let second = 1_000_000_000;
        for (wanted, nanos) in
            [(0, 0), (30, 5), (30, 6), (30, second + 5), (0, second + 6), (0, 9 * second)]
        {
            keeper.poll(wanted, Instant::from_nanos(nanos));
        }
        assert_eq!(*log.borrow(), ["start 30", "see to", "stop"]);
        assert_eq!(keeper.deadline(), None);
    }
}
