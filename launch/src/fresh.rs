//! `./isthmus test --fresh`: both commands of the README in a Debian 12 that has nothing but what the README names: the
//! demo, the demo again, then the tests. Prints the wall and CPU time of each, and packages that are gone afterwards, of
//! which there must be none.
//!
//! The system is made with debootstrap in `target/fresh`, anew each time, from where this machine's apt gets
//! its packages. The current commit is cloned into it, and the commands run there as root, in mount
//! and process namespaces of its own, with this machine's network: packages and crates are to be had as
//! here, and the tests themselves use the loopback interface alone. Packages and crates that were downloaded
//! are kept from one time to the next, as files; all else is made anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::setup::{self, Purpose};
use crate::{command, workspace};

const SUITE: &str = "bookworm";
/// Where the project is in the fresh system.
const PLACE: &str = "/home/operator/gateway";
/// What runs in it, with the words for the last command as arguments. `time` prints wall and CPU time.
const IN_IT: &str = r#"
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
/// Files that tell apt where packages come from.
const SOURCES: &[&str] = &["etc/apt/sources.list", "etc/apt/sources.list.d"];
/// What packages and registries are recognized by.
const TRUST: &[&str] = &[
    "etc/apt/trusted.gpg.d",
    "etc/apt/keyrings",
    "usr/share/keyrings",
    "usr/local/share/ca-certificates",
    "etc/ssl/certs",
];
/// Variables that tell how registries are reached.
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
        bail!("a fresh system is made with debootstrap, for which one must be root");
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
    /// A Debian 12 of what debootstrap takes for the least, and its certificates.
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
        // How this machine's apt gets through, and nothing else of its settings.
        for entry in fs::read_dir("/etc/apt/apt.conf.d")? {
            let path = entry?.path();
            if fs::read_to_string(&path).is_ok_and(|text| text.contains("Acquire::http")) {
                self.copy(&path.to_string_lossy()[1..])?;
            }
        }
        // How it finds names.
        for path in ["etc/resolv.conf", "etc/hosts", "etc/nsswitch.conf"] {
            self.copy(path)?;
        }
        Ok(())
    }

    /// Puts a file or directory of this machine's into the system, if there is one.
    fn copy(&self, path: &str) -> Result<()> {
        let (from, to) = (Path::new("/").join(path), self.root.join(path));
        if !from.exists() {
            return Ok(());
        }
        fs::create_dir_all(to.parent().context("a path has a parent")?)?;
        let mut copy = Command::new("cp");
        copy.arg("-rL").arg("--no-target-directory").arg(&from).arg(&to);
        // A link that leads nowhere is not copied, which is no loss.
        if let Err(error) = command::output(&mut copy) {
            eprintln!("{error:#}");
        }
        Ok(())
    }

    /// The current commit.
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

    /// Runs the command in namespaces of its own. Packages of apt and crates of cargo are kept from one time
    /// to the next, as downloaded files only.
    fn run(&self, arguments: &[String]) -> Result<()> {
        for (cache, _) in self.bound() {
            fs::create_dir_all(cache)?;
        }
        let mut script = String::from("set -e\n");
        let root = command::quote(&self.root.to_string_lossy());
        for (kind, place) in [("proc", "proc"), ("sysfs", "sys"), ("tmpfs", "tmp")] {
            script.push_str(&format!("mount -t {kind} {kind} {root}/{place}\n"));
        }
        // Devices of this machine: QEMU looks for /dev/kvm, pseudo terminals are the console's.
        script.push_str(&format!("mount --rbind /dev {root}/dev\n"));
        for (cache, place) in self.bound() {
            let cache = command::quote(&cache.to_string_lossy());
            script
                .push_str(&format!("mkdir -p {root}{place}\nmount --bind {cache} {root}{place}\n"));
        }
        let words: Vec<String> = arguments.iter().map(|word| command::quote(word)).collect();
        script.push_str(&format!(
            "exec chroot {root} /bin/bash -c {} bash {}\n",
            command::quote(&IN_IT.replace("PLACE", PLACE)),
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

    /// What is kept of one time for the next, and where it is in the system.
    fn bound(&self) -> [(PathBuf, &'static str); 2] {
        [
            (self.caches.join("apt"), "/var/cache/apt/archives"),
            (self.caches.join("crates"), "/root/.cargo/registry"),
        ]
    }

    /// Removes what is left of the last time. Nothing is mounted there any more: what was, was so in a
    /// namespace that has ended.
    fn remove(&self) -> Result<()> {
        match fs::remove_dir_all(&self.root) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

/// Where this machine's apt gets Debian 12 from.
fn mirror() -> Result<String> {
    let said = command::output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(SITE)|$(REPO_URI)|$(CODENAME)|$(COMPONENT)",
    ]))?;
    let of = |line: &str| {
        let words: Vec<&str> = line.split('|').collect();
        let &[_, uri, codename, component] = words.as_slice() else { return None };
        (codename == SUITE && component == "main").then(|| uri.to_string())
    };
    said.lines().find_map(of).context("apt knows no archive of Debian 12 (run apt-get update)")
}
