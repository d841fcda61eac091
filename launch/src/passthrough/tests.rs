//! Tests of every reason against taking a device, and of a loan, on a host that is a directory tree, with a thread as
//! the kernel.

use super::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

const NVME: &str = "0000:01:00.0";
const IGB: &str = "0000:02:00.0";
const IGBVF: &str = "0000:02:10.0";
const E1000E: &str = "0000:03:00.0";

/// A host with a drive, a card with a virtual function, and another card with the default route.
struct Tree(TempDir);

impl Tree {
    fn new() -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        for directory in ["sys/bus/pci/devices", "sys/bus/pci/drivers/vfio-pci", "sys/class/block"]
        {
            fs::create_dir_all(tree.path(directory)).unwrap();
        }
        for directory in
            ["sys/class/net", "proc/net", "proc/self", "dev", "sys/module/vfio_iommu_type1"]
        {
            fs::create_dir_all(tree.path(directory)).unwrap();
        }
        for driver in ["nvme", "igb", "igbvf", "e1000e"] {
            fs::create_dir_all(tree.path(&format!("sys/bus/pci/drivers/{driver}"))).unwrap();
        }
        tree.function(NVME, "0x1b36", "0x0010", "0x010802", "nvme", 1);
        tree.function(IGB, "0x8086", "0x10c9", "0x020000", "igb", 2);
        tree.function(IGBVF, "0x8086", "0x10ca", "0x020000", "igbvf", 3);
        tree.function(E1000E, "0x8086", "0x10d3", "0x020000", "e1000e", 4);
        tree.function("0000:00:1f.2", "0x8086", "0x2822", "0x010400", "ahci", 5);
        tree.function("0000:00:01.0", "0x1b36", "0x000c", "0x060400", "pcieport", 1);
        symlink(format!("../{IGB}"), tree.at(IGBVF, "physfn")).unwrap();
        tree.block(NVME, "nvme/nvme0/nvme0n1", "259:0");
        tree.block(NVME, "nvme/nvme0/nvme0n1/nvme0n1p1", "259:1");
        tree.interface(IGB, "eth0");
        tree.interface(IGBVF, "eth1");
        tree.interface(E1000E, "eth2");
        tree.write(
            "proc/net/route",
            "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
             eth2\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
             eth0\t0000010A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
        );
        tree
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn at(&self, function: &str, path: &str) -> PathBuf {
        self.path(&format!("sys/devices/pci0000:00/{function}/{path}"))
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn link(&self, path: &str, to: PathBuf) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        symlink(to, self.path(path)).unwrap();
    }

    fn function(
        &self,
        at: &str,
        vendor: &str,
        device: &str,
        class: &str,
        driver: &str,
        group: u32,
    ) {
        let place = format!("sys/devices/pci0000:00/{at}");
        for (file, text) in [("vendor", vendor), ("device", device), ("class", class)] {
            self.write(&format!("{place}/{file}"), text);
        }
        self.write(&format!("{place}/driver_override"), "(null)\n");
        self.link(&format!("{place}/driver"), self.path(&format!("sys/bus/pci/drivers/{driver}")));
        let group = self.path(&format!("sys/kernel/iommu_groups/{group}"));
        fs::create_dir_all(group.join("devices")).unwrap();
        symlink(self.path(&place), group.join("devices").join(at)).unwrap();
        symlink(group, self.at(at, "iommu_group")).unwrap();
        self.link(&format!("sys/bus/pci/devices/{at}"), self.path(&place));
    }

    fn block(&self, function: &str, below: &str, number: &str) {
        let directory = self.at(function, below);
        fs::create_dir_all(directory.join("holders")).unwrap();
        fs::write(directory.join("dev"), number).unwrap();
        let name = Path::new(below).file_name().unwrap().to_str().unwrap();
        self.link(&format!("sys/class/block/{name}"), directory.clone());
    }

    fn interface(&self, function: &str, name: &str) {
        let directory = self.at(function, &format!("net/{name}"));
        fs::create_dir_all(&directory).unwrap();
        symlink(self.at(function, ""), directory.join("device")).unwrap();
        self.link(&format!("sys/class/net/{name}"), directory);
    }

    fn host(&self) -> Host {
        Host::at(self.0.path(), |_| Ok(false))
    }

    /// Every reason against taking these functions.
    fn refusals(&self, wanted: &[&str]) -> String {
        refused(&self.host(), wanted)
    }
}

fn refused(host: &Host, wanted: &[&str]) -> String {
    let wanted: Vec<PciAddress> = wanted.iter().map(|one| address(one).unwrap()).collect();
    let all = refusals(host, &wanted).unwrap();
    assert!(all.iter().all(|one| !one.advice.is_empty()));
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Asserts that there is exactly one reason, and that it contains `wanted`.
#[track_caller]
fn only(refusals: &str, wanted: &str) {
    assert!(
        refusals.contains(wanted) && refusals.lines().count() == 1,
        "{wanted:?} in: {refusals}"
    );
}

#[test]
fn unused_functions_are_not_refused() {
    let tree = Tree::new();
    for function in [NVME, IGB, IGBVF] {
        assert_eq!(tree.refusals(&[function]), "");
    }
    assert_eq!(tree.refusals(&[NVME, IGB, IGBVF]), "");
}

/// The cells of a function's row.
fn row(table: &[String], at: &str) -> Vec<String> {
    let line = table.iter().find(|line| line.starts_with(at)).unwrap();
    let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
    cells.map(String::from).collect()
}

#[test]
fn table_names_the_drivers_of_the_registry() {
    let tree = Tree::new();
    let table = devices::table(&tree.host()).unwrap();
    let row = |at| row(&table, at);
    assert_eq!(row(NVME), [NVME, "1", "1b36:0010", "nvme", "nvme", "NVMe disk", "yes"]);
    let what = format!("Ethernet interface, virtual function of {IGB}");
    assert_eq!(row(IGBVF), [IGBVF, "3", "8086:10ca", "igbvf", "igbvf", &what, "yes"]);
    let row = row(E1000E);
    assert!(
        row[4] == "e1000e" && row[6] == "no: is eth2, which carries the default route",
        "{row:?}"
    );
    let raid = self::row(&table, "0000:00:1f.2");
    assert!(raid[4..] == ["-", "RAID controller", "-"], "{raid:?}");
    assert_eq!(table.len(), 7);
}

#[test]
fn missing_function_and_missing_driver_are_refused() {
    let tree = Tree::new();
    let absent = address("0000:09:00.0").unwrap();
    let error = refusals(&tree.host(), &[absent]).unwrap_err().to_string();
    assert!(error.contains("no PCI function 0000:09:00.0"), "{error}");
    only(
        &tree.refusals(&["0000:00:1f.2"]),
        "is a RAID controller (8086:2822) that Isthmus has no driver for",
    );
    assert!(address("3").is_err() && address("0000:03:00.0/1").is_err());
    assert_eq!(address("03:00.0").unwrap().to_string(), E1000E);
}

#[test]
fn function_without_iommu_protection_is_refused() {
    let tree = Tree::new();
    fs::remove_file(tree.at(NVME, "iommu_group")).unwrap();
    only(&tree.refusals(&[NVME]), "is behind no IOMMU");
    let tree = Tree::new();
    tree.write("sys/kernel/iommu_groups/1/name", "vfio-noiommu\n");
    only(&tree.refusals(&[NVME]), "only by name");
    let tree = Tree::new();
    tree.write(
        "sys/kernel/iommu_groups/1/reserved_regions",
        "0x1000 0x1fff direct\n0xfee00000 0xfeefffff msi\n",
    );
    only(&tree.refusals(&[NVME]), "RMRR");
    tree.write("sys/kernel/iommu_groups/1/reserved_regions", "0x1000 0x1fff direct-relaxable\n");
    assert_eq!(tree.refusals(&[NVME]), "");
}

#[test]
fn function_in_a_shared_iommu_group_is_refused() {
    let tree = Tree::new();
    let second = "0000:01:00.1";
    tree.function(second, "0x1b36", "0x0010", "0x010802", "nvme", 1);
    only(&tree.refusals(&[NVME]), "shares its IOMMU group 1 with 0000:01:00.1 (NVMe disk, nvme)");
    assert_eq!(tree.refusals(&[NVME, second]), "", "both are passed");
}

#[test]
fn mounted_drive_is_refused() {
    let tree = Tree::new();
    let line = "29 1 259:1 / /srv rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw\n";
    tree.write("proc/self/mountinfo", line);
    only(&tree.refusals(&[NVME]), "has nvme0n1p1, which is mounted at /srv: `umount /srv` first");
    // btrfs has a device number of its own.
    tree.write("proc/self/mountinfo", "29 1 0:40 / /data rw - btrfs /dev/nvme0n1 rw\n");
    only(&tree.refusals(&[NVME]), "has nvme0n1, which is mounted at /data");
    tree.write("proc/self/mountinfo", "29 1 8:1 / / rw - ext4 /dev/sda1 rw\n");
    assert_eq!(tree.refusals(&[NVME]), "");
}

#[test]
fn drive_in_lvm_md_or_swap_is_refused() {
    let tree = Tree::new();
    tree.write("sys/class/block/dm-0/dm/uuid", "LVM-abcdef\n");
    tree.write("sys/class/block/dm-0/dm/name", "vg0-root\n");
    let holder = tree.at(NVME, "nvme/nvme0/nvme0n1/nvme0n1p1/holders/dm-0");
    fs::write(&holder, "").unwrap();
    only(&tree.refusals(&[NVME]), "has nvme0n1p1, which is a part of the LVM volume vg0-root");
    tree.write("sys/class/block/dm-0/dm/uuid", "CRYPT-LUKS2-abcdef\n");
    only(&tree.refusals(&[NVME]), "the encrypted volume vg0-root");
    fs::remove_file(&holder).unwrap();
    fs::write(tree.at(NVME, "nvme/nvme0/nvme0n1/holders/md127"), "").unwrap();
    only(&tree.refusals(&[NVME]), "has nvme0n1, which is a part of the md array md127");
    let tree = Tree::new();
    tree.write("proc/swaps", "Filename Type Size Used Priority\n/dev/nvme0n1p1 partition 1 0 -2\n");
    only(&tree.refusals(&[NVME]), "has nvme0n1p1, which is swap");
}

#[test]
fn drive_that_is_claimed_in_the_kernel_is_refused() {
    let tree = Tree::new();
    let claimed = Host::at(tree.0.path(), |path| Ok(path.ends_with("dev/nvme0n1")));
    only(&refused(&claimed, &[NVME]), "has nvme0n1, which is in use by the kernel");
    tree.write("run/udev/data/b259:0", "E:ID_FS_TYPE=zfs_member\n");
    only(&refused(&claimed, &[NVME]), "has nvme0n1, which is in use by a ZFS pool");
    let silent = Host::at(tree.0.path(), |path| match path.ends_with("dev/nvme0n1p1") {
        true => Err(std::io::ErrorKind::PermissionDenied.into()),
        false => Ok(false),
    });
    only(&refused(&silent, &[NVME]), "the kernel does not report whether it is in use");
}

#[test]
fn mounted_multipath_namespace_is_refused() {
    let tree = Tree::new();
    // The path of this function has no block device of its own; the namespace is in the directory of the subsystem.
    let tree_of =
        |file: &str| tree.path(&format!("sys/devices/virtual/nvme-subsystem/nvme-subsys1/{file}"));
    fs::create_dir_all(tree_of("nvme1n1/holders")).unwrap();
    fs::write(tree_of("nvme1n1/dev"), "259:7").unwrap();
    symlink(tree.at(NVME, "nvme/nvme0"), tree_of("nvme0")).unwrap();
    tree.link("sys/class/nvme-subsystem/nvme-subsys1", tree_of(""));
    tree.link("sys/class/block/nvme1n1", tree_of("nvme1n1"));
    tree.write("proc/self/mountinfo", "29 1 259:7 / /srv rw - ext4 /dev/nvme1n1 rw\n");
    only(&tree.refusals(&[NVME]), "has nvme1n1, which is mounted at /srv");
}

#[test]
fn interface_with_the_default_route_or_the_only_one_is_refused() {
    let tree = Tree::new();
    only(&tree.refusals(&[E1000E]), "is eth2, which carries the default route");
    tree.write("proc/net/route", "");
    assert_eq!(tree.refusals(&[E1000E]), "");
    let zeros = "0".repeat(32);
    let route = |flags, name| format!("{zeros} 00 {zeros} 00 fe80 00000400 1 0 {flags} {name}\n");
    tree.write("proc/net/ipv6_route", &(route("00000003", "eth2") + &route("00200200", "lo")));
    only(&tree.refusals(&[E1000E]), "is eth2, which carries the default route");
    tree.write("proc/net/ipv6_route", "");
    only(
        tree.refusals(&[IGB, IGBVF, E1000E]).lines().next().unwrap(),
        "the only network interface",
    );
    fs::remove_file(tree.path("sys/class/net/eth2")).unwrap();
    fs::remove_file(tree.path("sys/class/net/eth1")).unwrap();
    only(&tree.refusals(&[IGB]), "is eth0, the only network interface of this host");
}

#[test]
fn interface_in_a_bridge_or_another_namespace_is_refused() {
    let tree = Tree::new();
    fs::write(tree.at(IGB, "net/eth0/upper_br0"), "").unwrap();
    only(&tree.refusals(&[IGB]), "is eth0, which is a part of br0");
    let tree = Tree::new();
    fs::remove_file(tree.path("sys/class/net/eth0")).unwrap();
    only(
        &tree.refusals(&[IGB]),
        "has the driver igb, but no network interface in this network namespace",
    );
}

#[test]
fn card_with_enabled_virtual_functions_is_refused() {
    let tree = Tree::new();
    fs::write(tree.at(IGB, "sriov_numvfs"), "2\n").unwrap();
    only(&tree.refusals(&[IGB]), "has 2 virtual functions that are switched on");
    assert_eq!(tree.refusals(&[IGBVF]), "");
}

#[test]
fn function_that_a_program_has_open_is_refused() {
    let tree = Tree::new();
    tree.write("proc/77/comm", "qemu-system-x86\n");
    tree.link("proc/77/fd/9", "/dev/vfio/1".into());
    only(
        &tree.refusals(&[NVME]),
        "is in use by qemu-system-x86 (process 77), which has /dev/vfio/1 open",
    );
    tree.link("proc/78/fd/3", "/dev/nvme0n1p1".into());
    assert_eq!(tree.refusals(&[NVME]).lines().count(), 2);
    assert_eq!(tree.refusals(&[IGBVF]), "");
}

/// Binds and unbinds drivers as the kernel does, until it is dropped.
struct Kernel(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Kernel {
    /// Starts the thread. With `refuses` it does not bind the function to vfio-pci.
    fn start(tree: &Tree, refuses: bool) -> Kernel {
        let (bus, function) = (tree.path("sys/bus/pci"), tree.at(IGBVF, ""));
        let end = Arc::new(AtomicBool::new(false));
        let ended = end.clone();
        let take = |path: PathBuf| {
            fs::read_to_string(&path).ok().filter(|_| fs::remove_file(path).is_ok())
        };
        let run = move || {
            while !ended.load(Ordering::Relaxed) {
                for driver in ["igbvf", "vfio-pci"] {
                    if take(bus.join(format!("drivers/{driver}/unbind"))).is_some() {
                        fs::remove_file(function.join("driver")).unwrap();
                    }
                }
                if !function.join("driver").exists() && take(bus.join("drivers_probe")).is_some() {
                    let over = fs::read_to_string(function.join("driver_override")).unwrap();
                    let driver = if over.trim() == "vfio-pci" { "vfio-pci" } else { "igbvf" };
                    if !(refuses && driver == "vfio-pci") {
                        symlink(bus.join("drivers").join(driver), function.join("driver")).unwrap();
                    }
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        Kernel(end, Some(std::thread::spawn(run)))
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.take().unwrap().join().unwrap();
    }
}

fn driver(tree: &Tree) -> String {
    fs::read_link(tree.at(IGBVF, "driver")).map(|to| host::name(&to)).unwrap_or_default()
}

#[test]
fn loan_binds_functions_and_returns_them() {
    let tree = Tree::new();
    let _kernel = Kernel::start(&tree, false);
    let host = tree.host();
    let wanted = [address(IGBVF).unwrap()];
    let plan = Plan::new(&host, &wanted).unwrap();
    let (take, back) = plan.shown();
    assert!(take.len() == 3 && take[1].ends_with(&format!("{IGBVF}/driver/unbind")), "{take:?}");
    assert!(back.len() == 3 && back[2].ends_with("sys/bus/pci/drivers_probe"), "{back:?}");
    let loan = plan.carry_out().unwrap();
    assert_eq!(driver(&tree), "vfio-pci");
    assert!(Plan::new(&host, &wanted).unwrap().shown().0.is_empty(), "lent already");
    drop(loan);
    assert_eq!(driver(&tree), "igbvf");
    assert_eq!(fs::read_to_string(tree.at(IGBVF, "driver_override")).unwrap(), "\n");
}

#[test]
fn loan_that_fails_halfway_is_undone() {
    let tree = Tree::new();
    let _kernel = Kernel::start(&tree, true);
    let host = tree.host();
    let plan = Plan::new(&host, &[address(IGBVF).unwrap()]).unwrap();
    let error = plan.carry_out().err().map(|error| format!("{error:#}")).unwrap();
    assert!(error.contains("its driver is none and not vfio-pci"), "{error}");
    assert_eq!(driver(&tree), "igbvf");
}
