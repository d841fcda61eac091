//! Builds the image: the kernel's source, the kernel bundle, the program, the link.

mod bundle;
pub mod commit;
pub mod families;
mod kernel_source;
mod program;
pub(crate) mod section;
mod smp;
pub(crate) mod toolchain;
#[cfg(feature = "engines")]
pub(crate) mod uhyve;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{command, workspace};
pub use families::Families;
use toolchain::Toolchain;

/// Options of a build.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Also build the image for uhyve.
    pub uhyve: bool,
    /// Also build the image for tests, in which faults can be provoked.
    pub faults: bool,
    /// The families of the image.
    pub families: Families,
    /// A file name of its own, for an image beside the usual one.
    pub name: Option<String>,
    /// How it is compiled.
    pub profile: Profile,
}

/// How an image is compiled: the profiles of `Cargo.toml`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// As it is shipped.
    #[default]
    Shipped,
    /// For development: rebuilds faster, and is larger and slower than the shipped image.
    Dev,
    /// For the demo: builds from nothing in the shortest time, not optimised.
    Quick,
}

impl Profile {
    /// `Dev` if `is_wanted`, else `Shipped`.
    pub fn dev(is_wanted: bool) -> Profile {
        if is_wanted { Profile::Dev } else { Profile::Shipped }
    }

    /// The profile's name in the workspace of the image.
    fn name(self) -> &'static str {
        ["release", "image-dev", "quick"][self as usize]
    }

    /// The suffix of its file names.
    pub fn suffix(self) -> &'static str {
        ["", "-dev", "-quick"][self as usize]
    }

    /// Cargo's target directory. The quick image shares host artifacts with the launcher, which has the same profile.
    fn target(self) -> PathBuf {
        match self {
            Profile::Quick => workspace::target(),
            _ => workspace::target().join("image"),
        }
    }
}

/// The files that were built.
#[derive(Clone, Debug)]
pub struct Image {
    /// The stripped self-booting ELF (PVH and Multiboot2).
    pub elf: PathBuf,
    /// The ELF with symbols, to name the functions at addresses.
    pub symbols: PathBuf,
    /// The image for tests, if requested.
    pub faults: Option<PathBuf>,
    /// The image for uhyve, if requested.
    pub uhyve: Option<PathBuf>,
}

/// How an image is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// By PVH or Multiboot2.
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
    let bundle = bundle::build(&toolchain, &kernel, Kind::SelfBooting, options.profile)?;
    let commit = commit::of_tree();
    let families = options.families.features();
    let suffix = options.profile.suffix();
    let program = |bundle: &Path, kind, features: &[&str], name: String| {
        let program = program::build(&toolchain, bundle, kind, features, options.profile)?;
        finish(&program, &commit, &name)
    };
    let name = options.name.as_deref().unwrap_or("isthmus");
    let (elf, symbols) = program(&bundle, Kind::SelfBooting, &families, format!("{name}{suffix}"))?;

    let mut image = Image { elf, symbols, faults: None, uhyve: None };
    if options.faults {
        let features = [&families[..], &["faults"]].concat();
        let name = format!("isthmus-faults{suffix}");
        image.faults = Some(program(&bundle, Kind::SelfBooting, &features, name)?.0);
    }
    if options.uhyve {
        let bundle = bundle::build(&toolchain, &kernel, Kind::Uhyve, options.profile)?;
        let (uhyve, _) =
            program(&bundle, Kind::Uhyve, &families, format!("isthmus-uhyve{suffix}"))?;
        #[cfg(feature = "engines")]
        uhyve::check(&uhyve)?;
        image.uhyve = Some(uhyve);
    }
    Ok(image)
}

/// Prepares the kernel's source for the bundle without building it.
pub(crate) fn kernel(toolchain: &Toolchain) -> Result<PathBuf> {
    let _alone = workspace::lock()?;
    let kernel = kernel_source::prepare(toolchain)?;
    smp::assemble(toolchain, &kernel)?;
    Ok(kernel)
}

fn directory() -> PathBuf {
    workspace::target().join("isthmus")
}

/// Stores the linked program under `name`, with and without symbols, and writes the commit into it.
fn finish(program: &Path, commit: &str, name: &str) -> Result<(PathBuf, PathBuf)> {
    let [elf, symbols] = ["elf", "symbols"].map(|kind| directory().join(format!("{name}.{kind}")));
    fs::copy(program, &symbols).context("could not keep the image's symbols")?;
    commit::write(&symbols, commit)?;
    command::run(Command::new("strip").arg("--strip-all").arg("-o").args([&elf, &symbols]))?;
    Ok((elf, symbols))
}
