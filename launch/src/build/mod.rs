//! Building the image: the kernel bundle, the program, the link.

use std::path::PathBuf;

use anyhow::{Result, bail};

/// What to build.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Also build the standard Hermit image (position independent, without the boot stub) for uhyve.
    pub uhyve: bool,
}

/// What was built.
#[derive(Clone, Debug)]
pub struct Image {
    /// The stripped self-booting ELF (PVH and Multiboot2).
    pub elf: PathBuf,
    /// The same with symbols, to make sense of addresses.
    pub symbols: PathBuf,
    /// The standard Hermit image, when it was asked for.
    pub uhyve: Option<PathBuf>,
}

/// Builds the image, or finds it up to date.
pub fn build(_options: &Options) -> Result<Image> {
    bail!("the image cannot be built yet")
}
