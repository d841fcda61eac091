//! The program that QEMU starts: `start.s`, followed by the memory contents that it copies, as an ELF file with a PVH
//! note, by which QEMU finds the entry point.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::memory::{LOW, Machine, low};
use crate::build::toolchain::Toolchain;
use crate::build::uhyve::{Loaded, load};
use crate::command;

const ADDRESS: u32 = 0x600_0000;
const CODE: usize = 0x1000;
/// Offset of the parameters of `start.s`.
const PARAMETERS: usize = 0xf00;
/// Distance from the first processor's stack pointer up to the image, as in uhyve.
const STACK: u64 = 0x8000;

/// Makes the program.
pub fn program(image: &Path, machine: &Machine) -> Result<Vec<u8>> {
    let mut loaded = load(image)?;
    loaded.memory.resize(loaded.memory.len().next_multiple_of(4), 0);
    let mut program = code()?;
    let parameters = [
        loaded.start,
        loaded.memory.len() as u64 / 4,
        machine.processors.into(),
        loaded.start - STACK,
        loaded.entry_point,
    ];
    for (place, value) in program[PARAMETERS..].chunks_exact_mut(4).zip(parameters) {
        place.copy_from_slice(&(value as u32).to_le_bytes());
    }
    let end = loaded.start as usize + loaded.memory.len();
    ensure!(end < ADDRESS as usize, "the image is too large: it overlaps start.s");
    program.extend(low(machine, &loaded));
    ensure!(program.len() == CODE + LOW, "the memory below the image has an unexpected size");
    let Loaded { memory, .. } = loaded;
    program.extend(memory);
    Ok(elf(&program))
}

/// `start.s`, assembled by the compiler.
fn code() -> Result<Vec<u8>> {
    let toolchain = Toolchain::find()?;
    let directory = tempfile::tempdir()?;
    let place = |name| directory.path().join(name);
    let (assembly, source, object, binary) =
        (place("start.s"), place("start.rs"), place("start.o"), place("start.bin"));
    fs::write(&assembly, include_str!("start.s"))?;
    fs::write(
        &source,
        "#![no_std]\ncore::arch::global_asm!(include_str!(\"start.s\"), options(raw, att_syntax));\n",
    )?;
    let mut compile = Command::new(&toolchain.rustc);
    compile.args(["--crate-type=lib", "--crate-name=start", "--edition=2024", "--emit=obj"]);
    compile.args(["-Cpanic=abort", "-o"]).args([&object, &source]);
    command::run(&mut compile)?;
    let mut link = Command::new(&toolchain.linker);
    link.arg(format!("--image-base={ADDRESS:#x}"))
        .arg(format!("--section-start=.text={ADDRESS:#x}"));
    link.args(["--oformat=binary", "-o"]).args([&binary, &object]);
    command::run(&mut link)?;
    let mut code = fs::read(&binary)?;
    ensure!(code.len() <= CODE, "start.s has {} bytes", code.len());
    code.resize(CODE, 0);
    Ok(code)
}

/// An ELF file of one segment, at [`ADDRESS`], which begins with the entry point.
fn elf(program: &[u8]) -> Vec<u8> {
    const FIRST: u64 = 0x1000;
    const NOTE: u64 = 0x200;
    const XEN_PHYS32_ENTRY: u32 = 18;
    let note = [
        &[4u32.to_le_bytes(), 8u32.to_le_bytes(), XEN_PHYS32_ENTRY.to_le_bytes()].concat()[..],
        b"Xen\0",
        &u64::from(ADDRESS).to_le_bytes(),
    ]
    .concat();
    let header = |kind: u32, flags: u32, offset: u64, address: u64, len: u64| {
        let words = [offset, address, address, len, len, 4];
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        [kind, flags].iter().flat_map(|word| word.to_le_bytes()).chain(words).collect::<Vec<u8>>()
    };
    // ELF64, little endian; an executable for x86-64; entry point; program headers behind this header.
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for word in [u64::from(ADDRESS), 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend([0; 4]);
    for half in [64u16, 56, 2, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    file.extend(header(1, 7, FIRST, ADDRESS.into(), program.len() as u64));
    file.extend(header(4, 4, NOTE, 0, note.len() as u64));
    file.resize(NOTE as usize, 0);
    file.extend(note);
    file.resize(FIRST as usize, 0);
    file.extend(program);
    file
}
