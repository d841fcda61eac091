//! Identifiers of links, endpoints, peers' endpoints and hunts.

/// Identifies a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId {
    pub(super) place: u16,
    pub(super) number: u32,
}

/// Identifies a local endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId {
    pub(super) place: u32,
    pub(super) generation: u32,
}

impl EndpointId {
    /// Sorts before all others, and identifies no endpoint.
    pub const FIRST: EndpointId = EndpointId { place: 0, generation: 0 };
}

/// Identifies a peer's endpoint, in one connection of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId {
    pub(super) link: LinkId,
    pub(super) address: u32,
    pub(super) generation: u32,
}

impl PeerId {
    /// The link over which it is reached.
    pub fn link(self) -> LinkId {
        self.link
    }
}

/// Identifies a hunt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HuntId {
    pub(super) place: u32,
    pub(super) number: u32,
}
