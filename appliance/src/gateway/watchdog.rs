//! The machine's watchdog: it resets the machine when this loop stands still for too long. It runs if the configuration
//! wants it, and while an image is on trial, for which the UEFI front end has started it.

use crate::machine::Watchdog;
use core::time::Duration;
use drivers::hal::Instant;

/// How often it is seen to.
const INTERVAL: Duration = Duration::from_secs(1);
/// Seconds until it resets a machine whose image is on trial.
pub(super) const TRIAL: u16 = 120;

/// The watchdog, if the machine has one.
pub(super) struct Keeper {
    device: Option<Box<dyn Watchdog>>,
    /// Seconds that it runs with; 0 if it does not.
    runs: u16,
    due: Instant,
    /// It was told that there is none.
    told: bool,
}

impl Keeper {
    pub fn new(device: Option<Box<dyn Watchdog>>) -> Keeper {
        Keeper { device, runs: 0, due: Instant::ZERO, told: false }
    }

    /// What Linux calls its driver, and the seconds that it runs with.
    pub fn report(&self) -> (Option<&'static str>, u16) {
        (self.device.as_ref().map(|device| device.name()), self.runs)
    }

    /// Whether there is something to see to.
    #[inline]
    pub fn wants_poll(&self, wanted: u16, now: Instant) -> bool {
        wanted != self.runs || wanted > 0 && self.due <= now
    }

    /// Sees to it that it runs with so many seconds; with 0 it does not.
    pub fn poll(&mut self, wanted: u16, now: Instant) {
        let Some(device) = &mut self.device else {
            if wanted > 0 && !core::mem::replace(&mut self.told, true) {
                log::warn!("watchdog: the machine has none that is known: i6300esb or iTCO");
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

    /// When it wants to be seen to.
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
    fn it_is_seen_to_once_a_second_for_as_long_as_it_is_wanted() {
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
