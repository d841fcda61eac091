//! Value types of `[[usnic]]` and their text formats.

use super::super::item::text_items;
use core::fmt;
use core::str::FromStr;
use usnic::wire::header::Layout;
use usnic::wire::modex::Modex;

/// A sender name: a job of Open MPI and a rank in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender(
    /// The wire format: job << 32 + rank.
    pub u64,
);

/// Packet layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketLayout(
    /// The layout.
    pub Layout,
);

/// The modex of a peer: a record for each interface, as the peer publishes them in PMIx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerModex(
    /// The records, at least one.
    pub Vec<Modex>,
);

/// Maximum interfaces of a peer.
const MOST: usize = 8;

impl PeerModex {
    /// The record for an interface of the appliance: the only record, or the one in the same subnet.
    pub fn at(&self, ours: &Modex) -> Option<Modex> {
        match &*self.0 {
            [only] => Some(*only),
            all => all.iter().copied().find(|theirs| theirs.is_together_with(ours)),
        }
    }
}

/// Service for the data that peers send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Sends messages back.
    Echo,
    /// Counts and drops messages.
    Discard,
    /// Acts as a rank of an MPI job that sends every message back.
    MpiMirror,
    /// Gives each peer memory for PUTs.
    PutSink,
}

text_items! {
    Sender: "JOB.RANK such as 1.0, each from 0 to 4294967295";
    PacketLayout: "\"4\" or \"5\", as the peers' Open MPI";
    Service: "echo, discard, put-sink or mpi-mirror";
    PeerModex: "a modex, 64 hexadecimal digits for each of at most 8 interfaces, as `show usnic` and btlpeer print it";
}

impl FromStr for Sender {
    type Err = String;
    fn from_str(text: &str) -> Result<Sender, String> {
        let number = |part: &str| part.parse::<u32>().map(u64::from);
        let parts = text.split_once('.').map(|(job, rank)| (number(job), number(rank)));
        match parts {
            Some((Ok(job), Ok(rank))) => Ok(Sender(job << 32 | rank)),
            _ => Err("not a job and a rank".into()),
        }
    }
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 >> 32, self.0 as u32)
    }
}

impl FromStr for PeerModex {
    type Err = String;
    fn from_str(text: &str) -> Result<PeerModex, String> {
        let read = Modex::read_text::<MOST>(text).map_err(|why| why.to_string())?;
        Ok(PeerModex(read.0.into_iter().flatten().collect()))
    }
}

impl fmt::Display for PeerModex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|modex| modex.fmt(f))
    }
}

impl FromStr for PacketLayout {
    type Err = String;
    fn from_str(text: &str) -> Result<PacketLayout, String> {
        match text {
            "4" => Ok(PacketLayout(Layout::V4)),
            "5" => Ok(PacketLayout(Layout::V5)),
            _ => Err("unknown layout".into()),
        }
    }
}

impl fmt::Display for PacketLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Layout::V4 => "4",
            Layout::V5 => "5",
        })
    }
}

impl FromStr for Service {
    type Err = String;
    fn from_str(text: &str) -> Result<Service, String> {
        match text {
            "echo" => Ok(Service::Echo),
            "discard" => Ok(Service::Discard),
            "put-sink" => Ok(Service::PutSink),
            "mpi-mirror" => Ok(Service::MpiMirror),
            _ => Err("unknown service".into()),
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Service::Echo => "echo",
            Service::Discard => "discard",
            Service::PutSink => "put-sink",
            Service::MpiMirror => "mpi-mirror",
        })
    }
}
