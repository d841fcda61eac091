//! `peer/peer.py` as a process: commands, answers and RapidIO messages over a Unix datagram socket.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A RapidIO message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Device id of the sender, by RapidIO.
    pub source: u16,
    /// Device id of the receiver.
    pub destination: u16,
    /// Mailbox.
    pub mailbox: u8,
    /// The message.
    pub bytes: Vec<u8>,
}

/// The peer.
pub struct Peer {
    process: Child,
    socket: UnixDatagram,
    incoming: Receiver<Vec<u8>>,
    there: PathBuf,
    _directory: TempDir,
    /// Messages sent by the peer.
    pub sent: Vec<Frame>,
}

/// Directory of the peer's files.
pub fn directory() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/peer"))
}

impl Peer {
    /// Starts a peer.
    pub fn start() -> Result<Peer> {
        let own = TempDir::new()?;
        let (here, there) = (own.path().join("test"), own.path().join("peer"));
        let socket = UnixDatagram::bind(&here)?;
        let reader = socket.try_clone()?;
        let (to, incoming) = channel();
        // The thread reads continuously, so that the two processes never block each other.
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 17];
            while let Ok(length) = reader.recv(&mut buffer) {
                if to.send(buffer[..length].to_vec()).is_err() || length == 0 {
                    return;
                }
            }
        });
        let process = Command::new("python3")
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .arg(directory().join("peer.py"))
            .args([&there, &here])
            .spawn()
            .context("python3 could not be started")?;
        let mut peer = Peer { process, socket, incoming, there, _directory: own, sent: Vec::new() };
        ensure!(peer.answer()? == ["ready"], "the peer is not ready");
        Ok(peer)
    }

    /// Sends a command. Returns the peer's log since the last command.
    pub fn order(&mut self, order: &str) -> Result<Vec<String>> {
        self.send(&[b"O", order.as_bytes()].concat())?;
        self.answer().with_context(|| format!("the peer's answer to {order}"))
    }

    /// Delivers a RapidIO message to the peer. The next answer contains its effects.
    pub fn receive(&mut self, frame: &Frame) -> Result<()> {
        let Frame { source, destination, mailbox, bytes } = frame;
        let head = [&b"M"[..], &source.to_be_bytes(), &destination.to_be_bytes(), &[*mailbox]];
        self.send(&[&head.concat()[..], bytes].concat())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.socket.send_to(bytes, &self.there).context("the peer has ended")?;
        Ok(())
    }

    fn answer(&mut self) -> Result<Vec<String>> {
        loop {
            let datagram = match self.incoming.recv_timeout(PATIENCE) {
                Ok(datagram) => datagram,
                Err(_) => bail!("the peer does not answer: {:?}", self.process.try_wait()),
            };
            match datagram.split_first() {
                Some((b'M', rest)) if rest.len() >= 5 => self.sent.push(Frame {
                    source: u16::from_be_bytes([rest[0], rest[1]]),
                    destination: u16::from_be_bytes([rest[2], rest[3]]),
                    mailbox: rest[4],
                    bytes: rest[5..].to_vec(),
                }),
                Some((b'A', text)) => {
                    let text = String::from_utf8(text.to_vec())?;
                    return Ok(text.lines().map(String::from).collect());
                }
                _ => bail!("the peer sent {datagram:?}"),
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both fail only if the process has ended already. An empty datagram ends the reader.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let end = self.socket.local_addr();
        if let Some(path) = end.as_ref().ok().and_then(|end| end.as_pathname()) {
            let _ = self.socket.send_to(&[], path);
        }
    }
}
