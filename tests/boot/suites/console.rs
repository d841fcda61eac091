//! The console with a person, a script and random input.
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use boot_tests::peer::Peer;
use boot_tests::{boot, spec};
use launch::qemu::{Nic, Vm};

const APPLIANCE: &str = "10.9.0.1";

#[test]
fn a_script_of_plain_lines_is_answered_line_by_line() -> Result<()> {
    let mut vm = boot(spec()?)?;
    vm.serial.send(b"show version\nshow memory\r\nshow log\r")?;
    for wanted in ["hostname", "arena", "isthmus> "] {
        vm.wait_for(wanted)?;
    }
    Ok(())
}

#[test]
fn every_show_has_a_json_form() -> Result<()> {
    let mut vm = boot(spec()?.nic(Nic::user()))?;
    for topic in ["interfaces", "disks", "volumes", "memory", "loops", "log", "config", "version"] {
        vm.run(&format!("show {topic} --json"))?.json()?;
    }
    Ok(())
}

#[test]
fn an_unknown_command_is_answered_with_the_nearest() -> Result<()> {
    let mut vm = boot(spec()?)?;
    vm.run("shwo version")?.contains("error")?.contains("show")?;
    Ok(())
}

/// A subject has a level of its own, at once and until it is taken back.
#[test]
fn level_of_one_subject_shows_its_messages_alone() -> Result<()> {
    let (mut vm, server) = super::config::with_http(spec()?)?;
    let ask = || launch::http::get(server, "/healthz");
    ask()?;
    vm.run("show log")?.lacks("Get /healthz")?;
    vm.run("log level http debug")?.contains("in force now")?;
    ask()?;
    vm.run("show log")?.contains("Get /healthz")?.lacks("TRACE")?;
    vm.run("log level nothing debug")?.contains("error")?.contains("http")?;
    vm.run("log level http default")?.lacks("error")?;
    let before = vm.run("show log")?.text.matches("Get /healthz").count();
    ask()?;
    let after = vm.run("show log")?.text.matches("Get /healthz").count();
    ensure!(before == after, "{before} and {after}");
    Ok(())
}

/// All console commands of README and docs are known, even if the appliance lacks the objects that they name.
#[test]
fn commands_of_the_pages_are_known() -> Result<()> {
    let mut vm = boot(spec()?.nic(Nic::user()))?;
    for (name, page) in launch::pages::all()? {
        for line in launch::pages::blocks(&page).iter().flat_map(|block| block.typed("isthmus> ")) {
            let reply = vm.run(&line)?;
            let is_known =
                ["unknown", "usage:", "did you mean"].iter().all(|word| !reply.text.contains(word));
            ensure!(is_known, "{name}: `{line}`: {}", reply.text);
        }
    }
    Ok(())
}

#[test]
fn tab_completes_and_the_arrow_recalls() -> Result<()> {
    let mut vm = boot(spec()?)?;
    vm.press("sho\tver\t\r")?.contains("hostname")?;
    vm.press("\x1b[A\r")?.contains("hostname")?;
    Ok(())
}

#[test]
fn control_keys_edit_the_line() -> Result<()> {
    let mut vm = boot(spec()?)?;
    vm.press("rubbish\x15show version\r")?.contains("hostname")?;
    vm.press("show rubbish\x17version\r")?.contains("hostname")?;
    vm.serial.send(b"poweroff\x03")?; // Ctrl-C: not carried out
    vm.wait_for("isthmus> ")?;
    vm.run("show version")?.contains("hostname")?;
    Ok(())
}

/// Refused commands are logged as refused, and secrets are never shown.
#[test]
fn refused_commands_are_audited_as_refused_and_secrets_are_hidden() -> Result<()> {
    let mut vm = boot(spec()?)?;
    vm.run("volume create a size=1PiB")?.contains("error")?;
    vm.run("set http.port 81")?.lacks("error")?;
    vm.run("set http.port 0")?.contains("error")?;
    vm.run("unset volume.0")?.contains("error")?;
    vm.run("reboot")?.contains("error: unsaved changes: `save` first")?;
    let secret = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg";
    let key =
        format!("set http.key -----BEGIN PRIVATE KEY----- {secret} -----END PRIVATE KEY-----");
    vm.press(&format!("{key}\r"))?.lacks(secret)?;
    vm.press("\x1b[A\r")?.contains("unsaved changes")?.lacks(secret)?;
    // A key pasted line by line at the prompt.
    vm.press("-----BEGIN PRIVATE KEY-----\r")?.lacks("error")?;
    vm.press(&format!("{secret}\r"))?.lacks(secret)?;
    vm.press("-----END PRIVATE KEY-----\r")?.contains("on one line")?;
    vm.press("\x1b[A\r")?.contains("unsaved changes")?;
    let log = vm.run("show log audit")?;
    for line in [
        "console: volume create a size=1PiB: refused: ",
        "console: set http.port 81\r\n",
        "console: set http.port: refused",
        "console: unset volume.0: refused",
        "console: reboot: refused",
    ] {
        let is_there = log.text.replace("\r\n", "\n").contains(&line.replace("\r\n", "\n"));
        ensure!(is_there, "no {line:?} in {}", log.text);
    }
    vm.run("show log")?.lacks(secret)?;
    Ok(())
}

#[test]
fn the_clock_is_shown_with_its_source_and_stamps_messages() -> Result<()> {
    let mut vm = boot(spec()?)?;
    vm.run("show time")?.contains("real-time clock")?.contains("plausible")?;
    let log = vm.run("show log")?;
    let stamped = log.text.lines().filter(|line| line.starts_with("[20") && line.contains("Z] "));
    ensure!(stamped.count() > 2, "{}", log.text);
    Ok(())
}

#[test]
fn clock_of_2001_is_reported_and_stamps_nothing() -> Result<()> {
    let mut vm = boot(spec()?.extra(["-rtc", "base=2001-09-09T01:46:40"]))?;
    vm.run("show log errors")?.contains("2001-09-09T01:46:")?.lacks("[2001")?;
    vm.run("show time")?.contains("no: it is before this build")?;
    Ok(())
}

#[test]
fn json_is_accepted_in_both_forms() -> Result<()> {
    let mut vm = boot(spec()?.nic(Nic::user()))?;
    for command in
        ["show disks --json", "show disks json", "volume list --json", "volume list json"]
    {
        vm.run(command)?.json()?;
    }
    vm.run("show memory")?.contains("MiB")?.lacks("KiB")?;
    Ok(())
}

#[test]
fn a_line_of_64_kib_is_refused_with_one_message() -> Result<()> {
    let mut vm = boot(spec()?)?;
    let reply = vm.press(&format!("{}\r", "x".repeat(64 << 10)))?;
    let refusals = reply.text.matches("ignored").count();
    ensure!(refusals == 1, "{refusals} refusals:\n{}", reply.text);
    vm.run("show version")?.contains("hostname")?;
    Ok(())
}

#[test]
fn noise_leaves_the_console_usable() -> Result<()> {
    let mut vm = boot(spec()?)?;
    let noise: Vec<u8> = noise(100_000).collect();
    vm.serial.send(&noise)?;
    usable(&mut vm)
}

#[test]
fn a_long_paste_does_not_disturb_the_data_path() -> Result<()> {
    let mut peer = Peer::new(&["10.9.0.2/24"])?;
    let settings = format!("isthmus.net.0.address={APPLIANCE}/24 isthmus.services.udp_echo=true");
    let mut vm = boot(spec()?.nic(peer.nic()).append(&settings))?;
    peer.echo(APPLIANCE, b"warm up")?;

    // Ten megabytes take minutes: only in the full run.
    let length = if std::env::var_os("ISTHMUS_FULL").is_some() { 10 << 20 } else { 1 << 20 };
    let mut sender = vm.serial.sender()?;
    sender.set_write_timeout(None)?;
    let paste = std::thread::spawn(move || {
        let line = [&[b'y'; 79][..], b"\r"].concat();
        (0..length).step_by(line.len()).try_for_each(|_| sender.write_all(&line))
    });
    let (mut echoes, mut slowest) = (0, Duration::ZERO);
    while !paste.is_finished() {
        slowest = slowest.max(peer.echo(APPLIANCE, &[7; 64])?);
        echoes += 1;
        // The console's replies must be read, or its output would block.
        vm.serial.take(Duration::ZERO);
    }
    paste.join().ok().context("the paste ended early")??;
    ensure!(echoes > 100, "only {echoes} echoes during the paste");
    ensure!(slowest < Duration::from_secs(1), "an echo took {slowest:?} during the paste");
    usable(&mut vm)
}

/// Discards the current line, and checks that a command works.
fn usable(vm: &mut Vm) -> Result<()> {
    vm.serial.send(b"\x03\r")?;
    while vm.serial.take(Duration::from_millis(500)).is_some_and(|text| !text.is_empty()) {}
    vm.run("show version")?.contains("hostname")?;
    Ok(())
}

/// The same bytes every time, without those that a line of noise could turn into `reboot`.
fn noise(length: usize) -> impl Iterator<Item = u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(length)
}
