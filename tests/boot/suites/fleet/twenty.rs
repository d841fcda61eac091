//! Twenty appliances (four without `--full`) on disks of their own, four at a time: provisioned from nothing, changed, one cut off by a wrong
//! address, and upgraded one after the other to a signed release, while Prometheus watches.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use boot_tests::named_file;
use ed25519_dalek::SigningKey;
use launch::qemu::{Boot, Disk, Firmware, Spec, free_port};
use launch::release::{public, sign};
use serde_json::json;

use super::super::provisioning::with_strings;
use super::ansible::{Inventory, play};
use super::appliances::{Appliance, nic, strings};
use super::prometheus::Prometheus;
use super::{until, wanted};

/// Appliances that run at a time.
const AT_A_TIME: usize = 4;
/// Time stamp of the release, later than the commit of the image under test, because older releases are refused.
const LATER: u64 = 4_000_000_000;

/// The size of the fleet: twenty with `--full`, else as many as run at a time.
fn size() -> usize {
    if std::env::var_os("ISTHMUS_FULL").is_some() { 20 } else { AT_A_TIME }
}

/// Serves a release at this host.
fn serve(release: Vec<u8>) -> Result<String> {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = server.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in server.incoming().map_while(Result::ok) {
            let _ = reply(stream, &release);
        }
    });
    // 10.0.2.2 is the loopback address of the machine that QEMU runs on.
    Ok(format!("http://10.0.2.2:{port}/isthmus.release"))
}

fn reply(mut stream: TcpStream, release: &[u8]) -> Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", release.len())?;
    stream.write_all(release)?;
    Ok(())
}

/// A machine with a disk that `./isthmus image qcow2` has made, and a port of this host.
fn start(name: &str, port: u16) -> Result<Appliance> {
    let disk = tempfile::Builder::new().suffix(".qcow2").tempfile()?;
    std::fs::copy(named_file("ISTHMUS_QCOW2")?, disk.path())?;
    let spec = Spec::new(Boot::OwnDisk(Disk::new(disk.path()))).firmware(Firmware::Ovmf);
    let strings = strings()?;
    let strings: Vec<&str> = strings.iter().map(String::as_str).collect();
    let vm = with_strings(spec.nic(nic(port)).reboots(), &strings).start()?;
    Ok(Appliance::new(name, port, vm, vec![disk]))
}

#[test]
fn fleet_is_provisioned_changed_and_upgraded_one_after_the_other() -> Result<()> {
    let key = SigningKey::from_bytes(&[6; 32]);
    let image = std::fs::read(named_file("ISTHMUS_IMAGE")?)?;
    let release = serve(sign(&image, LATER, "next", &key))?;
    let line = public(&key);
    let upgrade_key = line.split('"').nth(1).context("a key")?;
    let places: Vec<(String, u16)> =
        (0..size()).map(|n| Ok((format!("gw-{n}"), free_port()?))).collect::<Result<_>>()?;
    let prometheus = Prometheus::start(&places)?;
    for (group, places) in places.chunks(AT_A_TIME).enumerate() {
        let mut fleet = Vec::new();
        for (name, port) in places {
            fleet.push(start(name, *port)?);
        }
        for one in &mut fleet {
            one.wait_for_http()?;
        }
        let mut config = wanted();
        config["system"]["upgrade_key"] = json!(upgrade_key);
        let mut inventory = Inventory::of(&fleet, config);
        let first = play("site.yml", &inventory, &[])?;
        first.each(&fleet, |recap| recap.failed == 0 && recap.changed >= 3)?;
        inventory.vars["isthmus_config"]["system"]["log_level"] = json!("debug");
        let changed = play("site.yml", &inventory, &[])?;
        changed.each(&fleet, |recap| recap.failed == 0 && recap.changed == 1)?;
        if group == 0 {
            cut_off(&fleet[..1], &inventory)?;
        }
        let same = play("site.yml", &inventory, &[])?;
        same.each(&fleet, |recap| recap.failed == 0 && recap.changed == 0)?;

        let from = format!("release={release}");
        let words = ["-e", from.as_str(), "-e", "version=next"];
        let upgraded = play("upgrade.yml", &inventory, &words)?;
        upgraded.each(&fleet, |recap| recap.failed == 0 && recap.changed == 1)?;
        let again = play("upgrade.yml", &inventory, &words)?;
        again.each(&fleet, |recap| recap.failed == 0 && recap.changed == 0)?;
        let same = play("site.yml", &inventory, &[])?;
        same.each(&fleet, |recap| recap.failed == 0 && recap.changed == 0)?;
        for one in &fleet {
            one.run("show upgrade")?.has("next")?;
            one.run("show exports")?.has("scratch")?.has("10.0.0.0/24")?;
            // Neither is left after the upgrade.
            prometheus.wait("IsthmusUpgradeOnTrial", &one.name, false)?;
            prometheus.wait("IsthmusUnreachable", &one.name, false)?;
        }
        let ended = one_that_ends(fleet)?;
        prometheus.wait("IsthmusUnreachable", &ended, true)?;
    }
    let mut all: Vec<String> = places.into_iter().map(|(name, _)| name).collect();
    all.sort();
    let on_trial = prometheus.fired("IsthmusUpgradeOnTrial")?;
    ensure!(on_trial == all, "on trial were {on_trial:?}");
    Ok(())
}

/// Gives an appliance a wrong address; it comes back by itself.
fn cut_off(fleet: &[Appliance], inventory: &Inventory) -> Result<()> {
    let mut wrong = Inventory::of(fleet, inventory.vars["isthmus_config"].clone());
    wrong.vars["isthmus_config"]["net"] =
        json!([{"address": ["10.0.2.99/24"], "gateway": "10.0.2.2"}]);
    wrong.vars["isthmus_confirm_minutes"] = json!(1);
    wrong.vars["isthmus_accept_cuts"] = json!(true);
    let lost = play("site.yml", &wrong, &[])?;
    ensure!(lost.host(&fleet[0].name)?.failed == 1, "{}", lost.text);
    ensure!(lost.text.contains("takes it back after 1 minutes"), "{}", lost.text);
    ensure!(!fleet[0].answers(), "it answers at its old address");
    until(Duration::from_secs(90), "the appliance comes back", || Ok(fleet[0].answers()))
}

/// Ends the machines; returns the name of one.
fn one_that_ends(fleet: Vec<Appliance>) -> Result<String> {
    let name = fleet.first().context("a fleet")?.name.clone();
    drop(fleet);
    Ok(name)
}
