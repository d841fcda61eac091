//! A one-way link between two ports.

use std::time::Duration;

/// Probabilities of faults, in thousandths of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Frames that never arrive.
    pub loss: u32,
    /// Frames that arrive twice.
    pub duplication: u32,
    /// Frames that arrive three latencies late, after later frames.
    pub reordering: u32,
    /// Frames with one wrong bit after the Ethernet header.
    pub corruption: u32,
}

/// A direction of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Transit time of a frame.
    pub latency: Duration,
    /// Addition to the latency while a fault slows the link down.
    pub delay: Duration,
    /// Longest random addition to the latency. Frames keep their order.
    pub jitter: Duration,
    /// Faults of the link.
    pub faults: Faults,
    /// All frames are lost, without a link event.
    pub cut: bool,
}

impl Default for Link {
    fn default() -> Self {
        Link {
            latency: Duration::from_micros(10),
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            faults: Faults::default(),
            cut: false,
        }
    }
}
