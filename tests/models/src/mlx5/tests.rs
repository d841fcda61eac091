//! Tests of the model alone: refused commands, and two functions with connected queue pairs.

use super::fields::{be16, be32, be64, put32, put64, set};
use super::*;
use crate::testing::TestMachine;

mod reset;

const MEMORY: usize = 8 << 20;
const QUEUE: u64 = 0x1000;
const OUTPUT: u64 = 0x10_000;
const INPUT: u64 = 0x20_000;
/// Start of the memory that `alloc` hands out.
const FREE: u64 = 0x40_000;
const REGION: u64 = 0x4000;
const ACCESS_ALL: u32 = 0x7c00;

struct Bench {
    machine: TestMachine,
    cards: [Mlx5; 2],
    now: Nanoseconds,
    next: u64,
    token: u8,
}

/// Objects of a card's driver.
#[derive(Clone, Copy, Default)]
struct Side {
    card: usize,
    uar: u32,
    domain: u32,
    completions: u32,
    ring: u64,
    record: u64,
    taken: u32,
    pair: u32,
    queue: u64,
    doorbell: u64,
    sent: u16,
    received: u16,
    key: u32,
    memory: u64,
}

/// A completion: opcode, syndrome if it is an error, counter, bytes.
type Completion = (u8, u8, u16, u32);

impl Bench {
    fn new() -> Self {
        let cards = [1, 2].map(|last| {
            let [a, b, c, d, e, _] = MAC;
            let mac = [a, b, c, d, e, last];
            let (start_up, load, pages_for_pairs) = (0, 0, 0);
            let pages = [2, 3, 0];
            let settings =
                Config { mac, pages, pages_for_pairs, start_up, load, ..Config::default() };
            let mut card = Mlx5::new(settings);
            card.config().write(4, &6u16.to_le_bytes());
            card
        });
        Bench { machine: TestMachine::new(MEMORY), cards, now: 0, next: FREE, token: 0 }
    }

    fn alloc(&mut self, bytes: u64) -> u64 {
        let at = self.next;
        self.next += bytes.next_multiple_of(4096);
        at
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        self.machine.write(at, bytes).unwrap();
    }

    fn get(&mut self, at: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.machine.read(at, &mut bytes).unwrap();
        bytes
    }

    fn write(&mut self, card: usize, offset: u64, bytes: &[u8]) {
        self.cards[card].write(0, offset, bytes, self.now, &mut self.machine);
    }

    /// Sends a command with its input from byte 8 on. `change` may corrupt its entry. Returns the delivery status and
    /// the output.
    fn deliver(
        &mut self,
        card: usize,
        opcode: u16,
        operation: u16,
        input: &[u8],
        change: impl FnOnce(&mut [u8; 64], &mut TestMachine),
    ) -> (u8, Vec<u8>) {
        const ROOM: usize = 0x1010;
        self.token = self.token % 255 + 1;
        let mut whole =
            [&opcode.to_be_bytes()[..], &[0; 4], &operation.to_be_bytes(), input].concat();
        let length = whole.len();
        whole.resize(length.max(16), 0);
        let queue = QUEUE + 0x1000 * card as u64;
        let boxes =
            |first: u64, count: usize, bytes: &[u8], token: u8, machine: &mut TestMachine| {
                for n in 0..count {
                    let mut one = [0; 576];
                    let part = bytes.chunks(512).nth(n).unwrap_or(&[]);
                    one[..part.len()].copy_from_slice(part);
                    let next = if n + 1 < count { first + 1024 * (n as u64 + 1) } else { 0 };
                    put64(&mut one, 0x230, next);
                    put32(&mut one, 0x238, n as u32);
                    one[0x23d] = token;
                    machine.write(first + 1024 * n as u64, &one).unwrap();
                }
            };
        let count = length.saturating_sub(16).div_ceil(512);
        boxes(INPUT, count, &whole[16..], self.token, &mut self.machine);
        boxes(OUTPUT, 8, &[], self.token, &mut self.machine);
        let mut entry = [0; 64];
        entry[0] = 7;
        put32(&mut entry, 4, length as u32);
        put64(&mut entry, 8, if count > 0 { INPUT } else { 0 });
        entry[0x10..0x20].copy_from_slice(&whole[..16]);
        put64(&mut entry, 0x30, OUTPUT);
        put32(&mut entry, 0x38, ROOM as u32);
        entry[0x3c] = self.token;
        entry[0x3f] = 1;
        entry[0x3d] = !entry.iter().fold(0, |sum, byte| sum ^ byte);
        change(&mut entry, &mut self.machine);
        self.put(queue, &entry);
        self.write(card, 0x18, &1u32.to_be_bytes());
        let entry = self.get(queue, 64);
        assert_eq!(entry[0x3f] & 1, 0, "the command is complete");
        let mut output = entry[0x20..0x30].to_vec();
        for n in 0..8 {
            output.extend(self.get(OUTPUT + 1024 * n, 512));
        }
        (entry[0x3f] >> 1, output)
    }

    fn command(
        &mut self,
        card: usize,
        opcode: u16,
        operation: u16,
        input: &[u8],
    ) -> Result<Vec<u8>, u8> {
        let (delivery, output) = self.deliver(card, opcode, operation, input, |_, _| {});
        assert_eq!(delivery, 0);
        if output[0] == 0 { Ok(output) } else { Err(output[0]) }
    }

    fn made(&mut self, card: usize, opcode: u16, input: &[u8]) -> u32 {
        let output = self.command(card, opcode, 0, input);
        let output =
            output.unwrap_or_else(|_| panic!("{opcode:x} {:?}", self.cards[card].complaints));
        be32(&output, 8)
    }

    fn start_queue(&mut self, card: usize) {
        let queue = (QUEUE + 0x1000 * card as u64) as u32;
        self.write(card, 0x10, &0u32.to_be_bytes());
        self.write(card, 0x14, &queue.to_be_bytes());
    }

    fn give(&mut self, card: usize, pages: u32) {
        let mut input = [[0; 4], pages.to_be_bytes()].concat();
        for _ in 0..pages {
            let page = self.alloc(4096);
            input.extend(page.to_be_bytes());
        }
        self.command(card, 0x108, 1, &input).unwrap();
    }

    /// Initialises a card up to INIT_HCA.
    fn bring_up(&mut self, card: usize) {
        self.start_queue(card);
        self.command(card, 0x104, 0, &[0; 8]).unwrap();
        self.command(card, 0x10b, 0, &[0, 0, 0, 1, 0, 0, 0, 0]).unwrap();
        self.give(card, 5);
        self.command(card, 0x102, 0, &[0; 0x18]).unwrap();
    }

    /// Creates an event queue, a completion queue, a region with all rights and a GID, and enables RoCE.
    fn open(&mut self, card: usize) -> Side {
        self.bring_up(card);
        let uar = self.made(card, 0x802, &[0; 8]);
        let ring = self.alloc(4096);
        self.put(ring, &[1; 4096]);
        let mut input = vec![0; 0x108];
        set(&mut input[8..], 0x63, 5, 6);
        set(&mut input[8..], 0x68, 24, uar.into());
        put64(&mut input, 0x50, 1 << 0x0b | 1 << 2 | 1 << 0x11);
        input.extend(ring.to_be_bytes());
        let events = self.made(card, 0x301, &input);
        let domain = self.made(card, 0x800, &[0; 8]);
        let (ring, record) = (self.alloc(4096), self.alloc(4096));
        self.put(ring, &[0xf1; 4096]);
        let mut input = vec![0; 0x108];
        set(&mut input[8..], 0x63, 5, 6);
        set(&mut input[8..], 0x68, 24, uar.into());
        set(&mut input[8..], 0xa0, 32, events.into());
        set(&mut input[8..], 0x1c0, 64, record);
        input.extend(ring.to_be_bytes());
        let completions = self.made(card, 0x400, &input);
        let memory = self.alloc(REGION);
        let mut input = vec![0; 0x108];
        let context = &mut input[8..];
        put32(context, 0, ACCESS_ALL | 1 << 8);
        put32(context, 4, 0xff_ffff << 8 | 0x5a);
        put32(context, 0xc, 1 << 24 | domain);
        put64(context, 0x10, memory);
        put64(context, 0x18, REGION);
        put32(context, 0x34, 2);
        put32(context, 0x38, 12);
        put32(&mut input, 0x58, 2);
        (0..4).for_each(|n| input.extend((memory + 4096 * n).to_be_bytes()));
        let key = self.made(card, 0x200, &input) << 8 | 0x5a;
        let mut input = vec![0; 0x1f8];
        put32(&mut input, 4, 2);
        put32(&mut input, 0xf8, 1);
        self.command(card, 0x755, 0, &input).unwrap();
        let mut input = vec![0; 0x28];
        input[8 + 10..8 + 16].copy_from_slice(&[0xff, 0xff, 10, 0, 0, card as u8 + 1]);
        input[8 + 0x12..8 + 0x18].copy_from_slice(&self.cards[card].settings.mac);
        input[8 + 0x1b] = 2;
        self.command(card, 0x761, 0, &input).unwrap();
        Side { card, uar, domain, completions, ring, record, key, memory, ..Side::default() }
    }

    fn create_pair(&mut self, side: &mut Side) {
        (side.queue, side.doorbell) = (self.alloc(4096), self.alloc(4096));
        let mut input = vec![0; 0x108];
        let context = &mut input[0x10..];
        set(context, 0x13, 2, 3);
        set(context, 0x28, 24, side.domain.into());
        set(context, 0x49, 4, 4);
        set(context, 0x51, 4, 4);
        set(context, 0x68, 24, side.uar.into());
        set(context, 0x88, 24, 0x77);
        set(context, 0x3e8, 24, side.completions.into());
        set(context, 0x4e8, 24, side.completions.into());
        put64(context, 0xa0, side.doorbell);
        input.extend(side.queue.to_be_bytes());
        side.pair = self.made(side.card, 0x500, &input);
    }

    /// Takes a queue pair to ready-to-send. `retries` limits both retransmissions and RNR retries.
    fn connect(&mut self, side: &Side, peer: &Side, retries: u64) {
        let mut input = vec![0; 0x108];
        put32(&mut input, 0, side.pair);
        let context = &mut input[0x10..];
        set(context, 0x13, 2, 3);
        set(context, 0x28, 24, side.domain.into());
        set(context, 0x1e8, 8, 1);
        set(context, 0x490, 3, 7);
        self.command(side.card, 0x502, 0, &input).unwrap();
        let mut input = vec![0; 0x108];
        put32(&mut input, 0, side.pair);
        let context = &mut input[0x10..];
        set(context, 0x40, 3, 1);
        set(context, 0x43, 5, 30);
        set(context, 0xa8, 24, peer.pair.into());
        set(context, 0x488, 3, 2);
        set(context, 0x4a3, 5, 1);
        set(context, 0x4a8, 24, 0xff_fffe);
        set(context, 0x118, 8, 64);
        context[0x28 + 10..0x38].copy_from_slice(&[0xff, 0xff, 10, 0, 0, peer.card as u8 + 1]);
        context[0x3e..0x44].copy_from_slice(&self.cards[peer.card].settings.mac);
        self.command(side.card, 0x503, 0, &input).unwrap();
        let mut input = vec![0; 0x108];
        put32(&mut input, 0, side.pair);
        let context = &mut input[0x10..];
        set(context, 0x3c8, 24, 0xff_fffe);
        set(context, 0x100, 5, 8);
        set(context, 0x38d, 3, retries);
        set(context, 0x390, 3, retries);
        set(context, 0x388, 3, 2);
        self.command(side.card, 0x504, 0, &input).unwrap();
    }

    fn pairs() -> (Bench, Side, Side) {
        let mut bench = Bench::new();
        let (mut a, mut b) = (bench.open(0), bench.open(1));
        bench.create_pair(&mut a);
        bench.create_pair(&mut b);
        bench.connect(&a, &b, 3);
        bench.connect(&b, &a, 3);
        (bench, a, b)
    }

    /// Posts a work request: a control segment, then these segments.
    fn send(&mut self, opcode: u8, immediate: u32, segments: &[[u8; 16]], side: &mut Side) {
        let count = segments.len() + 1;
        let mut request = vec![0; 16];
        put32(&mut request, 0, u32::from(side.sent) << 8 | u32::from(opcode));
        put32(&mut request, 4, side.pair << 8 | count as u32);
        request[11] = 2 << 2;
        put32(&mut request, 12, immediate);
        request.extend(segments.concat());
        request.resize(request.len().next_multiple_of(64), 0);
        for (n, block) in request.chunks(64).enumerate() {
            let at = side.queue + 256 + 64 * ((u64::from(side.sent) + n as u64) & 15);
            self.put(at, block);
        }
        side.sent = side.sent.wrapping_add((request.len() / 64) as u16);
        self.put(side.doorbell + 4, &u32::from(side.sent).to_be_bytes());
        let page = u64::from(side.uar) << 12;
        self.write(side.card, page + 0x800, &request[..8]);
    }

    fn post(&mut self, side: &mut Side, offset: u64, length: u32) {
        let at = side.queue + 16 * (u64::from(side.received) & 15);
        self.put(at, &data(side, offset, length));
        side.received = side.received.wrapping_add(1);
        self.put(side.doorbell, &u32::from(side.received).to_be_bytes());
    }

    /// Advances time and carries frames. Returns the completions of each side.
    fn run(&mut self, time: Nanoseconds, sides: &mut [&mut Side]) -> Vec<Vec<Completion>> {
        let end = self.now + time;
        loop {
            let mut due = end;
            for n in 0..2 {
                let next = self.cards[n].poll(self.now, &mut self.machine);
                due = due.min(next.unwrap_or(end));
                let sent = std::mem::take(&mut self.cards[n].sent);
                if !sent.is_empty() {
                    due = self.now;
                }
                self.cards[1 - n].arriving.extend(sent);
            }
            if self.now >= end && due >= end {
                break;
            }
            self.now = due.max(self.now + 1).min(end);
        }
        let mut all = Vec::new();
        for side in sides {
            let mut completed = Vec::new();
            loop {
                let at = side.ring + 64 * u64::from(side.taken & 63);
                let entry = self.get(at, 64);
                if entry[63] >> 4 == 0xf || u32::from(entry[63] & 1) != side.taken >> 6 & 1 {
                    break;
                }
                side.taken += 1;
                let opcode = entry[63] >> 4;
                let syndrome = if opcode >= 0xd { entry[0x37] } else { 0 };
                assert_eq!(be32(&entry, 0x20), 0x77);
                completed.push((opcode, syndrome, be16(&entry, 0x3c), be32(&entry, 0x2c)));
            }
            self.put(side.record, &side.taken.to_be_bytes());
            all.push(completed);
        }
        all
    }

    fn complained(&mut self, card: usize) -> usize {
        std::mem::take(&mut self.cards[card].complaints).len()
    }
}

fn data(side: &Side, offset: u64, length: u32) -> [u8; 16] {
    let mut segment = [0; 16];
    put32(&mut segment, 0, length);
    put32(&mut segment, 4, side.key);
    put64(&mut segment, 8, side.memory + offset);
    segment
}

fn remote(side: &Side, offset: u64, key: u32) -> [u8; 16] {
    let mut segment = [0; 16];
    put64(&mut segment, 0, side.memory + offset);
    put32(&mut segment, 8, key);
    segment
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 13 + n / 251) as u8).collect()
}

#[test]
fn corrupt_command_entries_fail_delivery() {
    let mut bench = Bench::new();
    bench.start_queue(0);
    type Spoil = fn(&mut [u8; 64], &mut TestMachine);
    let cases: [(u8, Spoil); 5] = [
        (0x10, |entry, _| entry[0] = 6),
        (1, |entry, _| entry[0x3d] ^= 1),
        (9, |entry, _| entry[2] = 1),
        (2, |_, machine| machine.memory[OUTPUT as usize + 0x23d] ^= 0xff),
        (3, |_, machine| machine.memory[OUTPUT as usize + 0x23b] = 9),
    ];
    for (status, spoil) in cases {
        assert_eq!(bench.deliver(0, 0x104, 0, &[0; 8], spoil).0, status);
        assert_eq!(bench.complained(0), 1);
    }
    bench.command(0, 0x104, 0, &[0; 8]).unwrap();
}

#[test]
fn unknown_malformed_and_early_commands_are_refused() {
    let mut bench = Bench::new();
    bench.start_queue(0);
    assert_eq!(bench.command(0, 0x800, 0, &[0; 8]), Err(4), "not enabled");
    bench.command(0, 0x104, 0, &[0; 8]).unwrap();
    assert_eq!(bench.command(0, 0x104, 0, &[0; 8]), Err(4), "enabled already");
    assert_eq!(bench.command(0, 0xfff, 0, &[0; 8]), Err(2));
    assert_eq!(bench.command(0, 0x107, 1, &[0; 12]), Err(0x50));
    assert_eq!(bench.command(0, 0x107, 1, &[0, 0, 0, 0, 0, 0, 0, 1]), Err(3));
    assert_eq!(bench.command(0, 0x800, 0, &[0; 8]), Err(4), "not initialised");
    assert_eq!(bench.command(0, 0x102, 0, &[0; 0x18]), Err(4), "ISSI is 0");
    bench.command(0, 0x10b, 0, &[0, 0, 0, 1, 0, 0, 0, 0]).unwrap();
    assert_eq!(bench.command(0, 0x102, 0, &[0; 0x18]), Err(4), "no pages");
    bench.give(0, 5);
    bench.command(0, 0x102, 0, &[0; 0x18]).unwrap();
    assert_eq!(bench.complained(0), 8);
    let domain = bench.made(0, 0x800, &[0; 8]);
    bench.command(0, 0x801, 0, &[domain.to_be_bytes(), [0; 4]].concat()).unwrap();
    let again = bench.command(0, 0x801, 0, &[domain.to_be_bytes(), [0; 4]].concat());
    assert_eq!(again, Err(5));
}

#[test]
fn objects_in_use_cannot_be_destroyed() {
    let (mut bench, a, _) = Bench::pairs();
    let destroy = |bench: &mut Bench, opcode, number: u32| {
        bench.command(0, opcode, 0, &[number.to_be_bytes(), [0; 4]].concat())
    };
    assert_eq!(destroy(&mut bench, 0x401, a.completions), Err(9));
    assert_eq!(destroy(&mut bench, 0x801, a.domain), Err(9));
    assert_eq!(destroy(&mut bench, 0x803, a.uar), Err(9));
    destroy(&mut bench, 0x501, a.pair).unwrap();
    destroy(&mut bench, 0x401, a.completions).unwrap();
    assert_eq!(destroy(&mut bench, 0x801, a.domain), Err(9), "a key uses the domain");
    destroy(&mut bench, 0x202, a.key >> 8).unwrap();
    destroy(&mut bench, 0x801, a.domain).unwrap();
    destroy(&mut bench, 0x803, a.uar).unwrap();
}

#[test]
fn host_writes_to_firmware_pages_are_detected() {
    let mut bench = Bench::new();
    bench.bring_up(0);
    let page = bench.cards[0].state.pages[1];
    bench.put(page, b"mine now");
    bench.command(0, 0x103, 0, &[0; 8]).unwrap();
    let output = bench.command(0, 0x108, 2, &[0, 0, 0, 0, 0, 0, 0, 99]).unwrap();
    assert_eq!(be32(&output, 8), 5);
    assert!(be64(&output, 16) >= FREE);
    assert_eq!(bench.complained(0), 1);
    bench.command(0, 0x105, 0, &[0; 8]).unwrap();
    assert_eq!(bench.complained(0), 0);
}

#[test]
fn messages_of_many_packets_arrive_complete() {
    let (mut bench, mut a, mut b) = Bench::pairs();
    // Packet numbers wrap during the transfer. The MTU is 256.
    let bytes = pattern(5000);
    bench.put(a.memory, &bytes);
    bench.post(&mut b, 0x1000, 8000);
    let segments = [data(&a, 0, 1000), data(&a, 1000, 4000)];
    bench.send(work_request::SEND, 0, &segments, &mut a);
    let done = bench.run(1_000_000, &mut [&mut a, &mut b]);
    assert_eq!(done, [vec![(0, 0, 0, 0)], vec![(2, 0, 0, 5000)]]);
    assert_eq!(bench.get(b.memory + 0x1000, 5000), bytes);
    // A WRITE with immediate consumes a receive, and a READ returns the same data.
    bench.post(&mut b, 0, 0);
    let at = remote(&b, 0x2000, b.key);
    bench.send(work_request::WRITE_IMMEDIATE, 7, &[at, data(&a, 0, 700)], &mut a);
    bench.send(work_request::READ, 0, &[at, data(&a, 0x3000, 700)], &mut a);
    let done = bench.run(1_000_000, &mut [&mut a, &mut b]);
    assert_eq!(done, [vec![(0, 0, 1, 0), (0, 0, 2, 700)], vec![(1, 0, 1, 700)]]);
    assert_eq!(bench.get(a.memory + 0x3000, 700), bytes[..700]);
    for card in [0, 1] {
        assert_eq!(bench.complained(card), 0);
    }
}

#[test]
fn atomic_operations_return_the_original_value() {
    let (mut bench, mut a, mut b) = Bench::pairs();
    bench.put(b.memory, &40u64.to_le_bytes());
    let operands = |first: u64, second: u64| {
        let mut segment = [0; 16];
        put64(&mut segment, 0, first);
        put64(&mut segment, 8, second);
        segment
    };
    let at = remote(&b, 0, b.key);
    bench.send(work_request::FETCH_ADD, 0, &[at, operands(2, 0), data(&a, 0, 8)], &mut a);
    bench.send(work_request::COMPARE_SWAP, 0, &[at, operands(7, 42), data(&a, 8, 8)], &mut a);
    bench.send(work_request::COMPARE_SWAP, 0, &[at, operands(9, 42), data(&a, 16, 8)], &mut a);
    let done = bench.run(1_000_000, &mut [&mut a, &mut b]);
    assert_eq!(done[0].len(), 3);
    let found: Vec<u64> = (0..3)
        .map(|n| u64::from_le_bytes(bench.get(a.memory + 8 * n, 8).try_into().unwrap()))
        .collect();
    assert_eq!(found, [40, 42, 7]);
    assert_eq!(bench.get(b.memory, 8), 7u64.to_le_bytes());
}

#[test]
fn lost_packets_are_retransmitted() {
    for lost in 0..12 {
        let (mut bench, mut a, mut b) = Bench::pairs();
        let bytes = pattern(2000);
        bench.put(a.memory, &bytes);
        bench.post(&mut b, 0x1000, 2000);
        bench.send(work_request::SEND, 0, &[data(&a, 0, 2000)], &mut a);
        let at = remote(&b, 0x1000, b.key);
        bench.send(work_request::READ, 0, &[at, data(&a, 0x3000, 2000)], &mut a);
        // Loses one packet in each direction.
        let mut seen = 0;
        for _ in 0..2000 {
            for n in 0..2 {
                bench.cards[n].poll(bench.now, &mut bench.machine);
                for frame in std::mem::take(&mut bench.cards[n].sent) {
                    seen += 1;
                    if seen != lost + 1 && seen != 3 * lost + 5 {
                        bench.cards[1 - n].arriving.push_back(frame);
                    }
                }
            }
            bench.now += 100_000;
        }
        let done = bench.run(1_000_000, &mut [&mut a, &mut b]);
        assert_eq!(done, [vec![(0, 0, 0, 0), (0, 0, 1, 2000)], vec![(2, 0, 0, 2000)]], "{lost}");
        assert_eq!(bench.get(a.memory + 0x3000, 2000), bytes, "{lost}");
    }
}

#[test]
fn rnr_retries_end_with_a_receive_or_at_their_limit() {
    let (mut bench, mut a, mut b) = Bench::pairs();
    bench.send(work_request::SEND, 0, &[data(&a, 0, 10)], &mut a);
    let done = bench.run(15_000, &mut [&mut a, &mut b]);
    assert_eq!(done, [vec![], vec![]]);
    bench.post(&mut b, 0, 100);
    let done = bench.run(1_000_000, &mut [&mut a, &mut b]);
    assert_eq!(done, [vec![(0, 0, 0, 0)], vec![(2, 0, 0, 10)]]);
    bench.send(work_request::SEND, 0, &[data(&a, 0, 10)], &mut a);
    bench.send(work_request::SEND, 0, &[data(&a, 0, 10)], &mut a);
    let done = bench.run(10_000_000, &mut [&mut a, &mut b]);
    assert_eq!(done[0], [(0xd, 0x16, 1, 0), (0xd, 5, 2, 0)], "RNR retries, then a flush");
}

#[test]
fn silent_peer_exceeds_the_retries() {
    let (mut bench, mut a, mut b) = Bench::pairs();
    bench.cards[1].inject(Fault::NeverAcknowledges);
    bench.post(&mut b, 0, 100);
    bench.send(work_request::SEND, 0, &[data(&a, 0, 10)], &mut a);
    let done = bench.run(20_000_000, &mut [&mut a, &mut b]);
    assert_eq!(done, [vec![(0xd, 0x15, 0, 0)], vec![(2, 0, 0, 10)]]);
    assert_eq!(bench.cards[0].counts.timeouts, 4);
}

#[test]
fn access_without_rights_fails_both_sides() {
    type Wrong = fn(&Side) -> [u8; 16];
    let wrongs: [Wrong; 3] = [
        |b| remote(b, 0, b.key ^ 1),
        |b| remote(b, REGION - 5, b.key),
        |b| remote(b, 0, 0x99_9900),
    ];
    for wrong in wrongs {
        let (mut bench, mut a, mut b) = Bench::pairs();
        bench.post(&mut b, 0, 100);
        bench.send(work_request::WRITE, 0, &[wrong(&b), data(&a, 0, 10)], &mut a);
        let done = bench.run(2_000_000, &mut [&mut a, &mut b]);
        assert_eq!(done, [vec![(0xd, 0x13, 0, 0)], vec![(0xe, 5, 0, 0)]]);
    }
    // A message longer than its receive.
    let (mut bench, mut a, mut b) = Bench::pairs();
    bench.post(&mut b, 0, 9);
    bench.send(work_request::SEND, 0, &[data(&a, 0, 10)], &mut a);
    let done = bench.run(2_000_000, &mut [&mut a, &mut b]);
    assert_eq!(done, [vec![(0xd, 0x12, 0, 0)], vec![(0xe, 1, 0, 0)]]);
}

#[test]
fn local_access_without_rights_fails_only_the_requester() {
    let (mut bench, mut a, mut b) = Bench::pairs();
    let mut segment = data(&a, 0, 10);
    segment[7] ^= 1;
    bench.send(work_request::SEND, 0, &[segment], &mut a);
    let done = bench.run(2_000_000, &mut [&mut a, &mut b]);
    assert_eq!(done, [vec![(0xd, 4, 0, 0)], vec![]]);
    let (mut bench, mut a, mut b) = Bench::pairs();
    bench.send(0x3f, 0, &[data(&a, 0, 10)], &mut a);
    let done = bench.run(2_000_000, &mut [&mut a, &mut b]);
    assert_eq!(done, [vec![(0xd, 2, 0, 0)], vec![]]);
    assert!(bench.complained(0) > 0);
}

#[test]
fn invalid_state_transitions_are_refused() {
    let (mut bench, a, _) = Bench::pairs();
    let mut input = vec![0; 0x108];
    put32(&mut input, 0, a.pair);
    for opcode in [0x502, 0x503, 0x504] {
        assert_eq!(bench.command(0, opcode, 0, &input), Err(0x10), "{opcode:x}");
    }
    let output = bench.command(0, 0x50b, 0, &[a.pair.to_be_bytes(), [0; 4]].concat()).unwrap();
    assert_eq!(output[0x18] >> 4, 3);
    bench.command(0, 0x50a, 0, &[a.pair.to_be_bytes(), [0; 4]].concat()).unwrap();
    assert_eq!(bench.command(0, 0x503, 0, &input), Err(0x10));
}

/// A completion event is sent a period after the last completion, after a number of completions, or a period after the
/// last event.
#[test]
fn moderation_delays_events() {
    const MICROSECOND: Nanoseconds = 1000;
    let (mut bench, mut a, mut b) = Bench::pairs();
    // Microseconds to run, and messages sent before.
    type Step = (Nanoseconds, u32);
    let mut interrupts_after = |mode: u64, period: u64, most: u64, steps: &[Step]| -> Vec<u64> {
        let mut input = vec![0; 0x108];
        put32(&mut input, 0, a.completions);
        put32(&mut input, 4, 0x13);
        let context = &mut input[8..];
        set(context, 0xf, 2, mode);
        set(context, 0x84, 12, period);
        set(context, 0x90, 16, most);
        bench.command(a.card, 0x403, 0, &input).unwrap();
        let page = u64::from(a.uar) << 12;
        let mut interrupts = Vec::new();
        for (time, sends) in steps {
            for _ in 0..*sends {
                bench.post(&mut b, 0x1000, 64);
                bench.send(work_request::SEND, 0, &[data(&a, 0, 8)], &mut a);
            }
            bench.run(time * MICROSECOND, &mut [&mut a, &mut b]);
            interrupts.push(bench.cards[a.card].counts.interrupts);
        }
        // All entries are consumed, and both queues are armed again.
        let events = bench.cards[a.card].counts.interrupts as u32;
        let number = *bench.cards[a.card].state.event_queues.keys().next().unwrap();
        bench.write(a.card, page + 0x40, &(number << 24 | events).to_be_bytes());
        let arm = u64::from(a.taken) << 32 | u64::from(a.completions);
        bench.write(a.card, page + 0x20, &arm.to_be_bytes());
        interrupts
    };
    // Not armed: no event.
    assert_eq!(interrupts_after(1, 100, 3, &[(10, 1)]), [0]);
    // The period starts at each completion.
    assert_eq!(interrupts_after(1, 100, 8, &[(50, 1), (90, 1), (20, 0)]), [0, 0, 1]);
    // The number of completions is reached.
    assert_eq!(interrupts_after(1, 100, 3, &[(50, 2), (10, 1)]), [1, 2]);
    assert_eq!(interrupts_after(1, 100, 0, &[(60, 2), (60, 3), (60, 3), (60, 0)]), [2, 2, 2, 3]);
    // The period starts at the last event.
    assert_eq!(interrupts_after(0, 500, 0, &[(60, 1), (300, 1), (200, 1)]), [3, 3, 4]);
    assert_eq!(interrupts_after(0, 500, 0, &[(600, 0), (10, 1)]), [4, 5]);
    // No moderation.
    assert_eq!(interrupts_after(1, 0, 3, &[(10, 1)]), [6]);
    assert_eq!(bench.complained(0), 0);
}
