//! Keystrokes of an operator or of a noisy line.

use appliance::config::{Document, Problem};
use appliance::console::{Console, Managed, ObjectVerb, Progress, System, Topic};
use appliance::log_ring::LogRing;
use appliance::report::Value;
use core::net::IpAddr;
use drivers::hal::Instant;

/// An appliance with only a configuration.
struct Appliance {
    document: Document,
    log: LogRing,
    pings: u32,
    off: bool,
}

impl System for Appliance {
    fn show(&mut self, topic: Topic) -> Value {
        Value::display(format!("{topic:?}"))
    }
    fn rows(&mut self, topic: Topic, from: usize, count: usize) -> Option<Vec<Value>> {
        let row = |i: usize| Value::object([("number", (i as u64).into())]);
        (topic == Topic::Volumes).then(|| (from..100).take(count).map(row).collect())
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
    fn start_save(&mut self) -> Result<(), String> {
        Ok(())
    }
    fn start_ping(&mut self, _: IpAddr, count: u32, _: u16) -> Result<(), String> {
        self.pings = count.min(3);
        Ok(())
    }
    fn start_rping(&mut self, address: IpAddr, count: u32, size: usize) -> Result<(), String> {
        Err(format!("{address} {count} {size}"))
    }
    fn poll_task(&mut self) -> Option<Progress> {
        match self.pings.checked_sub(1) {
            Some(left) => {
                self.pings = left;
                Some(Progress::Line("an answer".into()))
            }
            None => Some(Progress::Done(Ok("done".into()))),
        }
    }
    fn cancel_task(&mut self) {
        self.pings = 0;
    }
    fn list(&mut self, path: &str) -> Result<Vec<String>, String> {
        if path == "/" { Ok(vec!["a/".into(), "b".into()]) } else { Err(path.into()) }
    }
    fn read(&mut self, path: &str) -> Result<Value, String> {
        Ok(Value::display(path))
    }
    fn has_unsaved(&self) -> bool {
        self.pings % 2 == 1
    }
    fn write(&mut self, path: &str, value: &str) -> Result<Managed, String> {
        Err(format!("{path}: {value}"))
    }
    fn manage(&mut self, verb: ObjectVerb, rest: &str) -> Result<Managed, String> {
        Err(format!("{verb:?} {rest}"))
    }
    fn reboot(&mut self) {
        self.off = true;
    }
    fn power_off(&mut self) {
        self.off = true;
    }
}

/// Types the input. The output must be plain text, with the console's own control characters only.
pub fn run(data: &[u8]) {
    let mut system = Appliance {
        document: Document::default(),
        log: LogRing::new(100, || Instant::ZERO),
        pings: 0,
        off: false,
    };
    let mut console = Console::default();
    let mut rest = data;
    let mut rounds = 0;
    while (!rest.is_empty() || console.is_busy()) && !system.off {
        let taken = console.handle_input(&rest[..rest.len().min(64)]);
        rest = &rest[taken..];
        console.poll(&mut system);
        let shown = console.output();
        let odd = shown.iter().find(|&&byte| byte < 32 && !b"\r\n\x07\x08\x1b".contains(&byte));
        assert_eq!(odd, None, "a control character is shown");
        let count = shown.len().min(1000);
        console.sent(count);
        rounds += 1;
        assert!(rounds < 100_000, "the console never becomes idle");
    }
}

pub fn corpus() -> Vec<Vec<u8>> {
    let lines: [&[u8]; 8] = [
        b"help\rshow version\rshow config\rversion\r",
        b"set system.hostname typed\rshow\tconfig\r\x1b[A\x1b[B\x1b[C\x1b[D\x7f\x08",
        b"ping 10.0.0.1\r\x03ping fd00::1 3\rsave\r",
        b"json show interfaces\r{\"a\":1}\rls /\rcat /a/b\recho 1 > /a/b\r",
        b"set net.0.addresses [\"10.0.0.2/24\", \"fd00::1/64\"]\rset net.0.dhcp tr\t\r",
        b"show log\rshow \t\t\t\rse\tsy\t\x01abc\x05\x0b\x15\x17\x0c\r",
        b"\xff\xfe\x00\xc3\xa4\xe2\x82\xac\x1b[200~paste\rpaste\r\x1b[201~\x1bOP\x1b[1;5C\r",
        b"reboot\r",
    ];
    lines.map(<[u8]>::to_vec).into()
}
