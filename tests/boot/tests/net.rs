//! The network as its neighbours see it.
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Result, ensure};
use boot_tests::peer::Peer;
use boot_tests::{boot, spec};
use launch::http;
use launch::qemu::{Nic, Vm, free_port};

const APPLIANCE: &str = "10.9.0.1";
const APPLIANCE_6: &str = "fd09::1";

#[test]
fn dhcp_gives_an_address_and_the_gateway_answers() -> Result<()> {
    let mut vm = boot(spec()?.nic(Nic::user()))?;
    wait_for_lease(&mut vm)?;
    vm.run("ping 10.0.2.2")?.contains("10.0.2.2")?.lacks("no answer")?;
    Ok(())
}

#[test]
fn it_answers_pings_over_ipv4() -> Result<()> {
    let (_vm, mut peer) = pair("")?;
    for length in [0, 56, 1400] {
        peer.ping(APPLIANCE, length)?;
    }
    Ok(())
}

#[test]
fn it_answers_pings_over_ipv6() -> Result<()> {
    let (_vm, mut peer) = pair("")?;
    for length in [0, 56, 1400] {
        peer.ping(APPLIANCE_6, length)?;
    }
    Ok(())
}

#[test]
fn jumbo_frames_pass() -> Result<()> {
    let (_vm, mut peer) = pair("isthmus.net.0.mtu=9000")?;
    peer.ping(APPLIANCE, 8900)?;
    Ok(())
}

#[test]
fn udp_echo_returns_every_size() -> Result<()> {
    let (_vm, mut peer) = pair("")?;
    for length in [0, 1, 64, 512, 1472] {
        let payload: Vec<u8> = (0..length).map(|i| (i * 7) as u8).collect();
        peer.echo(APPLIANCE, &payload)?;
    }
    Ok(())
}

#[test]
fn metrics_are_prometheus_text() -> Result<()> {
    let (_vm, server) = with_http()?;
    let answer = http::get(server, "/metrics")?;
    ensure!(answer.status == 200, "status {}", answer.status);
    let samples = answer.body.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    for sample in samples {
        let name = sample.split(['{', ' ']).next().unwrap_or_default();
        let family =
            ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name);
        let described = |f: &str| answer.body.contains(&format!("# TYPE {f} "));
        ensure!(described(name) || described(family), "no TYPE for {sample:?}");
        let value = sample.rsplit(' ').next().unwrap_or_default();
        ensure!(value.parse::<f64>().is_ok(), "no number at the end of {sample:?}");
    }
    ensure!(answer.body.contains("# HELP "), "no HELP in:\n{}", answer.body);
    Ok(())
}

#[test]
fn health_and_status_are_served() -> Result<()> {
    let (_vm, server) = with_http()?;
    let health = http::get(server, "/healthz")?;
    ensure!(health.status == 200, "/healthz: {}", health.head);
    let status = http::get(server, "/status")?;
    let document: serde_json::Value = serde_json::from_str(&status.body)?;
    ensure!(document.is_object(), "/status is {document}");
    ensure!(http::get(server, "/nothing")?.status == 404, "/nothing is there");
    Ok(())
}

#[test]
fn noise_on_the_wire_does_no_harm() -> Result<()> {
    let (mut vm, mut peer) = pair("")?;
    peer.ping(APPLIANCE, 56)?;
    // A multiplicative generator: the same noise every time.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for length in (0..2000).map(|i| 1 + i * 37 % 1514) {
        let frame: Vec<u8> = (0..length)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        // A full queue loses frames, which is as good.
        let _ = peer.send_frame(&frame);
    }
    peer.ping(APPLIANCE, 56)?;
    vm.run("show interfaces")?.contains(APPLIANCE)?;
    Ok(())
}

#[test]
fn the_log_reaches_a_syslog_server() -> Result<()> {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    server.set_read_timeout(Some(Duration::from_secs(10)))?;
    let syslog = format!("isthmus.system.syslog=10.0.2.2:{}", server.local_addr()?.port());
    let _vm = boot(spec()?.nic(Nic::user()).append(&syslog))?;
    let mut message = [0; 1024];
    let length = server.recv(&mut message)?;
    let message = String::from_utf8_lossy(&message[..length]);
    let rest = message.strip_prefix("<14>1 20").unwrap_or_default();
    ensure!(rest.contains("Z isthmus isthmus - appliance - "), "not RFC 5424: {message}");
    Ok(())
}

/// The appliance at 10.9.0.1 and fd09::1, and a peer that knows it.
fn pair(append: &str) -> Result<(Vm, Peer)> {
    let mut peer = Peer::new(&["10.9.0.2/24", "fd09::2/64"])?;
    let addresses = format!("isthmus.net.0.address={APPLIANCE}/24,{APPLIANCE_6}/64");
    let vm = boot(
        spec()?
            .nic(peer.nic())
            .append(&addresses)
            .append("isthmus.services.udp_echo=true")
            .append(append),
    )?;
    peer.ping(APPLIANCE, 0)?;
    Ok((vm, peer))
}

fn with_http() -> Result<(Vm, SocketAddr)> {
    let port = free_port()?;
    let mut vm = boot(spec()?.nic(Nic::User { forwards: vec![("tcp", port, 80)] }))?;
    wait_for_lease(&mut vm)?;
    Ok((vm, SocketAddr::from((Ipv4Addr::LOCALHOST, port))))
}

fn wait_for_lease(vm: &mut Vm) -> Result<()> {
    for _ in 0..600 {
        if vm.run("show interfaces")?.text.contains("10.0.2.15") {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(vm.error("no address by DHCP within 30 s"))
}
