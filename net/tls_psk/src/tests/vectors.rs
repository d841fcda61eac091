//! Vectors of RFC 8448: the key schedule of section 3, and the binder of section 4.

use crate::group::{Ephemeral, Group};
use crate::hash::{Hash, Secret, Transcript};
use crate::schedule::{Early, Psk, finished};
use netsim::hex;
use std::vec::Vec;

fn secret(text: &str) -> Secret {
    Secret::new(&hex(text)).unwrap()
}

#[test]
fn schedule_gives_the_secrets_of_rfc_8448_section_3() {
    // Without a PSK it is as many zeros.
    let early = Early::new(&Psk { hash: Hash::Sha256, key: Secret::zeros(32) });
    let expected = "33ad0a1c607ec03b09e6cd9893680ce210adf300aa1f2660e1b22e10f170f92a";
    assert!(early.secret().equals(&hex(expected)));
    let shared = "8bd4054fb55b9d63fdfbacf9f04b9f0d35e6d63f537563efd46272900f89492d";
    let stage = early.handshake(&secret(shared));
    let expected = "1dc826e93606aa6fdc0aadc12f741b01046aa6b99f691ed221a9f0ca043fbeac";
    assert!(stage.secret().equals(&hex(expected)));
    let hello = secret("860c06edc07858ee8e78f0e7428c58edd6b43f2ca3e6e95f02ed063cf0e1cad8");
    let client = stage.traffic(b"c hs traffic", &hello);
    let expected = "b3eddb126e067f35a780b3abf45e2d8f3b1a950738f52e9600746a0e27a55a21";
    assert!(client.equals(&hex(expected)));
    let server = stage.traffic(b"s hs traffic", &hello);
    let expected = "b67b7d690cc16c4e75e54213cb2d37b4e9c912bcded9105d42befd59d391ad38";
    assert!(server.equals(&hex(expected)));
    let label = |label: &[u8], len| Hash::Sha256.expand_label(server.as_bytes(), label, &[], len);
    assert!(label(b"key", 16).equals(&hex("3fce516009c21727d0f2e4e86ee403bc")));
    assert!(label(b"iv", 12).equals(&hex("5d313eb2671276ee13000b30")));
    let all = secret("9608102a0f1ccc6db6250b7b7e417b1a000eaada3daae4777a7686c9ff83df13");
    let master = stage.master();
    let expected = "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";
    assert!(master.traffic(b"c ap traffic", &all).equals(&hex(expected)));
    let expected = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";
    assert!(master.traffic(b"s ap traffic", &all).equals(&hex(expected)));
}

/// That binder is of a resumption, whose label differs from that of an external PSK.
#[test]
fn binder_is_that_of_rfc_8448_section_4() {
    let key = secret("4ecd0eb6ec3b4d87f5d6028f922ca4c5851a277fd41311c9e62d2c9492e1c4f3");
    let early = Early::new(&Psk { hash: Hash::Sha256, key });
    let expected = "9b2188e9b2fc6d64d71dc329900e20bb41915000f678aa839cbb797cb7d8332c";
    assert!(early.secret().equals(&hex(expected)));
    let empty = Hash::Sha256.digest(&[]);
    let key =
        Hash::Sha256.expand_label(early.secret().as_bytes(), b"res binder", empty.as_bytes(), 32);
    let hello = secret("63224b2e4573f2d3454ca84b9d009a04f6be9e05711a8396473aefa01e924a14");
    let expected = "3add4fb2d8fdf822a0ca3cf7678ef5e88dae990141c5924d57bb6fa31b9e5f9d";
    assert!(finished(Hash::Sha256, &key, &hello).equals(&hex(expected)));
    assert!(!early.binder(&hello).equals(&hex(expected)), "an external PSK has another label");
}

#[test]
fn x25519_gives_the_secret_of_rfc_8448_section_3() {
    let server = hex("b1580eeadf6dd589b8ef4f2d5652578cc810e9980191ec8d058308cea216a21e");
    let client = hex("99381de560e4bd43d23d8e435a7dbafeb3c06e51c13cae4d5413691e529aaf2c");
    let mut bytes = server.into_iter().chain(std::iter::repeat(1));
    let secrets = Ephemeral::new(&mut |into: &mut [u8]| {
        into.iter_mut().zip(&mut bytes).for_each(|(to, from)| *to = from);
    });
    let shared = secrets.shared(Group::X25519, &client).unwrap();
    let expected = "8bd4054fb55b9d63fdfbacf9f04b9f0d35e6d63f537563efd46272900f89492d";
    assert!(shared.equals(&hex(expected)));
    let mut public = Vec::new();
    secrets.public(Group::X25519, &mut public).unwrap();
    let expected = "c9828876112095fe66762bdbf7c672e156d6cc253b833df1dd69b1b04e751f0f";
    assert_eq!(public, hex(expected));
}

#[test]
fn shares_that_are_not_points_are_rejected() {
    let secrets = Ephemeral::new(&mut super::random(5));
    for group in Group::ALL {
        let mut share = Vec::new();
        secrets.public(*group, &mut share).unwrap();
        assert!(secrets.shared(*group, &share).is_ok(), "{group:?}");
        let mut wrong = std::vec![&share[1..], &[], &[0; 32], &[0; 65]];
        let (mut off, mut compressed, mut long) = (share.clone(), share.clone(), share.clone());
        // X25519 takes any 32 bytes but those of low order.
        if *group != Group::X25519 {
            *off.last_mut().unwrap() ^= 1;
            compressed[0] = 2;
            wrong.extend([&off[..], &compressed]);
        }
        long.push(0);
        wrong.push(&long);
        for wrong in wrong {
            assert!(secrets.shared(*group, wrong).is_err(), "{group:?} {wrong:?}");
        }
    }
}

/// RFC 4231 test case 2, and the empty message's hashes (FIPS 180-4).
#[test]
fn hashes_and_macs_are_those_of_the_standards() {
    let macs = [
        (Hash::Sha256, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
        (
            Hash::Sha384,
            "af45d2e376484031617f78d2b58a6b1b9c7ef464f5a01b47e42ec3736322445e8e2240ca5e69e2c78b3239ecfab21649",
        ),
        (
            Hash::Sha512,
            "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea2505549758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737",
        ),
    ];
    for (hash, mac) in macs {
        let parts: [&[u8]; 2] = [b"what do ya want ", b"for nothing?"];
        assert!(hash.hmac(b"Jefe", &parts).equals(&hex(mac)), "{hash:?}");
        assert_eq!(hash.digest(&[]).as_bytes().len(), hash.len());
    }
    let mut transcript = Transcript::new(Hash::Sha256);
    transcript.update(b"ab");
    transcript.update(b"c");
    assert!(transcript.current().equals(Hash::Sha256.digest(&[b"abc"]).as_bytes()));
}
