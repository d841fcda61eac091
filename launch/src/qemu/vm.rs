//! A running machine.

use std::fs::File;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;
use tempfile::TempDir;

use super::serial::{self, Serial, plain_text};
use super::{Qmp, Spec};
use crate::command;

/// Time limit for anything that normally takes a guest moments. Generous, because CI machines are slow.
const PATIENCE: Duration = Duration::from_secs(90);

/// The prompt of the console. The first prompt shows that the appliance is up.
pub const PROMPT: &str = "isthmus> ";

/// A machine that QEMU runs. Dropping it kills QEMU.
pub struct Vm {
    process: Child,
    command_line: String,
    started: Instant,
    /// COM1.
    pub serial: Serial,
    /// COM2 and up, where the [`Spec`] asks for them.
    pub serials: Vec<Serial>,
    /// QEMU's monitor.
    pub qmp: Qmp,
    directory: TempDir,
}

impl Vm {
    pub(super) fn start(spec: &Spec) -> Result<Vm> {
        // In /tmp and not in target/: the path of a Unix socket has at most 107 bytes.
        let directory = tempfile::Builder::new().prefix("isthmus-").tempdir()?;
        let monitor = UnixListener::bind(directory.path().join("qmp"))?;
        let ports = (0..spec.serial_ports)
            .map(|port| Ok(UnixListener::bind(serial::socket_path(directory.path(), port))?))
            .collect::<Result<Vec<_>>>()?;

        let mut qemu = spec.command(directory.path())?;
        let command_line = command::shell_line(&qemu);
        let output = File::create(directory.path().join("output"))?;
        qemu.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        // A process group of its own: Ctrl-C in the terminal is for the launcher or the guest, not for QEMU.
        qemu.process_group(0);
        command::end_with_us(&mut qemu);
        let started = Instant::now();
        let process =
            qemu.spawn().context("could not start qemu-system-x86_64 (./isthmus setup)")?;
        let mut process = Unconnected(Some(process));

        let connected = connect(&monitor, &ports, process.child());
        let (qmp, mut serials) =
            connected.map_err(|error| process.did_not_start(&error, &command_line, &directory))?;
        let process = process.0.take().expect("taken once");
        let serial = serials.remove(0);
        Ok(Vm { process, command_line, started, serial, serials, qmp, directory })
    }

    /// The QEMU command as a shell line.
    pub fn command_line(&self) -> &str {
        &self.command_line
    }

    /// A directory for sockets and files of this machine; deleted with it.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Time since QEMU was started.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Waits for text on the console; returns what was printed up to its end, without control sequences.
    pub fn wait_for(&mut self, text: &str) -> Result<String> {
        self.wait_for_within(text, PATIENCE)
    }

    /// [`Vm::wait_for`] with a time limit.
    pub fn wait_for_within(&mut self, text: &str, limit: Duration) -> Result<String> {
        match self.serial.wait_for(text, limit) {
            Some(printed) => Ok(plain_text(&printed)),
            None => Err(self.error(&format!("{text:?} did not appear on the console"))),
        }
    }

    /// Waits until the appliance is up and shows its prompt. Returns what it printed.
    pub fn wait_ready(&mut self) -> Result<String> {
        let banner = self.wait_for(PROMPT)?;
        super::boots::note(self.age());
        Ok(banner)
    }

    /// Types `reboot` and waits until the appliance has restarted. Waits for ` ready` before the prompt, because log
    /// messages repaint the old prompt until the machine resets.
    pub fn reboot(&mut self) -> Result<()> {
        self.serial.send(b"reboot\r")?;
        self.wait_for(" ready")?;
        self.wait_for(PROMPT)?;
        Ok(())
    }

    /// Types a command at the appliance's prompt and returns what it prints before the next prompt.
    /// The console must echo the command verbatim; else use [`Vm::press`].
    pub fn run(&mut self, line: &str) -> Result<Reply> {
        self.serial.take(Duration::ZERO);
        self.serial.send(format!("{line}\r").as_bytes())?;
        // A private key is echoed as stars.
        if line.starts_with("set http.key ") {
            self.wait_for("set http.key ")?;
            return self.reply(line);
        }
        // Log messages repaint the prompt and what is typed: the output begins where the whole echo ends a line.
        loop {
            self.wait_for(line)?;
            if plain_text(&self.wait_for("\n")?).trim().is_empty() {
                return self.output(line);
            }
        }
    }

    /// Sends keys that end a line and returns the output from then to the next prompt.
    pub fn press(&mut self, keys: &str) -> Result<Reply> {
        self.serial.take(Duration::ZERO);
        self.serial.send(keys.as_bytes())?;
        self.reply(keys)
    }

    fn reply(&mut self, line: &str) -> Result<Reply> {
        self.wait_for("\n").with_context(|| format!("running {line:?}"))?;
        self.output(line)
    }

    /// Reads to the next prompt.
    fn output(&mut self, line: &str) -> Result<Reply> {
        let text = self.wait_for(PROMPT).with_context(|| format!("running {line:?}"))?;
        Ok(Reply { line: line.into(), text: text.trim_end_matches(PROMPT).to_string() })
    }

    /// Waits for QEMU to end by itself and returns its exit status: 0 after a power-off, `code * 2 + 1`
    /// after the guest wrote `code` to isa-debug-exit.
    pub fn wait_exit(&mut self) -> Result<i32> {
        if !self.ends_within(PATIENCE) {
            return Err(self.error("QEMU did not end"));
        }
        let status = self.process.wait()?;
        self.serial.drain();
        status.code().ok_or_else(|| self.error(&format!("QEMU ended: {status}")))
    }

    /// Whether QEMU ends by itself within `limit`.
    pub fn ends_within(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while self.is_running() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        !self.is_running()
    }

    /// Whether QEMU still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Removes a PCI device from a [`Machine::Pc`](super::Machine::Pc) by surprise: the guest is not asked.
    /// `location` is the device's location as the appliance prints it.
    ///
    /// The machine is stopped meanwhile, which completes the requests that QEMU has in flight: QEMU 7.2
    /// otherwise frees an NVMe drive that has requests in flight, and sometimes crashes. Requests that the
    /// drive has not fetched are lost with it.
    pub fn pull_out(&mut self, device: &str, location: &str) -> Result<()> {
        let slot = location.split(':').nth(3).and_then(|rest| rest.get(..2));
        let slot = slot.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let slot = slot.with_context(|| format!("{location:?} names no slot"))?;
        self.qmp.execute("stop", json!({}))?;
        self.qmp.execute("device_del", json!({"id": device}))?;
        // docs/specs/acpi_pci_hotplug.rst of QEMU: B0EJ at 0xae08, one bit for each slot.
        let eject = format!("o /w 0xae08 {}", 1u32 << slot);
        self.qmp.execute("human-monitor-command", json!({"command-line": eject}))?;
        self.qmp.execute("cont", json!({}))?;
        Ok(())
    }

    /// Pulls the power plug: SIGKILL.
    pub fn kill(&mut self) {
        // Both fail only when QEMU has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// An error with the command line, the console's output and QEMU's messages.
    pub fn error(&mut self, what: &str) -> anyhow::Error {
        let state = match self.process.try_wait() {
            Ok(Some(status)) => format!("QEMU ended ({status})"),
            _ => format!("QEMU has been running for {:.1} s", self.age().as_secs_f64()),
        };
        anyhow!(
            "{what}; {state}\n$ {}\n{}--- console:\n{}\n---",
            self.command_line,
            messages(self.directory.path()),
            self.serial.tail()
        )
    }
}

impl Drop for Vm {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The output of a console command.
#[derive(Clone, Debug)]
pub struct Reply {
    line: String,
    /// The text, without the echo, the prompt and control sequences.
    pub text: String,
}

impl Reply {
    /// Fails unless `wanted` is in the text.
    pub fn contains(&self, wanted: &str) -> Result<&Reply> {
        if !self.text.contains(wanted) {
            bail!("`{}` did not print {wanted:?} but:\n{}", self.line, self.text);
        }
        Ok(self)
    }

    /// Fails if `unwanted` is in the text.
    pub fn lacks(&self, unwanted: &str) -> Result<&Reply> {
        if self.text.contains(unwanted) {
            bail!("`{}` printed {unwanted:?}:\n{}", self.line, self.text);
        }
        Ok(self)
    }

    /// The text as JSON (for commands with `--json`).
    pub fn json(&self) -> Result<serde_json::Value> {
        let value = serde_json::from_str(self.text.trim());
        value.with_context(|| format!("`{}` did not print JSON but:\n{}", self.line, self.text))
    }
}

/// QEMU before the launcher is connected to it. Killed on drop.
struct Unconnected(Option<Child>);

impl Unconnected {
    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("taken when connected")
    }

    /// The error, with QEMU's own message, which is complete when QEMU has ended.
    fn did_not_start(
        &mut self,
        error: &anyhow::Error,
        command_line: &str,
        directory: &TempDir,
    ) -> anyhow::Error {
        let deadline = Instant::now() + Duration::from_secs(2);
        while matches!(self.child().try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        anyhow!("QEMU did not start: {error:#}\n$ {command_line}\n{}", messages(directory.path()))
    }
}

impl Drop for Unconnected {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Accepts QEMU's connections in the order in which QEMU makes them.
fn connect(
    monitor: &UnixListener,
    ports: &[UnixListener],
    qemu: &mut Child,
) -> Result<(Qmp, Vec<Serial>)> {
    let monitor = accept(monitor, qemu)?;
    let mut serials = Vec::new();
    for port in ports {
        serials.push(Serial::new(accept(port, qemu)?)?);
    }
    Ok((Qmp::new(monitor)?, serials))
}

fn accept(listener: &UnixListener, qemu: &mut Child) -> Result<UnixStream> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let wait = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        if poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&wait))? > 0 {
            return Ok(listener.accept()?.0);
        }
        if let Some(status) = qemu.try_wait()? {
            bail!("it ended ({status})");
        }
    }
    bail!("it does not connect to its sockets");
}

/// QEMU's own messages.
fn messages(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("output")).unwrap_or_default()
}
