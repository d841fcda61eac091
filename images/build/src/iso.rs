//! The ISO 9660 image, similar to grub-mkrescue but with one loader for each firmware: BIOS starts GRUB, which
//! loads the appliance by Multiboot2; UEFI starts the EFI program from an appended FAT volume. With GRUB's boot
//! sector and a GPT the same file boots from a USB stick.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use fatfs::FatType;

use crate::{Run, esp, grub};

const MODULES: [&str; 9] = [
    "biosdisk",
    "iso9660",
    "part_gpt",
    "part_msdos",
    "search",
    "normal",
    "serial",
    "multiboot2",
    "minicmd",
];

/// Writes the image.
pub fn write(
    out: &Path,
    elf: &Path,
    efi: &[u8],
    command_line: &str,
    work: &Path,
    run: Run,
) -> Result<()> {
    let tree = work.join("tree");
    let directory = tree.join("boot/grub");
    fs::create_dir_all(&directory)?;
    fs::copy(elf, tree.join("boot/isthmus.elf"))
        .with_context(|| format!("could not copy {}", elf.display()))?;
    fs::write(directory.join("grub.cfg"), menu(command_line)?)?;
    let early = work.join("early.cfg");
    fs::write(
        &early,
        "search --file --set=root /boot/isthmus.elf\nset prefix=($root)/boot/grub\n",
    )?;
    grub::core("i386-pc-eltorito", &early, &MODULES, &directory.join("core.img"), run)?;

    let system = work.join("esp");
    let volume = File::options().read(true).write(true).create_new(true).open(&system)?;
    volume.set_len(esp::size(efi, FatType::Fat16))?;
    esp::write(volume, FatType::Fat16, efi)?;

    let mut make = Command::new("xorriso");
    make.args(["-report_about", "SORRY", "-as", "mkisofs", "-quiet", "-r", "-V", "ISTHMUS"]);
    // BIOS, from CD (El Torito) and from disk (boot sector).
    make.args(["-b", "boot/grub/core.img", "-no-emul-boot", "-boot-load-size", "4"]);
    make.args(["-boot-info-table", "--grub2-boot-info", "--grub2-mbr"]);
    make.arg(format!("{}/boot_hybrid.img", grub::MODULES_AT));
    // UEFI, from CD and from disk.
    make.args(["-append_partition", "2", "0xef"]).arg(&system).arg("-appended_part_as_gpt");
    make.args([
        "-eltorito-alt-boot",
        "-e",
        "--interval:appended_partition_2:all::",
        "-no-emul-boot",
    ]);
    run(make.arg("-o").arg(out).arg(&tree))
}

/// GRUB's menu: one entry, which starts at once, with output to the screen and the serial port.
fn menu(command_line: &str) -> Result<String> {
    let command_line = grub::words(command_line)?;
    Ok(format!(
        "set timeout=0\n\
         serial --unit=0 --speed=115200\n\
         terminal_input console serial\n\
         terminal_output console serial\n\
         menuentry Isthmus {{\n  multiboot2 /boot/isthmus.elf {command_line}\n}}\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn menu_contains_the_command_line() {
        assert!(
            menu("isthmus.net.0.mtu=9000")
                .unwrap()
                .contains("isthmus.elf isthmus.net.0.mtu=9000\n")
        );
        assert!(menu("a; reboot").is_err());
    }
}
