//! What stands in keys of `[[usnic]]`, and how it is written.

use super::super::item::text_items;
use core::fmt;
use core::str::FromStr;
use usnic::wire::header::Layout;
use usnic::wire::modex::Modex;

/// Who sends: a job of Open MPI and a rank in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender(
    /// As it is on the wire: job << 32 + rank.
    pub u64,
);

/// How packets are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketLayout(
    /// The layout.
    pub Layout,
);

/// How a peer describes its interfaces: a record for each, as it puts them into PMIx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerModex(
    /// The records; there is one at least.
    pub Vec<Modex>,
);

/// Most interfaces of a peer.
const MOST: usize = 8;

impl PeerModex {
    /// The record that is for an interface of ours: the only one, or that in the same subnet.
    pub fn at(&self, ours: &Modex) -> Option<Modex> {
        match &*self.0 {
            [only] => Some(*only),
            all => all.iter().copied().find(|theirs| theirs.is_together_with(ours)),
        }
    }
}

/// What becomes of what peers send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Messages go back.
    Echo,
    /// Messages are counted and dropped.
    Discard,
    /// We are a rank of a job of MPI, which sends every message back.
    MpiMirror,
    /// Each peer has memory that it can PUT into.
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
            _ => Err("no layout".into()),
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
            _ => Err("no service".into()),
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
