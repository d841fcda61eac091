//! The commands of docs/configuration.md, docs/console.md and docs/names.md, run as they are written: those after
//! `isthmus> ` on the image's console, those after `$ ` in a shell, and what the page shows of their output compared.
//!
//! In the shell, connections to 10.0.0.1 go to the image in QEMU, which has that address. What a page leaves to its
//! reader, such as the digits of a hash, is filled in.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use boot_tests::{boot, keeps_configuration, spec};
use launch::image::config_disk;
use launch::pages;
use launch::qemu::{Nic, Vm, free_port};

use super::lifecycle::USERS;

/// Marks the end of a command's output in the shell, before its exit status.
const MARK: &str = "--- done ";
/// The image's addresses: on QEMU's network, and of the manual.
const ADDRESSES: &str =
    "[[net]]\naddress = [\"10.0.2.15/24\", \"10.0.0.1/24\"]\ngateway = [\"10.0.2.2\"]\n";
/// Where a page shows output that differs each time.
const VARIES: char = '…';

/// A command of a page, and the output that the page shows.
struct Step {
    command: String,
    is_shell: bool,
    shown: Vec<String>,
}

/// The steps of the block in which a line begins with `start`.
fn steps(page: &str, start: &str) -> Result<Vec<Step>> {
    let text = std::fs::read_to_string(launch::workspace::root().join("docs").join(page))?;
    let blocks = pages::blocks(&text);
    let mut found =
        blocks.iter().filter(|block| block.lines.iter().any(|line| line.starts_with(start)));
    let (Some(block), None) = (found.next(), found.next()) else {
        bail!("docs/{page} has not one block with {start:?}");
    };
    let mut steps: Vec<Step> = Vec::new();
    for line in &block.lines {
        let step =
            |command: &str, is_shell| Step { command: command.into(), is_shell, shown: Vec::new() };
        if let Some(command) = line.strip_prefix("isthmus> ") {
            let command = command.split(" # ").next().unwrap_or(command);
            steps.push(step(command.trim_end(), false));
        } else if let Some(command) = line.strip_prefix("$ ") {
            steps.push(step(command, true));
        } else if let Some(last) = steps.last_mut() {
            last.shown.push(line.clone());
        } else {
            steps.push(step(line, false));
        }
    }
    Ok(steps)
}

/// Checks that the output has what the page shows.
fn compare(step: &Step, said: &str) -> Result<()> {
    for line in &step.shown {
        for part in line.split(VARIES).map(str::trim).filter(|part| !part.is_empty()) {
            ensure!(
                said.contains(part),
                "`{}`: the page shows {part:?}, but: {said}",
                step.command
            );
        }
    }
    Ok(())
}

/// A shell that runs the lines of a page one after the other.
struct Shell {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Shell {
    /// A shell in this directory, with the ports at which the image is reached over plain HTTP and over TLS.
    fn start(directory: &Path, plain: u16, tls: u16) -> Result<Shell> {
        let mut process = Command::new("bash")
            .current_dir(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("could not start bash")?;
        let output = BufReader::new(process.stdout.take().context("no output")?);
        let mut shell = Shell { process, output };
        let to = format!(
            "--connect-to 10.0.0.1:80:127.0.0.1:{plain} --connect-to 10.0.0.1:443:127.0.0.1:{tls}"
        );
        // `-N` follows without an end.
        shell.run(&format!(
            "curl() {{ case \" $* \" in *' -N '*) timeout 8 curl -sS {to} \"$@\" || true;; \
             *) command curl -sS --fail-with-body --max-time 20 {to} \"$@\";; esac; }}"
        ))?;
        shell.run(&format!(
            "openssl() {{ command openssl \"${{@/10.0.0.1:443/127.0.0.1:{tls}}}\"; }}"
        ))?;
        Ok(shell)
    }

    /// Runs a line. Returns its output, and whether it succeeded.
    fn try_run(&mut self, line: &str) -> Result<(String, bool)> {
        let input = self.process.stdin.as_mut().context("no input")?;
        writeln!(input, "{{ {line}\n}} 2>&1; echo; echo \"{MARK}$?\"")?;
        let mut said = String::new();
        loop {
            let mut next = String::new();
            ensure!(self.output.read_line(&mut next)? > 0, "the shell has ended: {said}");
            if let Some(status) = next.strip_prefix(MARK) {
                return Ok((said, status.trim() == "0"));
            }
            said += &next;
        }
    }

    fn run(&mut self, line: &str) -> Result<String> {
        let (said, is_done) = self.try_run(line)?;
        ensure!(is_done, "`{line}`: {said}");
        Ok(said)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The image, and a shell that reaches it.
struct Bench {
    vm: Vm,
    shell: Shell,
    _directory: tempfile::TempDir,
    _disk: tempfile::NamedTempFile,
}

impl Bench {
    /// The image with this configuration on its config disk.
    fn start(configuration: &str) -> Result<Bench> {
        let (directory, disk) = (tempfile::tempdir()?, tempfile::NamedTempFile::new()?);
        std::fs::write(disk.path(), config_disk(Some(&format!("{ADDRESSES}{configuration}")))?)?;
        let (plain, tls) = (free_port()?, free_port()?);
        let nic = Nic::User { forwards: vec![("tcp", plain, 80), ("tcp", tls, 443)] };
        let vm = boot(spec()?.nic(nic).disk(keeps_configuration(disk.path())))?;
        let shell = Shell::start(directory.path(), plain, tls)?;
        Ok(Bench { vm, shell, _directory: directory, _disk: disk })
    }

    /// Runs the steps of a block. `fill` changes a command by what the steps so far have printed.
    fn run(
        &mut self,
        page: &str,
        start: &str,
        fill: impl Fn(String, &str) -> String,
    ) -> Result<String> {
        let mut all = String::new();
        for step in steps(page, start)? {
            let command = fill(step.command.clone(), &all);
            let said = match step.is_shell {
                // A command whose failure the page shows.
                true if !step.shown.is_empty() => self.shell.try_run(&command)?.0,
                true => self.shell.run(&command)?,
                false => {
                    let said = self.vm.run(&command)?.text.replace("\r\n", "\n");
                    let is_shown = step.shown.iter().any(|line| line.starts_with("error: "));
                    ensure!(is_shown || !said.contains("error: "), "`{command}`: {said}");
                    said
                }
            };
            compare(&step, &said)?;
            all += &said;
        }
        Ok(all)
    }
}

/// A command as it is written.
fn as_is(command: String, _: &str) -> String {
    command
}

/// The first 64 hexadecimal digits in a text.
fn digits(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_hexdigit());
    words.into_iter().find(|word| word.len() == 64).unwrap_or_default().into()
}

#[test]
fn candidate_token_and_api_are_used_as_the_manual_says() -> Result<()> {
    let mut bench = Bench::start("")?;
    bench.run("configuration.md", "isthmus> configure set rule.0.name", as_is)?;
    let token = |command: String, said: &str| command.replace("DIGITS", &digits(said));
    bench.run("configuration.md", "$ TOKEN=", token)?;
    let said = bench.run("configuration.md", "$ A=", as_is)?;
    ensure!(said.contains("saved on") && said.contains("\"path\":\"system.hostname\""), "{said}");
    bench.vm.run("show exports")?.contains("safe")?.lacks("ram0 ")?;
    bench.run("console.md", "$ curl -N", |command, _| command).map(drop).or_else(|why| {
        // Of the messages, only the first line is always there.
        ensure!(why.to_string().contains("the page shows \"id: 812\""), "{why}");
        Ok(())
    })
}

#[test]
fn rule_is_made_on_the_console_as_the_manual_says() -> Result<()> {
    let mut bench = Bench::start("")?;
    bench.run("console.md", "isthmus> set rule.0.listen", as_is)?;
    bench.run("names.md", "isthmus> show time", as_is)?;
    // There is no such host, and no name server, on this network.
    bench.vm.run("ping 10.0.1.7 1 4124")?.lacks("usage")?;
    for step in steps("names.md", "resolve files.example.net")? {
        bench.vm.run(&step.command)?.lacks("usage")?.lacks("unknown command")?;
    }
    bench.run("names.md", "$ openssl req -x509", as_is)?;
    Ok(())
}

#[test]
fn config_disk_is_wiped_as_the_manual_says() -> Result<()> {
    let mut bench = Bench::start("")?;
    bench.run("configuration.md", "isthmus> wipe", as_is)?;
    Ok(())
}

#[test]
fn tls_and_certificates_of_clients_are_used_as_the_manual_says() -> Result<()> {
    let mut bench = Bench::start("[http]\ntls = true\n")?;
    let pin =
        bench.vm.run("show tls --json")?.json()?["pin"].as_str().context("a pin")?.to_string();
    let with_pin = |command: String, _: &str| command.replace("sha256//…", &pin);
    let said = bench.run("configuration.md", "isthmus> show tls", with_pin)?;
    ensure!(said.matches("isthmus_uptime_seconds ").count() == 2, "{said}");
    let mut user = |key: &str, value: &str| -> Result<()> {
        bench.vm.run(&format!("set user.0.{key} {value}"))?.lacks("error")?;
        Ok(())
    };
    user("name", "ci")?;
    user("role", "read")?;
    for step in steps("configuration.md", "$ openssl req -x509 -newkey")? {
        let said = bench.shell.run(&step.command)?;
        if let Some((_, fingerprint)) = said.split_once("Fingerprint=") {
            let set = format!("set user.0.certificate {}", fingerprint.trim());
            bench.vm.run(&set)?.lacks("error")?;
        }
        if step.command.starts_with("curl") {
            ensure!(said.contains("[[net]]"), "{said}");
        }
    }
    Ok(())
}

#[test]
fn mistakes_are_found_as_the_manual_shows() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let text = "[[net]]\nmtux = 1400\n\n[http]\nport = 99999\n";
    std::fs::write(directory.path().join("gateway.toml"), text)?;
    // In place of the script, which would build this program with another profile.
    let program = launch::full::in_tests("launch-full")?;
    std::os::unix::fs::symlink(program, directory.path().join("isthmus"))?;
    let mut shell = Shell::start(directory.path(), 1, 1)?;
    for step in steps("configuration.md", "$ ./isthmus check")? {
        let (said, is_good) = shell.try_run(&step.command)?;
        compare(&step, &said)?;
        ensure!(!is_good, "{said}");
    }
    Ok(())
}

#[test]
fn user_logs_in_at_the_console_as_the_manual_shows() -> Result<()> {
    let mut bench = Bench::start(&format!("{USERS}[console]\nlogin = true\n"))?;
    for step in steps("console.md", "login: ada")? {
        match step.command.split_once(": ").map_or(step.command.as_str(), |(prompt, _)| prompt) {
            "login" => {
                bench.vm.serial.send(b"ada\r")?;
                bench.vm.wait_for("token: ")?;
                bench.vm.serial.send(b"admin-token\r")?;
                bench.vm.wait_for(launch::qemu::PROMPT)?;
            }
            "save" => {
                bench.vm.run("save")?.contains("saved")?;
            }
            other => bail!("what is {other:?}?"),
        }
    }
    bench.vm.run("show audit")?.contains("console ada: login")?;
    Ok(())
}
