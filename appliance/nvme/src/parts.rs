//! Parts of a command of an I/O queue: checks of its namespace and its blocks, and the next request to its volume.

use crate::command::{Command, io};
use crate::queue::COMPARED;
use crate::status::Status;
use crate::subsystem::{AnaState, Backing, Namespace, Subsystem};
use alloc::sync::Arc;
use drivers::hal::{Features, Window};
use storage::volume::reservation::{Access, HostId};
use storage::volume::{Hold, Operation, VolumeId, Volumes};

/// Namespace identifier that stands for all namespaces.
const ALL: u32 = u32::MAX;
/// Force Unit Access, in the high half of command dword 12.
const FUA: u16 = 1 << 14;
/// Dataset management: deallocate.
const DEALLOCATE: u32 = 1 << 2;
/// Largest Verify, as a power of two of 4096 bytes: 1 MiB.
pub const VERIFY_LIMIT: u8 = 8;

/// Progress of a command: what of its request matters for the next part.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub data: Window,
    pub other: Option<Window>,
    pub length: u32,
    pub done: u64,
    pub index: u32,
    /// The hold of the volume that has the parts before this one, by its address.
    pub bound: Option<usize>,
}

/// What the parts of a command depend on, besides its namespace.
pub struct Around<'a> {
    pub host: HostId,
    pub volumes: &'a Volumes,
    pub zeroes: Window,
}

/// The next part of a command.
pub struct Part {
    pub volume: VolumeId,
    pub hold: Arc<Hold>,
    pub operation: Operation,
    pub sector: u64,
    pub sectors: u64,
    pub data: Window,
    /// The volume has all of the command's data in this part.
    pub is_whole: bool,
}

pub enum Next {
    Part(Part),
    /// The command is complete. Its data are that many bytes.
    Done(usize),
}

/// The next part of a command. `progress` passes on to the next range where one is done.
pub fn next_part(
    subsystem: &Subsystem,
    command: &Command,
    progress: &mut Progress,
    around: &Around<'_>,
) -> Result<Next, Status> {
    match command.opcode() {
        io::FLUSH if command.nsid() == ALL => flush_all(subsystem, progress, around),
        io::FLUSH => {
            let (_, backing) = reach(subsystem, command, progress, around)?;
            Ok(match progress.done {
                0 => Next::Part(whole(backing, Operation::Flush)),
                _ => Next::Done(0),
            })
        }
        io::READ | io::WRITE | io::COMPARE => transfer(subsystem, command, progress, around),
        io::VERIFY => verify(subsystem, command, progress, around),
        io::WRITE_ZEROES => write_zeroes(subsystem, command, progress, around),
        io::DATASET_MANAGEMENT => deallocate(subsystem, command, progress, around),
        _ => Err(Status::INVALID_OPCODE),
    }
}

/// The address of a hold, which is that of its volume in a namespace.
pub fn address_of(hold: &Arc<Hold>) -> usize {
    Arc::as_ptr(hold).addr()
}

/// The namespace with an identifier, if it can be reached.
pub fn reachable(subsystem: &Subsystem, nsid: u32) -> Result<(&Namespace, &Backing), Status> {
    let namespace = subsystem.namespace(nsid).ok_or(Status::INVALID_NAMESPACE)?;
    match subsystem.group(namespace.config.ana_group) {
        AnaState::Optimized | AnaState::NonOptimized => {}
        AnaState::Inaccessible => return Err(Status::ANA_INACCESSIBLE),
        AnaState::PersistentLoss => return Err(Status::ANA_PERSISTENT_LOSS),
        AnaState::Change => return Err(Status::ANA_TRANSITION),
    }
    let backing = namespace.backing.as_ref().map_err(|_| Status::NOT_READY)?;
    Ok((namespace, backing))
}

/// The namespace of a command, if it can be reached, is still the one that has the command's first parts, and no
/// reservation excludes the command.
fn reach<'a>(
    subsystem: &'a Subsystem,
    command: &Command,
    progress: &Progress,
    around: &Around<'_>,
) -> Result<(&'a Namespace, &'a Backing), Status> {
    let (namespace, backing) = reachable(subsystem, command.nsid())?;
    if progress.bound.is_some_and(|bound| bound != address_of(&backing.hold)) {
        return Err(Status::NOT_READY);
    }
    check_reservation(backing, command.opcode(), around)?;
    Ok((namespace, backing))
}

/// Whether a reservation excludes a command (Base Specification, section 8.19, the table of commands in the presence of
/// a reservation).
fn check_reservation(backing: &Backing, opcode: u8, around: &Around<'_>) -> Result<(), Status> {
    if !backing.hold.is_reserved() {
        return Ok(());
    }
    let access = match opcode {
        io::READ | io::COMPARE | io::VERIFY => Access::Read,
        _ => Access::Write,
    };
    match around.volumes.reservations(backing.volume).permits(&around.host, access) {
        true => Ok(()),
        false => Err(Status::RESERVATION_CONFLICT),
    }
}

fn whole(backing: &Backing, operation: Operation) -> Part {
    Part {
        volume: backing.volume,
        hold: backing.hold.clone(),
        operation,
        sector: 0,
        // A flush has no sectors; one is its progress.
        sectors: 1,
        data: Window::empty(),
        is_whole: true,
    }
}

fn flush_all(
    subsystem: &Subsystem,
    progress: &mut Progress,
    around: &Around<'_>,
) -> Result<Next, Status> {
    if (progress.index, progress.done) == (0, 0) {
        // Nothing is flushed if a reservation of any namespace excludes it.
        let mut all = subsystem.active();
        all.try_for_each(|(_, backing)| check_reservation(backing, io::FLUSH, around))?;
    }
    // The index is the least identifier that is left: places in the list change with namespaces.
    if progress.done > 0 {
        (progress.index, progress.done) = (progress.index + 1, 0);
    }
    let left = subsystem.active().find(|(one, _)| one.config.nsid >= progress.index);
    let Some((namespace, backing)) = left else { return Ok(Next::Done(0)) };
    progress.index = namespace.config.nsid;
    Ok(Next::Part(whole(backing, Operation::Flush)))
}

/// The blocks of a command as sectors: first, and number.
fn sectors(backing: &Backing, command: &Command) -> Result<(u64, u64), Status> {
    let (first, count) = (command.u64(40), u64::from(command.u16(48)) + 1);
    to_sectors(backing, first, count)
}

fn to_sectors(backing: &Backing, first: u64, count: u64) -> Result<(u64, u64), Status> {
    let end = first.checked_add(count).filter(|end| *end <= backing.blocks());
    end.ok_or(Status::LBA_RANGE)?;
    // The blocks are inside of the volume, whose sectors are counted in 64 bits.
    let per_block = u64::from(backing.block / 512);
    Ok((first * per_block, count * per_block))
}

fn transfer(
    subsystem: &Subsystem,
    command: &Command,
    progress: &Progress,
    around: &Around<'_>,
) -> Result<Next, Status> {
    let (namespace, backing) = reach(subsystem, command, progress, around)?;
    let writes = command.opcode() == io::WRITE;
    if writes && namespace.is_read_only() {
        return Err(Status::WRITE_PROTECTED);
    }
    let (first, count) = sectors(backing, command)?;
    let bytes = count * 512;
    if u64::from(progress.length) < bytes {
        return Err(Status::SGL_LENGTH);
    }
    let left = count - progress.done;
    if left == 0 {
        return Ok(Next::Done(bytes as usize));
    }
    let per_block = u64::from(backing.block / 512);
    let most = u64::from(backing.geometry.max_transfer / 512) / per_block * per_block;
    let mut part = left.min(most.max(per_block));
    let compares = command.opcode() == io::COMPARE;
    if compares {
        part = part.min(COMPARED as u64 / 512);
    }
    let part_bytes = part as usize * 512;
    let data = match progress.other {
        other if compares => {
            other.and_then(|other| other.slice(0, part_bytes)).ok_or(Status::INTERNAL)?
        }
        _ if progress.data.is_empty() => Window::empty(),
        _ => {
            let start = progress.done as usize * 512;
            progress.data.slice(start, part_bytes).ok_or(Status::INTERNAL)?
        }
    };
    let durable = command.u16(50) & FUA != 0;
    Ok(Next::Part(Part {
        volume: backing.volume,
        hold: backing.hold.clone(),
        operation: if writes { Operation::Write { durable } } else { Operation::Read },
        sector: first + progress.done,
        sectors: part,
        data,
        is_whole: part == count,
    }))
}

/// Reads without a transfer: into memory of the queue, piece by piece, or not at all from a volume that lends its own.
fn verify(
    subsystem: &Subsystem,
    command: &Command,
    progress: &Progress,
    around: &Around<'_>,
) -> Result<Next, Status> {
    let (_, backing) = reach(subsystem, command, progress, around)?;
    let (first, count) = sectors(backing, command)?;
    if count * 512 > 4096u64 << VERIFY_LIMIT {
        return Err(Status::INVALID_FIELD);
    }
    let left = count - progress.done;
    if left == 0 {
        return Ok(Next::Done(0));
    }
    let per_block = u64::from(backing.block / 512);
    let most = u64::from(backing.geometry.max_transfer).min(COMPARED as u64) / 512;
    let part = left.min((most / per_block * per_block).max(per_block));
    let data = match progress.data.is_empty() {
        true => Window::empty(),
        false => progress.data.slice(0, part as usize * 512).ok_or(Status::INTERNAL)?,
    };
    Ok(Next::Part(Part {
        volume: backing.volume,
        hold: backing.hold.clone(),
        operation: Operation::Read,
        sector: first + progress.done,
        sectors: part,
        data,
        is_whole: false,
    }))
}

fn write_zeroes(
    subsystem: &Subsystem,
    command: &Command,
    progress: &Progress,
    around: &Around<'_>,
) -> Result<Next, Status> {
    let zeroes = around.zeroes;
    let (namespace, backing) = reach(subsystem, command, progress, around)?;
    if namespace.is_read_only() {
        return Err(Status::WRITE_PROTECTED);
    }
    let (first, count) = sectors(backing, command)?;
    let left = count - progress.done;
    if left == 0 {
        return Ok(Next::Done(0));
    }
    let per_block = u64::from(backing.block / 512);
    let durable = command.u16(50) & FUA != 0;
    let of_volume = u64::from(backing.geometry.max_write_zeroes_sectors) / per_block * per_block;
    // A zeroing without data cannot be durable by itself.
    let native = backing.has(Features::WRITE_ZEROES) && of_volume > 0 && !durable;
    let (operation, part, data) = if native {
        let part = left.min(of_volume);
        (Operation::WriteZeroes { sectors: part as u32 }, part, Window::empty())
    } else {
        let most = (zeroes.len() as u64).min(u64::from(backing.geometry.max_transfer)) / 512;
        let part = left.min((most / per_block * per_block).max(per_block));
        let data = zeroes.slice(0, part as usize * 512).ok_or(Status::INTERNAL)?;
        (Operation::Write { durable }, part, data)
    };
    Ok(Next::Part(Part {
        volume: backing.volume,
        hold: backing.hold.clone(),
        operation,
        sector: first + progress.done,
        sectors: part,
        data,
        is_whole: false,
    }))
}

fn deallocate(
    subsystem: &Subsystem,
    command: &Command,
    progress: &mut Progress,
    around: &Around<'_>,
) -> Result<Next, Status> {
    let (namespace, backing) = reach(subsystem, command, progress, around)?;
    if namespace.is_read_only() {
        return Err(Status::WRITE_PROTECTED);
    }
    let ranges = command.u32(40) & 0xff;
    let range = |index: u32| -> Result<(u64, u64), Status> {
        let at = index as usize * 16;
        let read4: [u8; 4] = progress.data.read_array(at + 4).map_err(|_| Status::SGL_LENGTH)?;
        let read8: [u8; 8] = progress.data.read_array(at + 8).map_err(|_| Status::SGL_LENGTH)?;
        let (count, first) = (u32::from_le_bytes(read4), u64::from_le_bytes(read8));
        to_sectors(backing, first, count.into())
    };
    if (progress.index, progress.done) == (0, 0) {
        // Nothing is deallocated if any range is invalid.
        (0..=ranges).try_for_each(|index| range(index).map(|_| ()))?;
    }
    let acts = command.u32(44) & DEALLOCATE != 0 && backing.has(Features::DISCARD);
    let per_block = u64::from(backing.block / 512);
    let most = u64::from(backing.geometry.max_discard_sectors) / per_block * per_block;
    if !acts || most == 0 {
        return Ok(Next::Done(0));
    }
    let (mut index, mut done) = (progress.index, progress.done);
    while index <= ranges {
        let (first, count) = range(index)?;
        if done >= count {
            (index, done) = (index + 1, 0);
            continue;
        }
        let part = (count - done).min(most);
        (progress.index, progress.done) = (index, done);
        return Ok(Next::Part(Part {
            volume: backing.volume,
            hold: backing.hold.clone(),
            operation: Operation::Discard { sectors: part as u32 },
            sector: first + done,
            sectors: part,
            data: Window::empty(),
            is_whole: false,
        }));
    }
    Ok(Next::Done(0))
}
