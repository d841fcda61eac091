//! Channels: messages recorded from stock Linux 6.12, and two engines with each other.

use drivers::hal::Instant;
use drivers::rapidio::Mailbox;
use rapidio::rio_cm::{Engine, Error, HEADER, Header, MAILBOX, MOST, Malformed, Operation, Peer};
use std::time::Duration;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn at(milliseconds: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(milliseconds)
}

/// Messages recorded from a stock 6.12: A is id 1, C is id 2, C listens on channel 10.
const REQUEST: &str = "00000001 00000002 01 01 55 00 000a 0101 0000 0000 00000000";
const ACKNOWLEDGE: &str = "00000002 00000001 01 01 55 01 0101 0100 0000 0000 00000000";
const DATA_FROM_A: &str = "00000001 00000000 01 01 55 03 0100 0101 0014 0000 ac000000";
const DATA_FROM_C: &str = "00000002 00000001 01 01 55 03 0101 0100 0014 0000 d3000000";
const CLOSE_FROM_A: &str = "00000001 00000000 01 01 55 02 0100 0101 0000 0000 00000000";

/// Takes all control messages that an engine sends.
fn sent(engine: &mut Engine) -> Vec<(u16, Vec<u8>)> {
    let next = |engine: &mut Engine| {
        let (to, header) = engine.outgoing()?;
        engine.was_sent();
        Some((to, header.to_vec()))
    };
    std::iter::from_fn(|| next(engine)).collect()
}

/// Delivers the control messages of two engines to each other.
fn carry(a: (&mut Engine, u16), b: (&mut Engine, u16), now: Instant) {
    for (to, message) in sent(a.0) {
        assert_eq!(to, b.1);
        b.0.deliver(a.1, &message, now);
    }
    for (to, message) in sent(b.0) {
        assert_eq!(to, a.1);
        a.0.deliver(b.1, &message, now);
    }
}

fn data(from: &mut Engine, channel: u16, bytes: &[u8]) -> Vec<u8> {
    let (_, header) = from.header(channel, bytes.len()).unwrap();
    [&header[..], bytes].concat()
}

fn received(engine: &mut Engine, channel: u16) -> Option<Vec<u8>> {
    engine.receive(channel, <[u8]>::to_vec).unwrap()
}

#[test]
fn headers_are_those_of_linux() {
    for (text, operation, to, from, len) in [
        (REQUEST, Operation::ConnectRequest, 0x0a, 0x101, 0),
        (ACKNOWLEDGE, Operation::ConnectAcknowledge, 0x101, 0x100, 0),
        (DATA_FROM_A, Operation::Data, 0x100, 0x101, 20),
        (DATA_FROM_C, Operation::Data, 0x101, 0x100, 20),
        (CLOSE_FROM_A, Operation::Close, 0x100, 0x101, 0),
    ] {
        let bytes = hex(text);
        let header = Header::read(&bytes).unwrap();
        assert_eq!(
            (header.operation, header.to_channel, header.from_channel),
            (operation, to, from)
        );
        assert_eq!((header.len, header.mailboxes), (len, [1, 1]));
        assert_eq!(header.bytes(), bytes[..HEADER], "the same bytes come back");
    }
}

#[test]
fn stock_peer_connects_exchanges_data_and_closes() {
    let mut c = Engine::new(2, MAILBOX);
    c.listen(10).unwrap();
    assert_eq!(c.accept(10, at(0)), Ok(None));
    c.deliver(1, &hex(REQUEST), at(0));
    assert_eq!(c.next_news(), Some(10));
    let peer = Peer { device: 1, channel: 0x101 };
    assert_eq!(c.accept(10, at(1)), Ok(Some((0x100, peer))));
    assert_eq!(sent(&mut c), [(1, hex(ACKNOWLEDGE)[..HEADER].to_vec())]);
    c.deliver(1, &hex(DATA_FROM_A), at(2));
    assert_eq!(c.next_news(), Some(0x100));
    assert_eq!(received(&mut c, 0x100), Some(Vec::new()), "the stale bytes behind are no data");
    assert_eq!(c.header(0x100, 0), Ok((1, hex(DATA_FROM_C)[..HEADER].try_into().unwrap())));
    c.deliver(1, &hex(CLOSE_FROM_A), at(3));
    assert_eq!(c.next_news(), Some(0x100));
    assert_eq!(c.peer(0x100), Err(Error::ClosedByPeer));
    c.close(0x100);
    assert!(sent(&mut c).is_empty(), "a close is not answered");
}

#[test]
fn own_request_equals_a_stock_request() {
    let mut a = Engine::new(1, MAILBOX);
    // Linux's first channel in that lab was 0x101.
    let first = a.connect(Peer { device: 9, channel: 9 }, at(0)).unwrap();
    assert_eq!(first, 0x100);
    let channel = a.connect(Peer { device: 2, channel: 10 }, at(0)).unwrap();
    assert_eq!(sent(&mut a)[1], (2, hex(REQUEST)[..HEADER].to_vec()));
    assert_eq!(a.peer(channel), Ok(None));
    a.deliver(2, &hex(ACKNOWLEDGE), at(5));
    assert_eq!(a.peer(channel), Ok(Some(Peer { device: 2, channel: 0x100 })));
    let (to, header) = a.header(channel, 0).unwrap();
    let mut wanted = hex(DATA_FROM_A)[..HEADER].to_vec();
    wanted[7] = 2; // where Linux leaves a 0
    assert_eq!((to, header.to_vec()), (2, wanted));
    a.deliver(2, &hex(DATA_FROM_C), at(6));
    assert_eq!(received(&mut a, channel), Some(Vec::new()));
    a.close(channel);
    assert_eq!(sent(&mut a).len(), 1);
    assert_eq!(a.peer(channel), Err(Error::State));
}

#[test]
fn malformed_messages_are_refused_and_counted() {
    let cases = [
        (REQUEST.replace(" 55 ", " aa "), Malformed::Type(0xaa)),
        (REQUEST.replace("55 00", "55 04"), Malformed::Operation(4)),
        (DATA_FROM_A.replace("0014", "0013"), Malformed::Length(0x13)),
        (DATA_FROM_A.replace("0014", "0019"), Malformed::Length(0x19)),
        (DATA_FROM_A.replace("0014", "ffff"), Malformed::Length(0xffff)),
    ];
    let mut engine = Engine::new(2, MAILBOX);
    engine.listen(10).unwrap();
    for (n, (text, why)) in cases.into_iter().enumerate() {
        assert_eq!(Header::read(&hex(&text)), Err(why));
        engine.deliver(1, &hex(&text), at(0));
        assert_eq!(engine.counters().malformed, n as u64 + 1);
    }
    let request = hex(REQUEST);
    for len in 0..HEADER {
        assert_eq!(Header::read(&request[..len]), Err(Malformed::Short));
    }
    assert_eq!(engine.next_news(), None);
}

#[test]
fn messages_of_all_lengths_arrive_in_order_both_ways() {
    let (mut a, mut b) = (Engine::new(1, MAILBOX), Engine::new(2, MAILBOX));
    b.listen(10).unwrap();
    let there = a.connect(Peer { device: 2, channel: 10 }, at(0)).unwrap();
    carry((&mut a, 1), (&mut b, 2), at(1));
    let (here, _) = b.accept(10, at(1)).unwrap().unwrap();
    carry((&mut a, 1), (&mut b, 2), at(2));
    for len in [0, 1, 7, 8, 100, 4068, MOST - HEADER] {
        let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
        let mut message = data(&mut a, there, &bytes);
        message.resize(message.len().next_multiple_of(8), 0xee);
        b.deliver(1, &message, at(3));
        assert_eq!(received(&mut b, here), Some(bytes.clone()));
        a.deliver(2, &data(&mut b, here, &bytes), at(3));
        assert_eq!(received(&mut a, there), Some(bytes));
    }
    assert_eq!(a.header(there, MOST - HEADER + 1), Err(Error::Length));
    b.close(here);
    carry((&mut a, 1), (&mut b, 2), at(4));
    assert_eq!(a.peer(there), Err(Error::ClosedByPeer));
}

#[test]
fn full_channel_drops_as_linux_does_and_counts() {
    let (mut a, mut b) = (Engine::new(1, MAILBOX), Engine::new(2, MAILBOX));
    b.listen(10).unwrap();
    let there = a.connect(Peer { device: 2, channel: 10 }, at(0)).unwrap();
    carry((&mut a, 1), (&mut b, 2), at(1));
    let (here, _) = b.accept(10, at(1)).unwrap().unwrap();
    carry((&mut a, 1), (&mut b, 2), at(2));
    for n in 0..200u8 {
        b.deliver(1, &data(&mut a, there, &[n]), at(3));
    }
    assert_eq!((b.counters().received, b.counters().overflowed), (128, 72));
    // Data received before the close can still be read.
    a.close(there);
    carry((&mut a, 1), (&mut b, 2), at(4));
    let all: Vec<u8> = (0..128).map(|_| received(&mut b, here).unwrap()[0]).collect();
    assert_eq!(all, (0..128).collect::<Vec<u8>>());
    assert_eq!(b.receive(here, |_| ()), Err(Error::ClosedByPeer));
}

#[test]
fn connect_without_a_listener_times_out() {
    let mut a = Engine::new(1, MAILBOX);
    let channel = a.connect(Peer { device: 2, channel: 10 }, at(0)).unwrap();
    sent(&mut a);
    assert_eq!(a.deadline(), Some(at(10_000)));
    a.poll(at(9999));
    assert_eq!(a.peer(channel), Ok(None));
    a.poll(at(10_000));
    assert_eq!((a.next_news(), a.peer(channel)), (Some(channel), Err(Error::TimedOut)));
    // A late acknowledgement opens nothing, and is answered by a close.
    let text = ACKNOWLEDGE.replace("0101 0100", &format!("{channel:04x} 0177"));
    a.deliver(2, &hex(&text), at(10_100));
    assert_eq!(a.peer(channel), Err(Error::TimedOut));
    let close = Header::read(&sent(&mut a)[0].1).unwrap();
    assert_eq!((close.operation, close.to_channel), (Operation::Close, 0x177));
}

#[test]
fn a_stale_request_is_never_acknowledged() {
    let mut b = Engine::new(2, MAILBOX);
    b.listen(10).unwrap();
    b.deliver(1, &hex(REQUEST), at(0));
    assert_eq!(b.accept(10, at(2501)), Ok(None), "a stock requester would crash at 3 s");
    assert!(sent(&mut b).is_empty());
    assert_eq!(b.counters().stale, 1);
}

#[test]
fn messages_from_another_device_or_channel_are_ignored() {
    let (mut a, mut b) = (Engine::new(1, MAILBOX), Engine::new(2, MAILBOX));
    b.listen(10).unwrap();
    let there = a.connect(Peer { device: 2, channel: 10 }, at(0)).unwrap();
    let request = sent(&mut a);
    // Another device acknowledges.
    let text = ACKNOWLEDGE.replace("0101 0100", &format!("{there:04x} 0177"));
    a.deliver(3, &hex(&text), at(1));
    assert_eq!(a.peer(there), Ok(None));
    b.deliver(1, &request[0].1, at(1));
    let (here, _) = b.accept(10, at(1)).unwrap().unwrap();
    carry((&mut a, 1), (&mut b, 2), at(2));
    let message = data(&mut a, there, b"mine");
    b.deliver(3, &message, at(3));
    let mut other_channel = message.clone();
    other_channel[15] ^= 1;
    b.deliver(1, &other_channel, at(3));
    assert_eq!(received(&mut b, here), None);
    let mut close = message;
    close[11] = 2;
    b.deliver(3, &close, at(3));
    assert!(b.peer(here).is_ok());
    assert_eq!((a.counters().stray, b.counters().stray), (1, 3));
}

#[test]
fn requests_and_channels_are_limited() {
    let mut b = Engine::new(2, MAILBOX);
    b.listen(10).unwrap();
    for n in 0..2000u16 {
        let from = n % 20;
        let text = REQUEST.replace("0101", &format!("{n:04x}"));
        b.deliver(from, &hex(&text), at(0));
    }
    let mut accepted = 0;
    while b.accept(10, at(1)).unwrap().is_some() {
        accepted += 1;
    }
    assert_eq!((accepted, b.counters().refused), (64, 1936));
    // The number of channels is limited; channel numbers are reused cyclically.
    let mut a = Engine::new(1, Mailbox::ALL[3]);
    for n in 0..1024 {
        let channel = a.connect(Peer { device: 2, channel: 1 }, at(0)).unwrap();
        assert_eq!(channel, 256 + n);
    }
    assert_eq!(a.connect(Peer { device: 2, channel: 1 }, at(0)), Err(Error::TooMany));
    a.close(300);
    assert_eq!(a.connect(Peer { device: 2, channel: 1 }, at(0)), Ok(1280));
}

#[test]
fn a_device_that_is_gone_closes_its_channels() {
    let mut a = Engine::new(1, MAILBOX);
    let one = a.connect(Peer { device: 2, channel: 10 }, at(0)).unwrap();
    let other = a.connect(Peer { device: 3, channel: 10 }, at(0)).unwrap();
    let text = ACKNOWLEDGE.replace("0101", &format!("{one:04x}"));
    a.deliver(2, &hex(&text), at(1));
    while a.next_news().is_some() {}
    a.devices_gone(|id| id == 2);
    assert_eq!((a.next_news(), a.next_news()), (Some(one), None));
    assert_eq!((a.peer(one), a.peer(other)), (Err(Error::Gone), Ok(None)));
}

#[test]
fn random_messages_cause_no_panic() {
    let mut seed = 7u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut engine = Engine::new(2, MAILBOX);
    engine.listen(10).unwrap();
    for n in 0..200_000u64 {
        let mut message = hex(REQUEST);
        for _ in 0..random() % 4 {
            let at = (random() % 24) as usize;
            message[at] = random() as u8;
        }
        message[11] = [0, 1, 2, 3, 4, 0x10, 0x11][(random() % 7) as usize];
        message[13] = if random() % 2 == 0 { 10 } else { random() as u8 };
        if random() % 2 == 0 {
            message[18..20].copy_from_slice(&[0x4a, random() as u8 % 80]);
        }
        message.truncate(if random() % 2 == 0 { 24 } else { (random() % 25) as usize });
        engine.deliver((random() % 4) as u16, &message, at(n));
        if random() % 8 == 0 {
            let _ = engine.accept(10, at(n));
        }
        while let Some(channel) = engine.next_news() {
            let _ = engine.receive(channel, <[u8]>::len);
            if random() % 4 == 0 && channel != 10 {
                engine.close(channel);
            }
        }
        engine.was_sent();
        engine.poll(at(n));
    }
}

/// Two engines with a flow-controlled channel between them; its number at each.
fn own() -> (Engine, Engine, u16, u16) {
    let (mut a, mut b) = (Engine::new(1, MAILBOX), Engine::new(2, MAILBOX));
    b.listen(10).unwrap();
    let there = a.connect_offering(Peer { device: 2, channel: 10 }, at(0)).unwrap();
    carry((&mut a, 1), (&mut b, 2), at(1));
    let (here, _) = b.accept(10, at(1)).unwrap().unwrap();
    carry((&mut a, 1), (&mut b, 2), at(2));
    assert!(a.is_own(there) && b.is_own(here));
    while a.next_news().is_some() {}
    while b.next_news().is_some() {}
    (a, b, there, here)
}

#[test]
fn flow_control_offer_to_a_stock_peer_changes_nothing() {
    let mut a = Engine::new(1, MAILBOX);
    let channel = a.connect_offering(Peer { device: 2, channel: 10 }, at(0)).unwrap();
    let mut request = sent(&mut a).remove(0).1;
    assert_eq!(request[18..20], [0x4a, 8]);
    // Except for these two bytes, which Linux does not read, it equals a stock request.
    request[18..20].fill(0);
    let text = REQUEST.replace("0101", &format!("{channel:04x}"));
    assert_eq!(request, hex(&text)[..HEADER]);
    let text = ACKNOWLEDGE.replace("0101", &format!("{channel:04x}"));
    a.deliver(2, &hex(&text), at(5));
    assert!(!a.is_own(channel) && a.peer(channel).unwrap().is_some());
    // Neither credits nor keepalives are sent.
    for n in 0..200u8 {
        assert_eq!(data(&mut a, channel, &[n])[18..20], [0, 0]);
    }
    a.finish(channel);
    a.poll(at(60_000));
    assert!(sent(&mut a).is_empty() && a.peer(channel).is_ok());
    // A stock user may leave anything in these bytes of its data.
    let text = format!("00000002 00000001 01 01 55 03 {channel:04x} 0100 0014 ffff");
    a.deliver(2, &hex(&text), at(60_001));
    assert_eq!(received(&mut a, channel), Some(Vec::new()));
}

#[test]
fn flow_control_never_sends_beyond_the_receivers_room() {
    let (mut a, mut b, there, here) = own();
    let (mut sent_all, mut got, mut most) = (0u32, 0u32, 0);
    while got < 5000 {
        while sent_all < 5000 {
            match a.header(there, 4) {
                Ok((_, header)) => {
                    let message = [&header[..], &sent_all.to_be_bytes()].concat();
                    b.deliver(1, &message, at(3));
                    sent_all += 1;
                }
                Err(why) => {
                    assert_eq!(why, Error::NoCredit);
                    assert!(got > 0 || sent_all == 8, "{sent_all} at first");
                    most = most.max(sent_all - got);
                    break;
                }
            }
        }
        // The reader takes some messages; the sender gets a credit and an event.
        for _ in 0..20 {
            let Some(bytes) = received(&mut b, here) else { break };
            assert_eq!(bytes, got.to_be_bytes());
            got += 1;
        }
        carry((&mut a, 1), (&mut b, 2), at(3));
        if sent_all < 5000 {
            assert_eq!(a.next_news(), Some(there), "{got}");
        }
    }
    assert_eq!((most, b.counters().overflowed), (64, 0));
    // A message without credit, or a credit for messages that were not sent, ends the channel.
    let (mut a, mut b, there, here) = own();
    let message = data(&mut a, there, &[1]);
    (0..65).for_each(|_| b.deliver(1, &message, at(3)));
    assert_eq!(b.peer(here), Err(Error::Incomplete));
    carry((&mut a, 1), (&mut b, 2), at(4));
    assert_eq!(a.peer(there), Err(Error::Aborted));
    let (mut a, mut b, there, here) = own();
    let mut message = data(&mut a, there, &[1]);
    message[18] = 1;
    b.deliver(1, &message, at(3));
    assert_eq!(b.peer(here), Err(Error::Incomplete));
}

#[test]
fn flow_control_finish_detects_missing_messages() {
    let (mut a, mut b, there, here) = own();
    for n in 0..5u8 {
        b.deliver(1, &data(&mut a, there, &[n]), at(3));
    }
    a.finish(there);
    assert_eq!(a.header(there, 1), Err(Error::State), "nothing more is sent");
    carry((&mut a, 1), (&mut b, 2), at(3));
    assert_eq!(b.next_news(), Some(here));
    for n in 0..5u8 {
        assert_eq!(received(&mut b, here), Some(vec![n]));
    }
    assert_eq!(b.receive(here, |_| ()), Err(Error::Finished));
    // The other direction stays open.
    a.deliver(2, &data(&mut b, here, b"answer"), at(4));
    assert_eq!(received(&mut a, there), Some(b"answer".to_vec()));
    b.finish(here);
    b.close(here);
    carry((&mut a, 1), (&mut b, 2), at(4));
    assert_eq!(a.receive(there, |_| ()), Err(Error::Finished));
    a.close(there);
    carry((&mut a, 1), (&mut b, 2), at(5));
    assert_eq!((a.counters().stray, b.counters().stray), (0, 0));
    // A message is lost on the way.
    let (mut a, mut b, there, here) = own();
    data(&mut a, there, &[1]);
    a.finish(there);
    carry((&mut a, 1), (&mut b, 2), at(3));
    assert_eq!(b.receive(here, |_| ()), Err(Error::Incomplete));
    // One side has finished, and the other closes before the end of its answer.
    let (mut a, mut b, there, here) = own();
    a.finish(there);
    carry((&mut a, 1), (&mut b, 2), at(3));
    a.deliver(2, &data(&mut b, here, b"ans"), at(3));
    b.close(here);
    carry((&mut a, 1), (&mut b, 2), at(4));
    assert_eq!(received(&mut a, there), Some(b"ans".to_vec()));
    assert_eq!(a.receive(there, |_| ()), Err(Error::Aborted));
    // One side closes before it has finished.
    let (mut a, mut b, there, here) = own();
    b.deliver(1, &data(&mut a, there, &[1]), at(3));
    a.close(there);
    carry((&mut a, 1), (&mut b, 2), at(3));
    assert_eq!(received(&mut b, here), Some(vec![1]));
    assert_eq!(b.receive(here, |_| ()), Err(Error::Aborted));
}

#[test]
fn flow_control_detects_a_silent_and_a_rebooted_peer() {
    let (mut a, mut b, there, here) = own();
    let mut words = 0;
    for second in 1..=60 {
        for engine in [&mut a, &mut b] {
            engine.poll(at(1000 * second + 5));
        }
        words += a.outgoing().is_some() as u32;
        carry((&mut a, 1), (&mut b, 2), at(1000 * second + 5));
        carry((&mut a, 1), (&mut b, 2), at(1000 * second + 5));
    }
    assert!(a.peer(there).unwrap().is_some() && b.peer(here).unwrap().is_some());
    assert!((28..=31).contains(&words), "a keepalive in two seconds, not {words}");
    // The peer has vanished.
    for second in 61..=71 {
        assert!(a.deadline() <= Some(at(1000 * second + 5)));
        a.poll(at(1000 * second + 5));
        sent(&mut a);
    }
    assert_eq!((a.next_news(), a.peer(there)), (Some(there), Err(Error::Silent)));
    a.close(there);
    assert_eq!(a.deadline(), None);
    // The peer was restarted, and does not know the channel.
    let (mut a, _, there, _) = own();
    let mut b = Engine::new(2, MAILBOX);
    a.poll(at(1005));
    carry((&mut a, 1), (&mut b, 2), at(1005));
    assert_eq!(a.peer(there), Err(Error::Aborted));
}

#[test]
fn undelivered_message_ends_the_channels_to_that_device() {
    let (mut a, _, there, _) = own();
    let other = a.connect(Peer { device: 3, channel: 1 }, at(3)).unwrap();
    a.undelivered(2);
    assert_eq!((a.next_news(), a.peer(there)), (Some(there), Err(Error::Undelivered)));
    assert_eq!(a.peer(other), Ok(None));
    // An end point that leaves closes each channel.
    let (mut a, mut b, _, here) = own();
    a.leave();
    carry((&mut a, 1), (&mut b, 2), at(4));
    assert_eq!(b.peer(here), Err(Error::Aborted));
}

/// Flow-controlled channels from `a` to `b`; their numbers at each.
fn many(a: &mut Engine, b: &mut Engine, count: usize) -> Vec<(u16, u16)> {
    (0..count)
        .map(|_| {
            let there = a.connect_offering(Peer { device: 2, channel: 10 }, at(0)).unwrap();
            carry((a, 1), (b, 2), at(1));
            let (here, _) = b.accept(10, at(1)).unwrap().unwrap();
            carry((a, 1), (b, 2), at(2));
            (there, here)
        })
        .collect()
}

#[test]
fn messages_with_credit_are_never_dropped() {
    let (mut a, mut b) = (Engine::new(1, MAILBOX), Engine::new(2, MAILBOX));
    b.listen(10).unwrap();
    let channels = many(&mut a, &mut b, 1000);
    // A channel of a stock peer as well, whose user reads nothing.
    b.deliver(3, &hex(REQUEST), at(1));
    let (stock, _) = b.accept(10, at(1)).unwrap().unwrap();
    sent(&mut b);
    let send = |a: &mut Engine, b: &mut Engine, (there, _): (u16, u16), sent: &mut u32| {
        let Ok((_, header)) = a.header(there, 4) else { return false };
        b.deliver(1, &[&header[..], &sent.to_be_bytes()].concat(), at(3));
        *sent += 1;
        true
    };
    let (mut sends, mut got) = (vec![0u32; 1000], vec![0u32; 1000]);
    // Some channels are busy, and their users read, except in the last round.
    for round in 0..400 {
        for n in 0..100 {
            while send(&mut a, &mut b, channels[n], &mut sends[n]) {}
            while round < 399
                && let Some(bytes) = received(&mut b, channels[n].1)
            {
                assert_eq!(bytes, got[n].to_be_bytes());
                got[n] += 1;
            }
        }
        carry((&mut a, 1), (&mut b, 2), at(3));
    }
    for n in 0..1000 {
        while send(&mut a, &mut b, channels[n], &mut sends[n]) {}
        assert!(sends[n] - got[n] >= 1, "each has reserved memory");
    }
    let text = format!("00000003 00000002 01 01 55 03 {stock:04x} 0101 0014 0000");
    (0..200).for_each(|_| b.deliver(3, &hex(&text), at(4)));
    let (kept, promised, most) = b.memory();
    assert!(kept <= promised && promised <= most, "{kept} {promised} {most}");
    assert_eq!((b.unread(stock), b.counters().overflowed), (128, 72), "as Linux, and no more");
    // All messages arrive, and every channel makes progress.
    for round in 0..20 {
        for n in 0..1000 {
            while let Some(bytes) = received(&mut b, channels[n].1) {
                assert_eq!(bytes, got[n].to_be_bytes());
                got[n] += 1;
            }
            assert_eq!(sends[n], got[n]);
        }
        carry((&mut a, 1), (&mut b, 2), at(5));
        for n in 0..1000 {
            assert!(send(&mut a, &mut b, channels[n], &mut sends[n]), "round {round} of {n}");
        }
    }
    assert!(channels.iter().all(|(_, here)| b.peer(*here).is_ok()));
    // Closing the channels releases all credits.
    for (there, here) in channels {
        a.close(there);
        b.close(here);
    }
    b.close(stock);
    sent(&mut a);
    sent(&mut b);
    assert_eq!((a.memory().1, b.memory().1), (0, 0));
    let again = many(&mut a, &mut b, 1);
    assert!((0..8).all(|_| send(&mut a, &mut b, again[0], &mut 0)), "as many as at first");
}

#[test]
fn queued_credits_do_not_break_a_channel() {
    let (mut a, mut b, there, here) = own();
    // Credits and the finish wait for room while more is read: the first to leave has the newest count.
    for n in 0..6u8 {
        b.deliver(1, &data(&mut a, there, &[n]), at(3));
    }
    (0..5).for_each(|_| assert!(received(&mut b, here).is_some()));
    b.finish(here);
    assert!(received(&mut b, here).is_some());
    assert!(b.outgoing().is_some());
    carry((&mut a, 1), (&mut b, 2), at(4));
    assert_eq!(a.receive(there, |_| ()), Err(Error::Finished));
    // A channel that is closed before its credits were sent still shuts down orderly.
    let (mut a, mut b, there, here) = own();
    for n in 0..6u8 {
        b.deliver(1, &data(&mut a, there, &[n]), at(3));
    }
    (0..6).for_each(|_| assert!(received(&mut b, here).is_some()));
    a.finish(there);
    sent(&mut a).iter().for_each(|(_, message)| b.deliver(1, message, at(3)));
    b.finish(here);
    b.close(here);
    let operations: Vec<Operation> = sent(&mut b)
        .iter()
        .map(|(_, message)| {
            a.deliver(2, message, at(4));
            Header::read(message).unwrap().operation
        })
        .collect();
    assert_eq!(operations, [Operation::Credit, Operation::Finish]);
    assert_eq!(a.receive(there, |_| ()), Err(Error::Finished));
}

#[test]
fn congested_engine_does_not_time_out_its_peers() {
    let (mut a, mut b, there, here) = own();
    // A stock channel of b blocks the mailbox: messages of a stay in it.
    b.deliver(3, &hex(REQUEST), at(3));
    let (stock, _) = b.accept(10, at(3)).unwrap().unwrap();
    b.hold_up(stock);
    let text = format!("00000003 00000002 01 01 55 03 {stock:04x} 0101 0014 0000");
    (0..96).for_each(|_| b.deliver(3, &hex(&text), at(3)));
    assert!(b.is_congested());
    for second in 1..=30 {
        b.poll(at(1000 * second + 5));
        sent(&mut b);
    }
    assert!(b.peer(here).is_ok(), "the mailbox was not read");
    assert!(received(&mut b, stock).is_some() && !b.is_congested());
    // Now the mailbox is read again.
    for second in 31..=41 {
        b.poll(at(1000 * second + 5));
        sent(&mut b);
    }
    assert_eq!(b.peer(here), Err(Error::Silent));
    assert!(a.peer(there).is_ok());
    a.close(there);
}

#[test]
fn stock_peers_of_rules_wait_when_there_is_no_memory() {
    let mut b = Engine::new(2, MAILBOX);
    b.listen(10).unwrap();
    let mut stock = Vec::new();
    for n in 0..40u16 {
        b.deliver(n, &hex(REQUEST), at(0));
        stock.push(b.accept(10, at(0)).unwrap().unwrap().0);
    }
    let mut taken = 0;
    while !b.is_congested() && taken < 4000 {
        if taken == 1000 {
            stock.iter().for_each(|number| b.hold_up(*number));
        }
        let n = taken % 40;
        let text = format!("000000{n:02x} 00000002 01 01 55 03 {:04x} 0101 0014 0000", stock[n]);
        b.deliver(n as u16, &hex(&text), at(1));
        taken += 1;
    }
    assert_eq!((taken, b.counters().overflowed), (2048, 0));
    assert!(received(&mut b, stock[7]).is_some() && !b.is_congested());
    stock.into_iter().for_each(|number| b.close(number));
    assert!(!b.is_congested() && b.memory().1 == 0);
}

/// A header with any wrong field affects at most the channel that it addresses, and only if it comes from that
/// channel's peer.
#[test]
fn wrong_header_fields_affect_no_other_channel() {
    const LIES: [u16; 9] = [0, 1, 10, 0xff, 0x100, 0x4a40, 0x7fff, 0x8000, 0xffff];
    // Offset and length of each field: both ids, mailboxes, type, operation, channels, length, word.
    const FIELDS: [(usize, usize); 10] =
        [(0, 4), (4, 4), (8, 1), (9, 1), (10, 1), (11, 1), (12, 2), (14, 2), (16, 2), (18, 2)];
    let operations = [0, 1, 2, 3, 0x10, 0x11];
    let mut tried = 0;
    for operation in operations {
        for (at_byte, count) in FIELDS {
            for lie in LIES {
                for from in [1, 3] {
                    let (mut a, mut b, there, here) = own();
                    // A second flow-controlled channel of the same peer, and a stock channel of another one.
                    let other = many(&mut a, &mut b, 1)[0];
                    let mut c = Engine::new(4, MAILBOX);
                    let stock = c.connect(Peer { device: 2, channel: 10 }, at(3)).unwrap();
                    carry((&mut c, 4), (&mut b, 2), at(3));
                    let (third, _) = b.accept(10, at(3)).unwrap().unwrap();
                    carry((&mut c, 4), (&mut b, 2), at(3));
                    let mut message = data(&mut a, there, &[5; 12]);
                    message[11] = operation;
                    if operation == 0 {
                        message[12..14].copy_from_slice(&10u16.to_be_bytes());
                    }
                    let field = &mut message[at_byte..at_byte + count];
                    let bytes = u32::from(lie).to_be_bytes();
                    let wide = if count == 1 { &bytes[3..] } else { &bytes[4 - count..] };
                    field.copy_from_slice(wide);
                    let is_others = message[12..14] != here.to_be_bytes();
                    b.deliver(from, &message, at(4));
                    let answers = sent(&mut b);
                    answers.iter().for_each(|(_, bytes)| _ = Header::read(bytes).unwrap());
                    assert!(answers.len() <= 1);
                    let case =
                        format!("operation {operation:#x}, byte {at_byte}, {lie:#x}, {from}");
                    if from == 3 || is_others {
                        assert!(b.peer(here).is_ok(), "{case}");
                    }
                    // Other channels are unaffected.
                    assert!(b.peer(third).is_ok(), "{case}");
                    b.deliver(4, &data(&mut c, stock, b"mine"), at(5));
                    assert_eq!(received(&mut b, third).as_deref(), Some(&b"mine"[..]), "{case}");
                    if message[12..14] != other.1.to_be_bytes() {
                        b.deliver(1, &data(&mut a, other.0, b"too"), at(5));
                        assert_eq!(received(&mut b, other.1).as_deref(), Some(&b"too"[..]));
                    }
                    tried += 1;
                }
            }
        }
    }
    assert_eq!(tried, 6 * 10 * 9 * 2);
}
