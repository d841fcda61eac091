//! Stock Linux guests: the peers that the appliance must interoperate with.
//!
//! A guest is Debian's own kernel, the RTRS, RNBD and RapidIO modules built from Debian's own kernel source (Debian
//! ships them only as source), and Debian's tools in an initial RAM disk. Nothing of it is installed on the
//! host: the packages are downloaded with apt and unpacked below `target/guest/`. apt selects the
//! versions, so that a guest equals a current Debian host.

mod applications;
mod hypervisor;
mod initramfs;
mod machine;
mod modules;
mod packages;
pub mod programs;
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
    /// The kernel's release, as `uname -r` prints it.
    pub release: String,
}

/// The modules from Debian's kernel source that a guest has beside Debian's own modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Built {
    /// None: nothing needs them, or the guest's kernel is of another series than the source.
    None,
    /// RTRS and RNBD.
    Storage,
    /// Every family.
    All,
}

/// Makes the system, unless it exists and is current. Takes minutes the first time, mostly for downloads.
pub fn prepare() -> Result<System> {
    prepare_at("guest", packages::newest_kernel, Built::All)
}

/// Makes the system without modules that only drive device models. A later [`prepare`] adds them.
pub fn prepare_for_storage() -> Result<System> {
    prepare_at("guest", packages::newest_kernel, Built::Storage)
}

/// Makes the system with Debian's own modules only.
pub fn prepare_plain() -> Result<System> {
    prepare_at("guest", packages::newest_kernel, Built::None)
}

/// Makes a system with Debian's older kernel and its own modules.
pub fn prepare_older() -> Result<System> {
    prepare_at("guest-older", packages::older_kernel, Built::None)
}

fn prepare_at(name: &str, kernel: fn() -> Result<Kernel>, built: Built) -> Result<System> {
    setup::install(&[Purpose::Run, Purpose::Guest])?;
    let directory = workspace::target().join(name);
    let _alone = workspace::lock_in(&directory)?;
    let kernel = kernel()?;
    let system = System {
        kernel: directory.join("vmlinuz"),
        initramfs: directory.join("initramfs.cpio"),
        release: kernel.release.clone(),
    };
    // The system is made again when any of its inputs changes.
    let made_of = [packages::recipe(), root::recipe(), modules::recipe()];
    let recipe = format!("{kernel:?}\n{}", made_of.join("\n"));
    let stamp = |built: Built| directory.join(format!("recipe-{built:?}"));
    let is_made = |built| fs::read_to_string(stamp(built)).is_ok_and(|made| made == recipe);
    let as_wanted = [Built::None, Built::Storage, Built::All];
    if as_wanted.into_iter().any(|made| made >= built && is_made(made)) {
        return Ok(system);
    }
    if built != Built::All || !is_made(Built::Storage) {
        unpack(&kernel, built, &directory)?;
    }
    make(&kernel, built, &directory, &system)?;
    fs::write(stamp(built), recipe)?;
    Ok(system)
}

/// Downloads and unpacks the packages, and lays out the guest's root without the modules of [`Built`].
fn unpack(kernel: &Kernel, built: Built, directory: &Path) -> Result<()> {
    eprintln!("making a Linux guest with Debian's kernel {}", kernel.release);
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            fs::remove_dir_all(path)?;
        } else if path.file_name().is_some_and(|name| name != workspace::LOCK) {
            fs::remove_file(path)?;
        }
    }
    let sysroot = directory.join("sysroot");
    let downloads = directory.join("packages");
    fs::create_dir_all(&sysroot)?;
    fs::create_dir_all(&downloads)?;
    packages::download(kernel, built != Built::None, &downloads)?;
    packages::unpack(&downloads, &sysroot)?;
    fs::remove_dir_all(&downloads)?;
    root::lay_out(kernel, &sysroot, &directory.join("root"))?;
    let image = sysroot.join(format!("boot/vmlinuz-{}", kernel.release));
    fs::copy(&image, directory.join("vmlinuz"))
        .with_context(|| format!("no kernel at {}", image.display()))?;
    Ok(())
}

/// Builds the missing modules and packs the initial RAM disk. The unpacked packages stay until all modules are built.
fn make(kernel: &Kernel, built: Built, directory: &Path, system: &System) -> Result<()> {
    let (sysroot, root) = (directory.join("sysroot"), directory.join("root"));
    if built != Built::None {
        let only_storage = built == Built::Storage;
        let modules = modules::build(kernel, &sysroot, &directory.join("modules"), only_storage)?;
        root::add_modules(kernel, &modules, &root)?;
    }
    let step = progress::step("packing the guest's initial RAM disk");
    let size = initramfs::pack(&root, &system.initramfs)?;
    step.done(&format!("{} MiB", size >> 20));
    if built != Built::Storage {
        for place in [sysroot, root, directory.join("modules")] {
            match fs::remove_dir_all(place) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error.into());
                }
                _ => {}
            }
        }
    }
    Ok(())
}
