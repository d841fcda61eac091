//! Features of a controller (Base Specification, section 5.27).

use crate::command::{Command, Outcome};
use crate::controller::Of;
use crate::events::Event;
use crate::queue::QueueId;
use crate::status::Status;
use crate::target::Target;
use core::time::Duration;

const VOLATILE_WRITE_CACHE: u8 = 0x06;
const NUMBER_OF_QUEUES: u8 = 0x07;
const ASYNC_EVENTS: u8 = 0x0b;
const KEEP_ALIVE: u8 = 0x0f;
const HOST_IDENTIFIER: u8 = 0x81;

impl Target {
    pub(crate) fn set_feature(&mut self, controller: usize, command: &Command) -> Outcome {
        let most = self.settings.io_queues;
        let Some(one) = self.controllers.get_mut(controller) else {
            return Status::INTERNAL.into();
        };
        let value = command.u32(44);
        let is_discovery = one.of == Of::Discovery;
        match command.byte(40) {
            NUMBER_OF_QUEUES if !is_discovery => {
                // 0's based, submission queues below and completion queues above. FFFFh is not a number.
                let (submission, completion) = (value & 0xffff, value >> 16);
                if submission == 0xffff || completion == 0xffff {
                    return Status::INVALID_FIELD.into();
                }
                let granted = submission.min(completion).min(u32::from(most) - 1);
                one.granted = granted as u16 + 1;
                Outcome::with((granted | granted << 16).into())
            }
            ASYNC_EVENTS => {
                let known = match is_discovery {
                    true => Event::Discovery.bit(),
                    false => Event::Namespaces.bit() | Event::Ana.bit(),
                };
                // The bits of SMART's critical warnings, none of which occurs, may be set.
                if value & !(known | 0xff) != 0 {
                    return Status::INVALID_FIELD.into();
                }
                one.events.wanted = value & known;
                self.report_events(controller);
                Outcome::SUCCESS
            }
            KEEP_ALIVE => {
                one.kato = Duration::from_millis(value.into());
                Outcome::SUCCESS
            }
            // Over fabrics it is that of the Connect.
            HOST_IDENTIFIER => Status::SEQUENCE.into(),
            _ => Status::INVALID_FIELD.into(),
        }
    }

    pub(crate) fn get_feature_command(
        &mut self,
        id: QueueId,
        slot: u16,
        controller: usize,
        command: &Command,
    ) {
        let most = u64::from(self.settings.io_queues) - 1;
        let Some(one) = self.controllers.get(controller) else { return };
        let is_discovery = one.of == Of::Discovery;
        // Only current values are kept.
        if command.byte(41) & 7 > 1 {
            return self.finish(id, slot, Status::INVALID_FIELD.into());
        }
        let outcome = match command.byte(40) {
            NUMBER_OF_QUEUES if !is_discovery => Outcome::with(most | most << 16),
            VOLATILE_WRITE_CACHE if !is_discovery => Outcome::with(1),
            ASYNC_EVENTS => Outcome::with(one.events.wanted.into()),
            KEEP_ALIVE => Outcome::with(one.kato.as_millis() as u64),
            // 128 bits, as fabrics has to.
            HOST_IDENTIFIER if command.u32(44) & 1 == 1 => {
                let host_id = one.host.id;
                return self.finish_with_page(id, slot, (0, 16), |_, output| {
                    output.put(0, &host_id);
                    Ok(())
                });
            }
            _ => Status::INVALID_FIELD.into(),
        };
        self.finish(id, slot, outcome);
    }
}
