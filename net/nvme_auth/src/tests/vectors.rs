//! Vectors. Those without a source were computed with Python's `hashlib`, `hmac` and `pow`.

use super::{HOST, SUBSYSTEM};
use crate::dh::Exponent;
use crate::generated::GeneratedPsk;
use crate::ids::{Concatenation, DhGroup};
use crate::response::{Responder, Transaction};
use crate::{ConfiguredPsk, Derivation, DhchapSecret, Hash, Version};
use netsim::hex;
use std::string::ToString;
use std::vec::Vec;
use tls_psk::hash::Secret;

#[test]
fn secrets_are_transformed_with_the_nqn() {
    let cases = [
        (
            "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
            "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20",
        ),
        (
            "DHHC-1:01:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:",
            "64bcc6604f914912d7fe87b2b6fb3049c2236839747d5748dce980766bf144bb",
        ),
        (
            "DHHC-1:02:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wyg3Bcw==:",
            "3b9586502a7c941aadf86079be87cbdb97d5602d5c8d9c4006daac25a0434f8daed812ca34c388d328bb2dc14f598b19",
        ),
        (
            "DHHC-1:03:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAhIiMkJSYnKCkqKywtLi8wMTIzNDU2Nzg5Ojs8PT4/QJn7gCg=:",
            "a4cc8429405400c91467a7ea9bdb03d70cd16e2ec219924c9217cf25adc266961c24e501055068f5476c864a09b8c8e1030b40c7605529dcd69bad3603217df5",
        ),
    ];
    for (text, expected) in cases {
        let secret = DhchapSecret::parse(text).unwrap();
        assert!(secret.transformed(HOST).equals(&hex(expected)), "{text}");
        assert_eq!(*secret.text(), text);
    }
}

/// Without a group and `sc_c` 0, and with the session key of a secret of 256 bytes and `sc_c` 2: R1, R2.
const RESPONSES: [(Hash, [&str; 4]); 3] = [
    (
        Hash::Sha256,
        [
            "9fe28555ae21995b338c3ca3bc38ac911f1b7849fd434f6fe4d5b1900293e36b",
            "41485a0aa09d46891908e33de61be3c1165612c9b7a203eaa041a500213629d9",
            "fbb6f6ce3acbb6986706e1eabfdbaf8470dbc5d2a8e1250f669553ea2231ff58",
            "5a794909043d46a03156ca9dc2f03f2e7c4994d2459d136e43432c66072222bb",
        ],
    ),
    (
        Hash::Sha384,
        [
            "6c5f02a95c9d4c380e22cc0ae97b0a37cdee33caacd9b192f7887ab86e102e178e2917dfc2c131d883732317ef037c0e",
            "5d7cdf1f4267cfd713f508523f75e93328c0f228f52c81ba42456eed2affc18373cf05298425fad5f28a8dd919965cfb",
            "f3cd5f459214b85fed220a1b29d103448443a9b6864b5bf306c1ba83f950fb829ac64b3c9af8a866b0953b5afd311d23",
            "ae055b2bc18232050e05024323a208c425745e6b5a021ccc0b73a82c9e38cbc916cc1cd2e943fa1754d2a9b0e1bd2d98",
        ],
    ),
    (
        Hash::Sha512,
        [
            "661367193e1e9fe54785ac071a3828646568e0cb051fab0a164beaae69e3bac5d1f4c084b611b11f26bc39daad74f956943866312be256827be53eb3776a7ca6",
            "943fb622d75d97acc9526a9b04596bbceca838669f3fd41ffa135ed0cd096a0eba3cab2b1da8e52b0a2380421093e5cd99e9a4313f933f5b2a11a57d11ce6dc6",
            "aa5ad4d5aa84744968ba2b3f6e29d6f2039c53f4f85b397bc2d6f4942a5eb504c833b2b100d7606386b2de396f6a340b4cbd3676fb08fa6aa3ab225d3712bdda",
            "312031e2d4d66018e28da0422530af5d00b900f18f67a3d6c45e2a8a0b90640c5840a86980087a60b469fc806210edd4f79b3379321e00d6f336794f94c6c26f",
        ],
    ),
];

#[test]
fn responses_of_both_ends_match_independent_computations() {
    let key = Secret::new(&(1..=32).collect::<Vec<u8>>()).unwrap();
    let shared: Vec<u8> = (0..=255).collect();
    for ((hash, expected), number) in RESPONSES.into_iter().zip(1u8..) {
        let challenge: Vec<u8> =
            (0..hash.len() as u8).map(|i| i.wrapping_mul(7) + number).collect();
        let session_key = hash.digest(&[&shared]);
        let cases = [
            (Concatenation::None, None, &expected[..2]),
            (Concatenation::New, Some(&session_key), &expected[2..]),
        ];
        for (concatenation, session_key, expected) in cases {
            let transaction = Transaction {
                hash,
                id: 0xabcd,
                concatenation,
                host: HOST,
                subsystem: SUBSYSTEM,
                session_key,
            };
            for (responder, expected) in
                [Responder::Host, Responder::Controller].iter().zip(expected)
            {
                let response = transaction.response(*responder, &key, &challenge, 0x0102_0304);
                assert!(response.equals(&hex(expected)), "{hash:?} {concatenation:?}");
            }
        }
    }
}

/// SHA-256 of the public value and of the shared secret, with exponents `5i + 1` and `11i + 3`.
const POWERS: [(DhGroup, &str, &str); 5] = [
    (
        DhGroup::Ffdhe2048,
        "f50a92f3c5dbec8a5dcff1817fa21f233a1b8cb4123b2f21c1d9a577ec32c31e",
        "8dfb890fd682efb833c033c89b70886c8ac2619fedb00355725f1b99f67b4210",
    ),
    (
        DhGroup::Ffdhe3072,
        "9758fc2f590fc25cc56599bd9c816c6487155936326c772f187c264c757201b3",
        "e74e36839ae717c858fc8f7e11cd9f96bab4025fa813947aef7830b7e993507f",
    ),
    (
        DhGroup::Ffdhe4096,
        "a1bfc0c08ab2ea593f8797601c724b3464cb9892aaf906f03e5767835d9135c4",
        "9b562de916ad33d9e5b706e96da0992f665cc21df4e0ceaa20158e944f39e82e",
    ),
    (
        DhGroup::Ffdhe6144,
        "9e8721b201c13bb0747a9af8ea60703788bfcdce6871b97c4ee294770239df9e",
        "5a66d87a2cfe19e9aa9a8c4d2329db1fc197ccc005cca5acbb136a3c63b554c9",
    ),
    (
        DhGroup::Ffdhe8192,
        "c6737d7a14cf821443c803aa7d76d2f3484e38d5b6f198fed169c44c73b6e07d",
        "dcf1c6090f2cbeec1cc3bd07d025e45db42808124c80a2a3e5e0bde55d3c7646",
    ),
];

fn exponent(group: DhGroup, factor: usize, start: usize) -> Exponent {
    Exponent::new(group, &mut |into: &mut [u8]| {
        into.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * factor + start) as u8);
    })
}

#[test]
fn powers_match_pythons_in_slices_of_every_size() {
    for ((group, public, shared), slice) in POWERS.into_iter().zip([1, 2, 7, 100, u32::MAX]) {
        let (x, y) = (exponent(group, 5, 1), exponent(group, 11, 3));
        let (mut gx, mut gy) = (x.public().unwrap(), y.public().unwrap());
        let mut calls = 1;
        while !gx.work(slice) {
            calls += 1;
        }
        while !gy.work(u32::MAX) {}
        // 14 for the table, and 5 for each of at least 64 windows.
        assert!(slice > 100 || calls > 300 / slice.max(5), "{group:?}: {calls} calls");
        assert!(Hash::Sha256.digest(&[&gx.result()]).equals(&hex(public)), "{group:?}");
        assert_eq!(gx.result().len(), group.len());
        let mut xy = x.shared(&gy.result()).unwrap();
        let mut yx = y.shared(&gx.result()).unwrap();
        while !xy.work(slice) {}
        while !yx.work(slice) {}
        assert!(xy.session_key(Hash::Sha256).equals(&hex(shared)), "{group:?}");
        assert_eq!(xy.result(), yx.result());
    }
}

#[test]
fn public_values_out_of_range_are_rejected() {
    for (group, ..) in POWERS {
        let x = exponent(group, 5, 1);
        let prime = match group {
            DhGroup::Ffdhe2048 => hex(crate::primes::FFDHE2048),
            DhGroup::Ffdhe3072 => hex(crate::primes::FFDHE3072),
            DhGroup::Ffdhe4096 => hex(crate::primes::FFDHE4096),
            DhGroup::Ffdhe6144 => hex(crate::primes::FFDHE6144),
            _ => hex(crate::primes::FFDHE8192),
        };
        let small = |value: u8| {
            let mut bytes = std::vec![0; group.len()];
            *bytes.last_mut().unwrap() = value;
            bytes
        };
        let below = |by: u8| {
            let mut bytes = prime.clone();
            *bytes.last_mut().unwrap() -= by;
            bytes
        };
        for bad in [small(0), small(1), below(0), below(1), std::vec![0xff; group.len()]] {
            assert!(x.shared(&bad).is_none(), "{group:?}");
        }
        assert!(x.shared(&small(2)).is_some() && x.shared(&below(2)).is_some());
        assert!(x.shared(&small(2)[1..]).is_none() && x.shared(&[]).is_none());
    }
    assert!(exponent(DhGroup::Null, 5, 1).public().is_none());
}

/// `drivers/nvme/common/tests/auth_kunit.c` of Linux 7.1: `test_nvme_auth_derive_tls_psk`.
#[test]
fn generated_psk_is_that_of_linux() {
    let fill = |len: usize, at: &dyn Fn(u8) -> u8| (0..len as u8).map(at).collect::<Vec<u8>>();
    let cases = [
        (
            Hash::Sha256,
            "OldoKuTfKddMuyCznAZojkWD7P4D9/AtzDzLimtOxqI=",
            "3c17da628474a04d2247c4cab47968c915388193f7c071bd9489cc3666cd7cc8",
        ),
        (
            Hash::Sha384,
            "cffMWk8TSS7HOQebjgYEIkrPrjWPV4JE5cdPB8WhEvY4JBW5YynKyv66XscN4A9n",
            "2774753233537b3fa50eb7d16a8e43457d85f4906c005b2236616c5d80939d0898fff15bb8b77119d2be0aac423e7590",
        ),
    ];
    for ((hash, digest, key), number) in cases.into_iter().zip(1..) {
        let len = hash.len();
        let session_key = Secret::new(&fill(len, &|i| b'A' + i)).unwrap();
        let (c1, c2) = (fill(len, &|i| i), fill(len, &|i| 0xff - i));
        let psk =
            GeneratedPsk::new(hash, &session_key, [&c1, &c2], "hostnqn", "subsysnqn").unwrap();
        assert_eq!(psk.identity, std::format!("NVMe1G{number:02} hostnqn subsysnqn {digest}"));
        assert!(psk.psk.key.equals(&hex(key)), "{hash:?}");
        assert_eq!(psk.psk.hash, hash);
    }
    let long = Secret::zeros(64);
    assert!(GeneratedPsk::new(Hash::Sha512, &long, [&[], &[]], "h", "s").is_none());
}

/// Texts, hash, derivation, identity of version 1 (these of libnvme's `test/psk.c`), and the keys of version 1 and 0.
#[test]
fn configured_psk_has_the_identities_of_libnvme() {
    use Derivation::{Libnvme, Standard};
    let short = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    let long =
        "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
    let cases = [
        (
            short,
            Standard,
            "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
            "8fc3c0badfd4c0c66fa3ca33aadd0314f85536cc9bc47338b60f3e6e563786ca",
            "05c6503551ad136e6ee32e6eeb3f6d500b69701d84ec71e328f65c7f51566f68",
        ),
        (
            short,
            Libnvme,
            "66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=",
            "b9f5ab2a41ba6e72a23a12066302a2f775fa6c0942c8e0b18ca8ac07edf305e2",
            "09fb1983ac6d6d0353e7cae4f23daddd651c367fa347c59d9cf6936f5a83eafb",
        ),
        (
            long,
            Standard,
            "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
            "a2b2f943f479fc682555cec89857c80ed004ce92f32a973d5764155bb7e36b17a85368a0666d250afac9282dda2e62ca",
            "f42ba63824cdfe421914c582921f85b5b5b7e2d4df084caeedc9be20b212e8bb0fe8a23e9d59a1c8fc6449da4970a78d",
        ),
        (
            long,
            Libnvme,
            "RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz",
            "fcefe2e2a2e682b1447dcabf1ec268f78f08c63cd075753abcc8bda2c5c34d48d3014aa8d76ad80107e4f5c9f27e2149",
            "2ee4754186a625b28a3936ef4a40d839c3ad958b2e017562ee07e2501f172ce999dc9c29033ea7ee33f814f192c13f47",
        ),
    ];
    for (text, derivation, digest, first, zeroth) in cases {
        let psk = ConfiguredPsk::parse(text).unwrap();
        assert_eq!(*psk.text(), text);
        let number = if text == short { "01" } else { "02" };
        let names = "nqn.psk-test-host nqn.psk-test-subsys";
        let derive = |version| {
            psk.derive("nqn.psk-test-host", "nqn.psk-test-subsys", version, derivation).unwrap()
        };
        let (identity, key) = derive(Version::V1);
        assert_eq!(identity, std::format!("NVMe1R{number} {names} {digest}"));
        assert!(key.key.equals(&hex(first)), "{derivation:?} {number}");
        let (identity, key) = derive(Version::V0);
        assert_eq!(identity, std::format!("NVMe0R{number} {names}"));
        assert!(key.key.equals(&hex(zeroth)), "{derivation:?} {number}");
    }
    assert!(!ConfiguredPsk::parse("x").unwrap_err().to_string().is_empty());
}
