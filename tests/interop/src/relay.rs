//! A lossy cable: a thread between the sockets of two machines, which drops or delays frames to the client. It never
//! drops frames from the client, because rdma_rxe as a requester does not survive that with several requests in flight.
//! Another cable drops all RoCEv2 frames, as a firewall does that blocks the UDP port.

use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use launch::qemu::Nic;
use rand::RngExt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tempfile::TempDir;

const LONGEST_FRAME: usize = 9216 + 14;

/// The cable. Dropping it disconnects the machines.
pub struct Relay {
    directory: TempDir,
    stop: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Relay {
    /// A cable that loses one in `loss` frames from the first end to the second.
    pub fn new(loss: u32) -> Result<Relay> {
        Relay::rough(loss, u32::MAX)
    }

    /// A cable that drops RoCEv2 frames and passes all others.
    pub fn without_roce() -> Result<Relay> {
        Relay::make(u32::MAX, u32::MAX, false)
    }

    /// As `new`, and one in `late` frames in that direction is swapped with the next.
    pub fn rough(loss: u32, late: u32) -> Result<Relay> {
        Relay::make(loss, late, true)
    }

    fn make(loss: u32, late: u32, roce: bool) -> Result<Relay> {
        let directory = tempfile::Builder::new().prefix("isthmus-relay-").tempdir()?;
        let bind = |name| UnixDatagram::bind(directory.path().join(name));
        let ends = [Side::First, Side::Second].map(|side| side.of(&directory));
        let (first, second) = (bind("relay-first")?, bind("relay-second")?);
        let (stop, lost) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&lost));
        let thread = std::thread::spawn(move || {
            let mut frame = vec![0; LONGEST_FRAME];
            let mut held: Option<Vec<u8>> = None;
            while !stopped.load(Ordering::Relaxed) {
                for (from, to, address, lossy) in
                    [(&first, &second, &ends[1], true), (&second, &first, &ends[0], false)]
                {
                    if !has_frame(from)? {
                        continue;
                    }
                    let length = from.recv(&mut frame)?;
                    if !roce && is_roce(&frame[..length]) {
                        continue;
                    }
                    if lossy && rand::rng().random_ratio(1, loss) {
                        counted.fetch_add(1, Ordering::Relaxed);
                        continue;
                    }
                    if lossy && held.is_none() && rand::rng().random_ratio(1, late) {
                        held = Some(frame[..length].to_vec());
                        continue;
                    }
                    // Blocks while the machine's socket is full; without a machine the frame is lost.
                    let _ = to.send_to(&frame[..length], address);
                    if lossy && let Some(late) = held.take() {
                        let _ = to.send_to(&late, address);
                    }
                }
                let fds = &mut [&first, &second].map(|s| PollFd::new(s, PollFlags::IN));
                let wait = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
                // An error (a signal) only shortens the wait.
                let _ = poll(fds, Some(&wait));
            }
            Ok(())
        });
        Ok(Relay { directory, stop, lost, thread: Some(thread) })
    }

    /// The interfaces at both ends.
    pub fn ends(&self) -> (Nic, Nic) {
        let end = |side: Side, relay| Nic::Dgram {
            ours: side.of(&self.directory),
            peer: self.directory.path().join(relay),
        };
        (end(Side::First, "relay-first"), end(Side::Second, "relay-second"))
    }

    /// Disconnects the cable, and returns the number of lost frames.
    pub fn stop(mut self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("stopped twice")?;
        thread.join().map_err(|_| anyhow!("the relay panicked"))??;
        Ok(self.lost.load(Ordering::Relaxed))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy)]
enum Side {
    First,
    Second,
}

impl Side {
    /// The socket of the machine at that end.
    fn of(self, directory: &TempDir) -> PathBuf {
        directory.path().join(match self {
            Side::First => "first",
            Side::Second => "second",
        })
    }
}

/// Whether a frame is an IPv4 packet to RoCEv2's UDP port.
fn is_roce(frame: &[u8]) -> bool {
    let is = |at: usize, what: &[u8]| frame.get(at..at + what.len()) == Some(what);
    is(12, &[0x08, 0x00]) && is(23, &[17]) && is(36, &4791u16.to_be_bytes())
}

/// Whether a frame is available.
fn has_frame(socket: &impl AsFd) -> Result<bool> {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&at_once))? > 0)
}
