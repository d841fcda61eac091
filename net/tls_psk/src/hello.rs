//! ClientHello and ServerHello: parsed with all checks of RFC 8446 section 4.1 that concern a PSK with a key exchange.

use crate::alert::{Alert, Checked, UNDECODABLE, violates};
use crate::codec::{self, Reader};
use crate::group::Group;
use crate::schedule::Suite;
use alloc::vec::Vec;

/// Handshake messages.
pub const CLIENT_HELLO: u8 = 1;
pub const SERVER_HELLO: u8 = 2;
pub const ENCRYPTED_EXTENSIONS: u8 = 8;
pub const FINISHED: u8 = 20;
pub const MESSAGE_HASH: u8 = 254;

/// Extensions.
pub const SUPPORTED_GROUPS: u16 = 10;
pub const PRE_SHARED_KEY: u16 = 41;
pub const EARLY_DATA: u16 = 42;
pub const SUPPORTED_VERSIONS: u16 = 43;
pub const COOKIE: u16 = 44;
pub const PSK_MODES: u16 = 45;
pub const KEY_SHARE: u16 = 51;

/// The version in the extension, and the one in messages.
pub const TLS_1_3: u16 = 0x304;
pub const LEGACY: u16 = 0x303;
/// `psk_dhe_ke`.
pub const PSK_DHE: u8 = 1;

/// Random number of a HelloRetryRequest: SHA-256 of its name (RFC 8446 section 4.1.3).
pub const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// Maximum number of identities that are considered.
pub const IDENTITIES: usize = 8;
/// Maximum number of extensions of a hello.
const EXTENSIONS: usize = 64;

/// A checked ClientHello, in the message's memory.
#[derive(Clone, Copy)]
pub struct ClientHello<'a> {
    pub random: &'a [u8],
    pub session_id: &'a [u8],
    suites: &'a [u8],
    groups: &'a [u8],
    shares: &'a [u8],
    identities: &'a [u8],
    binders: &'a [u8],
    /// Bytes of the message before its binders.
    pub truncated: usize,
}

/// The extensions of a hello, without a duplicate.
struct Extensions<'a> {
    rest: Reader<'a>,
    seen: [u16; EXTENSIONS],
    count: usize,
}

impl<'a> Extensions<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Extensions { rest: Reader(bytes), seen: [0; EXTENSIONS], count: 0 }
    }

    fn next(&mut self) -> Checked<Option<(u16, &'a [u8])>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let kind = self.rest.word()?;
        let body = self.rest.vector16()?;
        if self.seen.get(..self.count).unwrap_or_default().contains(&kind) {
            return violates(Alert::ILLEGAL_PARAMETER, "the peer repeats a TLS extension");
        }
        let Some(seen) = self.seen.get_mut(self.count) else {
            return violates(Alert::ILLEGAL_PARAMETER, "the peer sent too many TLS extensions");
        };
        *seen = kind;
        self.count += 1;
        Ok(Some((kind, body)))
    }
}

impl<'a> ClientHello<'a> {
    /// Parses a message with its header.
    pub fn parse(message: &'a [u8]) -> Checked<ClientHello<'a>> {
        let mut body = Reader(message.get(4..).ok_or(UNDECODABLE)?);
        body.word()?;
        let random = body.take(32)?;
        let session_id = body.vector8()?;
        let suites = body.vector16()?;
        let compression = body.vector8()?;
        // A client without extensions is one of TLS 1.2.
        let extensions = if body.is_empty() { &[][..] } else { body.vector16()? };
        body.end()?;
        if session_id.len() > 32 || suites.is_empty() || !suites.len().is_multiple_of(2) {
            return Err(UNDECODABLE);
        }
        let mut hello = ClientHello {
            random,
            session_id,
            suites,
            groups: &[],
            shares: &[],
            identities: &[],
            binders: &[],
            truncated: 0,
        };
        hello.extensions(message, extensions)?;
        if compression != [0] {
            return violates(Alert::ILLEGAL_PARAMETER, "the client wants TLS compression");
        }
        Ok(hello)
    }

    fn extensions(&mut self, message: &'a [u8], bytes: &'a [u8]) -> Checked<()> {
        let mut all = Extensions::new(bytes);
        let (mut versions, mut modes, mut groups, mut shares, mut psk) =
            (None, None, None, None, None);
        let mut early = false;
        while let Some((kind, body)) = all.next()? {
            if psk.is_some() {
                return violates(
                    Alert::ILLEGAL_PARAMETER,
                    "the client's pre_shared_key is not its last TLS extension",
                );
            }
            let mut body = Reader(body);
            match kind {
                SUPPORTED_VERSIONS => versions = Some(body.vector8()?),
                PSK_MODES => modes = Some(body.vector8()?),
                SUPPORTED_GROUPS => groups = Some(body.vector16()?),
                KEY_SHARE => shares = Some(body.vector16()?),
                PRE_SHARED_KEY => psk = Some((body.vector16()?, body.vector16()?)),
                EARLY_DATA => early = true,
                _ => continue,
            }
            body.end()?;
        }
        if !versions.is_some_and(|versions| codec::has_word(versions, TLS_1_3)) {
            return violates(Alert::PROTOCOL_VERSION, "the client does not offer TLS 1.3");
        }
        let Some((identities, binders)) = psk else {
            return violates(
                Alert::HANDSHAKE_FAILURE,
                "the client offers no pre-shared key: it needs one for this subsystem",
            );
        };
        let (Some(modes), Some(groups), Some(shares)) = (modes, groups, shares) else {
            return violates(
                Alert::MISSING_EXTENSION,
                "the client's TLS hello lacks the extensions of a key exchange with a PSK",
            );
        };
        if !modes.contains(&PSK_DHE) {
            return violates(
                Alert::HANDSHAKE_FAILURE,
                "the client does not offer psk_dhe_ke: a PSK without a key exchange is not supported",
            );
        }
        if early {
            return violates(Alert::HANDSHAKE_FAILURE, "the client sends TLS early data");
        }
        (self.groups, self.shares) = (groups, shares);
        (self.identities, self.binders) = (identities, binders);
        // The binders are the last bytes, behind their length.
        self.truncated = message.len().checked_sub(binders.len() + 2).ok_or(UNDECODABLE)?;
        self.check_lists()
    }

    /// Checks the lists in the extensions: as many binders as identities, no share twice, none of a group that is
    /// not listed.
    fn check_lists(&self) -> Checked<()> {
        let (mut identities, mut binders) = (Reader(self.identities), Reader(self.binders));
        if identities.is_empty() || !self.groups.len().is_multiple_of(2) {
            return Err(UNDECODABLE);
        }
        while !identities.is_empty() {
            if identities.vector16()?.is_empty() {
                return Err(UNDECODABLE);
            }
            identities.take(4)?;
            if binders.is_empty() {
                return violates(
                    Alert::ILLEGAL_PARAMETER,
                    "the client's identities and binders differ in number",
                );
            }
            if binders.vector8()?.len() < 32 {
                return Err(UNDECODABLE);
            }
        }
        if !binders.is_empty() {
            return violates(
                Alert::ILLEGAL_PARAMETER,
                "the client's identities and binders differ in number",
            );
        }
        let mut shares = Reader(self.shares);
        // A client sends one share for each group at most, and few groups.
        let mut seen: [u16; 16] = [0; 16];
        let mut places = seen.iter_mut();
        let mut last = 0;
        while !shares.is_empty() {
            let group = shares.word()?;
            let known = codec::has_word(self.groups, group) && last != group;
            if shares.vector16()?.is_empty() {
                return Err(UNDECODABLE);
            }
            let Some(place) = places.next().filter(|_| known) else {
                return violates(
                    Alert::ILLEGAL_PARAMETER,
                    "the client's key shares do not belong to its groups",
                );
            };
            (*place, last) = (group, group);
        }
        let repeated = |n: usize, group: &u16| seen.iter().skip(n + 1).any(|other| other == group);
        if seen.iter().enumerate().any(|(n, group)| *group != 0 && repeated(n, group)) {
            return violates(Alert::ILLEGAL_PARAMETER, "the client repeats a key share");
        }
        Ok(())
    }

    pub fn has_suite(&self, suite: Suite) -> bool {
        codec::has_word(self.suites, suite.code())
    }

    pub fn has_group(&self, group: Group) -> bool {
        codec::has_word(self.groups, group.code())
    }

    /// The share of a group.
    pub fn share(&self, group: Group) -> Option<&'a [u8]> {
        let mut shares = Reader(self.shares);
        while let (Ok(code), Ok(share)) = (shares.word(), shares.vector16()) {
            if code == group.code() {
                return Some(share);
            }
        }
        None
    }

    /// Number of shares.
    pub fn shares(&self) -> usize {
        let mut shares = Reader(self.shares);
        core::iter::from_fn(|| shares.word().and_then(|_| shares.vector16()).ok()).count()
    }

    /// Offered identities, at most [`IDENTITIES`].
    pub fn identities(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = Reader(self.identities);
        core::iter::from_fn(move || {
            let identity = rest.vector16().ok()?;
            rest.take(4).ok()?;
            Some(identity)
        })
        .take(IDENTITIES)
    }

    pub fn binder(&self, index: usize) -> Option<&'a [u8]> {
        let mut rest = Reader(self.binders);
        core::iter::from_fn(|| rest.vector8().ok()).nth(index)
    }
}

/// A ServerHello or HelloRetryRequest as it was received.
pub struct ServerHello<'a> {
    pub random: &'a [u8],
    pub session_id: &'a [u8],
    pub suite: u16,
    pub version: Option<u16>,
    /// Group and share; a HelloRetryRequest has no share.
    pub share: Option<(u16, &'a [u8])>,
    pub identity: Option<u16>,
    pub cookie: Option<&'a [u8]>,
}

impl<'a> ServerHello<'a> {
    /// Parses a message with its header.
    pub fn parse(message: &'a [u8]) -> Checked<ServerHello<'a>> {
        let mut body = Reader(message.get(4..).ok_or(UNDECODABLE)?);
        let legacy = body.word()?;
        let random = body.take(32)?;
        let session_id = body.vector8()?;
        let suite = body.word()?;
        let compression = body.byte()?;
        let extensions = if body.is_empty() { &[][..] } else { body.vector16()? };
        body.end()?;
        if legacy != LEGACY {
            return violates(Alert::PROTOCOL_VERSION, "the server does not speak TLS 1.3");
        }
        if compression != 0 {
            return violates(Alert::ILLEGAL_PARAMETER, "the server wants TLS compression");
        }
        let mut hello = ServerHello {
            random,
            session_id,
            suite,
            version: None,
            share: None,
            identity: None,
            cookie: None,
        };
        let mut all = Extensions::new(extensions);
        while let Some((kind, body)) = all.next()? {
            let mut body = Reader(body);
            match kind {
                SUPPORTED_VERSIONS => hello.version = Some(body.word()?),
                KEY_SHARE if hello.is_retry() => hello.share = Some((body.word()?, &[])),
                KEY_SHARE => hello.share = Some((body.word()?, body.vector16()?)),
                PRE_SHARED_KEY if !hello.is_retry() => hello.identity = Some(body.word()?),
                COOKIE if hello.is_retry() => hello.cookie = Some(body.vector16()?),
                SUPPORTED_GROUPS | PSK_MODES | PRE_SHARED_KEY => {
                    return violates(
                        Alert::ILLEGAL_PARAMETER,
                        "the server's hello has a TLS extension of another message",
                    );
                }
                _ => {
                    return violates(
                        Alert::UNSUPPORTED_EXTENSION,
                        "the server's hello has a TLS extension that was not offered",
                    );
                }
            }
            body.end()?;
        }
        Ok(hello)
    }

    pub fn is_retry(&self) -> bool {
        self.random == RETRY
    }
}

/// Checks EncryptedExtensions: of the extensions allowed there, a client here offers only the list of groups.
pub fn check_encrypted_extensions(message: &[u8]) -> Checked<()> {
    let mut body = Reader(message.get(4..).ok_or(UNDECODABLE)?);
    let extensions = body.vector16()?;
    body.end()?;
    let mut all = Extensions::new(extensions);
    while let Some((kind, _)) = all.next()? {
        match kind {
            SUPPORTED_GROUPS => (),
            PRE_SHARED_KEY | KEY_SHARE | SUPPORTED_VERSIONS | PSK_MODES | COOKIE => {
                return violates(
                    Alert::ILLEGAL_PARAMETER,
                    "the server's EncryptedExtensions have a TLS extension of another message",
                );
            }
            _ => {
                return violates(
                    Alert::UNSUPPORTED_EXTENSION,
                    "the server's EncryptedExtensions have a TLS extension that was not offered",
                );
            }
        }
    }
    Ok(())
}

/// Appends a ServerHello, or a HelloRetryRequest with [`RETRY`] as its random number.
pub fn server_hello(
    into: &mut Vec<u8>,
    random: &[u8],
    session_id: &[u8],
    suite: Suite,
    extensions: impl FnOnce(&mut Vec<u8>),
) {
    codec::message(into, SERVER_HELLO, |into| {
        into.extend(LEGACY.to_be_bytes());
        into.extend(random);
        codec::nested(into, 1, |into| into.extend(session_id));
        into.extend(suite.code().to_be_bytes());
        into.push(0);
        codec::nested(into, 2, |into| {
            codec::extension(into, SUPPORTED_VERSIONS, |into| into.extend(TLS_1_3.to_be_bytes()));
            extensions(into);
        });
    });
}
