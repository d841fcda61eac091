//! Binds functions of the host to vfio-pci, and returns them to their drivers however this program ends.
//!
//! A shell returns them, because this program may be killed. The shell waits until its standard input closes, which
//! happens when this program ends, also by Ctrl-C and SIGKILL. It is in a process group of its own, where a terminal's
//! Ctrl-C does not reach it.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use drivers::hal::PciAddress;

use super::host::{Function, Host, name};
use crate::command;

/// The driver that gives programs access to functions.
pub const VFIO: &str = "vfio-pci";
/// `vfio-pci`, and the module that maps memory for programs.
const MODULES: &[&str] = &[VFIO, "vfio_iommu_type1"];
/// Time limit for binding a driver, which Linux does at once.
const PATIENCE: Duration = Duration::from_secs(2);

/// The script of the shell: waits for the end of its input, and returns the functions. Its arguments are the directory
/// of the bus, and three for each function: its address, its former driver, and its former `driver_override`.
const GIVE_BACK: &str = r#"
trap '' HUP INT TERM
cat >/dev/null
bus=$1
shift
put() {
    echo "\$ echo $1 > $2" >&2
    echo "$1" >"$2"
}
driver() {
    [ ! -e "$bus/devices/$1/driver" ] || basename "$(readlink "$bus/devices/$1/driver")"
}
is_now() {
    tries=0
    until [ "$(driver "$1")" = "$2" ]; do
        [ $tries -lt 20 ] || return 1
        sleep 0.1
        tries=$((tries + 1))
    done
}
failed=0
while [ $# -gt 0 ]; do
    put "$3" "$bus/devices/$1/driver_override"
    if [ "$(driver "$1")" = vfio-pci ]; then
        put "$1" "$bus/devices/$1/driver/unbind"
        is_now "$1" ""
    fi
    if [ -n "$2" ] && [ -z "$(driver "$1")" ]; then
        put "$1" "$bus/drivers_probe"
    fi
    if ! is_now "$1" "$2"; then
        echo "isthmus: $1 was not bound to its former driver ${2:-(none)}: see dmesg" >&2
        failed=1
    fi
    shift 3
done
exit $failed
"#;

/// A step of binding a function.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// Loads modules with `modprobe`.
    Load(&'static [&'static str]),
    /// Writes a text to a file of sysfs.
    Write(String, std::path::PathBuf),
}

impl Step {
    fn shown(&self) -> String {
        match self {
            Step::Load(modules) => format!("modprobe -a {}", modules.join(" ")),
            Step::Write(text, path) => format!("echo {text} > {}", path.display()),
        }
    }

    fn carry_out(&self) -> Result<()> {
        match self {
            Step::Load(modules) => command::run(Command::new("modprobe").arg("-a").args(*modules)),
            Step::Write(text, path) => {
                eprintln!("$ {}", self.shown());
                fs::write(path, format!("{text}\n"))
                    .with_context(|| format!("the kernel refused `{}`", self.shown()))
            }
        }
    }
}

/// The steps that bind functions to vfio-pci, without functions that are bound already.
pub struct Plan<'a> {
    host: &'a Host,
    wanted: bool,
    functions: Vec<Function>,
}

impl<'a> Plan<'a> {
    /// Plans the binding of these functions.
    pub fn new(host: &'a Host, wanted: &[PciAddress]) -> Result<Plan<'a>> {
        let functions = wanted.iter().map(|&one| host.function(one)).collect::<Result<Vec<_>>>()?;
        let bound = |function: &Function| function.driver.as_deref() == Some(VFIO);
        let wanted = !functions.is_empty();
        Ok(Plan {
            host,
            wanted,
            functions: functions.into_iter().filter(|one| !bound(one)).collect(),
        })
    }

    fn load(&self) -> Option<Step> {
        let paths = ["sys/bus/pci/drivers/vfio-pci", "sys/module/vfio_iommu_type1"];
        let loaded = paths.iter().all(|path| self.host.path(path).exists());
        (!loaded && self.wanted).then_some(Step::Load(MODULES))
    }

    fn steps(&self, function: &Function) -> Vec<Step> {
        let (address, directory) =
            (function.address.to_string(), self.host.directory(function.address));
        let unbind = function.driver.is_some();
        let unbind = unbind.then(|| Step::Write(address.clone(), directory.join("driver/unbind")));
        [Step::Write(VFIO.into(), directory.join("driver_override"))]
            .into_iter()
            .chain(unbind)
            .chain([Step::Write(address, self.host.path("sys/bus/pci/drivers_probe"))])
            .collect()
    }

    /// Every step as a shell line: those that bind the functions, and those that return them.
    pub fn shown(&self) -> (Vec<String>, Vec<String>) {
        let take =
            self.load().into_iter().chain(self.functions.iter().flat_map(|one| self.steps(one)));
        let mut back = Vec::new();
        for function in &self.functions {
            let directory = self.host.directory(function.address);
            let address = function.address.to_string();
            let over = self.before(function);
            back.push(Step::Write(over, directory.join("driver_override")).shown());
            back.push(Step::Write(address.clone(), directory.join("driver/unbind")).shown());
            if function.driver.is_some() {
                back.push(
                    Step::Write(address, self.host.path("sys/bus/pci/drivers_probe")).shown(),
                );
            }
        }
        (take.map(|step| step.shown()).collect(), back)
    }

    /// The former `driver_override`. Writing an empty line clears it.
    fn before(&self, function: &Function) -> String {
        let path = self.host.directory(function.address).join("driver_override");
        let text = fs::read_to_string(path).unwrap_or_default();
        let text = text.trim();
        if text == "(null)" { String::new() } else { text.to_string() }
    }

    /// Binds the functions to vfio-pci, showing every step. They are returned when the loan is dropped, or when this
    /// process ends.
    pub fn carry_out(&self) -> Result<Loan> {
        if let Some(step) = self.load() {
            step.carry_out().context("without vfio-pci no device can be passed to a guest")?;
        }
        if self.functions.is_empty() {
            return Ok(Loan { shell: None });
        }
        let mut shell = Command::new("sh");
        shell.args(["-c", GIVE_BACK, "give-back"]).arg(self.host.path("sys/bus/pci"));
        for function in &self.functions {
            shell.arg(function.address.to_string());
            shell.arg(function.driver.as_deref().unwrap_or_default()).arg(self.before(function));
        }
        shell.stdin(Stdio::piped()).process_group(0);
        // Started before the first change, so that every change is undone.
        let shell = shell.spawn().context("could not start the shell that returns the devices")?;
        let loan = Loan { shell: Some(shell) };
        for function in &self.functions {
            for step in self.steps(function) {
                step.carry_out()?;
            }
            let link = self.host.directory(function.address).join("driver");
            wait_for(&link, VFIO)
                .with_context(|| format!("{} was not bound to vfio-pci", function.address))?;
        }
        Ok(loan)
    }
}

fn wait_for(link: &Path, driver: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = fs::read_link(link).map(|to| name(&to)).unwrap_or_default();
        if now == driver {
            return Ok(());
        }
        if Instant::now() > deadline {
            let now = if now.is_empty() { "none" } else { &now };
            bail!("its driver is {now} and not {driver}: see `dmesg`");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Functions that are bound to vfio-pci. Dropping the loan returns them to their drivers.
pub struct Loan {
    shell: Option<Child>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        let Some(shell) = &mut self.shell else { return };
        drop(shell.stdin.take());
        // The shell has printed its errors.
        let _ = shell.wait();
    }
}
