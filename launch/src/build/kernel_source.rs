//! The kernel's source: hermit-kernel as published, copied out of cargo's own cache into `target/`, with a few edits.
//! Each edit states its reason and must match exactly as often as stated. None of the kernel is in this repository.
//! appliance/kernel/README.md has a row for each edit, with upstream's state, and says why the kernel is not newer.
//!
//! Kernel features in use: ACPI and SMP. Not in use: FSGSBASE (older CPUs boot without it), PCI, network, file system.
//! The kernel is optimised as one unit, for the address of the image, and without its log messages.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::toolchain::Toolchain;
use crate::{command, workspace};

const VERSION: &str = "0.11.0";

struct Edit {
    /// Its row in appliance/kernel/README.md. Several edits may have the same name.
    name: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    times: usize,
}

const fn edit(
    name: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
) -> Edit {
    Edit { name, file, from, to, times: 1 }
}

const EDITS: &[Edit] = &[
    // Rust 1.88 renamed the attribute and made it stable.
    edit("naked", "src/arch/x86_64/kernel/start.rs", "#[naked]", "#[unsafe(naked)]"),
    edit("naked", "src/arch/x86_64/kernel/scheduler.rs", "#[naked]", "#[unsafe(naked)]"),
    Edit {
        name: "naked",
        file: "src/arch/x86_64/kernel/switch.rs",
        from: "#[naked]",
        to: "#[unsafe(naked)]",
        times: 2,
    },
    edit("naked", "src/arch/x86_64/kernel/syscall.rs", "#[naked]", "#[unsafe(naked)]"),
    edit("naked", "src/syscalls/table.rs", "#[naked]", "#[unsafe(naked)]"),
    edit("naked", "src/lib.rs", "#![feature(naked_functions)]\n", ""),
    // x86_64 0.15.5 does not build with this kernel.
    edit(
        "x86_64",
        "Cargo.toml",
        "[target.'cfg(target_arch = \"x86_64\")'.dependencies.x86_64]\nversion = \"0.15\"",
        "[target.'cfg(target_arch = \"x86_64\")'.dependencies.x86_64]\nversion = \"=0.15.4\"",
    ),
    // The build script needs rustup's llvm-tools to assemble the startup code of the other processors.
    // Here `smp.rs` assembles it with the compiler alone.
    edit("boot.bin", "Cargo.toml", "build = \"build.rs\"", "build = false"),
    edit(
        "boot.bin",
        "src/arch/x86_64/kernel/apic.rs",
        "include_bytes!(concat!(core::env!(\"OUT_DIR\"), \"/boot.bin\"))",
        "include_bytes!(\"boot.bin\")",
    ),
    // QEMU's microvm has two I/O APICs; the second made the kernel panic.
    edit(
        "second-ioapic",
        "src/arch/x86_64/kernel/apic.rs",
        "IOAPIC_ADDRESS.set(ioapic_address).unwrap();",
        "if IOAPIC_ADDRESS.set(ioapic_address).is_err() { return; }",
    ),
    // Without tables the kernel looked for the I/O APIC at the local APIC's address.
    edit(
        "default-ioapic",
        "src/arch/x86_64/kernel/apic.rs",
        "init_ioapic_address(default_address);\n\t}\n\n\tdefault_address",
        "init_ioapic_address(PhysAddr::new(0xfec0_0000));\n\t}\n\n\tdefault_address",
    ),
    // The kernel panicked where the I/O APIC has more than 25 inputs: those of Intel's chipsets have had 120 since
    // 2015. Devices whose interrupt is an input beyond the first 24 send messages.
    edit(
        "ioapic-inputs",
        "src/arch/x86_64/kernel/apic.rs",
        "let max_entry = ioapic_max_redirection_entry() + 1;",
        "let max_entry = (ioapic_max_redirection_entry() + 1).min(24);",
    ),
    // The kernel identified processors by 8 bits of their APIC IDs, in the order of the tables, and took the first for
    // the boot processor: a boot processor at another place would have been started again. It ignored the x2APIC
    // entries of the tables.
    edit(
        "apic-ids",
        "src/arch/x86_64/kernel/apic.rs",
        "static CPU_LOCAL_APIC_IDS: SpinMutex<Vec<u8>>",
        "static CPU_LOCAL_APIC_IDS: SpinMutex<Vec<u32>>",
    ),
    edit(
        "apic-ids",
        "src/arch/x86_64/kernel/apic.rs",
        "pub fn add_local_apic_id(id: u8) {\n\tCPU_LOCAL_APIC_IDS.lock().push(id);\n",
        "pub fn add_local_apic_id(id: u32) {\n\
         \tuse core::arch::x86_64::{__cpuid, __cpuid_count};\n\
         \tlet wide = __cpuid(0).eax >= 0xb && __cpuid_count(0xb, 0).ebx != 0;\n\
         \tlet ours = if wide { __cpuid_count(0xb, 0).edx } else { __cpuid(1).ebx >> 24 };\n\
         \tlet mut ids = CPU_LOCAL_APIC_IDS.lock();\n\
         \tif !ids.contains(&id) {\n\
         \t\tlet at = if id == ours { 0 } else { ids.len() };\n\
         \t\tids.insert(at, id);\n\
         \t}\n}\n\n\
         /// Of a processor that says it itself: they come in their order.\n\
         pub fn add_own_local_apic_id(id: u32) {\n\
         \tCPU_LOCAL_APIC_IDS.lock().push(id);\n",
    ),
    edit(
        "apic-ids",
        "src/arch/x86_64/kernel/apic.rs",
        "add_local_apic_id(processor_local_apic_record.apic_id);\n\t\t\t\t}\n\t\t\t}\n",
        "add_local_apic_id(processor_local_apic_record.apic_id.into());\n\t\t\t\t}\n\t\t\t}\n\
         \t\t\t9 => {\n\
         \t\t\t\tlet words = ptr::with_exposed_provenance::<[u32; 2]>(current_address + 2);\n\
         \t\t\t\tlet [id, flags] = unsafe { words.read_unaligned() };\n\
         \t\t\t\tif flags & CPU_FLAG_ENABLED > 0 {\n\
         \t\t\t\t\tadd_local_apic_id(id);\n\t\t\t\t}\n\t\t\t}\n",
    ),
    edit(
        "apic-ids",
        "src/arch/x86_64/kernel/apic.rs",
        "add_local_apic_id(cpu_entry.id);",
        "add_local_apic_id(cpu_entry.id.into());",
    ),
    edit(
        "apic-ids",
        "src/arch/x86_64/kernel/mod.rs",
        "apic::add_local_apic_id(core_id() as u8);",
        "apic::add_own_local_apic_id(core_id());",
    ),
    // Calibrating the timer took 30 ms of every boot.
    edit(
        "calibration",
        "src/arch/x86_64/kernel/apic.rs",
        "let microseconds = 30_000;",
        "let microseconds = 2_000;",
    ),
    // Processors since the Pentium 4 need no 10 ms between INIT and STARTUP (Linux waits for none).
    edit(
        "startup-wait",
        "src/arch/x86_64/kernel/apic.rs",
        "processor::udelay(10000);",
        "processor::udelay(100);",
    ),
    // Without tables the kernel waited for zero processors to come up, although there is one.
    edit(
        "no-core-count",
        "src/arch/x86_64/kernel/mod.rs",
        "_ => apic::local_apic_id_count(),",
        "_ => apic::local_apic_id_count().max(1),",
    ),
    // A machine without ACPI is no reason to panic.
    edit(
        "no-acpi",
        "src/arch/x86_64/kernel/acpi.rs",
        "let rsdp = detect_acpi().expect(\"Hermit requires an ACPI-compliant system\");",
        "let Ok(rsdp) = env::rsdp().map_or(Err(()), |_| detect_acpi()) else { return };",
    ),
    // mwait is emulated by busy waiting in QEMU; hlt is not.
    edit(
        "mwait",
        "src/arch/x86_64/kernel/processor.rs",
        "supports_mwait: feature_info.has_monitor_mwait(),",
        "supports_mwait: false,",
    ),
    // The kernel woke a core only if the core had recorded that it sleeps, and so missed a core just before that.
    edit(
        "wakeup",
        "src/arch/x86_64/kernel/apic.rs",
        "\t\t&& crate::scheduler::take_core_hlt_state(core_id_to_wakeup)\n",
        "",
    ),
    // System calls switched interrupts on; the appliance's loops keep them off.
    edit(
        "syscall-interrupts",
        "src/arch/x86_64/kernel/switch.rs",
        "\"cli\",\n\t\t\t\t\t\"mov r12, rsp\",",
        "\"mov r12, rsp\",",
    ),
    edit(
        "syscall-interrupts",
        "src/arch/x86_64/kernel/switch.rs",
        "\"sti\",\n\n\t\t\t\t\t// To make sure, Rust manages",
        "// To make sure, Rust manages",
    ),
    edit(
        "syscall-interrupts",
        "src/arch/x86_64/kernel/switch.rs",
        "\"cli\",\n\t\t\t\t\t\"mov rsp, r12\",\n\t\t\t\t\t\"sti\",",
        "\"mov rsp, r12\",",
    ),
    // The allocator aligned everything to 128 bytes, against false sharing. That left gaps of nearly that size
    // between all allocations, and each allocation searched them in vain. Types that cores share here are padded
    // themselves.
    edit(
        "alignment",
        "src/mm/allocator.rs",
        "core::mem::align_of::<crossbeam_utils::CachePadded<u8>>()",
        "core::mem::align_of::<usize>()",
    ),
    // Statistics at the end would only hide the last output.
    edit(
        "statistics",
        "src/syscalls/mod.rs",
        "\t// print some performance statistics\n\tcrate::arch::kernel::print_statistics();\n",
        "",
    ),
    // Each vector had a handler of its own, which passes the number to the kernel's drivers. There are no such drivers
    // here, and the handlers took 24 KB.
    edit(
        "one-handler",
        "src/arch/x86_64/kernel/interrupts.rs",
        "\tset_general_handler!(&mut *idt, handle_interrupt, 32..);\n\n\tunsafe {\n\t\tfor i in 32..=255 {\n\
         \t\t\tlet addr = idt[i].handler_addr();\n\t\t\tidt[i].set_handler_addr(addr).set_stack_index(0);\n",
        "\textern \"x86-interrupt\" fn any(frame: ExceptionStackFrame) {\n\t\thandle_interrupt(frame, 32, None);\n\t}\n\n\
         \tunsafe {\n\t\tfor i in 32..=255 {\n\t\t\tidt[i].set_handler_fn(any).set_stack_index(0);\n",
    ),
    // uhyve gives no network to a kernel that reports a version before 0.13.2, because such a kernel has no driver for
    // uhyve's device. Here the appliance drives the device, so the kernel's version is left out.
    edit("abi-tag", "src/lib.rs", "hermit_entry::define_abi_tag!();\n", ""),
    // Hypercalls read and write memory, but were declared not to: the compiler omitted their parameters.
    edit(
        "hypercall",
        "src/syscalls/interfaces/uhyve.rs",
        "\t\tuse x86_64::instructions::port::Port;\n\n\t\tlet data =",
        "\t\tlet data =",
    ),
    edit(
        "hypercall",
        "src/syscalls/interfaces/uhyve.rs",
        "Port::new(ptr).write(data);",
        "core::arch::asm!(\"out dx, eax\", in(\"dx\") ptr, in(\"eax\") data, options(nostack, preserves_flags));",
    ),
    // Without a real-time clock its registers read as all ones, which is "update in progress" forever.
    edit(
        "no-rtc",
        "src/arch/x86_64/kernel/systemtime.rs",
        "\t\tloop {\n\t\t\t// If a clock update is currently in progress",
        "\t\tif Self::read_cmos_register(CMOS_STATUS_REGISTER_A) == 0xff { return 1 << 40; }\n\
         \t\tloop {\n\t\t\t// If a clock update is currently in progress",
    ),
];

/// Copies and edits the source unless that was done before; returns its directory.
pub fn prepare(toolchain: &Toolchain) -> Result<PathBuf> {
    let directory = workspace::target().join("hermit-kernel");
    let stamp = directory.join("edited");
    let recipe: String =
        EDITS.iter().map(|e| format!("{}\n{}\n{}\n{}\n", e.file, e.from, e.to, e.times)).collect();
    if fs::read_to_string(&stamp).is_ok_and(|done| done == recipe) {
        return Ok(directory);
    }
    let published = published_source(toolchain)?;
    match fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    copy(&published, &directory)?;
    for edit in EDITS {
        apply(edit, &directory)?;
    }
    fs::write(stamp, recipe)?;
    Ok(directory)
}

/// The directory of the published source in cargo's cache. Downloads it if it is missing.
fn published_source(toolchain: &Toolchain) -> Result<PathBuf> {
    let manifest = workspace::root().join("appliance/kernel/source/Cargo.toml");
    let mut fetch = toolchain.cargo();
    fetch.args(["fetch", "--locked", "--manifest-path"]).arg(&manifest);
    command::run_quietly("fetching the kernel's source", &mut fetch)?;
    let mut ask = toolchain.cargo();
    ask.args(["metadata", "--format-version=1", "--locked", "--offline"]);
    ask.args(["--filter-platform=x86_64-unknown-none", "--manifest-path"]).arg(&manifest);
    let metadata: serde_json::Value = serde_json::from_str(&command::output(&mut ask)?)?;
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let kernel = packages.iter().find(|p| p["name"] == "hermit-kernel" && p["version"] == VERSION);
    let path = kernel.and_then(|p| p["manifest_path"].as_str()).map(Path::new);
    let directory = path.and_then(Path::parent).context("cargo's metadata lacks hermit-kernel")?;
    Ok(directory.to_path_buf())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else if entry.file_name() != "rust-toolchain.toml" {
            // By content: a copy of a read-only file must be writable.
            fs::write(target, fs::read(entry.path())?)?;
        }
    }
    Ok(())
}

fn apply(edit: &Edit, directory: &Path) -> Result<()> {
    let path = directory.join(edit.file);
    let text = fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
    let found = text.matches(edit.from).count();
    if found != edit.times {
        let Edit { name, from, times, .. } = edit;
        bail!("edit {name}: {from:?} was found {found} times in {}, not {times}", path.display());
    }
    fs::write(&path, text.replace(edit.from, edit.to))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_with_another_number_of_matches_fails() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.rs");
        fs::write(&file, "one two one").unwrap();
        let twice = Edit { name: "a", file: "a.rs", from: "one", to: "1", times: 2 };
        apply(&twice, directory.path()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "1 two 1");
        let error = apply(&twice, directory.path()).unwrap_err();
        assert!(error.to_string().contains("edit a: \"one\" was found 0 times"), "{error}");
        let error = apply(&edit("b", "b.rs", "", ""), directory.path()).unwrap_err();
        assert!(error.to_string().contains("b.rs"), "{error}");
    }

    #[test]
    fn readme_has_a_row_for_each_edit() {
        let page = include_str!("../../../appliance/kernel/README.md");
        let table = page.split_once("## Edits").unwrap().1.split_once("\n## ").unwrap().0;
        let rows: Vec<&str> = table
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
            .map(|(name, _)| name)
            .collect();
        let mut edits: Vec<&str> = EDITS.iter().map(|edit| edit.name).collect();
        edits.dedup();
        assert_eq!(rows, edits);
    }
}
