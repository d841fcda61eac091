//! Execution of commands.

use super::data::{PAGE, Status, get, put};
use super::queue::{Completions, Submissions};
use super::{Fault, Namespace, Nvme};
use crate::Machine;

// Status fields, most with "do not retry".
const INVALID_OPCODE: u16 = 0x4001;
const INVALID_FIELD: u16 = 0x4002;
const ABORTED: u16 = 0x0007;
const INVALID_NAMESPACE: u16 = 0x400b;
const SEQUENCE: u16 = 0x400c;
const OUT_OF_RANGE: u16 = 0x4080;
const WRITE_PROTECTED: u16 = 0x4020;
const INVALID_QUEUE: u16 = 0x4101;
const INVALID_SIZE: u16 = 0x4102;
const INVALID_LOG: u16 = 0x4109;

const DATASET_MANAGEMENT: u16 = 1 << 2;
const WRITE_ZEROES: u16 = 1 << 3;
const ALL: u32 = u32::MAX;

/// A parsed command.
struct Command {
    opcode: u8,
    nsid: u32,
    prps: [u64; 2],
    /// Dwords from 10 on.
    ten: [u32; 3],
}

impl Command {
    fn of(bytes: &[u8; 64]) -> Self {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from(word(at + 4)) << 32 | u64::from(word(at));
        Command {
            opcode: bytes[0],
            nsid: word(4),
            prps: [long(24), long(32)],
            ten: [word(40), word(44), word(48)],
        }
    }

    fn block(&self) -> u64 {
        u64::from(self.ten[1]) << 32 | u64::from(self.ten[0])
    }

    fn count(&self) -> u64 {
        u64::from(self.ten[2] & 0xffff) + 1
    }
}

impl Nvme {
    /// Executes a command. Returns status and result, or None if it is never completed.
    pub(super) fn execute(
        &mut self,
        queue: u16,
        bytes: &[u8; 64],
        machine: &mut dyn Machine,
    ) -> Option<(u16, u32)> {
        let command = Command::of(bytes);
        let cid = u16::from_le_bytes([bytes[2], bytes[3]]);
        let result = match queue {
            0 if self.has(Fault::DeafAdmin) => return None,
            // Asynchronous events never come.
            0 if command.opcode == 0x0c => return None,
            0 => self.administer(&command, machine),
            _ => {
                let never = |fault| {
                    matches!(fault, Fault::NeverCompletes | Fault::NeverAborts).then_some(fault)
                };
                if let Some(fault) = self.once(never) {
                    if fault == Fault::NeverCompletes {
                        self.held.push((queue, cid));
                    }
                    return None;
                }
                let fails = |fault| match fault {
                    Fault::Fails(status) => Some(status),
                    _ => None,
                };
                match self.once(fails) {
                    Some(status) => Err(Status(status)),
                    None => self.transfer(&command, machine).map(|()| 0),
                }
            }
        };
        // An aborted command completes before the Abort command.
        if queue == 0 && command.opcode == 0x08 {
            self.complete_aborted(command.ten[0], machine);
        }
        Some(result.map_or_else(|Status(status)| (status, 0), |result| (0, result)))
    }

    fn complete_aborted(&mut self, what: u32, machine: &mut dyn Machine) {
        let (queue, cid) = (what as u16, (what >> 16) as u16);
        let Some(at) = self.held.iter().position(|&held| held == (queue, cid)) else { return };
        self.held.remove(at);
        let Some(submissions) = self.submissions.get(&queue) else { return };
        let (head, to) = (submissions.head, submissions.completions);
        let done = super::Completion { result: 0, queue, head, cid, status: ABORTED };
        self.post(to, done, machine);
    }

    fn administer(&mut self, command: &Command, machine: &mut dyn Machine) -> Result<u32, Status> {
        let refuses = |fault| (fault == Fault::RefusesAdmin(command.opcode)).then_some(());
        if self.once(refuses).is_some() {
            return Err(Status(INVALID_FIELD));
        }
        let (id, entries) = (command.ten[0] as u16, (command.ten[0] >> 16) + 1);
        match command.opcode {
            0x01 | 0x05 if id == 0 || id > self.granted.max(1) => {
                return Err(Status(INVALID_QUEUE));
            }
            0x01 | 0x05 if entries < 2 || entries > self.settings.entries => {
                return Err(Status(INVALID_SIZE));
            }
            0x01 | 0x05 if !command.prps[0].is_multiple_of(PAGE) || command.ten[1] & 1 == 0 => {
                return Err(Status(INVALID_FIELD));
            }
            _ => {}
        }
        match command.opcode {
            0x00 => self.submissions.remove(&id).map(|_| 0).ok_or(Status(INVALID_QUEUE)),
            0x04 => self.completions.remove(&id).map(|_| 0).ok_or(Status(INVALID_QUEUE)),
            0x01 => {
                let to = (command.ten[1] >> 16) as u16;
                if !self.completions.contains_key(&to) || self.submissions.contains_key(&id) {
                    return Err(Status(INVALID_QUEUE));
                }
                self.submissions.insert(id, Submissions::new(command.prps[0], entries, to));
                Ok(0)
            }
            0x05 => {
                let vector = (command.ten[1] >> 16) as u16;
                if vector >= self.settings.vectors.max(1) {
                    return Err(Status(0x4108));
                }
                let vector = (command.ten[1] & 2 != 0).then_some(vector);
                self.completions.insert(id, Completions::new(command.prps[0], entries, vector));
                Ok(0)
            }
            0x02 => self.log_page(command, machine),
            0x06 => self.identify(command, machine),
            // Bit 0: the command was not aborted.
            0x08 => Ok(u32::from(!self.held.contains(&(id, (command.ten[0] >> 16) as u16)))),
            0x09 if command.ten[0] & 0xff == 7 => self.grant(command.ten[1]),
            // Other features are accepted and ignored.
            0x09 | 0x0a => Ok(0),
            _ => Err(Status(INVALID_OPCODE)),
        }
    }

    /// Handles Number of Queues. Both halves are zero-based; the lower one is for submission queues.
    fn grant(&mut self, requested: u32) -> Result<u32, Status> {
        if self.submissions.len() > 1 || self.completions.len() > 1 {
            self.complain("the number of queues is set while I/O queues exist");
            return Err(Status(SEQUENCE));
        }
        let pairs = u32::from(self.settings.pairs.max(1)) - 1;
        let granted = (requested & 0xffff).min(requested >> 16).min(pairs);
        self.granted = granted as u16 + 1;
        Ok(granted << 16 | granted)
    }

    fn log_page(&mut self, command: &Command, machine: &mut dyn Machine) -> Result<u32, Status> {
        if command.ten[0] & 0xff != 2 || !self.settings.health {
            return Err(Status(INVALID_LOG));
        }
        let len = ((command.ten[0] >> 16) as usize + 1) * 4;
        let mut page = vec![0; 512];
        page[0] = self.warnings;
        page[1..3].copy_from_slice(&self.temperature.to_le_bytes());
        (page[3], page[4], page[5]) = (100, 10, 1);
        page[128..136].copy_from_slice(&1234u64.to_le_bytes());
        page.resize(len, 0);
        put(command.prps, &page, machine).map(|()| 0)
    }

    fn identify(&mut self, command: &Command, machine: &mut dyn Machine) -> Result<u32, Status> {
        let mut page = vec![0; 4096];
        match command.ten[0] & 0xff {
            0 => {
                if command.nsid == 0 || command.nsid > self.most_nsid() {
                    return Err(Status(INVALID_NAMESPACE));
                }
                if let Some(Namespace { shape, .. }) = self.namespaces.get(&command.nsid) {
                    for at in [0, 8, 16] {
                        page[at..at + 8].copy_from_slice(&shape.blocks.to_le_bytes());
                    }
                    page[33] = 9; // deallocated blocks read as zeroes, Write Zeroes deallocates
                    page[99] = shape.read_only.into();
                    page[128..130].copy_from_slice(&shape.metadata.to_le_bytes());
                    page[130] = shape.shift;
                }
            }
            1 => {
                page[..4].copy_from_slice(&0x1b36_1af4u32.to_le_bytes());
                let texts =
                    [(4, 20, self.settings.serial.as_str()), (24, 40, "Model"), (64, 8, "1.0")];
                for (at, len, text) in texts {
                    page[at..at + len].fill(b' ');
                    page[at..at + text.len()].copy_from_slice(text.as_bytes());
                }
                page[77] = self.settings.mdts;
                page[80..84].copy_from_slice(&self.settings.version.to_le_bytes());
                (page[512], page[513]) = (0x66, 0x44);
                page[516..520].copy_from_slice(&self.most_nsid().to_le_bytes());
                page[520..522].copy_from_slice(&self.settings.optional.to_le_bytes());
                page[525] = self.settings.volatile_cache.into();
                let name = format!("nqn.2019-08.org.qemu:{}", self.settings.serial);
                page[768..768 + name.len()].copy_from_slice(name.as_bytes());
            }
            3 if self.settings.descriptors && self.namespaces.contains_key(&command.nsid) => {
                // An EUI64, and the command set.
                page[..4].copy_from_slice(&[1, 8, 0, 0]);
                page[4..12].copy_from_slice(
                    &(0x5254_0000_0000_0000 | u64::from(command.nsid)).to_be_bytes(),
                );
                let shape = self.namespaces.get(&command.nsid).map(|it| it.shape);
                if let Some(csi) = shape.and_then(|shape| shape.command_set) {
                    page[12..17].copy_from_slice(&[4, 1, 0, 0, csi]);
                }
            }
            2 if self.settings.lists_namespaces => {
                let after = self.namespaces.keys().filter(|&&nsid| nsid > command.nsid);
                for (place, nsid) in page.chunks_mut(4).zip(after) {
                    place.copy_from_slice(&nsid.to_le_bytes());
                }
            }
            _ => return Err(Status(INVALID_FIELD)),
        }
        put(command.prps, &page, machine).map(|()| 0)
    }

    fn most_nsid(&self) -> u32 {
        self.namespaces.keys().last().copied().unwrap_or(0)
    }

    fn transfer(&mut self, command: &Command, machine: &mut dyn Machine) -> Result<(), Status> {
        if command.opcode == 0 && command.nsid == ALL {
            self.namespaces.values_mut().for_each(Namespace::flush);
            return Ok(());
        }
        let namespace = self.namespaces.get_mut(&command.nsid).ok_or(Status(INVALID_NAMESPACE))?;
        let (first, count) = (command.block(), command.count());
        if matches!(command.opcode, 1 | 2 | 8) && !namespace.holds(first, count) {
            return Err(Status(OUT_OF_RANGE));
        }
        if matches!(command.opcode, 1 | 8 | 9) && namespace.shape.read_only {
            return Err(Status(WRITE_PROTECTED));
        }
        let len = count as usize * namespace.block_bytes();
        let most = match self.settings.mdts {
            0 => usize::MAX,
            mdts => 4096 << mdts,
        };
        if matches!(command.opcode, 1 | 2) {
            self.bytes += len as u64;
            if len > most {
                return Err(Status(INVALID_FIELD));
            }
        }
        match command.opcode {
            0 => {
                self.flushes += 1;
                namespace.flush();
            }
            1 => {
                let mut bytes = vec![0; len];
                get(command.prps, &mut bytes, machine)?;
                let through = command.ten[2] & 1 << 30 != 0;
                namespace.write(first, &bytes, self.settings.volatile_cache && !through);
            }
            2 => {
                let mut bytes = vec![0; len];
                namespace.read(first, &mut bytes);
                put(command.prps, &bytes, machine)?;
            }
            8 if self.settings.optional & WRITE_ZEROES != 0 => namespace.fill(first, count, 0),
            9 if self.settings.optional & DATASET_MANAGEMENT != 0 => {
                if command.ten[1] & 4 == 0 {
                    return Ok(());
                }
                for n in 0..u64::from(command.ten[0] & 0xff) + 1 {
                    let mut range = [0; 16];
                    get([command.prps[0] + 16 * n, 0], &mut range, machine)?;
                    let count = u32::from_le_bytes(range[4..8].try_into().expect("4 bytes"));
                    let first = u64::from_le_bytes(range[8..].try_into().expect("8 bytes"));
                    if !namespace.holds(first, count.into()) {
                        return Err(Status(OUT_OF_RANGE));
                    }
                    namespace.fill(first, count.into(), 0);
                }
            }
            _ => return Err(Status(INVALID_OPCODE)),
        }
        Ok(())
    }
}
