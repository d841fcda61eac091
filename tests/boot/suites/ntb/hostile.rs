//! A third party writes random data into the memory that two machines share, while the link comes up and while it is
//! used. Both machines keep running, and the link recovers afterwards.

use super::life::pause;
use super::{
    Bridge, SHARED, ntb, resources, wait_for, wait_for_resources, wait_open, wait_traffic,
};
use anyhow::{Context, Result, ensure};
use boot_tests::boot;
use launch::http;
use launch::qemu::ivshmem::SharedMemory;
use launch::qemu::{Disk, Nic, Vm, free_port};
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Bytes of one machine's half.
const HALF: u64 = (SHARED as u64) << 19;
/// End of the control structures: the device's header, the introduction, doorbells and commands.
const CONTROL: u64 = 0x4000;

/// The writing thread, which ends when this is dropped.
struct Scribbler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Scribbler {
    fn new(file: File, seed: u64) -> Scribbler {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let mut rng = ChaCha12Rng::seed_from_u64(seed);
            while !stopped.load(Ordering::Relaxed) {
                // Errors are ignored: the place may not exist.
                let _ = scribble(&file, &mut rng);
                thread::sleep(Duration::from_micros(500));
            }
        });
        Scribbler { stop, thread: Some(thread) }
    }
}

impl Drop for Scribbler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Writes random numbers, small ones, large ones, and ones close to the value there or elsewhere, so that many are
/// nearly plausible; and now and then a random page.
fn scribble(file: &File, rng: &mut ChaCha12Rng) -> std::io::Result<()> {
    let mut within = |end: u64| rng.next_u64() % end;
    for _ in 0..16 {
        let end = if within(4) > 0 { CONTROL } else { HALF };
        let at = within(2) * HALF + within(end / 4) * 4;
        let mut there = [0; 4];
        let from = if within(2) > 0 { at } else { within(2 * HALF / 4) * 4 };
        file.read_exact_at(&mut there, from)?;
        let value = match within(4) {
            0 => within(1 << 32) as u32,
            1 => within(20) as u32,
            2 => u32::MAX - within(20) as u32,
            _ => u32::from_le_bytes(there).wrapping_add(within(4) as u32),
        };
        file.write_all_at(&value.to_le_bytes(), at)?;
    }
    if within(8) == 0 {
        let at = within(2 * HALF / 4096) * 4096;
        let mut page = [0; 4096];
        rng.fill_bytes(&mut page);
        file.write_all_at(&page, at)?;
    }
    Ok(())
}

/// Checks that the machine answers over HTTP and on the console.
fn answers(vm: &mut Vm, at: SocketAddr) -> Result<()> {
    let answer = http::get(at, "/api/ntb").context("over HTTP")?;
    ensure!(answer.status == 200 && answer.body.contains("ntb0"), "{}", answer.body);
    vm.run("show ntb")?.contains("10.9.0.2").map(drop)
}

#[test]
fn writer_to_shared_memory_harms_nothing_else() -> Result<()> {
    hostile_writer(|memory| Ok(Bridge::Memory(memory)))
}

#[test]
fn writer_to_shared_memory_harms_nothing_with_doorbells() -> Result<()> {
    hostile_writer(|memory| Ok(Bridge::Doorbells(memory.serve()?)))
}

fn hostile_writer(bridge: fn(SharedMemory) -> Result<Bridge>) -> Result<()> {
    let seed = std::env::var("ISTHMUS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("seed {seed}");
    let rounds = if std::env::var_os("ISTHMUS_FULL").is_some() { 10 } else { 1 };
    let memory = SharedMemory::new(SHARED)?;
    let (file, again) = (memory.file()?, memory.file()?);
    let bridge = bridge(memory)?;
    let disk = tempfile::NamedTempFile::new()?;
    let mut contents = vec![0; 8 << 20];
    ChaCha12Rng::seed_from_u64(1).fill_bytes(&mut contents);
    std::fs::write(disk.path(), &contents)?;

    let scribbler = Scribbler::new(file, seed);
    let words = "isthmus.volume.0.name=ram0 isthmus.volume.0.disk=0 isthmus.rnbd.queue_depth=64 \
                 isthmus.net.0.address=10.0.2.15/24";
    let port = free_port()?;
    let at = (Ipv4Addr::LOCALHOST, port).into();
    let nic = Nic::User { forwards: vec![("tcp", port, 80)] };
    let server = bridge.machine(0, words)?.nic(nic).disk(Disk::new(disk.path()));
    let mut server = boot(server).context("boot under attack, without a peer")?;
    answers(&mut server, at)?;
    let mut client = bridge.client()?;
    for _ in 0..10 {
        thread::sleep(Duration::from_millis(100));
        answers(&mut server, at).context("while the link comes up")?;
        client.run("show ntb")?;
    }
    drop(scribbler);
    wait_open(&mut client).context("after the attack")?;
    let (at_client, at_server) = (resources(&mut client)?, resources(&mut server)?);

    for round in 0..rounds {
        let reading = b"remote read far count=1000000000 size=4KiB depth=16\r";
        client.serial.send(reading)?;
        wait_traffic(&mut server)?;
        let scribbler = Scribbler::new(again.try_clone()?, seed.wrapping_add(round + 1));
        for _ in 0..15 {
            thread::sleep(Duration::from_millis(100));
            answers(&mut server, at).context("while the bridge is used")?;
        }
        drop(scribbler);
        client.press("\x03")?;
        // The attack may have destroyed requests or replies, which are not retried while the path is up. So the server
        // is paused for long enough that the link is restarted.
        pause(&mut server, Duration::from_millis(500))?;
        wait_for(&mut client, "show ntb", " up")?;
        wait_open(&mut client).with_context(|| format!("after round {round}"))?;
        wait_for_resources(&mut server, at_server).context("resources of the server")?;
        wait_for_resources(&mut client, at_client).context("resources of the client")?;
    }
    let mut detected = 0;
    for vm in [&mut server, &mut client] {
        for key in ["violations", "qp_errors", "link_down"] {
            detected += ntb(vm, key)?.as_u64().unwrap_or(0);
        }
    }
    ensure!(detected > 3, "only {detected} faults were detected");
    // A new client in place of the attacked one.
    client.kill();
    let mut client = bridge.client()?;
    wait_open(&mut client)?;
    client.run("remote read far count=2000 size=4KiB depth=32")?.contains("2000 reads of 4096")?;
    wait_for_resources(&mut server, at_server).context("with another client")?;
    ensure!(std::fs::read(disk.path())? == contents, "the disk changed without a write");
    Ok(())
}
