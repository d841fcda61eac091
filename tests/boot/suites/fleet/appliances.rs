//! Appliances of a fleet, each on QEMU's user network behind a port of this host.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use boot_tests::{keeps_configuration, spec};
use launch::http::{get, request};
use launch::image::config_disk;
use launch::qemu::{Disk, Nic, Vm, free_port};

use super::super::lifecycle::USERS;
use super::super::provisioning::{fat, with_strings};
use super::until;

/// A user of [`USERS`] with the role `admin`.
pub const TOKEN: &str = "admin-token";

/// Where a new appliance has its first user from.
#[derive(Clone, Copy)]
pub enum Origin {
    Smbios,
    Seed,
    FwCfg,
}

pub struct Appliance {
    pub name: String,
    pub port: u16,
    pub vm: Vm,
    _files: Vec<tempfile::NamedTempFile>,
}

/// Output of a command over HTTP.
pub struct Said(String);

impl Said {
    pub fn has(&self, text: &str) -> Result<&Said> {
        ensure!(self.0.contains(text), "no {text:?} in {}", self.0);
        Ok(self)
    }

    pub fn lacks(&self, text: &str) -> Result<&Said> {
        ensure!(!self.0.contains(text), "{text:?} in {}", self.0);
        Ok(self)
    }
}

/// The OEM strings of [`USERS`]' administrator.
pub fn strings() -> Result<Vec<String>> {
    let hash = USERS.rsplit('"').nth(1).context("the hash of the last user")?;
    let key = |key: &str, value: &str| format!("isthmus.user.0.{key}={value}");
    Ok(vec![key("name", "ada"), key("role", "admin"), key("token_sha256", hash)])
}

/// QEMU's user network with HTTP at this port of the host.
pub fn nic(port: u16) -> Nic {
    Nic::User { forwards: vec![("tcp", port, 80)] }
}

impl Appliance {
    /// Starts an appliance of 128 MiB that has an empty config disk and, from this origin, a user.
    pub fn start(name: &str, origin: Origin) -> Result<Appliance> {
        let kept = tempfile::NamedTempFile::new()?;
        std::fs::write(kept.path(), config_disk(None)?)?;
        let spec = spec()?.disk(keeps_configuration(kept.path())).reboots();
        let mut files = vec![kept];
        let spec = match origin {
            Origin::FwCfg => spec.config(USERS),
            Origin::Smbios => {
                let strings = strings()?;
                with_strings(spec, &strings.iter().map(String::as_str).collect::<Vec<_>>())
            }
            Origin::Seed => {
                let meta = format!("instance-id: i-{name}\nlocal-hostname: {name}\n");
                let seed = fat("CIDATA", &[("user-data", USERS), ("meta-data", &meta)])?;
                let disk = Disk::new(seed.path()).serial("isthmus-seed").read_only();
                files.push(seed);
                spec.disk(disk)
            }
        };
        let port = free_port()?;
        Ok(Appliance::new(name, port, spec.nic(nic(port)).start()?, files))
    }

    /// A machine that was started with these files and [`nic`].
    pub fn new(name: &str, port: u16, vm: Vm, files: Vec<tempfile::NamedTempFile>) -> Appliance {
        Appliance { name: name.into(), port, vm, _files: files }
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// Whether it answers at its port.
    pub fn answers(&self) -> bool {
        get(self.address(), "/healthz").is_ok_and(|answer| answer.status == 200)
    }

    /// Waits until it has its address.
    pub fn wait_for_http(&mut self) -> Result<()> {
        let what = format!("{} answers", self.name);
        until(Duration::from_secs(120), &what, || Ok(self.answers()))
    }

    /// Executes a command over HTTP.
    pub fn run(&self, line: &str) -> Result<Said> {
        let (host, bearer) = (self.address().to_string(), format!("Bearer {TOKEN}"));
        let fields = [("Host", host.as_str()), ("Authorization", &bearer)];
        let body = serde_json::json!({"command": line}).to_string();
        let answer = request(self.address(), "POST", "/api/v1/commands", &fields, &body)?;
        ensure!(answer.status == 200, "{line}: {} {}", answer.head, answer.body);
        let value: serde_json::Value = serde_json::from_str(&answer.body)?;
        ensure!(value["error"].is_null(), "{line}: {value}");
        Ok(Said(value["output"].as_str().context("its output")?.into()))
    }
}
