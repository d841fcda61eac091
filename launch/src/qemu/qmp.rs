//! QEMU's machine protocol: one JSON object per line (QEMU: docs/interop/qmp-spec).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// A connection to the monitor of a running QEMU. Events that no caller waits for are discarded.
pub struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    pub(super) fn new(stream: UnixStream) -> Result<Qmp> {
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let mut qmp = Qmp { stream: BufReader::new(stream) };
        qmp.read()?; // the greeting
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Executes a command and returns its result.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value> {
        // In one write: QEMU ends at the last brace of "quit", and a separate write of the newline would fail.
        let request = format!("{}\n", json!({"execute": command, "arguments": arguments}));
        let sent = self.stream.get_mut().write_all(request.as_bytes());
        sent.context("QEMU's monitor is closed")?;
        loop {
            let mut answer = self.read()?;
            if let Some(error) = answer.get("error") {
                bail!("QEMU refused {command}: {}", error["desc"].as_str().unwrap_or("no reason"));
            }
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    /// Waits for an event.
    pub fn wait_event(&mut self, name: &str, limit: Duration) -> Result<Value> {
        let deadline = std::time::Instant::now() + limit;
        loop {
            let event = self.read().with_context(|| format!("waiting for {name}"))?;
            if event["event"] == name {
                return Ok(event);
            }
            if std::time::Instant::now() > deadline {
                bail!("QEMU did not report {name}");
            }
        }
    }

    fn read(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).context("QEMU's monitor does not answer")? == 0 {
            bail!("QEMU's monitor is closed");
        }
        serde_json::from_str(&line).with_context(|| format!("QEMU's monitor sent {line:?}"))
    }
}
