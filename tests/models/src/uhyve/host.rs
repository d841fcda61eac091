//! Hypercalls of interface version 1: output, mapped files, exit.

use super::{End, World};
use crate::Machine;
use std::collections::BTreeMap;

const FILE_WRITE: u16 = 0x400;
const FILE_OPEN: u16 = 0x440;
const FILE_CLOSE: u16 = 0x480;
const FILE_READ: u16 = 0x500;
const EXIT: u16 = 0x540;
const FILE_LSEEK: u16 = 0x580;
const CMDSIZE: u16 = 0x740;
const CMDVAL: u16 = 0x780;
const UART: u16 = 0x800;
const FILE_UNLINK: u16 = 0x840;
const SERIAL_WRITE: u16 = 0x880;

// Hermit's errors.
const EPERM: i64 = 1;
const ENOENT: i64 = 2;
const EBADF: i64 = 9;
const EISDIR: i64 = 21;

/// Whether uhyve treats the port as a hypercall of version 1.
pub fn is_hypercall(port: u16) -> bool {
    const ALL: [u16; 11] = [
        FILE_WRITE,
        FILE_OPEN,
        FILE_CLOSE,
        FILE_READ,
        EXIT,
        FILE_LSEEK,
        CMDSIZE,
        CMDVAL,
        UART,
        FILE_UNLINK,
        SERIAL_WRITE,
    ];
    ALL.contains(&port)
}

/// Whether uhyve treats the port as a hypercall of version 2, which it checks first.
pub fn is_version_2(port: u16) -> bool {
    matches!(port, 0x1010 | 0x1020 | 0x1030 | 0x1040 | 0x1050 | 0x1200 | 0x1210)
        || (0x1100..=0x1190).contains(&port) && port.is_multiple_of(0x10)
}

/// The host file behind a guest name.
#[derive(Clone, Debug)]
pub enum Mapped {
    /// A file with this content.
    File(Vec<u8>),
    /// A directory.
    Directory,
    /// A file that uhyve's user has no permission to read.
    Forbidden,
    /// A file whose reads fail with this error number.
    Broken(i64),
}

/// The host's side of hypercalls.
#[derive(Debug, Default)]
pub struct Host {
    /// Mapped files by guest name.
    pub files: BTreeMap<String, Mapped>,
    /// The guest's output.
    pub output: Vec<u8>,
    /// Open files with their read positions. Numbers are not reused.
    open: BTreeMap<i32, (Mapped, usize)>,
    opened: i32,
    /// Number of hypercalls.
    pub calls: u64,
    /// Injected fault: a read reports this many bytes more than it has read.
    pub lies: i64,
}

impl Host {
    /// Number of open files.
    pub fn open_files(&self) -> usize {
        self.open.len()
    }

    pub(super) fn call(
        &mut self,
        port: u16,
        data: u32,
        memory: &mut dyn Machine,
        world: &mut World,
    ) {
        self.calls += 1;
        let address = u64::from(data);
        let mut parameters = Parameters { memory, address, bad: false };
        match port {
            UART => self.output.push(data as u8),
            SERIAL_WRITE => {
                let (buffer, len) = (parameters.u64(0), parameters.u64(8));
                self.print(&mut parameters, buffer, len);
            }
            FILE_WRITE => {
                let (fd, buffer, len) = (parameters.i32(0), parameters.u64(4), parameters.u64(12));
                match fd {
                    1 | 2 => self.print(&mut parameters, buffer, len),
                    // uhyve unwraps an error.
                    _ => world.panic(format!("a write to file {fd}")),
                }
            }
            FILE_OPEN => {
                let (name, flags) = (parameters.u64(0), parameters.i32(8));
                let name = parameters.string(name);
                let result = self.open(&name, flags, world);
                parameters.put(16, &(result as i32).to_le_bytes());
            }
            FILE_READ => {
                let (fd, buffer, len) = (parameters.i32(0), parameters.u64(4), parameters.u64(12));
                let result = self.read(&mut parameters, fd, buffer, len, world);
                parameters.put(20, &result.to_le_bytes());
            }
            FILE_CLOSE => {
                let fd = parameters.i32(0);
                let result = if self.open.remove(&fd).is_some() || fd < 3 { 0 } else { -EBADF };
                parameters.put(4, &(result as i32).to_le_bytes());
            }
            EXIT => world.end = Some(End::Exit(parameters.i32(0))),
            _ => world.panic(format!("hypercall {port:#x}, which is not modelled")),
        }
        if parameters.bad {
            world.panic(format!("parameters of hypercall {port:#x} are not in memory"));
        }
    }

    fn print(&mut self, parameters: &mut Parameters<'_>, buffer: u64, len: u64) {
        self.output.extend(parameters.bytes(buffer, len));
    }

    fn open(&mut self, name: &str, flags: i32, world: &mut World) -> i64 {
        if flags != 0 {
            world.complain(format!("{name} is opened with flags {flags:#x}"));
        }
        match self.files.get(name) {
            None => -ENOENT,
            // Hermit's table has no number for the host's error.
            Some(Mapped::Forbidden) => -EPERM,
            Some(mapped) => {
                self.opened += 1;
                let fd = 2 + self.opened;
                self.open.insert(fd, (mapped.clone(), 0));
                i64::from(fd)
            }
        }
    }

    fn read(
        &mut self,
        parameters: &mut Parameters<'_>,
        fd: i32,
        buffer: u64,
        len: u64,
        world: &mut World,
    ) -> i64 {
        if fd == 0 {
            world.panic("a read of the host's standard input, which would block");
            return 0;
        }
        match self.open.get_mut(&fd) {
            Some((Mapped::File(content), at)) => {
                let rest = &content[*at..];
                let read = rest.len().min(len as usize);
                let (result, bytes) = (read as i64, rest[..read].to_vec());
                *at += read;
                parameters.put_at(buffer, &bytes);
                result + if result > 0 { self.lies } else { 0 }
            }
            Some((Mapped::Directory, _)) => -EISDIR,
            Some((Mapped::Broken(error), _)) => -*error,
            _ => -EBADF,
        }
    }
}

/// Packed parameters in guest memory. uhyve translates version 1's virtual addresses with the guest's page tables,
/// which map memory one to one, so guest addresses are used as they are.
struct Parameters<'a> {
    memory: &'a mut dyn Machine,
    address: u64,
    bad: bool,
}

impl Parameters<'_> {
    fn bytes(&mut self, address: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len.min(1 << 24) as usize];
        self.bad |= self.memory.read(address, &mut bytes).is_err();
        bytes
    }

    fn word<const N: usize>(&mut self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.bad |= self.memory.read(self.address + at, &mut bytes).is_err();
        bytes
    }

    fn u64(&mut self, at: u64) -> u64 {
        u64::from_le_bytes(self.word(at))
    }

    fn i32(&mut self, at: u64) -> i32 {
        i32::from_le_bytes(self.word(at))
    }

    fn string(&mut self, address: u64) -> String {
        let mut text = Vec::new();
        loop {
            match self.bytes(address + text.len() as u64, 1)[0] {
                0 => break,
                byte => text.push(byte),
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        self.put_at(self.address + at, bytes);
    }

    fn put_at(&mut self, address: u64, bytes: &[u8]) {
        self.bad |= self.memory.write(address, bytes).is_err();
    }
}
