//! `./isthmus run`: boots the image in QEMU, checks that it is up, and connects its console to the terminal.

use std::fs::{self, File};
use std::io::{BufRead, IsTerminal};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use appliance::config::disk;
use drivers::driver::Class;
use drivers::hal::PciAddress;

use crate::build::{Families, Image};
use crate::passthrough::{self, Host};
use crate::qemu::{Disk, Machine, Nic, Program, Spec, Vm, accelerator, free_port};
use crate::{http, image, progress, terminal, workspace};

/// The gateway of QEMU's user networking, which answers pings.
const GATEWAY: &str = "10.0.2.2";

/// Size of the scratch disk in bytes.
const SCRATCH: u64 = 64 << 20;

/// Options of `./isthmus run`.
#[derive(Args)]
pub struct Options {
    /// QEMU's machine: pc, q35 or microvm
    #[arg(long, default_value = "q35", value_parser = machine)]
    machine: Machine,
    /// RAM in MiB
    #[arg(long, default_value_t = 128)]
    memory: u32,
    /// Number of CPUs
    #[arg(long, default_value_t = 1)]
    cpus: u32,
    /// A raw or qcow2 disk to attach instead of the scratch disk in target/run/
    #[arg(long)]
    disk: Option<PathBuf>,
    /// A configuration document to pass by fw_cfg
    #[arg(long)]
    config: Option<PathBuf>,
    /// Words for the kernel command line, such as isthmus.net.0.mtu=1400
    #[arg(long, default_value = "")]
    append: String,
    /// Do not try KVM
    #[arg(long)]
    tcg: bool,
    /// A tap device of this host instead of QEMU's user networking: the appliance joins the network of the tap device
    #[arg(long, value_name = "NAME")]
    tap: Option<String>,
    /// A PCI function of this host for the guest, such as 0000:03:00.0 (may be given several times); `./isthmus
    /// devices` lists them. An Ethernet function replaces QEMU's network, a drive replaces the scratch disk
    #[arg(long = "device", value_name = "ADDRESS", value_parser = passthrough::address)]
    devices: Vec<PciAddress>,
    /// Show the steps without performing them
    #[arg(long)]
    dry_run: bool,
    /// Boot this image, without building or installing anything
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Build the image for development (`./isthmus build --dev`)
    #[arg(long)]
    pub dev: bool,
    /// The families of the image, if it is built.
    #[command(flatten)]
    pub families: Families,
}

fn machine(name: &str) -> Result<Machine, String> {
    match name {
        "pc" => Ok(Machine::Pc),
        "q35" => Ok(Machine::Q35),
        "microvm" => Ok(Machine::Microvm),
        _ => Err("the machine must be pc, q35 or microvm".into()),
    }
}

/// The devices of QEMU that are replaced by devices of the host.
#[derive(Default)]
struct Replaced {
    /// QEMU's user network, by a tap device or an Ethernet function.
    port: bool,
    disk: bool,
}

/// Boots the image that `build` builds, or `options.image`. Returns when the guest powers off or the user leaves.
pub fn run(options: &Options, build: impl FnOnce() -> Result<Image>) -> Result<()> {
    let host = Host::here();
    let replaced = replaced(&host, options)?;
    if options.dry_run {
        passthrough::show(&host, &options.devices)?;
        let name = if options.dev { "isthmus-dev" } else { "isthmus" };
        let built = || workspace::target().join("isthmus").join(name).with_extension("elf");
        let elf = options.image.clone().unwrap_or_else(built);
        let ports = (free_port()?, free_port()?);
        println!("$ {}", spec(options, &elf, &replaced, ports)?.shown()?);
        return Ok(());
    }
    // Checked before the build, which takes minutes, and again after it.
    passthrough::agree(&host, &options.devices)?;
    let elf = match &options.image {
        Some(path) => path.clone(),
        None => build()?.elf,
    };
    let ports = (free_port()?, free_port()?);
    let mut spec = spec(options, &elf, &replaced, ports)?;
    if !options.tcg {
        spec = spec.accelerator(accelerator(&elf));
    }
    // Declared before the machine and so dropped after it: the devices are returned when the machine has ended.
    let _loan = match options.devices.as_slice() {
        [] => None,
        devices => Some(passthrough::borrow(&host, devices)?),
    };
    let mut vm = spec.start()?;
    eprintln!("$ {}", vm.command_line());
    let booting = progress::step("booting");
    let banner = vm.wait_ready()?;
    booting.done(&format!("ready after {:.2} s", vm.age().as_secs_f64()));
    for line in banner.lines().filter(|line| !line.is_empty() && !line.starts_with("isthmus> ")) {
        println!("{line}");
    }
    check_is_up(&mut vm, &replaced, ports)?;

    if std::io::stdin().is_terminal() {
        eprintln!("console: Ctrl-A x leaves (and ends QEMU), Ctrl-A Ctrl-A sends Ctrl-A");
        vm.serial.send(b"\r")?; // a fresh prompt
        terminal::attach(&mut vm.serial)?;
    } else {
        script(&mut vm)?;
    }
    if !vm.is_running() {
        eprintln!("QEMU ended with status {}", vm.wait_exit()?);
    }
    Ok(())
}

/// The devices that the functions replace. Fails if the machine or the image cannot use a function.
fn replaced(host: &Host, options: &Options) -> Result<Replaced> {
    let mut replaced = Replaced { port: options.tap.is_some(), disk: false };
    if options.devices.is_empty() {
        return Ok(replaced);
    }
    if options.machine == Machine::Microvm {
        bail!("microvm has no PCI: use --machine q35 or pc with --device");
    }
    for &device in &options.devices {
        let isthmus = host.function(device)?.isthmus;
        if let Some((driver, _)) = isthmus
            && options.image.is_none()
            && options.families.lack(driver)
        {
            bail!("{device}: the image lacks the driver {driver}: add --with {driver}");
        }
        match isthmus {
            Some((_, Class::Port)) => replaced.port = true,
            Some((_, Class::Disks)) => replaced.disk = true,
            _ => {}
        }
    }
    Ok(replaced)
}

/// The machine to start.
fn spec(options: &Options, elf: &Path, replaced: &Replaced, ports: (u16, u16)) -> Result<Spec> {
    let mut spec = Spec::kernel(elf)
        .append(&options.append)
        .machine(options.machine)
        .memory(options.memory)
        .cpus(options.cpus)
        .reboots();
    match &options.tap {
        Some(name) => {
            // Other machines on that network may also be QEMU's, with its default MAC address.
            let last =
                name.bytes().fold(0x80u8, |last, byte| last.wrapping_mul(31).wrapping_add(byte));
            spec = spec.nic(Nic::Tap { name: name.clone() }).first_mac(last);
        }
        None if replaced.port => {}
        None => {
            let forwards = vec![("tcp", ports.0, 80), ("tcp", ports.1, 443)];
            spec = spec.nic(Nic::User { forwards });
        }
    }
    match &options.disk {
        Some(path) => spec = spec.disk(Disk::new(path)),
        None if replaced.disk => {}
        None => spec = spec.disk(Disk::new(scratch_disk()?)),
    }
    spec = spec.disk(Disk::new(config_disk()?).serial(disk::SERIAL));
    // Named, so that the appliance reports it if it is missing.
    let named = format!("name=opt/isthmus/config-disk,string=serial:{}", disk::SERIAL);
    spec = spec.extra(["-fw_cfg", &named]);
    if let Some(path) = &options.config {
        let text = fs::read_to_string(path);
        spec = spec.config(&text.with_context(|| format!("could not read {}", path.display()))?);
    }
    if !options.devices.is_empty() {
        // QEMU runs as root, and the guest controls hardware.
        match Program::Installed.has_sandbox() {
            true => spec = spec.sandboxed(),
            false => {
                println!("warning: this QEMU has no seccomp: it runs as root without -sandbox")
            }
        }
    }
    Ok(options.devices.iter().fold(spec, |spec, device| spec.passed_through(&device.to_string())))
}

/// Checks that the appliance answers on its console, which works with any saved configuration of network and HTTP.
/// Prints whether HTTP answers.
fn check_is_up(vm: &mut Vm, replaced: &Replaced, (port, tls_port): (u16, u16)) -> Result<()> {
    let step = progress::step("checking that it is up");
    let version = vm.run("show version --json")?.json()?;
    if replaced.port {
        // The hosts on that network are not known here.
        step.print(vm.run("show interfaces")?.text.trim_end());
    } else {
        step.print(vm.run(&format!("ping {GATEWAY}"))?.text.trim_end());
    }
    if replaced.disk {
        step.print(vm.run("show disks")?.text.trim_end());
    }
    step.done(&format!(
        "the console answers: isthmus {}",
        version["version"].as_str().unwrap_or("?")
    ));
    if replaced.port {
        return Ok(());
    }
    let tls = vm.run("show tls --json")?.json()?;
    if let Some(fingerprint) = tls["sha256_fingerprint"].as_str() {
        println!("https://127.0.0.1:{tls_port}/metrics, certificate SHA-256 {fingerprint}");
        return Ok(());
    }
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match http::get(server, "/metrics") {
        Ok(metrics) if metrics.status == 200 => {
            let samples = metrics.body.lines().filter(|line| !line.starts_with('#')).count();
            println!("GET /metrics: {samples} samples");
            for path in ["metrics", "healthz", "readyz", "status"] {
                println!("http://{server}/{path}");
            }
        }
        Ok(metrics) => println!("GET /metrics: status {}", metrics.status),
        Err(_) => {
            println!(
                "HTTP on port 80 does not answer: check http.enabled, http.port and http.hosts in `show config`"
            );
        }
    }
    Ok(())
}

/// Runs the lines of standard input as console commands.
fn script(vm: &mut Vm) -> Result<()> {
    let mut wrong = 0;
    for line in std::io::stdin().lock().lines() {
        let line = line.context("could not read a command from standard input")?;
        println!("isthmus> {line}");
        match vm.run(&line) {
            Ok(reply) => {
                print!("{}", reply.text);
                wrong += usize::from(reply.text.lines().any(|line| line.starts_with("error: ")));
            }
            // `poweroff` has no next prompt; QEMU closes the console a little before it ends.
            Err(_) if vm.ends_within(Duration::from_secs(1)) => break,
            Err(error) => return Err(error),
        }
    }
    match wrong {
        0 => Ok(()),
        count => bail!("commands that failed: {count}"),
    }
}

/// The scratch disk, a sparse file that keeps its contents from run to run.
fn scratch_disk() -> Result<PathBuf> {
    let path = kept("disk.raw")?;
    if !path.exists() {
        let file = File::create(&path).and_then(|file| file.set_len(SCRATCH));
        file.with_context(|| format!("could not create {}", path.display()))?;
    }
    Ok(path)
}

/// The disk that `save` writes to, which keeps its contents from run to run.
fn config_disk() -> Result<PathBuf> {
    let path = kept("config-disk.raw")?;
    if !path.exists() {
        fs::write(&path, image::config_disk(None)?)
            .with_context(|| format!("could not create {}", path.display()))?;
    }
    Ok(path)
}

/// The path of a file that belongs to `./isthmus run`.
fn kept(name: &str) -> Result<PathBuf> {
    let directory = workspace::target().join("run");
    fs::create_dir_all(&directory)?;
    Ok(directory.join(name))
}
