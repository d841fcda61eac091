//! TLS under queues: keys, names that are bound to the connection, and data.

use super::authentication::{ASCR, ATR, REQUIRED, keys, offer, secret};
use super::*;
use crate::discovery::DISCOVERY_NQN;
use crate::keys::HostKeys;
use nvme_auth::{
    Concatenation, ConfiguredPsk, Derivation, DhGroup, Explanation, Hash, HostConfig, Outcome,
    Version,
};
use tls_psk::{Config, OfferedPsk};

fn psk(hash: Hash, seed: u64) -> ConfiguredPsk {
    ConfiguredPsk::generate(hash, &mut *random(seed))
}

/// The TLS key of [`HOST`].
fn tls_keys(psk: &ConfiguredPsk) -> HostKeys {
    HostKeys { tls: Some(psk.clone()), ..keys(None, None) }
}

fn client(offered: Vec<OfferedPsk>, now: Instant) -> Option<Session> {
    Some(Session::client(Config::default(), offered, &mut *random(5), now))
}

/// A session of a host with this key.
fn session(
    psk: &ConfiguredPsk,
    (host, subsystem): (&str, &str),
    (version, derivation): (Version, Derivation),
    now: Instant,
) -> Option<Session> {
    let (identity, key) = psk.derive(host, subsystem, version, derivation).unwrap();
    client(vec![OfferedPsk { identity: identity.into_bytes(), key }], now)
}

const NEW: (Version, Derivation) = (Version::V1, Derivation::Standard);
const NAMES: (&str, &str) = (HOST, SUBSYSTEM);

/// A target whose subsystem demands TLS, and the host's key.
fn lab() -> (Lab, ConfiguredPsk) {
    let mut lab = Lab::new();
    let psk = psk(Hash::Sha256, 3);
    lab.secure(Demand::Optional, Demand::Required, vec![tls_keys(&psk)]);
    (lab, psk)
}

#[test]
fn blocks_are_moved_over_tls_with_all_kinds_of_keys() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        for version in [Version::V0, Version::V1] {
            for derivation in Derivation::ALL {
                let mut lab = Lab::new();
                lab.digests = 3;
                let psk = psk(hash, 4);
                lab.secure(Demand::Optional, Demand::Required, vec![tls_keys(&psk)]);
                let tls = |now| session(&psk, NAMES, (version, derivation), now);
                let (admin, completion) = lab.begin(tls(lab.now));
                assert_eq!((completion.status, completion.result), (0, 1), "no authentication");
                assert_eq!(lab.simple(admin, Sqe::property_set(CC, ENABLE)).status, 0);
                let io = lab.dial_over(tls(lab.now)).unwrap();
                let data = connect_data(7, 1, SUBSYSTEM, HOST);
                assert_eq!(lab.connect(io, Sqe::connect(1, 128, 0, false), &data).status, 0);
                for (blocks, carry) in [(8, Carry::InCapsule), (256, Carry::Out)] {
                    let bytes = pattern(blocks as usize * 512, blocks as u8);
                    let window = lab.memory(&bytes);
                    assert_eq!(lab.execute(io, write(3, blocks), window, carry).status, 0);
                    assert_eq!(lab.fetch(io, read(3, blocks), bytes.len()).unwrap(), bytes);
                }
                let proofs: Vec<_> = lab.target.controllers().map(|it| it.proof.name()).collect();
                assert_eq!(proofs, ["TLS"]);
                assert_eq!(lab.target.security_counts().handshakes, 2);
                assert_eq!(lab.refusals(), [""; 0]);
            }
        }
    }
}

#[test]
fn host_in_clear_is_refused_where_tls_is_demanded() {
    let (mut lab, psk) = lab();
    let (link, completion) = lab.begin(None);
    assert_eq!(completion.status, 0x4191);
    assert!(!lab.is_open(link));
    assert_eq!(lab.refusals(), ["tls_required"]);
    // A host that has only a TLS key needs it everywhere.
    lab.secure(Demand::Optional, Demand::Optional, vec![tls_keys(&psk)]);
    assert_eq!(lab.begin(None).1.status, 0x4191);
    // Others are not concerned.
    let other = HostKeys { nqn: OTHER.into(), ..tls_keys(&psk) };
    lab.secure(Demand::Optional, Demand::Optional, vec![other]);
    assert_eq!(lab.begin(None).1.status, 0);
}

#[test]
fn wrong_key_and_unknown_identity_are_refused_alike() {
    let (mut lab, right) = lab();
    let wrong = psk(Hash::Sha256, 9);
    let stranger = (OTHER, SUBSYSTEM);
    let elsewhere = (HOST, "nqn.2026-01.example:none");
    for (psk, names) in [(&wrong, NAMES), (&right, stranger), (&right, elsewhere)] {
        let link = lab.dial_over(session(psk, names, NEW, lab.now)).unwrap();
        assert!(!lab.is_open(link));
        let tls = lab.links[link].tls.as_ref().unwrap();
        let failure = tls.failure().unwrap().to_string();
        assert!(!tls.is_open() && failure.contains("decrypt_error"), "{failure}");
        assert_eq!(lab.refusals(), ["tls_key"]);
    }
    assert_eq!((lab.target.queues(), lab.target.security_counts().handshakes_failed), (0, 3));
}

#[test]
fn connect_has_the_names_of_the_tls_identity() {
    let mut lab = Lab::new();
    let psk = psk(Hash::Sha256, 3);
    let mut second = subsystem(vec![]);
    second.nqn = "nqn.2026-01.example:other".into();
    let mut first = subsystem(vec![namespace(1, "ram0")]);
    first.hosts = HostList::All;
    lab.target.set_keys(vec![tls_keys(&psk)], Default::default());
    lab.target.configure(vec![first, second.clone()], &lab.volumes);
    for (subsystem, host, offset) in
        [(SUBSYSTEM, OTHER, 512), (second.nqn.as_str(), HOST, 256), (DISCOVERY_NQN, HOST, 256)]
    {
        let link = lab.dial_over(session(&psk, NAMES, NEW, lab.now)).unwrap();
        let data = connect_data(7, 0xffff, subsystem, host);
        let completion = lab.connect(link, Sqe::connect(0, 32, 5000, false), &data);
        assert_eq!((completion.status, completion.result), (0x4182, offset | 1 << 16));
        assert_eq!(lab.refusals(), ["tls_identity"]);
        assert!(!lab.is_open(link));
    }
    // Discovery over TLS has an identity of its own.
    let names = (HOST, DISCOVERY_NQN);
    let link = lab.dial_over(session(&psk, names, NEW, lab.now)).unwrap();
    let data = connect_data(7, 0xffff, DISCOVERY_NQN, HOST);
    assert_eq!(lab.connect(link, Sqe::connect(0, 32, 0, false), &data).status, 0);
}

#[test]
fn io_queue_in_clear_does_not_join_a_controller_over_tls() {
    let (mut lab, psk) = lab();
    let (admin, _) = lab.begin(session(&psk, NAMES, NEW, lab.now));
    assert_eq!(lab.simple(admin, Sqe::property_set(CC, ENABLE)).status, 0);
    assert_eq!(lab.io(1, 1).unwrap_err().status, 0x4191);
    assert_eq!(lab.refusals(), ["other_channel"]);
    // Without its key, the host is disconnected.
    lab.secure(Demand::Optional, Demand::Optional, vec![]);
    assert!(!lab.is_open(admin));
}

#[test]
fn both_proofs_are_needed_where_both_are_demanded() {
    let mut lab = Lab::new();
    let psk = psk(Hash::Sha384, 3);
    let both = HostKeys { tls: Some(psk.clone()), ..keys(Some(1), None) };
    lab.secure(Demand::Required, Demand::Required, vec![both]);
    let (admin, completion) = lab.begin(session(&psk, NAMES, NEW, lab.now));
    assert_eq!((completion.status, completion.result), (0, ATR | 1));
    assert_eq!(lab.simple(admin, Sqe::property_set(CC, ENABLE)).status, REQUIRED);
    let (outcome, ..) = lab.authenticate(admin, offer(DhGroup::Null), (&secret(1), None));
    assert!(matches!(outcome, Outcome::Authenticated { .. }));
    assert_eq!(lab.simple(admin, Sqe::property_set(CC, ENABLE)).status, 0);
}

#[test]
fn authentication_makes_a_tls_key_for_the_next_connection() {
    let mut lab = Lab::new();
    lab.secure(Demand::Optional, Demand::Required, vec![keys(Some(1), None)]);
    // Without secure concatenation, a host in clear fails.
    let (plain, completion) = lab.begin(None);
    assert_eq!((completion.status, completion.result), (0, ATR | ASCR | 1));
    let (outcome, ..) = lab.authenticate(plain, offer(DhGroup::Ffdhe2048), (&secret(1), None));
    let Outcome::Failed { explanation, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(explanation, Explanation::ConcatenationMismatch);
    lab.cut(plain);
    let (first, _) = lab.begin(None);
    let concat = HostConfig { concatenation: Concatenation::New, ..offer(DhGroup::Ffdhe2048) };
    let (outcome, _, generated) = lab.authenticate(first, concat, (&secret(1), None));
    assert!(matches!(outcome, Outcome::Authenticated { .. }), "{outcome:?}");
    assert_eq!(lab.simple(first, Sqe::property_set(CC, ENABLE)).status, REQUIRED, "in clear");
    lab.cut(first);
    let generated = generated.unwrap();
    let tls = |now| {
        let (identity, key) = (generated.identity.clone().into_bytes(), generated.psk.clone());
        client(vec![OfferedPsk { identity, key }], now)
    };
    let (admin, completion) = lab.begin(tls(lab.now));
    assert_eq!((completion.status, completion.result & ATR), (0, 0));
    assert_eq!(lab.simple(admin, Sqe::property_set(CC, ENABLE)).status, 0);
    let io = lab.dial_over(tls(lab.now)).unwrap();
    let data = connect_data(7, completion.result as u16, SUBSYSTEM, HOST);
    assert_eq!(lab.connect(io, Sqe::connect(1, 128, 0, false), &data).status, 0);
    assert!(lab.fetch(io, read(0, 8), 4096).is_ok());
    let proofs: Vec<_> = lab.target.controllers().map(|one| one.proof.name()).collect();
    assert_eq!(proofs, ["DH-HMAC-CHAP with TLS"]);
    // The key dies after an hour.
    lab.now = lab.now + Duration::from_secs(3601);
    let late = lab.dial_over(tls(lab.now)).unwrap();
    assert!(!lab.is_open(late));
    lab.secure(Demand::Optional, Demand::Required, vec![]);
    assert!(!lab.is_open(admin));
}

/// An operator replaces a leaked secret.
#[test]
fn replaced_secret_deletes_the_keys_generated_with_it() {
    let mut lab = Lab::new();
    lab.secure(Demand::Optional, Demand::Required, vec![keys(Some(1), None)]);
    let (first, _) = lab.begin(None);
    let concat = HostConfig { concatenation: Concatenation::New, ..offer(DhGroup::Ffdhe2048) };
    let (_, _, generated) = lab.authenticate(first, concat, (&secret(1), None));
    let generated = generated.unwrap();
    let tls = |now| {
        let (identity, key) = (generated.identity.clone().into_bytes(), generated.psk.clone());
        client(vec![OfferedPsk { identity, key }], now)
    };
    // What else changes is no matter.
    lab.secure(Demand::Optional, Demand::Required, vec![keys(Some(1), Some(9))]);
    let (admin, completion) = lab.begin(tls(lab.now));
    assert_eq!(completion.status, 0);
    lab.secure(Demand::Optional, Demand::Required, vec![keys(Some(2), None)]);
    let late = lab.dial_over(tls(lab.now)).unwrap();
    assert!(lab.is_open(admin) && !lab.is_open(late));
}

#[test]
fn discovery_says_which_subsystems_need_tls() {
    let (mut lab, _) = lab();
    let (link, _) = lab.admin_of(DISCOVERY_NQN, HOST, 9).unwrap();
    let log = lab.fetch(link, Sqe::log(0x70, 0, 0, 2048), 2048).unwrap();
    assert_eq!((log[1024 + 3], log[1024 + 768]), (5, 2), "TREQ required, TLS 1.3");
    lab.secure(Demand::Optional, Demand::Optional, vec![]);
    let log = lab.fetch(link, Sqe::log(0x70, 0, 0, 2048), 2048).unwrap();
    assert_eq!((log[1024 + 3], log[1024 + 768]), (4, 0));
}

#[test]
fn tls_without_any_key_and_garbage_end_the_connection() {
    let mut lab = Lab::new();
    let psk = psk(Hash::Sha256, 3);
    let link = lab.dial_over(session(&psk, NAMES, NEW, lab.now)).unwrap();
    assert!(!lab.is_open(link));
    assert_eq!(lab.refusals(), ["tls_not_configured"]);
    lab.secure(Demand::Optional, Demand::Optional, vec![tls_keys(&psk)]);
    for garbage in [&[0x16, 3, 1, 0xff, 0xff][..], &[0x16, 3, 1, 0, 4, 1, 0, 0, 0]] {
        let link = lab.open(None).unwrap();
        lab.links[link].host.unsent = garbage.to_vec();
        lab.run();
        assert!(!lab.is_open(link));
        assert_eq!(lab.refusals(), ["tls_failed"]);
    }
    assert_eq!(lab.target.queues(), 0);
    // A handshake that stops is a connection without a Connect.
    let link = lab.open(None).unwrap();
    lab.links[link].host.unsent = vec![0x16, 3, 1, 0x10, 0];
    lab.wait(32);
    assert!(!lab.is_open(link));
    assert_eq!((lab.refusals().len(), lab.target.queues()), (1, 0));
}

#[test]
fn many_handshakes_at_once_take_turns() {
    let (mut lab, psk) = lab();
    for _ in 0..12 {
        let tls = session(&psk, NAMES, NEW, lab.now);
        lab.open(tls).unwrap();
    }
    lab.run();
    assert!(lab.links.iter().all(|link| link.tls.as_ref().unwrap().is_open()));
    assert_eq!(lab.target.security_counts().handshakes, 12);
}
