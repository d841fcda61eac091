//! The checks for a peer that is not Open MPI: the requirements of the stock BTL on its peer, one by one. Each case has
//! its own stock process.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drivers::hal::Window;
use usnic_tests::faults::Rates;
use usnic_tests::host::Host;
use usnic_tests::session::Session;
use usnic_tests::{pattern, stock};

/// Payload of a packet with a whole message, and of a packet with a part, at an MTU of 1500.
const FRAGMENT: usize = 1440;
const CHUNK: usize = 1424;
const SIZES: [usize; 11] =
    [0, 1, 7, 8, 100, FRAGMENT, FRAGMENT + 1, 3 * CHUNK, 3 * CHUNK + 1, 65_536, 153_600];
/// Most unacknowledged packets of a sender.
const WINDOW: u64 = 4095;

fn pair() -> Result<(Host, Session)> {
    let mut host = Host::new(1500, 1)?;
    let session = Session::start(&mut host, &stock::Options::default())?;
    Ok((host, session))
}

/// Sends messages of all sizes, and waits until they are acknowledged.
fn send_all(session: &mut Session, host: &mut Host) -> Result<()> {
    for size in SIZES {
        session.send(host, size)?;
    }
    session.drain(host)
}

/// Address of the stock peer's memory for PUTs of the engine.
fn window(session: &mut Session, host: &mut Host, size: usize) -> Result<u64> {
    let line = session.order(host, &format!("window {size}"))?;
    let address = line.split(' ').nth(1).context("no address")?;
    let address = u64::from_str_radix(address.trim_start_matches("0x"), 16)?;
    host.engine.permit_put(session.endpoint, address, size as u64);
    Ok(address)
}

/// PUTs a pattern, and waits for its completion.
fn put(session: &mut Session, host: &mut Host, to: u64, size: usize, seed: u32) -> Result<()> {
    let bytes = host.window(&pattern::put(seed, size));
    let now = host.now();
    host.engine.put(session.endpoint, to, [bytes, Window::empty()], seed.into(), now)?;
    session.run(host, "completion of the PUT", |session, host| {
        host.engine.next_completion(session.endpoint).is_some_and(|end| end.acknowledged)
    })?;
    host.arena.free(bytes);
    Ok(())
}

/// Sorted numbers of the received messages.
fn numbers(session: &Session) -> Vec<u32> {
    let mut numbers: Vec<u32> = session.came.iter().map(|(number, _)| *number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn check_01_peer_acknowledges_our_messages() -> Result<()> {
    let (mut host, mut session) = pair()?;
    send_all(&mut session, &mut host)?;
    let counters = host.engine.counters(session.endpoint).context("the endpoint is gone")?;
    ensure!(counters.fragments_sent == SIZES.len() as u64, "{counters:?}");
    Ok(())
}

#[test]
fn check_02_peer_receives_our_messages_unchanged() -> Result<()> {
    let (mut host, mut session) = pair()?;
    send_all(&mut session, &mut host)?;
    let line = session.order(&mut host, &format!("recv {} 5", SIZES.len()))?;
    let bytes: usize = SIZES.iter().sum();
    let all = format!("received {} bad 0 bytes {bytes} ", SIZES.len());
    ensure!(line.starts_with(&all), "{line}");
    Ok(())
}

#[test]
fn check_03_messages_of_the_peer_arrive_unchanged() -> Result<()> {
    let (mut host, mut session) = pair()?;
    // The stock sender frees an empty message twice.
    for size in &SIZES[1..] {
        session.order(&mut host, &format!("send 1 {size}"))?;
    }
    session.run(&mut host, "all messages", |session, _| session.came.len() == SIZES.len() - 1)?;
    let mut lengths: Vec<usize> = session.came.iter().map(|(_, length)| *length).collect();
    lengths.sort_unstable();
    ensure!(session.bad == 0 && lengths == SIZES[1..], "{lengths:?}");
    Ok(())
}

#[test]
fn check_04_pings_of_the_peer_are_answered() -> Result<()> {
    let (mut host, mut session) = pair()?;
    session.send(&mut host, 8)?;
    session.run(&mut host, "PINGs of the peer", |_, host| {
        host.engine.interface_counters(0).is_some_and(|counters| counters.pings_answered >= 2)
    })
}

#[test]
fn check_05_peer_answers_our_pings() -> Result<()> {
    let (mut host, mut session) = pair()?;
    session.send(&mut host, 8)?;
    session.run(&mut host, "answers to both PINGs", |session, host| {
        host.engine.connectivity(session.endpoint) == Some((true, true))
    })
}

#[test]
fn check_06_peer_acknowledges_our_puts() -> Result<()> {
    let (mut host, mut session) = pair()?;
    let to = window(&mut session, &mut host, 400_000)?;
    put(&mut session, &mut host, to, 300_000, 9)?;
    put(&mut session, &mut host, to + 390_000, 10, 9)
}

#[test]
fn check_07_peer_memory_holds_our_puts() -> Result<()> {
    let (mut host, mut session) = pair()?;
    let to = window(&mut session, &mut host, 400_000)?;
    put(&mut session, &mut host, to, 300_000, 9)?;
    let line = session.order(&mut host, "look 0 300000 9")?;
    ensure!(line.contains("same"), "{line}");
    let line = session.order(&mut host, "look 0 300000 8")?;
    ensure!(line.contains("DIFFERENT"), "the comparison does not work: {line}");
    Ok(())
}

#[test]
fn check_08_our_memory_holds_puts_of_the_peer() -> Result<()> {
    const SIZE: usize = 250_000;
    let (mut host, mut session) = pair()?;
    let memory = host.window(&vec![0; SIZE]);
    host.engine.grant(session.endpoint, 0x10_0000, memory)?;
    session.order(&mut host, &format!("put {} {SIZE} 4", 0x10_0000))?;
    let mut bytes = vec![0; SIZE];
    memory.read(0, &mut bytes).expect("the lengths are equal");
    ensure!(bytes == pattern::put(4, SIZE), "the memory differs from the PUT");
    Ok(())
}

#[test]
fn check_09_two_thousand_echoes() -> Result<()> {
    let (mut host, mut session) = pair()?;
    session.order(&mut host, "echo 1")?;
    for _ in 0..2000 {
        session.send(&mut host, 64)?;
    }
    session.run(&mut host, "all echoes", |session, _| session.came.len() == 2000)?;
    ensure!(numbers(&session).into_iter().eq(0..2000) && session.bad == 0, "{}", session.bad);
    Ok(())
}

#[test]
fn check_10_sequence_numbers_of_both_wrap() -> Result<()> {
    let mut host = Host::new(1500, 65_500)?;
    let options = stock::Options { isn: Some(65_530), ..Default::default() };
    let mut session = Session::start(&mut host, &options)?;
    session.order(&mut host, "echo 1")?;
    for _ in 0..200 {
        session.send(&mut host, 32)?;
    }
    session.run(&mut host, "all echoes", |session, _| session.came.len() == 200)?;
    ensure!(numbers(&session).into_iter().eq(0..200) && session.bad == 0, "{}", session.bad);
    Ok(())
}

/// A session in which no packet of the engine reaches the stock peer, which sends 5,000 messages.
fn without_acks() -> Result<(Host, Session)> {
    let (mut host, mut session) = pair()?;
    let nothing = Rates { loss: 1000, ..Rates::default() };
    host.set_faults_of_each(nothing, Rates::default(), 1);
    session.order(&mut host, "post 5000 16")?;
    session
        .run(&mut host, "a window of messages", |session, _| session.came.len() as u64 >= WINDOW)?;
    Ok((host, session))
}

#[test]
fn check_11_peer_stops_at_its_window() -> Result<()> {
    let (mut host, mut session) = without_acks()?;
    // Meanwhile the peer only retransmits, some hundred times a second.
    let resent = |host: &Host, session: &Session| {
        host.engine.counters(session.endpoint).map_or(0, |all| all.num_oow_low_recvs)
    };
    let before = resent(&host, &session);
    let end = Instant::now() + Duration::from_secs(1);
    session.run(&mut host, "a second", |_, _| Instant::now() > end)?;
    ensure!(session.came.len() as u64 == WINDOW, "{} received", session.came.len());
    ensure!(resent(&host, &session) > before, "the peer retransmits nothing");
    Ok(())
}

#[test]
fn check_12_peer_continues_after_the_ack() -> Result<()> {
    let (mut host, mut session) = without_acks()?;
    host.set_faults(Rates::default(), 1);
    session.run(&mut host, "all messages", |session, _| session.came.len() == 5000)?;
    ensure!(numbers(&session).into_iter().eq(0..5000) && session.bad == 0, "{}", session.bad);
    Ok(())
}

#[test]
fn check_13_five_hundred_echoes_with_5_percent_loss_both_ways() -> Result<()> {
    let (mut host, mut session) = pair()?;
    session.order(&mut host, "echo 1")?;
    host.set_faults(Rates { loss: 50, ..Rates::default() }, 7);
    for n in 0..500usize {
        // Each message has room for its number.
        session.send(&mut host, 4 + n * 37 % 6000)?;
    }
    session.run(&mut host, "all echoes", |session, _| session.came.len() == 500)?;
    ensure!(numbers(&session).into_iter().eq(0..500) && session.bad == 0, "{}", session.bad);
    let counters = host.engine.counters(session.endpoint).context("the endpoint is gone")?;
    ensure!(counters.num_resends > 0, "{counters:?}");
    Ok(())
}
