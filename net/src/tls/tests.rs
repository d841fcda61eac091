//! A rustls client against our server, in memory.

use super::*;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use base64ct::Encoding as _;
use core::time::Duration;
use drivers::hal::Instant;
use rustls::client::UnbufferedClientConnection;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, NamedGroup, SignatureScheme, SupportedCipherSuite,
    SupportedProtocolVersion,
};
use sha2::{Digest, Sha256};

const LATER: Duration = Duration::from_millis(20);

/// Deterministic pseudorandom bytes.
fn random() -> Random {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    Box::new(move |into| {
        for byte in into {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
    })
}

fn pair() -> Pair {
    Pair::self_signed("gw-1", &["10.0.0.1".parse().unwrap()], &mut *random())
}

fn server() -> Arc<Tls> {
    Tls::new(pair(), random())
}

/// Accepts only the expected certificate.
#[derive(Debug)]
struct Knows(Vec<u8>);

impl ServerCertVerifier for Knows {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        assert_eq!(end_entity.as_ref(), self.0);
        Ok(ServerCertVerified::assertion())
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
        use p256::ecdsa::signature::Verifier;
        use x509_cert::der::{Decode, referenced::OwnedToRef};
        let certificate = x509_cert::Certificate::from_der(cert).unwrap();
        let info = certificate.tbs_certificate().subject_public_key_info();
        let key = p256::PublicKey::try_from(info.owned_to_ref()).unwrap();
        let signature = p256::ecdsa::DerSignature::try_from(dss.signature()).unwrap();
        p256::ecdsa::VerifyingKey::from(key).verify(message, &signature).unwrap();
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

struct Client {
    connection: UnbufferedClientConnection,
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    text: Vec<u8>,
    say: Vec<u8>,
    open: bool,
}

impl Client {
    fn new(
        version: &'static SupportedProtocolVersion,
        suite: usize,
        group: NamedGroup,
        certificate: &[u8],
    ) -> Client {
        Client::with(version, suite, group, certificate, None)
    }

    /// A client with a certificate of its own, and a key.
    fn with(
        version: &'static SupportedProtocolVersion,
        suite: usize,
        group: NamedGroup,
        certificate: &[u8],
        own: Option<(&Pair, &Pair)>,
    ) -> Client {
        let source = Box::leak(Box::new(provider::Source::new(random())));
        let mut provider = provider::provider(source);
        let of_version = |s: &SupportedCipherSuite| s.version().version == version.version;
        provider.cipher_suites.retain(of_version);
        provider.cipher_suites = vec![provider.cipher_suites[suite]];
        provider.kx_groups.retain(|g| g.name() == group);
        #[derive(Debug)]
        struct Clock;
        impl rustls::time_provider::TimeProvider for Clock {
            fn current_time(&self) -> Option<UnixTime> {
                Some(UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000)))
            }
        }
        let builder = ClientConfig::builder_with_details(Arc::new(provider), Arc::new(Clock))
            .with_protocol_versions(&[version])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Knows(certificate.into())));
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = vec![CertificateDer::from(certificate.certificate().to_vec())];
                let key = provider::CertificateKey { key: key.key().clone(), source };
                let certified = CertifiedKey::new(chain, Arc::new(key));
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
            }
        };
        config.resumption = rustls::client::Resumption::disabled();
        let name = ServerName::try_from("gw-1").unwrap();
        let connection = UnbufferedClientConnection::new(Arc::new(config), name).unwrap();
        Client {
            connection,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            text: Vec::new(),
            say: Vec::new(),
            open: false,
        }
    }

    fn poll(&mut self) {
        loop {
            let UnbufferedStatus { discard, state } =
                self.connection.process_tls_records(&mut self.incoming);
            let mut more = true;
            match state.unwrap() {
                ConnectionState::ReadTraffic(mut records) => {
                    while let Some(record) = records.next_record() {
                        self.text.extend_from_slice(record.unwrap().payload);
                    }
                }
                ConnectionState::EncodeTlsData(mut record) => {
                    let mut room = [0; 8192];
                    let len = record.encode(&mut room).unwrap();
                    self.outgoing.extend_from_slice(&room[..len]);
                }
                ConnectionState::TransmitTlsData(record) => record.done(),
                ConnectionState::WriteTraffic(mut traffic) => {
                    self.open = true;
                    more = false;
                    if !self.say.is_empty() {
                        let mut room = vec![0; self.say.len() + 256];
                        let len = traffic.encrypt(&self.say, &mut room).unwrap();
                        self.outgoing.extend_from_slice(&room[..len]);
                        self.say.clear();
                    }
                }
                _ => more = false,
            }
            self.incoming.drain(..discard);
            if !more {
                return;
            }
        }
    }

    /// Carries bytes both ways, `step` at a time, until nothing moves.
    fn talk(&mut self, session: &mut Session, now: &mut Instant, step: usize) {
        loop {
            self.poll();
            let taken = session.receive(&self.outgoing[..self.outgoing.len().min(step)]);
            self.outgoing.drain(..taken);
            session.poll(*now);
            let sent = session.outgoing().len().min(step);
            self.incoming.extend_from_slice(&session.outgoing()[..sent]);
            session.consume(sent);
            *now = *now + LATER;
            if taken == 0 && sent == 0 {
                return;
            }
        }
    }
}

#[test]
fn data_is_exchanged_with_all_versions_suites_and_groups() {
    let tls = server();
    let mut now = Instant::ZERO;
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        for suite in 0..2 {
            for group in [NamedGroup::X25519, NamedGroup::secp256r1] {
                for step in [1, 100, 20_000] {
                    netsim::label!(version, suite, group, step);
                    let mut session = tls.session(now);
                    session.deadline = now + Duration::from_secs(1000);
                    let mut client = Client::new(version, suite, group, tls.pair().certificate());
                    client.talk(&mut session, &mut now, step);
                    assert!(session.is_open() && client.open, "{version:?} {suite} {group:?}");
                    let question: Vec<u8> = (0..10_000).map(|i| i as u8).collect();
                    client.say = question.clone();
                    let mut received = Vec::new();
                    while received.len() < question.len() {
                        client.talk(&mut session, &mut now, step);
                        session.take(|text| {
                            let taken = text.len().min(333);
                            received.extend_from_slice(&text[..taken]);
                            taken
                        });
                    }
                    assert_eq!(received, question);
                    let mut written = 0;
                    while written < question.len() {
                        written += session.write(&question[written..]);
                        client.talk(&mut session, &mut now, step);
                    }
                    assert_eq!(client.text, question);
                    session.close();
                    client.talk(&mut session, &mut now, step);
                    assert!(session.failure().is_none());
                }
            }
        }
    }
}

#[test]
fn certificate_of_a_client_is_known_after_a_proof_of_its_key() {
    let tls = server();
    let mut now = Instant::ZERO;
    let other = |name| {
        let mut random = random();
        random(&mut [0; 5]);
        Pair::self_signed(name, &[], &mut *random)
    };
    let (own, stranger) = (other("ci"), pair());
    let hash: [u8; 32] = Sha256::digest(own.certificate()).into();
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let mut result = |asks: bool, with: Option<(&Pair, &Pair)>| {
            tls.ask_for_certificates(asks);
            let server = tls.pair().certificate();
            let mut client = Client::with(version, 0, NamedGroup::X25519, server, with);
            let mut session = tls.session(now);
            session.deadline = now + Duration::from_secs(1000);
            for _ in 0..20 {
                client.poll();
                let taken = session.receive(&client.outgoing);
                client.outgoing.drain(..taken);
                session.poll(now);
                now = now + LATER;
                if session.failure().is_some() {
                    break;
                }
                client.incoming.extend_from_slice(session.outgoing());
                session.consume(session.outgoing().len());
            }
            (session.is_open(), session.certificate(now).map(|one| one.sha256))
        };
        assert_eq!(result(true, Some((&own, &own))), (true, Some(hash)));
        assert_eq!(result(true, None), (true, None), "it may have none");
        assert_eq!(result(false, Some((&own, &own))), (true, None), "it is not asked");
        // The certificate of somebody else is of no use without its key.
        assert_eq!(result(true, Some((&own, &stranger))), (false, None));
    }
}

#[test]
fn handshakes_run_one_at_a_time_with_a_pause() {
    let tls = server();
    let now = Instant::ZERO + LATER;
    let group = NamedGroup::X25519;
    let mut sessions: Vec<(Client, Session)> = (0..4)
        .map(|_| {
            let mut client =
                Client::new(&rustls::version::TLS13, 0, group, tls.pair().certificate());
            client.poll();
            let mut session = tls.session(now);
            assert_eq!(session.receive(&client.outgoing), client.outgoing.len());
            (client, session)
        })
        .collect();
    let answered = |sessions: &[(Client, Session)]| {
        sessions.iter().filter(|(_, session)| !session.outgoing().is_empty()).count()
    };
    for (round, at) in [(1, 0), (1, 9), (2, 10), (2, 19), (3, 20), (4, 30)] {
        let at = now + Duration::from_millis(at);
        sessions.iter_mut().for_each(|(_, session)| session.poll(at));
        assert_eq!(answered(&sessions), round, "{at:?}");
        for (_, session) in &sessions {
            assert!(session.poll_timeout().is_some_and(|due| due > at));
        }
    }
}

#[test]
fn slow_and_invalid_clients_are_refused() {
    let tls = server();
    let mut slow = tls.session(Instant::ZERO);
    let hello = b"\x16\x03\x01\x02\x00\x01";
    for (i, byte) in hello.iter().enumerate() {
        let now = Instant::ZERO + Duration::from_millis(900) * i as u32;
        slow.receive(&[*byte]);
        slow.poll(now);
        assert!(slow.failure().is_none());
    }
    assert_eq!(slow.poll_timeout(), Some(Instant::ZERO + Duration::from_secs(5)));
    slow.poll(Instant::ZERO + Duration::from_secs(5));
    assert_eq!(slow.failure(), Some(&Failure::Slow));

    let mut plain = tls.session(Instant::ZERO);
    plain.receive(b"GET / HTTP/1.1\r\nHost: gw-1\r\n\r\n");
    plain.poll(Instant::ZERO);
    assert!(matches!(plain.failure(), Some(Failure::Wrong(_))));
    // An alert (RFC 8446, section 6): type 21, two bytes, fatal.
    assert_eq!((plain.outgoing()[0], plain.outgoing()[5]), (21, 2));
    assert!(!plain.has_room());
    assert_eq!(plain.receive(b"more"), 4, "further input is discarded");

    // A handshake message that never ends: its first record has 16 KiB and announces 64 KiB.
    let mut long = tls.session(Instant::ZERO);
    let mut bytes = vec![0x16, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff];
    bytes.resize(40_000, 0);
    bytes[5 + 0x4000..][..5].copy_from_slice(&[0x16, 3, 1, 0x40, 0]);
    let mut at = 0;
    for _ in 0..10 {
        at += long.receive(&bytes[at..]);
        long.poll(Instant::ZERO);
    }
    assert!(matches!(long.failure(), Some(Failure::Wrong(_))), "{long:?}");
}

#[test]
fn modified_record_is_detected() {
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        for suite in 0..2 {
            netsim::label!(version, suite);
            let tls = server();
            let mut now = Instant::ZERO;
            let mut session = tls.session(now);
            let group = NamedGroup::X25519;
            let mut client = Client::new(version, suite, group, tls.pair().certificate());
            client.talk(&mut session, &mut now, 20_000);
            client.say = b"question".to_vec();
            client.poll();
            *client.outgoing.last_mut().unwrap() ^= 1;
            session.receive(&client.outgoing);
            session.poll(now);
            assert!(matches!(session.failure(), Some(Failure::Wrong(_))));
            assert!(!session.take(<[u8]>::len));
        }
    }
}

/// The answer to the client's key update is pending when a record is invalid.
#[test]
fn alert_behind_another_record_is_sent() {
    let tls = server();
    let mut now = Instant::ZERO;
    let mut session = tls.session(now);
    let group = NamedGroup::X25519;
    let mut client = Client::new(&rustls::version::TLS13, 0, group, tls.pair().certificate());
    client.talk(&mut session, &mut now, 20_000);
    let status = client.connection.process_tls_records(&mut []);
    let Ok(ConnectionState::WriteTraffic(traffic)) = status.state else { panic!() };
    traffic.refresh_traffic_keys().unwrap();
    client.poll();
    client.say = b"question".to_vec();
    client.poll();
    *client.outgoing.last_mut().unwrap() ^= 1;
    session.receive(&client.outgoing);
    session.poll(now);
    assert!(matches!(session.failure(), Some(Failure::Wrong(_))));
    let (mut left, mut records) = (session.outgoing(), 0);
    while let [_, _, _, high, low, rest @ ..] = left {
        left = &rest[usize::from(u16::from_be_bytes([*high, *low]))..];
        records += 1;
    }
    assert_eq!(records, 2, "our key update, and the alert");
    client.incoming.extend_from_slice(session.outgoing());
    let error = loop {
        let UnbufferedStatus { discard, state } =
            client.connection.process_tls_records(&mut client.incoming);
        if let Err(error) = state {
            break error;
        }
        client.incoming.drain(..discard);
    };
    assert!(matches!(error, Error::AlertReceived(_)), "{error}");
}

#[test]
fn pair_round_trips_and_errors_name_the_faulty_part() {
    let made = pair();
    let again = Pair::from_bytes(&made.to_bytes()).unwrap();
    assert_eq!((again.fingerprint(), again.pin()), (made.fingerprint(), made.pin()));
    for len in 0..made.to_bytes().len() {
        assert!(Pair::from_bytes(&made.to_bytes()[..len]).is_none(), "{len}");
    }
    // 32 bytes with colons; base64 of 32 bytes.
    assert_eq!((made.fingerprint().len(), made.pin().len()), (95, 8 + 44));

    let key = |pair: &Pair| {
        let bytes = pair.to_bytes();
        let len = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
        let text: String = base64ct::Base64::encode_string(&bytes[4 + len..]);
        alloc::format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
    };
    fn parse(certificate: &str, key: &str) -> Result<Pair, PairError> {
        Pair::from_pem(certificate, key)
    }
    let certificate = made.certificate_pem();
    let good = parse(&certificate, &key(&made)).unwrap();
    assert_eq!(good.fingerprint(), made.fingerprint());
    let one_line = certificate.replace('\n', " ");
    assert!(parse(&one_line, &key(&made).replace('\n', " ")).is_ok());
    let mut other = random();
    other(&mut [0; 7]);
    let other = Pair::self_signed("gw-2", &[], &mut *other);
    let certificate_is_wrong = |text: &str| {
        assert!(matches!(parse(text, &key(&made)), Err(PairError::Certificate(_))), "{text}");
    };
    for text in ["", "x", "-----BEGIN CERTIFICATE-----", &key(&made)] {
        certificate_is_wrong(text);
    }
    certificate_is_wrong(&certificate.replace('M', "!"));
    certificate_is_wrong(&(other.certificate_pem() + &certificate));
    certificate_is_wrong("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----");
    let key_is_wrong = |text: &str| {
        assert!(matches!(parse(&certificate, text), Err(PairError::Key(_))), "{text}");
    };
    for text in ["", "x", &certificate, &key(&other), &(key(&made) + &key(&made))] {
        key_is_wrong(text);
    }
    key_is_wrong("-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----");
}

/// Carries bytes between our client and our server until nothing moves.
fn carry(client: &mut super::Client, server: &mut Session, now: &mut Instant) {
    for _ in 0..50 {
        *now = *now + LATER;
        let sent = server.receive(client.outgoing());
        client.consume(sent);
        server.poll(*now);
        server.take(<[u8]>::len);
        let answered = server.outgoing().to_vec();
        for piece in answered.chunks(100) {
            client.receive(piece);
        }
        server.consume(answered.len());
    }
}

#[test]
fn our_client_accepts_the_pinned_certificate_alone() {
    let tls = server();
    let pinned: [u8; 32] = Sha256::digest(pair().certificate()).into();
    let clients = Clients::new(random());
    let mut now = Instant::from_nanos(1_000_000_000);
    for name in ["gw-1", "10.0.0.1", "fd00::1"] {
        let mut session = tls.session(now);
        let mut client = clients.connect(name, pinned).unwrap();
        assert!(!client.write(b"too early"));
        carry(&mut client, &mut session, &mut now);
        assert!(client.is_open() && session.is_open(), "{client:?} {session:?}");
        assert!(client.write(b"12 message"));
        let records = client.outgoing().to_vec();
        client.consume(records.len());
        session.receive(&records);
        session.poll(now);
        let mut text = Vec::new();
        session.take(|bytes| {
            text.extend_from_slice(bytes);
            bytes.len()
        });
        assert_eq!(text, b"12 message");
        session.close();
        client.receive(session.outgoing());
        assert_eq!(client.failure(), Some("the server closed the TLS session"));
    }
    let mut session = tls.session(now);
    let mut client = clients.connect("gw-1", [7; 32]).unwrap();
    carry(&mut client, &mut session, &mut now);
    assert_eq!(client.failure(), Some("its certificate has another fingerprint"));
    assert!(!client.is_open() && !client.write(b"x"));
}

#[test]
fn our_client_ends_on_noise() {
    let clients = Clients::new(random());
    let mut client = clients.connect("gw-1", [7; 32]).unwrap();
    client.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    assert!(client.failure().is_some());
    let mut client = clients.connect("gw-1", [7; 32]).unwrap();
    let mut endless = vec![22, 3, 3, 0x40, 0];
    endless.resize(5 + 0x4000, 0xff);
    for _ in 0..8 {
        client.receive(&endless);
    }
    assert!(client.failure().is_some());
}
