//! A vfio-user client of a model server, as QEMU is (QEMU, docs/interop/vfio-user.rst). Each request waits for its
//! reply, so that this client does not keep the server from its other clients.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Commands.
const VERSION: u16 = 1;
const DMA_MAP: u16 = 2;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const DEVICE_RESET: u16 = 13;
/// Number of the configuration space region.
const CONFIG: u32 = 7;
/// Bytes of a message header.
const HEADER: usize = 16;
/// Error bit of the flags.
const ERROR: u32 = 1 << 5;
/// Access flags of `DMA_MAP`: the function's DMA may read and write.
const READ_WRITE: u32 = 3;
/// Maximum bytes of one access.
const MAX_ACCESS: usize = 1 << 20;
/// How long the server may take to accept this client after its previous one.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection to a server's function.
pub struct Client {
    stream: UnixStream,
    number: u16,
}

impl Client {
    /// Connects as the function's only client.
    pub fn connect(socket: &Path) -> Result<Client> {
        let deadline = Instant::now() + PATIENCE;
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => return Err(error).context("the model server does not listen"),
            }
        };
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut client = Client { stream, number: 0 };
        let version = [&[0, 0, 1, 0][..], b"{\"capabilities\":{}}\0"].concat();
        client
            .request(VERSION, &version, None)
            .context("no VERSION reply from the model server")?;
        Ok(client)
    }

    /// Lets the function access `size` bytes of the file at the bus address.
    pub fn map(&mut self, address: u64, size: u64, memory: BorrowedFd<'_>) -> Result<()> {
        let mut body = [32, READ_WRITE].map(u32::to_le_bytes).concat();
        body.extend([0, address, size].map(u64::to_le_bytes).concat());
        self.request(DMA_MAP, &body, Some(memory)).map(drop)
    }

    /// Reads from a BAR.
    pub fn read(&mut self, bar: u8, offset: u64, into: &mut [u8]) -> Result<()> {
        self.read_region(bar.into(), offset, into)
    }

    /// Reads from configuration space.
    pub fn read_config(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.read_region(CONFIG, offset, into)
    }

    fn read_region(&mut self, region: u32, offset: u64, into: &mut [u8]) -> Result<()> {
        let answer = self.request(REGION_READ, &access(region, offset, into.len()), None)?;
        let bytes = answer.get(16..16 + into.len()).context("a reply that is too short")?;
        into.copy_from_slice(bytes);
        Ok(())
    }

    /// Writes to a BAR.
    pub fn write(&mut self, bar: u8, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_region(bar.into(), offset, bytes)
    }

    /// Writes to configuration space.
    pub fn write_config(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_region(CONFIG, offset, bytes)
    }

    fn write_region(&mut self, region: u32, offset: u64, bytes: &[u8]) -> Result<()> {
        for (n, part) in bytes.chunks(MAX_ACCESS).enumerate() {
            let head = access(region, offset + (n * MAX_ACCESS) as u64, part.len());
            self.request(REGION_WRITE, &[&head[..], part].concat(), None)?;
        }
        Ok(())
    }

    /// Closes the connection, so that the server accepts its next client even while this object lives.
    pub fn close(&mut self) {
        // Fails only if it is closed already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Resets the function to its power-on state.
    pub fn reset(&mut self) -> Result<()> {
        self.request(DEVICE_RESET, &[], None).map(drop)
    }

    /// Sends a request, and returns the body of the reply.
    fn request(
        &mut self,
        command: u16,
        body: &[u8],
        file: Option<BorrowedFd<'_>>,
    ) -> Result<Vec<u8>> {
        self.number = self.number.wrapping_add(1);
        let mut message = [self.number, command].map(u16::to_le_bytes).concat();
        message.extend([(HEADER + body.len()) as u32, 0, 0].map(u32::to_le_bytes).concat());
        message.extend(body);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut files = SendAncillaryBuffer::new(&mut space);
        if let Some(file) = &file {
            files.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(file)));
        }
        let all = [IoSlice::new(&message)];
        let sent = sendmsg(self.stream.as_fd(), &all, &mut files, SendFlags::NOSIGNAL)?;
        self.stream.write_all(&message[sent..])?;
        let mut header = [0; HEADER];
        self.stream.read_exact(&mut header).context("no reply from the model server")?;
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let size = word(4) as usize;
        ensure!((HEADER..=2 * MAX_ACCESS).contains(&size), "a reply of {size} bytes");
        let mut answer = vec![0; size - HEADER];
        self.stream.read_exact(&mut answer)?;
        ensure!(
            word(8) & ERROR == 0,
            "the model server refuses command {command}: error {}",
            word(12)
        );
        Ok(answer)
    }
}

fn access(region: u32, offset: u64, length: usize) -> Vec<u8> {
    [&offset.to_le_bytes()[..], &region.to_le_bytes(), &(length as u32).to_le_bytes()].concat()
}
