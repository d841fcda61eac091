//! Commands of admin queues.

use crate::command::{Command, Outcome, admin};
use crate::controller::Of;
use crate::events::MAX_REQUESTS;
use crate::output::Output;
use crate::queue::QueueId;
use crate::request::State;
use crate::status::Status;
use crate::target::{Context, Target};

/// Whether admin queues support an opcode.
pub fn is_supported(opcode: u8) -> bool {
    use admin::*;
    matches!(
        opcode,
        GET_LOG_PAGE | IDENTIFY | ABORT | SET_FEATURES | GET_FEATURES | ASYNC_EVENT | KEEP_ALIVE
    )
}

impl Target {
    /// Executes a command of an admin queue.
    pub(crate) fn execute_admin(
        &mut self,
        id: QueueId,
        slot: u16,
        controller: usize,
        command: &Command,
        ctx: &mut Context<'_>,
    ) {
        let Some(one) = self.controllers.get(controller) else {
            return self.finish(id, slot, Status::INTERNAL.into());
        };
        if !one.is_ready() {
            return self.finish(id, slot, Status::SEQUENCE.into());
        }
        let is_discovery = one.of == Of::Discovery;
        match command.opcode() {
            admin::IDENTIFY => self.identify_command(id, slot, controller, command),
            admin::GET_LOG_PAGE => self.log_page_command(id, slot, controller, command),
            admin::SET_FEATURES | admin::GET_FEATURES
                if !is_discovery && crate::reservations::is_feature(command.byte(40)) =>
            {
                self.reservation_feature(id, slot, controller, command, ctx);
            }
            admin::SET_FEATURES => {
                let outcome = self.set_feature(controller, command);
                self.finish(id, slot, outcome);
            }
            admin::GET_FEATURES => self.get_feature_command(id, slot, controller, command),
            admin::ASYNC_EVENT => self.park_event_request(id, slot, controller),
            admin::KEEP_ALIVE => self.finish(id, slot, Outcome::SUCCESS),
            admin::ABORT if !is_discovery => {
                let of = (command.u16(40), command.u16(42));
                let is_aborted = self.abort_throttled(controller, of, ctx.now);
                // Bit 0: the command was not aborted. It may have completed already.
                self.finish(id, slot, Outcome::with(u64::from(!is_aborted)));
            }
            _ => self.finish(id, slot, Status::INVALID_OPCODE.into()),
        }
    }

    /// Completes a command with `bytes` bytes of a page, from the page's byte `start`. `fill` writes the page.
    pub(crate) fn finish_with_page(
        &mut self,
        id: QueueId,
        slot: u16,
        (start, bytes): (u64, usize),
        fill: impl FnOnce(&mut Target, &mut Output) -> Result<(), Status>,
    ) {
        let Some(queue) = self.queue(id) else { return };
        let window = queue.request_mut(slot).window();
        let Some(window) = window.slice(0, bytes).filter(|window| !window.is_empty()) else {
            return self.finish(id, slot, Status::SGL_LENGTH.into());
        };
        let mut output = Output::new(window, start);
        match fill(self, &mut output) {
            Ok(()) => self.finish_with(id, slot, window),
            Err(status) => self.finish(id, slot, status.into()),
        }
    }

    fn park_event_request(&mut self, id: QueueId, slot: u16, controller: usize) {
        let Some(one) = self.controllers.get_mut(controller) else { return };
        if one.events.requests.len() >= MAX_REQUESTS {
            return self.finish(id, slot, Status::EVENT_LIMIT.into());
        }
        one.events.requests.push(slot);
        if let Some(queue) = self.queue(id) {
            queue.request_mut(slot).enter(State::Parked);
        }
        self.report_events(controller);
    }

    /// Completes requests for events that have occurred.
    pub(crate) fn report_events(&mut self, controller: usize) {
        loop {
            let Some(one) = self.controllers.get_mut(controller) else { return };
            let id = one.admin;
            let Some((slot, event)) = one.events.next() else { return };
            self.finish(id, slot, Outcome::with(event.result().into()));
        }
    }

    /// Ends all requests for events: the controller is reset or shut down.
    pub(crate) fn drop_event_requests(&mut self, controller: usize) {
        let Some(one) = self.controllers.get_mut(controller) else { return };
        let id = one.admin;
        let slots = core::mem::take(&mut one.events.requests);
        for slot in slots {
            self.finish(id, slot, Status::ABORTED_QUEUE.into());
        }
    }
}
