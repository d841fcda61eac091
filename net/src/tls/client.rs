//! A TLS connection to a server, without its TCP socket: encrypts text, and decrypts what the server sends.
//!
//! The server is known by the SHA-256 fingerprint of its certificate (RFC 5425 section 4.2.2). Names and issuers in
//! certificates are not verified, so neither a clock nor a list of authorities is needed. The server proves that it has
//! the certificate's key, which must be ECDSA on P-256.

use super::provider::{Random, Source, provider};
use super::session::{INCOMING, RECORD, append};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;
use p256::ecdsa::signature::Verifier as _;
use p256::ecdsa::{DerSignature, VerifyingKey};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use x509_cert::der::Decode as _;
use x509_cert::der::referenced::OwnedToRef as _;

/// What connections to servers share. Create it once: objects that rustls needs for ever are leaked.
#[derive(Debug)]
pub struct Clients {
    provider: Arc<CryptoProvider>,
}

impl Clients {
    /// With this source of randomness.
    pub fn new(random: Random) -> Clients {
        let source: &'static Source = Box::leak(Box::new(Source::new(random)));
        Clients { provider: Arc::new(provider(source)) }
    }

    /// A new connection to the server with this name or address, whose certificate has this SHA-256.
    pub fn connect(&self, server: &str, fingerprint: [u8; 32]) -> Result<Client, String> {
        let config = ClientConfig::builder_with_details(self.provider.clone(), Arc::new(NoClock))
            .with_safe_default_protocol_versions()
            .map_err(|why| why.to_string())?;
        let mut config = config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Pinned(fingerprint)))
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        let name = ServerName::try_from(server.to_string()).map_err(|why| why.to_string())?;
        let connection = UnbufferedClientConnection::new(Arc::new(config), name);
        let mut client = Client {
            connection: connection.map_err(|why| why.to_string())?,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            sent: 0,
            open: false,
            ended: false,
            failure: None,
        };
        client.advance(None);
        Ok(client)
    }
}

/// A TLS connection to a server.
pub struct Client {
    connection: UnbufferedClientConnection,
    /// Received records that are incomplete.
    incoming: Vec<u8>,
    /// Records for the server, of which `sent` bytes were sent.
    outgoing: Vec<u8>,
    sent: usize,
    open: bool,
    ended: bool,
    failure: Option<String>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Client { open, ended, failure, .. } = self;
        write!(f, "Client {{ open: {open}, ended: {ended}, failure: {failure:?} }}")
    }
}

impl Client {
    /// Processes bytes from the server. Its text is discarded.
    pub fn receive(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.failure.is_none() && !self.ended {
            let room = INCOMING - self.incoming.len();
            if room == 0 {
                // After the handshake, fragments of a message that never ends.
                self.failure = Some("the server's message is too long".into());
                self.incoming = Vec::new();
                return;
            }
            let (now, later) = bytes.split_at(bytes.len().min(room));
            self.incoming.extend_from_slice(now);
            bytes = later;
            self.advance(None);
        }
    }

    /// Whether [`Client::write`] accepts text.
    pub fn has_room(&self) -> bool {
        self.open && self.outgoing.is_empty() && self.failure.is_none() && !self.ended
    }

    /// Encrypts a text of at most 4 KiB, without which nothing is done. False without room.
    pub fn write(&mut self, text: &[u8]) -> bool {
        let is_fit = self.has_room() && (1..=RECORD).contains(&text.len());
        if is_fit {
            self.advance(Some(text));
        }
        is_fit
    }

    /// Records to be sent.
    pub fn outgoing(&self) -> &[u8] {
        self.outgoing.get(self.sent..).unwrap_or_default()
    }

    /// Marks the first `count` bytes of [`Client::outgoing`] as sent.
    pub fn consume(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.outgoing.len() {
            self.outgoing.clear();
            self.sent = 0;
        }
    }

    /// Whether the handshake is complete.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Why the connection cannot continue: it has failed, or the server has closed it.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref().or(self.ended.then_some("the server closed the TLS session"))
    }

    /// Processes input as far as possible. `text` is encrypted once the handshake is complete.
    fn advance(&mut self, mut text: Option<&[u8]>) {
        loop {
            let UnbufferedStatus { mut discard, state } =
                self.connection.process_tls_records(&mut self.incoming);
            let (mut more, mut failed) = (true, None);
            let into = &mut self.outgoing;
            match state {
                Ok(ConnectionState::ReadTraffic(mut records)) => {
                    while let Some(record) = records.next_record() {
                        match record {
                            Ok(record) => discard += record.discard,
                            Err(why) => failed = Some(why.to_string()),
                        }
                    }
                }
                Ok(ConnectionState::EncodeTlsData(mut record)) => {
                    failed = append(into, |room| match record.encode(room) {
                        Ok(len) => Ok(Ok(len)),
                        Err(EncodeError::InsufficientSize(need)) => Ok(Err(need.required_size)),
                        Err(why) => Err(why.to_string()),
                    });
                }
                // The record is in `outgoing`.
                Ok(ConnectionState::TransmitTlsData(record)) => record.done(),
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    (self.open, more) = (true, false);
                    if let Some(text) = text.take() {
                        failed = append(into, |room| match traffic.encrypt(text, room) {
                            Ok(len) => Ok(Ok(len)),
                            Err(EncryptError::InsufficientSize(need)) => {
                                Ok(Err(need.required_size))
                            }
                            Err(why) => Err(why.to_string()),
                        });
                    }
                }
                Ok(ConnectionState::PeerClosed) => self.ended = true,
                Ok(ConnectionState::BlockedHandshake) => {
                    more = false;
                    if self.incoming.len() - discard >= INCOMING {
                        failed = Some("the server's handshake message is too long".into());
                    }
                }
                Ok(ConnectionState::Closed) => more = false,
                Ok(_) => failed = Some("the server sent an unexpected message".into()),
                Err(Error::InvalidCertificate(
                    CertificateError::ApplicationVerificationFailure,
                )) => {
                    failed = Some("its certificate has another fingerprint".into());
                }
                Err(why) => failed = Some(why.to_string()),
            }
            self.incoming.drain(..discard.min(self.incoming.len()));
            if failed.is_some() {
                self.failure = failed;
                self.incoming = Vec::new();
                return;
            }
            if !more {
                return;
            }
        }
    }
}

/// Accepts the certificate with this SHA-256.
#[derive(Debug)]
struct Pinned([u8; 32]);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let fingerprint: [u8; 32] = Sha256::digest(end_entity).into();
        match bool::from(fingerprint.ct_eq(&self.0)) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify_tls13_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// Verifies that the peer has the key of its certificate, which must be ECDSA on P-256.
pub(super) fn verify(
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    if dss.scheme != SignatureScheme::ECDSA_NISTP256_SHA256 {
        return Err(CertificateError::BadSignature.into());
    }
    let key = x509_cert::Certificate::from_der(cert).ok().and_then(|certificate| {
        let info = certificate.tbs_certificate().subject_public_key_info();
        p256::PublicKey::try_from(info.owned_to_ref()).ok()
    });
    let key = key.ok_or(CertificateError::BadEncoding)?;
    let is_good = DerSignature::try_from(dss.signature())
        .is_ok_and(|signature| VerifyingKey::from(key).verify(message, &signature).is_ok());
    match is_good {
        true => Ok(HandshakeSignatureValid::assertion()),
        false => Err(CertificateError::BadSignature.into()),
    }
}

/// No time is needed, because no certificate's dates are verified.
#[derive(Debug)]
struct NoClock;

impl TimeProvider for NoClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(core::time::Duration::ZERO))
    }
}
