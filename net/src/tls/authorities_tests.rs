//! Certificates of authorities, issuers and clients, made here.

use super::*;
use crate::tls::provider::Random;
use crate::tls::{Pair, Tls};
use alloc::boxed::Box;
use alloc::vec;
use base64ct::{Base64, Encoding};
use drivers::hal::Instant;
use p256::ecdsa::SigningKey;
use x509_cert::builder::profile::BuilderProfile;
use x509_cert::builder::{self, Builder, CertificateBuilder};
use x509_cert::certificate::TbsCertificate;
use x509_cert::der::Encode;
use x509_cert::der::asn1::Ia5String;
use x509_cert::ext::pkix::ExtendedKeyUsage;
use x509_cert::ext::{Extension, ToExtension};
use x509_cert::name::Name;
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::{SubjectPublicKeyInfoOwned, SubjectPublicKeyInfoRef};

const DAY: u64 = 24 * 3600;
/// The present, in seconds since 1970.
const NOW: u64 = 1_800_000_000;
const CLIENT_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");
const SERVER_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");

fn random(seed: u64) -> Random {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    Box::new(move |into| {
        for byte in into {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = (state >> 32) as u8;
        }
    })
}

fn source() -> &'static Source {
    Box::leak(Box::new(Source::new(random(7))))
}

/// A key, different for each seed.
fn key(seed: u64) -> SigningKey {
    Pair::self_signed("x", &[], &mut *random(seed)).key().clone()
}

/// Contents of a certificate.
#[derive(Clone)]
struct Contents {
    subject: &'static str,
    issuer: &'static str,
    /// An authority.
    ca: bool,
    path_length: Option<u8>,
    usage: Option<ObjectIdentifier>,
    names: Vec<GeneralName>,
    /// Begin and end, in seconds since 1970.
    validity: (u64, u64),
}

impl Contents {
    fn client(subject: &'static str) -> Contents {
        Contents {
            subject,
            issuer: "CN=authority",
            ca: false,
            path_length: None,
            usage: Some(CLIENT_AUTH),
            names: Vec::new(),
            validity: (NOW - DAY, NOW + DAY),
        }
    }

    fn authority(subject: &'static str) -> Contents {
        let validity = (NOW - 100 * DAY, NOW + 100 * DAY);
        Contents { ca: true, usage: None, validity, ..Contents::client(subject) }
    }

    /// The certificate of `own` that `issuer` has signed.
    fn signed(self, own: &SigningKey, issuer: &SigningKey) -> CertificateDer<'static> {
        let at = |seconds| {
            let time = x509_cert::der::DateTime::from_unix_duration(Duration::from_secs(seconds));
            Time::from(time.unwrap())
        };
        let validity = Validity::new(at(self.validity.0), at(self.validity.1));
        let public = SubjectPublicKeyInfoOwned::from_key(own.verifying_key()).unwrap();
        let serial = SerialNumber::new(&[0x42]).unwrap();
        let builder = CertificateBuilder::new(self, serial, validity, public).unwrap();
        let der = builder.build::<_, DerSignature>(issuer).unwrap().to_der().unwrap();
        CertificateDer::from(der)
    }
}

impl BuilderProfile for Contents {
    fn get_issuer(&self, _: &Name) -> Name {
        self.issuer.parse().unwrap()
    }

    fn get_subject(&self) -> Name {
        self.subject.parse().unwrap()
    }

    fn build_extensions(
        &self,
        _: SubjectPublicKeyInfoRef<'_>,
        _: SubjectPublicKeyInfoRef<'_>,
        _: &TbsCertificate,
    ) -> builder::Result<Vec<Extension>> {
        let subject = &self.get_subject();
        let constraints = BasicConstraints { ca: self.ca, path_len_constraint: self.path_length };
        let mut all = vec![constraints.to_extension(subject, &[])?];
        if let Some(usage) = self.usage {
            all.push(ExtendedKeyUsage(vec![usage]).to_extension(subject, &[])?);
        }
        if !self.names.is_empty() {
            all.push(SubjectAltName(self.names.clone()).to_extension(subject, &[])?);
        }
        Ok(all)
    }
}

fn pem(certificates: &[CertificateDer<'_>]) -> String {
    let one = |der: &CertificateDer<'_>| {
        let text = Base64::encode_string(der);
        format!("-----BEGIN CERTIFICATE----- {text} -----END CERTIFICATE----- ")
    };
    certificates.iter().map(one).collect()
}

/// The authority's key, and the authority alone.
fn authority() -> (SigningKey, Authorities) {
    let root = key(1);
    let own = Contents::authority("CN=authority").signed(&root, &root);
    let authorities = Authorities::from_pem(&pem(&[own])).unwrap();
    (root, authorities)
}

/// The names for which the authorities vouch, as texts.
fn names(by: &Authorities, sent: &[CertificateDer<'_>]) -> Result<Vec<String>, String> {
    let vouched = by.vouch(sent, Duration::from_secs(NOW), source())?;
    Ok(vouched.names.iter().map(ToString::to_string).collect())
}

#[test]
fn authority_vouches_for_the_names_in_its_certificates() {
    let (root, by) = authority();
    let text = |text: &str| Ia5String::new(text).unwrap();
    let alternatives = vec![
        GeneralName::DnsName(text("ci.example.net")),
        GeneralName::Rfc822Name(text("ci@example.net")),
        GeneralName::UniformResourceIdentifier(text("spiffe://example.net/ci")),
        GeneralName::from(core::net::IpAddr::from([10, 0, 0, 1])),
    ];
    let contents = Contents { names: alternatives, ..Contents::client("CN=ci,O=example") };
    let sent = [contents.signed(&key(2), &root)];
    assert_eq!(
        names(&by, &sent).unwrap(),
        ["CN=ci", "DNS:ci.example.net", "email:ci@example.net", "URI:spiffe://example.net/ci"]
    );
    let vouched = by.vouch(&sent, Duration::from_secs(NOW), source()).unwrap();
    assert_eq!(vouched.until, Duration::from_secs(NOW + DAY));
    // With two common names it is in doubt whose certificate it is.
    let two = [Contents::client("CN=ci,CN=root").signed(&key(2), &root)];
    assert!(names(&by, &two).unwrap_err().contains("neither a common name"));
    // A certificate without a purpose is for every one.
    let general = Contents { usage: None, ..Contents::client("CN=ci") };
    assert_eq!(names(&by, &[general.signed(&key(2), &root)]).unwrap(), ["CN=ci"]);
}

#[test]
fn certificate_that_no_authority_has_issued_for_clients_names_nobody() {
    let (root, by) = authority();
    let own = key(2);
    let refused = |contents: Contents, by_key: &SigningKey| {
        names(&by, &[contents.signed(&own, by_key)]).unwrap_err()
    };
    let client = || Contents::client("CN=ci");
    for (why, reason) in [
        (refused(client(), &key(3)), "a signature is wrong"),
        (refused(Contents { issuer: "CN=other", ..client() }, &root), "has issued it"),
        (refused(Contents { issuer: "CN=ci", ..client() }, &own), "has issued it"),
        (refused(Contents { usage: Some(SERVER_AUTH), ..client() }, &root), "lacks clientAuth"),
        (refused(Contents { validity: (NOW - 9, NOW - 1), ..client() }, &root), "has expired"),
        (refused(Contents { validity: (NOW + 1, NOW + 9), ..client() }, &root), "not valid yet"),
        (refused(Contents::authority("CN=ci"), &root), "that of an authority"),
    ] {
        assert!(why.contains(reason), "{why}: {reason}");
    }
    assert!(names(&by, &[]).is_err());
    assert!(names(&by, &[CertificateDer::from(vec![0x30, 0])]).is_err());
    // Any changed byte ends it.
    let good = client().signed(&own, &root);
    for at in (0..good.len()).step_by(7) {
        let mut bytes = good.to_vec();
        bytes[at] ^= 1;
        assert!(names(&by, &[CertificateDer::from(bytes)]).is_err(), "byte {at}");
    }
}

#[test]
fn issuers_between_an_authority_and_a_client_are_followed() {
    let (root, by) = authority();
    let (middle, own) = (key(4), key(2));
    let issuer = |path_length| {
        let contents = Contents { path_length, ..Contents::authority("CN=middle") };
        contents.signed(&middle, &root)
    };
    let client = Contents { issuer: "CN=middle", ..Contents::client("CN=ci") };
    let client = client.signed(&own, &middle);
    assert_eq!(names(&by, &[client.clone(), issuer(None)]).unwrap(), ["CN=ci"]);
    assert!(names(&by, core::slice::from_ref(&client)).unwrap_err().contains("has issued it"));
    let no_authority = Contents::client("CN=middle").signed(&middle, &root);
    assert!(names(&by, &[client.clone(), no_authority]).is_err());
    let expired = Contents { validity: (1, NOW - 1), ..Contents::authority("CN=middle") };
    assert!(names(&by, &[client.clone(), expired.signed(&middle, &root)]).is_err());
    let many: Vec<_> = [client].into_iter().chain((0..3).map(|_| issuer(None))).collect();
    assert!(names(&by, &many).unwrap_err().contains("more than 2 issuers"));
}

#[test]
fn authority_ends_with_its_own_certificate() {
    let root = key(1);
    let at = |validity| {
        let own = Contents { validity, ..Contents::authority("CN=authority") };
        Authorities::from_pem(&pem(&[own.signed(&root, &root)])).unwrap()
    };
    let sent = [Contents::client("CN=ci").signed(&key(2), &root)];
    assert!(names(&at((1, NOW - 1)), &sent).unwrap_err().contains("no authority"));
    assert!(names(&at((NOW + 1, NOW + 2)), &sent).unwrap_err().contains("no authority"));
    let short = at((1, NOW + 5)).vouch(&sent, Duration::from_secs(NOW), source()).unwrap();
    assert_eq!(short.until, Duration::from_secs(NOW + 5));
}

#[test]
fn only_certificates_of_authorities_are_accepted_as_such() {
    let root = key(1);
    let own = Contents::authority("CN=authority").signed(&root, &root);
    let client = Contents::client("CN=ci").signed(&key(2), &root);
    let parse = |certificates: &[CertificateDer<'_>]| Authorities::from_pem(&pem(certificates));
    assert_eq!(parse(&[own.clone(), own.clone()]).unwrap().fingerprints().count(), 2);
    assert!(
        parse(std::slice::from_ref(&own)).unwrap() != parse(&[own.clone(), own.clone()]).unwrap()
    );
    assert!(parse(&[own.clone(), client]).unwrap_err().starts_with("certificate 2: "));
    assert!(parse(&vec![own; 9]).is_err());
    for wrong in ["", "x", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        assert!(Authorities::from_pem(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn names_are_written_as_openssl_prints_them() {
    for good in ["CN=ci", "DNS:ci.example.net", "email:a@b", "URI:spiffe://a/b", "CN=two words"] {
        assert_eq!(good.parse::<SubjectName>().unwrap().to_string(), good);
    }
    for wrong in ["", "ci", "CN", "CN=", "cn=ci", "IP:10.0.0.1", "CN=a\nb"] {
        assert!(wrong.parse::<SubjectName>().is_err(), "{wrong}");
    }
    assert_ne!("CN=a".parse::<SubjectName>(), "DNS:a".parse());
}

#[test]
fn names_count_until_their_end_or_a_change_of_the_authorities_and_only_with_the_time() {
    let (root, by) = authority();
    let tls = Tls::new(Pair::self_signed("gw-1", &[], &mut *random(9)), random(9));
    let sent = [Contents::client("CN=ci").signed(&key(2), &root)];
    let now = Instant::from_nanos(5_000_000_000);
    let known = || tls.identify(&sent, now).unwrap();
    let epoch = (NOW - 5) * 1_000_000_000;
    tls.set_epoch(epoch);
    assert_eq!(known().0.names, Err("http.client_ca is not set".into()));
    tls.set_authorities(Some(by.clone()));
    tls.set_epoch(0);
    assert!(known().0.names.clone().unwrap_err().contains("does not know the time"));
    tls.set_epoch(epoch);
    let (certificate, term) = known();
    assert_eq!(certificate.names, Ok(vec!["CN=ci".parse().unwrap()]));
    assert_eq!(certificate.sha256, <[u8; 32]>::from(Sha256::digest(&sent[0])));
    assert_eq!(tls.objection(term, now), None);
    // A commit that changes other keys sets the same authorities again.
    tls.set_authorities(Some(by.clone()));
    assert_eq!(tls.objection(term, now), None);
    assert!(tls.objection(term, now + Duration::from_secs(DAY + 1)).unwrap().contains("expired"));
    tls.set_epoch(0);
    assert!(tls.objection(term, now).unwrap().contains("time"));
    tls.set_epoch(epoch);
    tls.set_authorities(None);
    assert!(tls.objection(term, now).unwrap().contains("connect again"));
    assert!(known().0.names.is_err());
    tls.set_authorities(Some(by));
    assert!(tls.objection(term, now).is_some(), "an earlier connection has to begin again");
    assert!(known().0.names.is_ok());
}
