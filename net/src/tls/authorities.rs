//! Certificates of clients: their fingerprint, and the names in them that an authority of the configuration vouches for.
//!
//! `webpki` verifies the chain: signatures, validity, constraints, and that the certificate is for clients. Authorities,
//! issuers and clients have keys on P-256. There are no revocation lists: who removes the user withdraws its name.

use super::pair;
use super::provider::Source;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use p256::ecdsa::signature::Verifier;
use p256::ecdsa::{DerSignature, VerifyingKey};
use rustls::pki_types::{
    AlgorithmIdentifier, CertificateDer, InvalidSignature, SignatureVerificationAlgorithm,
    TrustAnchor, UnixTime, alg_id,
};
use sha2::{Digest, Sha256};
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::referenced::OwnedToRef;
use x509_cert::ext::pkix::name::{DirectoryString, GeneralName};
use x509_cert::ext::pkix::{BasicConstraints, SubjectAltName};
use x509_cert::spki::ObjectIdentifier;
use x509_cert::time::{Time, Validity};

/// Maximum number of authorities.
const MOST: usize = 8;
/// Maximum number of certificates that a client may send: its own, and two issuers. It bounds the signatures to verify.
const SENT: usize = 3;
/// Maximum number of names in a client's certificate.
const NAMES: usize = 32;
/// Longest name in bytes.
const LONGEST: usize = 253;
/// `commonName` (RFC 4519).
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// Part of a certificate that a name is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    CommonName,
    Dns,
    Email,
    Uri,
}

impl Part {
    const ALL: [Part; 4] = [Part::CommonName, Part::Dns, Part::Email, Part::Uri];

    /// As OpenSSL prints it.
    fn prefix(self) -> &'static str {
        match self {
            Part::CommonName => "CN=",
            Part::Dns => "DNS:",
            Part::Email => "email:",
            Part::Uri => "URI:",
        }
    }
}

/// A name in a certificate: the common name of the subject, or an alternative name. Written as OpenSSL prints it:
/// `CN=ci`, `DNS:ci.example.net`, `email:ci@example.net`, `URI:spiffe://example.net/ci`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubjectName {
    part: Part,
    text: String,
}

impl FromStr for SubjectName {
    type Err = String;
    fn from_str(text: &str) -> Result<SubjectName, String> {
        let of = |part: Part| Some((part, text.strip_prefix(part.prefix())?));
        let (part, name) =
            Part::ALL.into_iter().find_map(of).ok_or("not a name in a certificate")?;
        if name.is_empty() || name.len() > LONGEST || name.chars().any(char::is_control) {
            return Err(format!("the name after {} has 1 to {LONGEST} bytes", part.prefix()));
        }
        Ok(SubjectName { part, text: name.into() })
    }
}

impl fmt::Display for SubjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.part.prefix(), self.text)
    }
}

/// Names that an authority vouches for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vouched {
    pub names: Vec<SubjectName>,
    /// Until when, since 1970.
    pub until: Duration,
}

/// The certificate of a client that has proved that it has the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// SHA-256 of the certificate.
    pub sha256: [u8; 32],
    /// Names in it that an authority vouches for, or why none does.
    pub names: Result<Vec<SubjectName>, String>,
}

/// Authorities whose certificates name users.
#[derive(Clone)]
pub struct Authorities {
    /// DER certificates, for comparison.
    certificates: Vec<Vec<u8>>,
    anchors: Vec<(TrustAnchor<'static>, Validity)>,
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authorities({})", self.anchors.len())
    }
}

impl PartialEq for Authorities {
    fn eq(&self, other: &Authorities) -> bool {
        self.certificates == other.certificates
    }
}

impl Authorities {
    /// Parses PEM (RFC 7468): the certificates of 1 to 8 authorities. Line ends may be spaces. The error is a message for
    /// the operator.
    pub fn from_pem(text: &str) -> Result<Authorities, String> {
        let mut all = Authorities { certificates: Vec::new(), anchors: Vec::new() };
        for (number, (label, der)) in pair::blocks(text)?.into_iter().enumerate() {
            let wrong = |why: &str| format!("certificate {}: {why}", number + 1);
            if label != "CERTIFICATE" {
                return Err(format!("{label} is not a CERTIFICATE"));
            }
            if number >= MOST {
                return Err(format!("more than {MOST} certificates"));
            }
            let certificate = Certificate::from_der(&der)
                .map_err(|why| wrong(&format!("not an X.509 certificate: {why}")))?;
            let info = certificate.tbs_certificate().subject_public_key_info();
            if p256::PublicKey::try_from(info.owned_to_ref()).is_err() {
                return Err(wrong("its key is not ECDSA on P-256"));
            }
            let constraints = certificate.tbs_certificate().get_extension::<BasicConstraints>();
            if !constraints.is_ok_and(|found| found.is_some_and(|(_, one)| one.ca)) {
                return Err(wrong("it is not that of an authority: it lacks CA:TRUE"));
            }
            let own = CertificateDer::from(der.clone());
            let anchor = anchor_from_trusted_cert(&own).map_err(|why| wrong(words(&why)))?;
            let validity = *certificate.tbs_certificate().validity();
            all.anchors.push((anchor.to_owned(), validity));
            all.certificates.push(der);
        }
        Ok(all)
    }

    /// SHA-256 of each authority's certificate, in hexadecimal digits.
    pub fn fingerprints(&self) -> impl Iterator<Item = String> + '_ {
        self.certificates.iter().map(|der| {
            Sha256::digest(der).iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        })
    }

    /// The names of the first certificate in `sent`, which the client has sent with its issuers. `at` is the time since
    /// 1970. The error is a message for the operator.
    pub(super) fn vouch(
        &self,
        sent: &[CertificateDer<'_>],
        at: Duration,
        source: &'static Source,
    ) -> Result<Vouched, String> {
        let (own, issuers) = sent.split_first().ok_or("no certificate was sent")?;
        if sent.len() > SENT {
            return Err(format!("more than {} issuers were sent with it", SENT - 1));
        }
        let is_valid = |validity: &Validity| {
            let [from, to] = [validity.not_before, validity.not_after].map(Time::to_unix_duration);
            (from..=to).contains(&at)
        };
        let valid = self.anchors.iter().filter(|(_, validity)| is_valid(validity));
        let (anchors, mut ends): (Vec<TrustAnchor<'_>>, Vec<Duration>) = valid
            .map(|(anchor, validity)| (anchor.clone(), validity.not_after.to_unix_duration()))
            .unzip();
        if anchors.is_empty() {
            return Err("no authority of http.client_ca is valid at this time".into());
        }
        let end_entity = EndEntityCert::try_from(own).map_err(|why| words(&why))?;
        let algorithm = EcdsaP256(source);
        end_entity
            .verify_for_usage(
                &[&algorithm],
                &anchors,
                issuers,
                UnixTime::since_unix_epoch(at),
                KeyUsage::client_auth(),
                None,
                None,
            )
            .map_err(|why| words(&why))?;
        for der in sent {
            let certificate = Certificate::from_der(der).map_err(|why| why.to_string())?;
            ends.push(certificate.tbs_certificate().validity().not_after.to_unix_duration());
        }
        let until = ends.into_iter().min().unwrap_or_default();
        Ok(Vouched { names: names_of(own)?, until })
    }
}

/// The names in a certificate.
fn names_of(der: &[u8]) -> Result<Vec<SubjectName>, String> {
    let certificate = Certificate::from_der(der).map_err(|why| why.to_string())?;
    let contents = certificate.tbs_certificate();
    let mut names = Vec::new();
    let mut add = |part: Part, text: &str| names.push(SubjectName { part, text: text.into() });
    let mut common = contents.subject().iter().filter(|one| one.oid == COMMON_NAME);
    // With several it is in doubt which one the authority means.
    if let (Some(one), None) = (common.next(), common.next()) {
        let text = DirectoryString::try_from(&one.value).map_err(|why| why.to_string())?;
        add(Part::CommonName, &text.value());
    }
    let alternatives = contents.get_extension::<SubjectAltName>().map_err(|why| why.to_string())?;
    for name in alternatives.map(|(_, SubjectAltName(names))| names).unwrap_or_default() {
        match &name {
            GeneralName::DnsName(text) => add(Part::Dns, text.as_str()),
            GeneralName::Rfc822Name(text) => add(Part::Email, text.as_str()),
            GeneralName::UniformResourceIdentifier(text) => add(Part::Uri, text.as_str()),
            _ => {}
        }
    }
    match names.len() {
        0 => Err("it has neither a common name nor a DNS, email or URI name".into()),
        count if count > NAMES => Err(format!("it has more than {NAMES} names")),
        _ => Ok(names),
    }
}

/// Why a certificate is not valid, for the operator.
fn words(why: &webpki::Error) -> &'static str {
    use webpki::Error;
    match why {
        Error::CertExpired { .. } => "it, or an issuer, has expired",
        Error::CertNotValidYet { .. } => "it, or an issuer, is not valid yet",
        Error::UnknownIssuer => "no authority of http.client_ca has issued it",
        Error::RequiredEkuNotFoundContext(_) => "it is not for clients: it lacks clientAuth",
        Error::CaUsedAsEndEntity => "it is that of an authority",
        Error::EndEntityUsedAsCa => "an issuer is not an authority",
        Error::InvalidSignatureForPublicKey => "a signature is wrong",
        Error::NameConstraintViolation => "an issuer may not issue this name",
        Error::PathLenConstraintViolated => "there are more issuers than an authority permits",
        Error::UnsupportedSignatureAlgorithmContext(_)
        | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => {
            "a signature is not ECDSA on P-256 with SHA-256"
        }
        _ => "it is malformed, or has an unknown critical extension",
    }
}

/// ECDSA on P-256 with SHA-256. Counts its operations.
#[derive(Debug)]
struct EcdsaP256(&'static Source);

impl SignatureVerificationAlgorithm for EcdsaP256 {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        self.0.count();
        let key = p256::PublicKey::from_sec1_bytes(public_key).map_err(|_| InvalidSignature)?;
        let signature = DerSignature::try_from(signature).map_err(|_| InvalidSignature)?;
        VerifyingKey::from(key).verify(message, &signature).map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P256
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_SHA256
    }
}

#[cfg(test)]
#[path = "authorities_tests.rs"]
mod tests;
