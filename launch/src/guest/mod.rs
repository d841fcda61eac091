//! Stock Linux guests: the peers that the appliance has to please.
//!
//! A guest is Debian's own kernel, the RTRS, RNBD and RapidIO modules built from Debian's own kernel source (Debian
//! ships them only as source), and Debian's tools in an initial RAM disk. Nothing of it is installed on the
//! host: the packages are downloaded with apt and unpacked below `target/guest/`. Versions are asked of apt,
//! so that a guest is what a Debian host is today.

mod applications;
mod hypervisor;
mod initramfs;
mod machine;
mod modules;
mod packages;
mod root;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::setup::{self, Purpose};
use crate::{progress, workspace};
pub use applications::{ENVIRONMENT, POSTGRESQL, UNPACK, applications};
pub use hypervisor::{ENTER, PREPARE, hypervisor};
pub use machine::{Guest, Wire, with_cx16};
use packages::Kernel;

/// A Linux system that guests boot.
#[derive(Clone, Debug)]
pub struct System {
    kernel: PathBuf,
    initramfs: PathBuf,
    /// The kernel's release, as `uname -r` says it.
    pub release: String,
}

/// Makes the system, or finds that it is there and current. Minutes the first time, mostly downloads.
pub fn prepare() -> Result<System> {
    prepare_at("guest", packages::newest_kernel, true)
}

/// The same with Debian's older kernel and the modules that it comes with.
pub fn prepare_older() -> Result<System> {
    prepare_at("guest-older", packages::older_kernel, false)
}

/// With the modules that are built from source, or without.
fn prepare_at(name: &str, kernel: fn() -> Result<Kernel>, builds: bool) -> Result<System> {
    setup::install(&[Purpose::Run, Purpose::Guest])?;
    let _alone = workspace::lock()?;
    let kernel = kernel()?;
    let directory = workspace::target().join(name);
    let system = System {
        kernel: directory.join("vmlinuz"),
        initramfs: directory.join("initramfs.cpio"),
        release: kernel.release.clone(),
    };
    // What it is made of and how: when any of that changes it is made anew.
    let made_of = [packages::recipe(), root::recipe(), modules::recipe()];
    let recipe = format!("{kernel:?}\n{}", made_of.join("\n"));
    let stamp = directory.join("recipe");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == recipe) {
        return Ok(system);
    }
    make(&kernel, builds, &directory, &system)?;
    fs::write(stamp, recipe)?;
    Ok(system)
}

fn make(kernel: &Kernel, builds: bool, directory: &Path, system: &System) -> Result<()> {
    eprintln!("making a Linux guest with Debian's kernel {}", kernel.release);
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let sysroot = directory.join("sysroot");
    let downloads = directory.join("packages");
    fs::create_dir_all(&sysroot)?;
    fs::create_dir_all(&downloads)?;
    packages::download(kernel, builds, &downloads)?;
    packages::unpack(&downloads, &sysroot)?;
    fs::remove_dir_all(&downloads)?;

    let built = match builds {
        true => modules::build(kernel, &sysroot, &directory.join("modules"))?,
        false => Vec::new(),
    };
    let root = directory.join("root");
    root::lay_out(kernel, &sysroot, &built, &root)?;
    let image = sysroot.join(format!("boot/vmlinuz-{}", kernel.release));
    fs::copy(&image, &system.kernel)
        .with_context(|| format!("no kernel at {}", image.display()))?;
    let step = progress::step("packing the guest's initial RAM disk");
    let size = initramfs::pack(&root, &system.initramfs)?;
    step.done(&format!("{} MiB", size >> 20));
    // Half a gigabyte that nobody needs any more.
    fs::remove_dir_all(&sysroot)?;
    fs::remove_dir_all(&root)?;
    Ok(())
}
