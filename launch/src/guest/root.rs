//! The contents of a guest's file system: programs with their libraries, kernel modules, and `init.sh` as the
//! first process.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use object::LittleEndian;
use object::elf::{DT_NEEDED, Dyn64, FileHeader64};
use object::read::elf::{Dyn, FileHeader};

use super::packages::Kernel;
use crate::command;

const INIT: &str = include_str!("init.sh");

const PROGRAMS: &[&str] = &[
    "bin/busybox",
    "bin/dash",
    "bin/ip",
    "sbin/ethtool",
    "sbin/fsck.ext4",
    "sbin/mkfs.ext4",
    "sbin/resize2fs",
    "sbin/tc",
    "sbin/blockdev",
    "sbin/blkdiscard",
    "usr/bin/fio",
    "usr/bin/ib_atomic_lat",
    "usr/bin/ib_read_bw",
    "usr/bin/ib_read_lat",
    "usr/bin/ib_send_bw",
    "usr/bin/ib_send_lat",
    "usr/bin/ib_write_bw",
    "usr/bin/ib_write_lat",
    "usr/bin/ibv_devinfo",
    "usr/bin/ibv_rc_pingpong",
    "usr/bin/ibv_ud_pingpong",
    "usr/bin/qperf",
    "usr/bin/rdma",
    "usr/bin/rping",
    "usr/bin/ucmatose",
    "usr/bin/udaddy",
    "usr/sbin/nvme",
];

/// The user-space drivers of rdma_rxe and mlx5_ib, which libibverbs loads by itself.
const PROVIDERS: &[&str] = &[
    "usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so",
    "usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav34.so",
];

const FILES: &[&str] =
    &["etc/libibverbs.d/rxe.driver", "etc/libibverbs.d/mlx5.driver", "etc/mke2fs.conf"];

/// The directories of Debian's dynamic linker, and that of librados's own libraries.
const LIBRARIES: &[&str] =
    &["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/ceph"];

const LINKER: &str = "lib64/ld-linux-x86-64.so.2";

/// Debian's modules. Their dependencies are added. rdma_rxe requests `crc32` when it starts.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "virtio_blk",
    "virtio_rng",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "rdma_cm",
    "crc32_generic",
    "crc32c_generic",
    "smc",
    "smc_diag",
    "sch_netem",
    "8021q",
    "veth",
    "brd",
    "ext4",
    "ioatdma",
    "idxd",
    "nvme",
    "enic",
    "ixgbe",
    "ixgbevf",
    "mlx5_core",
    "mlx5_ib",
    "nvme_rdma",
    "nvme_tcp",
    "nvmet_rdma",
    "nvmet_tcp",
];

/// The inputs of the selection, for the cache.
pub fn recipe() -> String {
    [&PROGRAMS.join(" "), &PROVIDERS.join(" "), &FILES.join(" "), &MODULES.join(" "), INIT]
        .join("\n")
}

/// Fills the directory `root` from the unpacked packages in `sysroot`.
pub fn lay_out(kernel: &Kernel, sysroot: &Path, root: &Path) -> Result<()> {
    for directory in ["bin", "dev", "mnt", "proc", "root", "run", "sys", "tmp", "usr", "lib64"] {
        fs::create_dir_all(root.join(directory))?;
    }
    symlink("bin", root.join("sbin"))?;
    symlink("../bin", root.join("usr/bin"))?;
    symlink("../bin", root.join("usr/sbin"))?;
    symlink("dash", root.join("bin/sh"))?;

    let mut libraries = BTreeSet::new();
    for program in PROGRAMS {
        let name = Path::new(program).file_name().context("a program has a name")?;
        install(sysroot, program, &root.join("bin").join(name))?;
        collect_libraries(sysroot, &sysroot.join(program), &mut libraries)?;
    }
    for provider in PROVIDERS {
        libraries.insert((*provider).into());
        collect_libraries(sysroot, &sysroot.join(provider), &mut libraries)?;
    }
    libraries.insert(LINKER.into());
    for file in libraries.iter().map(String::as_str).chain(FILES.iter().copied()) {
        install(sysroot, file, &root.join(file))?;
    }

    let init = root.join("init");
    fs::write(&init, INIT)?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))?;
    fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\n")?;
    install_modules(kernel, sysroot, root)
}

/// Copies a file of the packages; links are followed.
pub fn install(sysroot: &Path, path: &str, to: &Path) -> Result<()> {
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory)?;
    }
    let from = sysroot.join(path);
    fs::copy(&from, to).with_context(|| format!("the guest's packages have no /{path}"))?;
    Ok(())
}

/// Adds the libraries that the dynamic linker loads for the ELF file `file`.
pub fn collect_libraries(sysroot: &Path, file: &Path, found: &mut BTreeSet<String>) -> Result<()> {
    let data = fs::read(file).with_context(|| format!("could not read {}", file.display()))?;
    for needed in needed(&data).with_context(|| format!("reading {}", file.display()))? {
        if LINKER.ends_with(&needed) {
            continue;
        }
        let mut places = LIBRARIES.iter().map(|directory| format!("{directory}/{needed}"));
        let library = places.find(|path| sysroot.join(path).exists()).with_context(|| {
            format!("{} needs {needed}, which is in no package", file.display())
        })?;
        if found.insert(library.clone()) {
            collect_libraries(sysroot, &sysroot.join(library), found)?;
        }
    }
    Ok(())
}

/// The libraries that an ELF file names (DT_NEEDED).
fn needed(data: &[u8]) -> Result<Vec<String>> {
    let header = FileHeader64::<LittleEndian>::parse(data)?;
    let sections = header.sections(LittleEndian, data)?;
    let Some((entries, strings)) = sections.dynamic(LittleEndian, data)? else {
        return Ok(Vec::new()); // a static program
    };
    let strings = sections.strings(LittleEndian, data, strings)?;
    let needed = entries.iter().filter(|entry| entry.tag(LittleEndian) == DT_NEEDED);
    let name = |entry: &Dyn64<LittleEndian>| {
        Ok(String::from_utf8_lossy(entry.string(LittleEndian, strings)?).into_owned())
    };
    needed.map(name).collect()
}

/// Adds modules built from source, and updates the index that modprobe reads.
pub fn add_modules(kernel: &Kernel, built: &[PathBuf], root: &Path) -> Result<()> {
    let extra = root.join(format!("lib/modules/{}/extra", kernel.release));
    fs::create_dir_all(&extra)?;
    for module in built {
        fs::copy(module, extra.join(module.file_name().context("a module has a name")?))?;
    }
    index(kernel, root)
}

fn index(kernel: &Kernel, base: &Path) -> Result<()> {
    command::run(Command::new("depmod").arg("-b").arg(base).arg(&kernel.release))
}

/// Installs Debian's modules with their dependencies, uncompressed, and the index that modprobe reads.
fn install_modules(kernel: &Kernel, sysroot: &Path, root: &Path) -> Result<()> {
    let directory = format!("lib/modules/{}", kernel.release);
    index(kernel, sysroot)?;
    let mut ask = Command::new("modprobe");
    ask.arg("-d").arg(sysroot).args(["-S", &kernel.release, "-a", "--show-depends"]).args(MODULES);
    let answer = command::output(&mut ask)?;
    let inserted = answer.lines().filter_map(|line| line.strip_prefix("insmod "));
    let mut packed = Vec::new();
    for file in inserted.map(str::trim).collect::<BTreeSet<_>>() {
        let path = Path::new(file).strip_prefix(sysroot).unwrap_or(Path::new(file));
        let path = path.to_str().with_context(|| format!("the module's path {file}"))?;
        let target = root.join(path);
        install(sysroot, path, &target)?;
        if path.ends_with(".xz") {
            packed.push(target);
        }
    }
    if !packed.is_empty() {
        command::run_quietly("unpacking modules", Command::new("xz").arg("-d").args(&packed))?;
    }
    for list in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
        install(sysroot, &format!("{directory}/{list}"), &root.join(&directory).join(list))?;
    }
    index(kernel, root)
}
