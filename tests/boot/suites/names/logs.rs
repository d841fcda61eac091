//! The log over TCP and TLS to rsyslog, with outages, and to a server with another certificate.

use super::peers::Stock;
use super::{HOST, start, until};
use anyhow::{Context, Result, ensure};
use launch::qemu::{Vm, free_port};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// rsyslog with its files.
pub struct Rsyslog {
    directory: PathBuf,
    pub port: u16,
    /// Configuration of the input's driver.
    driver: String,
    pub server: Option<Stock>,
}

impl Rsyslog {
    pub fn new(directory: &Path, driver: String) -> Result<Rsyslog> {
        Ok(Rsyslog { directory: directory.into(), port: free_port()?, driver, server: None })
    }

    pub fn start(&mut self) -> Result<()> {
        let (log, conf) = (self.log(), self.directory.join("conf"));
        let text = format!(
            "{}\ninput(type=\"imtcp\" address=\"127.0.0.1\" port=\"{}\")\n\
             template(name=\"raw\" type=\"string\" string=\"%rawmsg%\\n\")\n\
             action(type=\"omfile\" file=\"{}\" template=\"raw\")\n",
            self.driver,
            self.port,
            log.display()
        );
        std::fs::write(&conf, text)?;
        let pid = self.directory.join("pid");
        let (conf, pid) = (conf.display().to_string(), pid.display().to_string());
        self.server = Some(Stock::start("rsyslogd", &["-n", "-f", &conf, "-i", &pid])?);
        let deadline = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            ensure!(Instant::now() < deadline, "rsyslogd does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub fn stop(&mut self) {
        self.server = None;
    }

    fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    /// Waits until a text has arrived. Returns all messages.
    pub fn wait_for(&self, text: &str) -> Result<String> {
        let deadline = Instant::now() + Duration::from_secs(40);
        loop {
            let all = std::fs::read_to_string(self.log()).unwrap_or_default();
            if all.contains(text) {
                return Ok(all);
            }
            ensure!(Instant::now() < deadline, "{text:?} has not reached rsyslog: {all}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

pub const PLAIN: &str = "module(load=\"imtcp\")";

/// Logs a message with this number: a refused command is in the audit log.
pub fn say(vm: &mut Vm, number: usize) -> Result<()> {
    vm.run(&format!("unset message.{number}"))?.contains("error")?;
    Ok(())
}

#[test]
fn messages_over_tcp_survive_an_outage_of_rsyslog() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut server = Rsyslog::new(directory.path(), PLAIN.into())?;
    server.start()?;
    let mut vm = start(&format!("isthmus.system.syslog=tcp://{HOST}:{}", server.port), &[])?;
    say(&mut vm, 1)?;
    let all = server.wait_for("unset message.1:")?;
    let first = all.lines().next().context("no line")?;
    ensure!(
        first.starts_with("<14>1 20") && first.contains("Z isthmus isthmus - appliance - "),
        "{all}"
    );
    server.stop();
    for number in 2..=60 {
        say(&mut vm, number)?;
    }
    server.start()?;
    let all = server.wait_for("unset message.60:")?;
    for number in 1..=60 {
        let text = format!("unset message.{number}:");
        ensure!(all.contains(&text), "{text} was lost: {all}");
    }
    vm.run("show log errors")?.contains("syslog: tcp://")?;
    server.wait_for("syslog: connected to tcp://")?;
    Ok(())
}

/// Makes a certificate with a key. Returns its fingerprint as OpenSSL prints it.
fn certificate(directory: &Path) -> Result<String> {
    let (key, cert) = (directory.join("key.pem"), directory.join("cert.pem"));
    let make = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "30", "-subj", "/CN=logs.test", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()?;
    ensure!(make.status.success(), "{}", String::from_utf8_lossy(&make.stderr));
    let show = ["x509", "-noout", "-fingerprint", "-sha256", "-in"];
    let shown = Command::new("openssl").args(show).arg(&cert).output()?;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    Ok(shown.split_once('=').context("no fingerprint")?.1.trim().to_string())
}

#[test]
fn messages_over_tls_reach_the_pinned_server_alone() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let fingerprint = certificate(directory.path())?;
    let path = |name: &str| directory.path().join(name).display().to_string();
    let driver = format!(
        "global(DefaultNetstreamDriver=\"ossl\" DefaultNetstreamDriverCAFile=\"{0}\" \
         DefaultNetstreamDriverCertFile=\"{0}\" DefaultNetstreamDriverKeyFile=\"{1}\")\n\
         module(load=\"imtcp\" StreamDriver.Name=\"ossl\" StreamDriver.Mode=\"1\" \
         StreamDriver.AuthMode=\"anon\")",
        path("cert.pem"),
        path("key.pem")
    );
    let mut server = Rsyslog::new(directory.path(), driver)?;
    server.start()?;
    let syslog = format!("tls://{HOST}:{}", server.port);
    let wrong = "ab".repeat(32);
    let words = format!("isthmus.system.syslog={syslog} isthmus.system.syslog_fingerprint={wrong}");
    let mut vm = start(&words, &[])?;
    until(&mut vm, "show log errors", |shown| {
        shown.to_string().contains("its certificate has another fingerprint")
    })?;
    ensure!(!server.log().exists(), "a message reached a server with another certificate");
    vm.run("unset system.syslog")?.lacks("error")?;
    vm.run(&format!("set system.syslog {syslog}"))?;
    vm.run(&format!("set system.syslog_fingerprint {fingerprint}"))?.lacks("error")?;
    vm.run(&format!("set system.syslog {syslog}"))?.lacks("error")?;
    say(&mut vm, 1)?;
    server.wait_for("unset message.1:")?;
    server.stop();
    say(&mut vm, 2)?;
    server.start()?;
    server.wait_for("unset message.2:")?;
    Ok(())
}
