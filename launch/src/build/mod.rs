//! Building the image: the kernel's source, the kernel bundle, the program, the link.

mod bundle;
pub mod families;
mod hermit;
mod kernel_source;
mod program;
mod smp;
pub(crate) mod toolchain;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{command, workspace};
pub use families::Families;
pub use program::commit;
use toolchain::Toolchain;

/// What to build.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Also build the standard Hermit image (position independent, without the boot stub) for uhyve.
    pub uhyve: bool,
    /// Also build the image for tests, in which faults can be provoked.
    pub faults: bool,
    /// What it has.
    pub families: Families,
    /// A name of its own, for an image that is to stand beside the usual one.
    pub name: Option<String>,
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
    /// The standard Hermit image, when it was asked for.
    pub uhyve: Option<PathBuf>,
}

/// How an image is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// By itself: the boot stub is linked in.
    SelfBooting,
    /// By a loader that knows Hermit (uhyve).
    Hermit,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::SelfBooting => "boot",
            Kind::Hermit => "hermit",
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

    let directory = workspace::target().join("isthmus");
    fs::create_dir_all(&directory)?;
    let bundle = bundle::build(&toolchain, &kernel, Kind::SelfBooting)?;
    let families = options.families.features();
    let program = program::build(&toolchain, &bundle, Kind::SelfBooting, &families)?;
    let name = options.name.as_deref().unwrap_or("isthmus");
    let [symbols, elf] = ["symbols", "elf"].map(|kind| directory.join(format!("{name}.{kind}")));
    fs::copy(&program, &symbols).context("could not keep the image's symbols")?;
    strip(&symbols, &elf)?;

    let mut image = Image { elf, symbols, faults: None, uhyve: None };
    if options.faults {
        let features = [&families[..], &["faults"]].concat();
        let program = program::build(&toolchain, &bundle, Kind::SelfBooting, &features)?;
        let symbols = directory.join("isthmus-faults.symbols");
        let elf = directory.join("isthmus-faults.elf");
        fs::copy(&program, &symbols).context("could not keep the image's symbols")?;
        strip(&symbols, &elf)?;
        image.faults = Some(elf);
    }
    if options.uhyve {
        let bundle = bundle::build(&toolchain, &kernel, Kind::Hermit)?;
        let program = program::build(&toolchain, &bundle, Kind::Hermit, &families)?;
        let uhyve = directory.join("isthmus-uhyve.elf");
        strip(&program, &uhyve)?;
        hermit::check(&uhyve)?;
        image.uhyve = Some(uhyve);
    }
    Ok(image)
}

fn strip(from: &Path, to: &Path) -> Result<()> {
    command::run(Command::new("strip").arg("--strip-all").arg("-o").args([to, from]))
}
