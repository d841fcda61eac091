//! An Ethernet port on a Unix datagram socket: one datagram is one frame, as in QEMU's `-netdev dgram`.

use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use drivers::hal::{Frame, Packet, Port, PortCounters, TransmitError, TransmitProgress};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Receive buffers.
const BUFFERS: u32 = 64;
const ETHERNET_HEADER: usize = 14;

/// The port.
pub struct DgramPort {
    socket: UnixDatagram,
    peer: PathBuf,
    mac: [u8; 6],
    mtu: usize,
    buffers: Vec<Vec<u8>>,
    free: Vec<u32>,
    outgoing: Vec<u8>,
    counters: PortCounters,
}

impl DgramPort {
    /// Binds `ours`; frames go to `peer`, which need not exist yet.
    pub fn new(ours: &Path, peer: &Path, mac: [u8; 6], mtu: usize) -> Result<DgramPort> {
        let socket = UnixDatagram::bind(ours)?;
        socket.set_nonblocking(true)?;
        Ok(DgramPort {
            socket,
            peer: peer.into(),
            mac,
            mtu,
            buffers: vec![vec![0; mtu + ETHERNET_HEADER]; BUFFERS as usize],
            free: (0..BUFFERS).collect(),
            outgoing: Vec::new(),
            counters: PortCounters::default(),
        })
    }

    /// Waits until a frame is available, at most for `limit`.
    pub fn wait(&self, limit: Duration) {
        let wait = Timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        // An error (a signal) only shortens the wait.
        let _ = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&wait));
    }
}

impl Port for DgramPort {
    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn link_up(&mut self) -> bool {
        true
    }

    fn receive(&mut self) -> Option<Frame> {
        let buffer = *self.free.last()?;
        let len = self.socket.recv(&mut self.buffers[buffer as usize]).ok()?;
        self.free.pop();
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += len as u64;
        Some(Frame { buffer, len: len as u32 })
    }

    fn bytes(&self, frame: &Frame) -> &[u8] {
        &self.buffers[frame.buffer as usize][..frame.len as usize]
    }

    fn recycle(&mut self, frame: Frame) {
        self.free.push(frame.buffer);
    }

    fn transmit(&mut self, packet: &Packet<'_>) -> Result<(), TransmitError> {
        crate::engines::gather(packet, &mut self.outgoing);
        match self.socket.send_to(&self.outgoing, &self.peer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.counters.tx_full += 1;
                return Err(TransmitError::Full);
            }
            // Without a machine at the peer socket the frame is lost, as on an unplugged wire.
            Err(_) => {}
            Ok(_) => {
                self.counters.tx_frames += 1;
                self.counters.tx_bytes += self.outgoing.len() as u64;
            }
        }
        Ok(())
    }

    fn progress(&mut self) -> TransmitProgress {
        TransmitProgress::NOTHING_HELD
    }

    fn flush(&mut self) {}

    fn set_interrupts(&mut self, _wanted: bool) {}

    fn pending(&self) -> bool {
        true
    }
    fn counters(&self) -> PortCounters {
        self.counters
    }
}
