//! Frames on a terminal in memory, of an appliance that is a small HTTP server in this process.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

use super::*;
use crate::sections::{DOCTOR, LOG, SECTIONS, SESSIONS, STATUS};

/// Pages by path, with their status, and the requests so far.
#[derive(Default)]
struct Pages {
    pages: BTreeMap<String, (u16, String)>,
    requests: Vec<String>,
}

/// An appliance on the loopback interface. It answers until the test ends.
#[derive(Clone)]
struct Server {
    address: SocketAddr,
    pages: Arc<Mutex<Pages>>,
}

impl Server {
    fn start() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server { address, pages: Arc::default() };
        let pages = server.pages.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(stream, &pages);
            }
        });
        for section in &SECTIONS {
            server.set(section.path, json!([]));
        }
        server.set(DOCTOR, json!({"state": "ok", "faults": 0, "warnings": 0, "checks": []}));
        server.set(SESSIONS, json!({}));
        server.set("/api/mirrors", json!({}));
        server.set(STATUS, status(10.0, 0));
        server
    }

    fn set(&self, path: &str, page: Value) {
        self.set_text(path, 200, page.to_string());
    }

    fn set_text(&self, path: &str, status: u16, text: String) {
        self.pages.lock().unwrap().pages.insert(path.into(), (status, text));
    }

    fn appliance(&self) -> Appliance {
        Appliance::plain(&self.address.to_string(), Some("a-token"))
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.pages.lock().unwrap().requests)
    }
}

fn answer(mut stream: TcpStream, pages: &Mutex<Pages>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => request.push(byte[0]),
            _ => return,
        }
    }
    let request = String::from_utf8_lossy(&request).into_owned();
    let path = request.split(' ').nth(1).unwrap_or_default().to_string();
    let mut pages = pages.lock().unwrap();
    pages.requests.push(request);
    let (status, body) = pages.pages.get(&path).cloned().unwrap_or((404, "no such page".into()));
    // The client may be gone.
    let _ = write!(stream, "HTTP/1.1 {status} Status\r\nConnection: close\r\n\r\n{body}");
}

fn status(uptime: f64, received: u64) -> Value {
    json!({
        "version": {"hostname": "gateway-1", "version": "0.1.0", "commit": "abc", "uptime_seconds": uptime},
        "volumes": [{"name": "ram0", "size": 67_108_864, "open": 1, "state": "ready"}],
        "interfaces": [{"name": "net0", "link": "down", "mtu": 1500, "rx_bytes": received, "tx_bytes": 0,
            "rx_errors": 1, "rx_missed": 2, "addresses": ["10.0.0.1/24"], "location": "pci:00:03.0"}],
        "loops": [{"loop": 0, "state": "runs", "ports": ["net0"], "busy": 0.25, "idle": 0.5, "halted": 0.25,
            "rounds": 12}],
    })
}

/// A screen of this size, as text.
fn drawn(app: &mut App, columns: u16, lines: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    terminal.draw(|frame| view::draw(app, frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let mut text = String::new();
    for y in 0..lines {
        for x in 0..columns {
            text.push_str(buffer[(x, y)].symbol());
        }
        text.push('\n');
    }
    text
}

fn press(app: &mut App, code: KeyCode) -> Option<Order> {
    app.press(KeyEvent::new(code, KeyModifiers::NONE))
}

/// A round of the appliance.
fn round(app: &mut App, server: &Server) {
    app.take(snapshot::fetch(&server.appliance(), &[], None));
}

#[test]
fn frame_has_every_section_with_what_is_wrong_first() {
    let server = Server::start();
    server.set(
        DOCTOR,
        json!({"state": "fault", "faults": 1, "warnings": 0, "checks": [
            {"check": "link", "state": "fault", "cause": "net0: the link is down", "remedy": "plug it in"},
            {"check": "clock", "state": "ok", "cause": "good", "remedy": ""}]}),
    );
    server.set(
        SESSIONS,
        json!({"host": {"paths": {"10.0.0.2@10.0.0.1": {"state": "connected", "cur_latency_seconds": 0.0000123,
            "stats": {"rdma": {"inflight": 3, "wr_bytes": 2048, "rd_bytes": 0, "errors": 0}}}}}}),
    );
    server.set("/api/mirrors", json!({"safe": {"state": "degraded", "size": 1024, "stale_bytes": 512,
        "members": [{"name": "a", "state": "in use"}, {"name": "b", "state": "out", "left_out": "no answer"}]}}));
    server.set("/api/smc/rules", json!([{"name": "web", "listen": 80, "connections": 2, "smc_clients": 1,
        "tcp_clients": 1, "bytes_in": 10, "bytes_out": 20, "backends": [{"address": "10.0.0.9:80", "state": "up"}]}]));
    server.set("/api/exports", json!([{"name": "ram0", "volume": "ram0"}]));
    server.set(
        "/api/refused",
        json!([{"from": "10.0.0.3", "what": "map", "asked": "ram7", "times": 4,
        "reason": "no_such_export", "advice": "use `export list`"}]),
    );
    server.set(
        LOG,
        json!([{"time": "t1", "level": "info", "message": "first"},
        {"time": "t2", "level": "error", "message": "second"}]),
    );
    let text = frame(&server.appliance(), 120, Duration::from_millis(1)).unwrap();
    let mut rest = text.as_str();
    for wanted in [
        "Isthmus gateway-1, version 0.1.0, commit abc, up 00:00:10",
        "Something does not work: 1 fault, 0 warnings",
        "What is wrong (1)",
        "net0: the link is down",
        "Remedy: plug it in",
        "1 checks are in order",
        "Sessions (1)",
        "10.0.0.2@10.0.0.1",
        "12.3 µs",
        "2.0 KiB",
        "Volumes (1)",
        "64.0 MiB",
        "Exports (1)",
        "Mirrors (1)",
        "degraded",
        "b: out (no answer)",
        "Links and throughput (1)",
        "10.0.0.1/24",
        "Rules (1)",
        "10.0.0.9:80 up",
        "Cores (1)",
        "25.0 %",
        "Refusals (1)",
        "map ram7",
        "no_such_export",
        "use `export list`",
        "Log (2)",
        "second",
        "first",
    ] {
        let at =
            rest.find(wanted).unwrap_or_else(|| panic!("{wanted:?} is not in order in:\n{text}"));
        rest = &rest[at + wanted.len()..];
    }
    assert!(text.lines().all(|line| text::columns(line) <= 120), "{text}");
    let requests = server.requests();
    assert!(requests.iter().all(|one| one.contains("\r\nAuthorization: Bearer a-token\r\n")));
}

#[test]
fn rates_are_those_between_two_rounds_and_none_after_a_restart() {
    let server = Server::start();
    let mut app = App::new("x");
    round(&mut app, &server);
    server.set(STATUS, status(11.0, 4 << 20));
    let mut next = snapshot::fetch(&server.appliance(), &[], None).unwrap();
    next.at = app.now.as_ref().unwrap().at + Duration::from_secs(2);
    app.take(Ok(next));
    assert!(view::plain(&mut app, 120).contains("2.0 MiB/s"));
    server.set(STATUS, status(1.0, 5 << 20));
    round(&mut app, &server);
    let text = view::plain(&mut app, 120);
    assert!(!text.contains("/s") && text.contains("up 00:00:01"), "{text}");
}

#[test]
fn appliance_that_goes_away_is_shown_with_its_last_reports_until_it_is_back() {
    let server = Server::start();
    let mut app = App::new("10.0.0.1");
    app.take(Err(Failure::Unreachable("connection refused".into())));
    assert!(drawn(&mut app, 100, 20).contains("unreachable since "));
    round(&mut app, &server);
    assert!(!drawn(&mut app, 100, 40).contains("unreachable"));
    app.take(Err(Failure::Unreachable("connection refused".into())));
    let since = app.away.as_ref().unwrap().clock.clone();
    app.take(Err(Failure::Refused(503, "starts".into())));
    let text = drawn(&mut app, 100, 40);
    assert!(text.contains(&format!("unreachable since {since}")), "{text}");
    assert!(text.contains("the appliance answers 503: starts") && text.contains("ram0"), "{text}");
    round(&mut app, &server);
    assert!(app.away.is_none());
}

#[test]
fn thread_goes_on_after_an_outage_and_asks_no_more_after_a_refusal() {
    let server = Server::start();
    let (orders, taken) = channel();
    let (sender, rounds) = sync_channel(0);
    let appliance = server.appliance();
    let thread = std::thread::spawn(move || {
        snapshot::run(&appliance, Duration::from_millis(1), &taken, &sender);
    });
    assert!(rounds.recv().unwrap().is_ok());
    server.set_text(STATUS, 200, "<html>".into());
    while rounds.recv().unwrap().is_ok() {}
    server.set(STATUS, status(1.0, 0));
    while rounds.recv().unwrap().is_err() {}
    server.set_text(STATUS, 401, "a token is needed".into());
    let refused = loop {
        if let Err(failure) = rounds.recv().unwrap() {
            break failure;
        }
    };
    assert_eq!(refused, Failure::Refused(401, "a token is needed".into()));
    server.requests();
    assert!(rounds.recv_timeout(Duration::from_millis(300)).is_err(), "it waits for an order");
    assert!(server.requests().is_empty());
    orders.send(Order::Fetch).unwrap();
    assert!(rounds.recv().unwrap().is_err());
    drop((orders, rounds));
    thread.join().unwrap();
}

#[test]
fn hostile_names_and_reports_of_wrong_types_are_harmless() {
    let server = Server::start();
    let name = format!("\x1b[2J\u{202e}{}\u{9b}31m東京{}", "x".repeat(5000), "\u{301}".repeat(99));
    server.set(
        SESSIONS,
        json!({name.clone(): {"paths": {name.clone(): {"state": name, "stats": 7}}}}),
    );
    server.set("/api/mirrors", json!([1, 2]));
    server.set("/api/refused", json!({"from": []}));
    server.set("/api/exports", json!([{}, 5, null, "x", {name.clone(): {name.clone(): [name]}}]));
    server.set(DOCTOR, json!({"state": ["fault"], "faults": "many", "checks": {"a": 1}}));
    server.set_text("/api/smc/rules", 500, "\x1b]0;title\x07".into());
    server.set_text(LOG, 200, "[".repeat(100_000));
    let mut app = App::new("\x1b[31m10.0.0.1");
    round(&mut app, &server);
    for columns in [1, 2, 10, 40, 81, 300] {
        let text = drawn(&mut app, columns, 60);
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{columns}");
        assert!(!text.contains('\u{202e}'));
        let text = view::plain(&mut app, columns.into());
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{columns}");
        let widest = text.lines().map(text::columns).max();
        assert!(widest <= Some(columns.into()), "{columns}: {widest:?}");
    }
    let text = view::plain(&mut app, 120);
    assert!(text.contains("the appliance answers 500: \u{fffd}]0;title\u{fffd}"), "{text}");
    assert!(text.contains("the appliance sent no JSON") && text.contains("The state is not known"));
}

#[test]
fn keys_move_filter_pause_and_leave() {
    let server = Server::start();
    let lines: Vec<Value> = (0..700)
        .map(|n| json!({"time": "t", "level": "info", "message": format!("message {n}")}))
        .collect();
    server.set(LOG, lines.into());
    let mut app = App::new("x");
    round(&mut app, &server);
    let first = drawn(&mut app, 100, 24);
    assert!(first.contains("▌What is wrong") && first.contains("q leave"), "{first}");
    press(&mut app, KeyCode::Tab);
    assert!(drawn(&mut app, 100, 24).lines().nth(3).unwrap().starts_with("▌Sessions"));
    press(&mut app, KeyCode::Left);
    press(&mut app, KeyCode::BackTab);
    let text = drawn(&mut app, 100, 24);
    assert!(text.lines().nth(3).unwrap().starts_with("▌Log (700)"), "{text}");
    assert!(text.contains("message 699"), "the newest first: {text}");
    for _ in 0..100 {
        press(&mut app, KeyCode::PageDown);
        drawn(&mut app, 100, 24);
    }
    assert!(drawn(&mut app, 100, 24).contains("and 200 more"), "bounded");
    press(&mut app, KeyCode::Home);
    press(&mut app, KeyCode::Down);
    press(&mut app, KeyCode::Up);
    assert_eq!((app.section, app.line), (0, 0));
    // The filter is of all sections. Its keys are no commands.
    press(&mut app, KeyCode::Char('/'));
    for c in "QQ\x1bmessage 42".chars() {
        press(&mut app, KeyCode::Char(c));
    }
    for _ in 0.."QQ\x1bmessage 42".chars().count() {
        press(&mut app, KeyCode::Backspace);
    }
    for c in "Message 42".chars() {
        press(&mut app, KeyCode::Char(c));
    }
    assert!(!app.is_over);
    press(&mut app, KeyCode::Enter);
    let text = view::plain(&mut app, 100);
    assert!(
        text.contains("Log (11 of 700)") && text.contains("the filter admits no row"),
        "{text}"
    );
    assert!(drawn(&mut app, 100, 24).contains("filter: Message 42"));
    press(&mut app, KeyCode::Esc);
    assert!(app.filter.is_empty());
    assert_eq!(press(&mut app, KeyCode::Char('p')), Some(Order::Pause));
    assert_eq!(press(&mut app, KeyCode::Char('r')), None);
    assert!(drawn(&mut app, 100, 24).contains("paused"));
    assert_eq!(press(&mut app, KeyCode::Char('p')), Some(Order::Fetch));
    press(&mut app, KeyCode::Char('q'));
    assert!(app.is_over);
}

#[test]
fn refused_access_is_shown_with_its_reason() {
    let server = Server::start();
    server.set_text(STATUS, 401, "a token is needed\n".into());
    let mut app = App::new("x");
    round(&mut app, &server);
    assert!(
        drawn(&mut app, 100, 10).contains("access refused (401): a token is needed; r tries again")
    );
    let failed = frame(&server.appliance(), 100, Duration::ZERO).unwrap_err();
    assert!(failed.to_string().contains("401"));
}
