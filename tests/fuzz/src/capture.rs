//! Captures of stock Linux peers (kernel 6.12): rnbd over rdma_rxe, and AF_SMC.

/// Frames of both captures.
pub fn frames() -> Vec<Vec<u8>> {
    let files: [&[u8]; 2] =
        [include_bytes!("../data/rnbd.pcap"), include_bytes!("../data/smc.pcap")];
    files.iter().flat_map(|file| read(file)).collect()
}

/// The frames of a pcap file (little-endian, Ethernet).
fn read(file: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = &file[24..];
    let mut all = Vec::new();
    while let Some(header) = rest.get(..16) {
        let len = u32::from_le_bytes(header[8..12].try_into().expect("4 bytes")) as usize;
        all.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    all
}
