//! Queue pairs: their commands, contexts and states.

use super::buffer::Buffer;
use super::command::{BAD_PAIR_STATE, BAD_PARAMETER, BAD_RESOURCE, Reply, done, made, refuse};
use super::fields::{be32, get, set};
use super::form;
use super::memory_key::Access;
use super::packet::Path;
use super::requester::Request;
use super::responder::{Answer, Message};
use super::{Mlx5, memory_key};
use crate::{Machine, Nanoseconds};
use std::collections::VecDeque;

/// Bytes of a context.
const CONTEXT: usize = 0xe8;
/// Offset of the primary path in a context.
const PATH: usize = 0x18;

/// States.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Reset = 0,
    Init = 1,
    ReadyToReceive = 2,
    ReadyToSend = 3,
    Failed = 6,
}

/// Service type of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Reliable,
    /// Unreliable datagrams.
    Datagram,
    /// Management datagrams: queue pair 1 on the wire.
    Management,
    /// Memory key changes (UMR) only.
    Keys,
}

/// A queue pair.
pub struct QueuePair {
    pub number: u32,
    pub service: Service,
    pub state: State,
    pub context: Vec<u8>,
    buffer: Buffer,
    record: u64,
    pub uar: u32,
    /// Index that identifies the queue pair in completions.
    pub user_index: u32,
    receive_log: u32,
    receive_stride: u32,
    pub has_receive_queue: bool,
    send_log: u32,
    send_offset: u64,
    pub has_send_queue: bool,

    /// The next block of the send queue.
    pub send_consumer: u16,
    /// The number of the next packet.
    pub next_sequence: u32,
    pub requests: VecDeque<Request>,
    /// When outstanding packets are retransmitted for lack of a response.
    pub deadline: Option<Nanoseconds>,
    /// When packets are retransmitted after an RNR NAK.
    pub resend_at: Option<Nanoseconds>,
    pub retries: u32,
    pub not_ready_retries: u32,

    /// The expected packet number.
    pub expected: u32,
    /// Messages received so far.
    pub messages: u32,
    /// A NAK for the expected packet was sent.
    pub nak_sent: bool,
    pub message: Option<Message>,
    pub receive_consumer: u16,
    pub answers: VecDeque<Answer>,
    /// Results of the last atomic operations, by packet number.
    pub atomics: VecDeque<(u32, u64)>,
    /// A packet arrived before the queue pair was ready to send.
    pub established: bool,
}

impl QueuePair {
    pub fn send_completions(&self) -> u32 {
        get(&self.context, 0x3e8, 24) as u32
    }

    pub fn receive_completions(&self) -> u32 {
        get(&self.context, 0x4e8, 24) as u32
    }

    pub fn domain(&self) -> u32 {
        get(&self.context, 0x28, 24) as u32
    }

    /// Most payload bytes of a packet.
    pub fn mtu(&self) -> usize {
        128 << get(&self.context, 0x40, 3)
    }

    /// An access by this queue pair that needs this right.
    pub fn access(&self, right: usize) -> Access {
        Access {
            domain: Some(self.domain()),
            right,
            reserved_key: get(&self.context, 0x5b, 1) == 1,
            pair: Some(self.number),
        }
    }

    /// Whether the queue pair permits the peer this kind of access.
    pub fn allows(&self, right: usize) -> bool {
        let bit = match right {
            memory_key::REMOTE_READ => 0x490,
            memory_key::REMOTE_WRITE => 0x491,
            _ => 0x492,
        };
        get(&self.context, bit, 1) == 1
    }

    pub fn remote_pair(&self) -> u32 {
        get(&self.context, 0xa8, 24) as u32
    }

    /// The index of the own GID, and the peer's GID.
    pub fn gids(&self) -> (u16, [u8; 16]) {
        let remote = self.context[PATH + 0x10..PATH + 0x20].try_into().expect("sixteen bytes");
        (get(&self.context, 0x108, 8) as u16, remote)
    }

    /// The path to the peer, without the fields that the own GID determines.
    pub fn path(&self) -> Path {
        let (_, destination) = self.gids();
        let field = |bit, width| get(&self.context, bit, width);
        let source_port = field(0x1d0, 16) as u16;
        Path {
            destination_mac: self.context[0x3e..0x44].try_into().expect("six bytes"),
            destination,
            class: field(0x124, 8) as u8,
            hops: field(0x118, 8) as u8,
            label: field(0x12c, 20) as u32,
            udp_source: if source_port == 0 { 0xc000 } else { source_port },
            ..Path::default()
        }
    }

    /// Time limit for an acknowledgement; None: no limit.
    pub fn timeout(&self) -> Option<Nanoseconds> {
        let log = get(&self.context, 0x100, 5);
        (log > 0).then(|| 4096 << log)
    }

    /// Reads the counters of the doorbell record: posted receives, posted send blocks.
    pub fn posted(&self, machine: &mut dyn Machine) -> (u16, u16) {
        let mut bytes = [0; 8];
        let _ = machine.read(self.record, &mut bytes);
        (be32(&bytes, 0) as u16, be32(&bytes, 4) as u16)
    }

    /// The address of a block of the send queue.
    pub fn send_block(&self, number: u16) -> Option<u64> {
        let index = u64::from(number) & ((1 << self.send_log) - 1);
        self.buffer.at(self.send_offset + (index << 6))
    }

    /// Number of blocks of the send queue.
    pub fn send_blocks(&self) -> u32 {
        1 << self.send_log
    }

    /// Address and length of a receive work request.
    pub fn receive_block(&self, number: u16) -> Option<(u64, usize)> {
        let index = u64::from(number) & ((1 << self.receive_log) - 1);
        Some((self.buffer.at(index << self.receive_stride)?, 1 << self.receive_stride))
    }

    /// Drops all outstanding work.
    fn drop_outstanding(&mut self) {
        (self.send_consumer, self.receive_consumer) = (0, 0);
        self.requests.clear();
        self.answers.clear();
        self.atomics.clear();
        (self.message, self.deadline, self.resend_at) = (None, None, None);
        (self.retries, self.not_ready_retries, self.messages) = (0, 0, 0);
        (self.nak_sent, self.established) = (false, false);
    }
}

impl Mlx5 {
    pub(super) fn queue_pair_command(
        &mut self,
        opcode: u16,
        input: &[u8],
        machine: &mut dyn Machine,
    ) -> Reply {
        if opcode == 0x500 {
            return self.create_queue_pair(input);
        }
        let number = be32(input, 8) & 0xff_ffff;
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else {
            return refuse(BAD_RESOURCE, format!("queue pair {number:#x}"));
        };
        match opcode {
            0x501 => {
                self.state.queue_pairs.remove(&number);
                self.state.active.remove(&number);
                done()
            }
            0x50b => {
                let mut output = vec![0; 0x1d0];
                set(&mut pair.context, 0, 4, pair.state as u64);
                set(&mut pair.context, 0x3c8, 24, pair.next_sequence.into());
                set(&mut pair.context, 0x4a8, 24, pair.expected.into());
                output[0x18..0x18 + CONTEXT].copy_from_slice(&pair.context);
                Ok(output)
            }
            _ => self.change_state(opcode, number, input, machine),
        }
    }

    fn create_queue_pair(&mut self, input: &[u8]) -> Reply {
        let context = input[0x18..0x18 + CONTEXT].to_vec();
        let field = |bit, width| get(&context, bit, width);
        let service = match field(8, 8) {
            0 => Service::Reliable,
            2 => Service::Datagram,
            8 => Service::Management,
            0xc => Service::Keys,
            kind => return refuse(BAD_PARAMETER, format!("a queue pair of type {kind:#x}")),
        };
        let has_receive_queue = match field(0x565, 3) {
            0 => true,
            3 => false,
            kind => return refuse(BAD_PARAMETER, format!("a receive queue of type {kind}")),
        };
        let (receive_log, receive_stride) = (field(0x49, 4) as u32, field(0x4d, 3) as u32 + 4);
        let (has_send_queue, send_log) = (field(0x50, 1) == 0, field(0x51, 4) as u32);
        let receives = if has_receive_queue { 1u64 << (receive_log + receive_stride) } else { 0 };
        let sends = if has_send_queue { 64u64 << send_log } else { 0 };
        let pages = Buffer::new(&input[0x110..], field(0xa3, 5), field(0x494, 6));
        let Some(buffer) = pages.filter(|buffer| buffer.holds(receives + sends)) else {
            return refuse(BAD_PARAMETER, format!("memory for {receives:#x} + {sends:#x} bytes"));
        };
        let (uar, record) = (field(0x68, 24) as u32, field(0x500, 64));
        self.check_uar(uar)?;
        // A queue pair for keys gets its domain with its first state transition.
        if service != Service::Keys {
            self.check_domain(field(0x28, 24) as u32)?;
        }
        for queue in [field(0x3e8, 24), field(0x4e8, 24)] {
            if !self.state.completion_queues.contains_key(&(queue as u32)) {
                return refuse(BAD_RESOURCE, format!("completion queue {queue:#x}"));
            }
        }
        if record % 8 != 0 || record == 0 {
            return refuse(BAD_PARAMETER, format!("a doorbell record at {record:#x}"));
        }
        let user_index = field(0x88, 24) as u32;
        let number = self.state.number(0x500, 0x80);
        let pair = QueuePair {
            number,
            service,
            state: State::Reset,
            buffer,
            record,
            uar,
            user_index,
            receive_log,
            receive_stride,
            has_receive_queue,
            send_log,
            send_offset: receives,
            has_send_queue,
            context,
            send_consumer: 0,
            next_sequence: 0,
            requests: VecDeque::new(),
            deadline: None,
            resend_at: None,
            retries: 0,
            not_ready_retries: 0,
            expected: 0,
            messages: 0,
            nak_sent: false,
            message: None,
            receive_consumer: 0,
            answers: VecDeque::new(),
            atomics: VecDeque::new(),
            established: false,
        };
        self.state.queue_pairs.insert(number, pair);
        made(number)
    }

    fn change_state(
        &mut self,
        opcode: u16,
        number: u32,
        input: &[u8],
        machine: &mut dyn Machine,
    ) -> Reply {
        use State::{Failed, Init, ReadyToReceive, ReadyToSend, Reset};
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return done() };
        let (from, to) = match opcode {
            0x502 => (Some(Reset), Init),
            0x50e => (Some(Init), Init),
            0x503 => (Some(Init), ReadyToReceive),
            0x504 => (Some(ReadyToReceive), ReadyToSend),
            0x505 => (Some(ReadyToSend), ReadyToSend),
            0x507 => (None, Failed),
            0x50a => (None, Reset),
            _ => return refuse(BAD_PAIR_STATE, "no transition leads to this state"),
        };
        if from.is_some_and(|from| from != pair.state) {
            return refuse(BAD_PAIR_STATE, format!("the state is {:?}", pair.state));
        }
        match opcode {
            0x507 | 0x50a => {}
            _ => {
                let wanted = &input[0x18..0x18 + CONTEXT];
                let optional = be32(input, 0x10);
                let was = pair.context.clone();
                merge(opcode, optional, wanted, &mut pair.context);
                if let Err((status, why)) = self.check_pair(number, opcode) {
                    if let Some(pair) = self.state.queue_pairs.get_mut(&number) {
                        pair.context = was;
                    }
                    return refuse(status, why);
                }
            }
        }
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return done() };
        pair.state = to;
        match opcode {
            0x503 => pair.expected = get(&pair.context, 0x4a8, 24) as u32,
            0x504 => pair.next_sequence = get(&pair.context, 0x3c8, 24) as u32,
            0x50a => pair.drop_outstanding(),
            0x507 => {
                self.state.active.insert(number);
                self.flush(number, machine);
            }
            _ => {}
        }
        done()
    }

    /// Checks that the objects that a transition needs exist.
    fn check_pair(&self, number: u32, opcode: u16) -> Result<(), form::Wrong> {
        let Some(pair) = self.state.queue_pairs.get(&number) else { return Ok(()) };
        let refuse = |why: String| Err((BAD_PARAMETER, why));
        let field = |bit, width| get(&pair.context, bit, width);
        match opcode {
            0x502 if self.check_domain(pair.domain()).is_err() => self.check_domain(pair.domain()),
            0x502 if field(0x13, 2) != 3 => refuse("path migration is not modelled".into()),
            0x502 if pair.service != Service::Keys && field(0x1e8, 8) != 1 => {
                refuse(format!("port {}", field(0x1e8, 8)))
            }
            0x503 if pair.service == Service::Reliable => {
                let (gid, _) = pair.gids();
                if !(1..=5).contains(&field(0x40, 3)) || field(0x43, 5) > 30 {
                    return refuse(format!("MTU {}, messages {}", field(0x40, 3), field(0x43, 5)));
                }
                if !self.state.gids.contains_key(&gid) {
                    return refuse(format!("GID {gid}"));
                }
                let mac = pair.path().destination_mac;
                if mac == [0; 6] || mac[0] & 1 == 1 {
                    return refuse(format!("the peer's MAC address {mac:02x?}"));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Copies the fields of a transition (bit and width) from `wanted` into `context`.
fn merge(opcode: u16, optional: u32, wanted: &[u8], context: &mut [u8]) {
    let mut take = |bit: usize, width: usize| set(context, bit, width, get(wanted, bit, width));
    match opcode {
        0x502 | 0x50e => {
            // Migration, protection domain, user index, P_Key, port, rights, completion queues, Q_Key.
            [(0x13, 2), (0x28, 24), (0xd0, 16), (0x1e8, 8), (0x490, 3), (0x540, 32)]
                .into_iter()
                .for_each(|(bit, width)| take(bit, width));
        }
        0x503 => {
            [(0x40, 8), (0xa8, 24), (0x488, 3), (0x48c, 4), (0x4a0, 8), (0x4a8, 24)]
                .into_iter()
                .for_each(|(bit, width)| take(bit, width));
            // The whole path, except P_Key and port, which an earlier transition sets.
            (0xe0..0x1e0).step_by(32).for_each(|bit| take(bit, 32));
            [(0x1e0, 8), (0x1f0, 16), (0x200, 32)]
                .into_iter()
                .for_each(|(bit, width)| take(bit, width));
        }
        0x504 => {
            // Retries, timeouts, outstanding reads, first packet number. Creation permits key changes.
            [(0x380, 4), (0x388, 3), (0x38d, 6), (0x3c8, 24), (0x100, 5)]
                .into_iter()
                .for_each(|(bit, width)| take(bit, width));
        }
        _ => {}
    }
    let choices = [
        (1, 0x490, 1),
        (2, 0x492, 1),
        (3, 0x491, 1),
        (4, 0xd0, 16),
        (5, 0x540, 32),
        (6, 0x4a3, 5),
        (8, 0x388, 3),
        (9, 0x488, 3),
        (12, 0x38d, 3),
        (13, 0x390, 3),
        (14, 0x100, 5),
        (25, 0x60, 8),
    ];
    for (select, bit, width) in choices {
        if optional >> select & 1 == 1 {
            take(bit, width);
        }
    }
}
