//! The header of a release, and its checks.
//!
//! | bytes | field, little-endian |
//! |---|---|
//! | 0..8 | `ISTHREL` and a byte 1, the version of this layout |
//! | 8..16 | length of the image in bytes |
//! | 16..24 | build time, in seconds since 1970-01-01 UTC |
//! | 24..64 | version: ASCII, then zeros |
//! | 64..128 | SHA-512 of the image |
//! | 128..160 | public Ed25519 key of the signature |
//! | 160..224 | the signature (RFC 8032) of bytes 0..160 |
//! | 224..4096 | zeros |
//!
//! The signature covers the digest. So a writer that streams an image to a disk neither needs all of it in memory nor
//! reads it twice, and it rejects a wrong key before the first byte of the image.

use core::fmt;
use sha2::{Digest as _, Sha512};

/// Bytes of a header.
pub const HEADER: usize = 4096;
const MAGIC: &[u8; 8] = b"ISTHREL\x01";
/// Bytes that the signature covers.
const SIGNED: usize = 160;
const END: usize = SIGNED + 64;

/// A well-formed header. The digest of the image and the signature are checked separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the image in bytes.
    pub length: u64,
    /// Build time, in seconds since 1970-01-01 UTC.
    pub made: u64,
    version: [u8; 40],
    /// SHA-512 of the image.
    pub digest: [u8; 64],
    /// Public key of the signature.
    pub key: [u8; 32],
    /// Signature of all fields before it.
    pub signature: [u8; 64],
}

/// Why a release is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It does not begin with the magic bytes of a release.
    NotARelease,
    /// Its layout is newer than this code.
    Layout(u8),
    /// Its version is not plain text.
    Version,
    /// It has no image.
    Empty,
    /// It is signed with another key than the configured one.
    OtherKey,
    /// The signature does not match the header.
    Signature,
    /// The image does not match the signed digest.
    Image,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::NotARelease => f.write_str(
                "the file is no release of the appliance: make one with `./isthmus release --key FILE`",
            ),
            Refusal::Layout(layout) => write!(
                f,
                "the release has layout {layout}, which this appliance cannot read: upgrade to a version in between first"
            ),
            Refusal::Version | Refusal::Empty => {
                f.write_str("the header of the release is damaged: build or copy the release again")
            }
            Refusal::OtherKey => f.write_str(
                "the release is signed with another key than system.upgrade_key: sign it with that key",
            ),
            Refusal::Signature => f.write_str(
                "the release's signature is wrong: the file was damaged or changed",
            ),
            Refusal::Image => f.write_str(
                "the image is not the one that was signed: it was damaged or changed on the way",
            ),
        }
    }
}

impl core::error::Error for Refusal {}

impl Header {
    /// A header without a signature. The version is reduced to its printable ASCII characters, and truncated to 40
    /// bytes.
    pub fn new(image: &[u8], made: u64, version: &str, key: [u8; 32]) -> Header {
        let mut text = [0; 40];
        let printable = version.bytes().filter(u8::is_ascii_graphic);
        for (to, byte) in text.iter_mut().zip(printable) {
            *to = byte;
        }
        let mut digest = Digest::new();
        digest.update(image);
        let (length, digest) = (image.len() as u64, digest.finish());
        Header { length, made, version: text, digest, key, signature: [0; 64] }
    }

    /// Parses the start of a release, or of a slot.
    pub fn parse(bytes: &[u8]) -> Result<Header, Refusal> {
        let bytes = bytes.first_chunk::<END>().ok_or(Refusal::NotARelease)?;
        if bytes[..7] != MAGIC[..7] {
            return Err(Refusal::NotARelease);
        }
        if bytes[7] != MAGIC[7] {
            return Err(Refusal::Layout(bytes[7]));
        }
        let mut header = Header {
            length: u64::from_le_bytes(part(bytes, 8)),
            made: u64::from_le_bytes(part(bytes, 16)),
            version: part(bytes, 24),
            digest: part(bytes, 64),
            key: part(bytes, 128),
            signature: part(bytes, SIGNED),
        };
        let text = header.version.iter().position(|&byte| byte == 0);
        let text = text.unwrap_or(header.version.len());
        let (text, rest) = header.version.split_at_mut(text);
        if text.is_empty() || !text.iter().all(u8::is_ascii_graphic) || rest.iter().any(|&b| b != 0)
        {
            return Err(Refusal::Version);
        }
        if header.length == 0 {
            return Err(Refusal::Empty);
        }
        Ok(header)
    }

    /// The version.
    pub fn version(&self) -> &str {
        let text = self.version.split(|&byte| byte == 0).next().unwrap_or_default();
        core::str::from_utf8(text).unwrap_or_default()
    }

    /// The bytes that the signature covers.
    pub fn signed(&self) -> [u8; SIGNED] {
        let mut bytes = [0; SIGNED];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.made.to_le_bytes());
        bytes[24..64].copy_from_slice(&self.version);
        bytes[64..128].copy_from_slice(&self.digest);
        bytes[128..SIGNED].copy_from_slice(&self.key);
        bytes
    }

    /// Encodes the header.
    pub fn emit(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..SIGNED].copy_from_slice(&self.signed());
        bytes[SIGNED..END].copy_from_slice(&self.signature);
        bytes
    }

    /// Verifies that it was signed with this key.
    #[cfg(feature = "verify")]
    pub fn verify(&self, key: &[u8; 32]) -> Result<(), Refusal> {
        use ed25519_dalek::{Signature, VerifyingKey};
        if self.key != *key {
            return Err(Refusal::OtherKey);
        }
        // A key that is not a valid point cannot have signed the header.
        let key = VerifyingKey::from_bytes(key).map_err(|_| Refusal::Signature)?;
        let signature = Signature::from_bytes(&self.signature);
        key.verify_strict(&self.signed(), &signature).map_err(|_| Refusal::Signature)
    }
}

/// Incremental digest of an image.
#[derive(Clone, Debug, Default)]
pub struct Digest(Sha512);

impl Digest {
    /// The digest of no bytes.
    pub fn new() -> Digest {
        Digest::default()
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes.
    pub fn finish(self) -> [u8; 64] {
        self.0.finalize().into()
    }
}

fn part<const N: usize>(bytes: &[u8; END], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&bytes[at..at + N]);
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header::new(b"image", 1_764_000_000, "0.1.0-abcdef", [7; 32])
    }

    #[test]
    fn header_is_parsed_back() {
        let header = sample();
        assert_eq!(Header::parse(&header.emit()), Ok(header.clone()));
        assert_eq!((header.version(), header.length), ("0.1.0-abcdef", 5));
    }

    #[test]
    fn parse_rejects_malformed_headers() {
        let bytes = sample().emit();
        assert_eq!(Header::parse(&bytes[..END - 1]), Err(Refusal::NotARelease));
        assert_eq!(Header::parse(&[0; HEADER]), Err(Refusal::NotARelease));
        let change = |at: usize, value: u8| {
            let mut bytes = bytes;
            bytes[at] = value;
            Header::parse(&bytes)
        };
        assert_eq!(change(7, 9), Err(Refusal::Layout(9)));
        assert_eq!(change(24, 0), Err(Refusal::Version), "text after a zero");
        assert_eq!(change(24, 0x1b), Err(Refusal::Version), "an escape for the terminal");
        assert_eq!(change(8, 0), Err(Refusal::Empty));
    }

    #[cfg(feature = "verify")]
    #[test]
    fn verify_accepts_only_the_keys_signature() {
        use ed25519_dalek::{Signer, SigningKey};
        let key = SigningKey::from_bytes(&[3; 32]);
        let public = key.verifying_key().to_bytes();
        let mut header = Header::new(b"image", 1, "v", public);
        header.signature = key.sign(&header.signed()).to_bytes();
        assert_eq!(header.verify(&public), Ok(()));
        assert_eq!(header.verify(&[9; 32]), Err(Refusal::OtherKey));
        let bytes = header.emit();
        for at in 8..END {
            let mut bytes = bytes;
            bytes[at] ^= 1;
            let verified = Header::parse(&bytes).and_then(|header| header.verify(&public));
            assert!(verified.is_err(), "{at}");
        }
        // A signature of another key is detected even if the header names the right key.
        let other = SigningKey::from_bytes(&[4; 32]);
        let mut forged = Header::new(b"image", 1, "v", public);
        forged.signature = other.sign(&forged.signed()).to_bytes();
        assert_eq!(forged.verify(&public), Err(Refusal::Signature));
    }
}
