//! Answers that are hostile, of no use, or of a limited life.

use super::*;

#[test]
fn end_of_a_connection_after_its_answer_is_no_failure_of_the_next_message() {
    let mut w = World::new(1);
    w.look("nas.x");
    let actions = w.poll();
    let Action::Datagram { query, to, message, .. } = &actions[0] else { panic!() };
    let cut = answer(message, 2, 0, &[]);
    w.resolver.handle_datagram(*query, *to, &cut, &mut w.rng, w.now);
    let Some(Action::Stream { query, message, .. }) = w.resolver.next_action() else { panic!() };
    let alias = answer(&message[2..], 0, 0, &[Record::Alias("nas.x", 60, "b.x")]);
    let framed = [&(alias.len() as u16).to_be_bytes()[..], &alias].concat();
    let (first, last) = framed.split_at(9);
    assert!(w.resolver.handle_stream(query, first, &mut w.rng, w.now));
    assert!(!w.resolver.handle_stream(query, last, &mut w.rng, w.now));
    assert!(matches!(w.resolver.next_action(), Some(Action::Datagram { .. })));
}

#[test]
fn alias_limits_the_time_of_the_addresses_behind_it() {
    let mut w = World::new(1);
    let followed = name("a.x");
    w.resolver.follow([&followed].into_iter(), w.now);
    w.serve(|_, query| {
        let asked = message::shown(&query[12..]).to_ascii_lowercase();
        Some(match asked.as_str() {
            "a.x" => answer(query, 0, 0, &[Record::Alias("a.x", 20, "b.x")]),
            _ => answer(query, 0, 0, &[Record::Address("b.x", 3600, A)]),
        })
    });
    assert_eq!(w.look("a.x"), Lookup::Known(vec![A]));
    assert_eq!(w.resolver.poll_timeout().unwrap().since(w.now).as_secs(), 5, "of AAAA");
    w.wait(10);
    w.serve_one("b.x", 60, &[]);
    assert_eq!(w.resolver.poll_timeout().unwrap().since(w.now).as_secs(), 10);
}

#[test]
fn server_that_neither_knows_nor_asks_is_followed_by_the_next() {
    let mut w = World::new(2);
    w.look("nas.x");
    w.serve(|to, query| {
        let mut referral = answer(query, 0, 0, &[]);
        referral[3] = 0;
        match to.ip() {
            IpAddr::V4(_) => Some(referral),
            IpAddr::V6(_) => Some(answer(query, 0, 0, &[Record::Address("nas.x", 60, A)])),
        }
    });
    assert_eq!(w.look("nas.x"), Lookup::Known(vec![A]));
    let mut w = World::new(1);
    w.look("nas.x");
    w.serve(|_, query| {
        let mut referral = answer(query, 0, 0, &[]);
        referral[3] = 0;
        Some(referral)
    });
    assert_eq!(w.look("nas.x"), Lookup::Failed(Problem::NotRecursive));
    // An authoritative server's word counts.
    let mut w = World::new(1);
    w.look("nas.x");
    w.serve(|_, query| {
        let mut nothing = answer(query, 4, 0, &[]);
        nothing[3] = 0;
        Some(nothing)
    });
    assert_eq!(w.look("nas.x"), Lookup::Failed(Problem::NoAddress));
}

#[test]
fn all_names_that_fail_at_once_are_reported_and_those_without_room_as_well() {
    let mut w = World::new(0);
    let many: Vec<Name> = (0..300).map(|n| name(&format!("m{n:03}.x"))).collect();
    w.resolver.follow(many.iter(), w.now);
    let event = w.resolver.next_event().unwrap();
    assert_eq!((event.name.as_str(), event.followed), ("m256.x", true));
    assert_eq!(event.lookup, Lookup::Failed(Problem::TooMany));
    assert_eq!(w.resolver.peek(&many[299]), Lookup::Failed(Problem::TooMany));
    w.resolver.follow(many.iter(), w.now);
    assert_eq!(w.resolver.next_event(), None, "it was reported");
    w.wait(15);
    w.poll();
    assert_eq!(core::iter::from_fn(|| w.resolver.next_event()).count(), MOST_NAMES);
    w.resolver.follow(many[..2].iter(), w.now);
    assert_eq!(w.resolver.peek(&many[299]), Lookup::Pending);
    // New names take the places of those that are not followed any more.
    w.resolver.follow(many[250..].iter().chain(&many[..200]), w.now);
    for name in &many[..200] {
        assert_ne!(w.resolver.peek(name), Lookup::Pending, "{name}");
    }
}

#[test]
fn pointers_of_a_name_are_bounded_and_lead_backwards() {
    let query = message::query(7, &message::wire_name("a.x"), Family::V4);
    // A record with a chain of pointers to the name in the question, and one whose owner is their last.
    let parsed = |pointers: usize, owner_ahead: bool| {
        let mut reply = query.clone();
        (reply[2], reply[3], reply[7]) = (0x81, 0x80, 2);
        reply.extend([0, 0, 16, 0, 1, 0, 0, 0, 9]);
        reply.extend((2 * pointers as u16).to_be_bytes());
        let mut last = 12_u16;
        for _ in 0..pointers {
            let here = reply.len() as u16;
            reply.extend((0xc000 | last).to_be_bytes());
            last = here;
        }
        let owner = if owner_ahead { reply.len() as u16 } else { last };
        reply.extend((0xc000 | owner).to_be_bytes());
        reply.extend([0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 10, 0, 0, 1]);
        message::parse(&reply, &query, Family::V4)
    };
    let found = Ok(Reply::Addresses { addresses: vec![A], ttl: 9 });
    assert_eq!(parsed(0, false), found);
    assert_eq!(parsed(15, false), found);
    let nothing = Ok(Reply::Nothing { exists: true, ttl: None });
    assert_eq!(parsed(16, false), nothing);
    assert_eq!(parsed(7000, false), nothing);
    assert_eq!(parsed(0, true), nothing, "it leads to itself");
}
