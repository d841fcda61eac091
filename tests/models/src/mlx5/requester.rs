//! Requesters: execution of the send queues of queue pairs.

use super::completion_queue::REQUEST_DONE;
use super::fields::{be16, be32, be64, put16, put32};
use super::memory_key::{LOCAL_READ, LOCAL_WRITE};
use super::packet::{self, Packet, Path, Remote};
use super::queue_pair::{QueuePair, Service, State};
use super::work_request::{
    BLOCK, COMPARE_SWAP, Control, FETCH_ADD, LOCAL_OPERATION, NOP, READ, SEGMENT, SEND,
    SEND_IMMEDIATE, SEND_INVALIDATE, Segment, UMR, WRITE, WRITE_IMMEDIATE,
};
use super::{Fault, Mlx5};
use crate::Machine;

/// Most outstanding requests, and most outstanding packets.
const MOST_REQUESTS: usize = 64;
const WINDOW: u32 = 128;
/// Packets between two acknowledgement requests within a message.
const ACK_EVERY: u32 = 32;
/// Mask of packet numbers, which have 24 bits.
pub const SEQUENCE: u32 = 0xff_ffff;
/// Retry count that means no limit.
const FOR_EVER: u32 = 7;
/// Longest message.
const LONGEST: u64 = 1 << 30;

/// Types of acknowledgements: the upper three bits of the syndrome.
const ACK: u8 = 0x00;
const NOT_READY: u8 = 0x20;
const NEGATIVE: u8 = 0x60;

/// Syndromes of completions.
const LOCAL_LENGTH: u8 = 0x01;
const BAD_RESPONSE: u8 = 0x10;
const REMOTE_INVALID: u8 = 0x12;
const REMOTE_ACCESS: u8 = 0x13;
const REMOTE_OPERATION: u8 = 0x14;
const RETRIES: u8 = 0x15;
const NOT_READY_RETRIES: u8 = 0x16;

/// RNR NAK timer values in 10 µs (vol. 1, table 45).
const NOT_READY_TIMES: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// A request in execution.
#[derive(Debug)]
pub struct Request {
    pub control: Control,
    /// The first number of its packets, or of its response packets.
    first: u32,
    count: u32,
    /// Packets sent, and packets acknowledged; for responses, packets received.
    sent: u32,
    acknowledged: u32,
    inline: Vec<u8>,
    segments: Vec<Segment>,
    length: u64,
    remote: Remote,
    atomic: [u64; 2],
    /// Its result: a syndrome, or 0.
    done: Option<u8>,
}

impl Request {
    /// The syndrome of a failed request.
    pub fn failed(&self) -> Option<u8> {
        self.done.filter(|syndrome| *syndrome != 0)
    }

    fn last(&self) -> u32 {
        self.first.wrapping_add(self.count.saturating_sub(1)) & SEQUENCE
    }

    /// Whether the response has data.
    fn is_answered(&self) -> bool {
        matches!(self.control.opcode, READ | COMPARE_SWAP | FETCH_ADD)
    }

    fn is_outstanding(&self) -> bool {
        self.done.is_none() && self.sent > 0
    }
}

/// Distance from `b` to `a`; negative if `a` is behind.
pub fn ahead(a: u32, b: u32) -> i32 {
    ((a.wrapping_sub(b) << 8) as i32) >> 8
}

impl Mlx5 {
    /// Runs a queue pair as far as possible.
    pub(super) fn run_queue_pair(&mut self, number: u32, machine: &mut dyn Machine) {
        self.send_answers(number, machine);
        match self.state.queue_pairs.get(&number).map(|pair| pair.state) {
            Some(State::Failed) => return self.flush(number, machine),
            Some(State::ReadyToSend) => {}
            _ => return,
        }
        loop {
            self.send_requests(number, machine);
            if !self.fetch(number, machine) {
                break;
            }
        }
        self.send_requests(number, machine);
    }

    /// Takes the next work request from the queue. Returns false if there is none or it must wait.
    fn fetch(&mut self, number: u32, machine: &mut dyn Machine) -> bool {
        let Some(pair) = self.state.queue_pairs.get(&number) else { return false };
        if pair.state != State::ReadyToSend || !pair.has_send_queue {
            return false;
        }
        let consumer = pair.send_consumer;
        let waiting = pair.posted(machine).1.wrapping_sub(consumer);
        if waiting == 0 || pair.requests.len() >= MOST_REQUESTS {
            return false;
        }
        let request = read_request(pair, waiting, machine);
        let control = request.as_deref().map_or(Control::read(&[0; 16]), Control::read);
        let wrong = match &request {
            None => Some("no complete work request".to_string()),
            Some(_) if u32::from(waiting) > pair.send_blocks() => Some("too much is posted".into()),
            Some(_) if control.queue != number || control.counter != consumer => {
                Some(format!("{control:?}"))
            }
            Some(_) => None,
        };
        if let Some(wrong) = wrong {
            self.complain(format!("queue pair {number:#x}: {wrong} at {consumer}"));
            let control = Control { counter: consumer, ..control };
            return self.refuse_request(number, control, consumer, LOCAL_OPERATION, machine);
        }
        let Some(request) = request else { return false };
        let answered = |request: &Request| request.is_answered() && request.done.is_none();
        // Key changes and fenced requests wait for all earlier requests.
        let waits = match (control.opcode, control.fence) {
            (UMR, _) | (_, 3) => !pair.requests.is_empty(),
            (_, 2 | 4) => pair.requests.iter().any(answered),
            _ => false,
        };
        if waits {
            return false;
        }
        *self.counts.requests.entry(control.opcode).or_default() += 1;
        let begun = self.begin(number, control, &request, machine);
        let next = consumer.wrapping_add(control.blocks());
        match begun {
            Err(syndrome) => return self.refuse_request(number, control, next, syndrome, machine),
            Ok(request) => {
                let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return false };
                pair.send_consumer = next;
                pair.next_sequence = pair.next_sequence.wrapping_add(request.count) & SEQUENCE;
                pair.requests.push_back(request);
            }
        }
        self.retire(number, machine);
        true
    }

    /// Fails a work request before any of its packets is sent. Earlier requests continue.
    fn refuse_request(
        &mut self,
        number: u32,
        control: Control,
        next: u16,
        syndrome: u8,
        machine: &mut dyn Machine,
    ) -> bool {
        if let Some(pair) = self.state.queue_pairs.get_mut(&number) {
            pair.send_consumer = next;
            let first = pair.next_sequence;
            pair.requests.push_back(Request {
                control,
                first,
                count: 0,
                sent: 0,
                acknowledged: 0,
                inline: Vec::new(),
                segments: Vec::new(),
                length: 0,
                remote: Remote::default(),
                atomic: [0; 2],
                done: Some(syndrome),
            });
            self.retire(number, machine);
        }
        false
    }

    /// Parses a work request, and executes requests that complete at once.
    fn begin(
        &mut self,
        number: u32,
        control: Control,
        bytes: &[u8],
        machine: &mut dyn Machine,
    ) -> Result<Request, u8> {
        let Some(pair) = self.state.queue_pairs.get(&number) else { return Err(LOCAL_OPERATION) };
        let (service, mtu, first) = (pair.service, pair.mtu() as u64, pair.next_sequence);
        let mut request = Request {
            control,
            first,
            count: 0,
            sent: 0,
            acknowledged: 0,
            inline: Vec::new(),
            segments: Vec::new(),
            length: 0,
            remote: Remote::default(),
            atomic: [0; 2],
            done: None,
        };
        match (control.opcode, service) {
            (NOP, _) => {
                request.done = Some(0);
                return Ok(request);
            }
            (UMR, Service::Keys | Service::Reliable) => {
                let may =
                    service == Service::Keys || super::fields::get(&pair.context, 0x394, 1) == 1;
                let mut access = pair.access(LOCAL_READ);
                // A queue pair for keys can change keys of all domains.
                if service == Service::Keys {
                    access.domain = None;
                }
                if !may {
                    return Err(LOCAL_OPERATION);
                }
                self.change_key(access, bytes, machine)?;
                request.done = Some(0);
                return Ok(request);
            }
            (SEND | SEND_IMMEDIATE, Service::Datagram | Service::Management) => {}
            (_, Service::Reliable) => {}
            _ => return Err(LOCAL_OPERATION),
        }
        let mut at = SEGMENT;
        if service != Service::Reliable {
            at += 48;
        }
        let part = |at: usize, length: usize| bytes.get(at..at + length).ok_or(LOCAL_OPERATION);
        match control.opcode {
            SEND | SEND_IMMEDIATE | SEND_INVALIDATE => {}
            WRITE | WRITE_IMMEDIATE | READ | COMPARE_SWAP | FETCH_ADD => {
                let remote = part(at, SEGMENT)?;
                request.remote =
                    Remote { address: be64(remote, 0), key: be32(remote, 8), length: 0 };
                at += SEGMENT;
            }
            opcode => {
                self.complain(format!("queue pair {number:#x}: opcode {opcode:#x}"));
                return Err(LOCAL_OPERATION);
            }
        }
        if matches!(control.opcode, COMPARE_SWAP | FETCH_ADD) {
            let operands = part(at, SEGMENT)?;
            request.atomic = [be64(operands, 0), be64(operands, 8)];
            at += SEGMENT;
        }
        while at + SEGMENT <= bytes.len() {
            match Segment::read(&bytes[at..]) {
                Some(segment) => {
                    // Hardware takes a length of 0 as 2 GiB, which is more than a message may have.
                    request.length += u64::from(segment.length);
                    request.segments.push(segment);
                    at += SEGMENT;
                }
                None => {
                    let length = (be32(bytes, at) & 0x3ff) as usize;
                    request.inline.extend_from_slice(part(at + 4, length)?);
                    request.length += length as u64;
                    at += (4 + length).next_multiple_of(SEGMENT);
                }
            }
        }
        let mixed = !request.inline.is_empty() && !request.segments.is_empty();
        if request.length > LONGEST || mixed {
            return Err(LOCAL_LENGTH);
        }
        request.remote.length = request.length as u32;
        request.count = (request.length.div_ceil(mtu)).max(1) as u32;
        if matches!(control.opcode, COMPARE_SWAP | FETCH_ADD) {
            request.count = 1;
            // The responder checks the alignment (vol. 1, 9.4.5).
            if request.length != 8 {
                return Err(LOCAL_OPERATION);
            }
        }
        let Some(pair) = self.state.queue_pairs.get(&number) else { return Err(LOCAL_OPERATION) };
        let right = if request.is_answered() { LOCAL_WRITE } else { LOCAL_READ };
        let access = pair.access(right);
        let reaches =
            |part: &Segment| self.may_reach(access, part.key, part.address, part.length.into());
        if !request.segments.iter().all(reaches) {
            return Err(super::memory_key::LOCAL_PROTECTION);
        }
        if service != Service::Reliable {
            if request.length > u64::from(self.settings.mtu) || request.length > 4096 {
                return Err(LOCAL_LENGTH);
            }
            self.send_datagram(number, &request, part(SEGMENT, 48)?, machine)?;
            request.count = 0;
            request.done = Some(0);
        }
        Ok(request)
    }

    fn send_datagram(
        &mut self,
        number: u32,
        request: &Request,
        vector: &[u8],
        machine: &mut dyn Machine,
    ) -> Result<(), u8> {
        let payload = self.payload(number, request, 0, request.length as usize, machine)?;
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return Ok(()) };
        let (key, pair_and_flags) = (be32(vector, 0), be32(vector, 8));
        let route = be32(vector, 28);
        let source = if pair.service == Service::Management { 1 } else { number };
        // With the upper bit set, the queue pair's own Q_Key is used (vol. 1, 3.5.3).
        let own = super::fields::be32(&pair.context, 0xa8);
        let key = if key >> 31 == 1 && pair.service == Service::Datagram { own } else { key };
        let sequence = pair.next_sequence;
        pair.next_sequence = sequence.wrapping_add(1) & SEQUENCE;
        let immediate = request.control.opcode == SEND_IMMEDIATE;
        let path = Path {
            destination_mac: vector[20..26].try_into().expect("six bytes"),
            class: vector[26],
            hops: vector[27],
            label: route & 0xf_ffff,
            destination: vector[32..48].try_into().expect("sixteen bytes"),
            udp_source: be16(vector, 14).max(0xc000),
            ..Path::default()
        };
        // The address vector must be complete. (Linux's kernel sets the GRH flag, its user space does not.)
        if pair_and_flags >> 31 == 0 {
            self.complain(format!("queue pair {number:#x}: the address vector is incomplete"));
            return Err(LOCAL_OPERATION);
        }
        let packet = Packet {
            path,
            datagram: Some((key, source)),
            operation: if immediate { packet::SEND_ONLY_IMMEDIATE } else { packet::SEND_ONLY },
            solicited: request.control.solicited,
            partition: 0xffff,
            pair: pair_and_flags & 0xff_ffff,
            sequence,
            immediate: request.control.immediate,
            payload,
            ..Packet::default()
        };
        self.send_packet((route >> 20 & 0xff) as u16, packet);
        Ok(())
    }

    /// Reads a part of a request's data.
    fn payload(
        &self,
        number: u32,
        request: &Request,
        offset: u64,
        length: usize,
        machine: &mut dyn Machine,
    ) -> Result<Vec<u8>, u8> {
        if !request.inline.is_empty() {
            return Ok(request.inline[offset as usize..offset as usize + length].to_vec());
        }
        let Some(pair) = self.state.queue_pairs.get(&number) else { return Ok(Vec::new()) };
        let access = pair.access(LOCAL_READ);
        let mut bytes = Vec::with_capacity(length);
        let mut skip = offset;
        for segment in &request.segments {
            let size = u64::from(segment.length);
            if skip >= size {
                skip -= size;
                continue;
            }
            let count = (size - skip).min((length - bytes.len()) as u64);
            let address = segment.address + skip;
            self.gather(access, segment.key, address, count as usize, &mut bytes, machine)?;
            skip = 0;
            if bytes.len() == length {
                break;
            }
        }
        Ok(bytes)
    }

    /// Sends packets of requests while the window has room.
    fn send_requests(&mut self, number: u32, machine: &mut dyn Machine) {
        let now = self.now;
        let mut index = 0;
        loop {
            let Some(pair) = self.state.queue_pairs.get(&number) else { return };
            if pair.resend_at.is_some() || pair.state != State::ReadyToSend {
                return;
            }
            let Some(request) = pair.requests.get(index) else { break };
            let whole = if request.is_answered() { 1 } else { request.count };
            if request.done.is_some() || request.sent >= whole {
                index += 1;
                continue;
            }
            let outstanding = |request: &Request| match request.is_answered() {
                true => u32::from(request.is_outstanding()),
                false => request.sent - request.acknowledged,
            };
            let most = 1 << super::fields::get(&pair.context, 0x388, 3);
            let answered =
                pair.requests.iter().filter(|one| one.is_answered() && one.is_outstanding());
            if request.is_answered() && answered.count() >= most
                || pair.requests.iter().map(outstanding).sum::<u32>() >= WINDOW
            {
                break;
            }
            let (gid, _) = pair.gids();
            match self.packet_of(number, index, machine) {
                Ok(packet) => {
                    self.send_packet(gid, packet);
                    let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
                    pair.requests[index].sent += 1;
                    if pair.deadline.is_none() {
                        pair.deadline = pair.timeout().map(|timeout| now + timeout);
                    }
                }
                Err(syndrome) => {
                    let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
                    pair.requests[index].done = Some(syndrome);
                    return self.retire(number, machine);
                }
            }
        }
    }

    /// The next packet of a request.
    fn packet_of(
        &self,
        number: u32,
        index: usize,
        machine: &mut dyn Machine,
    ) -> Result<Packet, u8> {
        let Some(pair) = self.state.queue_pairs.get(&number) else { return Err(LOCAL_OPERATION) };
        let (request, mtu) = (&pair.requests[index], pair.mtu() as u64);
        let control = request.control;
        let mut packet = Packet {
            path: pair.path(),
            partition: 0xffff,
            pair: pair.remote_pair(),
            immediate: control.immediate,
            remote: request.remote,
            ..Packet::default()
        };
        if request.is_answered() {
            // Requests the remaining part.
            let skipped = u64::from(request.acknowledged) * mtu;
            packet.sequence = request.first.wrapping_add(request.acknowledged) & SEQUENCE;
            packet.operation = match control.opcode {
                READ => packet::READ_REQUEST,
                COMPARE_SWAP => packet::COMPARE_SWAP,
                _ => packet::FETCH_ADD,
            };
            if control.opcode == READ {
                packet.remote.address += skipped;
                packet.remote.length -= skipped as u32;
            }
            packet.atomic = request.atomic;
            packet.wants_ack = true;
            return Ok(packet);
        }
        let place = request.sent;
        let (is_first, is_last) = (place == 0, place + 1 == request.count);
        let offset = u64::from(place) * mtu;
        let length = (request.length - offset).min(mtu) as usize;
        packet.sequence = request.first.wrapping_add(place) & SEQUENCE;
        packet.operation = operation(control.opcode, is_first, is_last);
        packet.wants_ack = is_last || (place + 1) % ACK_EVERY == 0;
        packet.solicited = is_last && control.solicited && control.opcode != WRITE;
        packet.payload = self.payload(number, request, offset, length, machine)?;
        if !is_first {
            packet.remote = Remote::default();
        }
        Ok(packet)
    }

    /// Handles a response packet.
    pub(super) fn take_response(
        &mut self,
        number: u32,
        packet: &Packet,
        machine: &mut dyn Machine,
    ) {
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
        if pair.state != State::ReadyToSend {
            return;
        }
        let sequence = packet.sequence;
        if packet.operation != packet::ACKNOWLEDGE {
            // Response data acknowledges all earlier packets.
            self.acknowledge_up_to(number, sequence.wrapping_sub(1) & SEQUENCE, machine);
            self.take_data(number, packet, machine);
            return self.retire(number, machine);
        }
        let syndrome = packet.acknowledge.0;
        let before = sequence.wrapping_sub(1) & SEQUENCE;
        match syndrome & 0xe0 {
            ACK => self.acknowledge_up_to(number, sequence, machine),
            NOT_READY => {
                self.acknowledge_up_to(number, before, machine);
                self.not_ready(number, sequence, syndrome & 0x1f, machine);
            }
            NEGATIVE => {
                self.acknowledge_up_to(number, before, machine);
                match syndrome & 0x1f {
                    0 => {
                        self.counts.sequence_naks += 1;
                        self.retransmit(number, sequence, machine)
                    }
                    1 => self.end_request(number, sequence, REMOTE_INVALID, machine),
                    2 => self.end_request(number, sequence, REMOTE_ACCESS, machine),
                    _ => self.end_request(number, sequence, REMOTE_OPERATION, machine),
                }
            }
            _ => {}
        }
        self.retire(number, machine);
    }

    fn acknowledge_up_to(&mut self, number: u32, sequence: u32, machine: &mut dyn Machine) {
        let now = self.now;
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
        let mut progress = false;
        let mut lost = None;
        for request in pair.requests.iter_mut().filter(|request| request.done.is_none()) {
            if request.sent == 0 || ahead(sequence, request.first) < 0 {
                break;
            }
            if request.is_answered() {
                // A later packet is acknowledged, so this request's response was lost.
                if ahead(sequence, request.last()) >= 0 {
                    let next = request.first.wrapping_add(request.acknowledged);
                    lost = Some(next & SEQUENCE);
                }
                break;
            }
            let count = (ahead(sequence, request.first) as u32 + 1).min(request.sent);
            progress |= count > request.acknowledged;
            request.acknowledged = request.acknowledged.max(count);
            if request.acknowledged == request.count {
                request.done = Some(0);
            }
        }
        if progress {
            (pair.retries, pair.not_ready_retries) = (0, 0);
            pair.deadline = pair.timeout().map(|timeout| now + timeout);
        }
        if let Some(sequence) = lost {
            self.retransmit(number, sequence, machine);
        }
    }

    /// Handles READ data, or the original value of an atomic operation.
    fn take_data(&mut self, number: u32, packet: &Packet, machine: &mut dyn Machine) {
        let now = self.now;
        let Some(pair) = self.state.queue_pairs.get(&number) else { return };
        let mtu = pair.mtu() as u64;
        let waits = |request: &Request| request.is_answered() && request.done.is_none();
        let Some(index) = pair.requests.iter().position(waits) else { return };
        let request = &pair.requests[index];
        let next = request.first.wrapping_add(request.acknowledged) & SEQUENCE;
        if packet.sequence != next || !request.is_outstanding() {
            return;
        }
        let offset = u64::from(request.acknowledged) * mtu;
        let is_last = request.acknowledged + 1 == request.count;
        let original = packet.original.to_le_bytes();
        let (data, expected) = match request.control.opcode {
            READ => (&packet.payload[..], (request.length - offset).min(mtu)),
            _ => (&original[..], 8),
        };
        let ends = matches!(packet.operation, packet::READ_LAST | packet::READ_ONLY);
        let fits = match request.control.opcode {
            READ => ends == is_last && data.len() as u64 == expected,
            _ => packet.operation == packet::ATOMIC_ACKNOWLEDGE,
        };
        let mut result = if fits { Ok(()) } else { Err(BAD_RESPONSE) };
        let access = pair.access(LOCAL_WRITE);
        let (mut skip, mut rest) = (offset, data);
        for segment in &request.segments {
            let size = u64::from(segment.length);
            if skip >= size {
                skip -= size;
                continue;
            }
            let (part, behind) = rest.split_at(rest.len().min((size - skip) as usize));
            let address = segment.address + skip;
            result = result.and(self.scatter(access, segment.key, address, part, machine));
            (skip, rest) = (0, behind);
            if rest.is_empty() {
                break;
            }
        }
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
        let request = &mut pair.requests[index];
        request.acknowledged += 1;
        match result {
            Ok(()) if is_last => request.done = Some(0),
            Ok(()) => {}
            Err(syndrome) => request.done = Some(syndrome),
        }
        (pair.retries, pair.not_ready_retries) = (0, 0);
        pair.deadline = pair.timeout().map(|timeout| now + timeout);
    }

    /// RNR NAK: retransmits from this packet on after a delay.
    fn not_ready(&mut self, number: u32, sequence: u32, timer: u8, machine: &mut dyn Machine) {
        let now = self.now;
        self.counts.naks += 1;
        self.counts.not_ready_naks += 1;
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
        let most = super::fields::get(&pair.context, 0x390, 3) as u32;
        if most != FOR_EVER && pair.not_ready_retries >= most {
            return self.end_request(number, sequence, NOT_READY_RETRIES, machine);
        }
        pair.not_ready_retries += 1;
        go_back(pair, sequence);
        pair.deadline = None;
        pair.resend_at = Some(now + NOT_READY_TIMES[usize::from(timer)] * 10_000);
    }

    /// A packet was lost: retransmits from it on.
    fn retransmit(&mut self, number: u32, sequence: u32, machine: &mut dyn Machine) {
        self.counts.naks += 1;
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
        let most = super::fields::get(&pair.context, 0x38d, 3) as u32;
        if pair.retries >= most {
            return self.end_request(number, sequence, RETRIES, machine);
        }
        pair.retries += 1;
        go_back(pair, sequence);
    }

    /// Handles the expired timers of a queue pair.
    pub(super) fn expire(&mut self, number: u32, machine: &mut dyn Machine) {
        let now = self.now;
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
        if pair.resend_at.is_some_and(|at| at <= now) {
            pair.resend_at = None;
        }
        if pair.deadline.is_none_or(|at| at > now) || pair.resend_at.is_some() {
            return;
        }
        pair.deadline = None;
        let oldest = pair.requests.iter().find(|request| request.is_outstanding());
        let Some(oldest) = oldest else { return };
        let sequence = oldest.first.wrapping_add(oldest.acknowledged) & SEQUENCE;
        self.counts.timeouts += 1;
        self.retransmit(number, sequence, machine);
        self.retire(number, machine);
    }

    /// Fails the request of this packet.
    fn end_request(&mut self, number: u32, sequence: u32, syndrome: u8, _: &mut dyn Machine) {
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
        let mut requests = pair.requests.iter_mut().filter(|request| request.done.is_none());
        let holds = |request: &&mut Request| ahead(request.last(), sequence) >= 0;
        if let Some(request) = requests.find(holds) {
            request.done = Some(syndrome);
        }
    }

    /// Completes finished requests, oldest first.
    fn retire(&mut self, number: u32, machine: &mut dyn Machine) {
        loop {
            let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
            let Some(mut syndrome) = pair.requests.front().and_then(|request| request.done) else {
                break;
            };
            let fails = |fault| match fault {
                Fault::RequestFails(syndrome) => Some(syndrome),
                _ => None,
            };
            if let Some(fault) = self.once(fails)
                && let Some(pair) = self.state.queue_pairs.get_mut(&number)
                && let Some(request) = pair.requests.front_mut()
            {
                (syndrome, request.done) = (fault, Some(fault));
            }
            let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
            if syndrome != 0 {
                return self.fail_pair(number, machine);
            }
            let Some(request) = pair.requests.pop_front() else { break };
            if request.control.signaled {
                let mut entry = [0; 64];
                put32(&mut entry, 0x20, pair.user_index);
                let length = if request.is_answered() { request.length as u32 } else { 0 };
                put32(&mut entry, 0x2c, length);
                put32(&mut entry, 0x38, u32::from(request.control.opcode) << 24 | number);
                put16(&mut entry, 0x3c, request.control.counter);
                entry[63] = REQUEST_DONE << 4;
                let queue = pair.send_completions();
                self.complete(queue, entry, false, machine);
            }
        }
        let Some(pair) = self.state.queue_pairs.get_mut(&number) else { return };
        if !pair.requests.iter().any(Request::is_outstanding) {
            pair.deadline = None;
        }
    }

    /// Whether [`Fault::NeverAcknowledges`] suppresses acknowledgements.
    pub(super) fn is_mute(&self) -> bool {
        self.has(Fault::NeverAcknowledges)
    }
}

/// Rewinds the queue pair: transmission continues from this packet.
fn go_back(pair: &mut QueuePair, sequence: u32) {
    for request in pair.requests.iter_mut().filter(|request| request.done.is_none()) {
        if request.is_answered() {
            request.sent = 0;
            continue;
        }
        let place = ahead(sequence, request.first).max(0) as u32;
        request.sent = request.sent.min(place.max(request.acknowledged));
    }
}

/// The operation code of a packet.
fn operation(opcode: u8, is_first: bool, is_last: bool) -> u8 {
    let [only, first, middle, last] = match opcode {
        WRITE => {
            [packet::WRITE_ONLY, packet::WRITE_FIRST, packet::WRITE_MIDDLE, packet::WRITE_LAST]
        }
        WRITE_IMMEDIATE => [
            packet::WRITE_ONLY_IMMEDIATE,
            packet::WRITE_FIRST,
            packet::WRITE_MIDDLE,
            packet::WRITE_LAST_IMMEDIATE,
        ],
        SEND_IMMEDIATE => [
            packet::SEND_ONLY_IMMEDIATE,
            packet::SEND_FIRST,
            packet::SEND_MIDDLE,
            packet::SEND_LAST_IMMEDIATE,
        ],
        SEND_INVALIDATE => [
            packet::SEND_ONLY_INVALIDATE,
            packet::SEND_FIRST,
            packet::SEND_MIDDLE,
            packet::SEND_LAST_INVALIDATE,
        ],
        _ => [packet::SEND_ONLY, packet::SEND_FIRST, packet::SEND_MIDDLE, packet::SEND_LAST],
    };
    match (is_first, is_last) {
        (true, true) => only,
        (true, false) => first,
        (false, false) => middle,
        (false, true) => last,
    }
}

/// Reads the next work request of a queue pair with `waiting` posted blocks, if it is complete.
fn read_request(pair: &QueuePair, waiting: u16, machine: &mut dyn Machine) -> Option<Vec<u8>> {
    let mut bytes = vec![0; BLOCK];
    machine.read(pair.send_block(pair.send_consumer)?, &mut bytes).ok()?;
    let control = Control::read(&bytes);
    if control.segments == 0 || control.blocks() > waiting {
        return None;
    }
    for index in 1..control.blocks() {
        let mut block = [0; BLOCK];
        let at = pair.send_block(pair.send_consumer.wrapping_add(index))?;
        machine.read(at, &mut block).ok()?;
        bytes.extend_from_slice(&block);
    }
    bytes.truncate(control.segments * SEGMENT);
    Some(bytes)
}
