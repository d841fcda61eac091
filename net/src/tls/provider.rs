//! The cryptography provider of rustls: RustCrypto's algorithms, and the appliance's random number generator.
//!
//! The crate `rustls-rustcrypto` is not used: it takes randomness from the operating system, and its latest release is
//! an alpha. Public-key operations are counted, because they are expensive.

use super::ciphers::Aead;
use aes_gcm::Aes128Gcm;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use chacha20poly1305::ChaCha20Poly1305;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};
use hmac::{KeyInit, Mac};
use p256::ecdsa::signature::Signer as _;
use p256::ecdsa::{DerSignature, SigningKey};
use p256::elliptic_curve::sec1::ToSec1Point;
use rustls::crypto::hash::{Context, Hash, HashAlgorithm, Output};
use rustls::crypto::hmac::{Hmac, Key, Tag};
use rustls::crypto::tls12::PrfUsingHmac;
use rustls::crypto::tls13::HkdfUsingHmac;
use rustls::crypto::{
    ActiveKeyExchange, CipherSuiteCommon, CryptoProvider, GetRandomFailed, KeyExchangeAlgorithm,
    KeyProvider, SecureRandom, SharedSecret, SupportedKxGroup, WebPkiSupportedAlgorithms,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::{Signer, SigningKey as TlsKey};
use rustls::{
    CipherSuite, Error, NamedGroup, PeerMisbehaved, SignatureAlgorithm, SignatureScheme,
    SupportedCipherSuite, Tls12CipherSuite, Tls13CipherSuite,
};
use sha2::{Digest, Sha256};
use spin::Mutex;

/// Fills memory with bytes from a cryptographic generator.
pub type Random = Box<dyn FnMut(&mut [u8]) + Send>;

/// The random number generator, and the counter of public-key operations.
pub struct Source {
    random: Mutex<Random>,
    operations: AtomicU64,
}

impl Source {
    pub fn new(random: Random) -> Self {
        Source { random: Mutex::new(random), operations: AtomicU64::new(0) }
    }

    pub fn fill(&self, into: &mut [u8]) {
        self.random.lock()(into);
    }

    /// Number of public-key operations so far.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::Relaxed)
    }

    pub fn count(&self) {
        self.operations.fetch_add(1, Ordering::Relaxed);
    }

    /// A new secret key on P-256.
    pub fn p256_secret(&self) -> p256::SecretKey {
        let mut bytes = [0; 32];
        loop {
            self.fill(&mut bytes);
            // One value in 2^32 is not a valid key.
            if let Ok(secret) = p256::SecretKey::from_slice(&bytes) {
                return secret;
            }
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

/// The provider, with all algorithms that rustls may use.
pub fn provider(source: &'static Source) -> CryptoProvider {
    let groups: [&'static dyn SupportedKxGroup; 2] =
        [Box::leak(Box::new(X25519(source))), Box::leak(Box::new(P256(source)))];
    CryptoProvider {
        cipher_suites: Vec::from(SUITES),
        kx_groups: groups.into(),
        // No certificate is verified.
        signature_verification_algorithms: WebPkiSupportedAlgorithms { all: &[], mapping: &[] },
        secure_random: source,
        key_provider: &NoKeys,
    }
}

const SUITES: [SupportedCipherSuite; 4] = [
    SupportedCipherSuite::Tls13(&AES_13),
    SupportedCipherSuite::Tls13(&CHACHA_13),
    SupportedCipherSuite::Tls12(&AES_12),
    SupportedCipherSuite::Tls12(&CHACHA_12),
];

static AES: Aead<Aes128Gcm> = Aead(PhantomData);
static CHACHA: Aead<ChaCha20Poly1305> = Aead(PhantomData);
static SCHEMES: [SignatureScheme; 1] = [SignatureScheme::ECDSA_NISTP256_SHA256];

/// Maximum number of full-size records that one AES-GCM key may encrypt (see `CipherSuiteCommon`).
const GCM_LIMIT: u64 = 1 << 24;

const fn common(suite: CipherSuite, confidentiality_limit: u64) -> CipherSuiteCommon {
    CipherSuiteCommon { suite, hash_provider: &HashSha256, confidentiality_limit }
}

static AES_13: Tls13CipherSuite = Tls13CipherSuite {
    common: common(CipherSuite::TLS13_AES_128_GCM_SHA256, GCM_LIMIT),
    hkdf_provider: &HkdfUsingHmac(&HmacSha256),
    aead_alg: &AES,
    quic: None,
};
static CHACHA_13: Tls13CipherSuite = Tls13CipherSuite {
    common: common(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, u64::MAX),
    hkdf_provider: &HkdfUsingHmac(&HmacSha256),
    aead_alg: &CHACHA,
    quic: None,
};
static AES_12: Tls12CipherSuite = Tls12CipherSuite {
    common: common(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, GCM_LIMIT),
    prf_provider: &PrfUsingHmac(&HmacSha256),
    kx: KeyExchangeAlgorithm::ECDHE,
    sign: &SCHEMES,
    aead_alg: &AES,
};
static CHACHA_12: Tls12CipherSuite = Tls12CipherSuite {
    common: common(CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, u64::MAX),
    prf_provider: &PrfUsingHmac(&HmacSha256),
    kx: KeyExchangeAlgorithm::ECDHE,
    sign: &SCHEMES,
    aead_alg: &CHACHA,
};

impl SecureRandom for Source {
    fn fill(&self, into: &mut [u8]) -> Result<(), GetRandomFailed> {
        Source::fill(self, into);
        Ok(())
    }
}

/// Rejects all keys: the certificate's key is passed as a [`CertificateKey`].
#[derive(Debug)]
struct NoKeys;

impl KeyProvider for NoKeys {
    fn load_private_key(&self, _: PrivateKeyDer<'static>) -> Result<Arc<dyn TlsKey>, Error> {
        Err(Error::General("loading of keys is not supported".into()))
    }
}

struct HashSha256;

impl Hash for HashSha256 {
    fn start(&self) -> Box<dyn Context> {
        Box::new(Hashing(Sha256::new()))
    }

    fn hash(&self, data: &[u8]) -> Output {
        Output::new(&Sha256::digest(data))
    }

    fn output_len(&self) -> usize {
        32
    }

    fn algorithm(&self) -> HashAlgorithm {
        HashAlgorithm::SHA256
    }
}

struct Hashing(Sha256);

impl Context for Hashing {
    fn fork_finish(&self) -> Output {
        Output::new(&self.0.clone().finalize())
    }

    fn fork(&self) -> Box<dyn Context> {
        Box::new(Hashing(self.0.clone()))
    }

    fn finish(self: Box<Self>) -> Output {
        Output::new(&self.0.finalize())
    }

    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }
}

struct HmacSha256;

impl Hmac for HmacSha256 {
    fn with_key(&self, key: &[u8]) -> Box<dyn Key> {
        let keyed = hmac::Hmac::<Sha256>::new_from_slice(key);
        Box::new(HmacKey(keyed.expect("a key may have any length")))
    }

    fn hash_output_len(&self) -> usize {
        32
    }
}

struct HmacKey(hmac::Hmac<Sha256>);

impl Key for HmacKey {
    fn sign_concat(&self, first: &[u8], middle: &[&[u8]], last: &[u8]) -> Tag {
        let mut hmac = self.0.clone();
        hmac.update(first);
        middle.iter().for_each(|part| hmac.update(part));
        hmac.update(last);
        Tag::new(&hmac.finalize().into_bytes())
    }

    fn tag_len(&self) -> usize {
        32
    }
}

const BAD_SHARE: Error = Error::PeerMisbehaved(PeerMisbehaved::InvalidKeyShare);

#[derive(Debug)]
struct X25519(&'static Source);

impl SupportedKxGroup for X25519 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        self.0.count();
        let mut bytes = [0; 32];
        self.0.fill(&mut bytes);
        let secret = x25519_dalek::StaticSecret::from(bytes);
        let public = x25519_dalek::PublicKey::from(&secret);
        Ok(Box::new(X25519Exchange { secret, public, source: self.0 }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

struct X25519Exchange {
    secret: x25519_dalek::StaticSecret,
    public: x25519_dalek::PublicKey,
    source: &'static Source,
}

impl ActiveKeyExchange for X25519Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        self.source.count();
        let peer: [u8; 32] = peer.try_into().map_err(|_| BAD_SHARE)?;
        let shared = self.secret.diffie_hellman(&peer.into());
        // RFC 8446, section 7.4.2: a share of low order leads to a publicly known secret.
        if !shared.was_contributory() {
            return Err(BAD_SHARE);
        }
        Ok(SharedSecret::from(&shared.as_bytes()[..]))
    }

    fn pub_key(&self) -> &[u8] {
        self.public.as_bytes()
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

#[derive(Debug)]
struct P256(&'static Source);

impl SupportedKxGroup for P256 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        self.0.count();
        let secret = self.0.p256_secret();
        let public = secret.public_key().to_sec1_point(false).as_bytes().into();
        Ok(Box::new(P256Exchange { secret, public, source: self.0 }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp256r1
    }
}

struct P256Exchange {
    secret: p256::SecretKey,
    public: Box<[u8]>,
    source: &'static Source,
}

impl ActiveKeyExchange for P256Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        self.source.count();
        // RFC 8446 section 4.2.8.2: only the uncompressed form is allowed.
        if peer.first() != Some(&4) {
            return Err(BAD_SHARE);
        }
        let peer = p256::PublicKey::from_sec1_bytes(peer).map_err(|_| BAD_SHARE)?;
        let shared = p256::ecdh::diffie_hellman(self.secret.to_nonzero_scalar(), peer.as_affine());
        Ok(SharedSecret::from(&shared.raw_secret_bytes()[..]))
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::secp256r1
    }
}

/// The private key of the certificate.
#[derive(Clone)]
pub struct CertificateKey {
    pub key: SigningKey,
    pub source: &'static Source,
}

impl fmt::Debug for CertificateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificateKey")
    }
}

impl TlsKey for CertificateKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&SCHEMES[0]).then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl Signer for CertificateKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.source.count();
        // Deterministic (RFC 6979): a generator that repeats itself does not reveal the key.
        let signature: DerSignature = self.key.sign(message);
        Ok(signature.as_bytes().into())
    }

    fn scheme(&self) -> SignatureScheme {
        SCHEMES[0]
    }
}
