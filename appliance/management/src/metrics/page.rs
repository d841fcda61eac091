//! The writer of the metrics page.

use net::metrics::Writer;

/// The metrics page as it is written.
pub type Page<'a> = Writer<&'a mut String>;
