//! A job of the stock Open MPI in which the engine is a rank. `mpirun` starts a courier in place of the rank, which
//! speaks PMIx, and exchanges modexes over a socket.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use usnic::wire::modex::Modex;

use crate::stock::{built, components, modexes};

/// Time limit of each step at start and end of the job.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time limit of `mpirun` to end after SIGTERM.
const FAREWELL: Duration = Duration::from_secs(10);

/// Name of a rank: job << 32 + rank.
pub type Sender = u64;

/// The job.
pub struct Job {
    mpirun: Child,
    courier: UnixStream,
    lines: Receiver<String>,
    output: Option<JoinHandle<String>>,
    complaints: Option<JoinHandle<String>>,
    _directory: TempDir,
    /// The engine's name in the job.
    pub name: Sender,
    /// The other ranks, with one entry for each interface.
    pub peers: Vec<(Modex, Sender)>,
}

impl Job {
    /// Starts `mpiecho` with these words as rank 0, over one interface with this MTU or several. The engine is rank 1,
    /// with the modexes `ours`. MPI_Init of rank 0 returns after [`Job::ready`].
    pub fn start(ours: &[Modex], interface: &str, mtu: u16, words: &[&str]) -> Result<Job> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("courier");
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        let mut mpirun = mpirun(interface, mtu, words, &path)?;
        let output = Some(gather(mpirun.stdout.take()));
        let complaints = Some(gather(mpirun.stderr.take()));
        let accepted = accept(&listener, &mut mpirun);
        let courier = match accepted {
            Ok(courier) => courier,
            Err(why) => {
                end(&mut mpirun);
                let text = complaints.and_then(|thread| thread.join().ok()).unwrap_or_default();
                return Err(why.context(text));
            }
        };
        courier.set_nonblocking(false)?;
        let (to, lines) = channel();
        let from = BufReader::new(courier.try_clone()?);
        std::thread::spawn(move || {
            for line in from.lines().map_while(Result::ok) {
                if to.send(line).is_err() {
                    return;
                }
            }
        });
        let (name, peers) = (0, Vec::new());
        let mut job =
            Job { mpirun, courier, lines, output, complaints, _directory: directory, name, peers };
        let ours: String = ours.iter().map(Modex::to_string).collect();
        writeln!(job.courier, "modex {ours}")?;
        loop {
            let line = job.lines.recv_timeout(PATIENCE).context("the courier prints nothing")?;
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["name", number, rank] => job.name = sender(number, rank)?,
                ["peer", records, number, rank] => {
                    let name = sender(number, rank)?;
                    job.peers.extend(modexes(records)?.into_iter().map(|modex| (modex, name)));
                }
                ["go"] => break,
                _ => bail!("the courier printed {line:?}"),
            }
        }
        Ok(job)
    }

    /// Lets the other ranks begin, after the engine has added them.
    pub fn ready(&mut self) -> Result<()> {
        writeln!(self.courier, "ready").context("the courier has ended")
    }

    /// Whether the other ranks are in MPI_Finalize. An error if the job has ended before.
    pub fn is_over(&mut self) -> Result<bool> {
        match self.lines.try_recv() {
            Ok(line) if line == "quit" => Ok(true),
            Ok(line) => bail!("the courier printed {line:?}"),
            Err(TryRecvError::Empty) => {
                if let Some(status) = self.mpirun.try_wait()? {
                    bail!("mpirun has ended with {status}: {}", self.text());
                }
                Ok(false)
            }
            Err(TryRecvError::Disconnected) => bail!("the courier has ended: {}", self.text()),
        }
    }

    /// Waits for the end of the job, and returns its output.
    pub fn finish(mut self) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.mpirun.try_wait()? {
                let text = self.text();
                ensure!(status.success(), "mpirun has ended with {status}: {text}");
                return Ok(text);
            }
            ensure!(Instant::now() < deadline, "mpirun does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the job, and returns its output.
    fn text(&mut self) -> String {
        end(&mut self.mpirun);
        let joined = |thread: &mut Option<JoinHandle<String>>| {
            thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
        };
        joined(&mut self.output) + &joined(&mut self.complaints)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        end(&mut self.mpirun);
    }
}

fn sender(job: &str, rank: &str) -> Result<Sender> {
    Ok(job.parse::<u64>()? << 32 | rank.parse::<u64>()?)
}

/// Starts `mpirun` on a separate node, that is, under a separate host name.
fn mpirun(interface: &str, mtu: u16, words: &[&str], courier: &Path) -> Result<Child> {
    let directory = built()?;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let components = format!("{}:{}", components()?.display(), directory.display());
    let mut command = Command::new("unshare");
    command.args(["--uts", "sh", "-c", "hostname node-a && exec \"$@\"", "sh", "mpirun"]);
    command.args(["--allow-run-as-root", "--bind-to", "none", "--mca", "plm", "rsh"]);
    command.args(["--mca", "plm_rsh_agent"]).arg(here.join("peer/node.sh"));
    command.args([
        "--mca",
        "oob_tcp_if_include",
        interface,
        "--mca",
        "orte_keep_fqdn_hostnames",
        "1",
    ]);
    command.args(["--mca", "mca_base_component_path", &components, "--mca", "pml", "ob1"]);
    command.args(["--mca", "btl", "usnic,self", "--mca", "mpi_yield_when_idle", "1"]);
    for name in ["FI_PROVIDER_PATH", "USNIC_SHIM_IF", "USNIC_SHIM_MTU"] {
        command.args(["-x", name]);
    }
    command.args(["-np", "1", "--host", "node-a:1"]).arg(directory.join("mpiecho")).args(words);
    command.args([":", "-np", "1", "--host", "node-b:1"]).arg(directory.join("courier"));
    command.arg(courier);
    command
        .env("FI_PROVIDER_PATH", directory.join("prov"))
        .env("USNIC_SHIM_IF", interface)
        .env("USNIC_SHIM_MTU", mtu.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().context("mpirun could not be started")
}

/// Reads until the end, in a thread.
fn gather(from: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(mut from) = from {
            // On an error, returns the text before it.
            let _ = from.read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    })
}

fn accept(listener: &UnixListener, mpirun: &mut Child) -> Result<UnixStream> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Ok(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(status) = mpirun.try_wait()? {
            bail!("mpirun has ended with {status} before it started a courier");
        }
        ensure!(Instant::now() < deadline, "mpirun has started no courier");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends a job: on SIGTERM `mpirun` ends its ranks.
fn end(mpirun: &mut Child) {
    let deadline = Instant::now() + FAREWELL;
    if matches!(mpirun.try_wait(), Ok(None))
        && let Some(pid) = Pid::from_raw(mpirun.id() as i32)
    {
        // Fails if it has just ended.
        let _ = kill_process(pid, Signal::TERM);
        while matches!(mpirun.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        // Both fail only if the process has ended already.
        let _ = mpirun.kill();
        let _ = mpirun.wait();
    }
}
