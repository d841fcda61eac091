//! Prepared faults, as an operator meets them: one command names the cause and the remedy of each.

mod lab;

use core::time::Duration;
use lab::{HOST, Lab, OUR_MAC, OURS};
use net::connector::{Connector, Progress};
use net::tcp::Limits;
use smcr::wire::{Decline, Eid, PathType, PeerId, Proposal, ProposalV2};
use storage::rnbd::wire::{AccessMode, PORT};

const VOLUME: &str = "[[volume]]\nname = \"ram0\"\nsize = \"1MiB\"\n";
const SMALL: &str = "[rnbd]\nqueue_depth = 16\nchunk_size = \"16KiB\"\n";

/// Runs the command until its output has the first text, for a few seconds; then it must have the others.
fn explained(lab: &mut Lab, command: &str, wanted: &[&str]) -> String {
    let mut output = String::new();
    for _ in 0..100 {
        output = lab.run(command);
        if wanted.first().is_none_or(|first| output.contains(first)) {
            break;
        }
        lab.pass(Duration::from_millis(50));
    }
    for text in wanted {
        assert!(output.contains(text), "{command} lacks {text:?}:\n{output}");
    }
    output
}

/// The line of a check, and the line of its remedy.
fn finding(output: &str, check: &str) -> String {
    let mut lines = output.lines().skip_while(|line| !line.contains(check));
    lines.by_ref().take(2).collect::<Vec<_>>().join("\n")
}

fn config(exports: &str) -> String {
    format!("{SMALL}{VOLUME}{exports}")
}

#[test]
fn healthy_appliance_has_no_fault() {
    let export = "[[export]]\nname = \"ram0\"\nvolume = \"ram0\"\nhosts = [\"10.9.0.0/24\"]\n";
    let mut lab = Lab::new(&config(export));
    lab.map("ram0", AccessMode::ReadWrite, PORT);
    lab.pass(Duration::from_millis(500));
    let output = lab.run("doctor");
    assert!(output.starts_with("0 faults, 0 warnings\n"), "{output}");
    assert!(output.contains("full packets reach 1 peers"), "{output}");
    let json = lab.run("doctor --json");
    assert!(json.starts_with("{\"state\":\"ok\",\"faults\":0,"), "{json}");
}

#[test]
fn wrong_name_is_explained() {
    let mut lab = Lab::new(&config(""));
    lab.map("ram1", AccessMode::ReadWrite, PORT);
    explained(&mut lab, "show refused", &["ram1", "10.9.0.2", "no_such_export", "export list"]);
    explained(&mut lab, "doctor", &["ram1 by session host", "10.9.0.2 was refused", "export list"]);
}

#[test]
fn forbidden_host_is_explained() {
    let export = "[[export]]\nname = \"ram0\"\nvolume = \"ram0\"\nhosts = [\"10.9.0.99\"]\n";
    let mut lab = Lab::new(&config(export));
    lab.map("ram0", AccessMode::ReadWrite, PORT);
    explained(
        &mut lab,
        "show refused",
        &["10.9.0.2", "host_not_admitted", "export set NAME hosts="],
    );
    explained(&mut lab, "doctor", &["from 10.9.0.2 was refused", "remedy:"]);
}

#[test]
fn wrong_port_is_explained() {
    let mut lab = Lab::new(&config(""));
    lab.map("ram0", AccessMode::ReadWrite, PORT + 1);
    explained(&mut lab, "show refused", &["port 1235", "no_such_port", "rnbd.port"]);
    explained(&mut lab, "doctor", &["\"port 1235\" from 10.9.0.2 was refused", "rnbd.port"]);
}

#[test]
fn read_only_export_is_explained() {
    let export = "[[export]]\nname = \"ram0\"\nvolume = \"ram0\"\nread_only = true\n";
    let mut lab = Lab::new(&config(export));
    lab.map("ram0", AccessMode::ReadWrite, PORT);
    explained(&mut lab, "show refused", &["read_only", "10.9.0.2"]);
    explained(&mut lab, "doctor", &["was refused", "read_only"]);
}

#[test]
fn path_that_loses_large_packets_is_explained() {
    let mut lab = Lab::new(&config(""));
    lab.map("ram0", AccessMode::ReadWrite, PORT);
    lab.pass(Duration::from_millis(500));
    lab.longest = 1464;
    let output = lab.run("doctor");
    let found = finding(&output, "path MTU");
    assert!(found.starts_with("fault") && found.contains("10.9.0.2"), "{output}");
    for text in ["packets of 1450 bytes and none of 1500", "set net.0.mtu 1450"] {
        assert!(found.contains(text), "{output}");
    }
    // Mended, the next probe says so.
    lab.longest = usize::MAX;
    lab.pass(Duration::from_secs(6));
    let found = finding(&lab.run("doctor"), "path MTU");
    assert!(found.starts_with("ok"), "{found}");
}

#[test]
fn duplicate_address_is_explained_with_both_stations() {
    let mut lab = Lab::new(&config(""));
    let other = [2, 0, 0, 0, 0, 9];
    // An ARP announcement of our address by another station.
    let mut frame = vec![0xff; 6];
    frame.extend(other);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(other);
    frame.extend(OURS.octets());
    frame.extend([0; 6]);
    frame.extend(OURS.octets());
    frame.resize(60, 0);
    lab.inject(frame);
    lab.pass(Duration::from_millis(10));
    let output = lab.run("doctor");
    let found = finding(&output, "duplicate address");
    assert!(found.starts_with("fault") && found.contains("10.9.0.1"), "{output}");
    for mac in [OUR_MAC, other] {
        assert!(found.contains(&management::mac(mac)), "{output}");
    }
    assert!(found.contains("set net.0.address"), "{output}");
}

#[test]
fn memory_that_is_full_is_explained() {
    let memory = "[rnbd]\nqueue_depth = 1024\nchunk_size = \"128KiB\"\noffered_depth = 1024\n";
    let mut lab = Lab::new(&format!("{memory}{VOLUME}"));
    let output = lab.run("doctor");
    let found = finding(&output, " memory ");
    assert!(
        found.starts_with("fault") && found.contains("further clients are refused"),
        "{output}"
    );
    assert!(found.contains("session disconnect") && found.contains("rnbd.queue_depth"), "{output}");
    lab.map("ram0", AccessMode::ReadWrite, PORT);
    explained(&mut lab, "show refused", &["memory", "10.9.0.2"]);
}

#[test]
fn mirror_without_its_member_is_explained() {
    let remote = "[[remote]]\nname = \"far\"\nsessname = \"far\"\npath = [\"10.9.0.1@10.9.0.2\"]\n\
        device_path = \"ram0\"\n[[mirror]]\nname = \"safe\"\nmembers = [\"ram0\", \"far\"]\n";
    let mut lab = Lab::new(&config(remote));
    lab.pass(Duration::from_secs(2));
    let output = lab.run("doctor");
    let found = finding(&output, "mirror safe");
    assert!(found.contains("far is") && found.contains("remedy:"), "{output}");
    let found = finding(&output, "session far");
    assert!(found.starts_with("fault") && found.contains("ping 10.9.0.2"), "{output}");
}

#[test]
fn clock_that_is_off_is_explained() {
    let mut lab = Lab::at(&config(""), 978_307_200);
    let found = finding(&lab.run("doctor"), " clock ");
    assert!(found.starts_with("fault") && found.contains("2001-01-01"), "{found}");
    assert!(found.contains("set system.ntp"), "{found}");
    lab.run("set system.ntp 10.9.0.2");
    lab.pass(Duration::from_secs(15));
    let found = finding(&lab.run("doctor"), "no time server");
    assert!(found.contains("10.9.0.2") && found.contains("UDP port 123"), "{found}");
}

/// The host connects to the echo service with SMC, and offers only this EID. Returns what it is sent.
fn propose(lab: &mut Lab, eid: &str) -> Vec<u8> {
    let limits = Limits { connections: 1, receive: 4096, transmit: 4096 };
    let mut connector = Connector::new(limits, lab.now().as_nanos() as u16);
    let to = std::net::SocketAddr::new(OURS.into(), smcr::echo::ECHO_PORT);
    let connection = connector.connect(&mut lab.interface, to, true).unwrap();
    lab.until("the connection is open", |lab| {
        connector.progress(&lab.interface, connection) == Progress::Open { smc: true }
    });
    let v2 = ProposalV2 {
        eids: vec![Eid::new(eid).unwrap()],
        release: 1,
        gid: HOST.to_ipv6_mapped(),
        max_conns: 255,
        max_links: 2,
        features: 0,
    };
    let proposal = Proposal {
        version: 2,
        v1_type: PathType::None,
        v2_type: PathType::R,
        peer_id: PeerId::default(),
        gid: std::net::Ipv6Addr::UNSPECIFIED,
        mac: [0; 6],
        prefixes: None,
        v2: Some(v2),
    };
    connector.write(&mut lab.interface, connection, &proposal.emit()).unwrap();
    let mut answer = vec![0; 1024];
    let mut length = 0;
    lab.until("an answer", |lab| {
        length = connector.read(&mut lab.interface, connection, &mut answer).unwrap_or(0);
        length > 0
    });
    connector.stop(&mut lab.interface);
    answer.truncate(length);
    answer
}

#[test]
fn host_that_falls_back_to_tcp_is_explained() {
    let mut lab = Lab::new("[smc]\nservices = true\nueid = [\"OURS\"]\n");
    let found = finding(&lab.run("doctor"), " SMC-R ");
    assert!(found.starts_with("ok"), "{found}");
    let declined = propose(&mut lab, "THEIRS");
    assert!(Decline::parse(&declined).is_ok(), "{declined:?}");
    explained(&mut lab, "show refused", &["SMC-R", "10.9.0.2", "no common SMC device or EID"]);
    let found = finding(&lab.run("doctor"), "fell back to TCP");
    assert!(found.starts_with("warning") && found.contains("SMC-R"), "{found}");
    for text in [
        "1 connections with 10.9.0.2 fell back",
        "no common SMC device or EID",
        "set smc.ueid NAME",
        "smcr ueid add NAME",
        "smcr device",
    ] {
        assert!(found.contains(text), "{text}: {found}");
    }
    // A host that shares the EID is accepted. Nothing else is counted.
    let accepted = propose(&mut lab, "OURS");
    assert!(Decline::parse(&accepted).is_err(), "{accepted:?}");
    assert!(lab.run("doctor").contains("1 connections with 10.9.0.2 fell back"));
}

#[test]
fn unsaved_changes_and_open_exports_are_warnings() {
    let mut lab = Lab::new(&config(""));
    lab.run("set system.hostname other");
    let output = lab.run("doctor");
    assert!(finding(&output, "not saved").contains("`save`"), "{output}");
    let found = finding(&output, "can open ram0");
    assert!(found.starts_with("warning") && found.contains("export set NAME hosts="), "{output}");
}

#[test]
#[should_panic(expected = "the machine is off")]
fn power_button_is_an_orderly_poweroff() {
    let mut lab = Lab::new("");
    lab.pressed.set(true);
    lab.pass(Duration::from_millis(150));
    assert!(lab.gateway.ending.is_some());
    lab.pass(Duration::from_secs(5));
}

#[test]
fn support_bundle_is_a_tar_file_without_secrets() {
    let secret = "0fb7321b7012da4d334ad40240dee8a1ccb352cd6f2b22fbeaedd3978e1f556a";
    let http = format!("[http]\ntoken_sha256 = \"{secret}\"\n");
    let mut lab = Lab::new(&config(&http));
    let output = lab.run("support");
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!((lines[0], lines.last()), ("begin-base64 644 isthmus-support.tar", Some(&"====")));
    let tar: Vec<u8> = lines[1..lines.len() - 1].iter().flat_map(|line| decoded(line)).collect();
    let mut names = Vec::new();
    let mut at = 0;
    while tar[at] != 0 {
        let field = |from: usize, to: usize| {
            let bytes = tar[at + from..at + to].split(|&byte| byte == 0).next().unwrap();
            String::from_utf8(bytes.to_vec()).unwrap()
        };
        let size = usize::from_str_radix(&field(124, 136), 8).unwrap();
        names.push(field(0, 100));
        at += 512 + size.next_multiple_of(512);
    }
    assert_eq!(tar.len() - at, 1024, "the end of an archive");
    for name in ["doctor", "show-config", "show-log", "show-crash", "session-list", "metrics"] {
        let name = format!("isthmus-support/{name}.txt");
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    let text = String::from_utf8_lossy(&tar);
    assert!(text.contains("isthmus_ready") && text.contains("[[volume]]"));
    assert!(!text.contains(secret));
}

/// Sends a GET over TCP. Returns the response.
fn get(lab: &mut Lab, path: &str, token: &str) -> String {
    let limits = Limits { connections: 1, receive: 16_384, transmit: 4096 };
    let mut connector = Connector::new(limits, lab.now().as_nanos() as u16);
    let to = std::net::SocketAddr::new(OURS.into(), 80);
    let connection = connector.connect(&mut lab.interface, to, false).unwrap();
    let token =
        if token.is_empty() { "".into() } else { format!("Authorization: Bearer {token}\r\n") };
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {OURS}\r\nConnection: close\r\n{token}\r\n");
    let (mut sent, mut answer) = (0, Vec::new());
    lab.until(path, |lab| {
        let rest = &request.as_bytes()[sent..];
        sent += connector.write(&mut lab.interface, connection, rest).unwrap_or(0);
        loop {
            let mut bytes = [0; 2048];
            match connector.read(&mut lab.interface, connection, &mut bytes) {
                Ok(0) => return false,
                Ok(count) => answer.extend_from_slice(&bytes[..count]),
                Err(_) => return !answer.is_empty(),
            }
        }
    });
    connector.stop(&mut lab.interface);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn page_doctor_and_support_are_served_over_http() {
    // SHA-256 of `a-token-of-this-test`.
    let hash = "0fb7321b7012da4d334ad40240dee8a1ccb352cd6f2b22fbeaedd3978e1f556a";
    let http = format!("[http]\ntoken_sha256 = \"{hash}\"\n");
    let mut lab = Lab::new(&config(&http));
    let page = get(&mut lab, "/", "");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/html"), "{page:.200}");
    for header in [
        "Content-Encoding: deflate",
        "Content-Security-Policy: default-src 'none'; script-src 'sha256-",
    ] {
        assert!(page.contains(header), "{header}: {page:.600}");
    }
    let doctor = "/api/v1/doctor?format=text";
    let denied = get(&mut lab, doctor, "");
    assert!(denied.starts_with("HTTP/1.1 401 "), "{denied}");
    let report = get(&mut lab, doctor, "a-token-of-this-test");
    assert!(report.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain"), "{report}");
    assert!(report.contains("can open ram0") && report.contains("remedy: "), "{report}");
    let open = get(&mut lab, "/api/doctor", "");
    assert!(open.contains("{\"state\":\"warning\""), "{open}");
    let bundle = get(&mut lab, "/api/v1/support", "a-token-of-this-test");
    assert!(bundle.contains("Content-Type: application/x-tar"), "{bundle:.200}");
    assert!(bundle.contains("isthmus-support/metrics.txt") && bundle.ends_with("0\r\n\r\n"));
    assert!(!bundle.contains(hash));
}

/// Decodes a line of base64.
fn decoded(line: &str) -> Vec<u8> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let groups = line.as_bytes().chunks(4).flat_map(|group| {
        let padding = group.iter().filter(|&&c| c == b'=').count();
        let value = |c: u8| if c == b'=' { 0 } else { u32::from(digit(c)) };
        let bits = group.iter().fold(0u32, |bits, &c| bits << 6 | value(c));
        bits.to_be_bytes()[1..4 - padding].to_vec()
    });
    groups.collect()
}
