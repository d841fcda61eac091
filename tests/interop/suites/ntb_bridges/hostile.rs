//! A malicious machine at the other side of a bridge, while the image serves another client over Ethernet. The machine
//! corrupts, tears, floods, toggles the link and resets, through the model's registers and windows. The other client is
//! not affected, no resources leak, and a well-behaved image uses the same bridge afterwards.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use interop_tests::bridge_peer::{Attacks, BridgePeer, Kind as PeerKind};
use interop_tests::image_spec;
use launch::guest::Wire;
use launch::qemu::{Disk, Vm};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{AMD, Bridge, GEN3, GEN4, Kind, PATIENCE, SWITCHTEC, boot, shown, wait_open};

/// Bytes of the disk that the other client reads.
const DISK: usize = 4 << 20;

/// Attacks, each run for a while.
const ATTACKS: [(&str, Attacks); 6] = [
    ("one write in 200 corrupted", Attacks { corrupt_one_in: 200, ..NONE }),
    ("one write in 8 corrupted", Attacks { corrupt_one_in: 8, ..NONE }),
    ("random writes to the window", Attacks { scribbles: true, ..NONE }),
    ("scratchpads, doorbells and the link", Attacks { signals: true, ..NONE }),
    ("resets", Attacks { resets: true, ..NONE }),
    ("all at once", Attacks { corrupt_one_in: 20, scribbles: true, signals: true, resets: true }),
];
const NONE: Attacks =
    Attacks { corrupt_one_in: 0, scribbles: false, signals: false, resets: false };

/// Free queue pairs, connections, and free memory.
fn resources(vm: &mut Vm) -> Result<[u64; 3]> {
    let ntb = shown(vm)?;
    let memory = vm.run("show memory --json")?.json()?;
    let all = [&ntb["queue_pairs_free"], &ntb["connections"], &memory["arena_free"]];
    let mut counts = [0; 3];
    for (count, value) in counts.iter_mut().zip(all) {
        *count = value.as_u64().with_context(|| format!("no count in {ntb:#} or {memory:#}"))?;
    }
    Ok(counts)
}

/// Waits until the resources are as before the attacks.
fn wait_for_resources(vm: &mut Vm, wanted: [u64; 3]) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = resources(vm)?;
        if now == wanted {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "resources {now:?}, before {wanted:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Boots two images. The server exports a volume in memory over the bridge, where it lends the session's memory to the
/// attacker, and a disk over Ethernet. The neighbour reads the disk.
fn site(bridge: &Bridge, wire: &Wire, disk: &Disk) -> Result<[Vm; 2]> {
    let (here, there) = wire.stream();
    // Interface and disk take the PCI slots before the bridge's.
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

/// Checks that the other client can read, and that the image's console answers.
fn others_are_unharmed(server: &mut Vm, neighbour: &mut Vm) -> Result<()> {
    let read = neighbour.run("remote read far count=100 size=4KiB depth=8")?;
    read.contains("100 reads of 4096")?;
    server.run("show ntb")?.contains("10.9.0.2")?;
    Ok(())
}

fn malicious_peer_harms_no_other_client(kind: Kind, peer_kind: PeerKind) -> Result<()> {
    let seed = std::env::var("ISTHMUS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    println!("seed {seed}");
    let rounds = if std::env::var_os("ISTHMUS_FULL").is_some() { 8 } else { 1 };
    let mut contents = vec![0; DISK];
    StdRng::seed_from_u64(1).fill_bytes(&mut contents);
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), &contents)?;
    let wire = Wire::new()?;
    // The model gives both machines an engine. The second engine's socket is unused until the end.
    let bridge = kind.start()?;
    let [mut server, mut neighbour] = site(&bridge, &wire, &Disk::new(file.path()))?;
    super::wait_for(&mut neighbour, "remote list csv", "far,neighbour,data,open,", PATIENCE)?;
    others_are_unharmed(&mut server, &mut neighbour)?;
    let before = resources(&mut server)?;

    let peer = BridgePeer::start(peer_kind, &bridge.model.socket_of(1), "ram0", seed);
    peer.wait_reads(50).context("before the attacks")?;
    let ntb = shown(&mut server)?;
    ensure!(ntb["link"] == "up" && ntb["violations"] == 0, "{ntb:#}");
    for round in 0..rounds {
        for (what, attacks) in ATTACKS {
            let case = || format!("round {round}, seed {seed}: {what}");
            peer.set_attacks(attacks);
            let until = Instant::now() + Duration::from_secs(3);
            while Instant::now() < until {
                others_are_unharmed(&mut server, &mut neighbour).with_context(case)?;
            }
            peer.set_attacks(NONE);
            // Requests that were lost to corruption are not retried while the path is up, so the bridge is reset.
            server.run("ntb reset").with_context(case)?;
            peer.wait_reads(20).with_context(|| format!("after {}", case()))?;
        }
    }
    let corrupted = peer.corrupted();
    ensure!(corrupted > 20, "only {corrupted} writes were corrupted");
    drop(peer);
    let ntb = shown(&mut server)?;
    let count = |key: &str| ntb[key].as_u64().unwrap_or(0);
    ensure!(count("violations") > 3 && count("link_down") > 3, "{ntb:#}");
    ensure!(ntb["last_violation"].is_string(), "{ntb:#}");
    let log = server.run("show log")?;
    log.contains("ntb0: the peer wrote ")?.lacks("panic")?;
    wait_for_resources(&mut server, before).context("after the attacks")?;

    let mut client = bridge.client()?;
    wait_open(&mut client).context("a well-behaved image after the attacks")?;
    client.run("remote read far count=300 size=4KiB depth=16")?.contains("300 reads of 4096")?;
    others_are_unharmed(&mut server, &mut neighbour)?;
    let session = neighbour.run("remote list csv")?;
    session.contains("far,neighbour,data,open,")?;
    neighbour.run("show log")?.lacks("ERROR")?;
    ensure!(std::fs::read(file.path())? == contents, "the disk changed without a write");
    Ok(())
}

#[test]
fn malicious_peer_over_intel_gen3_harms_no_other_client() -> Result<()> {
    malicious_peer_harms_no_other_client(GEN3, PeerKind::Gen3)
}

#[test]
fn malicious_peer_over_intel_gen4_harms_no_other_client() -> Result<()> {
    malicious_peer_harms_no_other_client(GEN4, PeerKind::Gen4)
}

#[test]
fn malicious_peer_over_amd_harms_no_other_client() -> Result<()> {
    malicious_peer_harms_no_other_client(AMD, PeerKind::Amd)
}

#[test]
fn malicious_peer_over_switchtec_harms_no_other_client() -> Result<()> {
    malicious_peer_harms_no_other_client(SWITCHTEC, PeerKind::Switchtec)
}
