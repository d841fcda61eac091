//! The configuration: all sources, their precedence, and invalid documents.
use anyhow::{Context, Result, ensure};
use boot_tests::{boot, image, keeps_configuration, spec};
use launch::image::{bare_config_area, config_disk, configured};
use launch::qemu::{Disk, Fault, Nic, Spec, Vm};

#[test]
fn defaults_without_a_document_are_dhcp_and_a_volume() -> Result<()> {
    let mut vm = boot(spec()?.nic(Nic::user()))?;
    // The lease takes a moment.
    for _ in 0..600 {
        if vm.run("show interfaces")?.text.contains("10.0.2.15") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    vm.run("show interfaces")?.contains("10.0.2.15")?;
    vm.run("show volumes")?.contains("ram0")?;
    Ok(())
}

#[test]
fn the_image_carries_a_document() -> Result<()> {
    let elf = configured_image("[system]\nhostname = \"carried\"\n")?;
    let mut vm = boot(Spec::kernel(elf.path()))?;
    hostname_is(&mut vm, "carried")
}

#[test]
fn fw_cfg_wins_over_the_image() -> Result<()> {
    let elf = configured_image("[system]\nhostname = \"carried\"\n")?;
    let mut vm = boot(Spec::kernel(elf.path()).config("[system]\nhostname = \"passed\"\n"))?;
    hostname_is(&mut vm, "passed")
}

#[test]
fn the_config_disk_wins_over_fw_cfg() -> Result<()> {
    let disk = disk_with("[system]\nhostname = \"kept\"\n")?;
    let spec =
        spec()?.config("[system]\nhostname = \"passed\"\n").disk(keeps_configuration(disk.path()));
    let mut vm = boot(spec)?;
    hostname_is(&mut vm, "kept")?;
    // The log and the shown document name what has no effect.
    let log = vm.run("show log")?;
    log.contains("0 of 1 keys, 1 overridden by config disk document (system.hostname)")?;
    let shown = vm.run("show config")?;
    shown.contains("# fw_cfg document, overridden by config disk document: system.hostname")?;
    Ok(())
}

#[test]
fn the_command_line_wins_over_the_config_disk() -> Result<()> {
    let disk = disk_with("[system]\nhostname = \"kept\"\n")?;
    let spec =
        spec()?.disk(keeps_configuration(disk.path())).append("isthmus.system.hostname=told");
    hostname_is(&mut boot(spec)?, "told")
}

#[test]
fn the_console_wins_over_the_command_line() -> Result<()> {
    let mut vm = boot(spec()?.append("isthmus.system.hostname=told"))?;
    vm.run("set system.hostname typed")?.lacks("error")?;
    hostname_is(&mut vm, "typed")
}

#[test]
fn sources_are_merged_key_by_key() -> Result<()> {
    let spec = spec()?.nic(Nic::user()).config("[[net]]\naddress = \"10.9.0.1/24\"\n");
    let mut vm = boot(spec.append("isthmus.net.0.mtu=1400"))?;
    vm.run("show interfaces")?.contains("10.9.0.1")?.contains("1400")?;
    Ok(())
}

#[test]
fn an_unknown_key_is_a_warning_and_the_rest_holds() -> Result<()> {
    let text = "[system]\nhostname = \"known\"\n[memory]\nfuture_key = 1\n[[export]]\n\
                name = \"mine\"\nvolume = \"ram0\"\nhosts = \"10.0.0.7\"\n";
    let (mut vm, server) = with_http(spec()?.config(text))?;
    vm.run("show log")?.contains("WARN  configuration: fw_cfg line 4: memory.future_key")?;
    hostname_is(&mut vm, "known")?;
    vm.run("show exports")?.contains("mine")?.contains("10.0.0.7/32")?.lacks("everybody")?;
    let ready = launch::http::get(server, "/readyz")?;
    ensure!(ready.status == 200, "/readyz: {}", ready.body);
    ensure!(ready.body.contains("warning: fw_cfg line 4"), "/readyz: {}", ready.body);
    let metrics = launch::http::get(server, "/metrics")?.body;
    ensure!(metrics.contains("\nisthmus_config_problems 1\n"), "{metrics}");
    Ok(())
}

#[test]
fn a_misspelled_restriction_admits_nobody() -> Result<()> {
    let text = "[[export]]\nname = \"mine\"\nvolume = \"ram0\"\nhost = \"10.0.0.7\"\n";
    let mut vm = boot(spec()?.nic(Nic::user()).config(text))?;
    vm.run("show exports")?.contains("0.0.0.0/32")?.lacks("everybody")?;
    Ok(())
}

/// A misspelt or misplaced restriction closes its section, and the appliance is not ready.
#[test]
fn misplaced_restriction_closes_its_section() -> Result<()> {
    let open = "[[export]]\nname = \"mine\"\nvolume = \"ram0\"\n";
    for (text, closed) in [
        (format!("{open}clients = [\"10.0.0.7\"]\n"), "0.0.0.0/32"),
        (format!("{open}[rnbd]\nhosts = [\"10.0.0.7\"]\n"), "(none)"),
        (format!("{open}[[net]]\nallow = [\"10.0.0.7\"]\n"), "(none)"),
        (format!("[acl]\nhosts = [\"10.0.0.7\"]\n{open}"), "(none)"),
    ] {
        let (mut vm, server) = with_http(spec()?.config(&text))?;
        vm.run("show exports")?.contains(closed)?.lacks("everybody")?;
        let ready = launch::http::get(server, "/readyz")?;
        ensure!(ready.status == 503, "{text}: /readyz: {}", ready.body);
    }
    Ok(())
}

#[test]
fn unrestricted_exports_are_shown() -> Result<()> {
    let mut vm = boot(spec()?.nic(Nic::user()))?;
    vm.run("show exports")?.contains("ram0")?.contains("open to everybody")?;
    Ok(())
}

#[test]
fn a_document_that_cannot_be_used_leaves_nothing_open() -> Result<()> {
    let restricted = "[[export]]\nname = \"a\"\nvolume = \"ram0\"\nhosts = \"10.0.0.7\"\n";
    for text in ["]]]]", "\u{0}\u{1}\u{7f}", "a = ", &format!("{restricted}[http]\nport = 0\n")] {
        let words = "isthmus.system.hostname=reached";
        let (mut vm, server) = with_http(spec()?.config(text).append(words))?;
        vm.run("show log")?
            .contains("ERROR configuration: fw_cfg")?
            .contains("nothing is exported")?;
        // The console, the network and the rest work.
        hostname_is(&mut vm, "reached")?;
        vm.run("show exports")?.contains("(none)")?;
        vm.run("show config")?.contains("rule = []")?;
        let ready = launch::http::get(server, "/readyz")?;
        ensure!(ready.status == 503, "/readyz: {}", ready.body);
        ensure!(ready.body.contains("configuration: fw_cfg"), "/readyz: {}", ready.body);
    }
    Ok(())
}

/// The saved document restricts an export that the VMM's document leaves open, and its disk is missing, failing or
/// ambiguous. A client has written a document to its own disk, which opens an export. (A silent config disk is a case of
/// the suite `save`.)
#[test]
fn a_config_disk_that_cannot_be_read_leaves_nothing_open() -> Result<()> {
    let saved = "[http]\nhosts = \"10.0.2.2\"\n[[volume]]\nname = \"ledger\"\nsize = \"1MiB\"\n[[export]]\nname = \"a\"\nvolume = \"ledger\"\nhosts = \"10.0.0.7\"\n";
    let open = "[[volume]]\nname = \"ledger\"\nsize = \"1MiB\"\n[[volume]]\nname = \"data\"\ndisk = \"serial:client\"\n";
    let forged = disk_with(
        "[system]\nhostname = \"owned\"\n[[volume]]\nname = \"ledger\"\nsize = \"1MiB\"\n[[export]]\nname = \"a\"\nvolume = \"ledger\"\n",
    )?;
    let of_client = || Disk::new(forged.path()).serial("client");
    let named = ["-fw_cfg", "name=opt/isthmus/config-disk,string=serial:mine"];
    let disk = disk_with(saved)?;
    let mine = || Disk::new(disk.path()).serial("mine");
    let fault = Fault { event: "read_aio", sector: None, once: false };
    let other = disk_with(saved)?;
    let twice = Disk::new(other.path()).serial("mine");
    for (disks, reason) in [
        (vec![], "the machine has no such disk"),
        (vec![mine().fault(fault)], "I/O error"),
        (vec![mine(), twice], "the same serial number"),
    ] {
        let spec = spec()?.config(open).extra(named).disk(of_client());
        let spec = disks.into_iter().fold(spec, |spec, disk| spec.disk(disk));
        let (mut vm, server) = with_http(spec)?;
        vm.run("show log")?.contains(reason)?.contains("nothing is exported")?;
        vm.run("show config")?.contains("# Closed")?.contains(reason)?;
        vm.run("show exports")?.contains("(none)")?;
        hostname_is(&mut vm, "isthmus")?;
        let ready = launch::http::get(server, "/readyz")?;
        ensure!(ready.status == 503 && ready.body.contains(reason), "/readyz: {}", ready.body);
        let status = launch::http::get(server, "/status")?;
        ensure!(status.status == 503, "/status: {}", status.body);
    }
    let spec = spec()?.config(open).extra(named).disk(of_client()).disk(mine());
    let (mut vm, _) = with_http(spec)?;
    vm.run("show exports")?.contains("10.0.0.7/32")?.lacks("everybody")?;
    hostname_is(&mut vm, "isthmus")?;
    Ok(())
}

#[test]
fn the_image_s_document_names_the_config_disk() -> Result<()> {
    let elf = configured_image("[system]\nconfig_disk = \"serial:mine\"\n")?;
    let disk = disk_with("[system]\nhostname = \"kept\"\n")?;
    let spec = || Spec::kernel(elf.path());
    hostname_is(&mut boot(spec().disk(Disk::new(disk.path()).serial("mine")))?, "kept")?;
    let mut vm = boot(spec().nic(Nic::user()))?;
    vm.run("show exports")?.contains("(none)")?;
    Ok(())
}

#[test]
fn previous_copy_is_used_while_the_newest_is_invalid() -> Result<()> {
    let mut area = bare_config_area(Some("[system]\nhostname = \"first\"\n"))?;
    // The second slot has a later document, which is intact but invalid.
    let later = bare_config_area(Some("[http]\nport = 65535\n"))?;
    let slot = &mut area[32 << 10..48 << 10];
    slot.copy_from_slice(&later[16 << 10..32 << 10]);
    let port = slot.windows(5).position(|text| text == b"65535").context("the port")?;
    slot[port..port + 5].copy_from_slice(b"99999");
    number_slot(slot, 2);
    let disk = tempfile::NamedTempFile::new()?;
    std::fs::write(disk.path(), images::config_disk(&area)?)?;
    let mut vm = boot(spec()?.nic(Nic::user()).disk(keeps_configuration(disk.path())))?;
    vm.run("show log")?.contains("config disk line 2")?.contains("the one saved before it")?;
    hostname_is(&mut vm, "first")?;
    vm.run("show exports")?.contains("ram0")?;
    Ok(())
}

/// Gives a slot another sequence number (bytes 16 to 24; the checksum over bytes 12 and up is at 8).
fn number_slot(slot: &mut [u8], sequence: u64) {
    slot[16..24].copy_from_slice(&sequence.to_le_bytes());
    let text = u32::from_le_bytes(slot[12..16].try_into().unwrap()) as usize;
    let mut crc = !0u32;
    for &byte in &slot[12..24 + text] {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    slot[8..12].copy_from_slice(&(!crc).to_le_bytes());
}

#[test]
fn a_wrong_setting_on_the_command_line_leaves_the_others() -> Result<()> {
    let words = "isthmus.system.hostname=told isthmus.net.0.mtu=7 isthmus.nonsense=1";
    let mut vm = boot(spec()?.nic(Nic::user()).append(words))?;
    vm.run("show log")?.contains("mtu")?.contains("nonsense")?;
    hostname_is(&mut vm, "told")
}

#[test]
fn wrong_setting_on_the_console_is_refused_with_the_accepted_values() -> Result<()> {
    let mut vm = boot(spec()?.nic(Nic::user()))?;
    vm.run("set net.0.mtu tall")?.contains("error")?.contains("accepted")?;
    vm.run("set net.0.mtuu 1400")?.contains("mtu")?;
    Ok(())
}

#[test]
fn mistakes_are_reported_in_status() -> Result<()> {
    let port = launch::qemu::free_port()?;
    let nic = Nic::User { forwards: vec![("tcp", port, 80)] };
    let _vm = boot(spec()?.nic(nic).config("[system]\nhostnam = \"x\"\n"))?;
    let answer = launch::http::get(([127, 0, 0, 1], port).into(), "/status")?;
    ensure!(answer.body.contains("fw_cfg line 2"), "/status says {}", answer.body);
    Ok(())
}

/// Boots with an interface that is reachable for HTTP, and waits for its address.
pub(super) fn with_http(spec: Spec) -> Result<(Vm, std::net::SocketAddr)> {
    let port = launch::qemu::free_port()?;
    let mut vm = boot(spec.nic(Nic::User { forwards: vec![("tcp", port, 80)] }))?;
    for _ in 0..600 {
        if vm.run("show interfaces")?.text.contains("10.0.2.15") {
            return Ok((vm, ([127, 0, 0, 1], port).into()));
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    Err(vm.error("no address by DHCP within 30 s"))
}

fn hostname_is(vm: &mut Vm, name: &str) -> Result<()> {
    let version = vm.run("show version --json")?.json()?;
    ensure!(version["hostname"] == name, "the host is not called {name:?}: {version}");
    Ok(())
}

fn configured_image(text: &str) -> Result<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), configured(&std::fs::read(image()?)?, text)?)?;
    Ok(file)
}

fn disk_with(text: &str) -> Result<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), config_disk(Some(text))?)?;
    Ok(file)
}

/// Sixty-four rules fit into 128 MiB, the default of `./isthmus run`. The first and the last relay to a server of this
/// host.
#[test]
fn sixty_four_rules_fit_into_128_mib() -> Result<()> {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::time::Duration;
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    // 10.0.2.2 is this host, for a guest of QEMU's user networking.
    let backend = server.local_addr()?.port();
    std::thread::spawn(move || {
        for mut client in server.incoming().flatten() {
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(len @ 1..) = client.read(&mut bytes) {
                    let _ = client.write_all(&bytes[..len]);
                }
            });
        }
    });
    let rule = |n: u16| {
        let listen = 7000 + n;
        format!("[[rule]]\nname = \"r{n}\"\nlisten = {listen}\nbackend = \"10.0.2.2:{backend}\"\n")
    };
    let document: String = (0..64).map(rule).collect();
    let ports =
        [launch::qemu::free_port()?, launch::qemu::free_port()?, launch::qemu::free_port()?];
    let forwards = vec![("tcp", ports[0], 7000), ("tcp", ports[1], 7063), ("tcp", ports[2], 80)];
    let mut vm = boot(spec()?.config(&document).nic(Nic::User { forwards }))?;
    for _ in 0..600 {
        if vm.run("show interfaces")?.text.contains("10.0.2.15") {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let rules = vm.run("show smc rules --json")?.json()?;
    let listed = rules.as_array().context("a list of rules")?;
    ensure!(listed.len() == 64, "{} rules", listed.len());
    vm.run("show log")?.lacks("ERROR")?;
    for port in &ports[..2] {
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, *port))?;
        client.set_read_timeout(Some(Duration::from_secs(10)))?;
        client.write_all(b"across")?;
        let mut answer = [0; 6];
        client.read_exact(&mut answer)?;
        ensure!(&answer == b"across", "{answer:?}");
    }
    let ready = launch::http::get(([127, 0, 0, 1], ports[2]).into(), "/readyz")?;
    ensure!(ready.status == 200, "/readyz: {}", ready.body);
    Ok(())
}

/// A client above the connection limit of a rule is refused, reported and counted.
#[test]
fn client_above_the_limit_of_a_rule_is_refused_and_reported() -> Result<()> {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::time::{Duration, Instant};
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let backend = server.local_addr()?.port();
    let port = launch::qemu::free_port()?;
    let document = format!(
        "[[rule]]\nname = \"one\"\nlisten = 7000\nbackend = \"10.0.2.2:{backend}\"\nconnections = 1\n"
    );
    let forwards = vec![("tcp", port, 7000)];
    let mut vm = boot(spec()?.config(&document).nic(Nic::User { forwards }))?;
    vm.wait_for("10.0.2.15")?;
    let mut first = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    let (mut behind, _) = server.accept()?;
    first.write_all(b"x")?;
    behind.read_exact(&mut [0])?;
    let mut refused = String::new();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !refused.contains("rule.N.connections") {
        ensure!(Instant::now() < deadline, "the refusal is not reported: {refused}");
        let mut second = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        second.set_read_timeout(Some(Duration::from_secs(10)))?;
        ensure!(matches!(second.read(&mut [0]), Ok(0) | Err(_)), "a second client was accepted");
        refused = vm.run("show refused")?.text;
    }
    ensure!(refused.contains("10.0.2.2"), "{refused}");
    let metrics = vm.run("show refused --json")?.json()?;
    ensure!(metrics.to_string().contains("connections"), "{metrics}");
    // The first connection continues.
    first.write_all(b"y")?;
    behind.read_exact(&mut [0])?;
    Ok(())
}
