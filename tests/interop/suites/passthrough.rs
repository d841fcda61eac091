//! Nested device passthrough. In a stock Debian guest with an emulated Intel IOMMU, QEMU's `igb` and NVMe drives,
//! `./isthmus` lists and probes devices, refuses those in use, and passes them to an appliance in the guest's own QEMU.
//! A stock Linux client is on the wire of the card.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop_tests::{map, system, unmap};
use launch::command;
use launch::guest::{ENTER, Guest, PREPARE, Wire, hypervisor};
use launch::qemu::{Disk, Nic, NicModel, Program};
use tempfile::TempDir;

/// Long, because nested emulation is slow.
const LIMIT: Duration = Duration::from_secs(240);

/// The guest that hosts the appliance, and its devices.
struct Nest {
    host: Guest,
    /// The card's virtual function.
    function: String,
    card: String,
    /// The unused drive.
    free: String,
    /// The mounted drive.
    mounted: String,
    /// The interface with the default route.
    uplink: String,
    // Must outlive the machines.
    _files: TempDir,
    wire: Wire,
}

impl Nest {
    fn boot() -> Result<Nest> {
        let files = tempfile::tempdir()?;
        let disk = |name: &str| -> Result<PathBuf> {
            let path = files.path().join(name);
            std::fs::File::create(&path)?.set_len(64 << 20)?;
            Ok(path)
        };
        let wire = Wire::new()?;
        let (ours, _) = wire.datagrams();
        let (free, mounted) = (disk("free")?, disk("mounted")?);
        let spec = system()?
            .spec("host", &["10.0.2.15/24"], 1500)
            .program(Program::with_vfio_user()?)
            .append("intel_iommu=on")
            .memory(3072)
            .cpus(2)
            .nic(Nic::user())
            .nic_of(NicModel::Igb, ours)
            .disk(Disk::new(hypervisor()?).read_only())
            .disk(Disk::new(bundle(files.path())?).read_only())
            .disk(Disk::new(free).nvme(0, 1).serial("FREE"))
            .disk(Disk::new(mounted).nvme(1, 1).serial("MOUNTED"))
            .extra(["-device", "intel-iommu,intremap=on"]);
        let mut host = Guest::start("host", spec)?;
        host.wait_up()?;
        host.sh("ip route add default via 10.0.2.2")?;
        host.sh(PREPARE)?;
        host.sh(&format!("{ENTER} modprobe -a igb igbvf nvme"))?;
        host.wait_until("[ -e /dev/nvme0n1 -a -e /dev/nvme1n1 -a -e /sys/class/net/eth1 ]", LIMIT)?;
        host.sh("ip link set eth1 up && echo 1 > /sys/class/net/eth1/device/sriov_numvfs")?;
        host.wait_until("[ -e /sys/class/net/eth2 ]", LIMIT)?;
        host.sh("ip link set eth1 vf 0 mac 52:54:00:77:00:01")?;
        let mut address = |of: &str| -> Result<String> {
            let path = host.sh(&format!("readlink -f {of}"))?;
            Ok(path.trim().rsplit('/').next().unwrap_or_default().to_string())
        };
        let drive =
            |serial| format!("$(dirname $(grep -l {serial} /sys/class/nvme/*/serial))/device");
        let (free, mounted) = (address(&drive("FREE"))?, address(&drive("MOUNTED"))?);
        let function = address("/sys/class/net/eth2/device")?;
        let card = address("/sys/class/net/eth1/device")?;
        let uplink = address("/sys/class/net/eth0/device/..")?;
        host.sh(&format!(
            "name=$(ls /sys/bus/pci/devices/{mounted}/nvme/*/ | grep -o '^nvme[0-9]*n1$') && \
             mkfs.ext4 -q /dev/$name && mkdir -p /host/root/srv && mount /dev/$name /host/root/srv"
        ))?;
        Ok(Nest { host, function, card, free, mounted, uplink, _files: files, wire })
    }

    /// Runs `./isthmus` with these arguments. Returns whether it succeeded, and its output.
    fn isthmus(&mut self, words: &str) -> Result<(bool, String)> {
        // The output is a file, because on a terminal the program animates its progress.
        let line = format!(
            "{ENTER} /root/isthmus {words} > /tmp/said 2>&1; end=$?; cat /tmp/said; exit $end"
        );
        let (status, said) = self.host.try_sh(&line, LIMIT)?;
        Ok((status == 0, said))
    }

    /// Runs `./isthmus`, which must succeed, and returns its output.
    fn succeeds(&mut self, words: &str) -> Result<String> {
        let (succeeded, said) = self.isthmus(words)?;
        ensure!(succeeded, "`isthmus {words}` failed:\n{said}");
        Ok(said)
    }

    /// Runs `./isthmus`, which must fail with this reason.
    fn refuses(&mut self, words: &str, why: &str) -> Result<()> {
        let (succeeded, said) = self.isthmus(words)?;
        ensure!(
            !succeeded && said.contains(why),
            "`isthmus {words}` did not report {why:?}:\n{said}"
        );
        Ok(())
    }

    /// The driver of a function; empty if it has none.
    fn driver(&mut self, function: &str) -> Result<String> {
        let link = format!("/sys/bus/pci/devices/{function}/driver");
        Ok(self.host.sh(&format!("basename $(readlink {link}) || true"))?.trim().to_string())
    }

    /// Waits until a function has this driver.
    fn wait_for_driver(&mut self, function: &str, driver: &str) -> Result<()> {
        let link = format!("/sys/bus/pci/devices/{function}/driver");
        self.host.wait_until(&format!("[ \"$(basename $(readlink {link}))\" = {driver} ]"), LIMIT)
    }

    /// Starts `./isthmus run` with these arguments and both devices in the background. It ends when /tmp/end exists.
    fn start(&mut self, words: &str) -> Result<()> {
        let (function, free) = (&self.function, &self.free);
        self.host.sh(&format!(
            "rm -f /tmp/end; 
             (while [ ! -e /tmp/end ]; do sleep 1; done; echo 'show interfaces'; echo 'show log'; echo poweroff) |
                 {ENTER} /root/isthmus run --image /root/isthmus.elf --tcg --device {function} \
                 --device {free} {words} > /tmp/run 2>&1 &"
        ))?;
        Ok(())
    }

    /// The output of the background run.
    fn printed(&mut self) -> Result<String> {
        self.host.sh("cat /tmp/run")
    }
}

/// Packs the program behind `./isthmus` and the image into an archive.
fn bundle(directory: &Path) -> Result<PathBuf> {
    let image = std::env::var_os("ISTHMUS_IMAGE");
    let image = image.context("ISTHMUS_IMAGE is not set: run ./isthmus test passthrough")?;
    std::fs::copy(launch::full::in_tests("launch-full")?, directory.join("isthmus"))?;
    std::fs::copy(image, directory.join("isthmus.elf"))?;
    let archive = directory.join("bundle.tar");
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(directory).arg("-cf").arg(&archive).args(["isthmus", "isthmus.elf"]);
    command::run(&mut tar)?;
    Ok(archive)
}

/// The line of a function in the table.
fn row<'a>(table: &'a str, function: &str) -> Result<&'a str> {
    let line = table.lines().find(|line| line.starts_with(function));
    line.with_context(|| format!("no {function} in:\n{table}"))
}

#[test]
fn devices_are_listed_refused_and_tried() -> Result<()> {
    let mut nest = Nest::boot()?;
    let (function, card) = (nest.function.clone(), nest.card.clone());
    let (free, mounted, uplink) = (nest.free.clone(), nest.mounted.clone(), nest.uplink.clone());

    let table = nest.succeeds("devices")?;
    let line = row(&table, &free)?;
    ensure!(
        line.contains("nvme") && line.contains("NVMe disk") && line.ends_with("yes"),
        "{table}"
    );
    let line = row(&table, &function)?;
    let of = format!("virtual function of {card}");
    ensure!(line.contains("igbvf") && line.contains(&of) && line.ends_with("yes"), "{table}");
    ensure!(
        row(&table, &uplink)?.contains("no: is eth0, which carries the default route"),
        "{table}"
    );
    ensure!(row(&table, &mounted)?.contains("which is mounted at /root/srv"), "{table}");
    ensure!(row(&table, &card)?.contains("has 1 virtual functions"), "{table}");
    ensure!(table.contains("SATA controller"), "{table}");

    let image = "--image /root/isthmus.elf --tcg";
    nest.refuses(&format!("probe {mounted}"), "which is mounted at /root/srv: `umount")?;
    nest.refuses(&format!("run {image} --device {mounted} --device {free}"), "is mounted at")?;
    nest.refuses(&format!("run {image} --device {uplink}"), "carries the default route")?;
    nest.refuses(
        &format!("run {image} --device {card}"),
        "virtual functions that are switched on",
    )?;
    nest.refuses(&format!("run {image} --device 0000:00:1f.2"), "shares its IOMMU group")?;
    nest.refuses(&format!("run {image} --machine microvm --device {free}"), "microvm has no PCI")?;

    let shown = nest.succeeds(&format!("run {image} --dry-run --device {free}"))?;
    ensure!(shown.contains("driver_override") && shown.contains("and at the end:"), "{shown}");
    ensure!(shown.contains("vfio-pci") && shown.contains("qemu-system-x86_64"), "{shown}");
    ensure!(nest.driver(&free)? == "nvme", "a dry run has changed something");

    // The drive is read, not written, and returned to its driver.
    let tried = nest.succeeds(&format!("probe {free}"))?;
    ensure!(tried.contains("serial number \"FREE\"") && tried.contains("256 places"), "{tried}");
    ensure!(nest.driver(&free)? == "nvme", "the drive was not returned to its driver:\n{tried}");
    nest.host.wait_until("grep -q FREE /sys/class/nvme/*/serial", LIMIT)?;
    let dump = nest.host.sh(&format!("cat /host/root/target/probe/{free}.txt"))?;
    ensure!(dump.contains("Linux version") && dump.contains("\n00: 36 1b 10 00 "), "{dump}");

    // The virtual function is bound to vfio-pci already, and stays bound. The card loops its broadcasts back to it.
    nest.host.sh(&bind(&function))?;
    let tried = nest.succeeds(&format!("probe {function}"))?;
    ensure!(tried.contains("driver: igbvf") && tried.contains("52:54:00:77:00:01"), "{tried}");
    ensure!(tried.contains("link: up") && tried.contains("8 frames were sent"), "{tried}");
    ensure!(
        nest.driver(&function)? == "vfio-pci",
        "the function is not bound to vfio-pci any more"
    );
    Ok(())
}

/// A shell command that binds a function to vfio-pci, as an operator does.
fn bind(function: &str) -> String {
    format!(
        "{ENTER} modprobe -a vfio-pci vfio_iommu_type1 && cd /sys/bus/pci && \
         echo vfio-pci > devices/{function}/driver_override && \
         echo {function} > devices/{function}/driver/unbind && echo {function} > drivers_probe"
    )
}

/// The inner appliance serves the drive over the virtual function. A stock client makes a file system on it, and the
/// hosting guest finds the same file there after the drive was returned.
#[test]
fn an_appliance_serves_a_drive_over_a_virtual_function() -> Result<()> {
    let mut nest = Nest::boot()?;
    let (function, free) = (nest.function.clone(), nest.free.clone());
    nest.host.sh(&bind(&function))?;
    let words = "isthmus.net.0.address=10.0.0.1/24 isthmus.volume.0.name=data \
                 isthmus.volume.0.disk=nvme:FREE/1";
    nest.start(&format!("--memory 128 --append '{words}'"))?;
    let (_, theirs) = nest.wire.datagrams();
    let client = system()?.spec("client", &["10.0.0.2/24"], 1500).nic(theirs).first_mac(0x20);
    let mut client = Guest::start("client", client)?;
    client.wait_up()?;
    let up = nest.host.wait_until("grep -q 'the console answers' /tmp/run", LIMIT);
    if up.is_err() {
        let messages = nest.host.sh("dmesg | tail -n 20")?;
        anyhow::bail!("the inner appliance is not up:\n{}\n{messages}", nest.printed()?);
    }
    let served = serve(&mut client);
    nest.host.sh("touch /tmp/end")?;
    nest.wait_for_driver(&free, "nvme").with_context(|| format!("{served:?}"))?;
    let printed = nest.printed()?;
    let sum = served.with_context(|| format!("the inner appliance printed:\n{printed}"))?;
    ensure!(printed.contains("driver: nvme") || printed.contains("nvme:FREE/1"), "{printed}");

    nest.host.wait_until("grep -q FREE /sys/class/nvme/*/serial", LIMIT)?;
    let found =
        nest.host.sh("name=$(basename $(dirname $(grep -l FREE /sys/class/nvme/*/serial)))n1
         for try in 1 2 3 4 5; do [ -e /dev/$name ] || sleep 1; done
         mount -t ext4 -o ro /dev/$name /mnt && sha256sum < /mnt/file && umount /mnt")?;
    ensure!(found == sum, "the drive has {found}, the client wrote {sum}; {printed}");
    println!("{}", printed.lines().find(|line| line.contains("ready after")).unwrap_or_default());
    Ok(())
}

/// Attempts of the client. On a busy host nested emulation stalls for longer than RTRS's timeout. RTRS then drops the
/// path, and requests on an only path fail with EIO.
const TRIES: u32 = 4;

/// Lets a stock client use the volume, and returns the checksum of its file.
fn serve(client: &mut Guest) -> Result<String> {
    client.wait_until("ping -c 1 -W 5 10.0.0.1", LIMIT)?;
    client.wait_until("wget -q -O - http://10.0.0.1/healthz", LIMIT)?;
    client.soft_roce()?;
    client.sh("modprobe -a rnbd-client ext4")?;
    let mut failed = Vec::new();
    for number in 0..TRIES {
        let session = format!("s{number}");
        let tried = map(client, &session, "ip:10.0.0.2@ip:10.0.0.1", "data", "")
            .and_then(|()| write_and_read(client, &format!("/dev/rnbd{number}")));
        match tried {
            Ok(sum) => {
                println!("the client succeeded at attempt {}", number + 1);
                unmap(client, number)?;
                return Ok(sum);
            }
            Err(error) => failed.push(format!("{error:#}")),
        }
        client.sh("umount /mnt || true")?;
    }
    let messages = client.sh("dmesg | tail -n 30")?;
    anyhow::bail!("all {TRIES} attempts failed:\n{}\n{messages}", failed.join("\n"))
}

/// Makes a file system with a file, reads the file back from the volume, and returns its checksum.
fn write_and_read(client: &mut Guest, device: &str) -> Result<String> {
    let script = format!(
        "set -e
         mkfs.ext4 -q -F -E lazy_itable_init=0 {device}
         mount -t ext4 {device} /mnt
         dd if=/dev/urandom of=/mnt/file bs=1M count=1 2>/dev/null
         sync
         sha256sum < /mnt/file > /tmp/sum
         umount /mnt
         blockdev --flushbufs {device}
         mount -t ext4 {device} /mnt
         sha256sum < /mnt/file | cmp - /tmp/sum
         umount /mnt"
    );
    let (status, said) = client.try_sh(&script, LIMIT)?;
    ensure!(status == 0, "{said}");
    client.sh("cat /tmp/sum")
}

/// The devices return to their drivers, however `./isthmus run` ends.
#[test]
fn devices_are_returned_when_isthmus_is_killed() -> Result<()> {
    let mut nest = Nest::boot()?;
    let (function, free) = (nest.function.clone(), nest.free.clone());
    for signal in ["TERM", "KILL"] {
        nest.start("--memory 64")?;
        nest.wait_for_driver(&function, "vfio-pci")?;
        nest.wait_for_driver(&free, "vfio-pci")?;
        nest.host.wait_until("pidof qemu-system-x86_64", LIMIT)?;
        nest.host.sh(&format!("kill -{signal} $(pidof isthmus)"))?;
        for (device, driver) in [(&function, "igbvf"), (&free, "nvme")] {
            let back = nest.wait_for_driver(device, driver);
            back.with_context(|| nest.printed().unwrap_or_default())?;
        }
        nest.host.wait_until("! pidof qemu-system-x86_64", LIMIT)?;
        nest.host.sh("touch /tmp/end; sleep 2")?;
    }
    // A machine that does not start.
    let words = format!("run --image /root/absent.elf --tcg --device {free}");
    let (succeeded, said) = nest.isthmus(&words)?;
    ensure!(!succeeded && said.contains("absent.elf"), "{said}");
    ensure!(nest.driver(&free)? == "nvme", "the drive was not returned to its driver:\n{said}");
    Ok(())
}
