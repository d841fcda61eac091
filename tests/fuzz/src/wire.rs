//! Parsers of wire formats. A parsed message can be displayed. Emitting and parsing it again yields the same message.

use crate::capture;
use roce::wire::bth::{self, Bth};
use roce::wire::cm::Message;
use roce::wire::extended::{Aeth, AtomicEth, Deth, Reth};
use roce::wire::frame::Frame;
use roce::wire::ip_cm::IpCm;
use roce::wire::mad::{self, Mad};
use rtrs::wire as rtrs;
use smcr::wire as smcr;
use storage::rnbd::wire as rnbd;

/// Parses a frame, down to the messages of the connection manager.
pub fn run(data: &[u8]) {
    let _ = net::classify(data);
    let Ok(frame) = Frame::parse(data) else { return };
    let _ = frame.to_string();
    let _ = (frame.gid_type(), frame.traffic_class());
    let transport = frame.transport();
    let Ok(header) = Bth::parse(transport) else { return };
    let _ = header.to_string();
    let mut again = [0; bth::LEN];
    header.emit(&mut again);
    assert_eq!(Bth::parse(&again), Ok(header));
    let rest = &transport[bth::LEN..];
    let _ = Reth::parse(rest).map(|it| it.to_string());
    let _ = AtomicEth::parse(rest).map(|it| it.to_string());
    let _ = Aeth::parse(rest).map(|it| it.to_string());
    let _ = Deth::parse(rest).map(|it| it.to_string());
    let Some(Ok((mad, data))) = rest.get(8..).map(Mad::parse) else { return };
    let _ = mad.to_string();
    let Ok(message) = Message::parse(mad.attribute, &data) else { return };
    let _ = message.to_string();
    let mut again = [0; mad::DATA_LEN];
    let attribute = message.emit(&mut again);
    assert_eq!(Message::parse(attribute, &again), Ok(message));
    if let Message::Req(req) = message {
        let _ = IpCm::parse(&req.private_data).map(|it| it.to_string());
    }
}

/// Captured frames.
pub fn corpus() -> Vec<Vec<u8>> {
    capture::frames()
}

/// Parses messages of RTRS, RNBD and SMC-R, without their transport.
pub fn messages(data: &[u8]) {
    let _ = rtrs::ConnectRequest::parse(data).map(|it| it.to_string());
    let _ = rtrs::ConnectResponse::parse(data).map(|it| it.to_string());
    let _ = rtrs::InfoRequest::parse(data).map(|it| it.to_string());
    let _ = rtrs::InfoResponse::parse(data).map(|it| it.to_string());
    let _ = rtrs::IoHeader::parse(data).map(|it| it.to_string());
    let _ = rtrs::RkeyResponse::parse(data).map(|it| it.to_string());
    if let Some(four) = data.first_chunk() {
        let _ = rtrs::Immediate::parse(u32::from_be_bytes(*four)).to_string();
    }
    let _ = rnbd::Request::parse(data).map(|it| it.to_string());
    let _ = rnbd::OpenResponse::parse(data);
    let _ = rnbd::SessionInfo::parse_response(data);
    let _ = smcr::Header::parse(data);
    let _ = smcr::Proposal::parse(data);
    let _ = smcr::AcceptConfirm::parse(data);
    let _ = smcr::Decline::parse(data);
    let _ = smcr::llc::Llc::parse(data);
    if let Some(message) = data.first_chunk() {
        let _ = smcr::cdc::Cdc::parse(message).map(|it| it.to_string());
    }
}

/// Payloads of captured frames, behind each set of headers.
pub fn message_corpus() -> Vec<Vec<u8>> {
    let payload = |frame: Vec<u8>| {
        [42 + 12, 42 + 16, 42 + 28, 42 + 20 + 24 + 140 + 36, 66]
            .map(|at| frame.get(at..).unwrap_or_default().to_vec())
    };
    capture::frames().into_iter().flat_map(payload).filter(|it| !it.is_empty()).collect()
}
