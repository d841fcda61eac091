//! Whoever is at the other side of a bridge's model: a machine of this process, with our drivers and NTRDMA on the model's
//! function, which it has over vfio-user as QEMU has the image's. It is honest, and lies when it is told to.

mod client;
mod function;
mod liar;
mod machine;

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use models::Function;
use models::ntb::amd::{self, AmdNtb};
use models::ntb::intel::{self, IntelNtb};
use models::ntb::switchtec::{self, Switchtec};
use rand::Rng;
use rand::rngs::StdRng;

use machine::Machine;

/// How long the machine may take to come to what is waited for.
const PATIENCE: Duration = Duration::from_secs(90);

/// Whose bridge it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Intel's third generation.
    Gen3,
    /// Intel's fourth.
    Gen4,
    /// AMD's.
    Amd,
    /// Switchtec's.
    Switchtec,
}

impl Kind {
    /// A function of the same shape as that of the suite's model.
    fn twin(self) -> Box<dyn Function + Send> {
        let intel = |device| {
            let [_, second] = IntelNtb::pair(intel::Config::new(device, 1 << 24));
            Box::new(second)
        };
        match self {
            Kind::Gen3 => intel(intel::DEVICE),
            Kind::Gen4 => intel(intel::GEN4),
            Kind::Amd => {
                let [_, second] = AmdNtb::pair(amd::Config::new(amd::DEVICE, 1 << 24));
                Box::new(second)
            }
            Kind::Switchtec => {
                let settings =
                    switchtec::Config { entries: 256, ..switchtec::Config::new(1 << 25) };
                let [_, second] = Switchtec::pair(settings);
                Box::new(second)
            }
        }
    }

    /// Writes to registers that have the image see the link down and up, or something else than it expects.
    fn link_writes(self, rng: &mut StdRng) -> Vec<(u64, Vec<u8>)> {
        match self {
            // NTBCNTL: off, and on with snooping.
            Kind::Gen3 => vec![(0, vec![2, 0, 0, 0]), (0, vec![0x54, 1, 0, 0])],
            // Link control, and the training of PPD0.
            Kind::Gen4 => {
                vec![(0xb050, vec![0x10, 0]), (0xb050, vec![0, 0]), (0xb0d4, vec![8, 0, 0, 0])]
            }
            // The bell by which a driver says that it goes; ready, or not.
            Kind::Amd => {
                vec![(0x454, vec![0, 0x80]), (0x408, vec![1, 0, 0, 0]), (0x408, vec![3, 0, 0, 0])]
            }
            // A message of the second partition: the known ones, and others.
            Kind::Switchtec => {
                let message: u32 = rng.random_range(0..8);
                vec![(0x7_4000 + 0x4000 + 0x1068, message.to_le_bytes().to_vec())]
            }
        }
    }
}

/// What the machine does that no honest one would.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moves {
    /// Of so many things that it writes one is a lie, or torn, or left out; 0: none is.
    pub lies: u32,
    /// It writes anything anywhere into what the image exposes.
    pub scribbles: bool,
    /// It writes scratchpads and messages, rings without end, and has the link go off and on.
    pub signals: bool,
    /// Its function is reset under it; and it goes and comes back.
    pub resets: bool,
}

enum Order {
    Moves(Moves),
    End,
}

/// What is known of the machine.
#[derive(Debug, Default)]
struct Seen {
    reads: u64,
    lies: u64,
    told: String,
    error: Option<String>,
}

/// The machine, in a thread of its own. It goes when this is dropped.
pub struct BridgePeer {
    orders: Sender<Order>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<()>>,
}

impl BridgePeer {
    /// An honest machine at the side of a bridge that is behind `socket`, 10.9.0.2 to the image's 10.9.0.1, which maps a
    /// volume of the image and reads from it all the time.
    pub fn start(kind: Kind, socket: &Path, volume: &str, seed: u64) -> BridgePeer {
        let (orders, received) = channel();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (board, socket, volume) = (seen.clone(), socket.to_path_buf(), volume.to_string());
        let thread = std::thread::spawn(move || {
            if let Err(why) = run(kind, &socket, &volume, seed, &received, &board) {
                lock(&board).error = Some(format!("{why:#}"));
            }
        });
        BridgePeer { orders, seen, thread: Some(thread) }
    }

    /// What it does from now on.
    pub fn moves(&self, moves: Moves) {
        // A thread that has ended tells why when it is waited for.
        let _ = self.orders.send(Order::Moves(moves));
    }

    /// Lies so far.
    pub fn lies(&self) -> u64 {
        lock(&self.seen).lies
    }

    /// Waits until so many more reads have come back.
    pub fn wait_reads(&self, more: u64) -> Result<()> {
        let before = lock(&self.seen).reads;
        self.wait(&format!("{more} reads"), |seen| seen.reads >= before + more)
    }

    fn wait(&self, what: &str, done: impl Fn(&Seen) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = lock(&self.seen);
            if let Some(why) = &seen.error {
                bail!("the machine at the other side: {why}");
            }
            if done(&seen) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(anyhow!("{what}, which the machine waits for: {}", seen.told));
            }
            drop(seen);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for BridgePeer {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::End);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn lock(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Turns of its loop between two looks at what it is told, and how long it rests then.
const TURNS: usize = 8;
const REST: Duration = Duration::from_micros(200);
/// How long it is there between two of its ends.
const LIFE: Duration = Duration::from_millis(300);

fn run(
    kind: Kind,
    socket: &Path,
    volume: &str,
    seed: u64,
    orders: &Receiver<Order>,
    board: &Mutex<Seen>,
) -> Result<()> {
    let mut moves = Moves::default();
    let (mut reads, mut lies) = (0, 0);
    for life in 0.. {
        let mut machine = Machine::start(kind, socket, seed.wrapping_add(life))?;
        machine.map(volume)?;
        let born = Instant::now();
        loop {
            match orders.try_recv() {
                Ok(Order::Moves(new)) => moves = new,
                Ok(Order::End) | Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {}
            }
            if moves.resets && born.elapsed() > LIFE {
                break;
            }
            (0..TURNS).for_each(|_| machine.turn(&moves));
            let mut seen = lock(board);
            (seen.reads, seen.lies) = (reads + machine.reads, lies + machine.told());
            seen.told = machine.describe();
            drop(seen);
            std::thread::sleep(REST);
        }
        // In turn: it is reset under its driver, which goes on for a moment; or it is simply gone.
        if life % 2 == 0 {
            machine.reset_function();
            (0..TURNS).for_each(|_| machine.turn(&moves));
        }
        (reads, lies) = (reads + machine.reads, lies + machine.told());
    }
    Ok(())
}
