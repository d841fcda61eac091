//! Three boards, each with connections to the others, on a network with loss, duplicates and reordering, while boards
//! lose power and reboot with other connection ids. `ISTHMUS_FULL` runs ten thousand seeds.

use std::time::Duration;

use drivers::hal::{Instant, Window};
use linx::PIECE;
use linx::pool::Pool;
use linx::riocm::{Config, ConnectionConfig, ConnectionId, Event, Fragmentation, Riocm, State};
use linx_tests::fabric::{Fabric, Rates};
use linx_tests::pattern;
use linx_tests::peer::Frame;
use netsim::Rng;
use rand_core::Rng as _;

const BOARDS: usize = 3;
const MEMORY: usize = 1 << 20;
const MAX: usize = 20_000;
/// Seeds; `--full` runs five times as many.
const SEEDS: u64 = 2000;

/// A connection from its user's view.
struct Line {
    to: usize,
    id: ConnectionId,
    /// Number of times that the connection came up here.
    life: u32,
    /// Number of the next sent message in this life.
    sent: u32,
    /// Sender of the messages in this life: boot, life, and number of the next message.
    from: Option<(u32, u32, u32)>,
    is_up: bool,
}

struct Board {
    boot: u32,
    riocm: Riocm,
    pool: Pool,
    lines: Vec<Line>,
    memory: Window,
}

fn id(board: usize) -> u16 {
    0x1000 + board as u16
}

/// A message: boot and life of its sender, its number, and a pattern derived from these.
fn message(boot: u32, life: u32, number: u32, size: usize) -> Vec<u8> {
    let head: Vec<u8> = [boot, life, number].iter().flat_map(|it| it.to_be_bytes()).collect();
    let seed = (boot * 5 + life * 3 + number) as usize;
    [head, pattern::bytes(seed, size.saturating_sub(12))].concat()
}

impl Board {
    fn new(board: usize, boot: u32, memory: Window, rng: &mut Rng, now: Instant) -> Board {
        let mut pool = Pool::new(memory, 8);
        let config = Config { sends: 64, ..Config::default() };
        let mut riocm = Riocm::new(config, &pool, rng.next_u64());
        riocm.add_port("rio", id(board), 4096).expect("the configuration is valid");
        let mut others: Vec<usize> = (0..BOARDS).filter(|&other| other != board).collect();
        // Connection ids are assigned in random order at each boot.
        if rng.chance(500) {
            others.reverse();
        }
        let mtus = [100, 256, 1000, 4096];
        let lines = others.into_iter().map(|to| {
            // Both ends of a pair use the same port.
            let port = (board + to) as u16;
            let config = ConnectionConfig {
                mtu: rng.pick(&mtus),
                heartbeat: rng.within(1..6) as u8,
                max_message: MAX as u32,
                receive_bytes: 350 * PIECE,
                send_bytes: 80 * PIECE,
                fragmentation: rng.pick(&[Fragmentation::Simple, Fragmentation::Patch]),
                ..ConnectionConfig::new("rio", id(to), 2, (port, port))
            };
            let id = riocm.create(&mut pool, &config, now).expect("the configuration is valid");
            riocm.connect(id);
            Line { to, id, life: 0, sent: 0, from: None, is_up: false }
        });
        let lines = lines.collect();
        Board { boot, riocm, pool, lines, memory }
    }

    fn events(&mut self) {
        while let Some(event) = self.riocm.next_event() {
            let of = |lines: &mut Vec<Line>, id| {
                lines.iter().position(|line| line.id == id).expect("the connection exists")
            };
            match event {
                Event::Connected(id) => {
                    let at = of(&mut self.lines, id);
                    let line = &mut self.lines[at];
                    assert!(!line.is_up);
                    (line.is_up, line.from, line.sent) = (true, None, 0);
                    line.life += 1;
                }
                Event::Disconnected { connection, .. } => {
                    let at = of(&mut self.lines, connection);
                    self.lines[at].is_up = false;
                    assert!(self.riocm.connect(connection));
                }
                Event::Message { connection, message: came } => {
                    let at = of(&mut self.lines, connection);
                    let line = &mut self.lines[at];
                    assert!(line.is_up, "a message after the end of the connection");
                    assert_eq!(came.source, line.to as u32);
                    let mut bytes = vec![0; came.chain.len()];
                    self.pool.read(&came.chain, 0, &mut bytes);
                    self.pool.free(came.chain);
                    let word =
                        |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four"));
                    let (boot, life, number) = (word(0), word(4), word(8));
                    assert!(bytes == message(boot, life, number, bytes.len()), "wrong bytes");
                    // All messages are of one life of the peer, and none is missing.
                    let expected = line.from.unwrap_or((boot, life, 0));
                    assert_eq!((boot, life, number), expected);
                    line.from = Some((boot, life, number + 1));
                }
                Event::Sent { .. } | Event::Room(_) => (),
            }
        }
    }

    fn send(&mut self, board: usize, rng: &mut Rng) {
        let at = rng.within(0..self.lines.len() as u64) as usize;
        let line = &mut self.lines[at];
        let bits = rng.within(4..15);
        let size = 12 + rng.within(0..(1 << bits)) as usize;
        let bytes = message(self.boot, line.life, line.sent, size.min(MAX));
        let addresses = (board as u32, line.to as u32);
        if self.riocm.send(&mut self.pool, line.id, addresses, &[], &bytes).is_ok() {
            line.sent += 1;
        }
    }
}

struct World {
    boards: Vec<Board>,
    fabric: Fabric,
    rng: Rng,
    /// Time in microseconds.
    now: u64,
}

impl World {
    fn instant(&self) -> Instant {
        Instant::ZERO + Duration::from_micros(self.now)
    }

    /// Advances the time to the next event, and handles it.
    fn step(&mut self, most: u64) {
        let deadlines = self.boards.iter().filter_map(|it| it.riocm.deadline());
        let due = deadlines.min().map(|at| at.as_nanos().div_ceil(1000));
        let next = [due, self.fabric.next_at()].into_iter().flatten().min().unwrap_or(u64::MAX);
        self.now = next.clamp(self.now, self.now + most);
        let now = self.instant();
        while let Some(frame) = self.fabric.arrived(self.now) {
            let to = usize::from(frame.destination - 0x1000);
            let board = &mut self.boards[to];
            board.riocm.receive(&mut board.pool, 0, frame.source, &frame.bytes, now);
            board.events();
        }
        for (n, board) in self.boards.iter_mut().enumerate() {
            while let Some(packet) = board.riocm.poll_transmit(&mut board.pool, now) {
                let mut bytes = vec![0x55; packet.len().next_multiple_of(8)];
                packet.write(&mut bytes);
                let (destination, mailbox) = (packet.destination, packet.mailbox);
                let frame = Frame { source: id(n), destination, mailbox, bytes };
                self.fabric.send(self.now, frame);
            }
            board.events();
        }
    }

    fn run(&mut self, micros: u64, sends: u32, reboots: u32) {
        let end = self.now + micros;
        while self.now < end {
            let pause = 1 + self.rng.within(0..3000);
            self.step(pause);
            if self.rng.chance(sends) {
                let board = self.rng.within(0..BOARDS as u64) as usize;
                self.boards[board].send(board, &mut self.rng);
            }
            if self.rng.chance(reboots) {
                let at = self.rng.within(0..BOARDS as u64) as usize;
                // Up to 30 ms without power, which the peers do not notice.
                self.now += self.rng.within(0..30_000);
                let (boot, memory) = (self.boards[at].boot + 1, self.boards[at].memory);
                let now = self.instant();
                self.boards[at] = Board::new(at, boot, memory, &mut self.rng, now);
            }
        }
    }
}

fn scenario(seed: u64) {
    netsim::with_memory(BOARDS * MEMORY, |memory| {
        let mut rng = Rng::new(seed);
        let scale = rng.pick(&[0, 2, 10, 40]);
        let rates = Rates {
            loss: scale * rng.within(0..4) as u32,
            twice: scale * rng.within(0..3) as u32,
            late: scale * rng.within(0..8) as u32,
        };
        let fabric = Fabric::new(rates, rng.fork());
        let boards = (0..BOARDS).map(|n| {
            let memory = memory.slice(n * MEMORY, MEMORY).expect("inside");
            Board::new(n, n as u32 * 1000, memory, &mut rng, Instant::ZERO)
        });
        let boards = boards.collect();
        let mut world = World { boards, fabric, rng, now: 0 };
        let (sends, reboots) = world.rng.pick(&[(200, 0), (700, 0), (700, 1), (500, 4)]);
        world.run(3_000_000, sends, reboots);
        // Without faults, all connections come up and stay up, and messages arrive.
        world.fabric.rates = Rates::default();
        // (The loss of the last message before is detected only by a later message.)
        for _ in 0..2 {
            world.run(6_000_000, 0, 0);
            for board in &world.boards {
                for line in &board.lines {
                    let state = board.riocm.status(line.id).expect("the connection exists").state;
                    assert_eq!(state, State::Connected, "after the end of faults");
                }
            }
            for n in 0..BOARDS {
                (0..20).for_each(|_| world.boards[n].send(n, &mut world.rng));
            }
        }
        let sent: Vec<(usize, usize, u32)> = world
            .boards
            .iter()
            .enumerate()
            .flat_map(|(n, board)| board.lines.iter().map(move |line| (n, line.to, line.sent)))
            .collect();
        world.run(200_000, 0, 0);
        for (from, to, count) in sent {
            let line = world.boards[to].lines.iter().find(|line| line.to == from).expect("a pair");
            let next = line.from.map_or(0, |from| from.2);
            assert_eq!(next, count, "all messages of the life have arrived");
        }
    });
}

#[test]
fn riocm() {
    netsim::explore("riocm", SEEDS, scenario);
}
