//! The gateway: everything that the appliance owns, and the loop that polls it.
//!
//! [`Gateway::start`] turns the platform's findings into ports, disks and a configuration: it opens disks, loads the
//! configuration, opens ports, and makes volumes and servers. [`Gateway::run`] polls them. One round is a fixed
//! sequence of stages ([`crate::loops::Stage`]); nothing in it blocks. Reports are made of `State`, which is apart from
//! the IP interfaces, so a request over an interface can read all of it. The data plane (`plane::DataPlane`) in it
//! handles frames and requests.
//!
//! # Rounds
//!
//! * `receive`: each frame is classified once. RoCE goes to the provider, UDP echo is answered on the spot, a datagram
//!   to a port of an engine over UDP goes to that engine, the rest to the control plane.
//! * `disks`: completions of volumes, and operations on pools, configuration and upgrade.
//! * `serve`: connections, requests and responses of the data plane, then the services.
//! * `control`: smoltcp, HTTP, ping, DNS, time, syslog, only if something is due or new.
//! * `transmit`: packets to ports with room.
//! * `console`: once a millisecond while there is other work.
//!
//! Services stand between data plane and IP interfaces: SMC-R with the rules, NTB over TCP, LINX, exchanges of usNIC,
//! NVMe, volumes of other servers over TCP, upgrades. They implement `service::Service` (`poll`, `deadline`, `shut_down`); `services.rs` has the list. The list of
//! users of verbs in a data plane (`plane_user::PlaneUser`) is in `plane_users.rs`.
//!
//! The whole of `State` is visible to the files of the round (`mod.rs`, `state.rs`, `start`, `stages.rs`,
//! `control.rs`, `brief.rs`, `ending.rs`) and to the two that face management (`statuses.rs`, `orders.rs`). All others
//! get their own part.
//!
//! # Halts
//!
//! After a quiet time, `system.idle_after_us` at most, the loop asks devices for interrupts, checks for pending ones,
//! and halts until an interrupt or the next deadline. Interrupts are off, at CPU and devices, except during `hlt`. A
//! loop polls before a halt only as long as polling finds work ([`crate::loops::Pace`]): work within
//! `system.idle_after_us` of the last work doubles the time, up to that limit. Later work sets it to zero. So
//! heartbeats and their ACKs end a halt without making the loop poll.
//!
//! # Short rounds
//!
//! A round after a halt ends with `receive` if the frames leave no work (`Verdict::Absorbed`: a part of a message, a
//! WRITE that a later message announces, an echoed message of a channel) and no timer has expired. The next halt then
//! keeps the deadline of the last one, apart from the provider's timers, which frames move. In the middle of a
//! message, for which the provider knows the number of packets, the device is asked for an interrupt at the last one,
//! and the halt takes half a millisecond at most. A protocol whose peer announces its WRITEs declares it
//! (`Provider::writes_precede_send`). The ACK of such a WRITE goes with that of the message behind it. Header
//! prediction (`rdma/roce/src/wire/header_prediction.rs`) compares the constant parts of a peer's headers at once.
//!
//! A loop that halts with nothing but completions of cards to expect does not begin a round (`brief.rs`). The user
//! takes the completions from the card's queue, serves and answers them, the card is armed, and the loop halts again.
//! Only pending interrupts of other devices and the deadlines of the served users are checked. All other work begins a
//! round. Without pause between completions this lasts a millisecond at most. The console's interrupt
//! (`Line::console_has_rung`) ends it at once; otherwise the console is polled 100 ms after its last poll. Requests
//! with `ack_lazily` end no halt.
//!
//! A loop that halts at once (`system.idle_after_us = 0`) wakes for every few requests. A card can delay the event
//! until its completions pause or are 16 (`rdma/connectx/src/moderation.rs`). This is tried after several completions
//! at one wake-up, kept if it pays, retried at times, and given up for single completions. A pause is 1 ms at most, so
//! a completion waits at most for 15 others, 15 ms. A client with one request at a time does not wait.
//!
//! # End
//!
//! `reboot` and `poweroff` set `State::end`; `ending.rs` executes it: flush disks, disconnect peers, print the log, end
//! the machine. A panic is handled in `appliance/image/src/platform/last_words.rs`.

mod atomics;
mod boot_disk;
mod bridge;
mod brief;
mod cards;
mod clients;
mod control;
mod disk_pool;
mod disk_queues;
mod disk_transfer;
mod disks;
mod ending;
mod followers;
mod forwarding;
mod frame_ring;
mod known_disks;
mod last_act;
mod lent_memory;
mod linx;
mod loop_waker;
mod names;
mod network;
mod next_hops;
mod nvme;
mod orders;
mod path_probes;
mod pending_neighbours;
mod perf_responders;
mod plane;
mod plane_services;
mod plane_user;
mod plane_users;
mod port_assignment;
mod ports;
#[cfg(test)]
mod prepared_faults;
mod punt;
mod queue_depth;
mod rapidio;
mod rdma_stack;
mod receive;
mod remote_storage;
mod rendezvous;
mod revisions;
mod rping;
mod seed_disk;
mod serve;
mod service;
mod services;
mod smc;
mod stages;
mod start;
mod startable;
mod state;
mod statuses;
mod storage;
mod storage_cores;
mod syslog;
mod tagged_port;
mod tcp_remotes;
#[cfg(test)]
mod test_cable;
mod time;
mod tls;
mod udp_engine;
mod udp_engines;
mod upgrade;
mod usnic;
mod volumes;
mod watchdog;
mod wipe;
mod worker;
#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod write_way;

pub use start::{Bringup, Facts, FromVmm};

use crate::console::{Console, pump, pump_at_the_end};
use crate::log_ring::audit_button;
use crate::loops::Stage;
use crate::machine::Machine;
use core::time::Duration;
use drivers::hal::Instant;
use ending::Ending;
use loop_waker::LoopWaker;
use management::orders::End;
use management::{Appliance as _, Operator, Pages};
use network::Network;
use state::State;
use syslog::Syslog;
use worker::NAP;

/// Poll interval of the serial port without input.
const CONSOLE_INTERVAL: Duration = Duration::from_millis(1);
/// Longest time between polls of the console by a loop in brief rounds or halts, without an interrupt of the console.
const CONSOLE_PATIENCE: Duration = Duration::from_millis(100);
/// Poll interval of the power button. A halt lasts a quarter of a second at most.
const BUTTON_INTERVAL: Duration = Duration::from_millis(100);
/// Longest halt while the last frame of a message is expected.
const MESSAGE_WAIT: Duration = Duration::from_micros(500);
/// How long after a halt rounds may end with `receive`.
const STILL: Duration = Duration::from_millis(1);

/// The appliance: one loop, and all that it owns.
pub struct Gateway {
    machine: Box<dyn Machine>,
    console: Console,
    console_due: Instant,
    /// When the power button is polled next.
    button_due: Instant,
    /// The console was idle, and no work since may have produced output.
    console_quiet: bool,
    /// When the next timer of the control plane expires.
    control_due: Option<Instant>,
    last_halt: LastHalt,
    networks: Vec<Network>,
    syslog: Syslog,
    /// Pages that are being sent.
    pages: Pages,
    state: State,
    /// Other loops wake this loop by it.
    waker: LoopWaker,
    /// Every device can end a halt.
    devices_wake: bool,
    /// The shutdown, once it has started.
    ending: Option<Ending>,
}

/// What rounds and halts after a halt know from it.
#[derive(Default)]
struct LastHalt {
    /// Until then rounds end with `receive` if the received frames leave no work.
    quiescent_until: Instant,
    /// When the next timer expires of those that frames without work do not move.
    others_due: Option<Instant>,
    /// `others_due` is right: since it was computed, all rounds have ended with `receive`.
    others_known: bool,
}

impl Gateway {
    /// Polls for ever.
    pub fn run(&mut self) -> ! {
        let mut worked = false;
        loop {
            let now = self.machine.now();
            worked = if self.state.plane.pace.round(worked, now) {
                self.halt()
            } else {
                self.round(now)
            };
        }
    }

    /// One round of all stages. Returns whether there was work.
    fn round(&mut self, now: Instant) -> bool {
        let state = &mut self.state;
        state.now = now;
        let networks = &mut self.networks;
        let (mut received, for_control) = control::receive(networks, state, now);
        if received > 0
            && for_control == 0
            && now < self.last_halt.quiescent_until
            && state.plane.is_quiescent()
        {
            state.plane.flush();
            state.plane.pace.counters.work(Stage::Receive, received);
            self.console_quiet = false;
            return true;
        }
        self.last_halt = LastHalt::default();
        received += state.poll_tcp_bridge(networks, now);
        let completed = if self.ending.is_some() { 0 } else { state.poll_disks() };
        state.poll_capacities(now);
        state.poll_watchdog(now);
        let mut served = state.plane.serve(now);
        state.poll_linx(networks, now);
        state.poll_rules(networks, now);
        state.poll_subsystems(networks);
        served += state.poll_services(networks, now);
        state.take_refusals(now);
        let due = self.control_due.is_some_and(|at| at <= now);
        let touched = networks.iter().any(|network| network.interface.wants_poll());
        let control = state.wants_control(now)
            || self.syslog.wants_poll(&state.document.config().system, state.log, now)
            || due
            || touched
            || for_control > 0;
        let mut controlled = 0;
        if control {
            controlled = control::poll(networks, state, &mut self.pages, now);
            controlled += names::poll(networks, state, now);
            controlled += time::poll(networks, state, now);
            controlled += state.path_probes.poll(networks, now);
            let State { document, log, clock, names, plane, .. } = &mut *state;
            let (system, resolver) = (&document.config().system, &names.resolver);
            let rng = &mut *plane.rng;
            let mut around = syslog::Around { networks, system, log, clock, resolver, rng };
            controlled += self.syslog.poll(&mut around, now);
        }
        let mut sent = state.plane.transmit_fabric(now);
        if control {
            sent += control::transmit(networks, state, now);
            let due = networks.iter().filter_map(Network::poll_timeout).min();
            let (names, time) = (state.names.poll_timeout(), state.time.poll_timeout());
            let syslog = self.syslog.poll_timeout();
            let probes = state.path_probes.poll_timeout();
            self.control_due = Instant::first([due, names, time, syslog, probes]);
        }
        if networks.iter().any(|network| network.interface.has_news()) {
            // Events are left or new: the loop must not halt.
            self.control_due = Some(now);
        }
        state.plane.flush();
        let counters = &mut state.plane.pace.counters;
        counters.work(Stage::Receive, received);
        counters.work(Stage::Disks, completed);
        counters.work(Stage::Serve, served);
        counters.work(Stage::Control, controlled);
        counters.work(Stage::Transmit, sent);
        let worked = received + completed + served + controlled + sent > 0;
        self.console_quiet &= !worked;
        if self.ending.is_some() {
            self.poll_ending(now);
            return worked;
        }
        self.poll_button(now);
        let typed = self.poll_console(now);
        worked || typed
    }

    /// Continues the shutdown. Does not return if the machine ends.
    fn poll_ending(&mut self, now: Instant) {
        let Some(ending) = &mut self.ending else { return };
        // After a panic the console belongs to the panic handler.
        let printed = ending.how.is_none()
            || pump_at_the_end(
                &mut self.console,
                &mut *self.machine,
                &mut Operator::console(&mut self.state),
            );
        match ending.poll(&mut self.state, &mut self.networks, printed, now) {
            Some(End::Reboot) => self.machine.reboot(),
            Some(End::PowerOff) => self.machine.power_off(0),
            None => {}
        }
        // The control plane sends the queued disconnects next.
        self.control_due = Some(ending.poll_timeout(now));
    }

    /// Polls the power button when due. A press is an orderly `poweroff`.
    fn poll_button(&mut self, now: Instant) {
        if now < self.button_due {
            return;
        }
        self.button_due = now + BUTTON_INTERVAL;
        if self.machine.power_button() && self.state.end.is_none() {
            let lost = if self.state.has_unsaved() { "; unsaved changes are lost" } else { "" };
            audit_button(format_args!("poweroff{lost}"));
            self.state.end = Some(End::PowerOff);
            self.console_due = now;
        }
    }

    /// Polls the console when due. Returns whether there was input.
    fn poll_console(&mut self, now: Instant) -> bool {
        if now < self.console_due {
            return false;
        }
        let asks = self.state.document.config().asks_for_login();
        let caller = self.console.caller(asks);
        let typed = pump(
            &mut self.console,
            &mut *self.machine,
            &mut Operator::new(&mut self.state, caller),
        );
        self.console_quiet = !typed;
        if typed {
            // A command may have given the control plane work.
            self.control_due = Some(now);
        }
        self.console_due = if typed { now } else { now + CONSOLE_INTERVAL };
        self.state.plane.pace.counters.work(Stage::Console, usize::from(typed));
        if let Some(how) = self.state.end
            && self.state.may_end(now)
        {
            self.ending = Some(Ending::new(how, &mut self.state, now));
        }
        typed
    }

    /// Halts until an interrupt or the next deadline, unless work is pending. Then runs a round. Returns whether there
    /// was work.
    fn halt(&mut self) -> bool {
        let mut waits_for_whole = self.state.ask_for_interrupts();
        // Arrivals before interrupts were enabled raise none, but are pending.
        let mut now = self.machine.now();
        let mut deadline = self.deadline(now);
        let (mut woken, mut rung) = (false, false);
        while !woken
            && self.waker.may_halt(|| self.state.has_arrivals())
            && deadline.is_none_or(|at| now < at)
        {
            let wait = waits_for_whole.then_some(now + MESSAGE_WAIT);
            let until = Instant::first([deadline, wait]);
            self.machine.halt_until(until);
            now = self.machine.now();
            self.state.plane.pace.halted(now);
            // Interrupts are delivered only in a halt.
            rung = self.machine.console_has_rung();
            woken = rung || until.is_none_or(|at| now < at);
            if !woken && deadline.is_none_or(|at| now < at) {
                // The message is incomplete. From now on any frame ends the halt.
                waits_for_whole = self.state.ask_for_interrupts();
            } else if !woken && !self.state.has_arrivals() && self.state.plane.expires_idly(now) {
                deadline = self.deadline(now);
            }
        }
        let served = self.brief_rounds(now, deadline);
        if served {
            now = self.machine.now();
            rung = self.machine.console_has_rung();
            deadline = Some(now);
        }
        if rung {
            self.console_due = now;
            deadline = Some(now);
        }
        self.last_halt.quiescent_until =
            Instant::first([deadline, Some(now + STILL)]).unwrap_or(now);
        self.waker.clear();
        self.state.stop_interrupts();
        self.round(now) || served
    }

    /// When the next timer expires, or a poll is due. After a round that ended with `receive`, or an expired timer that
    /// left no work, only the provider's timers are looked at again.
    fn deadline(&mut self, now: Instant) -> Option<Instant> {
        if !self.last_halt.others_known {
            self.last_halt.others_known = self.state.plane.frames_move_only_provider_timers();
            self.last_halt.others_due = self.deadline_of_others(now);
        }
        let provider = self.state.plane.provider_timeout();
        let console = (!self.console_quiet).then_some(self.console_due + CONSOLE_PATIENCE);
        Instant::first([self.last_halt.others_due, provider, console, self.state.log.due()])
    }

    /// As [`Gateway::deadline`], without the timers that frames move.
    fn deadline_of_others(&self, now: Instant) -> Option<Instant> {
        let nap = match self.devices_wake {
            false => Some(NAP),
            true => self.console.is_busy().then(|| self.console.patience(NAP)),
        };
        let nap = nap.map(|nap| now + nap);
        Instant::first([self.control_due, self.state.timeout_of_others(), nap])
    }
}
