//! Ports of 127.0.0.1 for QEMU to forward.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// Below Linux's ephemeral ports (`net.ipv4.ip_local_port_range`, from 32768), so that Linux assigns none of these
/// to another program before QEMU binds it.
const PORTS: Range<u32> = 16384..32768;

/// A port of 127.0.0.1 that is free for TCP and UDP. This process gets no port twice, so that ports requested
/// before the first is bound differ.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let count = PORTS.end - PORTS.start;
    // Concurrent processes start at different ports.
    let first = std::process::id().wrapping_mul(251);
    (0..count)
        .map(|_| first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % count + PORTS.start)
        .map(|port| port as u16)
        .find(|&port| is_free(port))
        .with_context(|| format!("no port of 127.0.0.1 from {PORTS:?} is free"))
}

fn is_free(port: u16) -> bool {
    let address = (Ipv4Addr::LOCALHOST, port);
    TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_port_returns_no_port_twice() {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| (0..200).map(|_| free_port().unwrap()).collect::<Vec<_>>())
            })
            .collect();
        let mut ports: Vec<u16> =
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 800);
    }

    #[test]
    fn port_in_use_is_not_free() {
        let port = free_port().unwrap();
        assert!(is_free(port));
        let held = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        assert!(!is_free(port));
        drop(held);
        let _held = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        assert!(!is_free(port));
    }
}
