//! Tests of the console with scripts of an operator.

use super::*;
use crate::config::{Config, Document, Problem};
use crate::log_ring::LogRing;
use crate::report::Value;
use core::net::IpAddr;
use drivers::hal::Instant;
use log::{Level, Log, Record};
use proptest::prelude::*;
use std::cell::Cell;

thread_local! {
    /// The time in nanoseconds.
    pub(super) static NOW: Cell<u64> = const { Cell::new(0) };
}

pub(super) struct Appliance {
    pub(super) document: Document,
    log: LogRing,
    task: VecDeque<Progress>,
    ended: Option<&'static str>,
    objects: Vec<(String, String)>,
    /// Number of volumes.
    volumes: usize,
    /// Maximum rows requested at a time.
    most_rows: usize,
}

/// Row of a volume.
fn volume(i: usize) -> Value {
    Value::object([("name", Value::display(format!("v{i}"))), ("size", Value::Bytes(i as u64))])
}

impl Default for Appliance {
    fn default() -> Self {
        Appliance {
            document: Document::default(),
            log: LogRing::new(100, || Instant::from_nanos(NOW.get())),
            task: VecDeque::new(),
            ended: None,
            objects: vec![("/rtrs-server/s1/stats".into(), "7".into())],
            volumes: 0,
            most_rows: 0,
        }
    }
}

impl System for Appliance {
    fn show(&mut self, topic: Topic) -> Value {
        Value::list([Value::object([("topic", Value::display(format!("{topic:?}")))])])
    }
    fn rows(&mut self, topic: Topic, from: usize, count: usize) -> Option<Vec<Value>> {
        self.most_rows = self.most_rows.max(count);
        (topic == Topic::Volumes)
            .then(|| (from..self.volumes.min(from.saturating_add(count))).map(volume).collect())
    }
    fn document(&self) -> &Document {
        &self.document
    }
    fn set(&mut self, path: &str, value: &str) -> Result<String, Vec<Problem>> {
        self.document.set(path, value)?;
        Ok(match self.document.pending_at(path) {
            Some(pending) => format!("pending: {pending}"),
            None => "in force now".into(),
        })
    }
    fn unset(&mut self, path: &str, _force: bool) -> Result<String, Vec<Problem>> {
        self.document.unset(path).map(|()| "in force now".into())
    }
    fn log(&self) -> &LogRing {
        &self.log
    }
    fn asks_for_login(&self) -> bool {
        self.document.config().asks_for_login()
    }
    fn idle_logout(&self) -> Option<Duration> {
        self.document.config().idle_logout()
    }
    fn log_in(&mut self, name: &str, token: &[u8]) -> Option<Session> {
        let user = self.document.config().user.iter().find(|user| user.name.as_str() == name)?;
        let session = || Session { name: name.into(), role: user.role, token: [0; 32] };
        (token == b"wonderful").then(session)
    }
    fn is_known(&self, user: &Session) -> bool {
        self.document.config().user.iter().any(|one| one.name.as_str() == user.name)
    }
    fn has_unsaved(&self) -> bool {
        *self.document.config() != Config::default()
    }
    fn start_save(&mut self) -> Result<(), String> {
        Err("there is no config disk; attach one made by `isthmus image config-disk`".into())
    }
    fn start_ping(&mut self, address: IpAddr, count: u32, size: u16) -> Result<(), String> {
        let line = |i| Progress::Line(format!("{address}: {i}"));
        self.task = (0..count).map(line).collect();
        self.task.push_back(Progress::Done(Ok(format!("{count} answers of {size} bytes"))));
        Ok(())
    }
    fn start_rping(&mut self, address: IpAddr, count: u32, size: usize) -> Result<(), String> {
        self.task.push_back(Progress::Done(Ok(format!("{address} {count} {size}"))));
        Ok(())
    }
    fn poll_task(&mut self) -> Option<Progress> {
        self.task.pop_front()
    }
    fn cancel_task(&mut self) {
        self.task = [Progress::Done(Ok("interrupted".into()))].into();
    }
    fn list(&mut self, path: &str) -> Result<Vec<String>, String> {
        let below = |(object, _): &(String, String)| {
            let rest = object.strip_prefix(path)?.trim_start_matches('/');
            Some(rest.split_inclusive('/').next()?.to_string())
        };
        Ok(self.objects.iter().filter_map(below).collect())
    }
    fn read(&mut self, path: &str) -> Result<Value, String> {
        let found = self.objects.iter().find(|(object, _)| object == path);
        found.map(|(_, v)| Value::display(v)).ok_or_else(|| format!("no object {path}"))
    }
    fn write(&mut self, path: &str, value: &str) -> Result<Managed, String> {
        self.objects.push((path.into(), value.into()));
        Ok(Managed::Told(String::new()))
    }
    fn manage(&mut self, verb: ObjectVerb, rest: &str) -> Result<Managed, String> {
        Ok(Managed::Told(format!("{}: {rest}\n", verb.words().join(" "))))
    }
    fn reboot(&mut self) {
        self.ended = Some("reboot");
    }
    fn power_off(&mut self) {
        self.ended = Some("power off");
    }
}

/// Sends `input` as fast as the console accepts it. Returns all output.
pub(super) fn session(
    appliance: &mut Appliance,
    console: &mut Console,
    mut input: &[u8],
) -> String {
    let mut sent = Vec::new();
    for _ in 0..1_000_000 {
        input = &input[console.handle_input(input)..];
        let worked = console.poll(appliance);
        sent.extend(console.output());
        console.sent(console.output().len());
        if !worked && input.is_empty() && console.output().is_empty() {
            break;
        }
    }
    String::from_utf8(sent).unwrap().replace("\r\n", "\n")
}

fn run(input: &str) -> String {
    session(&mut Appliance::default(), &mut Console::default(), input.as_bytes())
}

#[test]
fn script_of_plain_lines_is_executed() {
    let expected = "
isthmus> show disks
topic
Disks
isthmus> show disks --json
[{\"topic\":\"Disks\"}]
isthmus> set http.port 8080
in force now
isthmus> set http.port 0
error: console: http.port: 0 is out of range; accepted: a whole number from 1 to 65535
isthmus> \nisthmus> shw
error: unknown command \"shw\" (did you mean \"show\"?); help lists the commands
isthmus> ";
    let script = "show disks\nshow disks --json\r\nset http.port 8080\rset http.port 0\n\nshw\n";
    assert_eq!(run(script), expected);
}

#[test]
fn shown_configuration_is_a_valid_document() {
    let text = run("set net.0.address 10.0.0.1/24\rshow config\r");
    let shown = text.split("show config\n").nth(1).unwrap().strip_suffix("isthmus> ").unwrap();
    assert_eq!(crate::config::check(shown.as_bytes()).unwrap().net[0].fixed().count(), 1);
    let json = run("show config --json\r");
    let json: serde_json::Value = serde_json::from_str(json.lines().nth(2).unwrap()).unwrap();
    assert_eq!(json["volume"][0]["name"], "ram0");
}

#[test]
fn stalled_reader_is_polled_at_growing_intervals() {
    let (mut appliance, mut console) = (Appliance::default(), Console::default());
    console.handle_input(b"help\r");
    while console.poll(&mut appliance) {}
    let millis = |console: &Console| console.patience(Duration::from_millis(1)).as_millis();
    let waits: u128 = (0..20)
        .map(|_| {
            console.sent(0);
            millis(&console)
        })
        .sum();
    assert!(console.is_busy() && waits > 1000, "{waits} ms in 20 looks");
    console.sent(16);
    assert_eq!(millis(&console), 1, "the reader accepts bytes again");
}

#[test]
fn pending_entry_is_shown_as_pending() {
    let script = "set rule.0.listen 81\rset http.port 82\rshow config\rset rule.0.listen x\r";
    let text = run(script);
    let pending = "pending: rule.0: still missing: name\n";
    assert_eq!(text.matches(pending).count(), 1, "{text}");
    assert!(
        text.contains("\n# Pending, neither in force nor saved: rule.0: still missing: name"),
        "{text}"
    );
    assert!(text.contains("\n# [[rule]]\n# listen = \"81\"\n"), "{text}");
    assert!(text.contains("error: console: rule.0.listen: "), "{text}");
    let json = run("set rule.0.listen 81\rshow config --json\r");
    let json: serde_json::Value = serde_json::from_str(json.lines().nth(4).unwrap()).unwrap();
    assert_eq!(json["pending"][0]["entry"], "rule.0");
    assert!(run("unset system.syslog\runset a b\r").contains("error: \"b\" is not understood"));
}

#[test]
fn task_shows_its_progress_and_can_be_interrupted() {
    assert!(run("ping 10.0.0.9 2\rhelp\r").contains(
        "ping 10.0.0.9 2\n10.0.0.9: 0\n10.0.0.9: 1\n2 answers of 56 bytes\nisthmus> help\nhelp "
    ));
    let (mut appliance, mut console) = (Appliance::default(), Console::default());
    console.handle_input(b"ping fd00::1 1000\r");
    for _ in 0..20 {
        console.poll(&mut appliance);
    }
    let rest = session(&mut appliance, &mut console, b"typed too early\r\x03");
    assert!(rest.ends_with("fd00::1: 17\n^C\ninterrupted\nisthmus> "), "{rest}");
    assert!(run("ping somewhere\r").contains("is not an address; accepted: 10.0.0.1"));
    assert!(run("ping ::1 0\r").contains("accepted: 1 to 1000"));
    assert!(run("ping ::1 1 4096\r").contains("1 answers of 4096 bytes"));
    assert!(run("ping ::1 1 65508\r").contains("size; accepted: 0 to 65507 bytes of data"));
    assert!(run("save\r").contains("error: there is no config disk; attach one"));
}

#[test]
fn machine_stops_only_after_all_output_is_sent() {
    let (mut appliance, mut console) = (Appliance::default(), Console::default());
    console.handle_input(b"poweroff\r");
    for _ in 0..9 {
        console.poll(&mut appliance);
    }
    assert!(console.is_busy() && appliance.ended.is_none());
    console.sent(usize::MAX);
    console.poll(&mut appliance);
    assert_eq!(appliance.ended, Some("power off"));
}

#[test]
fn unsaved_changes_need_force() {
    for (command, end) in [("reboot", "reboot"), ("poweroff", "power off")] {
        let (mut appliance, mut console) = (Appliance::default(), Console::default());
        let mut run = |line: &str| session(&mut appliance, &mut console, line.as_bytes());
        run("set system.hostname changed\r");
        let reply = run(&format!("{command}\r"));
        let advice = format!("`save` first, or `{command} force` discards them");
        assert!(reply.contains(&format!("error: unsaved changes: {advice}")), "{reply}");
        assert!(run(&format!("{command} now\r")).contains("accepted: force"));
        assert!(run("show config\r").contains("changed"), "the machine keeps running");
        console.handle_input(format!("{command} force\r").as_bytes());
        for _ in 0..9 {
            console.poll(&mut appliance);
            console.sent(usize::MAX);
        }
        assert_eq!(appliance.ended, Some(end));
    }
}

#[test]
fn rping_checks_its_arguments() {
    assert!(run("rping fd00::2 3 4096\r").contains("\nfd00::2 3 4096\nisthmus> "));
    assert!(run("rping 10.0.0.2\r").contains("\n10.0.0.2 4 64\nisthmus> "));
    assert!(run("rping 10.0.0.2 1 65537\r").contains("size; accepted: 1 to 65536 bytes"));
    assert!(run("rping\r").contains("usage: rping ADDRESS [COUNT] [SIZE]"));
}

#[test]
fn capture_commands_write_to_the_capture_object() {
    let orders = |line: &str| {
        let mut appliance = Appliance::default();
        session(&mut appliance, &mut Console::default(), line.as_bytes());
        appliance.objects.pop()
    };
    let order = |value: &str| Some(("/capture".to_string(), value.to_string()));
    assert_eq!(orders("capture start\r"), order("start"));
    assert_eq!(orders("capture start roce  qp 17\r"), order("start roce qp 17"));
    assert_eq!(orders("capture stop\r"), order("stop"));
    assert!(run("capture begin\r").contains("cannot capture \"begin\"; accepted: start, stop"));
    assert!(run("capture start roce h\t10.0.0.2 t\t\r").contains("start roce host 10.0.0.2 tcp"));
}

#[test]
fn tab_completes_words_paths_and_objects() {
    let cases = [
        ("sh\tdi\t", "show disks "),
        ("show l\t\t", "linx  log  loops\nisthmus> show l"),
        ("show loo\t", "show loops "),
        ("set ht\tp\t", "set http.port "),
        ("set volume.\t\t", "volume.0.  volume.1.\nisthmus> set volume."),
        ("log level de\t", "log level debug "),
        ("cat /r\ts\tst\t", "cat /rtrs-server/s1/stats "),
        ("show disks --\t", "show disks --json "),
        ("xyz\t", "xyz"),
    ];
    for (keys, expected) in cases {
        let shown = run(keys);
        assert!(shown.ends_with(expected), "{keys:?}: {shown}");
    }
}

#[test]
fn objects_are_read_and_written_by_path() {
    let text = run("ls\rcat /rtrs-server/s1/stats\rwrite a/b 1 2\rcat a/b\rcat c\r");
    for part in ["ls\nrtrs-server/\n", "stats\n7\n", "cat a/b\n1 2\n", "error: no object /c\n"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn log_messages_do_not_disturb_the_typed_line() {
    let (mut appliance, mut console) = (Appliance::default(), Console::default());
    session(&mut appliance, &mut console, b"show ver");
    log::set_max_level(log::LevelFilter::Trace);
    let args = format_args!("link up");
    appliance.log.log(&Record::builder().level(Level::Info).args(args).build());
    let shown = session(&mut appliance, &mut console, b"sion\r");
    let blank = " ".repeat("isthmus> show ver".len());
    let expected =
        format!("\r{blank}\r[    0.000000] INFO  link up\nisthmus> show version\ntopic\n");
    assert!(shown.starts_with(&expected), "{shown:?}");
    assert!(session(&mut appliance, &mut console, b"show log\r").contains("INFO  link up\n"));
    let json = session(&mut appliance, &mut console, b"show log --json\r");
    assert!(json.contains("{\"seconds\":0,\"time\":null,\"level\":\"info\",\"kind\":\"note\",\"message\":\"link up\"}"), "{json}");
}

#[test]
fn follow_shows_messages_of_its_filter_until_ctrl_c() {
    let (mut appliance, mut console) = (Appliance::default(), Console::default());
    let log = |appliance: &Appliance, target: &str, text: &str| {
        let mut record = Record::builder();
        record.level(Level::Info).target(target);
        appliance.log.log(&record.args(format_args!("{text}")).build());
    };
    log::set_max_level(log::LevelFilter::Trace);
    session(&mut appliance, &mut console, b"log follow audit\r");
    assert!(!console.is_busy(), "the loop may halt");
    log(&appliance, "x", "noise");
    log(&appliance, "audit", "console: save");
    let shown = session(&mut appliance, &mut console, b"show version\r");
    assert_eq!(shown, "[    0.000000] AUDIT console: save\n");
    let shown = session(&mut appliance, &mut console, b"\x03");
    assert_eq!(shown, "^C\nisthmus> ");
    let shown = session(&mut appliance, &mut console, b"log follow x\r");
    assert!(shown.contains("accepted: audit, errors"), "{shown}");
}

#[test]
fn level_of_a_subject_is_set_and_removed() {
    let (mut appliance, mut console) = (Appliance::default(), Console::default());
    session(&mut appliance, &mut console, b"log level smc debug\r");
    assert_eq!(appliance.document.config().log.levels.len(), 1);
    session(&mut appliance, &mut console, b"log level smc default\rlog level warn\r");
    assert!(appliance.document.config().log.levels.is_empty());
    assert_eq!(appliance.document.config().system.log_level, log::LevelFilter::Warn);
    let shown = session(&mut appliance, &mut console, b"log level smb debug\r");
    assert!(shown.contains("did you mean \"smc\""), "{shown}");
}

#[test]
fn flood_of_log_messages_does_not_block_input() {
    let (mut appliance, mut console) = (Appliance::default(), Console::default());
    log::set_max_level(log::LevelFilter::Trace);
    console.handle_input(b"poweroff\r");
    let long = "x".repeat(200);
    for _ in 0..200 {
        for _ in 0..16 {
            let args = format_args!("{long}");
            appliance.log.log(&Record::builder().level(Level::Info).args(args).build());
        }
        console.poll(&mut appliance);
        console.sent(300);
    }
    assert!(matches!(console.state, State::PoweringOff | State::Ended), "{:?}", console.state);
}

#[test]
fn paste_uses_bounded_memory_and_work() {
    let (mut appliance, mut console) = (Appliance::default(), Console::default());
    let paste = "help\r".repeat(2 << 20);
    let mut rest = paste.as_bytes();
    for _ in 0..20_000 {
        rest = &rest[console.handle_input(rest)..];
        console.poll(&mut appliance);
        // The limit plus one page of help.
        assert!(console.output.len_for_test() <= Output::ENOUGH + 12_288);
        let fifo = console.output().len().min(16);
        console.sent(fifo);
    }
    assert!(rest.len() > 9 << 20, "input waits for output");
}

/// A serial port with a FIFO of 16 bytes each way.
#[derive(Default)]
struct Serial {
    typed: VecDeque<u8>,
    shown: Vec<u8>,
}

impl Line for Serial {
    fn console_has_rung(&self) -> bool {
        !self.typed.is_empty()
    }
    fn console_read(&mut self, into: &mut [u8]) -> usize {
        let count = into.len().min(16).min(self.typed.len());
        into.iter_mut().zip(self.typed.drain(..count)).for_each(|(place, byte)| *place = byte);
        count
    }
    fn console_write(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(16);
        self.shown.extend(&bytes[..count]);
        count
    }
}

#[test]
fn serial_port_is_served_until_all_work_is_done() {
    let (mut appliance, mut console) = (Appliance::default(), Console::default());
    let typed = b"help\r".repeat(100).into();
    let mut serial = Serial { typed, ..Serial::default() };
    while pump(&mut console, &mut serial, &mut appliance) {}
    assert!(!console.is_busy() && serial.typed.is_empty());
    let shown = String::from_utf8(serial.shown).unwrap();
    assert_eq!(shown.matches("isthmus> help\r\nhelp ").count(), 100);
}

#[test]
fn log_is_shown_and_input_ignored_during_shutdown() {
    let (mut appliance, mut console) = (Appliance::default(), Console::default());
    let mut serial = Serial::default();
    while pump(&mut console, &mut serial, &mut appliance) {}
    serial.typed = b"help\r".to_vec().into();
    let message = "a disk was not flushed. ".repeat(8);
    log::set_max_level(log::LevelFilter::Trace);
    appliance
        .log
        .log(&Record::builder().level(Level::Error).args(format_args!("{message}")).build());
    assert!(!pump_at_the_end(&mut console, &mut serial, &mut appliance));
    let mut looks = 1;
    while !pump_at_the_end(&mut console, &mut serial, &mut appliance) {
        looks += 1;
    }
    let shown = String::from_utf8(serial.shown).unwrap();
    assert!(shown.contains(message.trim_end()) && !shown.contains("help"), "{shown}");
    assert!(looks > message.len() / 16, "each sends as much as the FIFO has room for: {looks}");
    assert_eq!(serial.typed.len(), 5);
}

proptest! {
    #[test]
    fn noise_never_panics_and_ctrl_c_restores_the_prompt(
        noise in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let (mut appliance, mut console) = (Appliance::default(), Console::default());
        let mut rest = &noise[..];
        while !rest.is_empty() {
            rest = &rest[console.handle_input(rest)..];
            console.poll(&mut appliance);
            console.sent(usize::MAX);
        }
        let text = session(&mut appliance, &mut console, b"\x03show version\r");
        prop_assert!(text.ends_with("show version\ntopic\nVersion\nisthmus> "), "{}", text);
    }
}

/// A long report is generated and shown in pieces, with the same text as in one piece.
#[test]
fn long_report_is_shown_in_pieces() {
    for volumes in [0, 1, 7, 8, 9, 1000] {
        let mut appliance = Appliance { volumes, ..Appliance::default() };
        let console = &mut Console::default();
        session(&mut appliance, console, b"");
        let whole = Value::List((0..volumes).map(volume).collect());
        let shown = session(&mut appliance, console, b"show volumes\r");
        assert!(shown.contains(&format!("\n{}isthmus>", whole.to_text())), "{shown}");
        let shown = session(&mut appliance, console, b"show volumes --json\r");
        assert!(shown.contains(&format!("\n{}\nisthmus>", whole.to_json())), "{shown}");
        assert!(appliance.most_rows <= 8, "{} rows at once", appliance.most_rows);
    }
    let mut appliance = Appliance { volumes: 1000, ..Appliance::default() };
    let console = &mut Console::default();
    session(&mut appliance, console, b"");
    console.handle_input(b"show volumes\r");
    let mut polls = 0;
    loop {
        let before = console.output.len_for_test();
        console.poll(&mut appliance);
        assert!(console.output.len_for_test() - before < 1024, "a poll shows some rows");
        console.sent(console.output().len());
        polls += 1;
        if polls == 200 {
            console.handle_input(b"\x03");
        }
        if console.state == State::Prompt && !console.is_busy() {
            break;
        }
    }
    assert!((200..203).contains(&polls), "Ctrl-C ends it: {polls}");
}
