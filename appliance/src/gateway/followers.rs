//! Loops that serve the volumes which the first one owns.

use super::loop_waker::LoopWaker;
use rtrs::server::Directory;
use std::sync::Arc;
use storage::volume::catalog::{Catalog, Listing};
use storage::volume::channel::Served;

/// The other loops, as the owner of the volumes has them.
#[derive(Default)]
pub(super) struct Followers {
    pub catalog: Arc<Catalog>,
    pub directory: Option<Arc<Directory>>,
    pub served: Vec<Served>,
    pub wake: Vec<LoopWaker>,
    /// What was published last, as of which revisions of the volumes and the exports.
    pub published: (u64, u64),
    pub listing: Arc<Listing>,
}
