//! What the device calls the objects that were made.

/// Numbers of objects, as the commands that made them answered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Objects {
    pub domain: u32,
    pub transport: u32,
    /// The key for bus addresses.
    pub key: u32,
    /// Those of the first pair of queues.
    pub pair: Named,
}

/// Those of a pair of queues.
#[derive(Clone, Copy, Debug, Default)]
pub struct Named {
    /// The doorbell page.
    pub page: u32,
    pub events: u32,
    pub receive_completions: u32,
    pub send_completions: u32,
    pub send_queue: u32,
    pub receive_queue: u32,
}
