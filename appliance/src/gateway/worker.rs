//! Loops on cores other than the first: each runs a data plane and nothing else. What the control
//! plane wants to know or have done comes as an order through a ring and is carried out between
//! two rounds.

use super::NAP;
use super::alarm::Alarm;
use super::plane::{Plane, Settings};
use super::uplink::Downlink;
use crate::log_ring::LogRing;
use crate::loops::Stage;
use crate::machine::{Core, SpareCore};
use core::time::Duration;
use drivers::hal::{Instant, Port};
use rtrb::{Consumer, Producer, RingBuffer};
use spin::Mutex;
use std::sync::Arc;

/// Orders that can wait.
const ORDERS: usize = 64;
/// How long the control plane waits for what it asked. A round takes microseconds; a host that is
/// busy may keep a processor waiting.
const PATIENCE: Duration = Duration::from_millis(100);

type Order = Box<dyn FnOnce(&mut Plane) + Send>;

/// A loop on another core, as the control plane sees it.
pub(super) struct Worker {
    /// Number of its core.
    pub core: usize,
    orders: Producer<Order>,
    pub alarm: Alarm,
}

/// What a loop starts with; moved to its core, where the plane is made.
pub(super) struct Start {
    pub settings: Settings,
    pub ports: Vec<(Box<dyn Port + Send>, Downlink)>,
    pub orders: Consumer<Order>,
    pub alarm: Alarm,
}

/// The ring for orders to a loop on core number `core`: its two ends.
pub(super) fn orders(core: usize, alarm: Alarm) -> (Worker, Consumer<Order>) {
    let (producer, consumer) = RingBuffer::new(ORDERS);
    (Worker { core, orders: producer, alarm }, consumer)
}

impl Worker {
    /// Has something done, soon; false if too many orders wait already.
    pub fn tell(&mut self, order: impl FnOnce(&mut Plane) + Send + 'static) -> bool {
        let taken = self.orders.push(Box::new(order)).is_ok();
        self.alarm.wake();
        taken
    }

    /// Has something done and waits for what came of it; None if the loop does not answer in time,
    /// which is logged. The order may be carried out later nevertheless.
    pub fn ask<T: Send + 'static>(
        &mut self,
        clock: &LogRing,
        order: impl FnOnce(&mut Plane) -> T + Send + 'static,
    ) -> Option<T> {
        let place = Arc::new(Mutex::new(None));
        let answer = place.clone();
        let taken = self.tell(move |plane| *answer.lock() = Some(order(plane)));
        let deadline = clock.now() + PATIENCE;
        while taken && clock.now() < deadline {
            if let Some(answer) = place.lock().take() {
                return Some(answer);
            }
            core::hint::spin_loop();
        }
        log::error!("loop {} does not answer; what is shown of it is missing", self.core);
        None
    }
}

impl Start {
    /// Starts the loop on `core`.
    pub fn on(self, core: Box<dyn SpareCore>) {
        core.start(Box::new(move |core| Loop::new(self, core).run()));
    }
}

/// The loop.
struct Loop {
    core: Box<dyn Core>,
    plane: Plane,
    /// By place of the port.
    downlinks: Vec<Downlink>,
    orders: Consumer<Order>,
    alarm: Alarm,
}

impl Loop {
    fn new(start: Start, core: Box<dyn Core>) -> Self {
        let (ports, downlinks): (Vec<_>, _) = start.ports.into_iter().unzip();
        let plane = Plane::new(start.settings, ports, core.now());
        Loop { core, plane, downlinks, orders: start.orders, alarm: start.alarm }
    }

    fn run(mut self) -> ! {
        let mut worked = false;
        loop {
            let now = self.core.now();
            let may_halt = self.plane.pace.round(worked, now);
            worked = if may_halt { self.halt() } else { self.round(now) };
        }
    }

    /// One round of all stages; whether there was any work.
    fn round(&mut self, now: Instant) -> bool {
        let (plane, downlinks) = (&mut self.plane, &mut self.downlinks);
        let mut ordered = 0;
        while let Ok(order) = self.orders.pop() {
            order(plane);
            ordered += 1;
        }
        let received = plane.receive(now, |place, frame| downlinks[place].push(frame));
        let served = plane.serve(now);
        let mut sent = plane.transmit_fabric(now);
        for (place, downlink) in downlinks.iter_mut().enumerate() {
            sent += plane.transmit_for_control(place, downlink, now);
            downlink.flush();
        }
        plane.flush();
        let counters = &mut plane.pace.counters;
        counters.work(Stage::Receive, received);
        counters.work(Stage::Serve, served);
        counters.work(Stage::Transmit, sent);
        counters.work(Stage::Control, ordered);
        received + served + sent + ordered > 0
    }

    /// Sleeps until an interrupt or the next deadline, unless there is something to do; then deals
    /// with what there is. Whether there was work.
    fn halt(&mut self) -> bool {
        self.plane.set_interrupts(true);
        let now = self.core.now();
        let nap = (!self.plane.wakes()).then_some(now + NAP);
        let deadline = Instant::first([self.plane.poll_timeout(), nap]);
        self.alarm.set();
        // What came before interrupts were on raises none, but is pending.
        if !self.plane.pending() && !self.has_orders() && deadline.is_none_or(|d| d > now) {
            self.core.halt_until(deadline);
            self.plane.pace.halted(self.core.now());
        }
        self.alarm.clear();
        self.plane.set_interrupts(false);
        self.round(self.core.now())
    }

    /// Whether the control plane wants something.
    fn has_orders(&self) -> bool {
        !self.orders.is_empty() || self.downlinks.iter().any(Downlink::pending)
    }
}
