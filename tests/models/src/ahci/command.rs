//! Execution of commands: command header, register FIS, scatter list, and the drive's answer.

use super::Fault;
use super::port::Port;
use crate::Machine;

const ABORTED: u8 = 1 << 2;
const NOT_FOUND: u8 = 1 << 4;
const UNCORRECTABLE: u8 = 1 << 6;

/// A command, as the controller has fetched it.
struct Command {
    slot: u8,
    writes: bool,
    /// Address and length of the data.
    data: Option<(u64, usize)>,
    code: u8,
    features: u16,
    lba: u64,
    count: u16,
    device: u8,
}

impl Command {
    fn is_queued(&self) -> bool {
        matches!(self.code, 0x60 | 0x61)
    }

    /// Number of blocks of a transfer.
    fn blocks(&self) -> u64 {
        let count = if self.is_queued() { self.features } else { self.count };
        if count == 0 { 1 << 16 } else { count.into() }
    }
}

impl Port {
    /// Fetches and executes the command of a slot.
    pub(super) fn execute(&mut self, slot: u8, machine: &mut dyn Machine) {
        self.commands += 1;
        let Some(command) = self.fetch(slot, machine) else {
            self.complaints.push("a command cannot be reached".into());
            return self.hold(slot);
        };
        self.check(&command);
        let transfers = matches!(command.code, 0x25 | 0x35 | 0x3d | 0x60 | 0x61);
        if transfers && self.once(Fault::NeverCompletes) {
            return self.hold(slot);
        }
        if transfers && self.once(Fault::Cable) {
            return self.fail_by_cable();
        }
        if command.code == 0xec && self.faults.contains(&Fault::DeafIdentify) {
            return self.hold(slot);
        }
        if command.code == 0xea && self.once(Fault::NoFlushBusy) {
            self.fail(slot, false, ABORTED, machine);
            return self.stay_busy();
        }
        match self.run(&command, machine) {
            Ok(()) => self.complete(slot, command.is_queued(), machine),
            Err(error) => self.fail(slot, command.is_queued(), error, machine),
        }
    }

    fn fetch(&mut self, slot: u8, machine: &mut dyn Machine) -> Option<Command> {
        let mut header = [0; 16];
        machine.read(self.list() + 32 * u64::from(slot), &mut header).ok()?;
        let word = |at: usize| header[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        let (flags, table) = (word(0), u64::from(word(12)) << 32 | u64::from(word(8)));
        let mut fis = [0; 20];
        machine.read(table, &mut fis).ok()?;
        if flags & 0x1f != 5 || fis[..2] != [0x27, 0x80] || !table.is_multiple_of(128) {
            self.complaints.push(format!("slot {slot}: header {flags:#x}, FIS {:x?}", &fis[..2]));
        }
        if word(4) != 0 {
            self.complaints.push(format!("slot {slot}: PRDBC is {:#x}", word(4)));
        }
        let data = match flags >> 16 {
            0 => None,
            1 => {
                let mut entry = [0; 16];
                machine.read(table + 0x80, &mut entry).ok()?;
                let [a, b] = [&entry[..8], &entry[8..]];
                let address = u64::from_le_bytes(a.try_into().ok()?);
                let bytes = (u64::from_le_bytes(b.try_into().ok()?) >> 32) as u32;
                if address % 2 != 0 || bytes.is_multiple_of(2) || bytes >> 22 != 0 {
                    self.complaints.push(format!("slot {slot}: {bytes:#x} bytes at {address:#x}"));
                }
                Some((address, (bytes & 0x3f_ffff) as usize + 1))
            }
            entries => {
                self.complaints.push(format!("slot {slot}: {entries} entries are not modelled"));
                None
            }
        };
        let lba =
            [4, 5, 6, 8, 9, 10].iter().rev().fold(0, |lba, at| lba << 8 | u64::from(fis[*at]));
        Some(Command {
            slot,
            writes: flags & 1 << 6 != 0,
            data,
            code: fis[2],
            features: u16::from_le_bytes([fis[3], fis[11]]),
            lba,
            count: u16::from_le_bytes([fis[12], fis[13]]),
            device: fis[7],
        })
    }

    /// Complains about what no drive has to take.
    fn check(&mut self, command: &Command) {
        let Command { slot, code, count, .. } = *command;
        let (queued, alone) = self.others(slot);
        let depth = self.drive().map_or(0, |drive| drive.shape.queue);
        if command.is_queued() {
            if !self.is_active(slot) || alone != 0 {
                self.complaints
                    .push(format!("queued command {slot} beside one by itself: {alone:#x}"));
            }
            if count >> 3 != u16::from(slot) || slot >= depth {
                self.complaints.push(format!("slot {slot} has the tag {} of {depth}", count >> 3));
            }
        } else if self.is_active(slot) || queued | alone != 0 {
            self.complaints.push(format!("command {code:#x} beside {queued:#x} and {alone:#x}"));
        }
        let to_drive = matches!(code, 0x35 | 0x3d | 0x61 | 0x06);
        if command.data.is_some() && command.writes != to_drive {
            self.complaints.push(format!("command {code:#x} has the wrong direction"));
        }
    }

    fn run(&mut self, command: &Command, machine: &mut dyn Machine) -> Result<(), u8> {
        let (no_log, names) = (
            self.faults.contains(&Fault::NoLog),
            self.faults.iter().find_map(|fault| match fault {
                Fault::LogNames(tag) => Some(*tag),
                _ => None,
            }),
        );
        let (no_flush, no_identify) =
            (self.faults.contains(&Fault::NoFlush), self.faults.contains(&Fault::NoIdentify));
        let no_features = self.faults.contains(&Fault::NoFeatures);
        let no_page = self.faults.contains(&Fault::EmptyLog);
        let Some(drive) = self.drive() else { return Err(ABORTED) };
        if command.is_queued() && drive.error.is_some() {
            return Err(ABORTED);
        }
        match command.code {
            0xec if no_identify => Err(ABORTED),
            0xec => {
                let identity = drive.identity();
                self.send(command, &identity, machine)
            }
            0xef if no_features => Ok(()),
            0xef if command.features == 0x82 => {
                drive.shape.cache = false;
                drive.flush();
                Ok(())
            }
            0xef if command.features == 7 => {
                drive.shape.sleeps = false;
                Ok(())
            }
            0x2f if no_log || !drive.shape.logs => Err(ABORTED),
            0x2f if command.lba & 0xff == 0x10 => {
                let page = if no_page { [0; 512] } else { drive.error_page(names) };
                drive.error = None;
                self.send(command, &page, machine)
            }
            0xea if no_flush => Err(ABORTED),
            0xea => {
                drive.flush();
                Ok(())
            }
            0xe0 => {
                drive.standbys += 1;
                Ok(())
            }
            0x06 if command.features == 1 && drive.shape.trims => self.trim(command, machine),
            0x25 | 0x35 | 0x3d | 0x60 | 0x61 => self.transfer(command, machine),
            code => {
                self.complaints.push(format!("command {code:#x} is not known"));
                Err(ABORTED)
            }
        }
    }

    fn send(
        &mut self,
        command: &Command,
        bytes: &[u8],
        machine: &mut dyn Machine,
    ) -> Result<(), u8> {
        match command.data {
            Some((address, len)) if len == bytes.len() => {
                machine.write(address, bytes).map_err(|_| ABORTED)
            }
            data => {
                self.complaints.push(format!("{} bytes do not fit {data:x?}", bytes.len()));
                Err(ABORTED)
            }
        }
    }

    fn data_of(&mut self, command: &Command, machine: &mut dyn Machine) -> Result<Vec<u8>, u8> {
        let (address, len) = command.data.ok_or(ABORTED)?;
        let mut bytes = vec![0; len];
        if machine.read(address, &mut bytes).is_err() {
            self.complaints.push(format!("data at {address:#x} cannot be reached"));
            return Err(ABORTED);
        }
        Ok(bytes)
    }

    fn trim(&mut self, command: &Command, machine: &mut dyn Machine) -> Result<(), u8> {
        let list = self.data_of(command, machine)?;
        let drive = self.drive().ok_or(ABORTED)?;
        for entry in list.chunks_exact(8) {
            let entry = u64::from_le_bytes(entry.try_into().map_err(|_| ABORTED)?);
            let (lba, count) = (entry & ((1 << 48) - 1), entry >> 48);
            if count > 0 && !drive.trim(lba, count) {
                return Err(NOT_FOUND);
            }
        }
        Ok(())
    }

    fn transfer(&mut self, command: &Command, machine: &mut dyn Machine) -> Result<(), u8> {
        let (lba, count) = (command.lba, command.blocks());
        let bad =
            |fault: &Fault| matches!(fault, Fault::BadBlock(at) if (lba..lba + count).contains(at));
        if self.faults.iter().any(bad) {
            return Err(UNCORRECTABLE);
        }
        let through = command.code == 0x3d || command.code == 0x61 && command.device & 0x80 != 0;
        let drive = self.drive().ok_or(ABORTED)?;
        if through && !drive.shape.fua {
            return Err(ABORTED);
        }
        if matches!(command.code, 0x25 | 0x60) {
            let bytes = drive.read(lba, count).ok_or(NOT_FOUND)?.to_vec();
            return self.send(command, &bytes, machine);
        }
        let bytes = self.data_of(command, machine)?;
        let drive = self.drive().ok_or(ABORTED)?;
        if bytes.len() as u64 != count * drive.shape.block as u64 {
            self.complaints.push(format!("{} bytes for {count} blocks", bytes.len()));
        }
        let drive = self.drive().ok_or(ABORTED)?;
        drive.write(lba, &bytes, through).then_some(()).ok_or(NOT_FOUND)
    }
}
