//! `btlpeer`: the BTL of Debian's Open MPI without MPI, as a process that takes commands on its standard input.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use usnic::wire::modex::Modex;

/// Options of a peer.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Its rank in job 1.
    pub rank: u32,
    /// Longest IPv4 packet.
    pub mtu: u16,
    /// First sequence number; None lets the peer choose.
    pub isn: Option<u16>,
    /// Most bytes of a fragment; None for 150 KiB.
    pub eager_limit: Option<usize>,
    /// Its interface, or several separated by commas.
    pub interface: &'static str,
    /// Thousandths of received datagrams that are lost, and the seed.
    pub loss: (u32, u64),
    /// Its retransmission timeout; None for 5 ms.
    pub retransmit: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            rank: 1,
            mtu: 1500,
            isn: None,
            eager_limit: None,
            interface: "lo",
            loss: (0, 0),
            retransmit: None,
        }
    }
}

/// A process of `btlpeer`, which is killed on drop.
pub struct Stock {
    process: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
    /// Directory of its connectivity checker's socket.
    _directory: TempDir,
    /// Modex of its first interface.
    pub modex: Modex,
    /// Modexes of all interfaces.
    pub modexes: Vec<Modex>,
    /// Its sender name.
    pub sender: u64,
}

/// Its source files.
const SOURCES: [&str; 8] = [
    "btlpeer.c",
    "provider.c",
    "endpoint.c",
    "events.c",
    "provider.h",
    "build.sh",
    "courier.c",
    "mpiecho.c",
];

/// Builds the peer if it is missing or its sources have changed. Returns its directory.
pub(crate) fn built() -> Result<PathBuf> {
    static BUILT: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut built = BUILT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(directory) = &*built {
        return Ok(directory.clone());
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = here.join("peer");
    let directory = here.join("../../target/usnic");
    std::fs::create_dir_all(&directory)?;
    let directory = directory.canonicalize()?;
    let complete = directory.join("complete").metadata().and_then(|file| file.modified());
    let newer = |name: &str| {
        let changed = sources.join(name).metadata().and_then(|file| file.modified());
        complete.as_ref().ok() < changed.as_ref().ok()
    };
    if complete.is_err() || SOURCES.iter().any(|name| newer(name)) {
        let output = Command::new(sources.join("build.sh")).arg(&directory).output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the stock peer could not be built:\n{text}");
    }
    *built = Some(directory.clone());
    Ok(directory)
}

/// Parses the modexes of several interfaces.
pub fn modexes(text: &str) -> Result<Vec<Modex>> {
    let records = text.as_bytes().chunks(2 * usnic::wire::modex::LENGTH);
    records.map(|record| Ok(std::str::from_utf8(record)?.parse()?)).collect()
}

/// Names of the stock BTL's packet counters (`btl_usnic_stats.h`), in its order.
pub fn statistics() -> Result<Vec<String>> {
    let directory = built()?;
    let header = "opal/mca/btl/usnic/btl_usnic_stats.h";
    let sources = std::fs::read_dir(&directory)?.filter_map(|entry| Some(entry.ok()?.path()));
    let found = sources.map(|source| source.join(header)).find(|file| file.is_file());
    let text = std::fs::read_to_string(found.context("the BTL's sources are missing")?)?;
    let names = text.lines().filter_map(|line| {
        let name = line.trim().strip_prefix("uint64_t ")?.strip_suffix(';')?;
        Some(name.to_string())
    });
    Ok(names
        .skip_while(|name| name != "num_total_sends")
        .take_while(|name| !name.starts_with("pml_"))
        .collect())
}

impl Stock {
    /// Starts a peer on 127.0.0.1.
    pub fn start(options: &Options) -> Result<Stock> {
        let directory = built()?;
        let own = TempDir::new()?;
        let mut command = Command::new(directory.join("btlpeer"));
        command.arg("-d").arg(own.path());
        command.args(["-j", "1", "-v", &options.rank.to_string()]);
        if let Some(isn) = options.isn {
            command.args(["-i", &isn.to_string()]);
        }
        if let Some(limit) = options.eager_limit {
            command.env("OMPI_MCA_btl_usnic_eager_limit", limit.to_string());
        }
        if let Some(time) = options.retransmit {
            command.env("OMPI_MCA_btl_usnic_retrans_timeout", time.as_micros().to_string());
        }
        let components = components()?;
        let components = format!("{}:{}", components.display(), directory.display());
        command
            .env("OMPI_MCA_mca_base_component_path", components)
            .env("FI_PROVIDER_PATH", directory.join("prov"))
            .env("USNIC_SHIM_IF", options.interface)
            .env("USNIC_SHIM_MTU", options.mtu.to_string())
            .env("USNIC_SHIM_LOSS", options.loss.0.to_string())
            .env("USNIC_SHIM_SEED", options.loss.1.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut process = command.spawn().context("btlpeer could not be started")?;
        let orders = process.stdin.take();
        let output = process.stdout.take().context("btlpeer has no output")?;
        let (to, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(|line| line.ok()) {
                if to.send(line).is_err() {
                    return;
                }
            }
        });
        let mut stock = Stock {
            process,
            orders,
            answers,
            _directory: own,
            modex: Modex {
                address: std::net::Ipv4Addr::LOCALHOST,
                priority_port: 0,
                data_port: 0,
                netmask: std::net::Ipv4Addr::UNSPECIFIED,
                ping_port: 0,
                link_speed: 0,
                max_message: 0,
                isn: 0,
            },
            modexes: Vec::new(),
            sender: 1 << 32 | u64::from(options.rank),
        };
        let modex =
            stock.wait("modex", Duration::from_secs(60), || std::thread::sleep(A_MOMENT))?;
        let text = modex.split(' ').nth(1).context("btlpeer printed no modex")?;
        stock.modexes = modexes(text)?;
        stock.modex = *stock.modexes.first().context("btlpeer has no interface")?;
        Ok(stock)
    }

    /// Sends a command.
    pub fn tell(&mut self, order: &str) -> Result<()> {
        let orders = self.orders.as_mut().context("btlpeer's standard input is closed")?;
        let written = writeln!(orders, "{order}").and_then(|()| orders.flush());
        written.context("the stock peer has died, because of a packet that we sent")
    }

    /// The next line that begins with `start`, if the peer has printed it.
    pub fn try_answer(&mut self, start: &str) -> Result<Option<String>> {
        loop {
            match self.answers.try_recv() {
                Ok(line) if line.starts_with("error") => bail!("btlpeer printed: {line}"),
                Ok(line) if line.starts_with(start) => return Ok(Some(line)),
                Ok(_) => (),
                Err(TryRecvError::Empty) => return Ok(None),
                Err(TryRecvError::Disconnected) => {
                    bail!("the stock peer has died, because of a packet that we sent")
                }
            }
        }
    }

    /// Waits for a line, and calls a function meanwhile.
    pub fn wait(
        &mut self,
        start: &str,
        most: Duration,
        mut meanwhile: impl FnMut(),
    ) -> Result<String> {
        let end = Instant::now() + most;
        loop {
            if let Some(line) = self.try_answer(start)? {
                return Ok(line);
            }
            ensure!(Instant::now() < end, "btlpeer has not printed {start:?} within {most:?}");
            meanwhile();
        }
    }

    /// Kills it.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

const A_MOMENT: Duration = Duration::from_millis(2);

/// Directory of the components of Debian's Open MPI.
pub(crate) fn components() -> Result<PathBuf> {
    let machine = Command::new("gcc").arg("-dumpmachine").output()?;
    let machine = String::from_utf8(machine.stdout)?;
    let directory = Path::new("/usr/lib").join(machine.trim()).join("openmpi/lib/openmpi3");
    ensure!(directory.is_dir(), "{} does not exist: openmpi-bin is missing", directory.display());
    Ok(directory)
}

impl Drop for Stock {
    fn drop(&mut self) {
        // Both fail only if the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
