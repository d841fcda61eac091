//! Where things are: the checkout this program was built from, and its `target` directory.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

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

/// The lock file of a directory below `target/`.
pub const LOCK: &str = ".isthmus-lock";

/// Keeps other `./isthmus` of this checkout from building images for as long as the result is kept; waits for one that
/// does.
pub fn lock() -> Result<File> {
    lock_in(&target())
}

/// The same for one directory below `target/`, which is created.
pub fn lock_in(directory: &Path) -> Result<File> {
    let path = directory.join(LOCK);
    fs::create_dir_all(directory)?;
    let file = File::create(&path).with_context(|| format!("could not make {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {
            eprintln!("another ./isthmus builds in {}; waiting for it ...", directory.display());
        }
        Err(TryLockError::Error(why)) => return Err(why).context("could not lock the checkout"),
    }
    file.lock().context("could not lock the checkout")?;
    Ok(file)
}
