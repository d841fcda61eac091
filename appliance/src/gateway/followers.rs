//! State of the first loop for other loops that serve its volumes.

use super::loop_waker::LoopWaker;
use rtrs::server::Directory;
use std::sync::Arc;
use storage::volume::catalog::{Catalog, Listing};
use storage::volume::channel::Served;

/// The owner's view of the loops that serve its volumes.
#[derive(Default)]
pub(super) struct Followers {
    pub catalog: Arc<Catalog>,
    pub directory: Option<Arc<Directory>>,
    pub served: Vec<Served>,
    pub wake: Vec<LoopWaker>,
    /// Revisions of volumes and exports that were published last.
    pub published: (u64, u64),
    /// Volumes and exports that were published last.
    pub listing: Arc<Listing>,
}
