//! Servers for the image: those of Debian, as processes, and a name server of the test.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};

/// A stock server. It ends with this value.
pub struct Stock(Child);

impl Stock {
    pub fn start(program: &str, arguments: &[&str]) -> Result<Stock> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Stock(command.spawn().with_context(|| format!("could not start {program}"))?))
    }
}

impl Drop for Stock {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the name server does.
#[derive(Clone, Copy)]
pub enum Act {
    /// Gives every name this address, for a second.
    Answer(IpAddr),
    /// Sends forged answers first, which give 10.6.6.6, and then a good one, which gives 10.1.0.1.
    Forge,
}

/// A name server on loopback.
pub struct Liar {
    pub port: u16,
    act: Arc<Mutex<Act>>,
}

impl Liar {
    pub fn start(act: Act) -> Result<Liar> {
        let socket = UdpSocket::bind(("127.0.0.1", 0))?;
        let port = socket.local_addr()?.port();
        let act = Arc::new(Mutex::new(act));
        let shared = act.clone();
        std::thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut query) {
                let act = *shared.lock().expect("no panic holds it");
                let _ = reply(&socket, act, &query[..length], from);
            }
        });
        Ok(Liar { port, act })
    }

    pub fn set(&self, act: Act) {
        *self.act.lock().expect("no panic holds it") = act;
    }
}

fn reply(socket: &UdpSocket, act: Act, query: &[u8], to: SocketAddr) -> Result<()> {
    match act {
        Act::Answer(address) => {
            socket.send_to(&answer(query, address), to)?;
        }
        Act::Forge => {
            let forged = answer(query, "10.6.6.6".parse()?);
            let changed = |at: usize, by: u8| {
                let mut bytes = forged.clone();
                bytes[at] ^= by;
                bytes
            };
            for bytes in [changed(0, 1), changed(13, 1), changed(2, 0x80)] {
                socket.send_to(&bytes, to)?;
            }
            UdpSocket::bind(("127.0.0.1", 0))?.send_to(&forged, to)?;
            std::thread::sleep(Duration::from_millis(50));
            socket.send_to(&answer(query, "10.1.0.1".parse()?), to)?;
        }
    }
    Ok(())
}

/// An answer with this address if the query asks for its family, else without any.
fn answer(query: &[u8], address: IpAddr) -> Vec<u8> {
    let mut bytes = query.to_vec();
    (bytes[2], bytes[3]) = (0x81, 0x80);
    let (kind, data) = match address {
        IpAddr::V4(ip) => (1, ip.octets().to_vec()),
        IpAddr::V6(ip) => (28, ip.octets().to_vec()),
    };
    if query[query.len() - 3] == kind {
        bytes[7] = 1;
        bytes.extend([0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 1, 0, data.len() as u8]);
        bytes.extend(data);
    }
    bytes
}
