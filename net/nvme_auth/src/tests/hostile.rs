//! Messages of hostile hosts and controllers.

use super::{World, host_config, random};
use crate::{
    Answer, Channel, Concatenation, DhGroup, Explanation, Hash, HostConfig, Outcome, Policy,
};
use netsim::Rng;
use std::vec::Vec;

fn world(group: DhGroup, mutual: bool) -> World {
    World::new(host_config(group, Hash::Sha256), mutual, Channel::Clear, Policy::Allowed)
}

/// The explanation with which the target rejects the message that `change` makes of the host's message after `steps`.
fn rejection(
    world: &mut World,
    steps: usize,
    change: impl FnOnce(&mut Vec<u8>),
) -> Option<Explanation> {
    (0..steps).for_each(|_| assert!(world.step()));
    let mut message = Vec::from(world.host.outgoing().expect("a message"));
    change(&mut message);
    world.send(&message);
    while world.target.work(1000) {}
    match world.target.take_outcome() {
        Some(Outcome::Failed { explanation, .. }) => {
            let Answer::Message(failure) = world.target.fetch(8) else { panic!("no Failure1") };
            assert_eq!(failure[..2], [0, 0xf1]);
            assert_eq!(failure[6..], [1, explanation.code()]);
            assert!(world.target.has_failed() && !world.target.is_authenticated());
            Some(explanation)
        }
        _ => None,
    }
}

#[test]
fn negotiate_is_rejected_with_its_explanation() {
    type Change = fn(&mut Vec<u8>);
    let cases: &[(&str, Change, Option<Explanation>)] = &[
        ("as it should be", |_| (), None),
        ("longer", |message| message.resize(4096, 0xff), None),
        ("short", |message| message.truncate(71), Some(Explanation::IncorrectPayload)),
        ("head only", |message| message.truncate(6), Some(Explanation::IncorrectPayload)),
        ("half a head", |message| message.truncate(5), Some(Explanation::IncorrectPayload)),
        ("nothing", Vec::clear, Some(Explanation::IncorrectPayload)),
        ("sc_c 1", |message| message[6] = 1, Some(Explanation::ConcatenationMismatch)),
        ("sc_c 255", |message| message[6] = 255, Some(Explanation::ConcatenationMismatch)),
        ("two descriptors", |message| message[7] = 2, Some(Explanation::IncorrectPayload)),
        ("255 descriptors", |message| message[7] = 255, Some(Explanation::IncorrectPayload)),
        ("no descriptor", |message| message[7] = 0, Some(Explanation::ProtocolUnusable)),
        ("other protocol", |message| message[8] = 2, Some(Explanation::ProtocolUnusable)),
        ("31 hashes", |message| message[10] = 31, Some(Explanation::IncorrectPayload)),
        ("31 groups", |message| message[11] = 31, Some(Explanation::IncorrectPayload)),
        ("no hash", |message| message[10] = 0, Some(Explanation::HashUnusable)),
        ("unknown hash", |message| message[12] = 4, Some(Explanation::HashUnusable)),
        ("hash 0", |message| message[12] = 0, Some(Explanation::HashUnusable)),
        ("no group", |message| message[11] = 0, Some(Explanation::GroupUnusable)),
        ("unknown group", |message| message[42] = 6, Some(Explanation::GroupUnusable)),
    ];
    for (name, change, expected) in cases {
        let mut world = world(DhGroup::Ffdhe2048, false);
        assert_eq!(rejection(&mut world, 0, change), *expected, "{name}");
    }
}

#[test]
fn groups_that_are_not_configured_are_not_used() {
    for group in [DhGroup::Ffdhe4096, DhGroup::Ffdhe6144, DhGroup::Ffdhe8192] {
        let mut world = world(group, false);
        world.config.groups = DhGroup::USUAL.into();
        assert_eq!(rejection(&mut world, 0, |_| ()), Some(Explanation::GroupUnusable));
    }
}

#[test]
fn second_descriptor_is_used_if_the_first_is_of_another_protocol() {
    let mut world = world(DhGroup::Null, false);
    let change = |message: &mut Vec<u8>| {
        let own = message[8..72].to_vec();
        message[8..72].fill(2);
        message.extend(own);
        message[7] = 2;
    };
    assert_eq!(rejection(&mut world, 0, change), None);
    assert!(matches!(world.target.fetch(4096), Answer::Message(_)));
}

#[test]
fn reply_is_rejected_with_its_explanation() {
    type Change = fn(&mut Vec<u8>);
    let cases: &[(&str, Change, Option<Explanation>)] = &[
        ("as it should be", |_| (), None),
        ("longer", |message| message.push(0), None),
        ("other response", |message| message[16] ^= 1, Some(Explanation::Failed)),
        ("last byte of the response", |message| message[47] ^= 0x80, Some(Explanation::Failed)),
        ("other transaction", |message| message[4] ^= 1, Some(Explanation::IncorrectPayload)),
        ("short", |message| message.truncate(335), Some(Explanation::IncorrectPayload)),
        ("other hash length", |message| message[6] = 48, Some(Explanation::IncorrectPayload)),
        ("no hash length", |message| message[6] = 0, Some(Explanation::IncorrectPayload)),
        ("long hash", |message| message[6] = 255, Some(Explanation::IncorrectPayload)),
        ("no public value", |message| message[11] = 0, Some(Explanation::IncorrectPayload)),
        ("long public value", |message| message[11] = 0xff, Some(Explanation::IncorrectPayload)),
        ("public value 0", |message| message[80..].fill(0), Some(Explanation::GroupUnusable)),
        (
            "public value p and more",
            |message| message[80..].fill(0xff),
            Some(Explanation::GroupUnusable),
        ),
        ("other public value", |message| message[200] ^= 1, Some(Explanation::Failed)),
        (
            "C2 without number",
            |message| message[12..16].fill(0),
            Some(Explanation::IncorrectPayload),
        ),
        ("Success2", |message| message[1] = 4, Some(Explanation::IncorrectMessage)),
        ("Challenge", |message| message[1] = 1, Some(Explanation::IncorrectMessage)),
        ("unknown", |message| message[0] = 9, Some(Explanation::IncorrectMessage)),
        (
            "Failure1",
            |message| message[..2].copy_from_slice(&[0, 0xf1]),
            Some(Explanation::IncorrectMessage),
        ),
    ];
    for (name, change, expected) in cases {
        let mut world = world(DhGroup::Ffdhe2048, true);
        assert_eq!(rejection(&mut world, 2, change), *expected, "{name}");
    }
}

/// A host without a secret reflects the values of the target.
#[test]
fn own_challenge_and_own_public_value_are_not_taken_back() {
    let mut first = world(DhGroup::Ffdhe2048, true);
    first.step();
    let challenge = first.fetch();
    first.give(&challenge);
    let mut reply = Vec::from(first.host.outgoing().unwrap());
    reply[48..80].copy_from_slice(&challenge[16..48]);
    assert_eq!(rejection(&mut first, 0, |message| *message = reply), Some(Explanation::Failed));
    let mut second = world(DhGroup::Ffdhe2048, true);
    second.step();
    let challenge = second.fetch();
    second.give(&challenge);
    let change = |message: &mut Vec<u8>| message[80..].copy_from_slice(&challenge[48..]);
    assert_eq!(rejection(&mut second, 0, change), Some(Explanation::GroupUnusable));
}

#[test]
fn challenge_is_used_once() {
    // A wrong reply consumes it, and a right one, too.
    let mut world = world(DhGroup::Null, false);
    (0..2).for_each(|_| assert!(world.step()));
    let reply = Vec::from(world.host.outgoing().unwrap());
    world.run();
    assert!(world.target.is_authenticated());
    world.send(&reply);
    assert!(!world.target.is_authenticated(), "a repeated Reply is not expected");
    assert!(matches!(
        world.target.take_outcome(),
        Some(Outcome::Failed { explanation: Explanation::IncorrectMessage, .. })
    ));
}

#[test]
fn recorded_reply_does_not_answer_another_challenge() {
    let mut first = world(DhGroup::Null, false);
    (0..2).for_each(|_| assert!(first.step()));
    let reply = Vec::from(first.host.outgoing().unwrap());
    // The same target challenges again, as after a reconnect.
    let mut second = world(DhGroup::Null, false);
    second.random = std::boxed::Box::new(random(99));
    second.step();
    second.fetch();
    second.send(&reply);
    assert!(matches!(second.target.take_outcome(), Some(Outcome::Failed { .. })));
}

#[test]
fn ten_thousand_negotiations_leave_one_transaction() {
    let mut world = world(DhGroup::Ffdhe2048, false);
    let negotiate = Vec::from(world.host.outgoing().unwrap());
    for n in 0..10_000 {
        assert!(world.send(&negotiate));
        if n % 3 == 0 {
            world.target.work(1);
        }
    }
    world.run();
    assert!(world.target.is_authenticated());
}

#[test]
fn concatenation_without_a_challenge_of_the_host_fails() {
    let offer = HostConfig {
        concatenation: Concatenation::New,
        ..host_config(DhGroup::Ffdhe2048, Hash::Sha256)
    };
    let mut world = World::new(offer, false, Channel::Clear, Policy::Allowed);
    let change = |message: &mut Vec<u8>| message[8] = 0;
    assert_eq!(rejection(&mut world, 2, change), Some(Explanation::Failed));
    assert!(world.target.take_generated().is_none());
}

#[test]
fn controllers_messages_are_rejected_with_failure2() {
    type Change = fn(&mut Vec<u8>);
    let challenges: &[(&str, Change, Explanation)] = &[
        ("short", |message| message.truncate(100), Explanation::IncorrectPayload),
        ("nothing", Vec::clear, Explanation::IncorrectPayload),
        ("other transaction", |message| message[5] ^= 1, Explanation::IncorrectPayload),
        ("other hash", |message| message[8] = 2, Explanation::HashUnusable),
        ("other length of hash", |message| message[6] = 31, Explanation::HashUnusable),
        ("other group", |message| message[9] = 2, Explanation::GroupUnusable),
        ("null group", |message| message[9] = 0, Explanation::GroupUnusable),
        ("no value", |message| message[11] = 0, Explanation::GroupUnusable),
        ("value 0", |message| message[48..].fill(0), Explanation::GroupUnusable),
        ("Success1", |message| message[1] = 3, Explanation::IncorrectMessage),
    ];
    for (name, change, expected) in challenges {
        let mut world = world(DhGroup::Ffdhe2048, true);
        world.step();
        let mut message = world.fetch();
        change(&mut message);
        world.give(&message);
        let failure = Vec::from(world.host.outgoing().expect(name));
        assert_eq!((&failure[..2], failure[7]), (&[0, 0xf0][..], expected.code()), "{name}");
        assert_eq!(world.host.outcome(), None, "it is sent first");
        world.send(&failure);
        world.host.sent();
        assert!(matches!(world.host.outcome(), Some(Outcome::Failed { .. })), "{name}");
        assert!(world.target.has_failed());
    }
    let successes: &[(&str, Change)] = &[
        ("other response", |message| message[16] ^= 1),
        ("no response", |message| message[8] = 0),
        ("other length", |message| message[6] = 48),
        ("short", |message| message.truncate(40)),
        ("Challenge", |message| message[1] = 1),
    ];
    for (name, change) in successes {
        let mut world = world(DhGroup::Null, true);
        (0..3).for_each(|_| assert!(world.step()));
        let mut message = world.fetch();
        change(&mut message);
        world.give(&message);
        world.host.sent();
        assert!(matches!(world.host.outcome(), Some(Outcome::Failed { .. })), "{name}");
        assert!(world.host.take_generated().is_none());
    }
}

#[test]
fn random_messages_never_authenticate() {
    let mut rng = Rng::new(4);
    for _ in 0..2_000 {
        let mut world = world(DhGroup::Null, true);
        let steps = rng.within(0..4);
        for _ in 0..steps {
            world.step();
        }
        let len = rng.within(0..200) as usize;
        let mut message: Vec<u8> = (0..len).map(|_| rng.within(0..256) as u8).collect();
        let kinds = [[0, 0], [1, 2], [1, 4], [0, 0xf0]];
        if len >= 6 {
            message[..2].copy_from_slice(&kinds[rng.within(0..4) as usize]);
            message[4..6].copy_from_slice(&[0x34, 0x12]);
        }
        world.send(&message);
        world.target.work(u32::MAX);
        world.target.fetch(4096);
        // Success2 has no contents, so only a host that has seen the right Success1 may send it.
        let is_success2 = message.starts_with(&[1, 4]) && steps == 4;
        assert!(!world.target.is_authenticated() || is_success2);
    }
}
