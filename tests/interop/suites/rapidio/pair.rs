//! Two images on one RapidIO network, whose bridges use MSI-X. (Suites with Linux use MSI, because Linux mistakes the
//! vectors.)
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use interop_tests::image_spec;
use launch::models::ModelServer;
use launch::qemu::{Machine, Nic, Program, Spec, Vm, free_port};
use serde_json::Value;

use super::PATIENCE;

/// The near board at port 0 of a switch, the far one at port 5.
const TOPOLOGY: &str = "A=s0.0,B=s0.5";

/// The near board, which enumerates.
pub const NEAR: Board = Board { place: 0, role: "role = \"host\"\nid = 1" };
/// The far board.
pub const FAR: Board = Board { place: 1, role: "role = \"agent\"" };

/// Both boards with 16-bit IDs, which Linux's driver does not support.
pub const WIDE: [Board; 2] = [
    Board { place: 0, role: "role = \"host\"\nid = 1000\nid_size = 16" },
    Board { place: 1, role: "role = \"agent\"\nid_size = 16" },
];

/// The port and the RapidIO settings of a board.
pub struct Board {
    pub place: usize,
    pub role: &'static str,
}

impl Board {
    /// The board's configuration document, with an interface at this address.
    pub fn document(&self, address: &str, link: &str, more: &str) -> String {
        format!("[[net]]\naddress = \"{address}\"\n[[rapidio]]\n{}\n{link}{more}", self.role)
    }

    pub fn spec(&self, model: &ModelServer, nic: Nic, document: &str) -> Result<Spec> {
        let spec = image_spec()?.machine(Machine::Q35).program(Program::with_vfio_user()?);
        let spec = spec.config(document).nic(nic).first_mac(0x10 * (1 + self.place as u8));
        Ok(spec.vfio_user(&model.socket_of(self.place)))
    }
}

pub fn network() -> Result<ModelServer> {
    let server = std::env::var_os("ISTHMUS_MODELS").map(PathBuf::from);
    let server = server.context("ISTHMUS_MODELS is not set: run ./isthmus test rapidio")?;
    ModelServer::start_several(&server, "tsi721", 2, &["--topology", TOPOLOGY, "--vectors"])
}

pub fn ready(spec: Spec) -> Result<Vm> {
    let mut vm = spec.start()?;
    vm.wait_ready()?;
    Ok(vm)
}

/// Waits until `wanted` accepts the first row of a list, and returns the row.
pub fn until(vm: &mut Vm, list: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown = vm.run(&format!("show {list} --json"))?.json()?[0].clone();
        if wanted(&shown) {
            return Ok(shown);
        }
        if Instant::now() > deadline {
            let report = ["show rapidio", "show linx", "show log"].map(|line| {
                vm.run(line).map_or_else(|error| format!("{error:#}"), |reply| reply.text)
            });
            bail!("{list} is not in the expected state: {shown:#}\n{}", report.join("\n"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until the log contains `wanted`.
pub fn wait_for_log(vm: &mut Vm, wanted: &str) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let log = vm.run("show log")?;
        if log.contains(wanted).is_ok() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the log does not contain {wanted:?}:\n{}", log.text);
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Both boards. Ports 7000 and 80 of each are reached from this host.
pub struct Pair {
    // Must outlive the boards.
    model: ModelServer,
    documents: [String; 2],
    pub boards: [Vm; 2],
    pub ports: [u16; 2],
    pub web: [u16; 2],
}

impl Pair {
    /// Boots both boards, each with more in its document.
    pub fn start(more: [String; 2]) -> Result<Pair> {
        Pair::start_as([NEAR, FAR], more)
    }

    /// As `start`, with other settings of the boards.
    pub fn start_as([first, second]: [Board; 2], more: [String; 2]) -> Result<Pair> {
        let model = network()?;
        let (ports, web) = ([free_port()?, free_port()?], [free_port()?, free_port()?]);
        let [near, far] = more;
        let documents =
            [first.document("10.0.2.15/24", "", &near), second.document("10.0.2.15/24", "", &far)];
        // The agent boots first, so that the host finds it, and gives it the lowest free ID.
        let mut far = board(&model, &second, [ports[1], web[1]], &documents[1])?;
        until(&mut far, "rapidio", |shown| shown["state"] == "waits for a host")?;
        let near = board(&model, &first, [ports[0], web[0]], &documents[0])?;
        Ok(Pair { model, documents, boards: [near, far], ports, web })
    }

    /// Boots a board again that was killed.
    pub fn restart(&mut self, place: usize) -> Result<()> {
        let one = [&NEAR, &FAR][place];
        let ports = [self.ports[place], self.web[place]];
        self.boards[place] = board(&self.model, one, ports, &self.documents[place])?;
        Ok(())
    }

    pub fn client(&self, board: usize) -> Result<Client> {
        Client::connect(self.ports[board])
    }
}

fn board(model: &ModelServer, board: &Board, [port, web]: [u16; 2], document: &str) -> Result<Vm> {
    let nic = Nic::User { forwards: vec![("tcp", port, 7000), ("tcp", web, 80)] };
    ready(board.spec(model, nic, document)?)
}

/// A TCP client that exchanges signals (docs/messaging.md).
pub struct Client(pub TcpStream);

impl Client {
    pub fn connect(port: u16) -> Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Client(stream))
    }

    pub fn send(&mut self, number: u32, body: &[u8]) -> Result<()> {
        let length = 4 + body.len() as u32;
        let message = [&length.to_be_bytes()[..], &number.to_be_bytes(), body].concat();
        Ok(self.0.write_all(&message)?)
    }

    pub fn receive(&mut self) -> Result<(u32, Vec<u8>)> {
        let mut word = [0; 4];
        self.0.read_exact(&mut word)?;
        let mut message = vec![0; u32::from_be_bytes(word) as usize];
        self.0.read_exact(&mut message)?;
        let (number, body) = message.split_first_chunk::<4>().context("no number")?;
        Ok((u32::from_be_bytes(*number), body.to_vec()))
    }

    /// Sends signals of these lengths, several ahead of the replies, and checks that each is echoed unchanged.
    pub fn echo(&mut self, lengths: &[usize]) -> Result<()> {
        const AHEAD: usize = 8;
        let body = |at: usize, len: usize| -> Vec<u8> {
            (0..len).map(|n| (n * 7 + n / 251 + at) as u8).collect()
        };
        for at in 0..lengths.len() + AHEAD {
            if let Some(&len) = lengths.get(at) {
                self.send(1000 + at as u32, &body(at, len))?;
            }
            let Some(at) = at.checked_sub(AHEAD) else { continue };
            let answer = self.receive()?;
            let is_same = answer == (1000 + at as u32, body(at, lengths[at]));
            ensure!(is_same, "signal {at} of {} bytes was echoed with other content", lengths[at]);
        }
        Ok(())
    }
}
