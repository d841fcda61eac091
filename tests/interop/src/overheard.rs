//! What a capture of a wire tells of the connections that were made on it: their requests and replies.

use std::fs::File;
use std::path::Path;

use anyhow::Result;
use pcap_file::pcap::PcapReader;
use roce::wire::cm::{Message, Rep, Req};
use roce::wire::mad::{self, Mad};

use crate::packet::Packet;

/// A connection that was granted, in the words of both sides.
#[derive(Clone, Copy, Debug)]
pub struct Overheard {
    /// What was asked for, under the client's names.
    pub req: Req,
    /// What was granted, under the server's.
    pub rep: Rep,
}

/// The connections of a pcap file, over IPv4; of requests and replies that were repeated the first ones.
pub fn connections(capture: &Path) -> Result<Vec<Overheard>> {
    let mut reader = PcapReader::new(File::open(capture)?)?;
    let (mut asked, mut granted) = (Vec::<Req>::new(), Vec::<Overheard>::new());
    while let Some(frame) = reader.next_packet() {
        let frame = frame?;
        let Some(packet) = Packet::parse(&frame.data) else { continue };
        if packet.qpn != mad::GSI_QPN {
            continue;
        }
        // Behind the DETH.
        let Ok((header, data)) = Mad::parse(packet.body.get(8..).unwrap_or_default()) else {
            continue;
        };
        match Message::parse(header.attribute, &data) {
            Ok(Message::Req(req)) => asked.push(req),
            Ok(Message::Rep(rep)) => {
                let known = granted.iter().any(|one| one.rep.local_id == rep.local_id);
                let req = asked.iter().find(|req| req.local_id == rep.remote_id);
                if let (Some(&req), false) = (req, known) {
                    granted.push(Overheard { req, rep });
                }
            }
            _ => (),
        }
    }
    Ok(granted)
}
