//! One side of a connection: its queue pair, its memory, what it has asked for.

use super::host::{self, Machine};
use super::target::Target;
use drivers::hal::{Instant, Window};
use netsim::Rng;
use rand_core::RngCore;
use std::collections::VecDeque;
use std::rc::Rc;
use verbs::{
    Access, ConnectionId, Provider, QpId, QpInit, QpType, Region, RemoteAddress, SendWith,
};

/// Requests, and receives, that a side has at a time.
pub const DEPTH: usize = 4;

/// Longest message in bytes.
pub const MESSAGE: usize = 5000;

/// Bytes of the window that the peer may write; it is used in quarters.
pub const WINDOW: usize = 16384;

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Active side: nobody has answered.
    Asked,
    /// Passive side: the peer has not been heard.
    Accepted,
    /// It stands.
    Up,
    /// It is over, and nothing of it is left.
    Gone,
}

/// What the peer has granted.
#[derive(Clone, Copy, Debug)]
pub struct Granted {
    pub window: RemoteAddress,
    pub library: RemoteAddress,
    pub counter: RemoteAddress,
}

/// What a request does, and what has to come of it.
#[derive(Debug)]
pub enum Kind {
    /// The message with that number.
    Send(u64),
    /// The oldest change of the target. With an immediate it is a message, too.
    Write { message: Option<u64> },
    /// Of a quarter of the window, or of the library.
    Read { into: Window, expected: Vec<u8>, quarter: Option<usize> },
    /// The oldest change of the target.
    Atomic { into: Window, expected: u64 },
    /// One added to the counter that all peers share.
    Count { into: Window },
    /// What was not granted.
    Trespass { into: Option<Window> },
}

/// A request that is posted.
#[derive(Debug)]
pub struct Op {
    /// Which buffer it uses.
    pub slot: usize,
    pub kind: Kind,
    pub signaled: bool,
    pub at: Instant,
}

/// A message on its way to the peer.
#[derive(Debug, PartialEq)]
pub enum Message {
    Send { bytes: Vec<u8>, with: SendWith },
    Immediate { offset: usize, bytes: Vec<u8>, immediate: u32 },
}

/// A side.
#[derive(Debug)]
pub struct Side {
    pub host: usize,
    /// Which life of the host it belongs to.
    pub boots: u32,
    pub peer: Option<usize>,
    pub qp: QpId,
    pub connection: ConnectionId,
    pub state: State,
    /// What the peer may write, and what it held first.
    pub window: Region,
    pub first: Vec<u8>,
    pub granted: Option<Granted>,
    /// What the library of its host holds, and that of its peer's.
    pub books: Rc<[u8]>,
    pub peer_books: Rc<[u8]>,
    /// What this side did to the window of its peer.
    pub target: Target,
    pub buffers: Vec<Window>,
    pub ops: VecDeque<Op>,
    pub receives: Vec<Window>,
    pub posted: VecDeque<usize>,
    /// Messages that the peer has not got.
    pub sent: VecDeque<Message>,
    pub messages: u64,
    /// How many the peer has got.
    pub delivered: u64,
    /// How many requests it will still post.
    pub budget: u32,
    /// Whether it must not fail.
    pub sound: bool,
    /// Whether the peer may have to refuse what it asks for.
    pub refusable: bool,
}

impl Side {
    /// Takes what a side needs of a machine; None if there is no memory left. `number` is its place
    /// among all sides.
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
            books: machine.books.clone(),
            peer_books: machine.books.clone(),
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

    /// Posts a receive into one of the buffers for that.
    pub fn post_receive(&mut self, number: usize, machine: &mut Machine, buffer: usize) {
        let id = (number as u64) << 32 | 1 << 31 | buffer as u64;
        machine.post_receive(self.qp, id, self.receives[buffer]);
        self.posted.push_back(buffer);
    }

    /// What the side tells its peer: its place among all sides, and what it grants.
    pub fn introduction(&self, number: usize, machine: &Machine) -> Vec<u8> {
        let mut bytes = (number as u32).to_be_bytes().to_vec();
        for region in [&self.window, &machine.library, &machine.counter] {
            let RemoteAddress { address, rkey } = host::name(region);
            bytes.extend(address.to_be_bytes());
            bytes.extend(rkey.to_be_bytes());
        }
        bytes
    }

    /// Gives everything back. `target` is what the peer has done to the window.
    pub fn tear_down(&mut self, machine: &mut Machine, target: Option<&Target>, mtu: usize) {
        self.state = State::Gone;
        machine.roce.destroy_qp(self.qp).expect("it is there until now");
        machine.roce.deregister(self.window.id).expect("it is registered until now");
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
    /// Where the peer's answer goes.
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

/// What a peer says in `introduction`: its place among all sides, and what it grants.
pub fn introduced(bytes: &[u8]) -> (usize, Granted) {
    let number = u32::from_be_bytes(bytes[..4].try_into().expect("4 bytes"));
    let at = |n: usize| RemoteAddress {
        address: u64::from_be_bytes(bytes[4 + 12 * n..][..8].try_into().expect("8 bytes")),
        rkey: u32::from_be_bytes(bytes[12 + 12 * n..][..4].try_into().expect("4 bytes")),
    };
    (number as usize, Granted { window: at(0), library: at(1), counter: at(2) })
}
