//! Extracts the connection setups, REQ and REP, from a capture of a wire.

use std::fs::File;
use std::path::Path;

use anyhow::Result;
use pcap_file::pcap::PcapReader;
use roce::wire::cm::{Message, Rep, Req};
use roce::wire::mad::{self, Mad};

use crate::packet::Packet;

/// The setup of an accepted connection.
#[derive(Clone, Copy, Debug)]
pub struct Overheard {
    /// The client's REQ.
    pub req: Req,
    /// The server's REP.
    pub rep: Rep,
}

/// The accepted connections of a pcap file, over IPv4 only. Retransmitted messages are ignored.
pub fn connections(capture: &Path) -> Result<Vec<Overheard>> {
    let mut reader = PcapReader::new(File::open(capture)?)?;
    let (mut requests, mut accepted) = (Vec::<Req>::new(), Vec::<Overheard>::new());
    while let Some(frame) = reader.next_packet() {
        let frame = frame?;
        let Some(packet) = Packet::parse(&frame.data) else { continue };
        if packet.qpn != mad::GSI_QPN {
            continue;
        }
        // The MAD follows the DETH.
        let Ok((header, data)) = Mad::parse(packet.body.get(8..).unwrap_or_default()) else {
            continue;
        };
        match Message::parse(header.attribute, &data) {
            Ok(Message::Req(req)) => requests.push(req),
            Ok(Message::Rep(rep)) => {
                let known = accepted.iter().any(|one| one.rep.local_id == rep.local_id);
                let req = requests.iter().find(|req| req.local_id == rep.remote_id);
                if let (Some(&req), false) = (req, known) {
                    accepted.push(Overheard { req, rep });
                }
            }
            _ => (),
        }
    }
    Ok(accepted)
}
