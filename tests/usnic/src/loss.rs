//! How fast messages get to a stock receiver that loses some of what arrives: from the engine, and from a stock
//! sender in its place.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::host::Host;
use crate::session::Session;
use crate::stock::{self, Stock};

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// So many messages.
    pub count: u32,
    /// Bytes of each.
    pub length: usize,
    /// Each when the last was acknowledged; else all as fast as they are taken.
    pub each: bool,
}

/// Thousandths of the datagrams that get lost on the way to the receiver, and by which seed.
pub type Loss = (u32, u64);

/// How long anything of it may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// Messages a second from the engine.
pub fn ours(load: Load, loss: Loss) -> Result<f64> {
    let mut host = Host::new(1500, 1)?;
    let mut session = Session::start(&mut host, &stock::Options { loss, ..Default::default() })?;
    begin(&mut session, &mut host)?;
    let (rate, _) = run(&mut session, &mut host, load)?;
    Ok(rate)
}

/// A first message, so that PINGs are over and round trips are known, as with any peer that is not new.
pub fn begin(session: &mut Session, host: &mut Host) -> Result<()> {
    session.send(host, 8)?;
    session.drain(host)?;
    session.run(host, "answers to both PINGs", |session, host| {
        host.engine.connectivity(session.endpoint) == Some((true, true))
    })
}

/// Messages a second over a session, and what the engine counted then.
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
    let counters = *host.engine.counters(session.endpoint).context("there is an endpoint")?;
    Ok((f64::from(load.count) / seconds, counters))
}

/// Messages a second from a stock sender to the same receiver.
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
    // Both PINGs are answered.
    sender.tell("run 1")?;
    sender.wait("ran", PATIENCE, nap)?;
    let start = Instant::now();
    let Load { count, length, each } = load;
    sender.tell(&format!("{} {count} {length}", if each { "each" } else { "send" }))?;
    let line = sender.wait(if each { "each" } else { "sent" }, PATIENCE, nap)?;
    let elapsed = start.elapsed();
    // `... SECONDS s ...`
    let words: Vec<&str> = line.split(' ').collect();
    let at = words.iter().position(|&word| word == "s").context("a time in btlpeer's line")?;
    let seconds: f64 = words.get(at - 1).context("a time in btlpeer's line")?.parse()?;
    if seconds <= 0.0 || seconds > elapsed.as_secs_f64() {
        bail!("btlpeer's time cannot be: {line}");
    }
    receiver.tell(&format!("recv {} 20", count + 1))?;
    let line = receiver.wait("received", PATIENCE, nap)?;
    ensure!(line.starts_with(&format!("received {} bad 0", count + 1)), "{line}");
    Ok(f64::from(count) / seconds)
}

fn nap() {
    std::thread::sleep(Duration::from_millis(2));
}
