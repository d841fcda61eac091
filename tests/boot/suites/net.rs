//! The network stack, HTTP and the log, tested from the network.
mod addresses;
mod forged;

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::crowd::Crowd;
use boot_tests::peer::{Flood, Peer, syn_of};
use boot_tests::{boot, spec};
use launch::http;
use launch::qemu::{Nic, Vm, free_port};

const APPLIANCE: &str = "10.9.0.1";
const APPLIANCE_6: &str = "fd09::1";
const APPLIANCE_MAC: [u8; 6] = [0x52, 0x54, 0, 0x12, 0x34, 0x56];

#[test]
fn dhcp_gives_an_address_and_the_gateway_answers() -> Result<()> {
    let mut vm = boot(spec()?.nic(Nic::user()))?;
    wait_for_lease(&mut vm)?;
    vm.run("ping 10.0.2.2")?.contains("10.0.2.2")?.lacks("no answer")?;
    Ok(())
}

#[test]
fn pings_over_ipv4_are_answered() -> Result<()> {
    let (_vm, mut peer) = pair("")?;
    for length in [0, 56, 1400] {
        peer.ping(APPLIANCE, length)?;
    }
    Ok(())
}

#[test]
fn pings_over_ipv6_are_answered() -> Result<()> {
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
    ensure!(http::get(server, "/nothing")?.status == 404, "/nothing is served");
    Ok(())
}

/// `test-token`.
const TOKEN_HASH: &str = "4c5dc9b7708905f77f5e5d16316b5dfb425e68cb326dcd55a860e90a7707031e";

/// The status of a request. `Host` is the appliance's unless the fields have another.
fn status(server: SocketAddr, method: &str, path: &str, fields: &[(&str, &str)]) -> Result<u16> {
    let host = server.to_string();
    let mut all = fields.to_vec();
    if fields.iter().all(|(name, _)| *name != "Host") {
        all.push(("Host", &host));
    }
    let body = if method == "GET" { "" } else { "start" };
    Ok(http::request(server, method, path, &all, body)?.status)
}

#[test]
fn http_is_read_only_and_without_captures_until_a_token_is_set() -> Result<()> {
    let (mut vm, server) = with_http()?;
    for path in ["/metrics", "/healthz", "/status", "/api/disks", "/api"] {
        ensure!(status(server, "GET", path, &[])? == 200, "{path}");
    }
    let right = ("Authorization", "Bearer test-token");
    for method in ["POST", "PUT"] {
        ensure!(status(server, method, "/api/capture", &[right])? == 403, "{method}");
    }
    ensure!(status(server, "GET", "/capture.pcapng", &[right])? == 403, "a capture");
    vm.run("cat /capture")?.contains("running      no")?;

    vm.run(&format!("set http.token_sha256 {TOKEN_HASH}"))?.contains("console: set http")?;
    let wrong = ("Authorization", "Bearer test-tokem");
    for fields in [&[][..], &[("Authorization", "Basic test-token")]] {
        ensure!(status(server, "POST", "/api/capture", fields)? == 401, "{fields:?}");
        ensure!(status(server, "GET", "/capture.pcapng", fields)? == 401, "{fields:?}");
        ensure!(status(server, "GET", "/api/usnic", fields)? == 401, "{fields:?}");
    }
    ensure!(status(server, "POST", "/api/capture", &[wrong])? == 401, "a wrong token");
    let own = server.to_string();
    let answer = http::request(server, "GET", "/capture.pcapng", &[("Host", &own)], "")?;
    ensure!(answer.head.contains("WWW-Authenticate: Bearer"), "{}", answer.head);
    // One token is checked per second, so the next one is checked after this wait.
    std::thread::sleep(Duration::from_millis(1200));
    // Cross-site requests of a browser that has the token.
    for foreign in [("Host", "evil.example"), ("Origin", "http://evil.example"), ("Origin", "null")]
    {
        // The check precedes the lookup of the path: paths that end sessions and volumes, and unknown ones.
        for path in [
            "/api/capture",
            "/api/rtrs-server/sessions/s1/disconnect",
            "/api/rnbd-server/devices/ram0/sessions/s1/force_close",
            "/api/rtrs-client/far/paths/p/disconnect",
            "/api/mirrors/safe/force",
            "/api/nothing",
            "/",
        ] {
            let answer = status(server, "POST", path, &[foreign, right])?;
            ensure!(answer == 403, "{path} with {foreign:?}: {answer}");
        }
    }
    vm.run("cat /capture")?.contains("running      no")?;
    let refused = vm.run("show refused --json")?.json()?;
    let reasons = refused.as_array().into_iter().flatten().map(|row| row["reason"].to_string());
    let reasons = reasons.collect::<Vec<_>>().join(" ");
    for reason in ["read_only", "no_token", "wrong_token", "foreign_host", "foreign_origin"] {
        ensure!(reasons.contains(reason), "no {reason} in {refused:#}");
    }
    let metrics = http::get(server, "/metrics")?.body;
    ensure!(
        metrics.contains("isthmus_refused_total{what=\"http\",reason=\"no_token\"}"),
        "{metrics}"
    );

    let own = ("Origin", &*format!("http://{server}"));
    ensure!(status(server, "POST", "/api/capture", &[own, right])? == 200, "with the token");
    ensure!(status(server, "GET", "/capture.pcapng", &[right])? == 200, "with the token");
    vm.run("cat /capture")?.contains("running      yes")?;
    vm.run("show log audit")?.contains("http from 10.0.2.2:")?.contains("write /capture start")?;
    Ok(())
}

#[test]
fn reading_needs_the_name_of_the_appliance_but_for_probes() -> Result<()> {
    let (mut vm, server) = with_http()?;
    for path in ["/metrics", "/status", "/api", "/api/disks", "/api/log", "/capture.pcapng"] {
        for host in ["evil.example", "10.0.2.16", "isthmus.evil.example"] {
            let answer = http::request(server, "GET", path, &[("Host", host)], "")?;
            ensure!(answer.status == 403, "{path} for {host}: {}", answer.head);
            ensure!(answer.body.contains("system.hostname"), "{}", answer.body);
        }
    }
    for host in ["10.0.2.15", "10.0.2.15:80", "isthmus", "localhost:8080", "127.0.0.1"] {
        ensure!(status(server, "GET", "/metrics", &[("Host", host)])? == 200, "{host}");
    }
    for path in ["/healthz", "/readyz"] {
        ensure!(status(server, "GET", path, &[("Host", "balancer")])? == 200, "{path}");
    }
    vm.run("show refused")?.contains("foreign_host")?;
    Ok(())
}

#[test]
fn tokens_can_be_guessed_once_a_second_and_the_log_lasts() -> Result<()> {
    let (mut vm, server) = with_http()?;
    vm.run(&format!("set http.token_sha256 {TOKEN_HASH}"))?.contains("(not shown)")?;
    let wrong = ("Authorization", "Bearer test-tokem");
    let start = Instant::now();
    let mut checked = 0;
    for _ in 0..600 {
        match status(server, "POST", "/api/capture", &[wrong])? {
            401 => checked += 1,
            429 => {}
            other => anyhow::bail!("a guess was answered by {other}"),
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    ensure!(f64::from(checked) <= seconds + 2.0, "{checked} guesses in {seconds:.1} s");
    std::thread::sleep(Duration::from_millis(1200));
    let right = ("Authorization", "Bearer test-token");
    ensure!(status(server, "POST", "/api/capture", &[right])? == 200, "with the token");
    // Earlier lines are still in the log, and the guesses take few lines.
    let log = vm.run("show log")?;
    log.contains("isthmus 0.1.0 ready")?.lacks(TOKEN_HASH)?;
    let lines = log.text.lines().filter(|line| line.contains("refused http")).count();
    ensure!(lines < 60, "{lines} lines of refusals");
    vm.run("show log audit")?.contains("console: set http.token_sha256 (not shown)")?;
    let log: serde_json::Value = serde_json::from_str(&http::get(server, "/api/log")?.body)?;
    let rows = log.as_array().context("no list")?;
    let audit = rows.iter().filter(|row| row["kind"] == "audit");
    ensure!(audit.count() >= 2 && !log.to_string().contains(TOKEN_HASH), "{log:#}");
    ensure!(rows.iter().all(|row| row["time"].as_str().is_some_and(|t| t.ends_with('Z'))));
    let metrics = http::get(server, "/metrics")?.body;
    for name in ["isthmus_ready 1", "isthmus_config_unsaved 1", "isthmus_time_plausible 1"] {
        ensure!(metrics.contains(name), "no {name} in {metrics}");
    }
    ensure!(metrics.contains("isthmus_log_lines_total{kind=\"audit\"}"), "{metrics}");
    let repeats = metrics.lines().find_map(|line| line.strip_prefix("isthmus_log_repeats_total "));
    ensure!(repeats.is_some_and(|count| count.parse::<f64>().is_ok_and(|count| count > 100.0)));
    Ok(())
}

/// Pings up to the MTU are answered, and larger ones are refused on the console.
#[test]
fn ping_takes_a_size() -> Result<()> {
    let mut vm = boot(spec()?.nic(Nic::user()))?;
    wait_for_lease(&mut vm)?;
    vm.run("ping 10.0.2.2 1 1400")?.lacks("no answer")?.lacks("error")?;
    vm.run("ping 10.0.2.2 1 1473")?.contains("exceed the interface's MTU")?;
    Ok(())
}

/// A client of a rule whose server does not answer is listed with all other refusals.
#[test]
fn a_client_without_a_server_is_in_show_refused() -> Result<()> {
    let words = "isthmus.rule.0.name=dead isthmus.rule.0.listen=7000 \
                 isthmus.rule.0.backend=10.9.0.77:7777 isthmus.rule.0.connect_timeout_ms=500";
    let (mut vm, mut peer) = pair(words)?;
    let server = SocketAddr::new(APPLIANCE.parse()?, 7000);
    ensure!(peer.request(1, server, b"hello", b"hello").is_err(), "the client got an answer");
    let refused = vm.run("show refused --json")?.json()?;
    let row = &refused[0];
    ensure!(row["reason"] == "no_server" && row["from"] == "10.9.0.2", "{refused:#}");
    let advice = row["advice"].as_str().unwrap_or_default();
    ensure!(advice.contains("10.9.0.77:7777") && advice.contains("show smc rules"), "{advice}");
    Ok(())
}

#[test]
fn http_serves_its_hosts_on_its_addresses_and_no_others() -> Result<()> {
    let (mut vm, server) = with_http()?;
    let served = || http::get(server, "/healthz").is_ok_and(|answer| answer.status == 200);
    for (key, others, ours) in
        [("http.hosts", "10.0.3.0/24", "10.0.2.0/24"), ("http.listen", "10.0.2.16", "10.0.2.15")]
    {
        ensure!(served());
        vm.run(&format!("set {key} {others}"))?.lacks("error")?;
        ensure!(!served(), "{key} = {others}");
        vm.run(&format!("set {key} {ours}"))?.lacks("error")?;
        ensure!(served(), "{key} = {ours}");
    }
    vm.run("show refused")?.contains("host_not_admitted")?.contains("address_not_listened")?;
    Ok(())
}

#[test]
fn readiness_has_its_reasons() -> Result<()> {
    let (mut vm, server) = with_http()?;
    let ready = http::get(server, "/readyz")?;
    ensure!(ready.status == 200 && ready.body == "ready\n", "{}", ready.body);
    vm.run("set export.0.volume ram0")?.contains("pending")?;
    vm.run("set export.0.name a")?.lacks("error")?;
    vm.run("set volume.1.name later")?.lacks("error")?;
    vm.run("set export.1.name b")?.contains("pending")?;
    vm.run("set export.1.volume later")?.lacks("error")?;
    let ready = http::get(server, "/readyz")?;
    ensure!(ready.status == 503, "{}", ready.body);
    ensure!(ready.body.contains("export b: there is no volume later"), "{}", ready.body);
    Ok(())
}

#[test]
fn noise_on_the_wire_does_no_harm() -> Result<()> {
    let (mut vm, mut peer) = pair("")?;
    peer.ping(APPLIANCE, 56)?;
    // A multiplicative generator, so that each run has the same noise.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for length in (0..2000).map(|i| 1 + i * 37 % 1514) {
        let frame: Vec<u8> = (0..length)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .collect();
        // Frames lost to a full queue do not matter.
        let _ = peer.send_frame(&frame);
    }
    peer.ping(APPLIANCE, 56)?;
    vm.run("show interfaces")?.contains(APPLIANCE)?;
    Ok(())
}

/// The appliance must resolve the addresses of all of them at the same time.
#[test]
fn thirty_two_unknown_clients_are_served_within_a_second() -> Result<()> {
    let (mut vm, mut peer) = pair("isthmus.smc.services=true")?;
    let mut crowd = Crowd::new(&mut peer, APPLIANCE.parse()?, 7)?;
    let took = crowd.request(32, b"hello", b"hello")?;
    ensure!(took < Duration::from_secs(1), "the clients took {took:?}");
    vm.run("show interfaces")?.contains(APPLIANCE)?;
    Ok(())
}

/// Eight clients connect at once, each to a server whose address is not resolved yet. No server is marked as failed.
#[test]
fn eight_cold_servers_are_reached_within_a_second() -> Result<()> {
    for (appliance, network, from) in
        [("10.9.0.1", "10.9.1.", "10.9.0.2/24"), ("fd09::1", "fd19::", "fd09::2/64")]
    {
        let bits = if network.contains('.') { 24 } else { 64 };
        let hosts: Vec<String> = (11..19).map(|n| format!("{network}{n}")).collect();
        let addresses: Vec<String> = hosts.iter().map(|host| format!("{host}/{bits}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let mut servers = Peer::new(&addresses)?;
        servers.serve_echo(7777, 16)?;
        let mut clients = Peer::new(&[from])?;
        let ends: Result<Vec<String>> = hosts
            .iter()
            .map(|host| Ok(format!("'{}'", SocketAddr::new(host.parse()?, 7777))))
            .collect();
        let words = format!(
            "isthmus.net.0.address={appliance}/{bits} isthmus.net.1.address={network}1/{bits} \
             isthmus.rule.0.name=cold isthmus.rule.0.listen=7000 isthmus.rule.0.backend=[{}]",
            ends?.join(",")
        );
        let spec = spec()?.nic(clients.nic()).nic(servers.nic()).append(&words);
        let mut vm = boot(spec)?;
        clients.ping(appliance, 0)?;
        let servers = servers.work()?;
        let server = SocketAddr::new(appliance.parse()?, 7000);
        let took = clients.request(8, server, b"hello", b"hello");
        servers.end()?;
        let rules = vm.run("show smc rules --json")?.json()?;
        let took = took.with_context(|| {
            let log = vm.run("show log").map(|log| log.text).unwrap_or_default();
            format!("{rules}\n{log}")
        })?;
        println!("{appliance}: eight cold servers answered within {took:?}");
        let backends = &rules[0]["backends"];
        let backends = backends.as_array().with_context(|| format!("no servers in {rules}"))?;
        ensure!(backends.len() == 8, "{rules}");
        for one in backends {
            ensure!(one["failures"] == 0 && one["total"] == 1, "{rules}");
        }
        ensure!(took < Duration::from_secs(1), "the clients took {took:?}");
    }
    Ok(())
}

/// A station sends frames with the address of a known host, of a non-existent one, and with invalid source addresses.
/// It gets no answer.
#[test]
fn station_with_another_hosts_address_gets_no_answer_over_tcp() -> Result<()> {
    const FOREIGN: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
    let (mut vm, mut peer) = pair("")?;
    let special = ["::ffff:10.9.0.2", "::10.9.0.2", "::ffff:0:10.9.0.2", "64:ff9b::10.9.0.2"];
    let all = ["10.9.0.2", "10.9.0.77", "fd09::2", "fd09::77", "0.0.0.2", "240.0.0.2"];
    for (n, from) in (1..).zip(all.into_iter().chain(special)) {
        let client = SocketAddr::new(from.parse()?, 40_000 + n as u16);
        let server = if client.is_ipv4() { APPLIANCE } else { APPLIANCE_6 };
        let server = (SocketAddr::new(server.parse()?, 80), APPLIANCE_MAC);
        peer.send_frame(&syn_of(n, (client, FOREIGN), server))?;
    }
    let (end, mut to_peer) = (Instant::now() + Duration::from_secs(4), 0);
    while Instant::now() < end {
        let Some(frame) = peer.receive_frame(Duration::from_millis(100))? else { continue };
        ensure!(frame[..6] != FOREIGN, "the station was answered: {frame:02x?}");
        // The reply goes to the real host with the address.
        to_peer += usize::from(frame[..6] == [2, 0, 0, 0, 0, 2] && frame[12..14] == [8, 0]);
    }
    ensure!(to_peer > 0, "the host was not answered");
    vm.run("show interfaces")?.contains(APPLIANCE)?;
    Ok(())
}

/// Ten thousand SYNs a second from non-existent hosts, while honest clients use HTTP, and a rule whose server is the
/// peer.
#[test]
fn honest_clients_survive_a_flood_of_syns() -> Result<()> {
    let words = "isthmus.rule.0.name=flooded isthmus.rule.0.listen=7000 \
                 isthmus.rule.0.backend=10.9.0.2:7777";
    let (mut vm, mut peer) = pair(words)?;
    peer.serve_echo(7777, 4)?;
    let http = (80, &b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"[..], &b"200 OK"[..]);
    for (port, request, wanted) in [http, (7000, b"hello", b"hello")] {
        for address in [APPLIANCE, APPLIANCE_6] {
            let server = SocketAddr::new(address.parse()?, port);
            // The first request may wait for the server to be marked up.
            peer.request(1, server, request, wanted)?;
            let flood = Flood::start(&peer, server, APPLIANCE_MAC, 10_000.0)?;
            let (start, mut slowest, mut requests, mut late) =
                (Instant::now(), Duration::ZERO, 0, 0);
            while requests < 30 || start.elapsed() < Duration::from_secs(3) {
                let took = peer.request(1, server, request, wanted)?;
                slowest = slowest.max(took);
                // A frame was lost, and retransmitted after a second.
                late += u32::from(took > Duration::from_millis(900));
                requests += 1;
            }
            let rate = flood.end()?;
            let result = format!(
                "{server}: {rate:.0} SYNs/s, {requests} requests, slowest {slowest:?}, {late} late"
            );
            println!("{result}");
            ensure!(rate > 5_000.0, "too few SYNs: {result}");
            ensure!(slowest < Duration::from_secs(4) && late * 20 <= requests, "{result}");
        }
    }
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

/// A frame with an echo request of the peer with 32 bytes of data, or the fragment from `from` to `to` of it. `tags`
/// are VLAN tags.
fn echo_request(tags: &[u16], from: usize, to: usize) -> Vec<u8> {
    let sum = |bytes: &[u8]| {
        let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]));
        let sum: u32 = words.sum();
        (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
    };
    let mut message = [&[8, 0, 0, 0, 0x77, 0x77, 0, 1][..], &[0xa5; 32]].concat();
    let checksum = sum(&message);
    message[2..4].copy_from_slice(&checksum);
    let place = (from / 8) as u16 | u16::from(to < message.len()) << 13;
    let mut header = vec![0x45, 0];
    header.extend((20 + (to - from) as u16).to_be_bytes());
    header.extend([0x12, 0x34]);
    header.extend(place.to_be_bytes());
    header.extend([64, 1, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1]);
    let checksum = sum(&header);
    header[10..12].copy_from_slice(&checksum);
    let mut frame = [&APPLIANCE_MAC[..], &[2, 0, 0, 0, 0, 2]].concat();
    for tag in tags {
        frame.extend([0x81, 0]);
        frame.extend(tag.to_be_bytes());
    }
    frame.extend([8, 0]);
    [frame, header, message[from..to].to_vec()].concat()
}

/// Whether an echo reply arrives within half a second.
fn is_answered(peer: &mut Peer) -> Result<bool> {
    let mut answered = false;
    while let Some(frame) = peer.receive_frame(Duration::from_millis(500))? {
        answered |= frame.get(12..14) == Some(&[8, 0]) && frame.get(34..36) == Some(&[0, 0]);
    }
    Ok(answered)
}

#[test]
fn priority_tags_are_accepted_and_vlans_are_not() -> Result<()> {
    let (_vm, mut peer) = pair("")?;
    for (tags, wanted) in
        [(&[][..], true), (&[0x6000], true), (&[5], false), (&[0x6005], false), (&[0, 0], false)]
    {
        peer.send_frame(&echo_request(tags, 0, 40))?;
        ensure!(is_answered(&mut peer)? == wanted, "tags {tags:x?}");
    }
    Ok(())
}

#[test]
fn fragments_are_put_together_unless_they_overlap() -> Result<()> {
    let (_vm, mut peer) = pair("")?;
    for (pieces, wanted) in [
        (&[(0, 16), (16, 40)][..], true),
        (&[(24, 40), (0, 24)], true),
        (&[(0, 24), (16, 40)], false),
        (&[(0, 24)], false),
    ] {
        for &(from, to) in pieces {
            peer.send_frame(&echo_request(&[], from, to))?;
        }
        ensure!(is_answered(&mut peer)? == wanted, "pieces {pieces:?}");
        // Waits until incomplete fragments have timed out.
        std::thread::sleep(Duration::from_secs(6));
    }
    Ok(())
}

/// Boots the appliance at 10.9.0.1 and fd09::1, and a peer in its neighbour table.
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
