//! The scenarios of `./isthmus bench ntrdma`, as a program: `bench-ntrdma SCENARIO COUNT` runs a scenario COUNT times.
//! The difference between two runs under callgrind is its cost. `bandwidth` and `latency` measure time with two
//! threads, and print two numbers: for NTRDMA and for bare memory.

mod fixture;
mod hardware;
mod native;
mod qperf;
mod storage;

use drivers::hal::{Instant, Window};
use fixture::Node;
use verbs::{Payload, Provider, RecvRequest, SendOperation, SendRequest, SendWith};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let count = arguments.get(2).and_then(|text| text.parse().ok()).unwrap_or(0);
    match arguments.get(1).map(String::as_str) {
        Some("send") => send(count),
        Some("read-ntrdma") => storage::over_ntrdma(count),
        Some("read-roce") => storage::over_roce(count),
        Some("read-ivshmem") => storage::over_ivshmem(count),
        Some("read-gen3") => hardware::reads(count),
        Some("write-covered") => hardware::long_writes(count, true),
        Some("write-elsewhere") => hardware::long_writes(count, false),
        Some("registers") => hardware::registers(count),
        Some("bandwidth") => native::bandwidth(count),
        Some("latency") => native::latency(count),
        Some("qperf") => qperf::measure(count),
        _ => eprintln!("bench-ntrdma SCENARIO COUNT; see ./isthmus bench ntrdma"),
    }
}

/// A signaled request.
fn request(id: u64, operation: SendOperation<'_>) -> SendRequest<'_> {
    SendRequest {
        id,
        operation,
        signaled: true,
        solicited: false,
        datagram: None,
        carries: None,
        ack_lazily: false,
    }
}

/// SENDs of 64 bytes, from the post to both completions.
fn send(count: u64) {
    let ([mut a, mut b], now) = fixture::connected();
    let (from, into): (Window, Window) = (a.memory(64), b.memory(64));
    for id in 0..count {
        b.ntrdma.post_recv(b.qp, &RecvRequest { id, into: &[into] }).expect("room");
        let payload = Payload::Windows(&[from]);
        let operation = SendOperation::Send { payload, with: SendWith::Nothing };
        a.ntrdma.post_send(a.qp, &request(id, operation)).expect("room");
        assert!(doorbell_to_completion(&mut a, &mut b, now));
    }
}

/// The work of both machines for a posted SEND: entry and doorbell, the peer's work, and both completions.
#[inline(never)]
fn doorbell_to_completion(a: &mut Node, b: &mut Node, now: Instant) -> bool {
    a.poll(now);
    b.poll(now);
    a.poll(now);
    a.ntrdma.poll_cq(a.cq).is_some() && b.ntrdma.poll_cq(b.cq).is_some()
}
