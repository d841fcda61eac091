//! `./isthmus test nbd`: the NBD client against qemu-nbd, nbdkit and nbd-server, on the loopback interface.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use drivers::hal::{Features, Window};
use launch::qemu::free_port;
use nbd::{Error, Failure, Notice, Operation, Settings, State, wire};
use nbd_tests::{Host, nbd_server, nbdkit, qemu_nbd};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
const DURABLE: Operation = Operation::Write { durable: true };

/// A file of zeroes.
fn disk(size: u64) -> Result<(TempDir, PathBuf)> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("disk");
    File::create(&file)?.set_len(size)?;
    Ok((directory, file))
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|n| ((n / 512).wrapping_mul(31) ^ seed.wrapping_mul(97) ^ n) as u8)
        .collect()
}

/// Writes, reads, discards, zeroes and flushes, and compares with a copy. Returns the copy.
fn exercise(host: &mut Host, size: usize) -> Result<Vec<u8>> {
    let mut copy = vec![0; size];
    let geometry = host.client.geometry();
    ensure!(geometry.sectors * 512 == size as u64, "{geometry:?}");
    for (n, (offset, length)) in
        [(0, 512), (4096, 4096), (65536, 300_032), (size - 512, 512), (2 << 20, 3 << 20)]
            .into_iter()
            .enumerate()
    {
        let bytes = pattern(n as u64, length);
        ensure!(host.write(offset as u64, &bytes)? == Ok(()), "write {n}");
        copy[offset..offset + length].copy_from_slice(&bytes);
    }
    ensure!(host.execute(Operation::Flush, 0)? == Ok(()));
    if geometry.features.contains(Features::WRITE_ZEROES) {
        ensure!(host.execute(Operation::WriteZeroes(8192), 2 << 20)? == Ok(()));
        copy[2 << 20..][..8192].fill(0);
    }
    if geometry.features.contains(Features::DISCARD) {
        // Contents are undefined afterwards.
        ensure!(host.execute(Operation::Discard(65536), 3 << 20)? == Ok(()));
        let zeroes = vec![0; 65536];
        ensure!(host.write(3 << 20, &zeroes)? == Ok(()));
        copy[3 << 20..][..65536].fill(0);
    }
    let bytes = pattern(99, 4096);
    let window = host.window(&bytes);
    let tag = host.submit(DURABLE, 12288, window)?;
    ensure!(host.result(tag)? == Ok(()));
    copy[12288..][..4096].copy_from_slice(&bytes);
    for offset in (0..size).step_by(1 << 20) {
        let length = (size - offset).min(1 << 20);
        let read = host.read(offset as u64, length)?;
        ensure!(read.as_deref() == Ok(&copy[offset..offset + length]), "read at {offset}");
    }
    Ok(copy)
}

#[test]
fn qemu_nbd_serves_every_operation_over_one_and_several_connections() -> Result<()> {
    for connections in [1, 4] {
        let (_directory, file) = disk(8 * MIB)?;
        let server = qemu_nbd(&file, free_port()?, &[])?;
        let settings = Settings { connections, ..Settings::default() };
        let mut host = Host::open(settings, "disk", &[server.port])?;
        host.until("connections", |host| host.client.status().ready == usize::from(connections))?;
        let copy = exercise(&mut host, 8 << 20)?;
        ensure!(fs::read(&file)? == copy);
        ensure!(host.failures().is_empty(), "{:?}", host.notices);
    }
    Ok(())
}

#[test]
fn nbdkit_and_nbd_server_serve_every_operation() -> Result<()> {
    let (directory, file) = disk(8 * MIB)?;
    let server = nbdkit(free_port()?, &["memory", "8M"])?;
    let mut host = Host::open(Settings::default(), "", &[server.port])?;
    exercise(&mut host, 8 << 20)?;
    let server = nbd_server(directory.path(), &file, free_port()?)?;
    let mut host = Host::open(Settings::default(), "disk", &[server.port])?;
    ensure!(host.client.status().export.is_some_and(|export| !export.structured));
    let copy = exercise(&mut host, 8 << 20)?;
    ensure!(fs::read(&file)? == copy);
    ensure!(host.failures().is_empty(), "{:?}", host.notices);
    Ok(())
}

#[test]
fn server_killed_under_load_loses_no_write_that_was_not_reported() -> Result<()> {
    let (_directory, file) = disk(8 * MIB)?;
    let mut server = qemu_nbd(&file, free_port()?, &[])?;
    let settings = Settings { reconnect: Duration::from_millis(50), ..Settings::default() };
    let mut host = Host::open(settings, "disk", &[server.port])?;
    let mut losses = 0;
    for round in 0..5u64 {
        let mut writes = Vec::new();
        for block in 0..256u64 {
            let window = host.window(&pattern(round * 1000 + block, 4096));
            let tag = host.submit(Operation::Write { durable: false }, block * 4096, window)?;
            writes.push(tag);
        }
        let port = server.kill()?;
        host.run(Duration::from_millis(100))?;
        server = qemu_nbd(&file, port, &[])?;
        for tag in writes {
            ensure!(host.result(tag)? == Ok(()), "round {round}");
        }
        // The kernel has kept what the process wrote, which the client cannot know.
        losses += u64::from(host.execute(Operation::Flush, 0)? == Err(Error::Io));
        ensure!(host.execute(Operation::Flush, 0)? == Ok(()), "the loss is reported once");
        for block in 0..256u64 {
            let read = host.read(block * 4096, 4096)?;
            ensure!(read == Ok(pattern(round * 1000 + block, 4096)), "{round} {block}");
        }
    }
    let stats = host.client.status().stats;
    ensure!(stats.replays > 0 && stats.losses == losses, "{losses} {stats:?}");
    Ok(())
}

#[test]
fn write_through_reports_no_loss_after_a_kill() -> Result<()> {
    let (_directory, file) = disk(MIB)?;
    let server = qemu_nbd(&file, free_port()?, &[])?;
    let reconnect = Duration::from_millis(50);
    let settings = Settings { write_through: true, reconnect, ..Settings::default() };
    let mut host = Host::open(settings, "disk", &[server.port])?;
    ensure!(host.write(0, &pattern(1, 4096))? == Ok(()));
    let _server = qemu_nbd(&file, server.kill()?, &[])?;
    ensure!(host.execute(Operation::Flush, 0)? == Ok(()));
    ensure!(host.read(0, 4096)? == Ok(pattern(1, 4096)));
    ensure!(host.client.status().stats.losses == 0);
    Ok(())
}

#[test]
fn stopped_server_is_left_for_another_address() -> Result<()> {
    let (_directory, file) = disk(MIB)?;
    let one = qemu_nbd(&file, free_port()?, &[])?;
    let other = qemu_nbd(&file, free_port()?, &[])?;
    let keepalive = Duration::from_millis(500);
    let settings = Settings { keepalive, ..Settings::default() };
    let mut host = Host::open(settings, "disk", &[one.port, other.port])?;
    one.signal("-STOP")?;
    ensure!(host.write(512, &pattern(1, 512))? == Ok(()));
    ensure!(host.failures() == [Failure::Silent], "{:?}", host.notices);
    // The first one was tried again, and its kernel accepts connections, so that takes the time of a handshake.
    ensure!(host.client.status().path <= 1);
    one.signal("-CONT")?;
    Ok(())
}

#[test]
fn errors_of_the_server_are_reported_and_the_volume_goes_on() -> Result<()> {
    let switch = tempfile::tempdir()?;
    let file = switch.path().join("fail");
    let parameter = format!("error-file={}", file.display());
    let arguments =
        ["--filter=error", "memory", "4M", "error=ENOSPC", "error-rate=100%", &parameter];
    let server = nbdkit(free_port()?, &arguments)?;
    let mut host = Host::open(Settings::default(), "", &[server.port])?;
    ensure!(host.write(0, &pattern(1, 4096))? == Ok(()));
    File::create(&file)?;
    ensure!(host.write(0, &pattern(2, 4096))? == Err(Error::Io));
    ensure!(host.read(0, 4096)? == Err(Error::Io));
    ensure!(host.notices.contains(&Notice::Failed(28)), "{:?}", host.notices);
    fs::remove_file(&file)?;
    ensure!(host.read(0, 4096)? == Ok(pattern(1, 4096)));
    ensure!(host.failures().is_empty());
    Ok(())
}

#[test]
fn slow_server_is_waited_for_as_long_as_configured() -> Result<()> {
    let server = nbdkit(free_port()?, &["--filter=delay", "memory", "4M", "rdelay=1"])?;
    let mut host = Host::open(Settings::default(), "", &[server.port])?;
    ensure!(host.read(0, 4096)?.is_ok());
    let settings = Settings {
        keepalive: Duration::from_millis(300),
        reconnect: Duration::from_millis(50),
        give_up: Duration::from_secs(2),
        ..Settings::default()
    };
    let mut host = Host::open(settings, "", &[server.port])?;
    ensure!(host.read(0, 4096)? == Err(Error::Io));
    ensure!(host.failures().contains(&Failure::Silent));
    Ok(())
}

#[test]
fn abilities_of_the_server_are_those_of_the_volume() -> Result<()> {
    let policy = ["--filter=blocksize-policy", "memory", "4M", "blocksize-minimum=4096"];
    let server = nbdkit(free_port()?, &policy)?;
    let host = Host::open(Settings::default(), "", &[server.port])?;
    ensure!(host.client.geometry().logical_block == 4096);
    let read_only = nbdkit(free_port()?, &["-r", "memory", "4M"])?;
    let host = Host::open(Settings::default(), "", &[read_only.port])?;
    ensure!(host.client.geometry().features.contains(Features::READ_ONLY));
    let fua = nbdkit(free_port()?, &["--filter=fua", "--filter=nozero", "memory", "4M"])?;
    let mut host = Host::open(Settings::default(), "", &[fua.port])?;
    let geometry = host.client.geometry();
    ensure!(!geometry.features.contains(Features::WRITE_ZEROES), "{geometry:?}");
    let window = host.window(&pattern(1, 512));
    let tag = host.submit(DURABLE, 0, window)?;
    ensure!(host.result(tag)? == Ok(()));
    let stats = host.client.status().stats;
    ensure!((stats.writes, stats.flushes) == (1, 1), "a write and a flush: {stats:?}");
    let through = Settings { write_through: true, ..Settings::default() };
    let mut host = Host::new(through, "", &[fua.port]);
    host.until("refusal", |host| host.state() == State::Refused)
}

#[test]
fn unusable_export_is_refused_with_its_reason() -> Result<()> {
    let (_directory, file) = disk(MIB)?;
    let server = qemu_nbd(&file, free_port()?, &[])?;
    let mut host = Host::new(Settings::default(), "other", &[server.port]);
    host.until("refusal", |host| host.state() == State::Refused)?;
    let why = host.failures()[0].to_string();
    ensure!(why.contains("no such export"), "{why}");
    let keys = file.with_file_name("keys");
    fs::write(&keys, "alice:00112233445566778899aabbccddeeff\n")?;
    let psk = format!("--tls-psk={}", keys.display());
    let server = nbdkit(free_port()?, &["--tls=require", &psk, "memory", "4M"])?;
    let mut host = Host::new(Settings::default(), "", &[server.port]);
    host.until("refusal", |host| host.state() == State::Refused)?;
    ensure!(host.failures()[0] == Failure::WantsTls, "{:?}", host.notices);
    Ok(())
}

#[test]
fn grown_export_is_visible_and_a_smaller_one_is_refused() -> Result<()> {
    let (_directory, file) = disk(MIB)?;
    let server = qemu_nbd(&file, free_port()?, &[])?;
    let settings = Settings { reconnect: Duration::from_millis(50), ..Settings::default() };
    let mut host = Host::open(settings, "disk", &[server.port])?;
    ensure!(host.write(0, &pattern(1, 4096))? == Ok(()));
    File::options().write(true).open(&file)?.set_len(2 * MIB)?;
    let server = qemu_nbd(&file, server.kill()?, &[])?;
    host.until("growth", |host| host.client.geometry().sectors == 2 * MIB / 512)?;
    ensure!(host.notices.contains(&Notice::Grown { before: MIB, now: 2 * MIB }));
    ensure!(host.write(2 * MIB - 4096, &pattern(2, 4096))? == Ok(()));
    let port = server.kill()?;
    File::options().write(true).open(&file)?.set_len(MIB)?;
    let _server = qemu_nbd(&file, port, &[])?;
    host.until("refusal", |host| host.state() == State::Refused)?;
    ensure!(host.failures().last() == Some(&Failure::Smaller(2 * MIB, MIB)));
    Ok(())
}

#[test]
fn end_leaves_the_data_on_the_server() -> Result<()> {
    let (_directory, file) = disk(MIB)?;
    let server = qemu_nbd(&file, free_port()?, &[])?;
    let mut host = Host::open(Settings::default(), "disk", &[server.port])?;
    ensure!(host.write(0, &pattern(7, 65536))? == Ok(()));
    host.run(Duration::from_millis(10))?;
    host.client.end(drivers::hal::Instant::ZERO);
    host.until("end", |host| host.client.is_over())?;
    let request =
        nbd::Request { tag: 0, operation: Operation::Flush, offset: 0, data: Window::empty() };
    ensure!(host.client.submit(&request) == Err(Error::Io));
    ensure!(host.client.status().stats.flushes == 1 && wire::REQUEST_LENGTH == 28);
    ensure!(fs::read(&file)?[..65536] == pattern(7, 65536));
    Ok(())
}
