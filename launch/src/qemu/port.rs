//! Ports of 127.0.0.1 for QEMU to forward.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

/// Below what Linux gives to who asks for any port (`net.ipv4.ip_local_port_range`, from 32768): nobody gets
/// one of these by chance between the moment it is handed out and QEMU's taking it.
const PORTS: Range<u32> = 16384..32768;

/// A port of 127.0.0.1 that is free for TCP and UDP, and that this process was not given before: several that
/// are asked for before the first is used are different ones.
pub fn free_port() -> Result<u16> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let count = PORTS.end - PORTS.start;
    // Processes side by side begin at different places.
    let first = std::process::id().wrapping_mul(251);
    (0..count)
        .map(|_| first.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % count + PORTS.start)
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
    fn no_port_is_given_twice() {
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
    fn a_port_in_use_is_passed_over() {
        let port = free_port().unwrap();
        assert!(is_free(port));
        let held = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        assert!(!is_free(port));
        drop(held);
        let _held = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        assert!(!is_free(port));
    }
}
