//! Downloads the appliance's packet captures, and reads them with independent programs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pcap_file::pcapng::{Block, PcapNgReader};

/// A frame of a capture.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Number of the appliance's port.
    pub port: u32,
    /// Content.
    pub bytes: Vec<u8>,
}

/// The HTTP token that captures are downloaded with.
pub const TOKEN: &str = "test-token";
/// The console command that sets [`TOKEN`].
pub const SET_TOKEN: &str = "set http.token_sha256 \
    4c5dc9b7708905f77f5e5d16316b5dfb425e68cb326dcd55a860e90a7707031e";

/// Downloads `/capture.pcapng` from the appliance's HTTP server at `server`.
pub fn download(server: SocketAddr) -> Result<Vec<u8>> {
    let limit = Duration::from_secs(60);
    let mut connection = TcpStream::connect_timeout(&server, limit)?;
    connection.set_read_timeout(Some(limit))?;
    // HTTP/1.0: the end of the file is the end of the connection.
    let head = format!("Host: {server}\r\nAuthorization: Bearer {TOKEN}\r\n");
    connection.write_all(format!("GET /capture.pcapng HTTP/1.0\r\n{head}\r\n").as_bytes())?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("no HTTP answer")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    ensure!(head.contains(" 200 "), "the appliance answers {head}");
    Ok(answer.split_off(end + 4))
}

/// The frames of a pcapng file.
pub fn frames(file: &[u8]) -> Result<Vec<Frame>> {
    let mut reader = PcapNgReader::new(file)?;
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block? {
            frames.push(Frame { port: packet.interface_id, bytes: packet.data.into_owned() });
        }
    }
    Ok(frames)
}

/// The frames of the file that match a display filter of tshark: number, length and summary of each.
pub fn tshark(file: &Path, filter: &str) -> Result<Vec<String>> {
    let mut tshark = Command::new("tshark");
    // The dissector mistakes some data for RPC over RDMA, and then reports it as malformed.
    tshark.args(["--disable-protocol", "rpcordma"]);
    tshark.args(["-n", "-T", "fields", "-e", "frame.number", "-e", "frame.len"]);
    tshark.args(["-e", "_ws.col.Info", "-Y", filter, "-r"]).arg(file);
    let output = tshark.output().context("tshark (./isthmus setup)")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "tshark, {filter}: {errors}");
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_string).collect())
}
