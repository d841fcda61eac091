//! Text forms of secrets and keys, and identities.

use super::{HOST, SUBSYSTEM, random};
use crate::{
    ConfiguredPsk, Derivation, DhchapSecret, Hash, Identity, Pending, PskError, SecretError,
    Sequence, Version,
};
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

const SECRET: &str = "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";

#[test]
fn malformed_secrets_are_rejected_with_their_reason() {
    let body = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH";
    let cases: &[(String, SecretError)] = &[
        ("".into(), SecretError::Form),
        ("DHHC-1".into(), SecretError::Form),
        ("DHHC-1:01".into(), SecretError::Form),
        (format!("DHHC-2:01:{body}:"), SecretError::Form),
        (format!("dhhc-1:01:{body}:"), SecretError::Form),
        (format!("DHHC-1:1:{body}:"), SecretError::Transformation),
        (format!("DHHC-1:04:{body}:"), SecretError::Transformation),
        (format!("DHHC-1:+1:{body}:"), SecretError::Transformation),
        (format!("DHHC-1:01:{body}::"), SecretError::Key),
        (format!("DHHC-1:01:{body}: "), SecretError::Key),
        (format!("DHHC-1:01:{}:", &body[4..]), SecretError::Crc),
        (format!("DHHC-1:01:{}:", &body[..44]), SecretError::Crc),
        (format!("DHHC-1:01:{}:", &body[1..]), SecretError::Key),
        (format!("DHHC-1:01:{}:", body.replace('A', "B")), SecretError::Crc),
        ("DHHC-1:01::".into(), SecretError::Key),
        // The CRC of nothing is 0; a key of no bytes is too short.
        ("DHHC-1:01:AAAAAA==:".into(), SecretError::Key),
        (format!("DHHC-1:01:{}:", "A".repeat(4096)), SecretError::Key),
    ];
    for (text, expected) in cases {
        assert_eq!(DhchapSecret::parse(text).unwrap_err(), *expected, "{text}");
        assert!(!expected.to_string().contains(body));
    }
    assert!(DhchapSecret::parse(SECRET.trim_end_matches(':')).is_ok(), "as Linux takes it");
}

#[test]
fn generated_texts_are_read_back_and_are_not_shown() {
    for hash in [None, Some(Hash::Sha256), Some(Hash::Sha384), Some(Hash::Sha512)] {
        let secret = DhchapSecret::generate(hash, &mut random(3));
        let again = DhchapSecret::parse(&secret.text()).unwrap();
        assert!(again.transformed("n").equals(secret.transformed("n").as_bytes()));
        let shown = format!("{secret:?}");
        assert!(!shown.contains(&secret.text()[10..20]), "{shown}");
    }
    for hash in [Hash::Sha256, Hash::Sha384] {
        let psk = ConfiguredPsk::generate(hash, &mut random(4));
        let again = ConfiguredPsk::parse(&psk.text()).unwrap();
        assert_eq!((again.hash(), &*again.text()), (hash, &*psk.text()));
    }
}

#[test]
fn malformed_tls_keys_are_rejected_with_their_reason() {
    let body = "VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ";
    let cases = [
        (format!("NVMeTLSkey-2:01:{body}:"), PskError::Form),
        (format!("NVMeTLSkey-1:{body}"), PskError::Form),
        (format!("NVMeTLSkey-1:03:{body}:"), PskError::Hash),
        // The length is not that of SHA-384.
        (format!("NVMeTLSkey-1:02:{body}:"), PskError::Key),
        (format!("NVMeTLSkey-1:01:{}:", body.replace('V', "W")), PskError::Crc),
        (format!("NVMeTLSkey-1:01:{body}!:"), PskError::Key),
    ];
    for (text, expected) in cases {
        assert_eq!(ConfiguredPsk::parse(&text).unwrap_err(), expected, "{text}");
    }
    assert_eq!(
        ConfiguredPsk::parse(&format!("NVMeTLSkey-1:00:{body}:")).unwrap().hash(),
        Hash::Sha256
    );
}

#[test]
fn candidates_are_the_keys_that_have_the_identity() {
    let psk = ConfiguredPsk::generate(Hash::Sha256, &mut random(5));
    let other = ConfiguredPsk::generate(Hash::Sha256, &mut random(6));
    let found = |text: &str, psk: &ConfiguredPsk| {
        let identity = Identity::parse(text.as_bytes()).expect("an identity");
        psk.candidates(&identity).collect::<Vec<_>>().len()
    };
    for derivation in Derivation::ALL {
        let (text, key) = psk.derive(HOST, SUBSYSTEM, Version::V1, derivation).unwrap();
        let identity = Identity::parse(text.as_bytes()).unwrap();
        assert_eq!((identity.host, identity.subsystem), (HOST, SUBSYSTEM));
        let keys: Vec<_> = psk.candidates(&identity).collect();
        assert!(keys.len() == 1 && keys[0].key.equals(key.key.as_bytes()));
        assert_eq!(found(&text, &other), 0, "the digest is of another key");
        assert_eq!(found(&text.replace("1R01", "1G01"), &psk), 0);
        assert_eq!(found(&text.replace("1R01", "1R02"), &psk), 0);
        // Version 0 has no digest: both derivations are possible.
        let (text, _) = psk.derive(HOST, SUBSYSTEM, Version::V0, derivation).unwrap();
        assert_eq!(found(&text, &psk), 2);
    }
}

#[test]
fn names_too_long_for_a_derivation_give_no_key() {
    let psk = ConfiguredPsk::generate(Hash::Sha384, &mut random(5));
    let name = "n".repeat(crate::NQN);
    let has = |version, derivation| psk.derive(&name, &name, version, derivation).is_some();
    assert!(!has(Version::V0, Derivation::Standard));
    assert!(has(Version::V0, Derivation::Libnvme));
    assert!(has(Version::V1, Derivation::Standard) && has(Version::V1, Derivation::Libnvme));
}

#[test]
fn other_bytes_are_no_identity() {
    let long = format!("NVMe0R01 {} b", "n".repeat(224));
    for text in [
        "",
        " ",
        "NVMe0R01",
        "NVMe0R01 a",
        "NVMe0R01 a b c",
        "NVMe1R01 a b",
        "NVMe1R01 a b c d",
        "NVMe2R01 a b",
        "NVMe0R03 a b",
        "NVMe0X01 a b",
        "NVMe0R01  b",
        "NVMe0R01 a ",
        &long,
    ] {
        assert_eq!(Identity::parse(text.as_bytes()), None, "{text:?}");
    }
    assert_eq!(Identity::parse(b"NVMe0R01 a \xff"), None);
    let identity = Identity::parse(b"NVMe0G02 a b").unwrap();
    assert!(identity.is_generated && identity.hash == Hash::Sha384);
}

#[test]
fn pending_authentications_are_bounded_by_host_and_in_all() {
    let mut pending = Pending::new(3, 2);
    assert!(pending.begin(1) && pending.begin(1) && !pending.begin(1));
    assert!(pending.begin(2) && !pending.begin(3), "three in all");
    pending.end(9);
    pending.end(1);
    assert_eq!(pending.count(), 2);
    assert!(pending.begin(3) && !pending.begin(1));
}

#[test]
fn sequence_numbers_differ_and_skip_zero() {
    let mut sequence = Sequence::new(&mut |into: &mut [u8]| into.fill(0xff));
    assert_eq!([(); 3].map(|()| sequence.next_number()), [1, 2, 3]);
}
