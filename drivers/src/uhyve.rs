//! uhyve's hypercalls, version 1 (crate uhyve-interface, `v1`): output, files of the host, exit. A guest writes the
//! address of parameters to a port; the call is complete when the write returns. There is no input.
//!
//! Parameters and data lie in memory reserved for them, and no other addresses are passed: uhyve ends the whole machine
//! if an address is outside of the guest's memory.

use crate::hal::Window;
use alloc::vec::Vec;
use core::fmt;

/// Ports, and the layout of the parameters whose address is written there.
pub mod port {
    /// `name: u64, flags: i32, mode: i32, ret: i32`; the name ends with a zero. The result is a number for the open
    /// file, or a negative error.
    pub const FILE_OPEN: u16 = 0x440;
    /// `fd: i32, ret: i32`.
    pub const FILE_CLOSE: u16 = 0x480;
    /// `fd: i32, buf: u64, len: u64, ret: i64`. `buf` is a virtual address; the result is the number of bytes read, 0
    /// at the end of the file, or a negative error.
    pub const FILE_READ: u16 = 0x500;
    /// `code: i32`.
    pub const EXIT: u16 = 0x540;
    /// `buf: u64, len: u64`.
    pub const SERIAL_WRITE: u16 = 0x880;
}

/// No such file (of Hermit's error numbers).
pub const ENOENT: i64 = 2;
/// Largest file that is read, in bytes.
pub const MOST_BYTES: usize = 64 << 10;

/// Offset of the data in the memory; parameters are before it.
const DATA: usize = 64;

/// Access to uhyve's ports.
pub trait Hypercalls {
    /// Writes the address of parameters to a port. Implementations pass only addresses of the memory that they were
    /// made for.
    fn call(&mut self, port: u16, parameters: u32);
}

/// Why a file was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileError {
    /// The file is larger than [`MOST_BYTES`].
    TooLarge,
    /// uhyve failed to open or read the mapped file: the operation, and Hermit's number of the error.
    Host(&'static str, i64),
    /// uhyve returned more bytes than were requested.
    Nonsense,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::TooLarge => {
                write!(f, "the file has more than {MOST_BYTES} bytes: map a shorter one")
            }
            FileError::Host(what, error) => write!(
                f,
                "uhyve cannot {what} the mapped file (error {error}): check that uhyve's user may read it \
                 (--file-mapping)"
            ),
            FileError::Nonsense => {
                write!(f, "uhyve returned more bytes than were requested: uhyve is to blame")
            }
        }
    }
}

impl core::error::Error for FileError {}

/// The hypercalls, with memory for parameters and data.
#[derive(Clone, Copy, Debug)]
pub struct Uhyve {
    memory: Window,
    /// Bus address of the memory.
    address: u32,
}

impl Uhyve {
    /// Uses `memory` exclusively for parameters and data; its bus address is its virtual address. None if it is too
    /// small, or not below 4 GiB, because ports take addresses of 32 bits.
    pub fn new(memory: Window) -> Option<Self> {
        let address = u32::try_from(memory.bus_address()).ok()?;
        address.checked_add(u32::try_from(memory.len()).ok()?)?;
        (memory.len() > DATA).then_some(Uhyve { memory, address })
    }

    fn room(&self) -> usize {
        self.memory.len() - DATA
    }

    fn data(&self) -> u64 {
        self.memory.bus_address() + DATA as u64
    }

    /// Writes bytes to the parameters (at 0) or the data. All callers ensure that they fit.
    fn put(&self, at: usize, bytes: &[u8]) {
        let _ = self.memory.write(at, bytes);
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        let _ = self.memory.read(at, &mut bytes);
        bytes
    }

    /// Prints as many bytes as fit into one call, and returns how many. A slow reader of uhyve's output blocks uhyve,
    /// and with it the machine.
    pub fn print(&self, calls: &mut dyn Hypercalls, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.room());
        if len > 0 {
            self.put(DATA, &bytes[..len]);
            self.put(0, &self.data().to_le_bytes());
            self.put(8, &(len as u64).to_le_bytes());
            calls.call(port::SERIAL_WRITE, self.address);
        }
        len
    }

    /// Ends the machine: uhyve exits with `code`.
    pub fn exit(&self, calls: &mut dyn Hypercalls, code: i32) {
        self.put(0, &code.to_le_bytes());
        calls.call(port::EXIT, self.address);
    }

    /// The contents of the file that the host has mapped to `name`, or None if there is no such file.
    pub fn read_file(
        &self,
        calls: &mut dyn Hypercalls,
        name: &str,
    ) -> Result<Option<Vec<u8>>, FileError> {
        let Some(fd) = self.open(calls, name)? else { return Ok(None) };
        let mut contents = Vec::new();
        let end = loop {
            match self.read(calls, fd, &mut contents) {
                Ok(0) => break Ok(Some(contents)),
                Ok(_) if contents.len() > MOST_BYTES => break Err(FileError::TooLarge),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        self.put(0, &fd.to_le_bytes());
        calls.call(port::FILE_CLOSE, self.address);
        end
    }

    fn open(&self, calls: &mut dyn Hypercalls, name: &str) -> Result<Option<i32>, FileError> {
        // Read only, no mode. The result is preset to an error in case that uhyve writes none.
        let parameters = [self.data().to_le_bytes(), [0; 8]].concat();
        self.put(DATA, &[name.as_bytes(), &[0]].concat());
        self.put(0, &parameters);
        self.put(16, &(-1i32).to_le_bytes());
        calls.call(port::FILE_OPEN, self.address);
        match i64::from(i32::from_le_bytes(self.get(16))) {
            // Descriptors 0 to 2 are standard streams.
            fd @ 3.. => Ok(Some(fd as i32)),
            error if -error == ENOENT => Ok(None),
            error => Err(FileError::Host("open", error.wrapping_neg())),
        }
    }

    /// Appends the next bytes of the file to `contents`, and returns how many.
    fn read(
        &self,
        calls: &mut dyn Hypercalls,
        fd: i32,
        contents: &mut Vec<u8>,
    ) -> Result<usize, FileError> {
        self.put(0, &fd.to_le_bytes());
        self.put(4, &self.data().to_le_bytes());
        self.put(12, &(self.room() as u64).to_le_bytes());
        self.put(20, &(-1i64).to_le_bytes());
        calls.call(port::FILE_READ, self.address);
        let read = i64::from_le_bytes(self.get(20));
        if read < 0 {
            return Err(FileError::Host("read", read.wrapping_neg()));
        }
        let read = usize::try_from(read).ok().filter(|&read| read <= self.room());
        let read = read.ok_or(FileError::Nonsense)?;
        let before = contents.len();
        contents.resize(before + read, 0);
        let _ = self.memory.read(DATA, &mut contents[before..]);
        Ok(read)
    }
}
