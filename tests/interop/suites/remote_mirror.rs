//! A mirror of a disk of the appliance and a disk of a stock Linux server. Each member fails and returns, and the power
//! is cut. In the end both members are equal byte for byte.

mod silent;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use interop_tests::remote::{self, object, words};
use interop_tests::{Site, boot_client, map, networked_gateway_spec, storage, system, unmap};
use launch::guest::{Guest, Wire};
use launch::qemu::{Disk, Fault, Spec, Vm};

const MIB: u64 = 24;
const MADE: &str = "isthmus.mirror.0.name=safe isthmus.mirror.0.members=disk,far";

/// The appliance with one disk, and a guest that serves the other disk, with two networks between them. The remote
/// volume uses the second network.
struct Lab {
    spec: Spec,
    gateway: Option<Vm>,
    guest: Guest,
    disk: tempfile::NamedTempFile,
    // Must outlive the machines.
    _wires: [Wire; 2],
}

impl Lab {
    /// Boots a lab whose remote volume times out early.
    fn boot(shape: impl FnOnce(Disk) -> Disk) -> Result<Lab> {
        Lab::with(shape, "isthmus.remote.0.wait_seconds=5")
    }

    fn with(shape: impl FnOnce(Disk) -> Disk, more: &str) -> Result<Lab> {
        let disk = tempfile::NamedTempFile::new()?;
        disk.as_file().set_len(MIB << 20)?;
        let wires = [Wire::new()?, Wire::new()?];
        let ends = wires.each_ref().map(Wire::datagrams);
        let own = words(1, 1, more);
        let own = own.replace("volume=[]", "volume.0.name=disk isthmus.volume.0.disk=0");
        let spec = networked_gateway_spec(2, 1500, &own)?.first_mac(1);
        let spec = ends.iter().fold(spec, |spec, (end, _)| spec.nic(end.clone()));
        let spec = spec.disk(shape(Disk::new(disk.path())));
        let mut gateway = spec.clone().start()?;
        gateway.wait_ready()?;
        let addresses = [0, 1].map(|n| interop_tests::address(n, 2));
        let addresses = addresses.each_ref().map(String::as_str);
        let guest = system()?.spec("client", &addresses, 1500).first_mac(0x20);
        let mut guest = boot_client(ends.into_iter().fold(guest, |spec, (_, end)| spec.nic(end)))?;
        remote::serve(&mut guest, "")?;
        let patience = Duration::from_secs(30);
        remote::wait_for(&mut gateway, "remote list csv", "/dev/ram0,open,", patience)?;
        gateway.run("mirror create safe disk far")?.contains("confirm with `force`")?;
        gateway.run("mirror create safe disk far force")?.contains("in force now")?;
        let mut lab = Lab { spec, gateway: Some(gateway), guest, disk, _wires: wires };
        lab.wait_for_members("in sync", "in sync", 60)?;
        Ok(lab)
    }

    fn gateway(&mut self) -> Result<&mut Vm> {
        self.gateway.as_mut().context("the power is off")
    }

    /// Waits until the members are in these states.
    fn wait_for_members(&mut self, disk: &str, far: &str, seconds: u64) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        loop {
            let mirror = object(self.gateway()?, "/mirrors/safe")?;
            let state = |n: usize| mirror["members"][n]["state"].as_str().unwrap_or("").to_string();
            if state(0) == disk && state(1) == far {
                return Ok(());
            }
            if Instant::now() > deadline {
                let log = self.gateway()?.run("show log")?.text;
                bail!("not {disk}, {far}, but {mirror}\n{log}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Cuts the appliance's power, and boots it again.
    fn cut_power(&mut self) -> Result<()> {
        self.gateway = None;
        let mut gateway = self.spec.clone().append(MADE).start()?;
        gateway.wait_ready()?;
        self.gateway = Some(gateway);
        Ok(())
    }

    /// Compares the members behind the mirror's own sectors.
    fn compare(&mut self) -> Result<()> {
        let theirs = self
            .guest
            .sh(&format!("head -c {} /dev/ram0 | tail -c +32769 | sha256sum", MIB << 20))?;
        let ours = sum(self.disk.path())?;
        ensure!(theirs.trim() == ours.trim(), "the members differ: {ours} {theirs}");
        Ok(())
    }
}

fn sum(path: &Path) -> Result<String> {
    let script = format!("tail -c +32769 {} | sha256sum", path.display());
    let output = Command::new("sh").args(["-c", &script]).output()?;
    Ok(String::from_utf8(output.stdout)?)
}

/// The remote member is cut off under verified load. The mirror continues, and resynchronises the member afterwards.
#[test]
fn mirror_survives_an_outage_of_the_remote_member() -> Result<()> {
    let mut lab = Lab::boot(|disk| disk)?;
    map(&mut lab.guest, "s1", storage::PATH, "safe", "")?;
    // 20 MiB of data, which are compared in the end.
    lab.guest.sh("dd if=/dev/urandom of=/dev/rnbd0 bs=1M count=20 oflag=direct 2>/dev/null")?;
    // 16 MiB, which is less than the mirror's size.
    storage::start_fio_in(&mut lab.guest, "/dev/rnbd0", 16, 1, 40)?;
    storage::fio_at_work(&mut lab.guest, "/dev/rnbd0")?;
    lab.guest.set_link(1, false)?;
    lab.wait_for_members("in sync", "out", 60)?;
    // Time for writes that are resynchronised later.
    std::thread::sleep(Duration::from_secs(5));
    lab.guest.set_link(1, true)?;
    lab.wait_for_members("in sync", "in sync", 120)?;
    storage::finish_fio(&mut lab.guest, Duration::from_secs(180))?;
    unmap(&mut lab.guest, 0)?;
    lab.compare()
}

/// A remote member stops answering, and its remote volume would wait for a minute. A write waits for the mirror's
/// timeout of five seconds, and the mirror reports the member as out at once.
#[test]
fn write_waits_for_a_silent_member_up_to_the_mirrors_timeout() -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(7);
    let mut lab = Lab::with(|disk| disk, "")?;
    map(&mut lab.guest, "s1", storage::PATH, "safe", "")?;
    lab.guest.sh("dd if=/dev/urandom of=/dev/rnbd0 bs=1M count=20 oflag=direct 2>/dev/null")?;
    // Sequential writes. /tmp/writes has their number, /tmp/longest the longest latency in hundredths of a second.
    lab.guest.sh(
        "(n=0; longest=0
         while [ ! -e /tmp/stop ]; do
             read a rest </proc/uptime
             dd if=/dev/urandom of=/dev/rnbd0 bs=4k count=1 seek=$((n % 512)) oflag=direct 2>/dev/null ||
                 { echo failed >/tmp/longest; break; }
             read b rest </proc/uptime
             n=$((n + 1)); took=$((${b%.*}${b#*.} - ${a%.*}${a#*.}))
             [ $took -le $longest ] || longest=$took
             echo $n >/tmp/writes; echo $longest >/tmp/longest.new; mv /tmp/longest.new /tmp/longest
         done; : >/tmp/stopped) </dev/null >/dev/null 2>&1 &",
    )?;
    let writes = |guest: &mut Guest, least: u32| {
        let enough = format!("[ $(cat /tmp/writes) -ge {least} ]");
        guest.wait_until(&enough, Duration::from_secs(60)).context("no writes")?;
        Ok::<u32, anyhow::Error>(guest.sh("cat /tmp/writes")?.trim().parse()?)
    };
    writes(&mut lab.guest, 20)?;
    lab.guest.set_link(1, false)?;
    let cut = Instant::now();
    lab.wait_for_members("in sync", "out", 60)?;
    let reported = cut.elapsed();
    let mirror = object(lab.gateway()?, "/mirrors/safe")?;
    // The other member takes the writes while this one is out, for longer than all timeouts.
    let before = writes(&mut lab.guest, 0)?;
    writes(&mut lab.guest, before + 50)?;
    std::thread::sleep(Duration::from_secs(25).saturating_sub(cut.elapsed()));
    lab.guest.set_link(1, true)?;
    lab.wait_for_members("in sync", "in sync", 120)?;
    lab.guest.sh(": >/tmp/stop")?;
    lab.guest.wait_until("[ -e /tmp/stopped ]", Duration::from_secs(60))?;
    let longest: u64 =
        lab.guest.sh("cat /tmp/longest")?.trim().parse().context("a write failed")?;
    let longest = Duration::from_millis(longest * 10);
    println!("reported after {reported:?}, the longest write took {longest:?}: {mirror}");
    ensure!(longest <= LIMIT, "a write took {longest:?}");
    ensure!(longest >= Duration::from_secs(4), "the longest write took only {longest:?}");
    ensure!(reported <= LIMIT, "reported after {reported:?}: {mirror}");
    unmap(&mut lab.guest, 0)?;
    lab.compare()
}

/// A write to the local member fails. The mirror drops the member, and resynchronises it.
#[test]
fn failed_local_member_is_resynchronised() -> Result<()> {
    let fault = Fault { event: "write_aio", sector: Some(20_000), once: true };
    let mut lab = Lab::boot(|disk| disk.fault(fault))?;
    map(&mut lab.guest, "s1", storage::PATH, "safe", "")?;
    lab.guest.sh("dd if=/dev/urandom of=/dev/rnbd0 bs=1M count=20 oflag=direct 2>/dev/null")?;
    lab.wait_for_members("in sync", "in sync", 60)?;
    let mirror = object(lab.gateway()?, "/mirrors/safe")?;
    ensure!(
        mirror["dropped"].as_u64() == Some(1),
        "the member was not dropped exactly once: {mirror}"
    );
    lab.gateway()?.run("mirror remove safe")?.contains("has safe open")?;
    unmap(&mut lab.guest, 0)?;
    lab.compare()?;
    // After the mirror is removed, its members are separate volumes.
    lab.gateway()?.run("mirror remove safe")?.contains("in force now")?;
    lab.gateway()?.run("volume list csv")?.contains("disk,")?.lacks("safe")?;
    map(&mut lab.guest, "s2", storage::PATH, "far", "")?;
    lab.guest.sh("cmp /dev/rnbd0 /dev/ram0")?;
    unmap(&mut lab.guest, 0)
}

/// The power is cut during the resynchronisation of a member.
#[test]
fn resync_continues_after_a_power_cut() -> Result<()> {
    let mut lab = Lab::boot(|disk| disk)?;
    map(&mut lab.guest, "s1", storage::PATH, "safe", "")?;
    let pattern = "dd if=/dev/urandom of=/tmp/kept bs=1M count=20 2>/dev/null";
    lab.guest.sh(pattern)?;
    lab.guest.sh("dd if=/tmp/kept of=/dev/rnbd0 bs=1M count=10 oflag=direct 2>/dev/null")?;
    lab.guest.set_link(1, false)?;
    lab.guest.sh(
        "dd if=/tmp/kept of=/dev/rnbd0 bs=1M skip=10 seek=10 oflag=direct conv=fsync 2>/dev/null",
    )?;
    lab.wait_for_members("in sync", "out", 60)?;
    lab.guest.sh("echo force >/sys/block/rnbd0/rnbd/unmap_device")?;
    lab.guest.set_link(1, true)?;
    lab.wait_for_members("in sync", "syncing", 60)?;
    lab.cut_power()?;
    lab.wait_for_members("in sync", "in sync", 60)?;
    lab.compare()?;
    map(&mut lab.guest, "s2", storage::PATH, "safe", "")?;
    lab.guest.sh("dd if=/dev/rnbd0 bs=1M count=20 iflag=direct 2>/dev/null | cmp - /tmp/kept")?;
    unmap(&mut lab.guest, 0)
}

/// Both members are on a stock server that is cut off for ten seconds under verified load. Requests wait, as for a
/// single remote volume, and none fails. The appliance does not take the server for restarted.
#[test]
fn two_remote_members_survive_a_cut_of_ten_seconds() -> Result<()> {
    let other = "isthmus.remote.1.name=near isthmus.remote.1.sessname=gw2 \
        isthmus.remote.1.path=ip:10.0.1.1@ip:10.0.1.2 isthmus.remote.1.device_path=/dev/ram1";
    remote::run_scenario(Site::with_networks(2, 1500, &words(1, 1, other))?, |site| {
        let (gateway, guest) = (&mut site.gateway, &mut site.client);
        guest.sh(
            "modprobe brd rd_nr=2 rd_size=24576 && modprobe -a rtrs-server rnbd-server rnbd-client",
        )?;
        let patience = Duration::from_secs(30);
        for device in ["/dev/ram0,open,", "/dev/ram1,open,"] {
            remote::wait_for(gateway, "remote list csv", device, patience)?;
        }
        gateway.run("mirror create safe far near force")?.contains("in force now")?;
        let in_sync = |gateway: &mut Vm| -> Result<()> {
            let deadline = Instant::now() + Duration::from_secs(120);
            loop {
                let mirror = object(gateway, "/mirrors/safe")?;
                let states =
                    [0, 1].map(|n| mirror["members"][n]["state"].as_str() == Some("in sync"));
                if states == [true; 2] {
                    return Ok(());
                }
                ensure!(Instant::now() < deadline, "not in sync: {mirror}");
                std::thread::sleep(Duration::from_millis(200));
            }
        };
        in_sync(gateway)?;
        map(guest, "s1", storage::PATH, "safe", "")?;
        storage::start_fio_in(guest, "/dev/rnbd0", 16, 1, 40)?;
        storage::fio_at_work(guest, "/dev/rnbd0")?;
        for _ in 0..2 {
            guest.set_link(1, false)?;
            std::thread::sleep(Duration::from_secs(10));
            guest.set_link(1, true)?;
            std::thread::sleep(Duration::from_secs(6));
        }
        storage::finish_fio(guest, Duration::from_secs(180))?;
        in_sync(gateway)?;
        gateway.run("show log")?.lacks("restarted: unflushed")?;
        unmap(guest, 0)?;
        guest.sh("cmp /dev/ram0 /dev/ram1 32768 32768")?;
        Ok(())
    })
}
