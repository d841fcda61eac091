//! Debian's dnsmasq, chrony and rsyslog, each silent, slow, lying and gone.

use super::logs::{PLAIN, Rsyslog, say};
use super::peers::{Pace, relay_datagrams, relay_streams};
use super::time::{chrony, states};
use super::{HOST, dnsmasq, start, until};
use anyhow::{Result, ensure};
use launch::qemu::free_port;
use std::time::{Duration, Instant};

/// Longer than the second that a query waits for an answer.
const TOO_SLOW: Duration = Duration::from_millis(1500);

/// Adds an hour to the times of an NTP message.
fn hour_late(message: &mut Vec<u8>) {
    for at in [32, 40] {
        let Some(seconds) = message.get_mut(at..at + 4) else { return };
        let now = u32::from_be_bytes([seconds[0], seconds[1], seconds[2], seconds[3]]);
        seconds.copy_from_slice(&now.wrapping_add(3600).to_be_bytes());
    }
}

#[test]
fn dnsmasq_is_silent_slow_lying_and_gone() -> Result<()> {
    let (directory, port) = (tempfile::tempdir()?, free_port()?);
    let hosts = "10.1.0.7 nas.test\n10.1.0.8 b.test\n10.1.0.9 c.test\n127.0.0.1 liar.test\n";
    let server = dnsmasq(directory.path(), port, hosts)?;
    // Slow, but not too slow.
    let slow = relay_datagrams(port, Duration::from_millis(600), |_| {})?;
    let mut vm = start(&format!("isthmus.system.dns={HOST}:{slow}"), &[])?;
    vm.run("resolve nas.test")?.contains("nas.test: 10.1.0.7")?;
    let shown = vm.run("show dns --json")?.json()?;
    ensure!(shown["servers"][0]["timeouts"] == 0, "{shown:#}");
    // Too slow: the other server is asked, and late answers are not believed.
    let slower = relay_datagrams(port, TOO_SLOW, |_| {})?;
    let both = format!("set system.dns {HOST}:{slower},{HOST}:{port}");
    vm.run(&both)?.lacks("error")?;
    vm.run("resolve b.test")?.contains("b.test: 10.1.0.8")?;
    let shown = vm.run("show dns --json")?.json()?;
    ensure!(shown["servers"][0]["timeouts"].as_u64() >= Some(1), "{shown:#}");
    // It gives an address that no other machine has.
    vm.run("resolve liar.test")?.contains("error: liar.test: ")?.lacks("liar.test: 127")?;
    // It changes what is asked: the answer does not repeat the question.
    let other = relay_datagrams(port, Duration::ZERO, |answer| {
        if let Some(letter) = answer.get_mut(13) {
            *letter ^= 1;
        }
    })?;
    vm.run(&format!("set system.dns {HOST}:{other},{HOST}:{port}"))?.lacks("error")?;
    vm.run("resolve c.test")?.contains("c.test: 10.1.0.9")?;
    let shown = vm.run("show dns --json")?.json()?;
    ensure!(shown["foreign_datagrams"].as_u64() >= Some(1), "{shown:#}");
    // Silent, then back.
    vm.run(&format!("set system.dns {HOST}:{port}"))?.lacks("error")?;
    server.set_silent(true)?;
    let begun = Instant::now();
    vm.run("resolve d.test")?.contains("error: d.test: no name server answers")?;
    ensure!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    server.set_silent(false)?;
    vm.run("resolve e.test")?.contains("error: e.test: the name does not exist")?;
    // Gone.
    drop(server);
    vm.run("resolve f.test")?.contains("error: f.test: no name server answers")?;
    Ok(())
}

#[test]
fn chrony_is_silent_slow_lying_and_gone() -> Result<()> {
    let (directory, port) = (tempfile::tempdir()?, free_port()?);
    let server = chrony(directory.path(), port)?;
    let honest = || relay_datagrams(port, Duration::ZERO, |_| {});
    let ports = [
        honest()?,
        honest()?,
        relay_datagrams(port, Duration::ZERO, hour_late)?,
        relay_datagrams(port, TOO_SLOW, |_| {})?,
    ];
    let list: Vec<String> = ports.iter().map(|port| format!("{HOST}:{port}")).collect();
    let mut vm = start(&format!("isthmus.system.ntp={}", list.join(",")), &[])?;
    let wanted = ["good", "good", "falseticker", "too far from its reference, or too slow"];
    let are = |shown: &serde_json::Value, wanted: &[&str]| {
        let states = states(shown);
        states.len() == wanted.len()
            && states.iter().zip(wanted).all(|(state, wanted)| state.starts_with(wanted))
    };
    let shown = until(&mut vm, "show time", |shown| are(shown, &wanted))?;
    let offset = shown["servers"][0]["offset_seconds"].as_f64();
    ensure!(offset.is_some_and(|offset| offset.abs() < 1.0), "{shown:#}");
    vm.run("show log errors")?.contains("falseticker")?.contains("too slow")?;
    // Silent from the start, then it speaks.
    server.set_silent(true)?;
    let mut other = start(&format!("isthmus.system.ntp={HOST}:{port}"), &[])?;
    until(&mut other, "show time", |shown| are(shown, &["does not answer"]))?;
    other.run("show time")?.contains("real-time clock")?;
    server.set_silent(false)?;
    until(&mut other, "show time", |shown| are(shown, &["good"]))?;
    // Gone: the clock goes on.
    drop(server);
    other.run("set system.ntp 10.0.2.2")?.lacks("error")?;
    until(&mut other, "show time", |shown| are(shown, &["does not answer"]))?;
    other.run("show time")?.contains("yes")?;
    Ok(())
}

#[test]
fn rsyslog_is_silent_slow_lying_and_gone() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut server = Rsyslog::new(directory.path(), PLAIN.into())?;
    server.start()?;
    let slow = relay_streams(server.port, Pace::Slow)?;
    let mut vm = start(&format!("isthmus.system.syslog=tcp://{HOST}:{slow}"), &[])?;
    let all_of = |text: &str, numbers: core::ops::RangeInclusive<usize>| -> Result<()> {
        for number in numbers {
            let line = format!("unset message.{number}:");
            ensure!(text.contains(&line), "{line} was lost: {text}");
        }
        Ok(())
    };
    // Slow: later than it is said, and nothing is lost.
    for number in 1..=10 {
        say(&mut vm, number)?;
    }
    all_of(&server.wait_for("unset message.10:")?, 1..=10)?;
    // Silent.
    if let Some(server) = &server.server {
        server.set_silent(true)?;
    }
    for number in 11..=20 {
        say(&mut vm, number)?;
    }
    vm.run("show version")?.lacks("error")?;
    if let Some(server) = &server.server {
        server.set_silent(false)?;
    }
    all_of(&server.wait_for("unset message.20:")?, 11..=20)?;
    // It takes messages, and ends the connection each time: none is lost, and some arrive twice.
    let ends = relay_streams(server.port, Pace::Ends(700))?;
    vm.run(&format!("set system.syslog tcp://{HOST}:{ends}"))?.lacks("error")?;
    for number in 21..=24 {
        say(&mut vm, number)?;
        std::thread::sleep(Duration::from_secs(2));
    }
    all_of(&server.wait_for("unset message.24:")?, 21..=24)?;
    // Gone, and back.
    vm.run(&format!("set system.syslog tcp://{HOST}:{}", server.port))?.lacks("error")?;
    server.stop();
    for number in 25..=30 {
        say(&mut vm, number)?;
    }
    server.start()?;
    all_of(&server.wait_for("unset message.30:")?, 25..=30)?;
    Ok(())
}
