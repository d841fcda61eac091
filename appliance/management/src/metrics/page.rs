//! The page of metrics.

use net::metrics::Writer;

/// The page, being written.
pub type Page<'a> = Writer<&'a mut String>;
