//! Captures for tshark with this project's dissector.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Link type of bare IPv4.
const RAW: u32 = 101;

/// A capture of UDP datagrams: source port, destination port, payload.
pub fn capture(datagrams: &[(u16, u16, Vec<u8>)]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, RAW] {
        file.extend(u32::to_le_bytes(word));
    }
    for (n, (from, to, payload)) in datagrams.iter().enumerate() {
        let length = 28 + payload.len();
        for word in [n, 0, length, length] {
            file.extend((word as u32).to_le_bytes());
        }
        file.extend([0x45, 0]);
        file.extend((length as u16).to_be_bytes());
        file.extend([0, 0, 0x40, 0, 8, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        for word in [*from, *to, (length - 20) as u16, 0] {
            file.extend(word.to_be_bytes());
        }
        file.extend(payload);
    }
    file
}

/// tshark's values of these fields, with these UDP ports and this layout: a line for each packet.
pub fn tshark(file: &Path, ports: &str, layout: &str, fields: &[&str]) -> Result<Vec<Vec<String>>> {
    let dissector =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../net/usnic/wireshark/usnic.lua");
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    let output = Command::new("tshark")
        .arg("-X")
        .arg(format!("lua_script:{}", dissector.display()))
        .args(["-o", &format!("usnic.ports:{ports}"), "-o", &format!("usnic.layout:{layout}")])
        .args(["-T", "fields", "-E", "separator=|", "-r"])
        .arg(file)
        .args(fields)
        .output()
        .context("tshark could not be started")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && !errors.contains("Lua:"), "tshark: {errors}");
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().map(|line| line.split('|').map(String::from).collect()).collect())
}
