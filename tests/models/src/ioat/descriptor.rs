//! Descriptors: parses and executes them.

use super::Fault;
use crate::Machine;

/// Bytes of a descriptor.
const LENGTH: usize = 64;

/// Bits of CHANERR.
pub const NEXT_ADDRESS: u32 = 0x4;
pub const READ_DATA: u32 = 0x100;
pub const WRITE_DATA: u32 = 0x200;
pub const CONTROL: u32 = 0x400;
pub const LENGTH_ERROR: u32 = 0x800;
pub const COMPLETION_ADDRESS: u32 = 0x1000;
pub const XOR_INVALID: u32 = 0x1_0000;

/// Bits of the control field.
const INTERRUPT: u32 = 1 << 0;
const WRITE_COMPLETION: u32 = 1 << 3;
const FENCE: u32 = 1 << 4;
const NULL: u32 = 1 << 5;

const COPY: u8 = 0x00;
const XOR: u8 = 0x87;
const XOR_VALIDATE: u8 = 0x88;

/// Kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Copy,
    Null,
    Xor,
}

/// An executed descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub kind: Kind,
    /// Slots of the ring that it occupied.
    pub slots: u16,
    /// Address of the next descriptor.
    pub next: u64,
    pub bytes: u64,
    pub interrupt: bool,
    pub completion: bool,
    /// Later descriptors wait for it.
    pub fence: bool,
}

/// A descriptor as fields of 8 bytes.
struct Fields([u8; LENGTH]);

impl Fields {
    fn load(machine: &mut dyn Machine, address: u64) -> Result<Self, u32> {
        let mut bytes = [0; LENGTH];
        machine.read(address, &mut bytes).map_err(|_| NEXT_ADDRESS)?;
        Ok(Fields(bytes))
    }

    fn at(&self, index: usize) -> u64 {
        let bytes = self.0[8 * index..8 * index + 8].try_into();
        u64::from_le_bytes(bytes.expect("eight bytes"))
    }
}

/// Executes the descriptor at `address`. An error has bits of CHANERR.
pub fn execute(machine: &mut dyn Machine, address: u64, fault: Option<Fault>) -> Result<Done, u32> {
    let fields = Fields::load(machine, address)?;
    let size = fields.at(0) & 0xffff_ffff;
    let control = (fields.at(0) >> 32) as u32;
    let done = |kind, slots, next, bytes| Done {
        kind,
        slots,
        next,
        bytes,
        interrupt: control & INTERRUPT != 0,
        completion: control & WRITE_COMPLETION != 0,
        fence: control & FENCE != 0,
    };
    match (control >> 24) as u8 {
        COPY if size == 0 => Err(LENGTH_ERROR),
        COPY if control & NULL != 0 => Ok(done(Kind::Null, 1, fields.at(3), 0)),
        COPY => {
            let mut data = load(machine, fields.at(1), size)?;
            if fault == Some(Fault::CorruptCopy)
                && let Some(last) = data.last_mut()
            {
                *last ^= 0x55;
            }
            machine.write(fields.at(2), &data).map_err(|_| WRITE_DATA)?;
            Ok(done(Kind::Copy, 1, fields.at(3), size))
        }
        operation @ (XOR | XOR_VALIDATE) => {
            let count = (control >> 5 & 7) as usize + 2;
            let mut sources =
                vec![fields.at(1), fields.at(4), fields.at(5), fields.at(6), fields.at(7)];
            let (mut slots, mut next) = (1, fields.at(3));
            if count > sources.len() {
                // An extended descriptor has the other sources.
                let more = Fields::load(machine, next)?;
                sources.extend([more.at(0), more.at(1), more.at(2)]);
                (slots, next) = (2, more.at(3));
            }
            let sum = xor(machine, sources.get(..count).ok_or(CONTROL)?, size)?;
            if operation == XOR {
                machine.write(fields.at(2), &sum).map_err(|_| WRITE_DATA)?;
            } else if load(machine, fields.at(2), size)? != sum {
                return Err(XOR_INVALID);
            }
            Ok(done(Kind::Xor, slots, next, size * count as u64))
        }
        _ => Err(CONTROL),
    }
}

fn load(machine: &mut dyn Machine, address: u64, size: u64) -> Result<Vec<u8>, u32> {
    if size > 1 << super::TRANSFER_CAP {
        return Err(LENGTH_ERROR);
    }
    let mut data = vec![0; size as usize];
    machine.read(address, &mut data).map_err(|_| READ_DATA)?;
    Ok(data)
}

fn xor(machine: &mut dyn Machine, sources: &[u64], size: u64) -> Result<Vec<u8>, u32> {
    let mut sum = load(machine, sources[0], size)?;
    for &source in &sources[1..] {
        let data = load(machine, source, size)?;
        sum.iter_mut().zip(data).for_each(|(byte, other)| *byte ^= other);
    }
    Ok(sum)
}
