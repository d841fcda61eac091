//! `./isthmus release`: signs an image, so that appliances configured with the key accept it as an upgrade.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use appliance::config::Ed25519Key;
use clap::Args;
use ed25519_dalek::pkcs8::DecodePrivateKey;
use ed25519_dalek::{Signer, SigningKey};
use release::Header;

use crate::build::{self, Families};
use crate::{image, workspace};

/// Options of `./isthmus release`.
#[derive(Args)]
pub struct Options {
    /// The file of the private Ed25519 key; `openssl genpkey -algorithm ed25519 -out FILE` makes one
    #[arg(long)]
    key: PathBuf,
    /// Where to write the release [default: target/isthmus/isthmus.release]
    #[arg(long)]
    output: Option<PathBuf>,
    /// A configuration document to put into the release
    #[arg(long)]
    config: Option<PathBuf>,
    /// Sign this image instead of building one
    #[arg(long)]
    image: Option<PathBuf>,
    /// The name of the version [default: the commit]
    #[arg(long = "name")]
    version: Option<String>,
    /// The families of the image, if it is built.
    #[command(flatten)]
    pub families: Families,
}

/// Signs the image that `built` builds. Returns the path of the release, and the configuration line with which
/// appliances accept it.
pub fn release(
    options: &Options,
    built: impl FnOnce() -> Result<PathBuf>,
) -> Result<(PathBuf, String)> {
    let key = read_key(&options.key)?;
    let digits = digits(&key);
    if let Err(why) = digits.parse::<Ed25519Key>() {
        bail!("{}: {why}", options.key.display());
    }
    let elf = match &options.image {
        Some(elf) => elf.clone(),
        None => built()?,
    };
    let mut bytes = fs::read(&elf).with_context(|| format!("could not read {}", elf.display()))?;
    if let Some(path) = &options.config {
        let text = fs::read_to_string(path);
        let text = text.with_context(|| format!("could not read {}", path.display()))?;
        bytes = image::configured(&bytes, &text)?;
    }
    let version = options.version.clone().unwrap_or_else(build::commit::of_tree);
    let made =
        SystemTime::now().duration_since(UNIX_EPOCH).context("the host's clock is before 1970")?;
    let signed = sign(&bytes, made.as_secs(), &version, &key);
    let output = options.output.clone();
    let output = output.unwrap_or_else(|| workspace::target().join("isthmus/isthmus.release"));
    fs::write(&output, signed).with_context(|| format!("could not write {}", output.display()))?;
    Ok((output, public(&key)))
}

/// A release of an image, made at this time in seconds since 1970.
pub fn sign(image: &[u8], made: u64, version: &str, key: &SigningKey) -> Vec<u8> {
    let mut header = Header::new(image, made, version, key.verifying_key().to_bytes());
    header.signature = key.sign(&header.signed()).to_bytes();
    [&header.emit()[..], image].concat()
}

/// The configuration line with which appliances accept releases signed with this key.
pub fn public(key: &SigningKey) -> String {
    format!("upgrade_key = \"{}\"", digits(key))
}

fn digits(key: &SigningKey) -> String {
    key.verifying_key().to_bytes().map(|byte| format!("{byte:02x}")).concat()
}

fn read_key(path: &Path) -> Result<SigningKey> {
    let shown = path.display();
    let text = fs::read_to_string(path).with_context(|| {
        format!(
            "could not read {shown}; make a key with `openssl genpkey -algorithm ed25519 -out {shown}`"
        )
    })?;
    if fs::metadata(path)?.permissions().mode() & 0o077 != 0 {
        eprintln!("warning: users other than its owner can read {shown}: run `chmod 600 {shown}`");
    }
    SigningKey::from_pkcs8_pem(&text)
        .map_err(|why| anyhow!("{shown} is no Ed25519 key in PKCS#8 and PEM: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `openssl genpkey -algorithm ed25519`, once.
    const PEM: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC\n-----END PRIVATE KEY-----\n";

    #[test]
    fn key_of_openssl_signs_a_valid_release() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        fs::write(&path, PEM).unwrap();
        let key = read_key(&path).unwrap();
        // RFC 8410, section 10.3 has this pair.
        let line =
            "upgrade_key = \"19bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1\"";
        assert_eq!(public(&key), line);
        let signed = sign(b"an image", 7, "1.0", &key);
        let header = Header::parse(&signed).unwrap();
        assert_eq!(header.verify(&key.verifying_key().to_bytes()), Ok(()));
        assert_eq!((header.version(), &signed[release::HEADER..]), ("1.0", &b"an image"[..]));

        // The key is RFC 8410's example, so it is refused.
        let refused = release(
            &Options {
                key: path.clone(),
                output: None,
                config: None,
                image: None,
                version: None,
                families: Families::default(),
            },
            || panic!("nothing is built"),
        );
        assert!(refused.unwrap_err().to_string().contains("is public"));

        fs::write(&path, "no key").unwrap();
        assert!(read_key(&path).unwrap_err().to_string().contains("no Ed25519 key"));
        let missing = directory.path().join("missing");
        assert!(read_key(&missing).unwrap_err().to_string().contains("openssl genpkey"));
    }
}
