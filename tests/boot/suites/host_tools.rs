//! `./isthmus doctor` and `./isthmus top`, which ask the image over HTTP.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, spec};
use launch::full;
use launch::qemu::{Nic, Spec, Vm, free_port};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::lifecycle::USERS;

/// How long the screen may take to show a text.
const LIMIT: Duration = Duration::from_secs(60);

/// The image with users, whose HTTP server is at this port of the loopback interface.
fn appliance(port: u16, spec: Spec) -> Result<(Vm, SocketAddr)> {
    let mut vm = boot(spec.config(USERS).nic(Nic::User { forwards: vec![("tcp", port, 80)] }))?;
    for _ in 0..600 {
        if vm.run("show interfaces")?.text.contains("10.0.2.15") {
            return Ok((vm, ([127, 0, 0, 1], port).into()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(vm.error("no address by DHCP within 30 s"))
}

/// Runs a program of the launcher with a token.
fn run(program: &str, words: &[&str], server: SocketAddr, token: &str) -> Result<Output> {
    let mut command = Command::new(full::in_tests(program)?);
    command.args(words).arg(server.to_string()).env("ISTHMUS_TOKEN", token).stdin(Stdio::null());
    command.output().with_context(|| format!("{program} did not start"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn doctor_prints_its_checks_and_fails_for_a_fault() -> Result<()> {
    let (vm, server) = appliance(free_port()?, spec()?)?;
    let report = run("launch", &["doctor"], server, "reader-token")?;
    let shown = text(&report.stdout);
    ensure!(report.status.success() && shown.contains("any host"), "{shown}");
    drop(vm);
    let past = spec()?.extra(["-rtc", "base=2001-01-01T00:00:00"]);
    let (_vm, server) = appliance(free_port()?, past)?;
    let report = run("launch", &["doctor"], server, "reader-token")?;
    let shown = text(&report.stdout);
    ensure!(!report.status.success() && shown.contains("2001-01-01"), "{shown}");
    ensure!(shown.contains("remedy: ") && shown.contains("set system.ntp"), "{shown}");
    let refused = run("launch", &["doctor"], server, "wrong")?;
    ensure!(!refused.status.success() && text(&refused.stderr).contains("401"), "{refused:?}");
    Ok(())
}

#[test]
fn top_prints_one_frame_of_every_section() -> Result<()> {
    let (mut vm, server) = appliance(free_port()?, spec()?)?;
    vm.run("set system.hostname watched")?.lacks("error")?;
    let frame = run("launch-top", &["--once"], server, "reader-token")?;
    let shown = text(&frame.stdout);
    ensure!(frame.status.success(), "{frame:?}");
    let mut rest = shown.as_str();
    for wanted in [
        "Isthmus watched, version",
        "Works, with warnings",
        "What is wrong",
        "any host",
        "Remedy: ",
        "Sessions",
        "no storage client",
        "Volumes (1)",
        "ram0",
        "Exports",
        "Mirrors",
        "there is no mirror",
        "Links and throughput (1)",
        "10.0.2.15",
        "Rules",
        "Cores (1)",
        "Refusals",
        "Log (",
        "console: set system.hostname watched",
    ] {
        let at = rest.find(wanted).with_context(|| format!("{wanted:?} in order in:\n{shown}"))?;
        rest = &rest[at + wanted.len()..];
    }
    ensure!(!shown.contains('\x1b'), "{shown:?}");
    // Any client may read what the page shows, unless this is off.
    vm.run("set http.anonymous false")?.lacks("error")?;
    let refused = run("launch-top", &["--once"], server, "wrong")?;
    ensure!(!refused.status.success() && text(&refused.stderr).contains("401"), "{refused:?}");
    drop(vm);
    let gone = run("launch-top", &["--once"], server, "reader-token")?;
    ensure!(!gone.status.success() && !gone.stderr.is_empty(), "{gone:?}");
    Ok(())
}

/// `./isthmus top` in a terminal of 120 columns and 50 lines.
struct Screen {
    terminal: File,
    program: Child,
    printed: String,
}

impl Screen {
    fn start(server: SocketAddr) -> Result<Screen> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let path = ptsname(&master, Vec::new())?;
        let slave = File::options().read(true).write(true).open(path.to_str()?)?;
        tcsetwinsize(&slave, Winsize { ws_row: 50, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 })?;
        let mut command = Command::new(full::in_tests("launch-top")?);
        command.arg(server.to_string()).args(["--interval", "1"]);
        command.env("ISTHMUS_TOKEN", "reader-token").env("TERM", "xterm");
        command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
        let program = command.spawn().context("launch-top did not start")?;
        Ok(Screen { terminal: File::from(master), program, printed: String::new() })
    }

    /// Waits until the program prints a text. Returns what it has printed since the last call.
    fn wait_for(&mut self, wanted: &str) -> Result<String> {
        let end = Instant::now() + LIMIT;
        let mut bytes = [0; 65536];
        while !self.printed.contains(wanted) {
            let time = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
            let mut fds = [PollFd::new(&self.terminal, PollFlags::IN)];
            if poll(&mut fds, Some(&time))? > 0 {
                let length = (&self.terminal).read(&mut bytes).unwrap_or(0);
                ensure!(length > 0, "it ended before {wanted:?}: {}", self.printed);
                self.printed.push_str(&String::from_utf8_lossy(&bytes[..length]));
            }
            ensure!(Instant::now() < end, "no {wanted:?} in {LIMIT:?}: {}", self.printed);
        }
        Ok(std::mem::take(&mut self.printed))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Both fail if it has ended.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

#[test]
fn top_in_a_terminal_goes_on_when_the_machine_is_back() -> Result<()> {
    let port = free_port()?;
    let (vm, server) = appliance(port, spec()?)?;
    let mut screen = Screen::start(server)?;
    screen.wait_for("ram0")?;
    drop(vm);
    screen.wait_for("unreachable")?;
    let (mut vm, _) = appliance(port, spec()?)?;
    vm.run("set system.hostname returned")?.lacks("error")?;
    screen.wait_for("returned")?;
    screen.terminal.write_all(b"p")?;
    screen.wait_for("paused")?;
    screen.terminal.write_all(b"q")?;
    // It leaves the alternate screen.
    screen.wait_for("\x1b[?1049l")?;
    ensure!(screen.program.wait()?.success(), "it ends without an error");
    Ok(())
}
