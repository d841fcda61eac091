//! The far end of an Ethernet model's cable: a wire of datagrams (QEMU's `-netdev dgram`), or Isthmus' own driver on a
//! second model in this process, which answers ARP and ping.

use std::collections::VecDeque;
use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant as Moment;

use anyhow::{Context, Result};
use drivers::driver::Class;
use drivers::hal::{Packet, Platform, Port, UdpFlow};
use metal::Metal;
use models::enic::{Config, Enic};
use models::{Cable, Nanoseconds};

use crate::own::{answer_arp, answer_ping};

/// Poll intervals: after a frame has passed, and otherwise.
const BUSY: Nanoseconds = 50_000;
const IDLE: Nanoseconds = 500_000;
const LONGEST: usize = 1 << 16;
const SECOND: u64 = 1_000_000_000;
/// UDP port that Isthmus' driver steers to its second queue. Datagrams to it are counted.
const STEERED: u16 = 4000;

/// The far end of a cable.
pub enum FarEnd {
    /// No peer: sent frames are discarded.
    Unplugged,
    /// A wire of datagrams.
    Wire(Wire),
    /// Isthmus' own driver.
    Own(Box<OwnInterface>),
}

impl FarEnd {
    /// Carries frames. Returns the delay until the next call.
    pub fn turn(&mut self, cable: &Arc<Mutex<Cable>>) -> Option<Nanoseconds> {
        let mut cable = cable.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = match self {
            FarEnd::Unplugged => {
                cable.sent.clear();
                return None;
            }
            FarEnd::Wire(wire) => wire.turn(&mut cable),
            FarEnd::Own(own) => own.turn(&mut cable),
        };
        Some(if passed { BUSY } else { IDLE })
    }

    /// Counters and notices of the far end, if it is Isthmus' own driver.
    pub fn describe(&mut self) -> Option<String> {
        match self {
            FarEnd::Own(own) => Some(own.describe()),
            _ => None,
        }
    }
}

/// Frames as datagrams between two Unix sockets.
pub struct Wire {
    socket: UnixDatagram,
    peer: PathBuf,
    buffer: Vec<u8>,
}

impl Wire {
    /// Binds `ours`; frames go to `peer`, which need not be there.
    pub fn new(ours: &PathBuf, peer: PathBuf) -> Result<Self> {
        // An earlier process may have left its socket.
        let _ = fs::remove_file(ours);
        let socket = UnixDatagram::bind(ours);
        let socket = socket.with_context(|| format!("could not bind {}", ours.display()))?;
        socket.set_nonblocking(true)?;
        Ok(Wire { socket, peer, buffer: vec![0; LONGEST] })
    }

    fn turn(&mut self, cable: &mut Cable) -> bool {
        self.carry(&mut cable.sent, &mut cable.arriving)
    }

    /// Forwards `sent` to the peer, and appends received frames to `arriving`. Returns whether any frame passed.
    pub fn carry(&mut self, sent: &mut Vec<Vec<u8>>, arriving: &mut VecDeque<Vec<u8>>) -> bool {
        let mut passed = !sent.is_empty();
        for frame in sent.drain(..) {
            // Ethernet is lossy: without a receiver the frame is dropped.
            let _ = self.socket.send_to(&frame, &self.peer);
        }
        while let Ok(len) = self.socket.recv(&mut self.buffer) {
            arriving.push_back(self.buffer[..len].to_vec());
            passed = true;
        }
        passed
    }
}

/// Isthmus' own driver on a second model.
pub struct OwnInterface {
    machine: Metal<Enic>,
    port: Box<dyn Port + Send>,
    address: Ipv4Addr,
    then: Moment,
    watched: u64,
    pings: u64,
    steered: u64,
}

impl OwnInterface {
    /// Creates an interface with this address, on a model with the same settings as the guest's.
    pub fn new(settings: Config, address: Ipv4Addr) -> Self {
        let mac = [2, 0x25, 0xb5, 0, 0, 9];
        let mut machine = Metal::new(Enic::new(Config { mac, ..settings }), 32 << 20);
        let device = machine.find().take(Class::Port).remove(0);
        let clock = machine.clock();
        let port = device.open_port(&mut machine, &|_| None, &clock);
        let mut port = port.expect("the model is a good device");
        let flow = UdpFlow { address: address.octets(), port: STEERED };
        assert!(port.steer(flow, machine.arena()), "it has a second queue");
        let then = Moment::now();
        OwnInterface { machine, port, address, then, watched: 0, pings: 0, steered: 0 }
    }

    fn turn(&mut self, cable: &mut Cable) -> bool {
        let passed = !cable.sent.is_empty();
        self.machine.model(|nic| nic.arriving.extend(cable.sent.drain(..)));
        let now = Moment::now();
        let now = self.machine.pass(now - std::mem::replace(&mut self.then, now));
        if now.as_nanos() >= self.watched + SECOND {
            self.watched = now.as_nanos();
            self.port.watch(now);
        }
        self.machine.run();
        let mut answers = Vec::new();
        let (mac, address) = (self.port.mac(), self.address);
        let steered = &mut self.steered;
        self.port.receive_each(usize::MAX, &mut |frame| {
            let mut bytes = frame.to_vec();
            let is_answered = match bytes.get(12..14) {
                Some([8, 6]) => answer_arp(&mut bytes, mac, address),
                Some([8, 0]) => answer_ping(&mut bytes, address),
                _ => false,
            };
            *steered += u64::from(bytes.get(36..38) == Some(&STEERED.to_be_bytes()));
            if is_answered {
                bytes.copy_within(6..12, 0);
                bytes[6..12].copy_from_slice(&mac);
                answers.push(bytes);
            }
            true
        });
        for bytes in &answers {
            self.pings += u64::from(bytes[13] == 0);
            // Ethernet is lossy: without room in the queue the answer is dropped.
            let _ = self.port.transmit(&Packet { header: bytes, payload: &[], trailer: &[] });
        }
        self.port.flush();
        self.machine.run();
        self.machine.model(|nic| cable.arriving.extend(nic.sent.drain(..)));
        passed
    }

    fn describe(&mut self) -> String {
        let complaints = self.machine.model(|nic| nic.complaints.clone());
        let notices: Vec<_> = std::iter::from_fn(|| self.port.notice()).collect();
        format!(
            "own.pings {}\nown.steered {}\nown.filters {}\nown.complaints {}\nown {complaints:?} {notices:?} {:?}",
            self.pings,
            self.steered,
            self.machine.model(|nic| nic.filters()),
            complaints.len(),
            self.port.counters(),
        )
    }
}
