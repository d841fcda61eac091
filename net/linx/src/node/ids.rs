//! What links, endpoints, those of peers, and hunts are known by.

/// Names a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId {
    pub(super) place: u16,
    pub(super) number: u32,
}

/// Names an endpoint of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId {
    pub(super) place: u32,
    pub(super) generation: u32,
}

impl EndpointId {
    /// Comes before all others in their order, and names none.
    pub const FIRST: EndpointId = EndpointId { place: 0, generation: 0 };
}

/// Names an endpoint of a peer's, in one life of the link.
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

/// Names a hunt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HuntId {
    pub(super) place: u32,
    pub(super) number: u32,
}
