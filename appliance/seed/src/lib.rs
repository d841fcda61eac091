//! Reads a NoCloud seed (cloud-init's `cidata` volume): the files `user-data` and `meta-data` in the root directory of an
//! ISO 9660 or FAT volume that fills a disk and is labelled `cidata`.
//!
//! Everything on the volume is an allegation. Nothing outside the disk is read, and the work is bounded: at most
//! [`MOST_READ`] bytes are read, and a file has at most [`MOST_BYTES`]. Names, lengths and chains of clusters may lie;
//! the answer is an error then.
//!
//! Tests: unit tests, `fuzz` (`seed`), the suites `config` (FAT) and `fleet` (ISO 9660, by xorriso).
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

mod fat;
mod iso;
mod meta;

pub use meta::value as meta_value;

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// Largest file that is read, in bytes.
pub const MOST_BYTES: u32 = 64 << 10;
/// Most bytes that are read from a disk.
pub const MOST_READ: u64 = 4 << 20;
const LABEL: &str = "cidata";

/// A disk, or bytes that stand for one.
pub trait Disk {
    /// Reads bytes at an offset in bytes. The error, for the operator, also if they lie beyond the end.
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), String>;
}

/// The files of a seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seed {
    /// `user-data`: the document.
    pub user_data: Vec<u8>,
    /// `meta-data`; empty if there is none.
    pub meta_data: Vec<u8>,
}

/// Why a disk has no seed that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The disk cannot be read.
    Disk(String),
    /// It holds neither an ISO 9660 nor a FAT volume.
    NoVolume,
    /// The volume has another label.
    Label,
    /// There is no file `user-data`.
    NoUserData,
    /// A file has more than [`MOST_BYTES`].
    TooLarge(&'static str),
    /// The volume contradicts itself.
    Damaged(&'static str),
    /// `user-data` is of a kind that cloud-init reads.
    ForCloudInit,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Disk(why) => f.write_str(why),
            Error::NoVolume => f.write_str("holds neither an ISO 9660 nor a FAT volume"),
            Error::Label => f.write_str("its volume is not labelled cidata"),
            Error::NoUserData => f.write_str("has no file user-data in its root directory"),
            Error::TooLarge(file) => write!(f, "{file} has more than {MOST_BYTES} bytes"),
            Error::Damaged(what) => write!(f, "is damaged: {what}"),
            Error::ForCloudInit => f.write_str(
                "user-data is for cloud-init; the appliance reads a TOML document, which may begin with #isthmus-config",
            ),
        }
    }
}

impl core::error::Error for Error {}

/// The seed of a disk.
pub fn read(disk: &mut dyn Disk) -> Result<Seed, Error> {
    let mut disk = Bounded { disk, left: MOST_READ };
    let seed = match iso::read(&mut disk)? {
        Some(seed) => seed,
        None => fat::read(&mut disk)?.ok_or(Error::NoVolume)?,
    };
    let foreign: [&[u8]; 5] =
        [b"#cloud-config", b"#!", b"## template:", b"Content-Type:", b"\x1f\x8b"];
    match foreign.iter().any(|start| seed.user_data.starts_with(start)) {
        true => Err(Error::ForCloudInit),
        false => Ok(seed),
    }
}

/// The disk, which may be read up to a limit.
struct Bounded<'a> {
    disk: &'a mut dyn Disk,
    left: u64,
}

impl Bounded<'_> {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        let left = self.left.checked_sub(into.len() as u64);
        self.left = left.ok_or(Error::Damaged("its directory or a file has no end"))?;
        self.disk.read(at, into).map_err(Error::Disk)
    }

    fn array<const N: usize>(&mut self, at: u64) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        self.read(at, &mut bytes).map(|()| bytes)
    }
}

/// Collects the files of a seed in a directory.
struct Files<F> {
    user_data: Option<F>,
    meta_data: Option<F>,
}

impl<F> Files<F> {
    fn new() -> Self {
        Files { user_data: None, meta_data: None }
    }

    fn add(&mut self, name: &str, file: F) {
        if name.eq_ignore_ascii_case("user-data") {
            self.user_data = Some(file);
        } else if name.eq_ignore_ascii_case("meta-data") {
            self.meta_data = Some(file);
        }
    }

    /// Reads the files by `contents`.
    fn seed(
        self,
        mut contents: impl FnMut(F, &'static str) -> Result<Vec<u8>, Error>,
    ) -> Result<Seed, Error> {
        let user_data = contents(self.user_data.ok_or(Error::NoUserData)?, "user-data")?;
        let meta_data = self.meta_data.map(|file| contents(file, "meta-data")).transpose()?;
        Ok(Seed { user_data, meta_data: meta_data.unwrap_or_default() })
    }
}

fn is_label(label: &str) -> bool {
    label.trim_end_matches([' ', '\0']).eq_ignore_ascii_case(LABEL)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests;
