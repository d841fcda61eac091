//! Servers for the image: those of Debian, as processes, relays that are slow or change what passes, and a name server of
//! the test.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// A stock server. It ends with this value.
pub struct Stock(Child);

impl Stock {
    pub fn start(program: &str, arguments: &[&str]) -> Result<Stock> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Stock(command.spawn().with_context(|| format!("could not start {program}"))?))
    }
}

impl Stock {
    /// Stops the process, so that it is silent, or lets it go on.
    pub fn set_silent(&self, silent: bool) -> Result<()> {
        let signal = if silent { "-STOP" } else { "-CONT" };
        let pid = self.0.id().to_string();
        let done = Command::new("kill").args([signal, pid.as_str()]).status()?;
        ensure!(done.success(), "kill {signal} {pid}");
        Ok(())
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

/// Passes datagrams on to a server, and its answers back late and changed. Returns its port.
pub fn relay_datagrams(server: u16, delay: Duration, change: fn(&mut Vec<u8>)) -> Result<u16> {
    let front = UdpSocket::bind(("127.0.0.1", 0))?;
    let port = front.local_addr()?.port();
    std::thread::spawn(move || {
        let mut query = [0; 1500];
        while let Ok((length, from)) = front.recv_from(&mut query) {
            let (Ok(front), query) = (front.try_clone(), query[..length].to_vec()) else { return };
            std::thread::spawn(move || pass_on(&front, &query, from, server, delay, change));
        }
    });
    Ok(port)
}

fn pass_on(
    front: &UdpSocket,
    query: &[u8],
    from: SocketAddr,
    server: u16,
    delay: Duration,
    change: fn(&mut Vec<u8>),
) -> Result<()> {
    let back = UdpSocket::bind(("127.0.0.1", 0))?;
    back.set_read_timeout(Some(Duration::from_secs(5)))?;
    back.send_to(query, ("127.0.0.1", server))?;
    let mut answer = [0; 1500];
    let length = back.recv(&mut answer)?;
    let mut answer = answer[..length].to_vec();
    change(&mut answer);
    std::thread::sleep(delay);
    front.send_to(&answer, from)?;
    Ok(())
}

/// How a relay passes a stream on.
#[derive(Clone, Copy)]
pub enum Pace {
    /// 64 bytes each 20 ms.
    Slow,
    /// Closes each connection after this many bytes.
    Ends(usize),
}

/// Passes streams on to a server. Returns its port.
pub fn relay_streams(server: u16, pace: Pace) -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            std::thread::spawn(move || pass_stream(client, server, pace));
        }
    });
    Ok(port)
}

fn pass_stream(mut client: TcpStream, server: u16, pace: Pace) -> Result<()> {
    let mut back = TcpStream::connect(("127.0.0.1", server))?;
    let mut passed = 0;
    loop {
        let most = match pace {
            Pace::Slow => 64,
            Pace::Ends(most) => most - passed,
        };
        let mut piece = vec![0; most];
        let length = client.read(&mut piece)?;
        back.write_all(&piece[..length])?;
        passed += length;
        match pace {
            _ if length == 0 => return Ok(()),
            Pace::Slow => std::thread::sleep(Duration::from_millis(20)),
            Pace::Ends(most) if passed == most => return Ok(()),
            Pace::Ends(_) => {}
        }
    }
}
