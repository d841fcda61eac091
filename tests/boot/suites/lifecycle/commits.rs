//! What a commit does at once: mirrors come and go with it, on the console and over HTTP. And every report of the console
//! over HTTP.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use boot_tests::spec;
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
        ensure!(given["error"].is_null() && given["output"].is_string(), "{command}: {given}");
        count += 1;
    }
    ensure!(count > 35, "{count}: {help}");
    Ok(())
}
