//! The time client with chrony, and with servers that lie, are not synchronised, or demand silence.

use super::peers::Stock;
use super::{HOST, start, until};
use anyhow::{Result, ensure};
use boot_tests::{boot, spec};
use launch::qemu::{Nic, free_port};
use serde_json::Value;
use std::net::UdpSocket;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds from 1900 to 1970.
const NTP_ERA: u64 = 2_208_988_800;

/// A time server whose clock is wrong by some seconds, with this first byte (leap indicator, version, mode), stratum and
/// code. Returns its port.
fn server(offset: i64, first: u8, stratum: u8, code: [u8; 4]) -> Result<u16> {
    let socket = UdpSocket::bind(("127.0.0.1", 0))?;
    let port = socket.local_addr()?.port();
    std::thread::spawn(move || {
        let mut request = [0; 48];
        while let Ok((48, from)) = socket.recv_from(&mut request) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let seconds = (now.as_secs() + NTP_ERA).wrapping_add_signed(offset) as u32;
            let fraction = ((u64::from(now.subsec_nanos()) << 32) / 1_000_000_000) as u32;
            let mut answer = [0; 48];
            (answer[0], answer[1]) = (first, stratum);
            answer[12..16].copy_from_slice(&code);
            answer[24..32].copy_from_slice(&request[40..48]);
            for at in [32, 40] {
                answer[at..at + 4].copy_from_slice(&seconds.to_be_bytes());
                answer[at + 4..at + 8].copy_from_slice(&fraction.to_be_bytes());
            }
            let _ = socket.send_to(&answer, from);
        }
    });
    Ok(port)
}

const GOOD: u8 = 4 << 3 | 4;
const ALARM: u8 = 3 << 6 | GOOD;

pub fn states(shown: &Value) -> Vec<String> {
    let servers = shown["servers"].as_array().cloned().unwrap_or_default();
    servers.iter().map(|one| one["state"].as_str().unwrap_or_default().into()).collect()
}

/// Difference of the image's clock from this machine's, in seconds.
fn error_of(metrics: &str) -> Option<f64> {
    let value = metrics.lines().find_map(|line| line.strip_prefix("isthmus_time_seconds "))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    Some(value.parse::<f64>().ok()? - now.as_secs_f64())
}

/// chrony, with the clock of this machine.
pub fn chrony(directory: &Path, port: u16) -> Result<Stock> {
    let (path, pid) = (directory.join("conf"), directory.join("pid"));
    let conf = format!(
        "port {port}\nbindaddress 127.0.0.1\nlocal stratum 3\nallow 127.0.0.1\ncmdport 0\n\
         bindcmdaddress /\npidfile {}\n",
        pid.display()
    );
    std::fs::write(&path, conf)?;
    Stock::start("chronyd", &["-d", "-x", "-U", "-u", "root", "-f", &path.display().to_string()])
}

#[test]
fn chrony_sets_the_clock_of_a_machine_that_is_years_behind() -> Result<()> {
    let (directory, port, http) = (tempfile::tempdir()?, free_port()?, free_port()?);
    let server = chrony(directory.path(), port)?;
    let words = format!(
        "isthmus.system.ntp={HOST}:{port} isthmus.net.0.address=10.0.2.15/24 \
         isthmus.net.0.gateway=10.0.2.2"
    );
    let nic = Nic::User { forwards: vec![("tcp", http, 80)] };
    let clock = ["-rtc", "base=2001-09-09T01:46:40"];
    let mut vm = boot(spec()?.nic(nic).append(&words).extra(clock))?;
    let shown = until(&mut vm, "show time", |shown| states(shown) == ["good"])?;
    ensure!(shown["source"] == format!("time server {HOST}:{port}"), "{shown:#}");
    ensure!(shown["plausible"] == "yes" && shown["servers"][0]["stratum"] == 3, "{shown:#}");
    let metrics = launch::http::get(([127, 0, 0, 1], http).into(), "/metrics")?.body;
    let error = error_of(&metrics);
    ensure!(error.is_some_and(|error| error.abs() < 2.0), "{error:?} {metrics}");
    ensure!(metrics.contains("isthmus_time_synchronized 1"), "{metrics}");
    // All lines have UTC now, also those before.
    let log = vm.run("show log")?;
    ensure!(log.text.lines().filter(|line| line.starts_with("[20")).count() > 3, "{}", log.text);
    log.contains("of time server")?.contains("s slow")?;
    drop(server);
    // Nobody answers any more: the clock goes on.
    vm.run("show time")?.contains("time server")?.contains("yes")?;
    Ok(())
}

#[test]
fn falseticker_is_outvoted_and_unusable_servers_are_named() -> Result<()> {
    let none = [10, 0, 0, 1];
    let ports = [
        server(0, GOOD, 2, none)?,
        server(3600, GOOD, 2, none)?,
        server(0, GOOD, 2, none)?,
        server(0, ALARM, 2, none)?,
        server(0, GOOD, 16, none)?,
        server(0, GOOD, 0, *b"DENY")?,
        server(-(30 * 365 * 86_400), GOOD, 2, none)?,
    ];
    let silent = UdpSocket::bind(("127.0.0.1", 0))?;
    let all = ports.iter().copied().chain([silent.local_addr()?.port()]);
    let list: Vec<String> = all.map(|port| format!("{HOST}:{port}")).collect();
    let mut vm = start(&format!("isthmus.system.ntp={}", list.join(",")), &[])?;
    let wanted = [
        "good",
        "falseticker",
        "good",
        "is not synchronised",
        "is not synchronised",
        "refuses service",
        "gives an impossible time",
        "does not answer",
    ];
    let shown = until(&mut vm, "show time", |shown| {
        let states = states(shown);
        states.len() == wanted.len()
            && states.iter().zip(wanted).all(|(state, wanted)| state.starts_with(wanted))
    })?;
    let offset = shown["servers"][0]["offset_seconds"].as_f64();
    ensure!(offset.is_some_and(|offset| offset.abs() < 1.0), "{shown:#}");
    let far = shown["servers"][1]["offset_seconds"].as_f64();
    ensure!(far.is_some_and(|offset| (offset - 3600.0).abs() < 1.0), "{shown:#}");
    vm.run("show log errors")?.contains("falseticker")?;
    // The one that refuses service is not asked again.
    let asked = |shown: &Value| shown["servers"][5]["sent"].as_u64();
    let before = asked(&shown);
    std::thread::sleep(Duration::from_secs(5));
    let later = vm.run("show time --json")?.json()?;
    ensure!(asked(&later) == before, "{later:#}");
    Ok(())
}

#[test]
fn two_servers_that_differ_do_not_set_the_clock() -> Result<()> {
    let ports = [server(0, GOOD, 2, [10, 0, 0, 1])?, server(7200, GOOD, 2, [10, 0, 0, 1])?];
    let words = format!("isthmus.system.ntp={HOST}:{},{HOST}:{}", ports[0], ports[1]);
    let mut vm = start(&words, &[])?;
    let shown = until(&mut vm, "show time", |shown| {
        states(shown).iter().all(|state| state.starts_with("no majority"))
    })?;
    ensure!(shown["source"].to_string().contains("real-time clock"), "{shown:#}");
    Ok(())
}
