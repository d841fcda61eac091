//! Values of keys about the authentication of NVMe hosts: demands, hashes and groups.

use super::item::{Item, Range, decode_text, text_items};
use super::origin::Problem;
use super::tree::{Node, Value};
use core::fmt;
use core::str::FromStr;
use nvme::Demand;
use nvme_auth::{DhGroup, Hash};

/// Whether a subsystem demands a proof of all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demanded(pub Demand);

impl Demanded {
    /// Whether each host has to give the proof.
    pub fn is_required(self) -> bool {
        self.0 == Demand::Required
    }
}

/// A hash of DH-HMAC-CHAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DhchapHash(pub Hash);

/// A Diffie-Hellman group of DH-HMAC-CHAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DhchapGroup(pub DhGroup);

text_items! {
    DhchapHash: "sha256, sha384 or sha512";
    DhchapGroup: "null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144 or ffdhe8192";
}

const HASHES: [(&str, Hash); 3] =
    [("sha256", Hash::Sha256), ("sha384", Hash::Sha384), ("sha512", Hash::Sha512)];

impl FromStr for DhchapHash {
    type Err = String;
    fn from_str(text: &str) -> Result<DhchapHash, String> {
        let found = HASHES.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, hash)| DhchapHash(hash)).ok_or_else(|| "unknown hash".into())
    }
}

impl fmt::Display for DhchapHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = HASHES.into_iter().find(|(_, hash)| *hash == self.0);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

impl FromStr for DhchapGroup {
    type Err = String;
    fn from_str(text: &str) -> Result<DhchapGroup, String> {
        let found = DhGroup::ALL.iter().find(|group| group.name() == text);
        found.map(|group| DhchapGroup(*group)).ok_or_else(|| "unknown group".into())
    }
}

impl fmt::Display for DhchapGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

impl FromStr for Demanded {
    type Err = String;
    fn from_str(text: &str) -> Result<Demanded, String> {
        match text {
            "optional" | "false" => Ok(Demanded(Demand::Optional)),
            "required" | "true" => Ok(Demanded(Demand::Required)),
            _ => Err("neither optional nor required".into()),
        }
    }
}

impl fmt::Display for Demanded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Demand::Optional => "optional",
            Demand::Required => "required",
        })
    }
}

impl Item for Demanded {
    fn accepts(_: Option<Range>) -> String {
        "optional or required".into()
    }
    /// `true` is `required`.
    fn decode(n: &Node, path: &str, _: Option<Range>, out: &mut Vec<Problem>) -> Option<Demanded> {
        match &n.value {
            Value::Bool(true) => Some(Demanded(Demand::Required)),
            Value::Bool(false) => Some(Demanded(Demand::Optional)),
            _ => decode_text(n, path, Self::accepts(None), out),
        }
    }
    fn encode(&self) -> Option<Value> {
        Some(Value::Text(self.to_string()))
    }
}
