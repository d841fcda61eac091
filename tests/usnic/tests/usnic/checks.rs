//! The checks that a peer which is not Open MPI has to pass: what the stock BTL needs of anybody at the other end, one
//! by one. Each case has a stock process of its own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use drivers::hal::Window;
use usnic_tests::faults::Rates;
use usnic_tests::host::Host;
use usnic_tests::session::Session;
use usnic_tests::{pattern, stock};

/// Payload of a packet with a whole message, and of one with a part, at an MTU of 1500.
const FRAGMENT: usize = 1440;
const CHUNK: usize = 1424;
const SIZES: [usize; 11] =
    [0, 1, 7, 8, 100, FRAGMENT, FRAGMENT + 1, 3 * CHUNK, 3 * CHUNK + 1, 65_536, 153_600];
/// Packets that a sender may have on the way without an ACK.
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

/// The address of the stock peer's memory for our PUTs.
fn window(session: &mut Session, host: &mut Host, size: usize) -> Result<u64> {
    let line = session.order(host, &format!("window {size}"))?;
    let address = line.split(' ').nth(1).context("no address")?;
    let address = u64::from_str_radix(address.trim_start_matches("0x"), 16)?;
    host.engine.permit_put(session.endpoint, address, size as u64);
    Ok(address)
}

/// PUTs a pattern, and waits for its end.
fn put(session: &mut Session, host: &mut Host, to: u64, size: usize, seed: u32) -> Result<()> {
    let bytes = host.window(&pattern::put(seed, size));
    let now = host.now();
    host.engine.put(session.endpoint, to, [bytes, Window::empty()], seed.into(), now)?;
    session.run(host, "the end of the PUT", |session, host| {
        host.engine.next_completion(session.endpoint).is_some_and(|end| end.acknowledged)
    })?;
    host.arena.free(bytes);
    Ok(())
}

/// The numbers of the messages that came, in their order.
fn numbers(session: &Session) -> Vec<u32> {
    let mut numbers: Vec<u32> = session.came.iter().map(|(number, _)| *number).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn check_01_it_acknowledges_our_messages() -> Result<()> {
    let (mut host, mut session) = pair()?;
    send_all(&mut session, &mut host)?;
    let counters = host.engine.counters(session.endpoint).context("there is an endpoint")?;
    ensure!(counters.fragments_sent == SIZES.len() as u64, "{counters:?}");
    Ok(())
}

#[test]
fn check_02_it_takes_our_messages_as_they_were() -> Result<()> {
    let (mut host, mut session) = pair()?;
    send_all(&mut session, &mut host)?;
    let line = session.order(&mut host, &format!("recv {} 5", SIZES.len()))?;
    let bytes: usize = SIZES.iter().sum();
    let all = format!("received {} bad 0 bytes {bytes} ", SIZES.len());
    ensure!(line.starts_with(&all), "{line}");
    Ok(())
}

#[test]
fn check_03_we_take_its_messages_as_they_were() -> Result<()> {
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
fn check_04_it_asks_us_by_pings() -> Result<()> {
    let (mut host, mut session) = pair()?;
    session.send(&mut host, 8)?;
    session.run(&mut host, "its PINGs", |_, host| {
        host.engine.interface_counters(0).is_some_and(|counters| counters.pings_answered >= 2)
    })
}

#[test]
fn check_05_it_answers_our_pings() -> Result<()> {
    let (mut host, mut session) = pair()?;
    session.send(&mut host, 8)?;
    session.run(&mut host, "answers to both PINGs", |session, host| {
        host.engine.connectivity(session.endpoint) == Some((true, true))
    })
}

#[test]
fn check_06_it_acknowledges_our_puts() -> Result<()> {
    let (mut host, mut session) = pair()?;
    let to = window(&mut session, &mut host, 400_000)?;
    put(&mut session, &mut host, to, 300_000, 9)?;
    put(&mut session, &mut host, to + 390_000, 10, 9)
}

#[test]
fn check_07_its_memory_holds_what_we_put() -> Result<()> {
    let (mut host, mut session) = pair()?;
    let to = window(&mut session, &mut host, 400_000)?;
    put(&mut session, &mut host, to, 300_000, 9)?;
    let line = session.order(&mut host, "look 0 300000 9")?;
    ensure!(line.contains("same"), "{line}");
    let line = session.order(&mut host, "look 0 300000 8")?;
    ensure!(line.contains("DIFFERENT"), "it compares nothing: {line}");
    Ok(())
}

#[test]
fn check_08_our_memory_holds_what_it_put() -> Result<()> {
    const SIZE: usize = 250_000;
    let (mut host, mut session) = pair()?;
    let memory = host.window(&vec![0; SIZE]);
    host.engine.grant(session.endpoint, 0x10_0000, memory)?;
    session.order(&mut host, &format!("put {} {SIZE} 4", 0x10_0000))?;
    let mut bytes = vec![0; SIZE];
    memory.read(0, &mut bytes).expect("it is as long");
    ensure!(bytes == pattern::put(4, SIZE), "it holds something else");
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
fn check_10_the_numbers_of_both_wrap() -> Result<()> {
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

/// Nothing of ours gets to the stock peer, which has 5,000 messages to send.
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
fn check_11_it_stops_at_its_window() -> Result<()> {
    let (mut host, mut session) = without_acks()?;
    // It sends them again meanwhile, some hundred times a second, and nothing new.
    let again = |host: &Host, session: &Session| {
        host.engine.counters(session.endpoint).map_or(0, |all| all.num_oow_low_recvs)
    };
    let before = again(&host, &session);
    let end = Instant::now() + Duration::from_secs(1);
    session.run(&mut host, "a second", |_, _| Instant::now() > end)?;
    ensure!(session.came.len() as u64 == WINDOW, "{} came", session.came.len());
    ensure!(again(&host, &session) > before, "it sends nothing again");
    Ok(())
}

#[test]
fn check_12_and_goes_on_after_the_ack() -> Result<()> {
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
        // Each has room for its number.
        session.send(&mut host, 4 + n * 37 % 6000)?;
    }
    session.run(&mut host, "all echoes", |session, _| session.came.len() == 500)?;
    ensure!(numbers(&session).into_iter().eq(0..500) && session.bad == 0, "{}", session.bad);
    let counters = host.engine.counters(session.endpoint).context("there is an endpoint")?;
    ensure!(counters.num_resends > 0, "{counters:?}");
    Ok(())
}
