//! `./isthmus image FORMAT`: packs the built appliance into an image file, with a configuration document
//! inside if one is given; and makes config disks. The formats are written by `images/build`.

use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail};
use appliance::config::{self, disk, slot};
use clap::Args;
use images::{Format, Parts};

use crate::build::{Families, Image, section, toolchain::Toolchain};
use crate::{command, workspace};

/// The section of the ELF that holds the document.
const SECTION: &str = ".isthmus.config";

/// Options of `./isthmus image`.
#[derive(Args)]
pub struct Options {
    /// elf, efi, raw (UEFI disk), qcow2 (the same), iso (BIOS and UEFI), pxe (a directory for a TFTP or HTTP server),
    /// or config-disk
    format: Kind,
    /// Where to write the file [default: target/isthmus/isthmus.FORMAT, or config-disk.raw]
    #[arg(long)]
    output: Option<PathBuf>,
    /// A configuration document to put into the file
    #[arg(long)]
    config: Option<PathBuf>,
    /// Words for the kernel command line (iso and pxe, when started by a BIOS)
    #[arg(long, default_value = "")]
    append: String,
    /// Pack this image, without building or installing anything
    #[arg(long, value_name = "FILE")]
    elf: Option<PathBuf>,
    /// The families of the image, if it is built.
    #[command(flatten)]
    pub families: Families,
}

/// The kinds of files to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An image of the appliance.
    Appliance(Format),
    /// A disk that `save` writes to. Needs no appliance.
    ConfigDisk,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Kind, String> {
        if name == "config-disk" { Ok(Kind::ConfigDisk) } else { name.parse().map(Kind::Appliance) }
    }
}

/// Makes the requested file from the appliance that `build` builds, and returns its path.
pub fn image(options: &Options, build: impl FnOnce() -> Result<Image>) -> Result<PathBuf> {
    let directory = workspace::target().join("isthmus");
    fs::create_dir_all(&directory)?;
    let document = match &options.config {
        None => None,
        Some(path) => {
            let text = fs::read_to_string(path);
            Some(text.with_context(|| format!("could not read {}", path.display()))?)
        }
    };
    let output = |name: String| options.output.clone().unwrap_or(directory.join(name));
    let Kind::Appliance(format) = options.format else {
        let output = output("config-disk.raw".into());
        fs::write(&output, config_disk(document.as_deref())?)
            .with_context(|| format!("could not write {}", output.display()))?;
        return Ok(output);
    };
    let output = output(format!("isthmus.{}", format.name()));
    let elf = match &options.elf {
        Some(path) => path.clone(),
        None => build()?.elf,
    };
    let elf = match &document {
        None => elf,
        Some(text) => {
            let configured_elf = directory.join("configured.elf");
            fs::write(&configured_elf, configured(&fs::read(&elf)?, text)?)?;
            configured_elf
        }
    };
    if output != elf {
        make(&elf, format, &options.append, &output)?;
    }
    Ok(output)
}

/// The contents of a config disk, with a document or empty: a GPT disk with one partition. Refuses a
/// document with mistakes.
pub fn config_disk(text: Option<&str>) -> Result<Vec<u8>> {
    images::config_disk(&bare_config_area(text)?)
}

/// The contents of a config disk's partition. A disk that begins with them is a config disk only if it has the
/// serial number of one, or if the operator names it.
pub fn bare_config_area(text: Option<&str>) -> Result<Vec<u8>> {
    text.map_or(Ok(()), refuse_mistakes)?;
    disk::format(text).map_err(|reason| anyhow!(reason))
}

/// Packs the ELF file `elf` into an image of `format` at `output`.
pub fn make(elf: &Path, format: Format, append: &str, output: &Path) -> Result<()> {
    let efi = if format.needs_efi() { Some(efi(elf)?) } else { None };
    let config = disk::format(None).map_err(|reason| anyhow!(reason))?;
    let parts = Parts { elf, efi: efi.as_deref(), config: &config, command_line: append };
    images::write(format, &parts, output, &mut command::run)
}

/// The image file `elf` with the document `text` in it. Refuses a document with mistakes.
pub fn configured(elf: &[u8], text: &str) -> Result<Vec<u8>> {
    refuse_mistakes(text)?;
    let mut configured = elf.to_vec();
    let room = section::find(&mut configured, SECTION)?.get_mut(..slot::SLOT_LEN);
    let room = room.with_context(|| format!("the section {SECTION} is too short"))?;
    slot::write(room, 1, text).map_err(|reason| anyhow!(reason))?;
    Ok(configured)
}

fn refuse_mistakes(text: &str) -> Result<()> {
    if let Err(problems) = config::check(text.as_bytes()) {
        let list: Vec<String> = problems.iter().map(ToString::to_string).collect();
        bail!("the document has mistakes:\n{}", list.join("\n"));
    }
    Ok(())
}

/// Builds the UEFI program that contains `elf`.
fn efi(elf: &Path) -> Result<PathBuf> {
    let toolchain = Toolchain::find()?;
    let elf = fs::canonicalize(elf).with_context(|| format!("could not find {}", elf.display()))?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use appliance::config::partitions;

    #[test]
    fn made_disks_are_recognized_by_the_appliance() {
        let disk = config_disk(Some("[system]\nhostname = \"a\"\n")).unwrap();
        let look = partitions::read(&disk, disk.len() as u64 / 512);
        let area = look.config.expect("a partition for the configuration");
        assert!(!look.boots && !look.bare_config);
        assert!(disk::is_area(&disk[area.first as usize * 512..]));
        assert_eq!(area.sectors * 512, disk::AREA_LEN as u64);

        let directory = tempfile::tempdir().unwrap();
        let (efi, out) = (directory.path().join("efi"), directory.path().join("disk.raw"));
        fs::write(&efi, b"MZ program").unwrap();
        let config = disk::format(None).unwrap();
        let parts = Parts { elf: &efi, efi: Some(&efi), config: &config, command_line: "" };
        images::write(Format::Raw, &parts, &out, &mut |_| Ok(())).unwrap();
        let disk = fs::read(&out).unwrap();
        let look = partitions::read(&disk, disk.len() as u64 / 512);
        assert!(look.boots);
        let area = look.config.unwrap();
        assert!(disk::is_area(&disk[area.first as usize * 512..]));
        // A torn partition table is ignored.
        let mut torn = disk;
        torn[1024 + 200] ^= 1;
        assert_eq!(partitions::read(&torn, 1 << 40), partitions::Look::default());
    }
}
