//! What a commit does at once: mirrors come and go with it, on the console and over HTTP. And every report of the console
//! over HTTP.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use boot_tests::{boot, spec};
use launch::qemu::Vm;

use super::{Client, USERS, tag};
use crate::config::with_http;

const VOLUMES: &str =
    "[[volume]]\nname = \"a\"\nsize = \"1MiB\"\n[[volume]]\nname = \"b\"\nsize = \"1MiB\"\n";

/// Waits until `mirror list` has a text, or lacks it.
fn mirrors(vm: &mut Vm, text: &str, has: bool) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let shown = vm.run("mirror list json")?.text;
        if shown.contains(text) == has {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{text:?}, wanted {has}: {shown}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn mirror_comes_and_goes_with_a_commit() -> Result<()> {
    let mut vm = boot(spec()?.config(VOLUMES))?;
    vm.run("configure set mirror.0.name m")?.contains("pending")?;
    vm.run("configure set mirror.0.members a,b")?.lacks("error")?;
    vm.run("compare")?.contains("+ mirror.0.name = \"m\"")?.lacks("reboot")?;
    vm.run("check")?.contains("volume b becomes a member of mirror m")?;
    vm.run("commit")?.contains("error: cuts off: export a is withdrawn")?;
    mirrors(&mut vm, "\"m\"", false)?;
    vm.run("commit --yes")?.contains("revision 2 is in force")?.lacks("reboot")?;
    // Nothing was mirrored yet, and a commit makes no mirror of different volumes.
    mirrors(&mut vm, "the members are not of one mirror", true)?;
    vm.run("mirror create m a b force")?.lacks("error")?;
    mirrors(&mut vm, "\"in sync\"", true)?;
    vm.run("show exports")?.contains("m")?;
    // A removed mirror leaves its members.
    vm.run("configure unset mirror.0")?.lacks("error")?;
    vm.run("commit")?.contains("error: cuts off: export m is withdrawn")?;
    vm.run("commit --yes")?.contains("in force")?.lacks("reboot")?;
    mirrors(&mut vm, "\"m\"", false)?;
    vm.run("volume list")?.contains("a")?.contains("b")?.lacks("member")?;
    // It comes back with its contents.
    vm.run("rollback 2 --yes")?.contains("in force")?;
    mirrors(&mut vm, "\"in sync\"", true)?;
    // On trial it stays until the confirmation.
    vm.run("configure unset mirror.0")?.lacks("error")?;
    vm.run("commit confirmed 5s --yes")?.contains("mirror m goes with `confirm`")?;
    mirrors(&mut vm, "\"in sync\"", true)?;
    vm.wait_for("was not confirmed in time, and is taken back")?;
    mirrors(&mut vm, "\"in sync\"", true)?;
    vm.run("show exports")?.contains("m")?;
    // A key that needs a reboot is named before.
    vm.run("configure set mirror.0.timeout_ms 9000")?.lacks("error")?;
    let named = "in force after `save` and `reboot`: mirror.0.timeout_ms";
    vm.run("compare")?.contains(named)?;
    vm.run("check")?.contains(named)?;
    vm.run("commit")?.contains(named)?;
    Ok(())
}

#[test]
fn mirror_is_a_resource_of_the_api() -> Result<()> {
    let (mut vm, server) = with_http(spec()?.config(&format!("{USERS}{VOLUMES}")))?;
    let ada = Client(server, "admin-token");
    let body = "{\"members\":[\"a\",\"b\"]}";
    let cut = ada.json("PUT", "mirrors/m", body, 409)?;
    ensure!(cut["cuts"].to_string().contains("volume a becomes a member"), "{cut}");
    let made = ada.json("PUT", "mirrors/m?yes=true", body, 201)?;
    let is_now = |change: &serde_json::Value| change["at_once"] == true;
    let changes = made["changes"].as_array().cloned().unwrap_or_default();
    ensure!(changes.len() > 1 && changes.iter().all(is_now), "{made}");
    mirrors(&mut vm, "\"m\"", true)?;
    let again = ada.json("PUT", "mirrors/m", body, 200)?;
    ensure!(again["changes"] == serde_json::json!([]), "{again}");
    let later =
        ada.json("PUT", "mirrors/m", "{\"members\":[\"a\",\"b\"],\"timeout_ms\":9000}", 200)?;
    ensure!(later["notes"].to_string().contains("mirror.0.timeout_ms"), "{later}");
    let entry = ada.send("GET", "mirrors/m", "", "")?;
    ensure!(ada.send("DELETE", "mirrors/m?yes=true", "\"x\"", "")?.status == 412, "a wrong tag");
    let gone = ada.send("DELETE", "mirrors/m?yes=true", &tag(&entry)?, "")?;
    ensure!(gone.status == 200, "{}", gone.body);
    mirrors(&mut vm, "\"m\"", false)?;
    vm.run("show audit")?
        .contains("put mirror m: revision")?
        .contains("delete mirror m: revision")?;
    Ok(())
}

#[test]
fn every_report_of_the_console_is_given_over_http() -> Result<()> {
    let (mut vm, server) = with_http(spec()?.config(USERS))?;
    let ada = Client(server, "admin-token");
    let help = vm.run("help")?.text;
    let mut count = 0;
    for line in help.lines() {
        // The usage, without options in brackets, and only if it needs no argument.
        let usage: Vec<&str> = line.split("  ").next().unwrap_or_default().split(' ').collect();
        let words: Vec<&str> =
            usage.iter().copied().filter(|word| !word.starts_with('[')).collect();
        let is_report = words.first() == Some(&"show") || words.last() == Some(&"list");
        let has_argument = words.iter().any(|word| word.chars().any(|c| c.is_ascii_uppercase()));
        if !is_report || has_argument {
            continue;
        }
        let command = words.join(" ");
        vm.run(&command)?.lacks("error: ")?;
        let body = serde_json::json!({ "command": command }).to_string();
        let given = ada.json("POST", "commands", &body, 200)?;
        let output = given["output"].as_str().unwrap_or_default();
        ensure!(given["error"].is_null() && !output.is_empty(), "{command}: {given}");
        count += 1;
    }
    ensure!(count > 35, "{count}: {help}");
    Ok(())
}
