//! Unmodified applications from Debian's packages for the guests of a few tests. They are on a disk of their own
//! (a plain tar archive), so that other guests do not need to carry them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{packages, root};
use crate::setup::{self, Purpose};
use crate::{command, workspace};

const PACKAGES: &[&str] = &[
    "haproxy",
    "iperf3",
    "nginx",
    "openssl",
    "postgresql-15",
    "redis-server",
    "redis-tools",
    "wrk",
];

const PROGRAMS: &[&str] = &[
    "usr/bin/iperf3",
    "usr/bin/openssl",
    "usr/bin/redis-benchmark",
    "usr/bin/redis-cli",
    "usr/bin/redis-server",
    "usr/bin/wrk",
    "usr/sbin/haproxy",
    "usr/sbin/nginx",
];

/// Programs that find their files relative to themselves, and these files: below `usr` in the packages, below
/// `/apps` in a guest.
const KEPT: &[&str] = &[
    "lib/postgresql/15/bin/initdb",
    "lib/postgresql/15/bin/postgres",
    "lib/postgresql/15/bin/psql",
    "lib/postgresql/15/lib/dict_snowball.so",
    "lib/postgresql/15/lib/plpgsql.so",
    "share/postgresql/15",
];

/// The command with which a guest unpacks the disk.
pub const UNPACK: &str = "mkdir -p /apps && busybox tar -x -C /apps -f /dev/vda";

/// Variables before a command, with which it finds programs and libraries.
pub const ENVIRONMENT: &str = "PATH=/apps/bin:$PATH LD_LIBRARY_PATH=/apps/lib";

/// Where PostgreSQL's programs are.
pub const POSTGRESQL: &str = "/apps/lib/postgresql/15/bin";

/// Makes the disk, unless it exists and is current.
pub fn applications() -> Result<PathBuf> {
    setup::install(&[Purpose::Guest])?;
    let directory = workspace::target().join("guest-applications");
    let _alone = workspace::lock_in(&directory.with_extension("lock"))?;
    let disk = directory.join("applications.tar");
    let recipe = [PACKAGES.join(" "), PROGRAMS.join(" "), KEPT.join(" ")].join("\n");
    let stamp = directory.join("recipe");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == recipe) {
        return Ok(disk);
    }
    match fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let (downloads, sysroot) = (directory.join("packages"), directory.join("sysroot"));
    let (bin, lib) = (directory.join("root/bin"), directory.join("root/lib"));
    for one in [&downloads, &sysroot, &bin, &lib] {
        fs::create_dir_all(one)?;
    }
    packages::fetch(PACKAGES, &downloads)?;
    packages::unpack(&downloads, &sysroot)?;
    let mut libraries = BTreeSet::new();
    for program in PROGRAMS {
        install(&sysroot, program, &bin)?;
        root::collect_libraries(&sysroot, &sysroot.join(program), &mut libraries)?;
    }
    for path in KEPT {
        let (from, to) = (sysroot.join("usr").join(path), directory.join("root").join(path));
        fs::create_dir_all(to.parent().context("a path has a parent")?)?;
        command::run(Command::new("cp").arg("-R").arg(&from).arg(to))?;
        if from.is_file() {
            root::collect_libraries(&sysroot, &from, &mut libraries)?;
        }
    }
    for library in &libraries {
        install(&sysroot, library, &lib)?;
    }
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(directory.join("root")).arg("-cf").arg(&disk).arg(".");
    command::run_quietly("packing the guest's applications", &mut tar)?;
    fs::remove_dir_all(&downloads)?;
    fs::remove_dir_all(&sysroot)?;
    fs::write(stamp, recipe)?;
    Ok(disk)
}

/// Copies a file of the packages into a directory.
fn install(sysroot: &Path, path: &str, into: &Path) -> Result<()> {
    let name = Path::new(path).file_name().context("a program has a name")?;
    root::install(sysroot, path, &into.join(name))
}
