//! `./isthmus run` as an operator starts it: 128 MiB, disks of its own, and only an address configured.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use interop_tests::{address, boot_client, map, system, unmap};
use launch::guest::Guest;
use launch::qemu::Nic;
use usnic_tests::namespace;

const OPERATOR: &str = "isthmus0";
const TAPS: [&str; 3] = [OPERATOR, "host2", "host3"];
const PATIENCE: Duration = Duration::from_secs(60);

/// A running command, with its input and output. Dropping it ends the command.
pub(super) struct Run {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    printed: Vec<String>,
    _target: tempfile::TempDir,
}

impl Run {
    /// Starts the command with these arguments, and a `target` directory of its own, so that it finds no disks of other
    /// runs.
    pub(super) fn start(words: &[&str]) -> Result<Run> {
        let image = std::env::var_os("ISTHMUS_IMAGE");
        let image = image.context("ISTHMUS_IMAGE is not set: run ./isthmus test storage")?;
        let target = tempfile::tempdir()?;
        let mut command = Command::new(launch::full::in_tests("launch-full")?);
        command.args(["run", "--tcg", "--image"]).arg(image).args(words);
        command.env("CARGO_TARGET_DIR", target.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("./isthmus run does not start")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (sender, lines) = channel();
        let output = BufReader::new(output.context("no standard output")?);
        thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Run { child, input, lines, printed: Vec::new(), _target: target })
    }

    /// Waits for a line that contains `what`.
    pub(super) fn wait_for_line(&mut self, what: &str) -> Result<String> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.printed.push(line.clone());
                    if line.contains(what) {
                        return Ok(line);
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    bail!("no {what:?}, but:\n{}", self.printed.join("\n"))
                }
            }
        }
    }

    /// Enters a console command, and waits for a line that contains `answer`.
    fn console(&mut self, line: &str, answer: &str) -> Result<String> {
        let input = self.input.as_mut().context("the command has ended")?;
        writeln!(input, "{line}").context("the command reads no more lines")?;
        self.wait_for_line(&format!("isthmus> {line}"))?;
        self.wait_for_line(answer)
    }

    /// Powers the appliance off, and checks that the command succeeds.
    pub(super) fn end(mut self) -> Result<()> {
        let mut input = self.input.take().context("the command has ended")?;
        writeln!(input, "poweroff")?;
        drop(input);
        let end = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            ensure!(Instant::now() < end, "the command does not end");
            thread::sleep(Duration::from_millis(50));
        }
        let status = self.child.wait()?;
        ensure!(status.success(), "{status}:\n{}", self.printed.join("\n"));
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // The command ends with its input, and ends its machine.
        self.input = None;
        let end = Instant::now() + Duration::from_secs(10);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            thread::sleep(Duration::from_millis(50));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Boots a stock Linux host at a tap device: 10.0.0.N.
fn host(number: u8) -> Result<Guest> {
    let name = TAPS[usize::from(number) - 1];
    let spec = system()?.spec(name, &[&address(0, number)], 1500);
    boot_client(spec.nic(Nic::Tap { name: name.into() }).first_mac(0x20 + number))
}

fn path(number: u8) -> String {
    format!("ip:10.0.0.{number}@ip:10.0.0.1")
}

/// Two hosts map all volumes at the same time: the default volume in memory, and one of the disk. Each writes to one of
/// them, and reads the other host's data from the other.
#[test]
fn run_serves_two_clients_out_of_the_box() -> Result<()> {
    namespace::bridged(&TAPS, || {
        let mut run =
            Run::start(&["--tap", OPERATOR, "--append", "isthmus.net.0.address=10.0.0.1/24"])?;
        run.wait_for_line("10.0.0.1/24")?;
        let (mut first, mut second) = (host(2)?, host(3)?);
        run.console("volume create data size=16MiB disk=0", "volume data")?;
        for (number, guest) in [(2, &mut first), (3, &mut second)] {
            guest.sh("modprobe rnbd-client")?;
            // Writable for one of the two: the first has ram0, the second data.
            for (volume, writer) in [("ram0", 2), ("data", 3)] {
                let mode = if number == writer { "access_mode=rw" } else { "access_mode=ro" };
                map(guest, &format!("host{number}"), &path(number), volume, mode)
                    .with_context(|| format!("host {number} maps {volume}"))?;
            }
        }
        run.console("session list", "host3")?;
        // Both hosts write at once.
        let write = |device| {
            format!(
                "set -e
                 dd if=/dev/urandom of=/tmp/data bs=1M count=16 2>/dev/null
                 (dd if=/tmp/data of={device} bs=64k oflag=direct conv=fsync 2>/tmp/why
                 echo $? >/tmp/status) </dev/null >/dev/null 2>&1 &"
            )
        };
        first.sh(&write("/dev/rnbd0"))?;
        second.sh(&write("/dev/rnbd1"))?;
        let sum = |guest: &mut Guest, what: &str| guest.sh(&format!("{what} | sha256sum"));
        let read = |device| format!("dd if={device} bs=64k count=256 iflag=direct 2>/dev/null");
        for guest in [&mut first, &mut second] {
            guest.wait_until("[ \"$(cat /tmp/status)\" = 0 ]", PATIENCE)?;
        }
        let written = [sum(&mut first, "cat /tmp/data")?, sum(&mut second, "cat /tmp/data")?];
        ensure!(sum(&mut second, &read("/dev/rnbd0"))? == written[0], "ram0 has other bytes");
        ensure!(sum(&mut first, &read("/dev/rnbd1"))? == written[1], "data has other bytes");
        for guest in [&mut first, &mut second] {
            unmap(guest, 0)?;
            unmap(guest, 1)?;
        }
        run.end()
    })
}
