//! A certificate with its private key: the operator's PEM, or self-signed.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;
use base64ct::{Base64, Encoding};
use core::fmt::{self, Write};
use core::net::IpAddr;
use core::str::FromStr;
use p256::SecretKey;
use p256::ecdsa::{DerSignature, SigningKey};
use p256::pkcs8::{DecodePrivateKey, EncodePrivateKey, EncodePublicKey};
use sha2::{Digest, Sha256};
use x509_cert::builder::profile::BuilderProfile;
use x509_cert::builder::{self, Builder, CertificateBuilder};
use x509_cert::certificate::{Certificate, TbsCertificate};
use x509_cert::der::asn1::{Ia5String, OctetString};
use x509_cert::der::referenced::OwnedToRef;
use x509_cert::der::{DateTime, Decode, Encode};
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{
    BasicConstraints, ExtendedKeyUsage, KeyUsage, KeyUsages, SubjectAltName,
};
use x509_cert::ext::{Extension, ToExtension};
use x509_cert::name::Name;
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::{ObjectIdentifier, SubjectPublicKeyInfoOwned, SubjectPublicKeyInfoRef};
use x509_cert::time::{Time, Validity};

/// `id-kp-serverAuth` (RFC 5280).
const SERVER_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.1");
/// Maximum number of certificates in a chain.
const CHAIN: usize = 8;
/// Maximum length of a common name (RFC 5280, `ub-common-name`).
const COMMON_NAME: usize = 64;

/// Why a certificate and a key cannot be used, by the part at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PairError {
    /// The certificate.
    Certificate(String),
    /// The key.
    Key(String),
}

impl fmt::Display for PairError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PairError::Certificate(why) => write!(f, "the certificate cannot be used: {why}"),
            PairError::Key(why) => write!(f, "the private key cannot be used: {why}"),
        }
    }
}

impl core::error::Error for PairError {}

/// A certificate, optionally with its chain of issuers, and its private key.
#[derive(Clone)]
pub struct Pair {
    /// DER certificates; the certificate of the key comes first.
    chain: Vec<Vec<u8>>,
    key: SigningKey,
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pair({})", self.fingerprint())
    }
}

impl Pair {
    /// Parses PEM (RFC 7468): one certificate or a chain, and a key in PKCS #8 or SEC 1. Line ends may be spaces.
    pub fn from_pem(certificates: &str, key: &str) -> Result<Pair, PairError> {
        let chain = blocks(certificates).map_err(PairError::Certificate)?;
        let chain = chain.into_iter().map(|(label, der)| match label {
            "CERTIFICATE" => Ok(der),
            other => Err(PairError::Certificate(format!("{other} is not a CERTIFICATE"))),
        });
        let chain = chain.collect::<Result<Vec<_>, _>>()?;
        let no_key = |why: &str| PairError::Key(why.into());
        let keys = blocks(key).map_err(PairError::Key)?;
        let mut keys = keys.into_iter().filter(|(label, _)| *label != "EC PARAMETERS");
        let secret = match (keys.next(), keys.next()) {
            (Some(("PRIVATE KEY", der)), None) => SecretKey::from_pkcs8_der(&der).ok(),
            (Some(("EC PRIVATE KEY", der)), None) => SecretKey::from_sec1_der(&der).ok(),
            (Some(("ENCRYPTED PRIVATE KEY", _)), None) => {
                return Err(no_key("the key is encrypted; decrypt it first"));
            }
            (Some(_), Some(_)) => return Err(no_key("more than one key")),
            (Some(("CERTIFICATE", _)), None) => {
                return Err(no_key("this is a certificate, not a key"));
            }
            (Some(_), None) => None,
            (None, _) => return Err(no_key("it contains no key")),
        };
        let secret = secret.ok_or_else(|| {
            no_key(
                "not an ECDSA key on P-256; `openssl genpkey -algorithm EC -pkeyopt \
                 ec_paramgen_curve:P-256` makes one",
            )
        })?;
        Pair::new(chain, secret)
    }

    /// Parses the output of [`Pair::to_bytes`].
    pub fn from_bytes(bytes: &[u8]) -> Option<Pair> {
        let (len, rest) = bytes.split_first_chunk()?;
        let (certificate, rest) = rest.split_at_checked(u16::from_be_bytes(*len).into())?;
        let (len, rest) = rest.split_first_chunk()?;
        let (key, _) = rest.split_at_checked(u16::from_be_bytes(*len).into())?;
        Pair::new(vec![certificate.into()], SecretKey::from_pkcs8_der(key).ok()?).ok()
    }

    /// The first certificate and the key (PKCS #8), each as DER after its length in two bytes, big-endian.
    pub fn to_bytes(&self) -> Vec<u8> {
        let secret = SecretKey::from(&self.key);
        // The encoding of a 32-byte key does not fail.
        let key = secret.to_pkcs8_der().map(|der| der.as_bytes().to_vec()).unwrap_or_default();
        let mut bytes = Vec::new();
        for part in [self.certificate(), &key] {
            bytes.extend_from_slice(&(part.len() as u16).to_be_bytes());
            bytes.extend_from_slice(part);
        }
        bytes
    }

    fn new(chain: Vec<Vec<u8>>, secret: SecretKey) -> Result<Pair, PairError> {
        let wrong = |why: &str| PairError::Certificate(why.into());
        if chain.is_empty() {
            return Err(wrong("it contains no certificate"));
        }
        if chain.len() > CHAIN {
            return Err(wrong("more than 8 certificates"));
        }
        let public = secret.public_key();
        let is_of_key = |certificate: &Certificate| {
            let info = certificate.tbs_certificate().subject_public_key_info().owned_to_ref();
            p256::PublicKey::try_from(info).is_ok_and(|key| key == public)
        };
        let mut of_key = Vec::new();
        for der in &chain {
            let certificate = Certificate::from_der(der).map_err(|why| {
                PairError::Certificate(format!("not an X.509 certificate: {why}"))
            })?;
            of_key.push(is_of_key(&certificate));
        }
        match of_key.iter().position(|is| *is) {
            Some(0) => Ok(Pair { chain, key: SigningKey::from(secret) }),
            Some(_) => Err(wrong("the certificate of the key must come first")),
            None => Err(PairError::Key("it does not belong to the certificate".into())),
        }
    }

    /// A new key with a self-signed certificate for this host name and these addresses. It never expires, because the
    /// clock may be wrong.
    pub fn self_signed(
        hostname: &str,
        addresses: &[IpAddr],
        random: &mut dyn FnMut(&mut [u8]),
    ) -> Pair {
        let mut bytes = [0; 32];
        let secret = loop {
            random(&mut bytes);
            if let Ok(secret) = SecretKey::from_slice(&bytes) {
                break secret;
            }
        };
        let mut serial = [0; 16];
        random(&mut serial);
        // Positive, without a leading zero byte (RFC 5280 section 4.1.2.2).
        serial[0] = serial[0] & 0x7f | 0x40;
        let key = SigningKey::from(secret);
        let certificate = certificate(&key, hostname, addresses, &serial);
        // No field exceeds the limits of ASN.1.
        let certificate = certificate.expect("a certificate has an encoding");
        Pair { chain: vec![certificate], key }
    }

    /// The first certificate, as DER.
    pub fn certificate(&self) -> &[u8] {
        self.chain.first().map_or(&[], Vec::as_slice)
    }

    /// All certificates, as DER.
    pub(super) fn chain(&self) -> &[Vec<u8>] {
        &self.chain
    }

    pub(super) fn key(&self) -> &SigningKey {
        &self.key
    }

    /// SHA-256 of the first certificate in the format of `openssl x509 -fingerprint -sha256`.
    pub fn fingerprint(&self) -> String {
        let mut text = String::new();
        for (i, byte) in Sha256::digest(self.certificate()).iter().enumerate() {
            let colon = if i == 0 { "" } else { ":" };
            // Writing to memory does not fail.
            let _ = write!(text, "{colon}{byte:02X}");
        }
        text
    }

    /// Expiry of the first certificate, in seconds since 1970.
    pub fn not_after(&self) -> Option<u64> {
        let certificate = Certificate::from_der(self.certificate()).ok()?;
        Some(certificate.tbs_certificate().validity().not_after.to_unix_duration().as_secs())
    }

    /// SHA-256 of the public key (RFC 7469) in the format of `curl --pinnedpubkey`.
    pub fn pin(&self) -> String {
        let der = p256::PublicKey::from(self.key.verifying_key()).to_public_key_der();
        let hash = der.map(|der| Sha256::digest(der.as_bytes())).unwrap_or_default();
        format!("sha256//{}", Base64::encode_string(&hash))
    }

    /// The first certificate as PEM.
    pub fn certificate_pem(&self) -> String {
        let text = Base64::encode_string(self.certificate());
        let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
        for line in text.as_bytes().chunks(64) {
            pem.extend(line.iter().map(|byte| char::from(*byte)));
            pem.push('\n');
        }
        pem + "-----END CERTIFICATE-----\n"
    }
}

/// Contents of a TLS server's self-signed certificate for a name and addresses.
struct SelfSigned {
    subject: Name,
    names: SubjectAltName,
}

impl BuilderProfile for SelfSigned {
    fn get_issuer(&self, subject: &Name) -> Name {
        subject.clone()
    }

    fn get_subject(&self) -> Name {
        self.subject.clone()
    }

    fn build_extensions(
        &self,
        _: SubjectPublicKeyInfoRef<'_>,
        _: SubjectPublicKeyInfoRef<'_>,
        _: &TbsCertificate,
    ) -> builder::Result<Vec<Extension>> {
        let no_authority = BasicConstraints { ca: false, path_len_constraint: None };
        let uses = KeyUsage(KeyUsages::DigitalSignature.into());
        let server = ExtendedKeyUsage(vec![SERVER_AUTH]);
        Ok(vec![
            no_authority.to_extension(&self.subject, &[])?,
            uses.to_extension(&self.subject, &[])?,
            (true, &server).to_extension(&self.subject, &[])?,
            self.names.to_extension(&self.subject, &[])?,
        ])
    }
}

fn certificate(
    key: &SigningKey,
    hostname: &str,
    addresses: &[IpAddr],
    serial: &[u8],
) -> builder::Result<Vec<u8>> {
    let common_name: String = hostname.chars().take(COMMON_NAME).collect();
    let subject = Name::from_str(&format!("CN={common_name}"))?;
    let mut names = vec![GeneralName::DnsName(Ia5String::new(hostname)?)];
    for address in addresses {
        let octets = match address {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        names.push(GeneralName::IpAddress(OctetString::new(octets)?));
    }
    let profile = SelfSigned { subject, names: SubjectAltName(names) };
    let validity = Validity::new(DateTime::new(1970, 1, 1, 0, 0, 0)?.into(), Time::INFINITY);
    let public = SubjectPublicKeyInfoOwned::from_key(key.verifying_key())?;
    let builder = CertificateBuilder::new(profile, SerialNumber::new(serial)?, validity, public)?;
    Ok(builder.build::<_, DerSignature>(key)?.to_der()?)
}

/// The blocks of a PEM text with their labels. Text between them is ignored (RFC 7468 section 2).
pub(super) fn blocks(text: &str) -> Result<Vec<(&str, Vec<u8>)>, String> {
    const BEGIN: &str = "-----BEGIN ";
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(BEGIN) {
        let (label, after) = after.split_once("-----").ok_or("a BEGIN line is incomplete")?;
        let end = format!("-----END {label}-----");
        let (body, after) = after.split_once(end.as_str()).ok_or_else(|| {
            let label: String = label.chars().take(32).collect();
            format!("no END line of {label}")
        })?;
        let body: String = body.chars().filter(|c| !c.is_whitespace()).collect();
        let der = Base64::decode_vec(&body).map_err(|why| format!("not PEM: {why}"))?;
        found.push((label, der));
        rest = after;
    }
    match found.is_empty() {
        true => Err("not PEM: it has no BEGIN line".to_string()),
        false => Ok(found),
    }
}
