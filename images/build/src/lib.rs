//! Makes bootable images from the built appliance: an ELF file, a UEFI program, a disk, an ISO.
//!
//! | format | boots by | contents |
//! |---|---|---|
//! | `elf` | PVH (`qemu -kernel`), Multiboot2 | the appliance alone |
//! | `efi` | UEFI, from a file or the network | the UEFI front end with the appliance inside |
//! | `raw`, `qcow2` | UEFI | a GPT disk with the EFI program on its system partition, and a partition for the configuration |
//! | `iso` | BIOS (GRUB, Multiboot2) and UEFI, from CD or USB stick | both |
//! | `pxe` | BIOS (GRUB, Multiboot2) and UEFI, from a TFTP server, UEFI from an HTTP server too | a directory |
//!
//! It does not build the appliance itself. Secure Boot is not supported: images are not signed.

mod disk;
mod esp;
mod grub;
mod iso;
mod pxe;

pub use disk::config_disk;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

/// A format of image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The self-booting ELF file.
    Elf,
    /// The UEFI program.
    Efi,
    /// A disk, byte for byte.
    Raw,
    /// The same disk for QEMU, without its empty space.
    Qcow2,
    /// A CD, which is also a disk for USB sticks.
    Iso,
    /// A directory for a TFTP or HTTP server.
    Pxe,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 6] =
        [Format::Elf, Format::Efi, Format::Raw, Format::Qcow2, Format::Iso, Format::Pxe];

    /// Its name, which is also the extension of its files.
    pub fn name(self) -> &'static str {
        match self {
            Format::Elf => "elf",
            Format::Efi => "efi",
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
            Format::Iso => "iso",
            Format::Pxe => "pxe",
        }
    }

    /// Whether it contains the UEFI program.
    pub fn needs_efi(self) -> bool {
        self != Format::Elf
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = Format::ALL.map(Format::name).join(", ");
        let found = Format::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| format!("there is no image format `{name}`; the formats are {names}"))
    }
}

/// Parts of an image.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The stripped appliance.
    pub elf: &'a Path,
    /// The UEFI program with the same appliance; required if [`Format::needs_efi`].
    pub efi: Option<&'a Path>,
    /// Initial contents of the partition for the configuration, if the format has one (`raw`, `qcow2`).
    pub config: &'a [u8],
    /// Words for the appliance's command line, if the format supports them (`iso` and `pxe` on BIOS).
    pub command_line: &'a str,
}

/// Runs an external tool, and shows its command to the user.
pub type Run<'a> = &'a mut dyn FnMut(&mut Command) -> Result<()>;

/// Makes the image `out`. It replaces an older one when it is complete.
pub fn write(format: Format, parts: &Parts, out: &Path, run: Run) -> Result<()> {
    let directory = out.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    fs::create_dir_all(directory)
        .with_context(|| format!("could not make {}", directory.display()))?;
    let work = tempfile::tempdir_in(directory)
        .with_context(|| format!("could not write to {}", directory.display()))?;
    let new = work.path().join("image");
    match format {
        Format::Elf => drop(fs::copy(parts.elf, &new)?),
        Format::Efi => drop(fs::copy(efi(parts)?, &new)?),
        Format::Raw => disk::raw(&new, &read(efi(parts)?)?, parts.config)?,
        Format::Qcow2 => disk::qcow2(&new, &read(efi(parts)?)?, parts.config, work.path(), run)?,
        Format::Iso => {
            iso::write(&new, parts.elf, &read(efi(parts)?)?, parts.command_line, work.path(), run)?
        }
        Format::Pxe => {
            pxe::write(&new, parts.elf, efi(parts)?, parts.command_line, work.path(), run)?;
            remove_old(out)?;
        }
    }
    fs::rename(&new, out).with_context(|| format!("could not write {}", out.display()))
}

/// Removes a directory of an earlier call; an error if it contains other files.
fn remove_old(out: &Path) -> Result<()> {
    if !out.is_dir() {
        return Ok(());
    }
    if !out.join("isthmus.0").is_file() && fs::read_dir(out)?.next().is_some() {
        bail!("{} is a directory with other files: choose another output path", out.display());
    }
    fs::remove_dir_all(out).with_context(|| format!("could not replace {}", out.display()))
}

fn efi<'a>(parts: &Parts<'a>) -> Result<&'a Path> {
    let Some(efi) = parts.efi else {
        bail!("the format needs the UEFI program, which was not built")
    };
    Ok(efi)
}

fn read(file: &Path) -> Result<Vec<u8>> {
    fs::read(file).with_context(|| format!("could not read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_found_by_name() {
        assert_eq!("iso".parse(), Ok(Format::Iso));
        let error = "vmdk".parse::<Format>().unwrap_err();
        assert_eq!(
            error,
            "there is no image format `vmdk`; the formats are elf, efi, raw, qcow2, iso, pxe"
        );
    }

    #[test]
    fn missing_part_is_an_error_and_leaves_the_old_image() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("old.raw");
        fs::write(&out, "old").unwrap();
        let parts = Parts { elf: Path::new("none"), efi: None, config: &[], command_line: "" };
        assert!(write(Format::Raw, &parts, &out, &mut |_| Ok(())).is_err());
        assert_eq!(fs::read(&out).unwrap(), b"old");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no temporary file is left");
    }
}
