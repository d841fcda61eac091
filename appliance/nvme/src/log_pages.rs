//! Log pages (Base Specification, section 5.16). A page is made anew for each read, and any range of it can be read.

use crate::command::{Command, admin, io};
use crate::controller::Of;
use crate::output::Output;
use crate::queue::QueueId;
use crate::status::Status;
use crate::subsystem::Subsystem;
use crate::target::Target;

const ERROR: u8 = 0x01;
const SMART: u8 = 0x02;
const FIRMWARE: u8 = 0x03;
const CHANGED_NAMESPACES: u8 = 0x04;
const COMMANDS: u8 = 0x05;
const ANA: u8 = 0x0c;
const DISCOVERY: u8 = 0x70;
const RESERVATIONS: u8 = 0x80;
/// Retain Asynchronous Event.
const RETAIN: u8 = 1 << 7;

impl Target {
    pub(crate) fn log_page_command(
        &mut self,
        id: QueueId,
        slot: u16,
        controller: usize,
        command: &Command,
    ) {
        let (page, specific) = (command.byte(40), command.byte(41));
        // Dwords, 0's based.
        let dwords = u64::from(command.u16(42)) | u64::from(command.u16(44)) << 16;
        let start = command.u64(48);
        let bytes = usize::try_from((dwords + 1) * 4).unwrap_or(usize::MAX);
        let is_discovery =
            self.controllers.get(controller).is_some_and(|one| one.of == Of::Discovery);
        let known = match is_discovery {
            true => page == DISCOVERY,
            false => matches!(
                page,
                ERROR | SMART | FIRMWARE | CHANGED_NAMESPACES | COMMANDS | ANA | RESERVATIONS
            ),
        };
        if !known {
            return self.finish(id, slot, Status::INVALID_LOG.into());
        }
        if !start.is_multiple_of(4) {
            return self.finish(id, slot, Status::INVALID_FIELD.into());
        }
        let ours = self.queue(id).map(|queue| queue.ends);
        self.finish_with_page(id, slot, (start, bytes), |target, output| {
            match page {
                ANA => {
                    let subsystem = target.subsystem_of(controller).ok_or(Status::INTERNAL)?;
                    put_ana(subsystem, specific & 1 != 0, output);
                }
                CHANGED_NAMESPACES => {
                    let one = target.controllers.get_mut(controller).ok_or(Status::INTERNAL)?;
                    match one.events.changed() {
                        None => output.put_u32(0, u32::MAX),
                        Some(changed) => {
                            for (place, nsid) in changed.iter().enumerate() {
                                output.put_u32(4 * place as u64, *nsid);
                            }
                        }
                    }
                }
                RESERVATIONS => {
                    let one = target.controllers.get(controller).ok_or(Status::INTERNAL)?;
                    if let Some(((number, notice, nsid), others)) = one.events.oldest_notice() {
                        output.put_u64(0, number);
                        output.put_u8(8, notice as u8);
                        output.put_u8(9, others as u8);
                        output.put_u32(12, nsid);
                    }
                }
                COMMANDS => put_commands(output),
                SMART => target.put_smart(controller, command.nsid(), output)?,
                // One slot, which is active.
                FIRMWARE => output.put(0, &[1]),
                DISCOVERY => target.put_discovery(controller, ours, output),
                // No errors are recorded.
                _ => {}
            }
            if specific & RETAIN == 0
                && let Some(one) = target.controllers.get_mut(controller)
            {
                one.events.log_read(page);
            }
            Ok(())
        });
        self.report_events(controller);
    }

    /// SMART of the controller: a spare of 100 %, and units of 512,000 bytes.
    fn put_smart(&self, controller: usize, nsid: u32, output: &mut Output) -> Result<(), Status> {
        if !matches!(nsid, 0 | u32::MAX) {
            return Err(Status::INVALID_FIELD);
        }
        let subsystem = self.subsystem_of(controller).ok_or(Status::INTERNAL)?;
        let sum = |count: fn(&crate::subsystem::Counters) -> u64| {
            subsystem.namespaces.iter().map(|one| count(&one.counters)).sum::<u64>()
        };
        // 300 K.
        output.put_u16(1, 300);
        output.put_u8(3, 100);
        output.put_u8(4, 10);
        output.put_u64(32, sum(|it| it.read_bytes).div_ceil(512_000));
        output.put_u64(48, sum(|it| it.write_bytes).div_ceil(512_000));
        output.put_u64(64, sum(|it| it.reads));
        output.put_u64(80, sum(|it| it.writes));
        output.put_u64(160, sum(|it| it.errors));
        Ok(())
    }
}

/// Supported commands, and their effects.
fn put_commands(output: &mut Output) {
    let (supported, changes_contents) = (1u32, 1u32 << 1);
    for opcode in 0..=u8::MAX {
        if crate::admin::is_supported(opcode) {
            output.put_u32(4 * u64::from(opcode), supported);
        }
        if crate::io::is_supported(opcode) {
            let writes = matches!(opcode, io::WRITE | io::WRITE_ZEROES | io::DATASET_MANAGEMENT);
            let effects = supported | if writes { changes_contents } else { 0 };
            output.put_u32(1024 + 4 * u64::from(opcode), effects);
        }
    }
    debug_assert!(crate::admin::is_supported(admin::KEEP_ALIVE));
}

/// The groups that have namespaces, with their namespaces unless only groups are wanted.
fn put_ana(subsystem: &Subsystem, only_groups: bool, output: &mut Output) {
    let mut at = 16;
    let mut groups = 0;
    for (place, (state, changes)) in subsystem.groups.iter().enumerate() {
        let group = place as u32 + 1;
        let members = subsystem.active().filter(|(one, _)| one.config.ana_group == group);
        let mut count = 0;
        for (namespace, _) in members {
            if !only_groups {
                output.put_u32(at + 32 + 4 * u64::from(count), namespace.config.nsid);
            }
            count += 1;
        }
        if count == 0 {
            continue;
        }
        groups += 1;
        let listed = if only_groups { 0 } else { count };
        output.put_u32(at, group);
        output.put_u32(at + 4, listed);
        output.put_u64(at + 8, *changes);
        output.put_u8(at + 16, *state as u8);
        at += 32 + 4 * u64::from(listed);
    }
    output.put_u64(0, subsystem.ana_changes);
    output.put_u16(8, groups);
}
