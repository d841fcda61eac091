//! Identify (Base Specification, section 5.17). Only supported features are claimed.

use crate::command::Command;
use crate::controller::Of;
use crate::discovery::DISCOVERY_NQN;
use crate::events::{Event, MAX_REQUESTS};
use crate::fabrics::VERSION;
use crate::output::Output;
use crate::parts::VERIFY_LIMIT;
use crate::queue::QueueId;
use crate::status::Status;
use crate::subsystem::{Backing, MAX_GROUP, MAX_NSID, Namespace, Subsystem};
use crate::target::Target;
use drivers::hal::Features;

/// Bytes of a structure.
const LENGTH: usize = 4096;
/// Firmware revision.
const FIRMWARE: &str = env!("CARGO_PKG_VERSION");
/// Largest Write Zeroes: 1 MiB, as a power of two of 4096 bytes.
const ZEROES: u8 = 8;

/// Optional NVM commands.
const COMPARE: u16 = 1;
const DATASET_MANAGEMENT: u16 = 1 << 2;
const WRITE_ZEROES: u16 = 1 << 3;
const RESERVATIONS: u16 = 1 << 5;
const VERIFY: u16 = 1 << 7;

impl Target {
    pub(crate) fn identify_command(
        &mut self,
        id: QueueId,
        slot: u16,
        controller: usize,
        command: &Command,
    ) {
        let (cns, nsid, csi) = (command.byte(40), command.nsid(), command.byte(47));
        self.finish_with_page(id, slot, (0, LENGTH), |target, output| {
            let is_discovery =
                target.controllers.get(controller).is_some_and(|one| one.of == Of::Discovery);
            if is_discovery {
                return match cns {
                    0x01 => target.identify_controller(controller, output),
                    _ => Err(Status::INVALID_FIELD),
                };
            }
            let Some(subsystem) = target.subsystem_of(controller) else {
                return Err(Status::INTERNAL);
            };
            match cns {
                0x00 => namespace(subsystem, nsid, output),
                0x01 => target.identify_controller(controller, output),
                0x02 => list(subsystem, nsid, output),
                0x03 => descriptors(subsystem, nsid, output),
                // The NVM command set's own: a namespace without protection information, and limits.
                0x05 if csi == 0 => active(subsystem, nsid).map(|_| ()),
                0x06 if csi == 0 => {
                    output.put_u8(0, VERIFY_LIMIT);
                    output.put_u8(1, ZEROES);
                    Ok(())
                }
                _ => Err(Status::INVALID_FIELD),
            }
        });
    }

    fn identify_controller(&self, controller: usize, output: &mut Output) -> Result<(), Status> {
        let one = self.controllers.get(controller).ok_or(Status::INTERNAL)?;
        let settings = &self.settings;
        let is_discovery = one.of == Of::Discovery;
        let subsystem = self.subsystem_of(controller);
        let (serial, model, nqn) = match subsystem {
            Some(it) => (it.serial.as_str(), it.config.model.as_str(), it.config.nqn.as_str()),
            None => ("discovery", "Isthmus", DISCOVERY_NQN),
        };
        output.put_text(4, serial, 20);
        output.put_text(24, model, 40);
        output.put_text(64, FIRMWARE, 8);
        output.put_u8(77, settings.transfer);
        output.put_u16(78, one.cntlid);
        output.put_u32(80, VERSION);
        // 128-bit host identifiers, traffic-based keep alive.
        output.put_u32(96, 1 | 1 << 6);
        output.put_u8(111, if is_discovery { 2 } else { 1 });
        output.put_u8(259, MAX_REQUESTS as u8 - 1);
        // Extended Get Log Page, and for I/O controllers the log of supported commands.
        output.put_u8(261, if is_discovery { 1 << 2 } else { 1 << 2 | 1 << 1 });
        // Granularity of keep alive: 1 s.
        output.put_u16(320, 10);
        output.put_u16(514, settings.entries);
        // SGLs, without alignment.
        output.put_u32(536, 1);
        output.put(768, nqn.as_bytes());
        if is_discovery {
            output.put_u32(92, Event::Discovery.bit());
            return Ok(());
        }
        // Several controllers, ANA.
        output.put_u8(76, 1 << 1 | 1 << 3);
        output.put_u32(88, 5_000_000);
        output.put_u32(92, Event::Namespaces.bit() | Event::Ana.bit());
        // Time of an ANA change in seconds; all five states; groups do not change while namespaces have them.
        output.put_u8(342, 10);
        output.put_u8(343, 0x1f);
        output.put_u32(344, MAX_GROUP);
        output.put_u32(348, MAX_GROUP);
        output.put_u8(512, 0x66);
        output.put_u8(513, 0x44);
        output.put_u32(516, MAX_NSID);
        output.put_u16(520, COMPARE | DATASET_MANAGEMENT | WRITE_ZEROES | RESERVATIONS | VERIFY);
        // FUSES: Compare and Write, of one block (ACWU 0).
        output.put_u16(522, 1);
        // A volatile write cache may be there; Flush of all namespaces is supported.
        output.put_u8(525, 1 | 3 << 1);
        output.put_u32(540, MAX_NSID);
        output.put_u32(1792, (64 + settings.in_capsule) / 16);
        output.put_u32(1796, 1);
        output.put_u8(1803, 1);
        Ok(())
    }
}

/// The active namespace of that identifier. None if it is not active.
fn active(subsystem: &Subsystem, nsid: u32) -> Result<Option<(&Namespace, &Backing)>, Status> {
    if nsid == 0 || nsid > MAX_NSID {
        return Err(Status::INVALID_NAMESPACE);
    }
    let namespace = subsystem.namespace(nsid);
    Ok(namespace.and_then(|one| Some((one, one.backing.as_ref().ok()?))))
}

fn namespace(subsystem: &Subsystem, nsid: u32, output: &mut Output) -> Result<(), Status> {
    // The structure of an inactive namespace is zero.
    let Some((namespace, backing)) = active(subsystem, nsid)? else { return Ok(()) };
    let (blocks, block) = (backing.blocks(), backing.block);
    for offset in [0, 8, 16] {
        output.put_u64(offset, blocks);
    }
    // The preferred granularities are valid, as 0's based numbers of blocks.
    output.put_u8(24, 1 << 4);
    let of_blocks = |bytes: u32| (bytes / block).clamp(1, 1 << 15) as u16 - 1;
    let physical = of_blocks(backing.geometry.physical_block);
    let discard = of_blocks(backing.geometry.discard_granularity);
    output.put_u16(64, physical);
    output.put_u16(66, physical);
    output.put_u16(68, discard);
    output.put_u16(70, discard);
    // Shared by controllers.
    output.put_u8(30, 1);
    // All six types of reservations. Existing keys are ignored as in version 1.3. Bit 0: they are kept through a power
    // loss.
    output.put_u8(31, 0xfe | u8::from(backing.persists));
    if backing.has(Features::DISCARD) {
        // What is deallocated reads as anything (0); Write Zeroes may not deallocate.
        output.put_u8(33, 0);
    }
    output.put_u32(92, namespace.config.ana_group);
    output.put_u8(99, u8::from(namespace.is_read_only()));
    output.put(104, &namespace.uuid);
    output.put_u8(130, block.trailing_zeros() as u8);
    Ok(())
}

/// The active namespaces above an identifier.
fn list(subsystem: &Subsystem, above: u32, output: &mut Output) -> Result<(), Status> {
    if above >= u32::MAX - 1 {
        return Err(Status::INVALID_NAMESPACE);
    }
    let above = subsystem.active().filter(|(one, _)| one.config.nsid > above);
    for (place, (namespace, _)) in above.take(LENGTH / 4).enumerate() {
        output.put_u32(4 * place as u64, namespace.config.nsid);
    }
    Ok(())
}

/// The identifiers of a namespace: UUID, NGUID with the same bytes, command set.
fn descriptors(subsystem: &Subsystem, nsid: u32, output: &mut Output) -> Result<(), Status> {
    let Some((namespace, _)) = active(subsystem, nsid)? else {
        return Err(Status::INVALID_NAMESPACE);
    };
    output.put(0, &[3, 16, 0, 0]);
    output.put(4, &namespace.uuid);
    output.put(20, &[2, 16, 0, 0]);
    output.put(24, &namespace.uuid);
    output.put(40, &[4, 1, 0, 0, 0]);
    Ok(())
}
