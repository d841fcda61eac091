//! A fleet: appliances that start from nothing, Ansible's playbooks of `launch/recipes/ansible` that configure, change and
//! upgrade them, and Prometheus with the rules of `launch/recipes/prometheus` that watches them.

mod alerts;
mod ansible;
mod appliances;
mod prometheus;
mod twenty;

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use ansible::{Inventory, Recap, play};
use appliances::{Appliance, Origin};

/// Repeats a check until it holds.
fn until(limit: Duration, what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !holds()? {
        ensure!(Instant::now() < deadline, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// What the inventory of a fleet wants of each appliance.
fn wanted() -> serde_json::Value {
    json!({
        "system": {"hostname": "{{ inventory_hostname }}", "log_level": "info"},
        "limits": {"sessions_per_host": 8},
    })
}

#[test]
fn three_appliances_are_provisioned_changed_and_come_back_from_a_wrong_address() -> Result<()> {
    let mut fleet = Vec::new();
    for (n, origin) in [Origin::Smbios, Origin::Seed, Origin::FwCfg].into_iter().enumerate() {
        fleet.push(Appliance::start(&format!("gw-{n}"), origin)?);
    }
    for one in &mut fleet {
        one.wait_for_http()?;
    }
    let mut inventory = Inventory::of(&fleet, wanted());

    // From nothing; the second run finds nothing to do.
    let first = play("site.yml", &inventory, &[])?;
    first.each(&fleet, |recap| recap.failed == 0 && recap.changed >= 3)?;
    let second = play("site.yml", &inventory, &[])?;
    second.each(&fleet, |recap| recap.failed == 0 && recap.changed == 0)?;
    for one in &fleet {
        one.run("show exports")?.has("scratch")?.has("10.0.0.0/24")?;
        one.run("show version")?.has(&one.name)?;
    }

    // Check mode shows a change and makes none.
    inventory.vars["isthmus_config"]["system"]["log_level"] = json!("debug");
    inventory.vars["isthmus_exports"]["scratch"]["hosts"] = json!(["10.0.0.0/24", "10.1.0.0/24"]);
    let checked = play("site.yml", &inventory, &["--check", "--diff"])?;
    checked.each(&fleet, |recap| recap.failed == 0 && recap.changed == 2)?;
    ensure!(checked.text.contains("+system.log_level = \"debug\""), "{}", checked.text);
    for one in &fleet {
        one.run("show config")?.has("log_level = \"info\"")?;
        one.run("show exports")?.lacks("10.1.0.0/24")?;
    }
    let changed = play("site.yml", &inventory, &[])?;
    changed.each(&fleet, |recap| recap.failed == 0 && recap.changed == 2)?;
    fleet[1].vm.reboot()?;
    fleet[1].wait_for_http()?;
    fleet[1].run("show exports")?.has("10.1.0.0/24")?;
    fleet[1].run("show config")?.has("log_level = \"debug\"")?;

    // An appliance with a wrong address is out of reach, and comes back by itself.
    let mut wrong = Inventory::of(&fleet[2..], wanted());
    wrong.vars["isthmus_config"]["net"] =
        json!([{"address": ["10.0.2.99/24"], "gateway": "10.0.2.2"}]);
    wrong.vars["isthmus_confirm_minutes"] = json!(1);
    let refused = play("site.yml", &wrong, &[])?;
    ensure!(refused.host("gw-2")?.failed == 1, "{}", refused.text);
    ensure!(refused.text.contains("cuts somebody off"), "{}", refused.text);
    wrong.vars["isthmus_accept_cuts"] = json!(true);
    let lost = play("site.yml", &wrong, &[])?;
    ensure!(lost.host("gw-2")?.failed == 1, "{}", lost.text);
    ensure!(lost.text.contains("takes it back after 1 minutes"), "{}", lost.text);
    ensure!(!fleet[2].answers(), "it answers at its old address");
    until(Duration::from_secs(90), "the appliance comes back", || Ok(fleet[2].answers()))?;
    fleet[2].run("show history")?.has("not confirmed")?;
    let back = play("site.yml", &inventory, &[])?;
    back.each(&fleet, |recap| recap.failed == 0 && recap.changed == 0)?;
    Ok(())
}

/// Errors name the cause: a wrong token, a wrong key, a candidate of somebody else.
#[test]
fn modules_say_what_is_wrong() -> Result<()> {
    let mut fleet = vec![Appliance::start("gw-0", Origin::FwCfg)?];
    fleet[0].wait_for_http()?;
    let mut inventory = Inventory::of(&fleet, wanted());
    inventory.vars["isthmus_config"]["system"]["hostnam"] = json!("x");
    let failed = play("site.yml", &inventory, &[])?;
    ensure!(failed.host("gw-0")? == &Recap { ok: 0, changed: 0, failed: 1 }, "{}", failed.text);
    ensure!(failed.text.contains("did you mean"), "{}", failed.text);
    let mut inventory = Inventory::of(&fleet, wanted());
    fleet[0].vm.run("configure set system.hostname mine")?.lacks("error")?;
    let failed = play("site.yml", &inventory, &[])?;
    ensure!(failed.text.contains("somebody edits the candidate"), "{}", failed.text);
    fleet[0].vm.run("configure discard")?.lacks("error")?;
    inventory.vars["isthmus_token"] = json!("wrong");
    let failed = play("site.yml", &inventory, &[])?;
    ensure!(failed.text.contains("401"), "{}", failed.text);
    Ok(())
}
