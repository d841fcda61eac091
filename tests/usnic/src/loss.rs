//! Rate of messages to a stock receiver with packet loss: from the engine, and from a stock sender.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::host::Host;
use crate::session::Session;
use crate::stock::{self, Stock};

/// The sent messages.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Number of messages.
    pub count: u32,
    /// Bytes of each.
    pub length: usize,
    /// Sends each message after the last one is acknowledged; otherwise all as fast as possible.
    pub each: bool,
}

/// Thousandths of the datagrams to the receiver that are lost, and the seed.
pub type Loss = (u32, u64);

/// Time limit of each step.
const PATIENCE: Duration = Duration::from_secs(90);

/// Messages per second from the engine.
pub fn ours(load: Load, loss: Loss) -> Result<f64> {
    let mut host = Host::new(1500, 1)?;
    let mut session = Session::start(&mut host, &stock::Options { loss, ..Default::default() })?;
    begin(&mut session, &mut host)?;
    let (rate, _) = run(&mut session, &mut host, load)?;
    Ok(rate)
}

/// Sends a first message, after which PINGs are answered and round trips are measured, as with an established peer.
pub fn begin(session: &mut Session, host: &mut Host) -> Result<()> {
    session.send(host, 8)?;
    session.drain(host)?;
    session.run(host, "answers to both PINGs", |session, host| {
        host.engine.connectivity(session.endpoint) == Some((true, true))
    })
}

/// Messages per second over a session, and the engine's counters at the end.
pub fn run(session: &mut Session, host: &mut Host, load: Load) -> Result<(f64, usnic::Counters)> {
    let before = session.sent;
    let start = Instant::now();
    for _ in 0..load.count {
        session.send(host, load.length)?;
        if load.each {
            session.drain(host)?;
        }
    }
    session.drain(host)?;
    let seconds = start.elapsed().as_secs_f64();
    let line = session.order(host, &format!("recv {} 20", before + load.count))?;
    ensure!(line.starts_with(&format!("received {} bad 0", before + load.count)), "{line}");
    let counters = *host.engine.counters(session.endpoint).context("the endpoint is gone")?;
    Ok((f64::from(load.count) / seconds, counters))
}

/// Messages per second from a stock sender to the same receiver.
pub fn stock(load: Load, loss: Loss) -> Result<f64> {
    let mut receiver = Stock::start(&stock::Options { rank: 1, loss, ..Default::default() })?;
    let mut sender = Stock::start(&stock::Options { rank: 2, ..Default::default() })?;
    receiver.tell(&format!("peer {} 1 2", sender.modex))?;
    sender.tell(&format!("peer {} 1 1", receiver.modex))?;
    for peer in [&mut receiver, &mut sender] {
        peer.wait("peer ok", PATIENCE, nap)?;
    }
    sender.tell("each 1 8")?;
    sender.wait("each", PATIENCE, nap)?;
    // Time for the answers to both PINGs.
    sender.tell("run 1")?;
    sender.wait("ran", PATIENCE, nap)?;
    let start = Instant::now();
    let Load { count, length, each } = load;
    sender.tell(&format!("{} {count} {length}", if each { "each" } else { "send" }))?;
    let line = sender.wait(if each { "each" } else { "sent" }, PATIENCE, nap)?;
    let elapsed = start.elapsed();
    // `... SECONDS s ...`
    let words: Vec<&str> = line.split(' ').collect();
    let at = words.iter().position(|&word| word == "s").context("btlpeer's line has no time")?;
    let seconds: f64 = words.get(at - 1).context("btlpeer's line has no time")?.parse()?;
    if seconds <= 0.0 || seconds > elapsed.as_secs_f64() {
        bail!("btlpeer's time is impossible: {line}");
    }
    receiver.tell(&format!("recv {} 20", count + 1))?;
    let line = receiver.wait("received", PATIENCE, nap)?;
    ensure!(line.starts_with(&format!("received {} bad 0", count + 1)), "{line}");
    Ok(f64::from(count) / seconds)
}

fn nap() {
    std::thread::sleep(Duration::from_millis(2));
}
