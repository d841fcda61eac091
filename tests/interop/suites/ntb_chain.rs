//! A chain of a stock client, an appliance, and a second appliance across a bridge, which has the disk or the server.
//! The bridge is a device, or TCP.
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop_tests::remote::wait_for;
use interop_tests::smc::prepare;
use interop_tests::{client_of, gateway_spec, image_spec, map, storage, unmap};
use launch::guest::Wire;
use launch::qemu::ivshmem::SharedMemory;
use launch::qemu::{Disk, Spec, Vm};

const PATIENCE: Duration = Duration::from_secs(60);
const OPEN: &str = "far,gw,data,open,";

/// A counter of `show ntb`.
fn count(vm: &mut Vm, key: &str) -> Result<u64> {
    let shown = vm.run("show ntb --json")?.json()?;
    shown[0][key].as_u64().with_context(|| format!("no {key} in {shown}"))
}

#[test]
fn data_survives_a_kill_of_either_appliance() -> Result<()> {
    let memory = SharedMemory::new(64)?;
    let doorbells = memory.serve()?;
    data_survives(|_, spec| spec.extra(doorbells.doorbell()))
}

#[test]
fn data_survives_over_tcp() -> Result<()> {
    let between = Wire::new()?;
    data_survives(|far, spec| over_tcp(&between, far, spec))
}

/// Adds the TCP bridge over a cable to the far machine, or to the near one.
fn over_tcp(cable: &Wire, far: bool, spec: Spec) -> Spec {
    let (here, there) = cable.datagrams();
    let (words, nic) = if far {
        let words = "isthmus.net.0.address=10.0.9.1/24 isthmus.ntb.0.tcp=10.0.9.2 \
             isthmus.ntb.0.listen=true";
        (words, there)
    } else {
        ("isthmus.net.1.address=10.0.9.2/24 isthmus.ntb.0.tcp=10.0.9.1", here)
    };
    spec.append(words).nic(nic)
}

/// Runs storage over the chain, and kills both appliances. `joined` adds the bridge to the far machine if its argument
/// is true, or else to the near one.
pub fn data_survives(joined: impl Fn(bool, Spec) -> Spec) -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    disk.as_file().set_len(64 << 20)?;
    let near = Wire::new()?;
    let (ours, theirs) = near.datagrams();
    let ends =
        |own, peer| format!("isthmus.ntb.0.address=10.9.0.{own} isthmus.ntb.0.peer=10.9.0.{peer} ");
    let server = "isthmus.volume.0.name=data isthmus.volume.0.disk=0";
    let server = image_spec()?.append(&(ends(1, 2) + server)).first_mac(9);
    let server = joined(true, server).disk(Disk::new(disk.path()));
    let remote = "isthmus.volume=[] isthmus.remote.0.name=far isthmus.remote.0.sessname=gw \
        isthmus.remote.0.path=ip:10.9.0.2@ip:10.9.0.1 isthmus.remote.0.device_path=data";
    let gateway = gateway_spec(1500, &(ends(2, 1) + remote))?.nic(ours).first_mac(1);
    let gateway = joined(false, gateway);
    let mut far = server.clone().start()?;
    far.wait_ready()?;
    let mut middle = gateway.clone().start()?;
    middle.wait_ready()?;
    wait_for(&mut middle, "remote list csv", OPEN, PATIENCE)?;
    let mut guest = client_of(1500, |spec| spec.nic(theirs))?;
    guest.sh("modprobe -a rnbd-client ext4")?;
    map(&mut guest, "s1", storage::PATH, "far", "")?;
    storage::fio_verifies(&mut guest, 16, 32)?;
    storage::ext4_keeps_its_data(&mut guest, 16)?;
    storage::flushes_and_discards(&mut guest)?;
    let written = count(&mut middle, "bytes_staged")?;
    ensure!(written > 24 << 20, "{written} bytes went over the bridge");

    let pairs = count(&mut middle, "queue_pairs")?;
    storage::start_fio(&mut guest, "/dev/rnbd0", 30, 1)?;
    storage::fio_at_work(&mut guest, "/dev/rnbd0")?;
    for round in 0..4 {
        // Each kill is at another moment.
        std::thread::sleep(Duration::from_millis(3000 + 437 * round));
        far.kill();
        far = server.clone().start()?;
        far.wait_ready()?;
        wait_for(&mut middle, "remote list csv", OPEN, PATIENCE)?;
    }
    storage::finish_fio(&mut guest, Duration::from_secs(180))?;
    ensure!(count(&mut middle, "link_up")? == 5, "the link did not come up once for each boot");
    ensure!(count(&mut middle, "queue_pairs")? == pairs, "queue pairs have leaked");

    guest.sh("set -e
         mkfs.ext4 -q -E lazy_itable_init=0 /dev/rnbd0
         mount -t ext4 /dev/rnbd0 /mnt
         dd if=/dev/urandom of=/mnt/file bs=1M count=8 2>/dev/null
         sync
         sha256sum </mnt/file >/tmp/sum
         umount /mnt")?;
    middle.kill();
    let mut middle = gateway.start()?;
    middle.wait_ready()?;
    wait_for(&mut middle, "remote list csv", OPEN, PATIENCE)?;
    let answers = "dd if=/dev/rnbd0 of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null";
    guest.wait_until(answers, Duration::from_secs(120)).context("the client does not recover")?;
    guest.sh("set -e
         echo 3 >/proc/sys/vm/drop_caches
         mount -t ext4 /dev/rnbd0 /mnt
         sha256sum </mnt/file | cmp - /tmp/sum
         umount /mnt")?;
    for vm in [&mut far, &mut middle] {
        ensure!(count(vm, "violations")? == 0, "violations");
    }
    unmap(&mut guest, 0)
}

#[test]
fn messages_go_over_smc_r_across_the_bridge() -> Result<()> {
    let memory = SharedMemory::new(32)?;
    let doorbells = memory.serve()?;
    messages_go_over_smc_r(|_, spec| spec.extra(doorbells.doorbell()), [0, 1])
}

#[test]
fn messages_go_over_smc_r_over_tcp() -> Result<()> {
    let between = Wire::new()?;
    messages_go_over_smc_r(|far, spec| over_tcp(&between, far, spec), [1, 2])
}

/// The stock client connects to a rule over SMC-R, or TCP. The rule connects over SMC-R to the server behind the
/// bridge: TCP over the bridge's Ethernet, data over its queue pairs. `joined` adds the bridge to the far machine if
/// its argument is true, or else to the near one. `nets` has the numbers of their interfaces on the bridge, the far
/// machine's first.
pub fn messages_go_over_smc_r(joined: impl Fn(bool, Spec) -> Spec, nets: [usize; 2]) -> Result<()> {
    let near = Wire::new()?;
    let (ours, theirs) = near.datagrams();
    let words = |own: usize, peer| {
        let net = nets[own - 1];
        format!(
            "isthmus.ntb.0.address=10.9.0.{own} isthmus.ntb.0.peer=10.9.0.{peer} \
             isthmus.ntb.0.mtu=65500 isthmus.net.{net}.address=10.8.0.{own}/24 \
             isthmus.smc.ueid.0=LAB.SMC.EID "
        )
    };
    let far = image_spec()?.append(&(words(1, 2) + "isthmus.smc.services=true")).first_mac(9);
    let mut far = joined(true, far).start()?;
    far.wait_ready()?;
    let rule = "isthmus.rule.0.name=echo isthmus.rule.0.listen=7001 \
        isthmus.rule.0.backend=10.8.0.1:7 isthmus.rule.0.backend_smc=true";
    let middle = gateway_spec(1500, &(words(2, 1) + rule))?.nic(ours).first_mac(1);
    let mut middle = joined(false, middle).start()?;
    middle.wait_ready()?;
    wait_for(&mut middle, "ping 10.8.0.1 1", "1 of 1 answered", PATIENCE)?;
    let mut guest = client_of(1500, |spec| spec.nic(theirs))?;
    prepare(&mut guest)?;
    for words in ["64 10 1", "64 10 1 tcp", "300000 4 2", "3000000 2 1 tcp", "64 1 4 early"] {
        let said = guest.sh(&format!("timeout 100 smc echo 10.0.0.1 7001 {words}"))?;
        ensure!(said.trim() == "fine", "{words}: {said}");
    }
    for (vm, net, lists) in [(&mut far, nets[0], 1), (&mut middle, nets[1], 2)] {
        let links = vm.run("show smc links --json")?.json()?;
        let links = links.as_array().context("no list of links")?;
        let over: Vec<_> = links.iter().filter(|link| link["ib_dev"] == "ntrdma0").collect();
        ensure!(links.len() == lists && over.len() == 1, "{links:?}");
        let link = over[0];
        ensure!(
            link["link_state"] == "LINK_ACTIVE" && link["net_dev"] == format!("net{net}"),
            "{link:#}"
        );
        let stats = vm.run("show smc stats --json")?.json()?;
        for key in ["handshake_errors", "tcp_fallback", "malformed", "aborted", "violations"] {
            ensure!(stats[key] == 0, "{key}: {stats:#}");
        }
        ensure!(
            count(vm, "violations")? == 0 && count(vm, "qp_errors")? == 0,
            "queue pairs failed"
        );
    }
    let entries = count(&mut far, "entries_received")?;
    ensure!(entries > 200, "{entries} entries");
    Ok(())
}
