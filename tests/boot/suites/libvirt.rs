//! The libvirt recipe on a private libvirtd, in namespaces that hide the host's /etc/libvirt, /run and network. Needs
//! root.
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use boot_tests::image;
use launch::image::config_disk;
use launch::workspace;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// The document of docs/libvirt.md.
const DOCUMENT: &str =
    "[system]\nhostname = \"virtual\"\n\n[[volume]]\nname = \"data\"\ndisk = \"serial:data\"\n";

/// Directories of the host that are hidden, and the gateway's directory.
const HIDDEN: &str = "/etc/libvirt/qemu /var/lib/libvirt /var/cache/libvirt /var/log/libvirt /run/libvirt \
                      /var/lib/isthmus";

/// Namespaces with a private libvirt.
struct Host {
    unshare: Child,
    files: TempDir,
}

impl Host {
    /// Starts the namespaces, with the gateway's files in the recipe's directory.
    fn start() -> Result<Host> {
        ensure!(is_root(), "libvirt's daemons need root");
        let files = tempfile::tempdir()?;
        let path = |name: &str| files.path().join(name);
        fs::copy(image()?, path("isthmus.elf"))?;
        fs::write(path("config.toml"), DOCUMENT)?;
        fs::write(path("config-disk.raw"), config_disk(None)?)?;
        fs::File::create(path("data.raw"))?.set_len(64 << 20)?;
        fs::copy(workspace::root().join("launch/recipes/libvirt.xml"), path("isthmus.xml"))?;
        let script = format!(
            "set -e
             mount --make-rprivate /
             for place in {HIDDEN}; do mkdir -p $place; mount -t tmpfs tmpfs $place; done
             cp --sparse=always {}/* /var/lib/isthmus
             ip link set lo up
             virtlogd -d -p /run/libvirt/virtlogd.pid
             # This shell also reaps orphans, which libvirt leaves when it probes QEMU.
             while sleep 1; do :; done",
            files.path().display()
        );
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "-n", "-p", "-f", "--mount-proc", "--kill-child", "sh", "-c", &script]);
        let unshare = unshare.stdin(Stdio::null()).spawn().context("could not start unshare")?;
        let mut host = Host { unshare, files };
        host.until("test -e /run/libvirt/virtlogd-sock")?;
        host.libvirtd()?;
        Ok(host)
    }

    /// Starts libvirtd as after a boot of the host.
    fn libvirtd(&mut self) -> Result<()> {
        self.sh("rm -f /run/libvirt/qemu/autostarted; libvirtd -d -p /run/libvirt/own.pid")?;
        self.until("virsh -q list --all")
    }

    /// Waits for the first process in the namespaces, and returns its ID.
    fn inside(&self) -> Result<String> {
        let id = self.unshare.id();
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
            if let Some(child) = children.split_whitespace().next() {
                return Ok(child.into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("no process runs in the namespaces")
    }

    fn command(&self, script: &str) -> Result<Command> {
        let mut enter = Command::new("nsenter");
        enter.args(["-t", &self.inside()?, "-m", "-n", "-p", "sh", "-c", script]);
        Ok(enter)
    }

    /// Runs a shell command, which must succeed, and returns its output.
    fn sh(&self, script: &str) -> Result<String> {
        let output = self.command(script)?.stdin(Stdio::null()).output()?;
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        ensure!(output.status.success(), "`{script}`: {}\n{printed}", output.status);
        Ok(printed)
    }

    fn until(&self, script: &str) -> Result<()> {
        let deadline = Instant::now() + LIMIT;
        loop {
            match self.sh(script) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        }
    }

    /// Waits until the domain is in this state.
    fn wait_for_state(&self, state: &str) -> Result<()> {
        self.until(&format!("test \"$(virsh -q domstate isthmus)\" = '{state}'"))
    }

    /// The domain's console.
    fn console(&self) -> Result<Console> {
        let mut virsh = self.command("script -qec 'virsh -q console isthmus' /dev/null")?;
        let mut virsh = virsh.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut output = virsh.stdout.take().context("a pipe")?;
        let (sender, printed) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
                if sender.send(text).is_err() {
                    return;
                }
            }
        });
        Ok(Console { virsh, printed })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The kernel kills all processes of the namespaces with their first process.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        debug_assert!(Path::new(self.files.path()).exists());
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// `virsh console`.
struct Console {
    virsh: Child,
    printed: Receiver<String>,
}

impl Console {
    /// Enters a line repeatedly until the output contains this text, and returns the output.
    fn run(&mut self, line: &str, wanted: &str) -> Result<String> {
        let deadline = Instant::now() + LIMIT;
        let mut output = String::new();
        loop {
            write!(self.virsh.stdin.as_mut().context("a pipe")?, "{line}\r")?;
            let again = Instant::now() + Duration::from_secs(5);
            while let Some(left) = again.checked_duration_since(Instant::now()) {
                output.push_str(&self.printed.recv_timeout(left).unwrap_or_default());
                if output.contains(wanted) {
                    return Ok(output);
                }
            }
            ensure!(Instant::now() < deadline, "`{line}` did not print {wanted:?} but:\n{output}");
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.virsh.kill();
        let _ = self.virsh.wait();
    }
}

/// The domain is defined, started, used over its console and powered off, and starts with the host.
#[test]
fn the_recipe_is_defined_started_and_starts_with_the_host() -> Result<()> {
    let mut host = Host::start()?;
    host.sh("virsh define --validate /var/lib/isthmus/isthmus.xml && virsh start isthmus")?;
    let mut console = host.console()?;
    console.run("show version", "hostname        virtual")?;
    console.run("show disks", "serial:data")?;
    console.run("show volumes", "data")?;
    console.run("ping 10.0.2.2", "time=")?;
    console.run("set system.hostname saved", "isthmus> ")?;
    console.run("save", "saved")?;
    console.run("poweroff", "")?;
    drop(console);
    host.wait_for_state("shut off")?;

    // The document is emptied, so that the saved settings apply.
    host.sh("echo > /var/lib/isthmus/config.toml && virsh autostart isthmus")?;
    host.sh("cp /run/libvirt/own.pid /run/libvirt/last.pid && kill $(cat /run/libvirt/own.pid)")?;
    host.until("! kill -0 $(cat /run/libvirt/last.pid)")?;
    host.libvirtd()?;
    host.wait_for_state("running")?;
    host.console()?.run("show version", "hostname        saved")?;
    // Nothing has to be saved.
    host.sh("virsh destroy isthmus && virsh undefine isthmus")?;
    Ok(())
}
