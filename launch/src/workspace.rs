//! Where things are: the checkout this program was built from, and its `target` directory.

use std::path::{Path, PathBuf};

/// The top directory of the checkout (the one with `./isthmus` in it).
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("launch/ lies in the checkout")
}

/// Where everything that is built or measured goes: `CARGO_TARGET_DIR` where set, else `target/`.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => root().join(directory),
        None => root().join("target"),
    }
}
