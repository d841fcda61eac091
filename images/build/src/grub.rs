//! GRUB for BIOS, which loads the appliance by Multiboot2, for the ISO image and for PXE.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::Run;

/// Directory of GRUB's modules for BIOS in Debian's grub-pc-bin.
pub const MODULES_AT: &str = "/usr/lib/grub/i386-pc";

/// Makes GRUB's core in `format` (`i386-pc-eltorito`, `i386-pc-pxe`) at `out`, with these modules and a start script.
pub fn core(format: &str, script: &Path, modules: &[&str], out: &Path, run: Run) -> Result<()> {
    if !Path::new(MODULES_AT).exists() {
        bail!("{MODULES_AT} is missing: install the package grub-pc-bin");
    }
    let mut core = Command::new("grub-mkimage");
    core.args(["-O", format, "-d", MODULES_AT, "-p", "/boot/grub", "-c"]).arg(script);
    run(core.arg("-o").arg(out).args(modules))
}

/// The words of a command line; an error if GRUB would interpret a character of them.
pub fn words(command_line: &str) -> Result<&str> {
    let special = |c: &char| c.is_control() || "'\"\\$;{}&|<>#".contains(*c);
    match command_line.chars().find(special) {
        Some(bad) => bail!(
            "the command line contains {bad:?}, which GRUB, the loader for BIOS, would interpret"
        ),
        None => Ok(command_line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_special_characters_are_rejected() {
        assert_eq!(words("isthmus.net.0.mtu=9000").unwrap(), "isthmus.net.0.mtu=9000");
        assert!(words("a; reboot").unwrap_err().to_string().contains("';'"));
    }
}
