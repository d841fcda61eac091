//! Memory of idle sessions: the smallest machine that holds 64 sessions of 512 chunks of 128 KiB, and the memory of one
//! session there. The clients use this project's engine in this process. The sessions share memory
//! (`rnbd.oversubscribe`).

use anyhow::{Context, Result, bail, ensure};
use boot_tests::{boot, image};
use interop_tests::rtrs_attacker::Stranger;
use launch::progress;
use launch::qemu::{Spec, Vm};

const SESSIONS: u64 = 64;
const DEPTH: u64 = 512;
const CHUNK: u64 = 128 << 10;
/// The appliance with the address that `Stranger` connects to, and one small volume.
const SETTINGS: &str = "\
[[net]]
index = 0
address = [\"10.0.1.1/24\"]

[[volume]]
name = \"ram0\"
size = \"1MiB\"

[rnbd]
queue_depth = 512
chunk_size = \"128KiB\"
oversubscribe = 4096

[limits]
sessions_per_host = 64
memory_per_host = \"16TiB\"
";
/// Range of the search for the smallest machine, in MiB.
const LEAST: u32 = 16;
const MOST: u32 = 128;

/// Results.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Memory in MiB of the smallest machine that held all sessions.
    pub mib: u32,
    /// Bytes that a session used.
    pub bytes_per_session: f64,
}

/// Searches for the smallest machine.
pub fn measure() -> Result<Figures> {
    let step = progress::step("64 idle sessions");
    let (mut too_small, mut found) = (LEAST, None);
    let mut enough = MOST;
    while enough - too_small > 1 {
        let mib = if found.is_none() { enough } else { (too_small + enough) / 2 };
        step.at(&format!("{mib} MiB"));
        match (connect(mib), found) {
            (Ok(bytes_per_session), _) => {
                enough = mib;
                found = Some(Figures { mib, bytes_per_session });
            }
            (Err(error), None) => bail!("{mib} MiB: {error:#}"),
            (Err(_), Some(_)) => too_small = mib,
        }
    }
    let figures = found.context("no machine was tried")?;
    step.done(&format!("{} MiB, {:.0} bytes each", figures.mib, figures.bytes_per_session));
    Ok(figures)
}

/// Connects all sessions to a machine with `mib` of memory. Returns the bytes that a session used.
fn connect(mib: u32) -> Result<f64> {
    let mut stranger = Stranger::new(1)?;
    let spec = Spec::kernel(image()?).memory(mib).config(SETTINGS).nic(stranger.nic());
    let mut gateway = boot(spec.first_mac(1))?;
    let before = used(&mut gateway)?;
    let mut sessions = Vec::new();
    for number in 0..SESSIONS {
        let session = stranger.session(format!("s{number}").as_bytes())?;
        let session = session.context("INFO was refused")?;
        ensure!(session.chunks.len() as u64 == DEPTH, "offered {}", session.chunks.len());
        sessions.push(session);
    }
    let memory = memory(&mut gateway)?;
    ensure!(memory["promised"] == SESSIONS * DEPTH * CHUNK, "sessions are missing: {memory}");
    Ok((used(&mut gateway)? - before) / SESSIONS as f64)
}

fn memory(gateway: &mut Vm) -> Result<serde_json::Value> {
    gateway.run("show memory --json")?.json()
}

/// Bytes in use: of the heap, of the arena, and of the arena's memory that sessions share.
fn used(gateway: &mut Vm) -> Result<f64> {
    let memory = memory(gateway)?;
    let number = |value: &serde_json::Value| value.as_f64().with_context(|| memory.to_string());
    let arena = number(&memory["arena"])? - number(&memory["arena_free"])?;
    let shared = &memory["shared"];
    Ok(number(&memory["heap_used"])? + arena - number(&shared["free"])?)
}
