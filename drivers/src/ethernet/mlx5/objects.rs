//! Numbers of the objects that were created in the device.

/// Numbers of objects, from the answers of the commands that created them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Objects {
    pub domain: u32,
    pub transport: u32,
    /// The key for bus addresses.
    pub key: u32,
    /// Objects of the first pair of queues.
    pub pair: PairObjects,
}

/// Numbers of the objects of a pair of queues.
#[derive(Clone, Copy, Debug, Default)]
pub struct PairObjects {
    /// The doorbell page.
    pub page: u32,
    pub events: u32,
    pub receive_completions: u32,
    pub send_completions: u32,
    pub send_queue: u32,
    pub receive_queue: u32,
}
