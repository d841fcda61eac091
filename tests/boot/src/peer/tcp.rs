//! TCP of the peer: clients that send a request and wait for the reply, and echo servers.

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

/// Running echo servers.
pub struct Workers {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Workers {
    /// Stops the servers, and returns their result.
    pub fn end(self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the servers have panicked"))?
    }
}

/// First client port; the last is 65535.
pub(super) const FIRST_CLIENT_PORT: u16 = 50_000;

struct Client {
    socket: SocketHandle,
    sent: bool,
    answer: Vec<u8>,
}

impl Peer {
    /// Serves TCP echo on a port, on up to `places` connections at once. The servers run during requests and in `work`.
    pub fn serve_echo(&mut self, port: u16, places: usize) -> Result<()> {
        for _ in 0..places {
            let mut socket = socket();
            socket.listen(port)?;
            self.servers.push((self.sockets.add(socket), port));
        }
        Ok(())
    }

    /// The next client port, in a cycle. Clients end connections by a reset, so a port is free at once.
    fn next_port(&mut self) -> u16 {
        self.last_port = self.last_port.checked_add(1).unwrap_or(FIRST_CLIENT_PORT);
        self.last_port
    }

    /// Lets `count` clients of this host connect at once and send `request`. Returns the time until each has received a
    /// reply that contains `wanted`.
    pub fn request(
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
            clients.push(Client { socket, sent: false, answer: Vec::new() });
        }
        let has = |client: &Client| client.answer.windows(wanted.len()).any(|part| part == wanted);
        while !clients.iter().all(has) {
            let late = clients.iter().filter(|client| !has(client)).count();
            ensure!(
                start.elapsed() < Duration::from_secs(30),
                "{server}: {late} clients have no reply"
            );
            self.poll(Duration::from_millis(1));
            self.echo_tcp()?;
            for client in &mut clients {
                let socket = self.sockets.get_mut::<tcp::Socket>(client.socket);
                ensure!(socket.is_open(), "{server}: a client was refused");
                if !client.sent && socket.can_send() {
                    client.sent = socket.send_slice(request)? == request.len();
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

    /// Runs the echo servers in a thread.
    pub fn work(mut self) -> Result<Workers> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                self.poll(Duration::from_millis(1));
                self.echo_tcp()?;
            }
            Ok(())
        });
        Ok(Workers { stop, thread })
    }

    /// Advances the echo servers.
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
                // The next connection need not wait.
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
