//! Paths: the checkout that this program was built from, and its `target` directory.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The top directory of the checkout (the one with `./isthmus` in it).
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("launch/ lies in the checkout")
}

/// The directory for everything that is built or measured: `CARGO_TARGET_DIR` if set, else `target/`.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(directory) => root().join(directory),
        None => root().join("target"),
    }
}

/// The lock file of a directory below `target/`.
pub const LOCK: &str = ".isthmus-lock";

/// Locks the checkout, so that no other `./isthmus` builds images in it until the result is dropped. Waits for the
/// lock.
pub fn lock() -> Result<File> {
    lock_in(&target())
}

/// Locks one directory below `target/`, as [`lock`] does, and creates it if it is missing.
pub fn lock_in(directory: &Path) -> Result<File> {
    let path = directory.join(LOCK);
    fs::create_dir_all(directory)?;
    let file = File::create(&path).with_context(|| format!("could not make {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => return Ok(file),
        Err(TryLockError::WouldBlock) => {
            eprintln!(
                "another ./isthmus is building in {}; waiting for it ...",
                directory.display()
            );
        }
        Err(TryLockError::Error(why)) => return Err(why).context("could not lock the checkout"),
    }
    file.lock().context("could not lock the checkout")?;
    Ok(file)
}
