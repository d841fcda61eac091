//! The way from one port to another, in one direction.

use std::time::Duration;

/// What happens to frames, in thousandths of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Frames that never arrive.
    pub loss: u32,
    /// Frames that arrive twice.
    pub duplication: u32,
    /// Frames that arrive three latencies late, behind those sent after them.
    pub reordering: u32,
    /// Frames of which one bit is wrong, behind the Ethernet header.
    pub corruption: u32,
}

/// A direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// How long a frame is under way.
    pub latency: Duration,
    /// How much longer at most, by chance; frames keep their order.
    pub jitter: Duration,
    /// What goes wrong.
    pub faults: Faults,
    /// Nothing arrives, and nobody is told.
    pub cut: bool,
}

impl Default for Link {
    fn default() -> Self {
        Link {
            latency: Duration::from_micros(10),
            jitter: Duration::ZERO,
            faults: Faults::default(),
            cut: false,
        }
    }
}
