//! One side of a connection: its queue pair, memory and requests.

use super::host::{self, Machine};
use super::target::Target;
use drivers::hal::{Instant, Window};
use netsim::Rng;
use rand_core::Rng as _;
use std::collections::VecDeque;
use std::rc::Rc;
use verbs::{
    Access, ConnectionId, MemoryVerbs, Provider, QpId, QpInit, QpType, Region, RemoteAddress,
    SendWith,
};

/// Most requests, and most receives, of a side at a time.
pub const DEPTH: usize = 4;

/// Longest message in bytes.
pub const MESSAGE: usize = 5000;

/// Bytes of the window that the peer may write; it is used in quarters.
pub const WINDOW: usize = 16384;

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Active side: the request is unanswered.
    Asked,
    /// Passive side: the peer has not confirmed.
    Accepted,
    /// Established.
    Up,
    /// Ended, with all resources released.
    Gone,
}

/// Memory that the peer has granted.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    pub window: RemoteAddress,
    pub library: RemoteAddress,
    pub counter: RemoteAddress,
}

/// Kind of a request, with its expected result.
#[derive(Debug)]
pub enum Kind {
    /// Sends the message with this number.
    Send(u64),
    /// Executes the oldest change of the target. With an immediate it is a message, too.
    Write { message: Option<u64> },
    /// Reads a quarter of the window, or the library.
    Read { into: Window, expected: Vec<u8>, quarter: Option<usize> },
    /// Executes the oldest change of the target.
    Atomic { into: Window, expected: u64 },
    /// Adds one to the counter that all peers share.
    Count { into: Window },
    /// Accesses memory that was not granted.
    Trespass { into: Option<Window> },
}

/// A posted request.
#[derive(Debug)]
pub struct Op {
    /// Index of its buffer.
    pub slot: usize,
    pub kind: Kind,
    pub signaled: bool,
    pub at: Instant,
}

/// A message in flight to the peer.
#[derive(Debug, PartialEq)]
pub enum Message {
    Send { bytes: Vec<u8>, with: SendWith },
    Immediate { offset: usize, bytes: Vec<u8>, immediate: u32 },
}

/// A side.
#[derive(Debug)]
pub struct Side {
    pub host: usize,
    /// Number of the host's boot to which it belongs.
    pub boots: u32,
    pub peer: Option<usize>,
    pub qp: QpId,
    pub connection: ConnectionId,
    pub state: State,
    /// Memory that the peer may write.
    pub window: Region,
    /// Initial contents of the window.
    pub first: Vec<u8>,
    pub granted: Option<Granted>,
    /// Contents of its host's library.
    pub library_bytes: Rc<[u8]>,
    /// Contents of its peer's library.
    pub peer_library: Rc<[u8]>,
    /// Changes of this side to the window of its peer.
    pub target: Target,
    pub buffers: Vec<Window>,
    pub ops: VecDeque<Op>,
    pub receives: Vec<Window>,
    pub posted: VecDeque<usize>,
    /// Undelivered messages.
    pub sent: VecDeque<Message>,
    pub messages: u64,
    /// Number of delivered messages.
    pub delivered: u64,
    /// Requests left to post.
    pub budget: u32,
    /// Whether it must not fail.
    pub sound: bool,
    /// Whether the peer may refuse its requests.
    pub refusable: bool,
}

impl Side {
    /// Allocates the resources of a side; None without free memory. `number` is its index among all sides.
    pub fn new(
        number: usize,
        host: usize,
        boots: u32,
        machine: &mut Machine,
        rng: &mut Rng,
    ) -> Option<Self> {
        let mut windows = Vec::new();
        for n in 0..=2 * DEPTH {
            let len = if n == 0 { WINDOW } else { MESSAGE };
            match machine.arena.alloc(len, 64) {
                Some(window) => windows.push(window),
                None => {
                    windows.into_iter().for_each(|window| machine.arena.free(window));
                    return None;
                }
            }
        }
        let receives = windows.split_off(1 + DEPTH);
        let buffers = windows.split_off(1);
        let mut first = vec![0; WINDOW];
        rng.fill_bytes(&mut first);
        machine.memory.put(&windows[0], &first);
        machine.memory.open(&windows[0]);
        let access = Access::all();
        let window = machine.roce.register(machine.pd, windows[0], access, rng).expect("room");
        let init = QpInit {
            kind: QpType::Rc,
            pd: machine.pd,
            send_cq: machine.cq,
            recv_cq: machine.cq,
            max_send_wr: DEPTH as u32,
            max_recv_wr: DEPTH as u32,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline: 96,
        };
        let qp = machine.roce.create_qp(&init, rng).expect("room");
        let mut side = Side {
            host,
            boots,
            peer: None,
            qp,
            connection: ConnectionId(0),
            state: State::Asked,
            window,
            first,
            granted: None,
            library_bytes: machine.library_bytes.clone(),
            peer_library: machine.library_bytes.clone(),
            target: Target::default(),
            buffers,
            ops: VecDeque::new(),
            receives,
            posted: VecDeque::new(),
            sent: VecDeque::new(),
            messages: 0,
            delivered: 0,
            budget: 0,
            sound: false,
            refusable: false,
        };
        for buffer in 0..DEPTH {
            side.post_receive(number, machine, buffer);
        }
        Some(side)
    }

    /// Posts a receive into the receive buffer with index `buffer`.
    pub fn post_receive(&mut self, number: usize, machine: &mut Machine, buffer: usize) {
        let id = (number as u64) << 32 | 1 << 31 | buffer as u64;
        machine.post_receive(self.qp, id, self.receives[buffer]);
        self.posted.push_back(buffer);
    }

    /// Private data for the peer: the side's index, and the memory that it grants.
    pub fn introduction(&self, number: usize, machine: &Machine) -> Vec<u8> {
        let mut bytes = (number as u32).to_be_bytes().to_vec();
        for region in [&self.window, &machine.library, &machine.counter] {
            let RemoteAddress { address, rkey } = host::name(region);
            bytes.extend(address.to_be_bytes());
            bytes.extend(rkey.to_be_bytes());
        }
        bytes
    }

    /// Releases all resources. `target` has the peer's changes to the window.
    pub fn tear_down(&mut self, machine: &mut Machine, target: Option<&Target>, mtu: usize) {
        self.state = State::Gone;
        machine.roce.destroy_qp(self.qp).expect("the queue pair exists");
        machine.roce.deregister(self.window.id).expect("the region is registered");
        match target {
            Some(target) => target.check(&self.window.memory, mtu),
            None => Target::new(&self.first).check(&self.window.memory, mtu),
        }
        machine.memory.close(&self.window.memory);
        for op in &self.ops {
            if let Some(into) = op.kind.landing() {
                machine.memory.close(into);
            }
        }
        for &buffer in &self.posted {
            machine.memory.close(&self.receives[buffer]);
        }
        machine.arena.free(self.window.memory);
        for &window in self.buffers.iter().chain(&self.receives) {
            machine.arena.free(window);
        }
    }
}

impl Kind {
    /// Memory for the peer's answer.
    pub fn landing(&self) -> Option<&Window> {
        match self {
            Kind::Read { into, .. } | Kind::Atomic { into, .. } | Kind::Count { into } => {
                Some(into)
            }
            Kind::Trespass { into } => into.as_ref(),
            Kind::Send(_) | Kind::Write { .. } => None,
        }
    }
}

/// Parses private data of [`Side::introduction`]: the peer's index, and the memory that it grants.
pub fn introduced(bytes: &[u8]) -> (usize, Granted) {
    let number = u32::from_be_bytes(bytes[..4].try_into().expect("4 bytes"));
    let at = |n: usize| RemoteAddress {
        address: u64::from_be_bytes(bytes[4 + 12 * n..][..8].try_into().expect("8 bytes")),
        rkey: u32::from_be_bytes(bytes[12 + 12 * n..][..4].try_into().expect("4 bytes")),
    };
    (number as usize, Granted { window: at(0), library: at(1), counter: at(2) })
}
