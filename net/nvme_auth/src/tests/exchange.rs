//! Host against target.

use super::{HOST, NOW, SUBSYSTEM, World, host_config};
use crate::{
    Answer, Channel, Concatenation, DhGroup, DhchapSecret, Explanation, Hash, Host, HostConfig,
    Outcome, Policy, TargetKeys,
};
use drivers::hal::Instant;
use std::time::Duration;

fn world(group: DhGroup, hash: Hash, mutual: bool) -> World {
    World::new(host_config(group, hash), mutual, Channel::Clear, Policy::Never)
}

#[test]
fn every_hash_and_group_authenticates_one_way_and_both_ways() {
    for hash in [Hash::Sha256, Hash::Sha384, Hash::Sha512] {
        for group in DhGroup::ALL {
            // The large groups differ only in their numbers.
            if *group > DhGroup::Ffdhe3072 && hash != Hash::Sha384 {
                continue;
            }
            for mutual in [false, true] {
                let mut world = world(*group, hash, mutual);
                world.run();
                let expected = Some(Outcome::Authenticated { mutually: mutual });
                assert_eq!(world.host.outcome(), expected, "{hash:?} {group:?}");
                assert_eq!(world.target.take_outcome(), expected, "{hash:?} {group:?}");
                assert!(world.target.is_authenticated() && !world.target.is_pending());
                assert!(world.target.take_generated().is_none());
                assert_eq!(world.target.poll_timeout(), None);
            }
        }
    }
}

#[test]
fn preferred_hash_and_group_of_the_target_are_chosen() {
    let offer = HostConfig {
        hashes: [Hash::Sha512, Hash::Sha384].into(),
        groups: [DhGroup::Null, DhGroup::Ffdhe2048].into(),
        ..host_config(DhGroup::Null, Hash::Sha256)
    };
    let mut world = World::new(offer, false, Channel::Clear, Policy::Never);
    world.config.groups = DhGroup::USUAL.into();
    world.step();
    let challenge = world.fetch();
    assert_eq!(challenge[..2], [1, 1]);
    assert_eq!((challenge[6], challenge[8], challenge[9]), (48, 2, 1), "SHA-384 and ffdhe2048");
}

#[test]
fn wrong_host_secret_leads_to_failure1_and_no_access() {
    for group in [DhGroup::Null, DhGroup::Ffdhe2048] {
        let mut world = world(group, Hash::Sha256, true);
        world.host_secret = DhchapSecret::generate(None, &mut *world.random);
        world.run();
        let Some(Outcome::Failed { explanation, why }) = world.target.take_outcome() else {
            panic!("{:?}", world.target);
        };
        assert_eq!(explanation, Explanation::Failed);
        assert!(why.contains("host's secret"), "{why}");
        assert!(matches!(
            world.host.outcome(),
            Some(Outcome::Failed { explanation: Explanation::Failed, .. })
        ));
        assert!(!world.target.is_authenticated() && world.target.has_failed());
        assert!(!world.send(&[0, 0, 0, 0, 0, 0, 0, 0]), "nothing more is taken");
        assert_eq!(world.target.fetch(4096), Answer::OutOfOrder);
    }
}

#[test]
fn wrong_controller_secret_leads_to_failure2() {
    let mut world = world(DhGroup::Ffdhe2048, Hash::Sha256, true);
    world.controller_secret = Some(DhchapSecret::generate(None, &mut *world.random));
    world.run();
    assert!(matches!(world.host.outcome(), Some(Outcome::Failed { .. })));
    assert!(matches!(
        world.target.take_outcome(),
        Some(Outcome::Failed { explanation: Explanation::Failed, .. })
    ));
    assert!(!world.target.is_authenticated() && world.target.has_failed());
}

#[test]
fn challenged_target_without_secret_rejects_the_host() {
    let mut world = world(DhGroup::Null, Hash::Sha256, true);
    world.controller_secret = None;
    world.run();
    let Some(Outcome::Failed { why, .. }) = world.target.take_outcome() else { panic!() };
    assert!(why.contains("configure the controller's secret"), "{why}");
}

#[test]
fn success1_alone_does_not_authenticate_if_the_host_has_challenged() {
    let mut world = world(DhGroup::Null, Hash::Sha256, true);
    (0..4).for_each(|_| assert!(world.step()));
    assert!(!world.target.is_authenticated(), "Success2 is missing");
    world.step();
    assert!(world.target.is_authenticated());
}

fn concatenation(kind: Concatenation, channel: Channel, policy: Policy, mutual: bool) -> World {
    let offer = HostConfig {
        hashes: [Hash::Sha512, Hash::Sha384, Hash::Sha256].into(),
        groups: [DhGroup::Null, DhGroup::Ffdhe2048].into(),
        concatenation: kind,
        timeout: Duration::from_secs(30),
    };
    World::new(offer, mutual, channel, policy)
}

#[test]
fn secure_concatenation_gives_both_ends_the_same_tls_key() {
    let cases = [
        (Concatenation::New, Channel::Clear, Policy::Allowed),
        (Concatenation::New, Channel::Clear, Policy::Required),
        (Concatenation::Replace, Channel::Generated, Policy::Allowed),
    ];
    for (kind, channel, policy) in cases {
        for mutual in [false, true] {
            let mut world = concatenation(kind, channel, policy, mutual);
            // As a host of Linux orders them, which the target's preference overrides.
            world.config.hashes = [Hash::Sha512, Hash::Sha384].into();
            (0..3).for_each(|_| assert!(world.step()));
            while world.target.work(10) {}
            let psk = world.target.take_generated().expect("before Success1 is fetched");
            world.run();
            let expected = Some(Outcome::Authenticated { mutually: mutual });
            assert_eq!((world.target.take_outcome(), world.host.outcome()), (expected, expected));
            let own = world.host.take_generated().unwrap();
            assert_eq!(own.identity, psk.identity);
            assert!(own.identity.starts_with("NVMe1G02 "), "no SHA-512: {}", own.identity);
            assert!(own.psk.key.equals(psk.psk.key.as_bytes()));
        }
    }
}

#[test]
fn secure_concatenation_that_does_not_fit_is_a_mismatch() {
    let cases = [
        (Concatenation::New, Channel::Clear, Policy::Never, true),
        (Concatenation::New, Channel::Clear, Policy::Allowed, false),
        (Concatenation::New, Channel::Tls, Policy::Allowed, true),
        (Concatenation::New, Channel::Generated, Policy::Allowed, true),
        (Concatenation::Replace, Channel::Clear, Policy::Allowed, true),
        (Concatenation::Replace, Channel::Tls, Policy::Allowed, true),
        (Concatenation::None, Channel::Clear, Policy::Required, true),
    ];
    for (kind, channel, policy, is_admin) in cases {
        let mut world = concatenation(kind, channel, policy, false);
        world.target = crate::Target::new(HOST, SUBSYSTEM, is_admin, channel, policy);
        world.run();
        assert!(
            matches!(
                world.target.take_outcome(),
                Some(Outcome::Failed { explanation: Explanation::ConcatenationMismatch, .. })
            ),
            "{kind:?} {channel:?} {policy:?}"
        );
        assert!(world.host.take_generated().is_none());
    }
    // A queue under TLS needs no concatenation.
    let mut world = concatenation(Concatenation::None, Channel::Tls, Policy::Required, false);
    world.run();
    assert!(world.target.is_authenticated());
}

#[test]
fn queue_authenticates_again_with_the_new_secret() {
    let mut world = world(DhGroup::Ffdhe2048, Hash::Sha256, false);
    world.run();
    assert!(world.target.is_authenticated());
    world.target.require();
    assert!(!world.target.is_authenticated());
    let new = DhchapSecret::generate(Some(Hash::Sha512), &mut *world.random);
    for secret in [new.clone(), DhchapSecret::generate(None, &mut *world.random)] {
        world.host_secret = new.clone();
        let offer = host_config(DhGroup::Ffdhe2048, Hash::Sha384);
        world.host = Host::new(HOST, SUBSYSTEM, offer, (&secret, None), 2, NOW);
        world.run();
        let right = secret.text() == new.text();
        assert_eq!(world.target.is_authenticated(), right);
        assert_eq!(matches!(world.host.outcome(), Some(Outcome::Authenticated { .. })), right);
    }
}

#[test]
fn unfinished_authentication_ends_at_its_deadline() {
    for steps in 1..4 {
        let mut world = world(DhGroup::Ffdhe2048, Hash::Sha256, true);
        (0..steps).for_each(|_| assert!(world.step()));
        let deadline = world.target.poll_timeout().expect("it is pending");
        assert!(world.target.is_pending());
        world.target.poll(Instant::from_nanos(deadline.as_nanos() - 1));
        assert_eq!(world.target.take_outcome(), None);
        world.target.poll(deadline);
        assert_eq!(world.target.take_outcome(), Some(Outcome::Slow));
        assert!(!world.target.is_pending() && !world.target.wants_work());
        world.host.poll(world.host.poll_timeout().unwrap());
        assert_eq!(world.host.outcome(), Some(Outcome::Slow));
        assert!(!world.host.wants_message() && world.host.outgoing().is_none());
    }
}

#[test]
fn short_buffer_of_the_host_keeps_the_message() {
    let mut world = world(DhGroup::Ffdhe2048, Hash::Sha256, false);
    world.step();
    assert_eq!(world.target.fetch(4096), Answer::Busy);
    while world.target.work(100) {}
    let need = 16 + 32 + 256;
    assert_eq!(world.target.fetch(need - 1), Answer::TooShort(need));
    assert_eq!(world.target.fetch(0), Answer::TooShort(need));
    let Answer::Message(message) = world.target.fetch(need) else { panic!() };
    assert_eq!(message.len(), need);
    assert_eq!(world.target.fetch(4096), Answer::OutOfOrder, "Reply is owed");
    world.give(&message);
    world.run();
    assert!(world.target.is_authenticated());
}

#[test]
fn work_is_bounded_by_its_slices() {
    let mut world = world(DhGroup::Ffdhe3072, Hash::Sha256, false);
    world.step();
    let mut count = 0;
    while world.target.work(20) {
        count += 1;
    }
    // 80 windows of 5 multiplications and a table of 14, in slices of 20.
    assert!((18..=23).contains(&count), "{count} slices");
    world.run();
    assert!(world.target.is_authenticated());
}

#[test]
fn host_that_begins_anew_gets_no_more_time() {
    let offer = host_config(DhGroup::Null, Hash::Sha256);
    let mut world = World::new(offer, false, Channel::Clear, Policy::Never);
    let negotiate = world.host.outgoing().map(|it| it.to_vec()).expect("it begins");
    assert!(world.send(&negotiate));
    let deadline = world.target.poll_timeout().expect("it is pending");
    let keys = TargetKeys { host: &world.host_secret, controller: None };
    let (sequence, later) = (&mut world.sequences[0], NOW + Duration::from_secs(20));
    let random = &mut *world.random;
    assert!(world.target.receive(&negotiate, keys, &world.config, sequence, random, later));
    assert_eq!(world.target.poll_timeout(), Some(deadline));
    world.target.poll(deadline);
    assert_eq!(world.target.take_outcome(), Some(Outcome::Slow));
}
