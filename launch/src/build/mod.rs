//! Building the image: the kernel's source, the kernel bundle, the program, the link.

mod bundle;
pub mod commit;
pub mod families;
mod kernel_source;
mod program;
pub(crate) mod section;
mod smp;
pub(crate) mod toolchain;
pub(crate) mod uhyve;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{command, workspace};
pub use families::Families;
use toolchain::Toolchain;

/// What to build.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Also build the image for uhyve.
    pub uhyve: bool,
    /// Also build the image for tests, in which faults can be provoked.
    pub faults: bool,
    /// What it has.
    pub families: Families,
    /// A name of its own, for an image that is to stand beside the usual one.
    pub name: Option<String>,
    /// For development: built sooner, larger and slower than what is shipped.
    pub dev: bool,
}

/// What was built.
#[derive(Clone, Debug)]
pub struct Image {
    /// The stripped self-booting ELF (PVH and Multiboot2).
    pub elf: PathBuf,
    /// The same with symbols, to make sense of addresses.
    pub symbols: PathBuf,
    /// The image for tests, when it was asked for.
    pub faults: Option<PathBuf>,
    /// The image for uhyve, when it was asked for.
    pub uhyve: Option<PathBuf>,
}

/// How an image is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// By itself: by PVH or Multiboot2.
    SelfBooting,
    /// By uhyve.
    Uhyve,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::SelfBooting => "boot",
            Kind::Uhyve => "uhyve",
        }
    }

    /// The feature of the kernel bundle.
    fn feature(self) -> &'static str {
        match self {
            Kind::SelfBooting => "stub",
            Kind::Uhyve => "uhyve",
        }
    }
}

/// Builds the image, or finds it up to date.
pub fn build(options: &Options) -> Result<Image> {
    let _alone = workspace::lock()?;
    let toolchain = Toolchain::find()?;
    eprintln!("image compiler: {}", toolchain.version);
    let kernel = kernel_source::prepare(&toolchain)?;
    smp::assemble(&toolchain, &kernel)?;

    fs::create_dir_all(directory())?;
    let bundle = bundle::build(&toolchain, &kernel, Kind::SelfBooting)?;
    let commit = commit::of_tree();
    let families = options.families.features();
    let dev = if options.dev { "-dev" } else { "" };
    let program = |bundle: &Path, kind, features: &[&str], name: String| {
        let program = program::build(&toolchain, bundle, kind, features, options.dev)?;
        finish(&program, &commit, &name)
    };
    let name = options.name.as_deref().unwrap_or("isthmus");
    let (elf, symbols) = program(&bundle, Kind::SelfBooting, &families, format!("{name}{dev}"))?;

    let mut image = Image { elf, symbols, faults: None, uhyve: None };
    if options.faults {
        let features = [&families[..], &["faults"]].concat();
        let name = format!("isthmus-faults{dev}");
        image.faults = Some(program(&bundle, Kind::SelfBooting, &features, name)?.0);
    }
    if options.uhyve {
        let bundle = bundle::build(&toolchain, &kernel, Kind::Uhyve)?;
        let (uhyve, _) = program(&bundle, Kind::Uhyve, &families, format!("isthmus-uhyve{dev}"))?;
        uhyve::check(&uhyve)?;
        image.uhyve = Some(uhyve);
    }
    Ok(image)
}

/// The kernel's source as the bundle takes it, and nothing built of it.
pub(crate) fn kernel(toolchain: &Toolchain) -> Result<PathBuf> {
    let _alone = workspace::lock()?;
    let kernel = kernel_source::prepare(toolchain)?;
    smp::assemble(toolchain, &kernel)?;
    Ok(kernel)
}

fn directory() -> PathBuf {
    workspace::target().join("isthmus")
}

/// Keeps what was linked under `name`: with symbols and without, and with the commit written into it.
fn finish(program: &Path, commit: &str, name: &str) -> Result<(PathBuf, PathBuf)> {
    let [elf, symbols] = ["elf", "symbols"].map(|kind| directory().join(format!("{name}.{kind}")));
    fs::copy(program, &symbols).context("could not keep the image's symbols")?;
    commit::write(&symbols, commit)?;
    command::run(Command::new("strip").arg("--strip-all").arg("-o").args([&elf, &symbols]))?;
    Ok((elf, symbols))
}
