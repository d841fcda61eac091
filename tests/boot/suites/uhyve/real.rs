//! The real uhyve, with a TAP device in a network namespace. Needs root and KVM.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use boot_tests::{image, named_file, skip};
use launch::command;
use launch::qemu::{Accelerator, accelerator};
use launch::workspace;

use super::{APPLIANCE, PATIENCE, READY};

const VERSION: &str = "0.10.0";

/// The uhyve program, installed below `target/` if necessary.
fn program() -> Result<PathBuf> {
    let root = workspace::target().join("uhyve");
    let program = root.join("bin/uhyve");
    let version = || command::output(Command::new(&program).arg("--version"));
    if !version().is_ok_and(|version| version.contains(VERSION)) {
        let mut install = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        install.args(["install", "uhyve", "--locked", "--version"]).arg(format!("={VERSION}"));
        install.arg("--root").arg(&root);
        command::run(&mut install)?;
    }
    Ok(program)
}

/// A network namespace with a TAP device. Dropping it deletes both.
struct Namespace(String);

impl Namespace {
    fn new() -> Result<Namespace> {
        let namespace = Namespace(format!("isthmus-{}", std::process::id()));
        let name = &namespace.0;
        for words in [
            format!("netns add {name}"),
            format!("-n {name} link set lo up"),
            format!("-n {name} tuntap add tap0 mode tap"),
            // uhyve truncates longer frames.
            format!("-n {name} link set tap0 mtu 1486 up"),
            format!("-n {name} address add 10.9.0.2/24 dev tap0"),
        ] {
            command::run(Command::new("ip").args(words.split(' ')))?;
        }
        Ok(namespace)
    }

    fn command(&self, program: impl Into<std::ffi::OsString>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0]).arg(program.into());
        command
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A namespace that could not be deleted stays visible in `ip netns list`.
        let _ = Command::new("ip").args(["netns", "delete", &self.0]).status();
    }
}

/// A running uhyve, which is killed when this is dropped.
struct Running {
    process: Child,
    output: PathBuf,
}

impl Running {
    fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    fn wait_for(&mut self, text: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.output().contains(text) {
            if let Some(status) = self.process.try_wait()? {
                bail!("uhyve ended ({status}):\n{}", self.output());
            }
            ensure!(Instant::now() < deadline, "{text:?} was not printed, but:\n{}", self.output());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn real_uhyve_runs_the_image() -> Result<()> {
    if accelerator(&image()?) == Accelerator::Tcg {
        return skip("uhyve under KVM", "KVM does not work on this machine");
    }
    let uhyve = program()?;
    let namespace = Namespace::new()?;
    let directory = tempfile::Builder::new().prefix("isthmus-uhyve-").tempdir()?;
    let config = directory.path().join("gateway.toml");
    fs::write(
        &config,
        format!("[system]\nhostname = \"strait\"\n[[net]]\naddress = [\"{APPLIANCE}/24\"]\n"),
    )?;
    let output = directory.path().join("output");
    let file = File::create(&output)?;
    let mut command = namespace.command(&uhyve);
    command.args(["--no-aslr", "--memory-size", "128MiB", "--cpu-count", "2", "--net", "tap:tap0"]);
    command.arg("--file-mapping").arg(format!("{}:/isthmus.toml", config.display()));
    command.arg(named_file("ISTHMUS_UHYVE")?);
    command.args(["--", "isthmus.http.port=8080"]);
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    command::end_with_us(&mut command);
    let process = command.spawn().context("could not start uhyve")?;
    let mut running = Running { process, output };
    running.wait_for(READY)?;

    let mut ping = namespace.command("ping");
    command::run(ping.args(["-c", "3", "-W", "5", APPLIANCE]))?;
    // Packets of the largest size, which are not truncated.
    let mut ping = namespace.command("ping");
    command::run(ping.args(["-c", "3", "-W", "5", "-M", "do", "-s", "1458", APPLIANCE]))?;
    let http = |path: &str| {
        let mut curl = namespace.command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "10"]);
        command::output(curl.arg(format!("http://{APPLIANCE}:8080{path}")))
    };
    http("/healthz")?;
    let status = http("/status")?;
    for wanted in ["strait", "\"boot\":\"uhyve\"", "\"cpus\":2"] {
        ensure!(status.contains(wanted), "{wanted:?} is not in {status}");
    }
    let output = running.output();
    // Other warnings are allowed, for example on the host's Landlock support.
    for complaint in ["::hypercall", "::pci", "::virtio", "::kvm_cpu", "panicked"] {
        ensure!(!output.contains(complaint), "uhyve complains:\n{output}");
    }
    Ok(())
}
