//! A mirror of two local disks, one of which stops answering without an error or a reset.
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use interop_tests::metrics::Metrics;
use interop_tests::remote::object;
use interop_tests::{boot_client, map, networked_gateway_spec, storage, system, unmap};
use launch::guest::{Guest, Wire};
use launch::qemu::{CachedDisk, Disk, Vm};

const MIB: usize = 24;
/// Bytes at the start of a member that the mirror reserves.
const RESERVED: usize = 32 << 10;
/// Limit for a write: the mirror's timeout is five seconds.
const LIMIT: Duration = Duration::from_secs(7);

struct Lab {
    gateway: Vm,
    guest: Guest,
    // Both must outlive the machines.
    disks: [CachedDisk; 2],
    _wire: Wire,
}

impl Lab {
    /// Boots a lab whose mirror is in sync.
    fn boot() -> Result<Lab> {
        let (wire, disks) = (Wire::new()?, [CachedDisk::new(MIB)?, CachedDisk::new(MIB)?]);
        let (ours, theirs) = wire.datagrams();
        let words = "isthmus.volume.0.name=pa isthmus.volume.0.disk=0 isthmus.volume.1.name=pb \
            isthmus.volume.1.disk=1";
        let spec = networked_gateway_spec(1, 1500, words)?.first_mac(1).nic(ours);
        let spec = disks.iter().fold(spec, |spec, disk| spec.disk(Disk::cached(disk)));
        let mut gateway = spec.start()?;
        gateway.wait_ready()?;
        let client = system()?.spec("client", &[&interop_tests::address(0, 2)], 1500);
        let mut guest = boot_client(client.first_mac(0x20).nic(theirs))?;
        guest.sh("modprobe -a rnbd-client ext4")?;
        gateway.run("mirror create safe pa pb force")?.contains("in force now")?;
        let mut lab = Lab { gateway, guest, disks, _wire: wire };
        lab.wait_for_members(["in sync"; 2], Duration::from_secs(60))?;
        Ok(lab)
    }

    /// Waits until the members are in these states, and returns the time that it took.
    fn wait_for_members(&mut self, states: [&str; 2], limit: Duration) -> Result<Duration> {
        let start = Instant::now();
        loop {
            let mirror = object(&mut self.gateway, "/mirrors/safe")?;
            let state = |n: usize| mirror["members"][n]["state"].as_str() == Some(states[n]);
            if state(0) && state(1) {
                return Ok(start.elapsed());
            }
            if start.elapsed() > limit {
                let log = self.gateway.run("show log")?.text;
                bail!("not {states:?}, but {mirror}\n{log}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Starts sequential writes of a size to a part of the device, under a name.
    fn writes_begin(&mut self, name: &str, size: &str, from: u32, count: u32) -> Result<()> {
        self.guest.sh(&format!(
            "rm -f /tmp/{name}.*
             (n=0; longest=0
             while [ ! -e /tmp/stop ]; do
                 read a rest </proc/uptime
                 dd if=/dev/urandom of=/dev/rnbd0 bs={size} count=1 seek=$(({from} + n % {count})) \
                    oflag=direct 2>/dev/null || {{ echo failed >/tmp/{name}.longest; break; }}
                 read b rest </proc/uptime
                 n=$((n + 1)); took=$((${{b%.*}}${{b#*.}} - ${{a%.*}}${{a#*.}}))
                 [ $took -le $longest ] || longest=$took
                 echo $n >/tmp/{name}.writes
                 echo $longest >/tmp/{name}.new; mv /tmp/{name}.new /tmp/{name}.longest
             done; : >/tmp/{name}.stopped) </dev/null >/dev/null 2>&1 &"
        ))?;
        Ok(())
    }

    /// Number of completed writes under this name.
    fn writes(&mut self, name: &str) -> Result<u32> {
        Ok(self
            .guest
            .sh(&format!("cat /tmp/{name}.writes 2>/dev/null || echo 0"))?
            .trim()
            .parse()?)
    }

    fn wait_for_writes(&mut self, name: &str, more: u32) -> Result<()> {
        let enough = self.writes(name)? + more;
        let enough = format!("[ $(cat /tmp/{name}.writes) -ge {enough} ]");
        self.guest
            .wait_until(&enough, Duration::from_secs(60))
            .with_context(|| format!("{name}: no writes"))
    }

    /// Stops all writes, and returns the longest latency.
    fn writes_end(&mut self, names: &[&str]) -> Result<Duration> {
        self.guest.sh(": >/tmp/stop")?;
        let mut longest = Duration::ZERO;
        for name in names {
            let stopped = format!("[ -e /tmp/{name}.stopped ]");
            self.guest.wait_until(&stopped, Duration::from_secs(60))?;
            let took = self.guest.sh(&format!("cat /tmp/{name}.longest"))?;
            let took: u64 =
                took.trim().parse().with_context(|| format!("{name}: a write failed"))?;
            println!("{name}: the longest write took {took}0 ms");
            longest = longest.max(Duration::from_millis(took * 10));
        }
        self.guest.sh("rm /tmp/stop")?;
        Ok(longest)
    }

    /// Compares the members behind the mirror's own sectors.
    fn compare(&self) -> Result<()> {
        let [first, second] = self.disks.each_ref().map(CachedDisk::contents);
        let differ = (RESERVED..first.len()).find(|&at| first[at] != second[at]);
        ensure!(differ.is_none(), "the members differ at byte {differ:?}");
        Ok(())
    }
}

/// Writes of three sizes to separate places, while each disk in turn is silent for 40 s. No write exceeds the mirror's
/// timeout, reads continue, and the members are equal in the end.
#[test]
fn silent_local_disk_delays_no_client_beyond_the_timeout() -> Result<()> {
    const WRITERS: [(&str, &str, u32, u32); 3] =
        [("small", "4k", 0, 512), ("middle", "64k", 64, 32), ("large", "1M", 8, 4)];
    let mut lab = Lab::boot()?;
    map(&mut lab.guest, "s1", storage::PATH, "safe", "")?;
    lab.guest.sh("dd if=/dev/urandom of=/dev/rnbd0 bs=1M count=16 oflag=direct 2>/dev/null")?;
    for silent in 0..2 {
        for (name, size, from, count) in WRITERS {
            lab.writes_begin(name, size, from, count)?;
            lab.wait_for_writes(name, 5)?;
        }
        let before = Instant::now();
        lab.disks[silent].be_silent(true);
        let mut states = ["in sync"; 2];
        states[silent] = "out";
        let reported = lab.wait_for_members(states, LIMIT)?;
        for (name, ..) in WRITERS {
            lab.wait_for_writes(name, 10)?;
        }
        lab.guest.sh("dd if=/dev/rnbd0 of=/dev/null bs=1M count=16 iflag=direct 2>/dev/null")?;
        std::thread::sleep(Duration::from_secs(40).saturating_sub(before.elapsed()));
        lab.disks[silent].be_silent(false);
        lab.wait_for_members(["in sync"; 2], Duration::from_secs(120))?;
        let longest = lab.writes_end(&WRITERS.map(|(name, ..)| name))?;
        ensure!(
            longest <= LIMIT,
            "disk {silent}: a write took {longest:?}; reported after {reported:?}"
        );
        lab.compare()?;
    }
    unmap(&mut lab.guest, 0)
}

/// fio with checksums and sixteen requests in flight, while the disks are silent in turn for a while, and once both at
/// the same time.
#[test]
fn verified_load_continues_while_disks_are_silent_in_turn() -> Result<()> {
    let mut lab = Lab::boot()?;
    map(&mut lab.guest, "s1", storage::PATH, "safe", "")?;
    storage::start_fio_in(&mut lab.guest, "/dev/rnbd0", 16, 16, 150)?;
    storage::fio_at_work(&mut lab.guest, "/dev/rnbd0")?;
    for (disk, seconds) in [(0, 12), (1, 12), (0, 2), (1, 2), (1, 20)] {
        lab.disks[disk].be_silent(true);
        std::thread::sleep(Duration::from_secs(seconds));
        lab.disks[disk].be_silent(false);
        lab.wait_for_members(["in sync"; 2], Duration::from_secs(60))?;
    }
    lab.disks.iter().for_each(|disk| disk.be_silent(true));
    std::thread::sleep(Duration::from_secs(12));
    let status = lab.gateway.run("mirror list")?;
    status.contains("not answering")?;
    lab.disks.iter().for_each(|disk| disk.be_silent(false));
    storage::finish_fio(&mut lab.guest, Duration::from_secs(240))?;
    lab.wait_for_members(["in sync"; 2], Duration::from_secs(60))?;
    unmap(&mut lab.guest, 0)?;
    lab.compare()
}

/// An idle mirror reports a lost member without any request. The operator detaches the other member while a client has
/// the mirror open.
#[test]
fn idle_mirror_reports_a_lost_member_and_a_member_is_detached_in_use() -> Result<()> {
    let mut lab = Lab::boot()?;
    map(&mut lab.guest, "s1", storage::PATH, "safe", "")?;
    let in_sync = |guest: &mut Guest, member: &str| -> Result<f64> {
        let sample = format!("mirror_in_sync{{mirror=\"safe\",member=\"{member}\"}}");
        Metrics::read(guest)?.get(&sample)
    };
    ensure!(in_sync(&mut lab.guest, "pb")? == 1.0);
    lab.gateway.run("set http.ready_needs_mirrors true")?.lacks("error")?;
    lab.guest.sh("wget -q -O - http://10.0.0.1/readyz")?;
    lab.disks[1].be_silent(true);
    lab.wait_for_members(["in sync", "out"], Duration::from_secs(15))?;
    ensure!(in_sync(&mut lab.guest, "pb")? == 0.0);
    ensure!(lab.guest.sh("wget -q -O - http://10.0.0.1/readyz").is_err(), "the appliance is ready");
    lab.gateway.run("show log")?.contains("pb is left out: it did not answer in time")?;
    lab.disks[1].be_silent(false);
    lab.wait_for_members(["in sync"; 2], Duration::from_secs(60))?;
    lab.gateway.run("mirror list")?.lacks("did not answer")?;
    // The operator detaches a member.
    lab.writes_begin("small", "4k", 0, 512)?;
    lab.wait_for_writes("small", 5)?;
    lab.gateway.run("mirror detach safe pa")?.contains("force")?;
    lab.gateway.run("mirror detach safe pa force")?.contains("runs without pa")?;
    lab.wait_for_members(["out", "in sync"], Duration::from_secs(5))?;
    lab.gateway.run("mirror detach safe pb force")?.contains("error")?;
    lab.wait_for_writes("small", 20)?;
    lab.gateway.run("mirror list")?.contains("the operator detached it")?;
    lab.gateway.run("mirror attach safe pa")?.contains("rejoins")?;
    lab.wait_for_members(["in sync"; 2], Duration::from_secs(60))?;
    let longest = lab.writes_end(&["small"])?;
    ensure!(longest < Duration::from_secs(3), "a write took {longest:?}");
    unmap(&mut lab.guest, 0)?;
    lab.compare()
}

/// Discards and write-zeroes of a client reach both members.
#[test]
fn discards_of_a_client_reach_both_members() -> Result<()> {
    let mut lab = Lab::boot()?;
    map(&mut lab.guest, "s1", storage::PATH, "safe", "")?;
    lab.guest.sh("dd if=/dev/urandom of=/dev/rnbd0 bs=1M count=16 oflag=direct 2>/dev/null")?;
    let supported = lab.guest.sh("cat /sys/block/rnbd0/queue/discard_max_bytes")?;
    println!("discard_max_bytes is {}", supported.trim());
    lab.guest.sh("blkdiscard -z -o 1M -l 2M /dev/rnbd0")?;
    if supported.trim() != "0" {
        lab.guest.sh("blkdiscard -o 4M -l 2M /dev/rnbd0")?;
    }
    lab.guest.sh("sync; dd if=/dev/rnbd0 bs=1M skip=1 count=2 iflag=direct 2>/dev/null | tr -d '\\0' | wc -c | grep -qx 0")?;
    unmap(&mut lab.guest, 0)?;
    for disk in &lab.disks {
        let bytes = disk.contents();
        let zeroed = RESERVED + (1 << 20)..RESERVED + (3 << 20);
        ensure!(bytes[zeroed].iter().all(|&byte| byte == 0), "a member was not zeroed");
    }
    lab.compare()
}
