//! Power cuts of a machine with `e1000e` and `nvme` and without virtio, whose drive loses unflushed writes. A stock
//! client keeps a journal of writes that were acknowledged as durable, and finds all of them after each power cut.
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use interop_tests::{boot_client, map, networked_gateway_spec, programs, storage, system};
use launch::guest::{Guest, Wire};
use launch::qemu::{CachedDisk, Disk, NicModel, Spec, Vm};

/// Power cuts: a hundred with `ISTHMUS_FULL`.
fn cuts() -> u32 {
    if std::env::var_os("ISTHMUS_FULL").is_some() { 100 } else { 20 }
}

/// Concurrent writers.
const WRITERS: u32 = 3;
/// Blocks of each writer.
const BLOCKS: u32 = 200;

struct Lab {
    spec: Spec,
    client: Guest,
    // Both must outlive the machines.
    disk: CachedDisk,
    _wire: Wire,
}

impl Lab {
    fn boot() -> Result<Lab> {
        let (wire, disk) = (Wire::new()?, CachedDisk::new(32)?);
        let (ours, theirs) = wire.datagrams();
        let words = "isthmus.volume.0.name=data isthmus.volume.0.disk=0 isthmus.volume.0.size=8MiB";
        let spec = networked_gateway_spec(1, 1500, words)?.first_mac(1);
        let spec = spec.nic_of(NicModel::E1000e, ours).disk(Disk::cached(&disk).nvme(0, 1));
        let client = system()?.spec("client", &[&interop_tests::address(0, 2)], 1500);
        let mut client = boot_client(client.first_mac(0x20).nic(theirs))?;
        client.sh("modprobe rnbd-client")?;
        programs::install(&mut client, "journal")?;
        Ok(Lab { spec, client, disk, _wire: wire })
    }

    fn start(&self) -> Result<Vm> {
        let mut gateway = self.spec.clone().start()?;
        gateway.wait_ready()?;
        let disks = gateway.run("show disks --json")?.json()?;
        ensure!(disks[0]["device"] == "nvme:nvme0/1", "the disk is not the drive: {disks}");
        // On a new drive the volume is created first, and exported afterwards.
        let start = Instant::now();
        while !gateway.run("export list")?.text.contains("data") {
            ensure!(start.elapsed() < Duration::from_secs(60), "the volume is not exported");
        }
        Ok(gateway)
    }

    /// Maps the volume after a boot. Each boot has a session and a device of its own; the earlier ones time out.
    fn map(&mut self, boot: u32) -> Result<()> {
        map(&mut self.client, &format!("boot{boot}"), storage::PATH, "data", "")
            .with_context(|| format!("after boot {boot}"))
    }

    /// Checks that all durable writes of the journals are there, and no data that were never written.
    fn check(&mut self, boot: u32) -> Result<()> {
        for writer in 0..WRITERS {
            let check = format!("journal check /dev/rnbd{boot} /tmp/journal{writer} 2>&1");
            let (status, output) = self.client.try_sh(&check, Duration::from_secs(120))?;
            ensure!(status == 0, "boot {boot}, writer {writer}: {output}");
            if boot == cuts() {
                println!("{}", output.trim());
            }
        }
        Ok(())
    }
}

#[test]
fn durable_writes_survive_power_cuts() -> Result<()> {
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64 | 1;
    let mut random = seed;
    let mut below = move |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % limit
    };
    let mut lab = Lab::boot()?;
    for boot in 0..cuts() {
        let gateway = lab.start()?;
        lab.map(boot)?;
        if boot > 0 {
            lab.check(boot)?;
        }
        let first = boot * 1_000_000;
        for writer in 0..WRITERS {
            lab.client.sh(&format!(
                "(journal write /dev/rnbd{boot} {} {BLOCKS} /tmp/journal{writer} {first}) \
                 </dev/null >/dev/null 2>&1 &",
                writer * BLOCKS
            ))?;
        }
        let some =
            format!("[ $(cat /tmp/journal* | grep -c '^d [0-9]* {}') -ge 30 ]", numbers_of(boot));
        lab.client.wait_until(&some, Duration::from_secs(60)).context("no write became durable")?;
        // The cut is at a random moment of the writers' work.
        std::thread::sleep(Duration::from_millis(below(700)));
        drop(gateway);
        lab.disk.cut_power(below(1 << 31) | 1);
    }
    let _gateway = lab.start()?;
    lab.map(cuts())?;
    lab.check(cuts())?;
    let counts = lab.disk.counts();
    println!("seed {seed}: {counts:?}");
    ensure!(
        counts.lost > u64::from(cuts()) && counts.flushes > 100,
        "the drive lost no writes: {counts:?}"
    );
    Ok(())
}

/// A pattern for the numbers that were written after a boot.
fn numbers_of(boot: u32) -> String {
    match boot {
        0 => "[0-9]".to_string(),
        _ => format!("{boot}[0-9]\\{{6\\}}$"),
    }
}
