//! Firmware commands (Linux: `vnic_devcmd.h`), by the register mailbox or by a ring (devcmd2).

use super::filter::{EINVAL, ENOTSUPPORTED};
use super::{Enic, Fault, Stage};
use crate::{Machine, Nanoseconds};

/// Duration of a command, and of the open or reset that it starts. A driver that does not wait fails.
const COMMAND: Nanoseconds = 50_000;
const SETTLING: Nanoseconds = 3_000_000;

const EFAULT: u32 = 2;
const UNKNOWN: u32 = 5;
const BAD_STATE: u32 = 6;

const BUSY: u32 = 1;
const ERROR: u32 = 2;

/// Number of arguments, and of results.
pub const ARGUMENTS: usize = 15;
/// Bytes of a devcmd2 command, and of a devcmd2 result.
const ENTRY: u64 = 128;
/// Command flag: write no result.
const NO_RESULT: u16 = 1;

/// Bytes of the notify area, the statistics, and the firmware information.
const NOTIFY: u64 = 40;
const STATISTICS: u64 = 8 * (27 + 37);
const FIRMWARE: usize = 132;

/// The interface through which a command came.
#[derive(Clone, Copy, Debug)]
enum From {
    Mailbox,
    Ring { index: u32, flags: u16 },
}

/// A command in execution.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    pub due: Nanoseconds,
    from: From,
    word: u32,
    arguments: [u64; ARGUMENTS],
}

/// The mailbox registers, and the result ring of devcmd2.
#[derive(Clone, Debug, Default)]
pub struct Mailbox {
    status: u32,
    word: u32,
    arguments: [u64; ARGUMENTS],
    results: u64,
    entries: u32,
    next: u32,
    colour: u8,
}

impl Mailbox {
    pub fn read(&self, offset: u64) -> u64 {
        match offset {
            0..4 => u64::from(self.status) >> (8 * offset),
            4..8 => u64::from(self.word) >> (8 * (offset - 4)),
            _ => {
                let argument = self.arguments[(offset - 8) as usize / 8];
                argument >> (8 * (offset % 8))
            }
        }
    }
}

/// The number in a command's word.
fn number_of(word: u32) -> u32 {
    word & 0x3fff
}

const GET_MAC: u32 = 0x8000_c009;
const NIC_CFG: u32 = 0x4101_c010;
/// CQ_ENTRY_SIZE_SET (Linux 7.3, `enic_ext_cq`): the size of receive completions.
const ENTRY_SIZE_SET: u32 = 0x4000_405a;

/// Commands that the model implements.
const KNOWN: [u32; 34] = [
    0xc001_c001, // MCPU_FW_INFO
    0x4001_c001, // MCPU_FW_INFO_OLD
    0xc001_c002, // DEV_SPEC
    0x0101_c003, // STATS_CLEAR
    0x4001_c004, // STATS_DUMP
    0x4100_4007, // PACKET_FILTER
    0x0001_c008, // HANG_NOTIFY
    GET_MAC,
    0x4100_c00c, // ADDR_ADD
    0x4100_c00d, // ADDR_DEL
    0x4100_400e, // VLAN_ADD
    0x4100_400f, // VLAN_DEL
    NIC_CFG,
    0x4001_c010, // NIC_CFG_CHK
    0x0101_c013, // SOFT_RESET
    0x8001_c014, // SOFT_RESET_STATUS
    0xc001_c015, // NOTIFY
    0x4101_c017, // OPEN
    0x8001_c018, // OPEN_STATUS
    0x0001_c019, // CLOSE
    0x4101_c01c, // ENABLE
    0x4001_c01c, // ENABLE_WAIT
    0x0001_c01d, // DISABLE
    0x0101_c022, // DEINIT
    0x4101_c023, // INIT
    0xc001_c024, // CAPABILITY
    0x0001_c027, // HANG_RESET
    0x8001_c028, // HANG_RESET_STATUS
    0xc000_4029, // IG_VLAN_REWRITE_MODE
    0x8001_c032, // INTR_COAL_CONVERT
    0x4001_c039, // INITIALIZE_DEVCMD2
    0xc000_403a, // ADD_FILTER
    0x4000_403b, // DEL_FILTER
    ENTRY_SIZE_SET,
];

impl Enic {
    pub(super) fn write_mailbox(
        &mut self,
        offset: u64,
        bytes: &[u8],
        now: Nanoseconds,
        machine: &mut dyn Machine,
    ) {
        let value = crate::registers::number(bytes);
        if self.mailbox.status & BUSY != 0 {
            return self.complain(format!("{value:#x} goes to a mailbox that is busy"));
        }
        match (offset, bytes.len()) {
            (4, 4) => {
                let word = value as u32;
                self.mailbox.word = word;
                self.mailbox.status = BUSY;
                let arguments = self.mailbox.arguments;
                let running = Running { due: now + COMMAND, from: From::Mailbox, word, arguments };
                self.running = Some(running);
                // The driver does not wait for this command: it completes before the next.
                if word >> 24 & 1 != 0 && !self.is_stuck(word) {
                    self.running = None;
                    self.finish(running, now, machine);
                }
            }
            (8.., 8) if offset.is_multiple_of(8) => {
                self.mailbox.arguments[(offset - 8) as usize / 8] = value;
            }
            (8.., 4) => {
                let argument = &mut self.mailbox.arguments[(offset - 8) as usize / 8];
                *argument = crate::registers::with_half(*argument, offset % 8, value as u32);
            }
            _ => self.complain(format!("{value:#x} goes to {offset:#x} of the mailbox")),
        }
    }

    fn is_stuck(&self, word: u32) -> bool {
        self.has(Fault::NeverDone(number_of(word)))
    }

    /// Executes the commands that are due, and fetches the next.
    pub(super) fn run_commands(&mut self, now: Nanoseconds, machine: &mut dyn Machine) {
        loop {
            if let Some(running) = self.running {
                if running.due > now || self.is_stuck(running.word) {
                    return;
                }
                self.running = None;
                self.finish(running, now, machine);
            }
            if !self.ring.running || self.ring.fetch == self.ring.posted {
                return;
            }
            self.fetch(now, machine);
        }
    }

    fn fetch(&mut self, now: Nanoseconds, machine: &mut dyn Machine) {
        let index = self.ring.fetch;
        self.ring.fetch = (index + 1) % self.ring.size;
        let mut bytes = [0; ENTRY as usize];
        if machine.read(self.ring.base + ENTRY * u64::from(index), &mut bytes).is_err() {
            return self.complain("a command cannot be reached");
        }
        let at = |at: usize, len: usize| crate::registers::number(&bytes[at..at + len]);
        let from = From::Ring { index, flags: at(2, 2) as u16 };
        let arguments = std::array::from_fn(|n| at(8 + 8 * n, 8));
        let word = at(4, 4) as u32;
        let late = self.lateness.as_mut().map_or(0, crate::Lateness::next_delay);
        self.running = Some(Running { due: now + COMMAND + late, from, word, arguments });
    }

    fn finish(&mut self, running: Running, now: Nanoseconds, machine: &mut dyn Machine) {
        let fails = |fault| match fault {
            Fault::Fails(n, error) if n == number_of(running.word) => Some(error),
            _ => None,
        };
        let mut arguments = running.arguments;
        let done = match self.once(fails) {
            Some(error) => Err(error),
            None => self.execute(running.word, &mut arguments, now, machine),
        };
        self.counts.commands += 1;
        if let Err(error) = done {
            self.counts.failed += 1;
            arguments[0] = error.into();
        }
        match running.from {
            From::Mailbox => {
                self.mailbox.status = if done.is_err() { ERROR } else { 0 };
                self.mailbox.arguments = arguments;
            }
            From::Ring { flags, .. } if flags & NO_RESULT != 0 => {}
            From::Ring { index, .. } => {
                self.put_result(index, done.err().unwrap_or(0), &arguments, machine);
            }
        }
    }

    fn put_result(
        &mut self,
        index: u32,
        error: u32,
        results: &[u64; ARGUMENTS],
        machine: &mut dyn Machine,
    ) {
        let stale = self.once(|fault| (fault == Fault::ResultColour).then_some(())).is_some();
        let mailbox = &mut self.mailbox;
        if mailbox.entries == 0 {
            // The ring has no room. That is a violation only if the command succeeded: setting the ring up may have
            // failed.
            if error == 0 {
                self.complain("there is no room for results");
            }
            return;
        }
        let place = mailbox.results + ENTRY * u64::from(mailbox.next);
        let colour = mailbox.colour ^ u8::from(stale);
        mailbox.next += 1;
        if mailbox.next == mailbox.entries {
            (mailbox.next, mailbox.colour) = (0, mailbox.colour ^ 1);
        }
        let mut bytes: Vec<u8> = results.iter().flat_map(|result| result.to_le_bytes()).collect();
        bytes.extend([0; 4]);
        bytes.extend((index as u16).to_le_bytes());
        bytes.extend([error as u8, colour]);
        let (body, last) = bytes.split_at(bytes.len() - 4);
        let written = machine.write(place, body);
        if written.and_then(|()| machine.write(place + ENTRY - 4, last)).is_err() {
            self.complain("a result cannot be written");
        }
    }

    /// Executes a command, and replaces the arguments with its results.
    fn execute(
        &mut self,
        word: u32,
        arguments: &mut [u64; ARGUMENTS],
        now: Nanoseconds,
        machine: &mut dyn Machine,
    ) -> Result<(), u32> {
        let [first, second] = [arguments[0], arguments[1]];
        if !KNOWN.contains(&word) {
            self.complain(format!("command {word:#x}"));
            return Err(UNKNOWN);
        }
        if !self.is_allowed(number_of(word), now) {
            self.complain(format!("command {word:#x} while {:?}", self.stage));
            return Err(BAD_STATE);
        }
        match number_of(word) {
            1 => self.firmware_info(first, arguments, machine)?,
            2 => arguments[0] = self.specification(first, second)?,
            3 => self.counts.clear_statistics(),
            4 if second != STATISTICS => return Err(EINVAL),
            4 => {
                let bytes = self.counts.statistics();
                machine.write(first, &bytes).map_err(|_| EFAULT)?;
            }
            7 => self.packet_filter = first as u32,
            8 => self.counts.hangs += 1,
            9 => arguments[0] = address_word(self.mac()),
            12 => {
                let mac = address_of(first);
                if self.is_virtual() {
                    self.complain("a virtual function sets an address");
                    return Err(3);
                }
                self.addresses.push(mac);
            }
            13 => self.addresses.retain(|&mac| address_word(mac) != first),
            14 | 15 => {}
            16 if first & 1 << 22 != 0 => return Err(ENOTSUPPORTED),
            16 => self.nic_config = first as u32,
            19 | 39 => self.soft_reset(now),
            20 | 40 => arguments[0] = self.is_in_progress(now).into(),
            21 => self.set_notify(first, arguments, machine)?,
            23 => {
                self.soft_reset(now);
                self.stage = Stage::Open;
            }
            24 => arguments[0] = self.is_in_progress(now).into(),
            25 => {
                self.soft_reset(now);
                self.stage = Stage::Closed;
            }
            28 => {
                self.enabled = true;
                self.notify(machine);
            }
            29 => {
                self.enabled = false;
                self.notify(machine);
            }
            34 => self.stage = Stage::Open,
            35 => self.stage = Stage::Initialised,
            36 => self.capability(first as u32, arguments)?,
            41 => arguments[0] = u64::from(std::mem::replace(&mut self.rewrite_mode, first as u32)),
            50 => arguments[..3].copy_from_slice(&[2, 3, 98_302]),
            57 => self.initialise_ring(first, second)?,
            58 => {
                let mut bytes = vec![0; second.min(101) as usize];
                machine.read(first, &mut bytes).map_err(|_| EFAULT)?;
                arguments[0] = self.add_filter(&bytes)?.into();
            }
            59 => self.delete_filter(first)?,
            // For all receive queues; sizes of 16, 32 and 64 bytes. Only the first is offered.
            90 if first != u64::MAX || second != 0 => return Err(EINVAL),
            90 => self.entry_size = 16,
            _ => return Err(UNKNOWN),
        }
        Ok(())
    }

    /// Whether a command is allowed in the current stage.
    fn is_allowed(&self, number: u32, now: Nanoseconds) -> bool {
        match number {
            1 | 23 | 24 | 36 | 57 => true,
            20 | 40 => self.stage >= Stage::Open,
            _ if self.is_in_progress(now) => false,
            2 | 9 | 25 | 34 | 35 | 41 | 50 | 90 => self.stage >= Stage::Open,
            _ => self.stage == Stage::Initialised,
        }
    }

    fn is_in_progress(&self, now: Nanoseconds) -> bool {
        self.settled > now || self.has(Fault::StaysInProgress)
    }

    /// Stops the queues, and clears filters, addresses and settings. The command ring stays.
    fn soft_reset(&mut self, now: Nanoseconds) {
        self.counts.resets += 1;
        self.clear_queues();
        self.entry_size = 16;
        self.settled = now + SETTLING;
    }

    fn capability(&self, word: u32, arguments: &mut [u64; ARGUMENTS]) -> Result<(), u32> {
        if !KNOWN.contains(&word) {
            return Err(UNKNOWN);
        }
        arguments[0] = 0;
        if word == NIC_CFG {
            // The second result has the features: hashes of IPv4 and IPv6, and of TCP over them; VLAN stripping.
            (arguments[0], arguments[1]) = (1, 0x1e << 8 | 1 << 24);
        }
        if word == ENTRY_SIZE_SET {
            // The second result has the sizes: bit 0 is 16 bytes.
            arguments[1] = 1;
        }
        Ok(())
    }

    fn initialise_ring(&mut self, results: u64, entries: u64) -> Result<(), u32> {
        if !results.is_multiple_of(512) || results == 0 || !(1..=4096).contains(&entries) {
            self.complain(format!("{entries} results at {results:#x}"));
            return Err(EINVAL);
        }
        let mailbox = &mut self.mailbox;
        (mailbox.results, mailbox.entries) = (results, entries as u32);
        (mailbox.next, mailbox.colour) = (0, 1);
        Ok(())
    }

    fn specification(&mut self, offset: u64, size: u64) -> Result<u64, u32> {
        let value = match (offset, size) {
            // Checksum offload and scatter/gather.
            (0, 4) => 8,
            (4, 4) => self.settings.work_entries.into(),
            (8, 4) => self.settings.receive_entries.into(),
            (12, 2) => self.settings.mtu.into(),
            (16 | 17, 1) | (36, 4) | (40 | 42 | 44, 2) => 0,
            // Further queues, and sizes of rings, which Linux 7.3 asks for (`enic_get_vnic_config`). 0: not reported.
            (78, 2) | (112 | 116 | 120, 4) => 0,
            _ => {
                self.complain(format!("{size} bytes at {offset} of the device specification"));
                return Err(EINVAL);
            }
        };
        Ok(value)
    }

    fn firmware_info(
        &mut self,
        address: u64,
        arguments: &mut [u64; ARGUMENTS],
        machine: &mut dyn Machine,
    ) -> Result<(), u32> {
        let mut bytes = [0; FIRMWARE];
        for (at, text) in [(0, "1.0(model)"), (32, "0"), (64, "A0"), (96, "model-1")] {
            bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
        }
        let len = match arguments[1] {
            0 => 128,
            len => (len as usize).min(FIRMWARE),
        };
        machine.write(address, &bytes[..len]).map_err(|_| EFAULT)?;
        arguments[1] = if arguments[1] == 0 { 0 } else { len as u64 };
        Ok(())
    }

    fn set_notify(
        &mut self,
        address: u64,
        arguments: &mut [u64; ARGUMENTS],
        machine: &mut dyn Machine,
    ) -> Result<(), u32> {
        let (len, interrupt) = (arguments[1] & 0xffff_ffff, arguments[1] >> 32 & 0xffff);
        let known = interrupt == 0xffff || interrupt < self.lines.len() as u64;
        if len != NOTIFY || !known || !address.is_multiple_of(8) {
            self.complain(format!("{len} bytes for notices, interrupt {interrupt}"));
            return Err(EINVAL);
        }
        self.notify_area = (address != 0).then_some((address, interrupt as u16));
        arguments[1] = NOTIFY;
        self.notify(machine);
        Ok(())
    }

    /// Writes the notify area, and raises its interrupt.
    pub(super) fn notify(&mut self, machine: &mut dyn Machine) {
        let Some((address, interrupt)) = self.notify_area else { return };
        let link = self.link && self.enabled;
        self.reported_link = Some(self.link);
        let fatal = u32::from(self.has(Fault::Fatal));
        let speed = 10_000;
        let mtu = self.settings.mtu.into();
        let words = [u32::from(link), speed, mtu, 0, 0, fatal, 0, 0, 0];
        let sum = words.iter().fold(0u32, |sum, word| sum.wrapping_add(*word));
        let sum = if self.has(Fault::NotifySum) { !sum } else { sum };
        let bytes: Vec<u8> =
            [sum].iter().chain(&words).flat_map(|word| word.to_le_bytes()).collect();
        if machine.write(address, &bytes).is_err() {
            self.complain("notices cannot be written");
        }
        if interrupt != 0xffff {
            self.event(interrupt.into(), machine);
        }
    }
}

fn address_word([a, b, c, d, e, f]: [u8; 6]) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

fn address_of(word: u64) -> [u8; 6] {
    let bytes = word.to_le_bytes();
    std::array::from_fn(|n| bytes[n])
}
