//! Stock NBD servers as processes.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// A server. It ends with this value.
pub struct Server {
    child: Child,
    /// Its port of the loopback interface.
    pub port: u16,
}

impl Server {
    /// Starts a program of a package, and waits until its port is open.
    fn start(program: &str, package: &str, port: u16, arguments: &[&str]) -> Result<Server> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn();
        let child =
            child.with_context(|| format!("could not run {program} of the package {package}"))?;
        let mut server = Server { child, port };
        let limit = Instant::now() + Duration::from_secs(20);
        while !listens(port) {
            let over = server.child.try_wait()?;
            ensure!(over.is_none(), "{program} {arguments:?} has ended: {over:?}");
            ensure!(Instant::now() < limit, "{program} does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Ends it as a power cut does.
    pub fn kill(mut self) -> Result<u16> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(self.port)
    }

    /// Stops or continues it.
    pub fn signal(&self, signal: &str) -> Result<()> {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status()?;
        ensure!(status.success(), "kill {signal} failed");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a port of the loopback interface is listened on. A connection would count as a client.
fn listens(port: u16) -> bool {
    let tables = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let wanted = format!("0100007F:{port:04X} 00000000:0000 0A");
    match tables.is_empty() {
        true => TcpStream::connect(("127.0.0.1", port)).is_ok(),
        false => tables.contains(&wanted),
    }
}

/// qemu-nbd with a raw file as the export `disk`.
pub fn qemu_nbd(file: &Path, port: u16, more: &[&str]) -> Result<Server> {
    let (file, number) = (file.display().to_string(), port.to_string());
    let mut arguments = vec!["--persistent", "--format=raw", "--export-name=disk"];
    arguments.extend(["--bind=127.0.0.1", "--port", &number, "--shared=8", "--discard=unmap"]);
    arguments.extend(more);
    arguments.push(&file);
    Server::start("qemu-nbd", "qemu-utils", port, &arguments)
}

/// nbdkit with these arguments: filters, a plugin, and their parameters.
pub fn nbdkit(port: u16, arguments: &[&str]) -> Result<Server> {
    let number = format!("--port={port}");
    let mut all = vec!["--foreground", "--ipaddr=127.0.0.1", &number];
    all.extend(arguments);
    Server::start("nbdkit", "nbdkit", port, &all)
}

/// nbd-server with a file as the export `disk`. Its configuration is written to a directory.
pub fn nbd_server(directory: &Path, file: &Path, port: u16) -> Result<Server> {
    let text = format!(
        "[generic]\nport = {port}\nlistenaddr = 127.0.0.1\n[disk]\nexportname = {}\nflush = true\nfua = true\ntrim = true\n",
        file.display()
    );
    let config = directory.join("nbd-server.conf");
    std::fs::write(&config, text)?;
    let config = config.display().to_string();
    Server::start("nbd-server", "nbd-server", port, &["-d", "-C", &config, "-p", ""])
}
