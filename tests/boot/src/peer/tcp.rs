//! TCP of the peer's: clients that say something and wait for the answer, and servers that send back what they hear.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;

use super::Peer;

const BUFFER: usize = 4096;

/// Servers at work.
pub struct Workers {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Workers {
    /// Ends them; whether they came through.
    pub fn end(self) -> Result<()> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the servers have panicked"))?
    }
}

/// Where the ports of a host's clients begin; they end with the last there is.
pub(super) const FIRST_CLIENT_PORT: u16 = 50_000;

struct Client {
    socket: SocketHandle,
    asked: bool,
    answer: Vec<u8>,
}

impl Peer {
    /// Sends back what comes to a TCP port, on as many connections at a time as there are `places`; while it makes calls.
    pub fn serve_echo(&mut self, port: u16, places: usize) -> Result<()> {
        for _ in 0..places {
            let mut socket = socket();
            socket.listen(port)?;
            self.servers.push((self.sockets.add(socket), port));
        }
        Ok(())
    }

    /// The next of a client's ports, round and round: a connection is ended by a reset, so its port is free at once.
    fn next_port(&mut self) -> u16 {
        self.last_port = self.last_port.checked_add(1).unwrap_or(FIRST_CLIENT_PORT);
        self.last_port
    }

    /// Has `count` clients of this host call at once and say `request`; how long it takes until each has an answer that
    /// contains `wanted`.
    pub fn call(
        &mut self,
        count: usize,
        server: SocketAddr,
        request: &[u8],
        wanted: &[u8],
    ) -> Result<Duration> {
        let start = Instant::now();
        let mut clients = Vec::new();
        for _ in 0..count {
            let mut socket = socket();
            let port = self.next_port();
            socket.connect(self.interface.context(), server, port)?;
            let socket = self.sockets.add(socket);
            clients.push(Client { socket, asked: false, answer: Vec::new() });
        }
        let has = |client: &Client| client.answer.windows(wanted.len()).any(|part| part == wanted);
        while !clients.iter().all(has) {
            let late = clients.iter().filter(|client| !has(client)).count();
            ensure!(start.elapsed() < Duration::from_secs(30), "{server}: {late} have no answer");
            self.poll(Duration::from_millis(1));
            self.echo_tcp()?;
            for client in &mut clients {
                let socket = self.sockets.get_mut::<tcp::Socket>(client.socket);
                ensure!(socket.is_open(), "{server}: a client was refused");
                if !client.asked && socket.can_send() {
                    client.asked = socket.send_slice(request)? == request.len();
                }
                while socket.can_recv() {
                    socket.recv(|bytes| (bytes.len(), client.answer.extend_from_slice(bytes)))?;
                }
            }
        }
        let took = start.elapsed();
        for client in &clients {
            self.sockets.get_mut::<tcp::Socket>(client.socket).abort();
        }
        self.poll(Duration::ZERO);
        for client in &clients {
            self.sockets.remove(client.socket);
        }
        Ok(took)
    }

    /// Has the servers work by themselves.
    pub fn work(mut self) -> Result<Workers> {
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                self.poll(Duration::from_millis(1));
                self.echo_tcp()?;
            }
            Ok(())
        });
        Ok(Workers { over, thread })
    }

    /// What the servers have to do.
    fn echo_tcp(&mut self) -> Result<()> {
        for &(handle, port) in &self.servers {
            let socket = self.sockets.get_mut::<tcp::Socket>(handle);
            while socket.can_recv() && socket.can_send() {
                let mut bytes = [0; BUFFER];
                let length = socket.peek_slice(&mut bytes)?;
                let sent = socket.send_slice(&bytes[..length])?;
                socket.recv(|_| (sent, ()))?;
            }
            match socket.state() {
                tcp::State::CloseWait => socket.close(),
                // The next one need not wait.
                tcp::State::TimeWait => socket.abort(),
                tcp::State::Closed => socket.listen(port)?,
                _ => (),
            }
        }
        Ok(())
    }
}

fn socket() -> tcp::Socket<'static> {
    let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
    tcp::Socket::new(buffer(), buffer())
}
