//! The appliance as a client of a stock Linux server, whose volume it exports again.
use std::time::Duration;

use anyhow::{Result, ensure};
use interop_tests::remote::{self, run_scenario, wait_for};
use interop_tests::{map, storage, unmap};
use launch::guest::Guest;
use serde_json::Value;

#[test]
fn a_volume_of_linux_is_exported_again() -> Result<()> {
    remote::chain("always_invalidate=Y")
}

/// Maps, reads and unmaps a remote volume from the console.
#[test]
fn a_remote_is_added_and_removed_while_it_runs() -> Result<()> {
    let site = interop_tests::Site::boot(1500, "isthmus.volume.0.size=1MiB")?;
    run_scenario(site, |site| {
        remote::serve(&mut site.client, "")?;
        let gateway = &mut site.gateway;
        let add = "remote add far sessname=gw path=ip:10.0.0.1@ip:10.0.0.2 device_path=/dev/ram0";
        gateway
            .run(&format!("{add} access_mode=best"))?
            .contains("accepted: ro, rw or migration")?;
        gateway.run(add)?.contains("in force now")?;
        gateway.run(add)?.contains("error")?;
        let patience = Duration::from_secs(20);
        wait_for(gateway, "remote list csv", "far,gw,/dev/ram0,open,67108864", patience)?;
        gateway.run("cat /rtrs-client/gw/mp_policy")?.contains("min-inflight (MI: 1)")?;
        gateway.run("write /rtrs-client/gw/mp_policy rr")?.lacks("error")?;
        gateway.run("cat /rtrs-client/gw/mp_policy")?.contains("round-robin (RR: 0)")?;
        gateway.run("write /rtrs-client/gw/max_reconnect_attempts 5")?.lacks("error")?;
        gateway.run("cat /rtrs-client/gw/max_reconnect_attempts")?.contains("5")?;
        gateway
            .run("write /rtrs-client/gw/max_reconnect_attempts x")?
            .contains("-1 for no limit")?;
        gateway
            .run("write /rtrs-client/gw/add_path ip:10.0.0.1@ip:10.0.0.2")?
            .contains("has a path")?;
        map(&mut site.client, "s1", storage::PATH, "far", "")?;
        gateway.run("remote remove far")?.contains("has far open")?;
        // The console reads while the client has the volume mapped.
        let reads = "remote read far count=2000 size=4KiB depth=32";
        gateway.run(reads)?.contains("2000 reads of 4096 bytes")?;
        site.client.sh("cmp /dev/rnbd0 /dev/ram0")?;
        unmap(&mut site.client, 0)?;
        gateway.run("remote remove far")?.contains("in force now")?;
        let gone = "[ -z \"$(ls /sys/class/rtrs-server/ 2>/dev/null | grep gw)\" ]";
        site.client.wait_until(gone, Duration::from_secs(40))
    })
}

/// Linux 6.12 calls these attributes by other names than its document, which the appliance follows.
const RENAMED: [(&str, &str); 4] = [
    ("mpath_policy", "mp_policy"),
    ("cur_latency", "cur_latency_seconds"),
    ("stats/cpu_migration_from", "stats/cpu_migration/from"),
    ("stats/cpu_migration_to", "stats/cpu_migration/to"),
];

/// Attributes below a directory of the guest's sysfs, with `PATH` for the name of a path.
fn attributes(guest: &mut Guest, directory: &str) -> Result<Vec<String>> {
    let files = guest.sh(&format!("cd {directory} && find . -type f"))?;
    let files = files.lines().filter_map(|line| line.trim().strip_prefix("./"));
    let files = files.filter(|file| !file.contains("power/") && !file.ends_with("uevent"));
    let named =
        files.map(|file| match file.strip_prefix("paths/").map(|rest| rest.split_once('/')) {
            Some(Some((_, rest))) => format!("paths/PATH/{rest}"),
            _ => file.to_string(),
        });
    let named: Vec<String> = named.collect();
    ensure!(!named.is_empty(), "{directory} is empty");
    Ok(named)
}

/// Fails if the appliance's object lacks an attribute that Linux has.
fn has_all(object: &Value, path: &str, attributes: &[String]) -> Result<()> {
    for linux in attributes {
        let (before, name) = match linux.strip_prefix("paths/PATH/") {
            Some(name) => (Some(["paths", path]), name),
            None => (None, linux.as_str()),
        };
        let renamed = RENAMED.iter().find(|(linux, _)| *linux == name);
        let name = renamed.map_or(name, |(_, ours)| ours);
        let mut value = object;
        for part in before.into_iter().flatten().chain(name.split('/')) {
            value = &value[part];
        }
        ensure!(!value.is_null(), "{linux} is missing: {object:#}");
    }
    Ok(())
}

/// The appliance is a client of the guest's server, and a server of the guest's client: each attribute of Linux's sysfs
/// is beside one of the appliance.
#[test]
fn sessions_have_the_attributes_of_linux() -> Result<()> {
    let site = interop_tests::Site::boot(1500, "isthmus.volume.0.size=1MiB")?;
    run_scenario(site, |site| {
        remote::serve(&mut site.client, "")?;
        let (gateway, guest) = (&mut site.gateway, &mut site.client);
        // The source is the address in the same network.
        let add = "remote add far sessname=gw path=ip:10.0.0.2 device_path=/dev/ram0";
        gateway.run(add)?.contains("in force now")?;
        let patience = Duration::from_secs(20);
        wait_for(gateway, "remote list csv", "far,gw,/dev/ram0,open,67108864", patience)?;
        map(guest, "s1", storage::PATH, "far", "")?;
        guest.sh("dd if=/dev/rnbd0 of=/dev/null bs=4k count=4 iflag=direct")?;
        let (out, back) = ("ip:10.0.0.1@ip:10.0.0.2", "ip:10.0.0.2@ip:10.0.0.1");
        let mut object = |path: &str| gateway.run(&format!("cat {path} --json"))?.json();
        let client = object("/rtrs-client/gw")?;
        has_all(&client, out, &attributes(guest, "/sys/class/rtrs-client/s1")?)?;
        let server = object("/rtrs-server/s1")?;
        has_all(&server, back, &attributes(guest, "/sys/class/rtrs-server/gw")?)?;
        let open = object("/rnbd-server/ctl/devices/far/sessions/s1")?;
        let directory = guest.sh("echo /sys/class/rnbd-server/ctl/devices/*/sessions/gw")?;
        has_all(&open, "", &attributes(guest, directory.trim())?)?;
        let device = object("/rnbd-client/ctl/devices/far")?;
        has_all(&device, "", &attributes(guest, "/sys/block/rnbd0/rnbd")?)?;
        ensure!(client["paths"][out]["hca_name"] == "roce0", "{client:#}");
        ensure!(client["paths"][out]["hca_port"] == 1, "{client:#}");
        // Linux's values in Linux's order.
        let rdma = format!("/sys/class/rtrs-client/s1/paths/{back}/stats/rdma");
        let values = guest.sh(&format!("cat {rdma}"))?.split_whitespace().count();
        let ours = client["paths"][out]["stats"]["rdma"].as_object().map_or(0, |rdma| rdma.len());
        ensure!(values == 6 && ours == 7, "{values} values, and {ours} with errors");
        gateway
            .run("write /rtrs-client/gw/add_path gid:::ffff:10.0.0.2")?
            .contains("has a path")?;
        let reconnect = format!("write /rtrs-client/gw/paths/{out}/reconnect 1");
        // Linux refuses a session whose former connections it has not closed yet: the answer says so.
        let connects = |gateway: &mut launch::qemu::Vm| -> Result<bool> {
            std::thread::sleep(Duration::from_secs(1));
            Ok(gateway.run(&reconnect)?.text.contains("is connected"))
        };
        let mut tries = 10;
        while !connects(gateway)? {
            tries -= 1;
            ensure!(tries > 0, "the path does not reconnect");
        }
        unmap(guest, 0)?;
        gateway
            .run("write /rnbd-client/ctl/devices/far/unmap_device normal")?
            .contains("in force now")?;
        let map = "write /rnbd-client/ctl/map_device sessname=gw path=ip:10.0.0.1,ip:10.0.0.2 device_path=/dev/ram0";
        gateway.run(map)?.contains("in force now")?;
        wait_for(gateway, "remote list csv", "dev.ram0,gw,/dev/ram0,open,67108864", patience)?;
        Ok(())
    })
}
