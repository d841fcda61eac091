//! A machine at the other side of a bridge that lies, tears, floods, flips the link and resets, over the model's own
//! registers and windows, while the image serves somebody else over Ethernet: nobody else notices, nothing is left over,
//! and an honest image comes to the same bridge afterwards.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use interop_tests::bridge_peer::{BridgePeer, Kind as Whose, Moves};
use interop_tests::image_spec;
use launch::guest::Wire;
use launch::qemu::{Disk, Vm};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

use super::{AMD, Bridge, GEN3, GEN4, Kind, PATIENCE, SWITCHTEC, boot, shown, wait_open};

/// Bytes of the disk that the other client reads.
const DISK: usize = 4 << 20;

/// What is done one after the other, each for a while.
const MOVES: [(&str, Moves); 6] = [
    ("one word in 200 is a lie", Moves { lies: 200, ..QUIET }),
    ("one word in 8 is a lie", Moves { lies: 8, ..QUIET }),
    ("it scribbles", Moves { scribbles: true, ..QUIET }),
    ("it plays with scratchpads, bells and the link", Moves { signals: true, ..QUIET }),
    ("it goes and comes back", Moves { resets: true, ..QUIET }),
    ("all at once", Moves { lies: 20, scribbles: true, signals: true, resets: true }),
];
const QUIET: Moves = Moves { lies: 0, scribbles: false, signals: false, resets: false };

/// Free queue pairs, connections, and free memory.
fn left(vm: &mut Vm) -> Result<[u64; 3]> {
    let ntb = shown(vm)?;
    let memory = vm.run("show memory --json")?.json()?;
    let all = [&ntb["queue_pairs_free"], &ntb["connections"], &memory["arena_free"]];
    let mut left = [0; 3];
    for (left, value) in left.iter_mut().zip(all) {
        *left = value.as_u64().with_context(|| format!("no count in {ntb:#} or {memory:#}"))?;
    }
    Ok(left)
}

fn wait_left(vm: &mut Vm, wanted: [u64; 3]) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = left(vm)?;
        if now == wanted {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "left {now:?}, before {wanted:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The one that serves a volume in memory over the bridge, where it lends the session's memory to whoever lies, and a disk
/// over Ethernet; and the one that reads the disk.
fn site(bridge: &Bridge, wire: &Wire, disk: &Disk) -> Result<[Vm; 2]> {
    let (here, there) = wire.stream();
    // Interface and disk are in front of the bridge.
    let words = "isthmus.ntb.0.device=pci:0000:00:03.0 isthmus.volume.0.name=ram0 isthmus.volume.0.size=4MiB isthmus.volume.1.name=data \
                 isthmus.volume.1.disk=0 isthmus.rnbd.queue_depth=16 isthmus.rnbd.always_invalidate=false \
                 isthmus.net.0.address=10.1.0.1/24";
    let server = bridge.image(0, words)?.memory(384).nic(here).first_mac(1).disk(disk.clone());
    let server = boot(server)?;
    let words = "isthmus.volume=[] isthmus.remote.0.name=far isthmus.remote.0.sessname=neighbour \
                 isthmus.remote.0.device_path=data isthmus.net.0.address=10.1.0.2/24 \
                 isthmus.remote.0.path=ip:10.1.0.2@ip:10.1.0.1";
    let neighbour = boot(image_spec()?.append(words).memory(256).nic(there).first_mac(2))?;
    Ok([server, neighbour])
}

/// The other client goes on, and so does the console of the image.
fn others_are_unharmed(server: &mut Vm, neighbour: &mut Vm) -> Result<()> {
    let read = neighbour.run("remote read far count=100 size=4KiB depth=8")?;
    read.contains("100 reads of 4096")?;
    server.run("show ntb")?.contains("10.9.0.2")?;
    Ok(())
}

fn whoever_lies_reaches_nothing_else(kind: Kind, whose: Whose) -> Result<()> {
    let seed = std::env::var("ISTHMUS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("seed {seed}");
    let rounds = if std::env::var_os("ISTHMUS_FULL").is_some() { 8 } else { 1 };
    let mut contents = vec![0; DISK];
    StdRng::seed_from_u64(1).fill_bytes(&mut contents);
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), &contents)?;
    let wire = Wire::new()?;
    // Both machines of the model have an engine: the socket of the second one stays unused until the end.
    let bridge = kind.start()?;
    let [mut server, mut neighbour] = site(&bridge, &wire, &Disk::new(file.path()))?;
    super::wait_for(&mut neighbour, "remote list csv", "far,neighbour,data,open,", PATIENCE)?;
    others_are_unharmed(&mut server, &mut neighbour)?;
    let before = left(&mut server)?;

    let peer = BridgePeer::start(whose, &bridge.model.socket_of(1), "ram0", seed);
    peer.wait_reads(50).context("an honest machine at first")?;
    let honest = shown(&mut server)?;
    ensure!(honest["link"] == "up" && honest["violations"] == 0, "{honest:#}");
    for round in 0..rounds {
        for (what, moves) in MOVES {
            let told = || format!("round {round}, seed {seed}: {what}");
            peer.moves(moves);
            let until = Instant::now() + Duration::from_secs(3);
            while Instant::now() < until {
                others_are_unharmed(&mut server, &mut neighbour).with_context(told)?;
            }
            peer.moves(QUIET);
            // Of what was a lie nobody asks again over a path that stands: an honest machine goes and comes back.
            server.run("ntb reset").with_context(told)?;
            peer.wait_reads(20).with_context(|| format!("honest after {}", told()))?;
        }
    }
    let lies = peer.lies();
    ensure!(lies > 20, "only {lies} lies were told");
    drop(peer);
    let noticed = shown(&mut server)?;
    let count = |key: &str| noticed[key].as_u64().unwrap_or(0);
    ensure!(count("violations") > 3 && count("link_down") > 3, "{noticed:#}");
    ensure!(noticed["last_violation"].is_string(), "{noticed:#}");
    let log = server.run("show log")?;
    log.contains("ntb0: the peer wrote ")?.lacks("panic")?;
    wait_left(&mut server, before).context("when the liar is gone")?;

    let mut client = bridge.client()?;
    wait_open(&mut client).context("an honest image in its place")?;
    client.run("remote read far count=300 size=4KiB depth=16")?.contains("300 reads of 4096")?;
    others_are_unharmed(&mut server, &mut neighbour)?;
    let session = neighbour.run("remote list csv")?;
    session.contains("far,neighbour,data,open,")?;
    neighbour.run("show log")?.lacks("ERROR")?;
    ensure!(std::fs::read(file.path())? == contents, "the volume changed, which nobody wrote to");
    Ok(())
}

#[test]
fn whoever_lies_over_intel_gen3_reaches_nothing_else() -> Result<()> {
    whoever_lies_reaches_nothing_else(GEN3, Whose::Gen3)
}

#[test]
fn whoever_lies_over_intel_gen4_reaches_nothing_else() -> Result<()> {
    whoever_lies_reaches_nothing_else(GEN4, Whose::Gen4)
}

#[test]
fn whoever_lies_over_amd_reaches_nothing_else() -> Result<()> {
    whoever_lies_reaches_nothing_else(AMD, Whose::Amd)
}

#[test]
fn whoever_lies_over_switchtec_reaches_nothing_else() -> Result<()> {
    whoever_lies_reaches_nothing_else(SWITCHTEC, Whose::Switchtec)
}
