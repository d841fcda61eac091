//! Memory that two machines share: QEMU's `ivshmem-plain`, and `ivshmem-doorbell` with the server that
//! it needs (QEMU: docs/specs/ivshmem-spec.rst, "Device to server connection"; Debian ships none).
//!
//! The server has two slots and rejects a third machine. A machine in the first slot has an even number,
//! a machine in the second an odd number. No number is assigned twice: QEMU (10.0) frees the state of a
//! machine that has left, and writes to it when a machine with the same number joins.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tempfile::{NamedTempFile, TempDir};

/// The protocol's version.
const VERSION: i64 = 0;
/// The value that announces the memory.
const MEMORY: i64 = -1;

/// Memory for two machines: a file in `/dev/shm`, deleted on drop.
pub struct SharedMemory {
    file: NamedTempFile,
    size: u64,
}

impl SharedMemory {
    /// Zeroed memory of `mib` MiB, a power of two.
    pub fn new(mib: u32) -> Result<SharedMemory> {
        let file = tempfile::Builder::new().prefix("isthmus-").tempfile_in("/dev/shm")?;
        let size = u64::from(mib) << 20;
        file.as_file().set_len(size).context("no room in /dev/shm")?;
        Ok(SharedMemory { file, size })
    }

    /// Another handle of the file, to write to the memory from the host.
    pub fn file(&self) -> Result<File> {
        self.file.reopen().context("the shared memory is gone")
    }

    /// QEMU's arguments for `ivshmem-plain`.
    pub fn plain(&self) -> Vec<String> {
        let path = self.file.path().display();
        let object =
            format!("memory-backend-file,id=ntb,size={},share=on,mem-path={path}", self.size);
        ["-object", &object, "-device", "ivshmem-plain,memdev=ntb"].map(String::from).into()
    }

    /// Starts a server that shares the memory with machines that have `ivshmem-doorbell`.
    pub fn serve(&self) -> Result<Server> {
        // In /tmp: the path of a Unix socket has at most 107 bytes.
        let directory = tempfile::Builder::new().prefix("isthmus-").tempdir()?;
        let listener = UnixListener::bind(directory.path().join("ivshmem"))?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let (memory, stopped) = (self.file.reopen()?, stop.try_clone()?);
        let serving = move || {
            let mut slots = Slots::default();
            // Ends when the `Server` is dropped. An error on the socket of one machine is ignored.
            while let Ok(true) = turn(&listener, &stopped, &memory, &mut slots) {}
        };
        Ok(Server { directory, stop, thread: Some(std::thread::spawn(serving)) })
    }
}

/// A server of shared memory, which stops on drop.
pub struct Server {
    directory: TempDir,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Its socket.
    fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join("ivshmem")
    }

    /// QEMU's arguments for `ivshmem-doorbell`.
    pub fn doorbell(&self) -> Vec<String> {
        let chardev = format!("socket,id=ntb,path={}", Path::display(&self.socket()));
        ["-chardev", &chardev, "-device", "ivshmem-doorbell,vectors=1,chardev=ntb"]
            .map(String::from)
            .into()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only when the thread is gone already.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A machine, and the eventfd of its doorbell.
struct Peer {
    number: u16,
    stream: UnixStream,
    bell: OwnedFd,
}

/// The two machines, and how many machines have joined in each slot so far.
#[derive(Default)]
struct Slots {
    peers: [Option<Peer>; 2],
    joined: [u16; 2],
}

/// Waits for an event and handles it. Returns false when the server must stop.
fn turn(listener: &UnixListener, stop: &OwnedFd, memory: &File, slots: &mut Slots) -> Result<bool> {
    let peers = &mut slots.peers;
    let mut all = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
    all.extend(peers.iter().flatten().map(|peer| PollFd::new(&peer.stream, PollFlags::IN)));
    poll(&mut all, None)?;
    let ready: Vec<bool> = all.iter().map(|one| !one.revents().is_empty()).collect();
    if ready[0] {
        return Ok(false);
    }
    // Machines send nothing, so a readable socket means that the machine has left. Handled before a new machine joins.
    let gone: Vec<u16> = peers
        .iter()
        .flatten()
        .zip(&ready[2..])
        .filter(|(_, ready)| **ready)
        .map(|(peer, _)| peer.number)
        .collect();
    for number in &gone {
        peers.iter_mut().for_each(|slot| drop(slot.take_if(|peer| peer.number == *number)));
        for other in peers.iter().flatten() {
            let _ = send(&other.stream, (*number).into(), None);
        }
    }
    if gone.is_empty() && ready[1] {
        let (stream, _) = listener.accept()?;
        let Some(slot) = peers.iter().position(Option::is_none) else { return Ok(true) };
        let number = 2 * slots.joined[slot] + slot as u16;
        slots.joined[slot] = slots.joined[slot]
            .checked_add(1)
            .filter(|n| *n < 1 << 15)
            .context("the 32768 numbers of this slot are used up")?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let peer = Peer { number, stream, bell };
        // A machine that disconnects meanwhile is removed in the next turn.
        let _ = introduce(&peer, memory, peers);
        peers[slot] = Some(peer);
    }
    Ok(true)
}

/// Sends a new machine its number, the memory and the doorbells, and announces it to the other machine.
fn introduce(new: &Peer, memory: &File, peers: &[Option<Peer>; 2]) -> Result<()> {
    let own = new.number.into();
    send(&new.stream, VERSION, None)?;
    send(&new.stream, own, None)?;
    send(&new.stream, MEMORY, Some(memory.as_fd()))?;
    for peer in peers.iter().flatten() {
        let _ = send(&peer.stream, own, Some(new.bell.as_fd()));
        send(&new.stream, peer.number.into(), Some(peer.bell.as_fd()))?;
    }
    send(&new.stream, own, Some(new.bell.as_fd()))
}

/// Sends a number, little-endian, and perhaps a file descriptor with it.
fn send(stream: &UnixStream, value: i64, file: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    let bytes = value.to_le_bytes();
    sendmsg(stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
    use std::io::IoSliceMut;
    use std::os::unix::fs::FileExt;

    /// Receives as QEMU does: a number, and perhaps a file descriptor.
    fn receive(stream: &UnixStream) -> Option<(i64, Option<OwnedFd>)> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 8];
        let into = &mut [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(stream, into, &mut control, RecvFlags::WAITALL).unwrap();
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        (received.bytes == 8).then(|| (i64::from_le_bytes(bytes), file))
    }

    /// Joins as a machine does: its socket, its number, the memory, and the doorbells with their machines' numbers.
    fn join(server: &Server, others: usize) -> (UnixStream, i64, File, Vec<(i64, OwnedFd)>) {
        let stream = UnixStream::connect(server.socket()).unwrap();
        let next = || receive(&stream).unwrap();
        assert_eq!(next().0, VERSION);
        let (number, _) = next();
        let (what, memory) = next();
        assert_eq!(what, MEMORY);
        let bells = (0..=others).map(|_| next()).map(|(n, bell)| (n, bell.unwrap())).collect();
        (stream, number, memory.unwrap().into(), bells)
    }

    #[test]
    fn two_machines_share_memory_and_ring_each_other() {
        let memory = SharedMemory::new(1).unwrap();
        let server = memory.serve().unwrap();
        let (first, number, own, bells) = join(&server, 0);
        assert_eq!((number, bells[0].0), (0, 0));
        let (second, number, theirs, more) = join(&server, 1);
        assert_eq!((number, more[0].0, more[1].0), (1, 0, 1));
        let (announced, bell) = receive(&first).unwrap();
        assert_eq!(announced, 1);
        own.write_all_at(b"hello", 4096).unwrap();
        let mut read = [0; 5];
        theirs.read_exact_at(&mut read, 4096).unwrap();
        assert_eq!(&read, b"hello");
        rustix::io::write(bell.unwrap(), &1u64.to_ne_bytes()).unwrap();
        let mut count = [0; 8];
        rustix::io::read(&more[1].1, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
        let third = UnixStream::connect(server.socket()).unwrap();
        assert!(receive(&third).is_none(), "rejected");
        // The first machine leaves, and a machine joins in its slot.
        drop(first);
        let (gone, file) = receive(&second).unwrap();
        assert!(gone == 0 && file.is_none());
        let (_first, number, _, bells) = join(&server, 1);
        assert_eq!((number, bells[0].0, bells[1].0), (2, 1, 2));
        assert_eq!(receive(&second).unwrap().0, 2);
    }
}
