//! Network boot: the boot ROM of QEMU's `e1000e` uses DHCP and fetches the image by TFTP (PXE) or HTTP. The machines
//! have no virtio device and no disk.
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, named_file};
use launch::qemu::{Boot, Firmware, Nic, NicModel, Spec};

/// The directory that `./isthmus image pxe` made.
fn served() -> Result<PathBuf> {
    named_file("ISTHMUS_PXE")
}

/// A machine whose server offers this file. UEFI needs more room than the appliance.
fn machine(firmware: Firmware, file: &str) -> Result<Spec> {
    let network = Boot::Network { directory: served()?, file: file.into() };
    let spec = Spec::new(network).firmware(firmware).memory(256);
    Ok(spec.nic_of(NicModel::E1000e, Nic::user()))
}

/// Checks that the image boots, gets its address from the same server, and drives the card.
fn serves(spec: Spec) -> Result<()> {
    let mut vm = boot(spec)?;
    vm.wait_for("10.0.2.15")?;
    let shown = vm.run("show interfaces --json")?.json()?;
    ensure!(shown[0]["link"] == "up" && shown[0]["dhcp_lease"] == true, "{shown:#}");
    vm.run("show devices")?.contains("e1000e")?.lacks("virtio")?;
    vm.run("ping 10.0.2.2 1")?.contains("1 of 1 answered")?;
    Ok(())
}

#[test]
fn uefi_boots_by_tftp() -> Result<()> {
    serves(machine(Firmware::Ovmf, "isthmus.efi")?)
}

#[test]
fn bios_boots_by_tftp() -> Result<()> {
    serves(machine(Firmware::Bios, "isthmus.0")?)
}

#[test]
fn uefi_boots_by_http() -> Result<()> {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = server.local_addr()?.port();
    let directory = served()?;
    let thread = std::thread::spawn(move || serve_one(&server, &directory));
    // 10.0.2.2 is the loopback address of the machine that QEMU runs on.
    serves(machine(Firmware::Ovmf, &format!("http://10.0.2.2:{port}/isthmus.efi"))?)?;
    let name = thread.join().map_err(|_| anyhow::anyhow!("the HTTP server panicked"))??;
    ensure!(name == "/isthmus.efi", "{name} was requested");
    Ok(())
}

/// Serves files of a directory until one was sent completely, and returns its name.
fn serve_one(server: &TcpListener, directory: &Path) -> Result<String> {
    loop {
        let (stream, _) = server.accept()?;
        if let Some(name) = answer(stream, directory)? {
            return Ok(name);
        }
    }
}

/// Answers one request. Returns the name of the file if it was sent completely.
fn answer(mut stream: TcpStream, directory: &Path) -> Result<Option<String>> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().context("an empty request")??;
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let mut words = first.split(' ');
    let (method, name) = (words.next(), words.next().unwrap_or_default().to_string());
    let Ok(mut file) = File::open(directory.join(name.trim_start_matches('/'))) else {
        write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
        return Ok(None);
    };
    let length = file.metadata()?.len();
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    if method != Some("GET") {
        return Ok(None);
    }
    Ok((std::io::copy(&mut file, &mut stream)? == length).then_some(name))
}
