//! `./isthmus run`: boots the image in QEMU, proves that it is up, and gives its console to the terminal.

use std::fs::{self, File};
use std::io::{BufRead, IsTerminal};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use appliance::config::disk;
use drivers::hal::PciAddress;
use drivers::registry::Class;

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
    /// A tap device of this host instead of QEMU's user networking: the appliance is on the network that it leads to
    #[arg(long, value_name = "NAME")]
    tap: Option<String>,
    /// A PCI function of this host for the guest, such as 0000:03:00.0 (several: once for each); `./isthmus devices`
    /// lists them. An Ethernet function is instead of QEMU's network, a drive instead of the scratch disk
    #[arg(long = "device", value_name = "ADDRESS", value_parser = passthrough::address)]
    devices: Vec<PciAddress>,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Boot this image: nothing is built or installed
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Build the image for development (`./isthmus build --dev`)
    #[arg(long)]
    pub dev: bool,
    /// What the image is to have, if it is built.
    #[command(flatten)]
    pub families: Families,
}

fn machine(name: &str) -> Result<Machine, String> {
    match name {
        "pc" => Ok(Machine::Pc),
        "q35" => Ok(Machine::Q35),
        "microvm" => Ok(Machine::Microvm),
        _ => Err("the machines are pc, q35 and microvm".into()),
    }
}

/// What the guest has of the host's devices.
#[derive(Default)]
struct Given {
    /// A network that is not QEMU's.
    port: bool,
    disk: bool,
}

/// Boots the image that `build` builds, or one that is named, and stays until the guest powers off or the user leaves.
pub fn run(options: &Options, build: impl FnOnce() -> Result<Image>) -> Result<()> {
    let host = Host::here();
    let given = given(&host, options)?;
    if options.dry_run {
        passthrough::show(&host, &options.devices)?;
        let name = if options.dev { "isthmus-dev" } else { "isthmus" };
        let built = || workspace::target().join("isthmus").join(name).with_extension("elf");
        let elf = options.image.clone().unwrap_or_else(built);
        let ports = (free_port()?, free_port()?);
        println!("$ {}", spec(options, &elf, &given, ports)?.shown()?);
        return Ok(());
    }
    // Before minutes of building, and once more when it is done.
    passthrough::agree(&host, &options.devices)?;
    let elf = match &options.image {
        Some(path) => path.clone(),
        None => build()?.elf,
    };
    let ports = (free_port()?, free_port()?);
    let mut spec = spec(options, &elf, &given, ports)?;
    if !options.tcg {
        spec = spec.accelerator(accelerator(&elf));
    }
    // Given back when the machine has ended: what is declared last is dropped first.
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
    prove(&mut vm, &given, ports)?;

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

/// What the functions are that the guest is to have. Refuses what cannot have them.
fn given(host: &Host, options: &Options) -> Result<Given> {
    let mut given = Given { port: options.tap.is_some(), disk: false };
    if options.devices.is_empty() {
        return Ok(given);
    }
    if options.machine == Machine::Microvm {
        bail!("microvm has no PCI: devices are for --machine q35 and pc");
    }
    for &device in &options.devices {
        let isthmus = host.function(device)?.isthmus;
        if let Some((driver, _)) = isthmus
            && options.image.is_none()
            && options.families.lack(driver)
        {
            bail!(
                "{device}: its driver, {driver}, is in images with this family only: --with {driver}"
            );
        }
        match isthmus {
            Some((_, Class::Port)) => given.port = true,
            Some((_, Class::Disks)) => given.disk = true,
            _ => {}
        }
    }
    Ok(given)
}

/// The machine.
fn spec(options: &Options, elf: &Path, given: &Given, ports: (u16, u16)) -> Result<Spec> {
    let mut spec = Spec::kernel(elf)
        .append(&options.append)
        .machine(options.machine)
        .memory(options.memory)
        .cpus(options.cpus)
        .reboots();
    match &options.tap {
        Some(name) => {
            // Others on that network may be QEMU's as well, and have its usual address.
            let last =
                name.bytes().fold(0x80u8, |last, byte| last.wrapping_mul(31).wrapping_add(byte));
            spec = spec.nic(Nic::Tap { name: name.clone() }).first_mac(last);
        }
        None if given.port => {}
        None => {
            let forwards = vec![("tcp", ports.0, 80), ("tcp", ports.1, 443)];
            spec = spec.nic(Nic::User { forwards });
        }
    }
    match &options.disk {
        Some(path) => spec = spec.disk(Disk::new(path)),
        None if given.disk => {}
        None => spec = spec.disk(Disk::new(scratch_disk()?)),
    }
    spec = spec.disk(Disk::new(config_disk()?).serial(disk::SERIAL));
    // Named, it is missed if it is not there.
    let named = format!("name=opt/isthmus/config-disk,string=serial:{}", disk::SERIAL);
    spec = spec.extra(["-fw_cfg", &named]);
    if let Some(path) = &options.config {
        let text = fs::read_to_string(path);
        spec = spec.config(&text.with_context(|| format!("could not read {}", path.display()))?);
    }
    if !options.devices.is_empty() {
        // It runs as root, and the guest has what hardware can do.
        match Program::Installed.has_sandbox() {
            true => spec = spec.sandboxed(),
            false => println!(
                "This QEMU has no filter of system calls (seccomp): it runs as root without -sandbox."
            ),
        }
    }
    Ok(options.devices.iter().fold(spec, |spec, device| spec.passed_through(&device.to_string())))
}

/// Shows that the appliance answers, by its console: whatever was saved of its network and of HTTP, its console
/// is there to mend it. What does not answer beside that is said.
fn prove(vm: &mut Vm, given: &Given, (port, tls_port): (u16, u16)) -> Result<()> {
    let step = progress::step("proving that it is up");
    let version = vm.run("show version --json")?.json()?;
    if given.port {
        // What is on that network is not known here.
        step.print(vm.run("show interfaces")?.text.trim_end());
    } else {
        step.print(vm.run(&format!("ping {GATEWAY}"))?.text.trim_end());
    }
    if given.disk {
        step.print(vm.run("show disks")?.text.trim_end());
    }
    step.done(&format!(
        "the console answers: isthmus {}",
        version["version"].as_str().unwrap_or("?")
    ));
    if given.port {
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
        Ok(metrics) => println!("/metrics answers with status {}", metrics.status),
        Err(_) => {
            println!(
                "HTTP on port 80 does not answer: `show config` has http.enabled, http.port, http.hosts"
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
        count => bail!("commands that were refused: {count}"),
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

/// The disk that `save` writes to, kept from run to run as well.
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
