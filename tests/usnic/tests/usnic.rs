//! The engine against the stock BTL.

#[path = "usnic/checks.rs"]
mod checks;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use usnic::ob1::{self, Rank};
use usnic::wire::header::{Header, Kind, Layout, MAX_HEADER};
use usnic::wire::ping::{Ping, Version};
use usnic::{EndpointConfig, Failure, State, Stripe};
use usnic_tests::faults::Rates;
use usnic_tests::host::Host;
use usnic_tests::mpi::Job;
use usnic_tests::session::Session;
use usnic_tests::{pattern, pcap, stock};

/// Small and large datagrams get through, and both sides detect it.
#[test]
fn pings_are_answered_both_ways() -> Result<()> {
    for mtu in [1500, 9000] {
        let mut host = Host::new(mtu, 1)?;
        let mut session = Session::start(&mut host, &stock::Options { mtu, ..Default::default() })?;
        session.send(&mut host, 8)?;
        session.run(&mut host, "answers to both PINGs", |session, host| {
            host.engine.connectivity(session.endpoint) == Some((true, true))
        })?;
        // The stock BTL sends PINGs with its first ACK, and would end after ten seconds without answers.
        session.run(&mut host, "PINGs of the peer", |_, host| {
            host.engine.interface_counters(0).is_some_and(|counters| counters.pings_answered >= 2)
        })?;
        session.order(&mut host, "recv 1 5")?;
    }
    Ok(())
}

/// Messages of all sizes in both directions. Each receiver checks every byte.
#[test]
fn messages_arrive_both_ways() -> Result<()> {
    for mtu in [1500u16, 9000] {
        let mut host = Host::new(mtu, 65_500)?;
        let eager_limit = Some(16 << 20);
        let options = stock::Options { mtu, eager_limit, ..Default::default() };
        let mut session = Session::start(&mut host, &options)?;
        let fragment = usize::from(mtu) - 28 - 32;
        let chunk = fragment - 16;
        let sizes = [
            0,
            1,
            7,
            8,
            100,
            fragment,
            fragment + 1,
            2 * chunk,
            3 * chunk,
            3 * chunk + 1,
            65_536,
            153_600,
            1 << 20,
            16 << 20,
        ];
        for size in sizes {
            session.send(&mut host, size)?;
        }
        session.drain(&mut host)?;
        let line = session.order(&mut host, &format!("recv {} 20", sizes.len()))?;
        ensure!(line.starts_with(&format!("received {} bad 0", sizes.len())), "{line}");
        // The stock sender cannot send an empty message.
        for size in &sizes[1..] {
            session.order(&mut host, &format!("send 1 {size}"))?;
        }
        session
            .run(&mut host, "all messages", |session, _| session.came.len() == sizes.len() - 1)?;
        session.came.sort_unstable();
        // The first messages are too short for their numbers.
        ensure!(session.bad == 0, "{} bad messages", session.bad);
        println!("MTU {mtu}: {:?}", host.engine.counters(session.endpoint));
    }
    Ok(())
}

/// PUTs of more than a fragment, in both directions.
#[test]
fn puts_arrive_both_ways() -> Result<()> {
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
            session.run(&mut host, "completion of the PUT", |session, host| {
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
            memory.read(0, &mut bytes).expect("the lengths are equal");
            ensure!(bytes == pattern::put(seed, size), "the PUT of {size} bytes differs");
            host.arena.free(memory);
        }
        let counters = host.engine.counters(session.endpoint);
        ensure!(counters.is_some_and(|counters| counters.puts_refused == 0), "{counters:?}");
    }
    Ok(())
}

/// A million packets from the engine, with answers of the stock BTL to some: sequence numbers wrap many times.
#[test]
fn million_packets_are_delivered() -> Result<()> {
    const PACKETS: u32 = 1_000_000;
    let mut host = Host::new(1500, 65_000)?;
    let options = stock::Options { isn: Some(65_100), ..Default::default() };
    let mut session = Session::start(&mut host, &options)?;
    let start = Instant::now();
    for _ in 0..PACKETS {
        session.send(&mut host, 64)?;
    }
    session.drain(&mut host)?;
    let seconds = start.elapsed().as_secs_f64();
    let line = session.order(&mut host, &format!("recv {PACKETS} 5"))?;
    ensure!(line.starts_with(&format!("received {PACKETS} bad 0")), "{line}");
    session.order(&mut host, "send 100000 64")?;
    session.run(&mut host, "all messages", |session, _| session.came.len() == 100_000)?;
    ensure!(session.bad == 0);
    let counters = host.engine.counters(session.endpoint);
    println!("{:.0} messages a second; {counters:?}", f64::from(PACKETS) / seconds);
    Ok(())
}

/// Lost, duplicated and late packets in both directions: every message arrives exactly once.
#[test]
fn messages_survive_a_bad_network() -> Result<()> {
    let rates = |loss, twice, late| Rates { loss, twice, late, ..Rates::default() };
    let networks =
        [rates(1, 0, 0), rates(10, 0, 0), rates(50, 0, 0), rates(0, 30, 100), rates(20, 20, 20)];
    for (seed, rates) in (0..).zip(networks) {
        let mut host = Host::new(1500, 1)?;
        let mut session = Session::start(&mut host, &stock::Options::default())?;
        host.set_faults(rates, seed);
        let start = Instant::now();
        let lengths = (0..500).map(|n: usize| 1 + n * 37 % 6000);
        for length in lengths.clone().chain([65_536; 50]) {
            session.send(&mut host, length)?;
        }
        session.drain(&mut host)?;
        let ours = start.elapsed();
        let line = session.order(&mut host, "recv 550 5")?;
        ensure!(line.starts_with("received 550 bad 0"), "{line}");
        let start = Instant::now();
        for length in [300usize, 5000, 65_536] {
            session.order(&mut host, &format!("send 100 {length}"))?;
        }
        session.run(&mut host, "all messages", |session, _| session.came.len() == 300)?;
        let mut numbers: Vec<u32> = session.came.iter().map(|(number, _)| *number).collect();
        numbers.sort_unstable();
        ensure!(numbers.iter().copied().eq(0..300) && session.bad == 0);
        let counters = host.engine.counters(session.endpoint).copied().unwrap_or_default();
        println!(
            "{rates:?}: engine {ours:.1?}, {} resent, {} by timeout; peer {:.1?}, {} duplicates",
            counters.num_resends,
            counters.num_timeout_retrans,
            start.elapsed(),
            counters.num_dup_recvs + counters.num_oow_low_recvs,
        );
    }
    Ok(())
}

/// The endpoint of a killed peer fails with a reason, and an endpoint with the new peer's modex works.
#[test]
fn killed_peer_is_replaced_by_a_new_one() -> Result<()> {
    let mut host = Host::new(1500, 1)?;
    let mut session = Session::start_with(&mut host, &stock::Options::default(), |config| {
        config.timing.retries = 6;
    })?;
    for _ in 0..100 {
        session.send(&mut host, 1000)?;
    }
    session.drain(&mut host)?;
    session.stock.kill()?;
    for _ in 0..10 {
        session.send(&mut host, 1000)?;
    }
    let failed = |session: &Session, host: &Host| host.engine.state(session.endpoint);
    let within = Duration::from_secs(20);
    let ended = host.run(within, |host| matches!(failed(&session, host), Some(State::Failed(_))));
    ensure!(ended, "{:?}", failed(&session, &host));
    let Some(State::Failed(why)) = failed(&session, &host) else { unreachable!() };
    ensure!(matches!(why, Failure::Unacknowledged { times: 6 }), "{why}");
    host.engine.remove(session.endpoint);
    let mut session = Session::start(&mut host, &stock::Options::default())?;
    for size in [10, 5000, 100_000] {
        session.send(&mut host, size)?;
        session.order(&mut host, &format!("send 1 {size}"))?;
    }
    session.drain(&mut host)?;
    let line = session.order(&mut host, "recv 3 5")?;
    ensure!(line.starts_with("received 3 bad 0"), "{line}");
    session.run(&mut host, "all messages", |session, _| session.came.len() == 3)?;
    Ok(())
}

/// Two peers at once: messages reach only their own peer, and the end of one peer does not affect the other.
#[test]
fn two_peers_work_at_once() -> Result<()> {
    let mut host = Host::new(1500, 1)?;
    let mut first = Session::start(&mut host, &stock::Options { rank: 1, ..Default::default() })?;
    let mut second = Session::start(&mut host, &stock::Options { rank: 2, ..Default::default() })?;
    for _ in 0..500 {
        first.send(&mut host, 3000)?;
        second.send(&mut host, 500)?;
    }
    first.stock.tell("post 200 4000")?;
    second.stock.tell("post 300 400")?;
    first.run(&mut host, "messages of the peer", |session, _| session.came.len() == 200)?;
    second.run(&mut host, "messages of the peer", |session, _| session.came.len() == 300)?;
    first.drain(&mut host)?;
    second.drain(&mut host)?;
    for session in [&mut first, &mut second] {
        let line = session.order(&mut host, "recv 500 5")?;
        ensure!(line.starts_with("received 500 bad 0"), "{line}");
        ensure!(session.bad == 0);
    }
    first.stock.kill()?;
    first.send(&mut host, 1000)?;
    for _ in 0..200 {
        second.send(&mut host, 3000)?;
    }
    second.drain(&mut host)?;
    let line = second.order(&mut host, "recv 700 5")?;
    ensure!(line.starts_with("received 700 bad 0"), "{line}");
    Ok(())
}

/// A peer that does not answer while its program computes: the engine retransmits at growing intervals.
#[test]
fn retransmissions_to_a_silent_peer_back_off() -> Result<()> {
    let mut host = Host::new(1500, 1)?;
    let mut session = Session::start(&mut host, &stock::Options::default())?;
    session.send(&mut host, 100)?;
    session.drain(&mut host)?;
    session.stock.tell("sleep 1")?;
    for _ in 0..10 {
        session.send(&mut host, 100)?;
    }
    session.answer(&mut host, "slept")?;
    session.drain(&mut host)?;
    let counters = host.engine.counters(session.endpoint).copied().unwrap_or_default();
    // The stock sender would retransmit each message a hundred times in that second.
    ensure!(counters.num_resends <= 15, "{counters:?}");
    Ok(())
}

/// The engine is rank 1 of a stock job, and echoes the messages of rank 0: whole messages, and messages in parts up to
/// 64 MiB, by MPI_Send and MPI_Ssend, one by one and several at a time. Rank 0 compares.
#[test]
fn rank_of_a_stock_job_echoes_messages() -> Result<()> {
    [1500, 9000].into_iter().try_for_each(echo_as_rank)
}

fn echo_as_rank(mtu: u16) -> Result<()> {
    let mut host = Host::with_memory(mtu, 65_000, ob1::MEMORY)?;
    let ours = host.engine.modex(0).context("the engine has no interface")?;
    let sizes = ["0", "1", "13", "1000", "1426", "1427", "5000", "65536", "153586", "153600"];
    let words = [&["2"][..], &sizes, &["160000", "1048576", "16777216", "67108864"]].concat();
    let mut job = Job::start(&[ours], "lo", mtu, &words)?;
    let mut budget = ob1::budget(ob1::MEMORY);
    let all = budget.free();
    let &(modex, peer) = job.peers.first().context("the job has no other rank")?;
    let config = ob1::endpoint(EndpointConfig::new(0, job.name, peer, modex), ob1::MEMORY);
    let now = host.now();
    let endpoint = host.engine.add_endpoint(&config, now)?;
    let mut rank = Rank::new(job.name, &budget);
    let mut paths = Stripe::new(&[(endpoint, ours.link_speed)]);
    job.ready()?;
    let end = Instant::now() + Duration::from_secs(300);
    while !job.is_over()? {
        host.turn_or_yield();
        let now = host.now();
        while let Some(message) = host.engine.take_message(endpoint) {
            let taken = rank.take(&mut host.engine, message, &mut budget);
            taken.map_err(|why| anyhow!("refused: {why}"))?;
        }
        rank.hear(&mut host.engine, endpoint, &mut budget);
        rank.send(&mut host.engine, &mut paths, now);
        let state = host.engine.state(endpoint);
        ensure!(state == Some(State::Open) && Instant::now() < end, "{state:?} {rank:?}");
    }
    let text = job.finish()?;
    ensure!(text.contains("done") && !text.contains("differ"), "{text}");
    ensure!(rank.under_way() == (0, 0) && budget.free() == all, "{:?}", rank.counters());
    println!("MTU {mtu}: {text}{:?}", rank.counters());
    Ok(())
}

/// tshark decodes every field of both layouts, and of PINGs, with this project's dissector.
#[test]
fn dissector_decodes_both_layouts() -> Result<()> {
    let fields = [
        "usnic.sender.job",
        "usnic.sender.rank",
        "usnic.seq",
        "usnic.ack_present",
        "usnic.ack_seq",
        "usnic.len",
        "usnic.type",
        "usnic.tag",
        "usnic.put_addr",
        "usnic.frag_id",
        "usnic.frag_size",
        "usnic.frag_offset",
        "usnic.payload",
        "usnic.ping.type",
        "usnic.ping.address",
        "usnic.ping.port",
        "usnic.ping.major",
        "usnic.ping.size",
    ];
    for (layout, version) in [(Layout::V4, 4), (Layout::V5, 5)] {
        let header = |kind, acknowledged, put_address| Header {
            sender: 3 << 32 | 9,
            sequence: if kind == Kind::Ack { 0 } else { 0x1234 },
            acknowledged,
            put_address,
            kind,
            tag: 65,
        };
        let part = Kind::Chunk { fragment: 7, size: 9000, offset: 1424 };
        let headers = [
            header(Kind::Fragment, Some(17), 0),
            header(part, None, 0x10_0000),
            header(Kind::Ack, Some(0xffff), 0),
        ];
        let payloads: [&[u8]; 3] = [b"hello", b"part", b""];
        let mut datagrams: Vec<(u16, u16, Vec<u8>)> = Vec::new();
        for (header, payload) in headers.iter().zip(payloads) {
            let mut bytes = [0; MAX_HEADER];
            let length = header.emit(layout, payload.len() as u16, &mut bytes);
            datagrams.push((4000, 7001, [&bytes[..length], payload].concat()));
        }
        let asker = "10.0.0.1:4003".parse()?;
        let ping =
            Ping { is_ack: false, asker, version: Version { major: version, minor: 1 }, size: 40 };
        datagrams.push((4003, 7003, ping.emit().into()));
        datagrams.push((7003, 4003, Ping { is_ack: true, ..ping }.emit().into()));
        let directory = tempfile::tempdir()?;
        let file = directory.path().join("capture.pcap");
        std::fs::write(&file, pcap::capture(&datagrams))?;
        // PINGs are recognized at any port.
        let read = pcap::tshark(&file, "7001", &version.to_string(), &fields)?;
        let hex = |text: &[u8]| text.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let expected = [
            format!("3|9|4660|1|17|5|2|65|0x0000000000000000||||{}|||||", hex(b"hello")),
            format!("3|9|4660|0|0|4|3|65|0x0000000000100000|7|9000|1424|{}|||||", hex(b"part")),
            "3|9|0|1|65535|0|1|65|0x0000000000000000|||||||||".into(),
            format!("|||||||||||||17|10.0.0.1|4003|{version}|40"),
            format!("|||||||||||||18|10.0.0.1|4003|{version}|40"),
        ];
        let read: Vec<String> = read.iter().map(|line| line.join("|")).collect();
        ensure!(read == expected, "layout {version}: {read:#?}");
        // A packet that is too short for its header, and one that is too short for its announced length.
        let whole = &datagrams[0].2;
        let cut = [whole[..20].to_vec(), whole[..whole.len() - 1].to_vec()];
        let cut = cut.map(|bytes| (4000, 7001, bytes));
        std::fs::write(&file, pcap::capture(&cut))?;
        let read = pcap::tshark(&file, "7001", &version.to_string(), &["_ws.expert.message"])?;
        let short = read.iter().filter(|line| line[0].contains("Shorter than its header")).count();
        ensure!(short == 2, "{read:?}");
    }
    Ok(())
}
