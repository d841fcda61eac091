//! Parses the links of a network: `A=B` joins two end points, `A=s0.0,B=s0.5,s0.4=s1.3` joins two end points by a
//! switch that is linked to another one. End points are capital letters in order. `r0` is a third-generation switch.

use super::network::End;
use super::switch::Family;
use std::collections::BTreeMap;

/// An invalid link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadTopology(
    /// The whole text.
    pub String,
);

impl std::fmt::Display for BadTopology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} is not a topology: use links A=B, A=s0.1, s0.4=s1.3, each end once", self.0)
    }
}

impl std::error::Error for BadTopology {}

/// The links of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Number of end points, from A on.
    pub endpoints: usize,
    /// Families of the switches.
    pub switches: Vec<Family>,
    /// Both ends of each link.
    pub links: Vec<[End; 2]>,
}

impl std::str::FromStr for Topology {
    type Err = BadTopology;

    fn from_str(text: &str) -> Result<Self, BadTopology> {
        let bad = || BadTopology(text.into());
        let (mut links, mut endpoints): (Vec<[End; 2]>, usize) = (Vec::new(), 0);
        let mut families: BTreeMap<usize, Family> = BTreeMap::new();
        for link in text.split(',') {
            let (one, other) = link.split_once('=').ok_or_else(bad)?;
            let mut read = |text: &str| -> Option<End> {
                let family = match text.as_bytes().first()? {
                    b's' => Family::Cps1848,
                    b'r' => Family::Rxs2448,
                    letter @ b'A'..=b'Z' if text.len() == 1 => {
                        let number = usize::from(letter - b'A');
                        endpoints = endpoints.max(number + 1);
                        return Some(End::Endpoint(number));
                    }
                    _ => return None,
                };
                let (number, port) = text[1..].split_once('.')?;
                let (number, port) = (number.parse::<u8>().ok()?, port.parse().ok()?);
                let number = usize::from(number);
                let known = *families.entry(number).or_insert(family);
                (known == family && port < family.ports()).then_some(End::Switch(number, port))
            };
            let ends = [read(one).ok_or_else(bad)?, read(other).ok_or_else(bad)?];
            let is_used = |end: End| links.iter().flatten().any(|used| *used == end);
            if ends[0] == ends[1] || ends.iter().any(|end| is_used(*end)) {
                return Err(bad());
            }
            links.push(ends);
        }
        let count = families.keys().next_back().map_or(0, |last| last + 1);
        let switches = (0..count).map(|n| families.get(&n).copied().unwrap_or_default()).collect();
        Ok(Topology { endpoints, switches, links })
    }
}
