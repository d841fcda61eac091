//! Captures for tshark.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Link type of bare IPv4 and IPv6.
pub const RAW: u32 = 101;
/// Link type for `net/linx/wireshark/riocm.lua`.
pub const USER0: u32 = 147;

/// A capture of these packets, one per second.
pub fn pcap(link_type: u32, packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, link_type] {
        file.extend(u32::to_le_bytes(word));
    }
    for (n, packet) in packets.iter().enumerate() {
        for word in [n, 0, packet.len(), packet.len()] {
            file.extend((word as u32).to_le_bytes());
        }
        file.extend(packet);
    }
    file
}

/// An IPv4 packet with a TCP segment. Each end has an address, a port and a sequence number.
pub fn segment(from: (u8, u16, u32), to: (u8, u16, u32), payload: &[u8]) -> Vec<u8> {
    let length = 40 + payload.len() as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(length.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, from.0, 10, 0, 0, to.0]);
    packet.extend(from.1.to_be_bytes());
    packet.extend(to.1.to_be_bytes());
    packet.extend(from.2.to_be_bytes());
    packet.extend(to.2.to_be_bytes());
    packet.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    packet.extend(payload);
    packet
}

/// tshark's values of these fields, a line for each packet.
pub fn tshark(file: &[u8], options: &[&str], fields: &[&str]) -> Result<Vec<Vec<String>>> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("capture.pcap");
    std::fs::write(&path, file)?;
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    let output = Command::new("tshark")
        .args(options)
        .args(["-T", "fields", "-E", "separator=|", "-r"])
        .arg(&path as &Path)
        .args(fields)
        .output()
        .context("tshark could not be started")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && !errors.contains("Lua:"), "tshark: {errors}");
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().map(|line| line.split('|').map(String::from).collect()).collect())
}
