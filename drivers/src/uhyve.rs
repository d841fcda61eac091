//! uhyve's own interface, version 1 (crate uhyve-interface, `v1`): output, files of the host, the end. A guest writes the
//! address of parameters to a port; uhyve has done what is asked when the write returns. There is no input.
//!
//! Parameters and data lie in memory that was set aside for them. uhyve ends the whole machine when an address among
//! them is not of its memory, so that nothing else is ever handed over.

use crate::hal::Window;
use alloc::vec::Vec;
use core::fmt;

/// Ports, with what lies at the address that is written there.
pub mod port {
    /// `name: u64, flags: i32, mode: i32, ret: i32`; the name ends with a zero. The result is a number for the open
    /// file, or a negative error.
    pub const FILE_OPEN: u16 = 0x440;
    /// `fd: i32, ret: i32`.
    pub const FILE_CLOSE: u16 = 0x480;
    /// `fd: i32, buf: u64, len: u64, ret: i64`. The buffer is named by its virtual address; the result is how many bytes
    /// were read, 0 at the end, or a negative error.
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

/// Where the data begins in the memory; parameters are before it.
const DATA: usize = 64;

/// What makes the calls.
pub trait Hypercalls {
    /// Writes the address of parameters to a port. Whoever implements it hands over addresses of memory that it was
    /// made for.
    fn call(&mut self, port: u16, parameters: u32);
}

/// Why a file was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileError {
    /// The file is larger than [`MOST_BYTES`].
    TooLarge,
    /// uhyve cannot do this with the file that it mapped; Hermit's number of the error.
    Host(&'static str, i64),
    /// uhyve says that it read more than it was asked for.
    Nonsense,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::TooLarge => {
                write!(
                    f,
                    "the file has more than the {MOST_BYTES} bytes that are read: map a shorter one"
                )
            }
            FileError::Host(what, error) => write!(
                f,
                "uhyve cannot {what} the file that is mapped there (error {error}): see whether it is one that uhyve's user \
                 may read (--file-mapping)"
            ),
            FileError::Nonsense => {
                write!(f, "uhyve says that it read more than was asked for: uhyve is to blame")
            }
        }
    }
}

impl core::error::Error for FileError {}

/// The interface, through some memory of its own.
#[derive(Clone, Copy, Debug)]
pub struct Uhyve {
    memory: Window,
    /// Its address.
    address: u32,
}

impl Uhyve {
    /// Calls with parameters and data in `memory`, which nobody else uses; its bus address is its virtual address. None
    /// if it is too small, or beyond the 4 GiB that can be named.
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

    /// Puts bytes to where parameters (at 0) or data are. They fit: all callers see to that.
    fn put(&self, at: usize, bytes: &[u8]) {
        let _ = self.memory.write(at, bytes);
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        let _ = self.memory.read(at, &mut bytes);
        bytes
    }

    /// Prints as much as there is room for in one call; how many bytes. Whoever reads uhyve's output may keep it, and
    /// the machine, waiting.
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

    /// Ends the machine: uhyve exits with this code.
    pub fn exit(&self, calls: &mut dyn Hypercalls, code: i32) {
        self.put(0, &code.to_le_bytes());
        calls.call(port::EXIT, self.address);
    }

    /// The contents of the file that the host has mapped to `name`, or None if it has mapped none.
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
        // Read only, no mode, and an error for who does not answer.
        let parameters = [self.data().to_le_bytes(), [0; 8]].concat();
        self.put(DATA, &[name.as_bytes(), &[0]].concat());
        self.put(0, &parameters);
        self.put(16, &(-1i32).to_le_bytes());
        calls.call(port::FILE_OPEN, self.address);
        match i64::from(i32::from_le_bytes(self.get(16))) {
            // Those below are not of files.
            fd @ 3.. => Ok(Some(fd as i32)),
            error if -error == ENOENT => Ok(None),
            error => Err(FileError::Host("open", error.wrapping_neg())),
        }
    }

    /// Reads some more; how many bytes.
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
