//! The startup code of the other processors, in real mode at 0x8000: the kernel's `boot.s`,
//! assembled by the compiler and linked to a flat binary that the kernel includes.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::toolchain::Toolchain;
use crate::command;

const ADDRESS: &str = "0x8000";

/// Writes `boot.bin` beside `boot.s`, unless it exists.
pub fn assemble(toolchain: &Toolchain, kernel: &Path) -> Result<()> {
    let directory = kernel.join("src/arch/x86_64/kernel");
    let (source, object) = (directory.join("boot.asm.rs"), directory.join("boot.o"));
    let binary = directory.join("boot.bin");
    if binary.exists() {
        return Ok(());
    }
    fs::write(
        &source,
        "#![no_std]\n#![allow(bad_asm_style)]\ncore::arch::global_asm!(include_str!(\"boot.s\"), options(raw));\n",
    )?;
    let mut compile = Command::new(&toolchain.rustc);
    compile.args(["--crate-type=lib", "--crate-name=smp_boot", "--edition=2024", "--emit=obj"]);
    compile.args(["-Cpanic=abort", "-o"]).args([&object, &source]);
    command::run(&mut compile)?;
    let mut link = Command::new(&toolchain.linker);
    link.arg(format!("--image-base={ADDRESS}")).arg(format!("--section-start=.text={ADDRESS}"));
    link.args(["--oformat=binary", "-o"]).args([&binary, &object]);
    command::run(&mut link)
}
