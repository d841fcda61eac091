//! An endpoint of the engine with its stock peer.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use usnic::{EndpointConfig, EndpointId, SendError, State};

use crate::host::Host;
use crate::stock::Stock;
use crate::{pattern, stock};

/// The engine's sender name: rank 0 of job 1.
pub const SENDER: u64 = 1 << 32;
/// The tag for which `btlpeer` has a handler.
pub const TAG: u8 = 0x41;
/// Time limit of each step.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// An endpoint of the engine, and its peer.
pub struct Session {
    /// The peer.
    pub stock: Stock,
    /// The engine's endpoint.
    pub endpoint: EndpointId,
    /// Number of sent messages.
    pub sent: u32,
    /// Numbers and lengths of received messages.
    pub came: Vec<(u32, usize)>,
    /// Number of wrong messages.
    pub bad: usize,
}

/// First word of the answer to a command.
fn answer(order: &str) -> &str {
    match order.split(' ').next().unwrap_or_default() {
        "post" => "posted",
        "send" => "sent",
        "recv" => "received",
        "run" => "ran",
        "sleep" => "slept",
        "drain" => "drained",
        word => word,
    }
}

impl Session {
    /// Starts a peer, and connects both.
    pub fn start(host: &mut Host, options: &stock::Options) -> Result<Session> {
        Self::start_with(host, options, |_| ())
    }

    /// As `start`, with a changed configuration of the endpoint.
    pub fn start_with(
        host: &mut Host,
        options: &stock::Options,
        configure: impl FnOnce(&mut EndpointConfig),
    ) -> Result<Session> {
        let stock = Stock::start(options)?;
        let mut config = EndpointConfig::new(0, SENDER, stock.sender, stock.modex);
        config.tag = Some(TAG);
        configure(&mut config);
        let now = host.now();
        let endpoint = host.engine.add_endpoint(&config, now)?;
        let mut session = Session { stock, endpoint, sent: 0, came: Vec::new(), bad: 0 };
        let ours = host.engine.modex(0).expect("the engine has an interface");
        session.order(host, &format!("peer {ours} 1 0"))?;
        Ok(session)
    }

    /// Sends a command, and runs the engine until the peer answers.
    pub fn order(&mut self, host: &mut Host, order: &str) -> Result<String> {
        self.stock.tell(order)?;
        self.answer(host, answer(order))
    }

    /// Runs the engine until the peer prints a line with this start.
    pub fn answer(&mut self, host: &mut Host, start: &str) -> Result<String> {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            if let Some(line) = self.stock.try_answer(start)? {
                return Ok(line);
            }
            ensure!(
                std::time::Instant::now() < end,
                "btlpeer has not printed {start:?}; engine: {:?} {:?} {:?}",
                host.engine.state(self.endpoint),
                host.engine.backlog(self.endpoint),
                host.engine.counters(self.endpoint)
            );
            host.turn_or_yield();
            self.collect(host)?;
        }
    }

    /// Takes received messages.
    pub fn collect(&mut self, host: &mut Host) -> Result<()> {
        while let Some(message) = host.engine.take_message(self.endpoint) {
            let mut bytes = vec![0; message.bytes.len()];
            message.bytes.read(0, &mut bytes).expect("the lengths are equal");
            host.engine.release(message);
            match pattern::check(&bytes) {
                Some(number) => self.came.push((number, bytes.len())),
                None => self.bad += 1,
            }
        }
        if let Some(State::Failed(why)) = host.engine.state(self.endpoint) {
            bail!("the endpoint has failed: {why}");
        }
        Ok(())
    }

    /// Takes turns until `done`.
    pub fn run(
        &mut self,
        host: &mut Host,
        what: &str,
        mut done: impl FnMut(&mut Self, &mut Host) -> bool,
    ) -> Result<()> {
        let end = std::time::Instant::now() + PATIENCE;
        while !done(self, host) {
            ensure!(
                std::time::Instant::now() < end,
                "timeout: {what}; received {}, bad {}, {:?}",
                self.came.len(),
                self.bad,
                host.engine.counters(self.endpoint)
            );
            host.turn_or_yield();
            self.collect(host)?;
        }
        Ok(())
    }

    /// Sends the next message of the pattern, of `length` bytes.
    pub fn send(&mut self, host: &mut Host, length: usize) -> Result<()> {
        self.send_bytes(host, &pattern::message(self.sent, length))?;
        self.sent += 1;
        Ok(())
    }

    fn send_bytes(&mut self, host: &mut Host, bytes: &[u8]) -> Result<()> {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            let now = host.now();
            match host.engine.send(self.endpoint, TAG, bytes, now) {
                Ok(()) => return Ok(()),
                Err(SendError::Full) => host.turn_or_yield(),
                Err(why) => bail!("not sent: {why}"),
            }
            self.collect(host)?;
            ensure!(std::time::Instant::now() < end, "the queue stays full");
        }
    }

    /// Takes turns until everything is acknowledged.
    pub fn drain(&mut self, host: &mut Host) -> Result<()> {
        self.run(host, "an acknowledgement of everything", |session, host| {
            host.engine.backlog(session.endpoint) == Some((0, 0))
        })
    }
}
