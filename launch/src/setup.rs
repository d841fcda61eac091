//! What has to be installed on the host, by what it is needed for, and its installation with apt.

use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::command;

/// What packages are needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Compiling host programs, among them those that guests run.
    Host,
    /// Compiling and linking the image.
    Build,
    /// Booting it in QEMU.
    Run,
    /// Packing it into disk and ISO images.
    Images,
    /// The boot tests: firmware for the matrix.
    Test,
    /// Clients that speak TLS.
    Tls,
    /// Looking at what the appliance captures.
    Captures,
    /// Making Linux guests: building kernel modules, unpacking others.
    Guest,
    /// Machines with device models: unpacking a QEMU that can have them.
    Models,
    /// Counting instructions of host programs.
    Count,
    /// Sanitizers, and fuzzing that is guided by coverage: LLVM's runtimes.
    Sanitizers,
    /// The stock peer of usNIC: Open MPI, and what its `btl/usnic` is built with.
    OpenMpi,
    /// Peers that are written in Python.
    Python,
    /// Networks of Linux's own between machines here.
    Networks,
    /// libvirt's own daemons and programs.
    Libvirt,
    /// uhyve itself, on a network of Linux's own, where KVM works.
    Uhyve,
    /// Making a fresh Debian to test in.
    Fresh,
    /// The checks before a push.
    Lint,
}

const PACKAGES: &[(Purpose, &[&str])] = &[
    (Purpose::Host, &["gcc", "libc6-dev"]),
    (Purpose::Build, &["gcc", "libc6-dev", "lld", "llvm"]),
    (Purpose::Run, &["qemu-system-x86"]),
    (Purpose::Images, &["grub-common", "grub-pc-bin", "qemu-utils", "xorriso"]),
    (Purpose::Test, &["ipxe-qemu", "ovmf"]),
    (Purpose::Tls, &["curl", "openssl"]),
    (Purpose::Captures, &["tshark"]),
    (Purpose::Guest, &["e2fsprogs", "gcc-12", "kmod", "libelf1", "make", "xz-utils"]),
    (Purpose::Models, &["mmdebstrap"]),
    (Purpose::Count, &["valgrind"]),
    (Purpose::Sanitizers, &["libclang-rt-16-dev", "libstdc++-12-dev", "lld"]),
    (
        Purpose::OpenMpi,
        &["iproute2", "libfabric-dev", "libopenmpi-dev", "libpmix-dev", "openmpi-bin", "xz-utils"],
    ),
    (Purpose::Python, &["python3"]),
    (Purpose::Networks, &["iproute2"]),
    (Purpose::Libvirt, &["bsdutils", "iproute2", "libvirt-clients", "libvirt-daemon-system"]),
    (Purpose::Uhyve, &["curl", "iproute2", "iputils-ping"]),
    (Purpose::Fresh, &["debootstrap", "git", "util-linux"]),
    (Purpose::Lint, &["git", "python3-venv", "rust-web-clippy", "rustfmt-web"]),
];

/// Every purpose, for `./isthmus setup`.
pub const ALL: &[Purpose] = &[
    Purpose::Host,
    Purpose::Build,
    Purpose::Run,
    Purpose::Images,
    Purpose::Test,
    Purpose::Tls,
    Purpose::Captures,
    Purpose::Guest,
    Purpose::Models,
    Purpose::Count,
    Purpose::Sanitizers,
    Purpose::OpenMpi,
    Purpose::Python,
    Purpose::Networks,
    Purpose::Libvirt,
    Purpose::Uhyve,
    Purpose::Fresh,
    Purpose::Lint,
];

/// Times that apt is asked: it may remove a package that is wanted, to make room for another (a newer
/// qemu-utils for the qemu-system-x86 of this Debian), and then has to bring its own.
const ROUNDS: usize = 2;

/// Installs the packages for `purposes` that are missing. Asks nothing. Fails with the command to run
/// when it may not install, and with the names when there is no apt.
pub fn install(purposes: &[Purpose]) -> Result<()> {
    let wanted = PACKAGES.iter().filter(|(purpose, _)| purposes.contains(purpose));
    let mut names: Vec<&str> = wanted.flat_map(|(_, names)| *names).copied().collect();
    names.sort_unstable();
    names.dedup();
    let missing =
        || -> Vec<&str> { names.iter().copied().filter(|name| !is_installed(name)).collect() };
    for round in 0..=ROUNDS {
        let missing = missing();
        if missing.is_empty() {
            return Ok(());
        }
        let list = missing.join(" ");
        if round == ROUNDS {
            bail!("apt-get installed, and then removed again, what is needed together: {list}");
        }
        if !succeeds("apt-get", &["--version"]) {
            bail!(
                "this system has no apt-get, so nothing was installed; needed are what Debian calls: {list}"
            );
        }
        let Some(sudo) = sudo() else {
            bail!(
                "packages are missing and this is not root. As root, run: apt-get install --no-install-recommends {list}"
            );
        };
        if round == 0 {
            renew_lists();
        }
        let install = [
            "env",
            "DEBIAN_FRONTEND=noninteractive",
            "apt-get",
            "install",
            "-y",
            "-q",
            "--no-install-recommends",
        ];
        command::run(as_root(sudo, &install).args(missing))?;
    }
    Ok(())
}

/// Renews apt's package lists. Where that fails the old ones have to do.
pub fn renew_lists() {
    let Some(sudo) = sudo() else {
        eprintln!("this is not root: apt's package lists are left as they are");
        return;
    };
    if let Err(error) = command::run(&mut as_root(sudo, &["apt-get", "update", "-q"])) {
        eprintln!("{error}: the package lists could not be renewed; going on with the old ones");
    }
}

/// What to put in front of a command for it to run as root; none where that cannot be.
fn sudo() -> Option<&'static [&'static str]> {
    if rustix::process::geteuid().is_root() {
        Some(&[])
    } else if succeeds("sudo", &["-n", "true"]) {
        Some(&["sudo", "-n"])
    } else {
        None
    }
}

fn as_root(sudo: &[&str], words: &[&str]) -> Command {
    let mut words = sudo.iter().chain(words);
    let mut command = Command::new(words.next().expect("a command has a name"));
    command.args(words).stdin(Stdio::null());
    command
}

fn is_installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${db:Status-Status}", package]);
    command::output(&mut query).is_ok_and(|status| status == "installed")
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    command::output(Command::new(program).args(arguments)).is_ok()
}
