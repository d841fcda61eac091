//! A program as a peer.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use base64ct::{Base64, Encoding};

/// A running program. It is killed when dropped.
pub struct Peer {
    child: Child,
    output: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Peer {
    /// Starts a program. The error of a missing one names its package.
    pub fn start(program: &str, package: &str, arguments: &[&str]) -> Result<Peer> {
        let mut command = Command::new(program);
        command.args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn();
        let mut child =
            child.with_context(|| format!("could not run {program} of the package {package}"))?;
        let output = Arc::new(Mutex::new(Vec::new()));
        let mut readers = Vec::new();
        let streams: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|stream| Box::new(stream) as _),
            child.stderr.take().map(|stream| Box::new(stream) as _),
        ];
        for mut stream in streams.into_iter().flatten() {
            let output = output.clone();
            readers.push(std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut bytes) {
                    output.lock().expect("no reader has panicked").extend(&bytes[..count]);
                }
            }));
        }
        Ok(Peer { child, output, readers })
    }

    /// Types text.
    pub fn type_in(&mut self, text: &[u8]) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("its input is closed")?;
        stdin.write_all(text)?;
        stdin.flush().context("the peer does not read its input")
    }

    /// Its output so far.
    pub fn output(&self) -> Vec<u8> {
        self.output.lock().expect("no reader has panicked").clone()
    }

    /// Waits until it has printed this.
    pub fn wait_for(&self, text: &str) -> Result<()> {
        let limit = Instant::now() + Duration::from_secs(20);
        let contains =
            |output: &[u8]| output.windows(text.len()).any(|part| part == text.as_bytes());
        while !contains(&self.output()) {
            if Instant::now() > limit {
                bail!("no {text:?} in: {}", String::from_utf8_lossy(&self.output()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

/// An external PSK for `TLS_AES_256_GCM_SHA384` as OpenSSL's `-psk_session` reads it: `-psk` is SHA-256 only.
pub fn openssl_session(key: &[u8]) -> String {
    let element = |tag: u8, body: &[u8]| [&[tag, body.len() as u8][..], body].concat();
    let fields = [
        element(2, &[1]),
        element(2, &[3, 4]),
        element(4, &[0x13, 2]),
        element(4, &[]),
        element(4, key),
    ];
    let session = element(0x30, &fields.concat());
    let text = Base64::encode_string(&session);
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| str::from_utf8(line).expect("ASCII")).collect();
    let label = "SSL SESSION PARAMETERS";
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
