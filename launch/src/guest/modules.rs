//! The RTRS and RNBD modules: Debian's kernels do not have them, Debian's kernel source does. They are built
//! unchanged, all five in one directory, so that each sees the others' headers and symbols.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::packages::Kernel;
use crate::command;

/// The directories of the kernel's source that the modules are in.
const SOURCES: [&str; 2] = ["drivers/infiniband/ulp/rtrs", "drivers/block/rnbd"];

/// What is linked together (the Makefiles of the two directories).
const KBUILD: &str = "\
ccflags-y += -I$(src)
rtrs-core-y := rtrs.o
rtrs-client-y := rtrs-clt.o rtrs-clt-stats.o rtrs-clt-sysfs.o rtrs-clt-trace.o
rtrs-server-y := rtrs-srv.o rtrs-srv-stats.o rtrs-srv-sysfs.o rtrs-srv-trace.o
rnbd-client-y := rnbd-clt.o rnbd-clt-sysfs.o
rnbd-server-y := rnbd-srv.o rnbd-srv-sysfs.o rnbd-srv-trace.o
obj-m += rtrs-core.o rtrs-client.o rtrs-server.o rnbd-client.o rnbd-server.o
";

/// Builds the modules in `work`, with the headers and source that were unpacked to `sysroot`, and returns
/// the module files, without debugging information.
pub fn build(kernel: &Kernel, sysroot: &Path, work: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(work)?;
    let archive = fs::read_dir(sysroot.join("usr/src"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().ends_with(".tar.xz"))
        .context("the package with the kernel's source has no archive in it")?;
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(work).arg("-xf").arg(archive).args(["--strip-components=1", "--wildcards"]);
    command::run_quietly(
        "unpacking the kernel's source",
        tar.args(SOURCES.map(|path| format!("*/{path}"))),
    )?;
    for source in SOURCES {
        for entry in fs::read_dir(work.join(source))? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "c" || ending == "h") {
                fs::rename(&path, work.join(path.file_name().context("a file has a name")?))?;
            }
        }
    }
    fs::remove_dir_all(work.join("drivers"))?;
    fs::write(work.join("Kbuild"), KBUILD)?;

    let headers = sysroot.join(format!("usr/src/linux-headers-{}", kernel.release));
    move_headers(&headers, sysroot)?;
    let mut make = Command::new("make");
    make.arg("-C").arg(headers).arg(format!("M={}", work.display())).args(["-j2", "modules"]);
    command::run_quietly("building the rtrs and rnbd modules", &mut make)?;

    let files = fs::read_dir(work)?.filter_map(|entry| Some(entry.ok()?.path()));
    let modules: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|e| e == "ko")).collect();
    if modules.len() != 5 {
        bail!("the build made {} modules instead of 5 in {}", modules.len(), work.display());
    }
    command::run(Command::new("strip").arg("-g").args(&modules))?;
    Ok(modules)
}

/// The headers expect to be in /usr/src. The kernel image among them is only there for BTF, which wants
/// another tool and is not needed to load a module.
fn move_headers(headers: &Path, sysroot: &Path) -> Result<()> {
    let makefile = headers.join("Makefile");
    let text = fs::read_to_string(&makefile)?;
    fs::write(
        &makefile,
        text.replace("include /usr/src", &format!("include {}/usr/src", sysroot.display())),
    )?;
    match fs::remove_file(headers.join("vmlinux")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
