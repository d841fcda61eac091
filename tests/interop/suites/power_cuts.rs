//! Power cuts of a machine with `e1000e` and `nvme` and nothing of virtio, whose drive loses what was not flushed: a stock
//! client keeps a journal of what it was told is durable, and finds all of it, whenever the power was cut.
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use interop_tests::{boot_client, map, networked_gateway_spec, programs, storage, system};
use launch::guest::{Guest, Wire};
use launch::qemu::{CachedDisk, Disk, NicModel, Spec, Vm};

const CUTS: u32 = 20;
/// Writers at once, each with so many blocks of its own.
const WRITERS: u32 = 3;
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
        // On a new drive the volume is made first, and not exported before.
        let asked = Instant::now();
        while !gateway.run("export list")?.text.contains("data") {
            ensure!(asked.elapsed() < Duration::from_secs(60), "the volume is not exported");
        }
        Ok(gateway)
    }

    /// Each life of the appliance has a session and a device of its own: those before end when their time has come.
    fn map(&mut self, life: u32) -> Result<()> {
        map(&mut self.client, &format!("life{life}"), storage::PATH, "data", "")
            .with_context(|| format!("in life {life}"))
    }

    /// All that the journals have as durable is there, and nothing that was never written.
    fn check(&mut self, life: u32) -> Result<()> {
        for writer in 0..WRITERS {
            let check = format!("journal check /dev/rnbd{life} /tmp/journal{writer} 2>&1");
            let (status, told) = self.client.try_sh(&check, Duration::from_secs(120))?;
            ensure!(status == 0, "life {life}, writer {writer}: {told}");
            if life == CUTS {
                println!("{}", told.trim());
            }
        }
        Ok(())
    }
}

#[test]
fn what_was_acknowledged_as_durable_is_there_after_twenty_power_cuts() -> Result<()> {
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64 | 1;
    let mut random = seed;
    let mut below = move |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % limit
    };
    let mut lab = Lab::boot()?;
    for life in 0..CUTS {
        let gateway = lab.start()?;
        lab.map(life)?;
        if life > 0 {
            lab.check(life)?;
        }
        let first = life * 1_000_000;
        for writer in 0..WRITERS {
            lab.client.sh(&format!(
                "(journal write /dev/rnbd{life} {} {BLOCKS} /tmp/journal{writer} {first}) \
                 </dev/null >/dev/null 2>&1 &",
                writer * BLOCKS
            ))?;
        }
        let some =
            format!("[ $(cat /tmp/journal* | grep -c '^d [0-9]* {}') -ge 30 ]", life_of(life));
        lab.client.wait_until(&some, Duration::from_secs(60)).context("nothing is durable")?;
        // At any moment of what the writers do.
        std::thread::sleep(Duration::from_millis(below(700)));
        drop(gateway);
        lab.disk.cut_power(below(1 << 31) | 1);
    }
    let _gateway = lab.start()?;
    lab.map(CUTS)?;
    lab.check(CUTS)?;
    let counts = lab.disk.counts();
    println!("seed {seed}: {counts:?}");
    ensure!(counts.lost > u64::from(CUTS) && counts.flushes > 100, "it lost nothing: {counts:?}");
    Ok(())
}

/// How the numbers begin that were written in a life.
fn life_of(life: u32) -> String {
    match life {
        0 => "[0-9]".to_string(),
        _ => format!("{life}[0-9]\\{{6\\}}$"),
    }
}
