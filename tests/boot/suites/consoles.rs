//! Consoles of machines without COM1: another serial port, a hypervisor's console, and output on the screen.
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, named_file, spec};
use launch::http;
use launch::qemu::{Boot, Firmware, Machine, Nic, Spec, Vm, free_port};
use serde_json::json;

/// Commands and replies pass, also long ones, without delay, and input wakes a halted machine.
fn works(mut vm: Vm) -> Result<()> {
    vm.run("show version --json")?.contains("commit")?;
    vm.run(&format!("set system.hostname {}", "n".repeat(60)))?.lacks("error")?;
    vm.run("show config")?.contains(&"n".repeat(60))?;
    for _ in 0..20 {
        let start = Instant::now();
        vm.run("show version")?.contains(env!("CARGO_PKG_VERSION"))?;
        ensure!(start.elapsed() < Duration::from_secs(5), "{:?} for a reply", start.elapsed());
    }
    vm.run("show log")?.contains("console: ")?.lacks("ERROR")?;
    Ok(())
}

/// The serial port in the firmware's SPCR table, as for a management controller's serial over LAN.
#[test]
fn the_serial_port_that_firmware_names_is_the_console() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let table = directory.path().join("spcr");
    // SPCR after the header: a 16550 at I/O port 0x3e8.
    let mut spcr = vec![0; 44];
    spcr[4..14].copy_from_slice(&[1, 8, 0, 1, 0xe8, 3, 0, 0, 0, 0]);
    std::fs::write(&table, spcr)?;
    let device = "isa-serial,chardev=serial0,iobase=0x3e8,irq=5";
    let other = "isa-serial,chardev=other,iobase=0x3f8,irq=4";
    let table = format!("sig=SPCR,data={}", table.display());
    let words = ["-chardev", "null,id=other", "-device", other, "-device", device, "-acpitable"];
    works(boot(spec()?.console_on([&words[..], &[&table]].concat()))?)
}

#[test]
fn the_second_serial_port_is_the_console_where_there_is_no_first() -> Result<()> {
    let device = "isa-serial,chardev=serial0,iobase=0x2f8,irq=3";
    works(boot(spec()?.console_on(["-device", device]))?)
}

#[test]
fn a_virtio_console_is_the_console_where_there_is_no_serial_port() -> Result<()> {
    for (machine, bus) in
        [(Machine::Q35, "pci"), (Machine::Pc, "pci"), (Machine::Microvm, "device")]
    {
        let controller = format!("virtio-serial-{bus}");
        let console = ["-device", &controller, "-device", "virtconsole,chardev=serial0"];
        let spec = spec()?.machine(machine).console_on(console);
        let spec = match machine {
            // microvm has a COM1 unless it is switched off.
            Machine::Microvm => spec.extra(["-machine", "isa-serial=off"]),
            _ => spec,
        };
        works(boot(spec)?)?;
    }
    Ok(())
}

/// A machine with only a screen and a network. The address is on the screen, and the appliance answers there.
#[test]
fn the_screen_of_uefi_shows_messages_and_the_address() -> Result<()> {
    let port = free_port()?;
    let iso = Spec::new(Boot::Iso(named_file("ISTHMUS_ISO")?)).firmware(Firmware::Ovmf);
    let nic = Nic::User { forwards: vec![("tcp", port, 80)] };
    let mut vm = iso.memory(512).nic(nic).console_on([""; 0]).extra(["-device", "VGA"]).start()?;
    let shown = until(&mut vm, "10.0.2.15", pixels)?;
    for wanted in ["ready", "net0: ", "console: no serial port", "isthmus>"] {
        ensure!(shown.contains(wanted), "{wanted:?} is not on the screen:\n{shown}");
    }
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    ensure!(http::get(server, "/healthz")?.status == 200, "the appliance does not answer");
    Ok(())
}

#[test]
fn the_screen_of_a_bios_shows_messages_and_the_address() -> Result<()> {
    let iso = Spec::new(Boot::Iso(named_file("ISTHMUS_ISO")?));
    let spec = iso.memory(256).nic(Nic::user()).console_on([""; 0]).extra(["-device", "VGA"]);
    let shown = until(&mut spec.start()?, "10.0.2.15", text_mode)?;
    ensure!(shown.contains("ready"), "{shown}");
    Ok(())
}

/// The screen shows the output of the serial port, with scrolling and wrapped lines.
#[test]
fn screen_scrolls_and_shows_the_last_lines() -> Result<()> {
    let iso = Spec::new(Boot::Iso(named_file("ISTHMUS_ISO")?)).firmware(Firmware::Ovmf);
    let mut vm = boot(iso.memory(512).extra(["-device", "VGA"]))?;
    for _ in 0..5 {
        vm.run("help")?;
    }
    let long = "x".repeat(300);
    vm.run(&format!("set system.{long} 1"))?;
    vm.run("show version")?;
    let shown = until(&mut vm, env!("CARGO_PKG_VERSION"), pixels)?;
    ensure!(shown.replace('\n', "").contains(&long), "{shown}");
    // Ctrl-L clears the screen.
    vm.serial.send(b"\x0c")?;
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let shown = pixels(&mut vm)?;
        if shown.trim() == "isthmus>" {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{shown}");
    }
}

/// Reads the screen until it shows `wanted`.
fn until(vm: &mut Vm, wanted: &str, look: fn(&mut Vm) -> Result<String>) -> Result<String> {
    let deadline = Instant::now() + Duration::from_secs(90);
    loop {
        let shown = look(vm)?;
        if shown.contains(wanted) {
            return Ok(shown);
        }
        ensure!(Instant::now() < deadline, "{wanted:?} is not on the screen:\n{shown}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Recognises the text on a graphical screen: characters of 8 by 16 pixels in the appliance's font.
fn pixels(vm: &mut Vm) -> Result<String> {
    let file = vm.directory().join("screen.ppm");
    vm.qmp.execute("screendump", json!({"filename": file}))?;
    let dump = std::fs::read(file)?;
    // Header lines: P6, width and height, 255.
    let mut lines = dump.splitn(4, |&byte| byte == b'\n');
    let mut header = || lines.next().and_then(|line| std::str::from_utf8(line).ok());
    ensure!(header() == Some("P6"), "no PPM");
    let size = header().and_then(|line| line.split_once(' ')).context("no size")?;
    let (width, height): (usize, usize) = (size.0.parse()?, size.1.parse()?);
    ensure!(header() == Some("255"), "not 8 bits");
    let pixels = lines.next().context("no pixels")?;
    let lit = |x: usize, y: usize| pixels.get(3 * (y * width + x)).is_some_and(|&red| red > 127);
    let font = font8x8::legacy::BASIC_LEGACY;
    let mut text = String::new();
    for row in 0..height / 16 {
        for column in 0..width / 8 {
            let line =
                |y: usize| (0..8).map(|x| u8::from(lit(8 * column + x, 16 * row + y)) << x).sum();
            let glyph: [u8; 8] = std::array::from_fn(|y| line(2 * y));
            let known = (0x20..0x7f).find(|&code| font[code] == glyph);
            text.push(known.map_or('\u{fffd}', |code| code as u8 as char));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    Ok(text)
}

/// Reads the text from the memory of a PC's text mode.
fn text_mode(vm: &mut Vm) -> Result<String> {
    let file = vm.directory().join("text");
    let arguments = json!({"val": 0xb_8000, "size": 80 * 25 * 2, "filename": file});
    vm.qmp.execute("pmemsave", arguments)?;
    let cells = std::fs::read(file)?;
    let rows = cells.chunks(160).map(|row| row.iter().step_by(2).map(|&c| c as char).collect());
    Ok(rows.collect::<Vec<String>>().join("\n"))
}
