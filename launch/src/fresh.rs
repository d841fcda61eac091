//! `./isthmus test --fresh`: runs both commands of the README in a Debian 12 with only the packages that the README
//! names: the demo, the demo again, then the tests. Prints the wall and CPU time of each, and the packages that they
//! removed or replaced, of which there must be none.
//!
//! Each run makes the system with debootstrap in `target/fresh`, from the package sources of this machine's apt. It
//! clones the current commit into the system and runs the commands there as root, in mount and process namespaces of
//! its own, with this machine's network: packages and crates are available as on this machine, and the tests themselves
//! use the loopback interface only. Downloaded packages and crates are kept as files for the next run; everything else
//! is made again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup::{self, Purpose};
use crate::{command, workspace};

const SUITE: &str = "bookworm";
/// Where the project is in the fresh system.
const PLACE: &str = "/home/operator/gateway";
/// The script that runs in the system, with the arguments of the last command. `time` prints wall and CPU time.
const SCRIPT: &str = r#"
cd PLACE || exit 1
installed() { dpkg-query -W -f '${Package} ${Version}\n'; }
installed > /tmp/before
time ./isthmus demo </dev/null || exit 1
echo "fresh: the demo once more"
time ./isthmus demo </dev/null || exit 1
time ./isthmus "$@" </dev/null
status=$?
installed > /tmp/after
echo "fresh: $(wc -l < /tmp/before) packages before, $(wc -l < /tmp/after) after; gone or replaced:"
if grep -vxFf /tmp/after /tmp/before; then exit 1; fi
echo "fresh: none"
exit $status
"#;
/// Files with apt's package sources.
const SOURCES: &[&str] = &["etc/apt/sources.list", "etc/apt/sources.list.d"];
/// Keys and certificates of package archives and registries.
const TRUST: &[&str] = &[
    "etc/apt/trusted.gpg.d",
    "etc/apt/keyrings",
    "usr/share/keyrings",
    "usr/local/share/ca-certificates",
    "etc/ssl/certs",
];
/// Environment variables for access to registries.
const PROXIES: &[&str] = &[
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "CARGO_HTTP_CAINFO",
];

/// Makes the system and runs `./isthmus ARGUMENTS` in it, with its output on this terminal.
pub fn test(arguments: &[String]) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("--fresh makes a system with debootstrap: run it as root");
    }
    setup::install(&[Purpose::Fresh])?;
    let root = workspace::target().join("fresh");
    let tree = Tree { root: root.join("system"), caches: root.join("cache") };
    tree.remove()?;
    tree.make()?;
    tree.clone_project()?;
    let result = tree.run(arguments);
    tree.remove()?;
    result
}

struct Tree {
    root: PathBuf,
    caches: PathBuf,
}

impl Tree {
    /// Makes a Debian 12 of debootstrap's smallest variant, with certificates.
    fn make(&self) -> Result<()> {
        fs::create_dir_all(&self.root)?;
        let archives = self.caches.join("archives");
        fs::create_dir_all(&archives)?;
        let mut debootstrap = Command::new("debootstrap");
        debootstrap.args(["--variant=minbase", "--include=ca-certificates"]);
        debootstrap.arg(format!("--cache-dir={}", archives.display()));
        debootstrap.arg(SUITE).arg(&self.root).arg(mirror()?);
        command::run_quietly("making a Debian 12", &mut debootstrap)?;
        for path in SOURCES.iter().chain(TRUST) {
            self.copy(path)?;
        }
        // Only the settings for HTTP of this machine's apt.
        for entry in fs::read_dir("/etc/apt/apt.conf.d")? {
            let path = entry?.path();
            if fs::read_to_string(&path).is_ok_and(|text| text.contains("Acquire::http")) {
                self.copy(&path.to_string_lossy()[1..])?;
            }
        }
        // Name resolution.
        for path in ["etc/resolv.conf", "etc/hosts", "etc/nsswitch.conf"] {
            self.copy(path)?;
        }
        Ok(())
    }

    /// Copies a file or directory of this machine into the system, if it exists.
    fn copy(&self, path: &str) -> Result<()> {
        let (from, to) = (Path::new("/").join(path), self.root.join(path));
        if !from.exists() {
            return Ok(());
        }
        fs::create_dir_all(to.parent().context("a path has a parent")?)?;
        let mut copy = Command::new("cp");
        copy.arg("-rL").arg("--no-target-directory").arg(&from).arg(&to);
        // A dangling link is not copied, which does no harm.
        if let Err(error) = command::output(&mut copy) {
            eprintln!("{error:#}");
        }
        Ok(())
    }

    /// Clones the current commit.
    fn clone_project(&self) -> Result<()> {
        let place = self.root.join(PLACE.trim_start_matches('/'));
        let mut clone = Command::new("git");
        clone.args(["clone", "--quiet", "--no-hardlinks"]).arg(workspace::root()).arg(&place);
        command::run(&mut clone)?;
        let head = command::output(
            Command::new("git").current_dir(workspace::root()).args(["rev-parse", "HEAD"]),
        )?;
        let mut checkout = Command::new("git");
        checkout.current_dir(&place).args(["checkout", "--quiet", "--detach", head.trim()]);
        command::run(&mut checkout)
    }

    /// Runs the script in namespaces of its own. Downloaded packages and crates are kept for the next run.
    fn run(&self, arguments: &[String]) -> Result<()> {
        for (cache, _) in self.kept_directories() {
            fs::create_dir_all(cache)?;
        }
        let mut script = String::from("set -e\n");
        let root = command::quote(&self.root.to_string_lossy());
        for (kind, place) in [("proc", "proc"), ("sysfs", "sys"), ("tmpfs", "tmp")] {
            script.push_str(&format!("mount -t {kind} {kind} {root}/{place}\n"));
        }
        // This machine's devices: QEMU looks for /dev/kvm, and the console needs pseudo terminals.
        script.push_str(&format!("mount --rbind /dev {root}/dev\n"));
        for (cache, place) in self.kept_directories() {
            let cache = command::quote(&cache.to_string_lossy());
            script
                .push_str(&format!("mkdir -p {root}{place}\nmount --bind {cache} {root}{place}\n"));
        }
        let words: Vec<String> = arguments.iter().map(|word| command::quote(word)).collect();
        script.push_str(&format!(
            "exec chroot {root} /bin/bash -c {} bash {}\n",
            command::quote(&SCRIPT.replace("PLACE", PLACE)),
            words.join(" ")
        ));
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
        unshare.args(["sh", "-c", &script]).env_clear();
        unshare.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        unshare.env("HOME", "/root").env("LANG", "C.UTF-8");
        let kept = PROXIES.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        unshare.envs(kept);
        command::run(&mut unshare)
    }

    /// The directories that are kept for the next run, and their places in the system.
    fn kept_directories(&self) -> [(PathBuf, &'static str); 2] {
        [
            (self.caches.join("apt"), "/var/cache/apt/archives"),
            (self.caches.join("crates"), "/root/.cargo/registry"),
        ]
    }

    /// Removes the system of the last run. Nothing is mounted in it any more: the mounts ended with their namespace.
    fn remove(&self) -> Result<()> {
        match fs::remove_dir_all(&self.root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// The archive from which this machine's apt gets Debian 12.
fn mirror() -> Result<String> {
    let targets = command::output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(SITE)|$(REPO_URI)|$(CODENAME)|$(COMPONENT)",
    ]))?;
    let of = |line: &str| {
        let words: Vec<&str> = line.split('|').collect();
        let &[_, uri, codename, component] = words.as_slice() else { return None };
        (codename == SUITE && component == "main").then(|| uri.to_string())
    };
    targets.lines().find_map(of).context("apt has no archive of Debian 12: run apt-get update")
}
