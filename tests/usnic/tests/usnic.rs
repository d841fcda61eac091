//! The engine against the stock BTL.

use anyhow::{Result, ensure};
use usnic_tests::host::Host;
use usnic_tests::session::Session;
use usnic_tests::{pattern, stock};

/// Small and large datagrams get through, and both sides find out.
#[test]
fn pings_both_ways() -> Result<()> {
    for mtu in [1500, 9000] {
        let mut host = Host::new(mtu, 1)?;
        let mut session = Session::start(&mut host, &stock::Options { mtu, ..Default::default() })?;
        session.send(&mut host, 8)?;
        session.run(&mut host, "answers to both PINGs", |session, host| {
            host.engine.connectivity(session.endpoint) == Some((true, true))
        })?;
        // The stock BTL asks when it acknowledges; it would have ended after ten seconds.
        session.run(&mut host, "its PINGs", |_, host| {
            host.engine.interface_counters(0).is_some_and(|counters| counters.pings_answered >= 2)
        })?;
        session.order(&mut host, "recv 1 5")?;
    }
    Ok(())
}

/// Messages of all sizes, both ways, each byte checked at the other end.
#[test]
fn messages_both_ways() -> Result<()> {
    for mtu in [1500u16, 9000] {
        let mut host = Host::new(mtu, 65_500)?;
        let eager_limit = Some(16 << 20);
        let options = stock::Options { mtu, eager_limit, ..Default::default() };
        let mut session = Session::start(&mut host, &options)?;
        let fragment = usize::from(mtu) - 28 - 32;
        let chunk = fragment - 16;
        let sizes = [
            0, 1, 7, 8, 100, fragment, fragment + 1, 2 * chunk, 3 * chunk, 3 * chunk + 1, 65_536,
            153_600, 1 << 20, 16 << 20,
        ];
        for size in sizes {
            session.send(&mut host, size)?;
        }
        session.drain(&mut host)?;
        let line = session.order(&mut host, &format!("recv {} 20", sizes.len()))?;
        ensure!(line.starts_with(&format!("received {} bad 0", sizes.len())), "{line}");
        // The stock sender breaks on a message of no bytes.
        for size in &sizes[1..] {
            session.order(&mut host, &format!("send 1 {size}"))?;
        }
        session.run(&mut host, "all messages", |session, _| session.came.len() == sizes.len() - 1)?;
        session.came.sort_unstable();
        // The first have no room for their numbers.
        ensure!(session.bad == 0, "{} are bad", session.bad);
        println!("MTU {mtu}: {:?}", host.engine.counters(session.endpoint));
    }
    Ok(())
}

/// PUTs of more than a fragment, both ways.
#[test]
fn puts_both_ways() -> Result<()> {
    for mtu in [1500, 9000] {
        let mut host = Host::new(mtu, 7)?;
        let mut session = Session::start(&mut host, &stock::Options { mtu, ..Default::default() })?;
        for (seed, size) in [(1u32, 10usize), (2, 9000), (3, 400_000), (4, 16 << 20)] {
            let line = session.order(&mut host, &format!("window {size}"))?;
            let address = line.split(' ').nth(1).unwrap_or_default().trim_start_matches("0x");
            let address = u64::from_str_radix(address, 16)?;
            host.engine.permit_put(session.endpoint, address, size as u64);
            let bytes = host.window(&pattern::put(seed, size));
            let now = host.now();
            let windows = [bytes, drivers::hal::Window::empty()];
            host.engine.put(session.endpoint, address, windows, u64::from(seed), now)?;
            session.run(&mut host, "the end of the PUT", |session, host| {
                host.engine.next_completion(session.endpoint).is_some_and(|end| end.acknowledged)
            })?;
            let line = session.order(&mut host, &format!("look 0 {size} {seed}"))?;
            ensure!(line.contains("same"), "{line}");
            host.arena.free(bytes);
        }
        for (seed, size) in [(5u32, 9500usize), (6, 250_000), (7, 16 << 20)] {
            let base = 0x10_0000 + u64::from(seed) * 0x1000_0000;
            let memory = host.window(&vec![0; size]);
            host.engine.grant(session.endpoint, base, memory)?;
            session.order(&mut host, &format!("put {base} {size} {seed}"))?;
            let mut bytes = vec![0; size];
            memory.read(0, &mut bytes).expect("it is as long");
            ensure!(bytes == pattern::put(seed, size), "the PUT of {size} bytes differs");
            host.arena.free(memory);
        }
        let counters = host.engine.counters(session.endpoint);
        ensure!(counters.is_some_and(|counters| counters.puts_refused == 0), "{counters:?}");
    }
    Ok(())
}
