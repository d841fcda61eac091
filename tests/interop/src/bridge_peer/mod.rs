//! The peer machine at the other side of a bridge model. It runs in this process, with the project's drivers and NTRDMA
//! on the model's function, which it reaches over vfio-user as QEMU does for the image. It follows the protocol until a
//! test switches attacks on.

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
use rand::RngExt;
use rand::rngs::StdRng;

use machine::Machine;

/// How long the machine may take to reach an awaited state.
const PATIENCE: Duration = Duration::from_secs(90);

/// Make of the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Intel, third generation.
    Gen3,
    /// Intel, fourth generation.
    Gen4,
    /// AMD.
    Amd,
    /// Switchtec.
    Switchtec,
}

impl Kind {
    /// A local function of the same shape as that of the suite's model.
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

    /// Register writes that make the image see the link go down and up, or an unexpected state.
    fn link_writes(self, rng: &mut StdRng) -> Vec<(u64, Vec<u8>)> {
        match self {
            // NTBCNTL: disable, then enable with snooping.
            Kind::Gen3 => vec![(0, vec![2, 0, 0, 0]), (0, vec![0x54, 1, 0, 0])],
            // Link control, and link training in PPD0.
            Kind::Gen4 => {
                vec![(0xb050, vec![0x10, 0]), (0xb050, vec![0, 0]), (0xb0d4, vec![8, 0, 0, 0])]
            }
            // The doorbell by which a driver reports that it unloads; then ready, and not ready.
            Kind::Amd => {
                vec![(0x454, vec![0, 0x80]), (0x408, vec![1, 0, 0, 0]), (0x408, vec![3, 0, 0, 0])]
            }
            // A message of the second partition, known or unknown.
            Kind::Switchtec => {
                let message: u32 = rng.random_range(0..8);
                vec![(0x7_4000 + 0x4000 + 0x1068, message.to_le_bytes().to_vec())]
            }
        }
    }
}

/// Protocol violations by the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attacks {
    /// One of this many writes is altered, torn or dropped; 0: none.
    pub corrupt_one_in: u32,
    /// Writes random values anywhere into the memory that the image exposes.
    pub scribbles: bool,
    /// Writes scratchpads and messages, rings doorbells in bursts, and toggles the link.
    pub signals: bool,
    /// In turn: resets the function under its driver, or vanishes; then starts again.
    pub resets: bool,
}

enum Order {
    Attacks(Attacks),
    End,
}

/// State of the machine, published by its thread.
#[derive(Debug, Default)]
struct Status {
    reads: u64,
    corrupted: u64,
    description: String,
    error: Option<String>,
}

/// The machine, in a thread of its own, which ends when this is dropped.
pub struct BridgePeer {
    orders: Sender<Order>,
    status: Arc<Mutex<Status>>,
    thread: Option<JoinHandle<()>>,
}

impl BridgePeer {
    /// Starts a machine at the side of a bridge that is behind `socket`: 10.9.0.2, where the image is 10.9.0.1. It maps
    /// a volume of the image and reads from it continuously, without attacks at first.
    pub fn start(kind: Kind, socket: &Path, volume: &str, seed: u64) -> BridgePeer {
        let (orders, received) = channel();
        let status = Arc::new(Mutex::new(Status::default()));
        let (board, socket, volume) = (status.clone(), socket.to_path_buf(), volume.to_string());
        let thread = std::thread::spawn(move || {
            if let Err(why) = run(kind, &socket, &volume, seed, &received, &board) {
                lock(&board).error = Some(format!("{why:#}"));
            }
        });
        BridgePeer { orders, status, thread: Some(thread) }
    }

    /// Sets the attacks from now on.
    pub fn set_attacks(&self, attacks: Attacks) {
        // If the thread has ended, `wait` reports its error.
        let _ = self.orders.send(Order::Attacks(attacks));
    }

    /// Corrupted writes so far.
    pub fn corrupted(&self) -> u64 {
        lock(&self.status).corrupted
    }

    /// Waits for this many more reads to complete.
    pub fn wait_reads(&self, more: u64) -> Result<()> {
        let before = lock(&self.status).reads;
        self.wait(&format!("{more} reads"), |status| status.reads >= before + more)
    }

    fn wait(&self, what: &str, done: impl Fn(&Status) -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = lock(&self.status);
            if let Some(why) = &status.error {
                bail!("the peer machine failed: {why}");
            }
            if done(&status) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(anyhow!(
                    "the peer machine timed out waiting for {what}: {}",
                    status.description
                ));
            }
            drop(status);
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

fn lock(status: &Mutex<Status>) -> std::sync::MutexGuard<'_, Status> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Turns of the loop between two checks for orders.
const TURNS: usize = 8;
/// Sleep after each check.
const REST: Duration = Duration::from_micros(200);
/// How long the machine runs between two resets.
const LIFE: Duration = Duration::from_millis(300);

fn run(
    kind: Kind,
    socket: &Path,
    volume: &str,
    seed: u64,
    orders: &Receiver<Order>,
    board: &Mutex<Status>,
) -> Result<()> {
    let mut attacks = Attacks::default();
    let (mut reads, mut corrupted) = (0, 0);
    for life in 0.. {
        let mut machine = Machine::start(kind, socket, seed.wrapping_add(life))?;
        machine.map(volume)?;
        let born = Instant::now();
        loop {
            match orders.try_recv() {
                Ok(Order::Attacks(new)) => attacks = new,
                Ok(Order::End) | Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {}
            }
            if attacks.resets && born.elapsed() > LIFE {
                break;
            }
            (0..TURNS).for_each(|_| machine.turn(&attacks));
            let mut status = lock(board);
            status.reads = reads + machine.reads;
            status.corrupted = corrupted + machine.corrupted();
            status.description = machine.describe();
            drop(status);
            std::thread::sleep(REST);
        }
        // In turn: a reset under the driver, which keeps running for a moment; or the machine just vanishes.
        if life % 2 == 0 {
            machine.reset_function();
            (0..TURNS).for_each(|_| machine.turn(&attacks));
        }
        (reads, corrupted) = (reads + machine.reads, corrupted + machine.corrupted());
    }
    Ok(())
}
