//! `./isthmus image FORMAT`: packs the built appliance into an image file, with a configuration document
//! inside if one is given. The formats are written by `images/build`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use appliance::config::{self, slot};
use clap::Args;
use images::{Format, Parts};
use object::{Object, ObjectSection};

use crate::build::{Image, toolchain::Toolchain};
use crate::{command, workspace};

/// The section of the ELF that holds the document.
const SECTION: &str = ".isthmus.config";

/// Options of `./isthmus image`.
#[derive(Args)]
pub struct Options {
    /// elf, efi, raw, qcow2 or iso
    format: Format,
    /// Where to write it [default: target/isthmus/isthmus.FORMAT]
    #[arg(long)]
    output: Option<PathBuf>,
    /// A configuration document to put into the image
    #[arg(long)]
    config: Option<PathBuf>,
    /// Words for the kernel command line (iso, when started by a BIOS)
    #[arg(long, default_value = "")]
    append: String,
}

/// Makes the image that was asked for; returns its path.
pub fn image(built: &Image, options: &Options) -> Result<PathBuf> {
    let output = match &options.output {
        Some(path) => path.clone(),
        None => {
            workspace::target().join("isthmus").join(format!("isthmus.{}", options.format.name()))
        }
    };
    let elf = match &options.config {
        None => built.elf.clone(),
        Some(document) => {
            let directory = workspace::target().join("image");
            fs::create_dir_all(&directory)?;
            let elf = directory.join("configured.elf");
            let text = fs::read_to_string(document)
                .with_context(|| format!("could not read {}", document.display()))?;
            fs::write(&elf, configured(&fs::read(&built.elf)?, &text)?)?;
            elf
        }
    };
    if options.format == Format::Elf && output == built.elf && elf == built.elf {
        return Ok(output);
    }
    make(&elf, options.format, &options.append, &output)?;
    Ok(output)
}

/// Packs the ELF file `elf` into an image of `format` at `output`.
pub fn make(elf: &Path, format: Format, append: &str, output: &Path) -> Result<()> {
    let efi = if format.needs_efi() { Some(efi(elf)?) } else { None };
    let parts = Parts { elf, efi: efi.as_deref(), command_line: append };
    images::write(format, &parts, output, &mut command::run)
}

/// The image file `elf` with the document `text` in it. Refuses a document with mistakes.
pub fn configured(elf: &[u8], text: &str) -> Result<Vec<u8>> {
    if let Err(problems) = config::check(text.as_bytes()) {
        let list: Vec<String> = problems.iter().map(ToString::to_string).collect();
        bail!("the document has mistakes:\n{}", list.join("\n"));
    }
    let section = object::File::parse(elf)
        .ok()
        .and_then(|file| file.section_by_name(SECTION)?.file_range())
        .with_context(|| format!("the image has no section {SECTION}"))?;
    let start = usize::try_from(section.0)?;
    let mut configured = elf.to_vec();
    let room = configured.get_mut(start..).and_then(|rest| rest.get_mut(..slot::SLOT_LEN));
    let room = room.with_context(|| format!("the section {SECTION} is too short"))?;
    slot::write(room, 1, text).map_err(|reason| anyhow!(reason))?;
    Ok(configured)
}

/// Builds the UEFI program that carries `elf`.
fn efi(elf: &Path) -> Result<PathBuf> {
    let toolchain = Toolchain::find()?;
    let elf = fs::canonicalize(elf).with_context(|| format!("{} is not there", elf.display()))?;
    let target = workspace::target().join("efi");
    let mut cargo = toolchain.cargo();
    cargo.env("ISTHMUS_ELF", elf);
    cargo.args(["build", "--release", "--locked", "--target", "x86_64-unknown-uefi"]);
    cargo.arg("--manifest-path").arg(workspace::root().join("images/efi/Cargo.toml"));
    cargo.arg("--target-dir").arg(&target);
    cargo.arg("--config=unstable.build-std=[\"core\",\"alloc\"]");
    let linker = toolchain.linker.with_file_name("lld-link");
    cargo.arg(format!(
        "--config=target.x86_64-unknown-uefi.linker={:?}",
        linker.display().to_string()
    ));
    command::run_quietly("building the UEFI front end", &mut cargo)?;
    Ok(target.join("x86_64-unknown-uefi/release/isthmus.efi"))
}
