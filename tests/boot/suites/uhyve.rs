//! The image for uhyve: on a model of uhyve, in a QEMU machine that is set up like a uhyve machine, and in uhyve itself
//! if KVM works.

mod real;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use boot_tests::named_file;
use boot_tests::peer::Peer;
use launch::uhyve::{Machine, Pretended};

const APPLIANCE: &str = "10.9.0.1";
const APPLIANCE_6: &str = "fd09::1";
/// The prompt, which shows that the console is ready.
const READY: &str = "isthmus> ";

/// Starts a machine at 10.9.0.1 and fd09::1, configured by its arguments or by a mapped file, and a peer on its
/// network.
fn pair(machine: Machine, config: Option<&str>) -> Result<(Pretended, Peer)> {
    let peer = Peer::new(&["10.9.0.2/24", "fd09::2/64"])?;
    let image = named_file("ISTHMUS_UHYVE")?;
    let models = named_file("ISTHMUS_MODELS")?;
    let mut machine = Pretended::start(&image, &models, &machine, &peer.nic(), config)?;
    machine.wait_for(READY)?;
    Ok((machine, peer))
}

fn arguments(words: &[&str]) -> Machine {
    Machine { arguments: words.iter().map(|word| word.to_string()).collect(), ..Machine::default() }
}

fn addresses() -> String {
    format!("isthmus.net.0.address={APPLIANCE}/24,{APPLIANCE_6}/64")
}

/// Sends an HTTP request, and waits for a text in the reply.
fn http(peer: &mut Peer, request: &str, wanted: &str) -> Result<()> {
    let server: SocketAddr = format!("{APPLIANCE}:80").parse()?;
    peer.request(1, server, request.as_bytes(), wanted.as_bytes())?;
    Ok(())
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {APPLIANCE}\r\n\r\n")
}

/// Checks that the uhyve model reports no fault of the image, and still runs.
fn reports_no_fault(machine: &Pretended) -> Result<()> {
    let output = machine.output();
    ensure!(!output.contains("uhyve complains"), "{output}");
    ensure!(!output.contains("uhyve ends"), "{output}");
    Ok(())
}

#[test]
fn image_boots_and_is_reached_over_the_network() -> Result<()> {
    let (mut machine, mut peer) = pair(arguments(&["--", &addresses()]), None)?;
    for (address, length) in [(APPLIANCE, 0), (APPLIANCE, 1400), (APPLIANCE_6, 64)] {
        peer.ping(address, length)?;
    }
    http(&mut peer, &get("/healthz"), "200 OK")?;
    http(&mut peer, &get("/status"), "\"boot\":\"uhyve\"")?;
    // The MTU avoids truncated frames, and the MAC address differs from the TAP device's.
    http(&mut peer, &get("/api/interfaces"), "5e:11:a2:33:44:55")?;
    http(&mut peer, &get("/api/interfaces"), "1486")?;
    // The device's interrupt wakes a halted loop. Otherwise its timer would, a quarter of a second later.
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(300));
        let took = peer.ping(APPLIANCE, 64)?;
        ensure!(took < Duration::from_millis(100), "a ping was answered after {took:?}");
    }
    let counters = machine.counters()?;
    ensure!(counters.contains("cut 0\n"), "{counters}");
    ensure!(!counters.contains("interrupts 0\n"), "{counters}");
    reports_no_fault(&machine)
}

#[test]
fn mapped_file_configures_the_image() -> Result<()> {
    let config = format!(
        "[system]\nhostname = \"strait\"\n[[net]]\naddress = [\"{APPLIANCE}/24\", \"{APPLIANCE_6}/64\"]\n"
    );
    let (machine, mut peer) = pair(Machine::default(), Some(&config))?;
    peer.ping(APPLIANCE, 64)?;
    http(&mut peer, &get("/status"), "strait")?;
    reports_no_fault(&machine)
}

#[test]
fn unreadable_configuration_file_is_reported() -> Result<()> {
    let config = format!("# {}\n[system]\nhostname = \"strait\"\n", "x".repeat(70_000));
    let (machine, mut peer) = pair(arguments(&[&addresses()]), Some(&config))?;
    peer.ping(APPLIANCE, 64)?;
    let output = machine.output();
    ensure!(output.contains("/isthmus.toml: the file has more than 65536 bytes"), "{output}");
    ensure!(output.contains("/isthmus.toml line 1"), "{output}");
    reports_no_fault(&machine)
}

#[test]
fn all_processors_come_up() -> Result<()> {
    let machine = Machine { processors: 3, memory: 128 << 20, ..arguments(&[&addresses()]) };
    let (machine, mut peer) = pair(machine, None)?;
    peer.ping(APPLIANCE, 64)?;
    http(&mut peer, &get("/status"), "\"cpus\":3")?;
    reports_no_fault(&machine)
}

#[test]
fn too_little_memory_is_reported() -> Result<()> {
    let peer = Peer::new(&["10.9.0.2/24"])?;
    let (image, models) = (named_file("ISTHMUS_UHYVE")?, named_file("ISTHMUS_MODELS")?);
    let machine = Machine { memory: 16 << 20, ..Machine::default() };
    let mut machine = Pretended::start(&image, &models, &machine, &peer.nic(), None)?;
    let output = machine.wait_for("uhyve ends: code 2")?;
    ensure!(output.contains("not enough memory"), "{output}");
    Ok(())
}

/// How long the real uhyve may take to print an expected text.
const PATIENCE: Duration = Duration::from_secs(30);
