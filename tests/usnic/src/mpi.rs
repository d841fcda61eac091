//! A job of the stock Open MPI of which one rank is ours: `mpirun` starts a courier in its place, which speaks PMIx for
//! it and carries modexes to and fro over a socket.

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

/// How long a step of the job's start and end may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long it may take to end when it is told to.
const FAREWELL: Duration = Duration::from_secs(10);

/// A name of a rank: job << 32 + rank.
pub type Sender = u64;

/// The job.
pub struct Job {
    mpirun: Child,
    courier: UnixStream,
    lines: Receiver<String>,
    said: Option<JoinHandle<String>>,
    complaints: Option<JoinHandle<String>>,
    _directory: TempDir,
    /// Who we are in it.
    pub name: Sender,
    /// The other ranks, each as often as it has interfaces.
    pub peers: Vec<(Modex, Sender)>,
}

impl Job {
    /// Starts `mpiecho` with these words as rank 0, over an interface with this MTU, or over several; we are rank 1, with
    /// these modexes. Its MPI_Init returns when [`Job::ready`] was said.
    pub fn start(ours: &[Modex], interface: &str, mtu: u16, words: &[&str]) -> Result<Job> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("courier");
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        let mut mpirun = mpirun(interface, mtu, words, &path)?;
        let said = Some(gather(mpirun.stdout.take()));
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
            Job { mpirun, courier, lines, said, complaints, _directory: directory, name, peers };
        let ours: String = ours.iter().map(Modex::to_string).collect();
        writeln!(job.courier, "modex {ours}")?;
        loop {
            let line = job.lines.recv_timeout(PATIENCE).context("the courier says nothing")?;
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["name", number, rank] => job.name = sender(number, rank)?,
                ["peer", records, number, rank] => {
                    let name = sender(number, rank)?;
                    job.peers.extend(modexes(records)?.into_iter().map(|modex| (modex, name)));
                }
                ["go"] => break,
                _ => bail!("the courier says {line:?}"),
            }
        }
        Ok(job)
    }

    /// Lets the others begin: we know them.
    pub fn ready(&mut self) -> Result<()> {
        writeln!(self.courier, "ready").context("the courier has gone")
    }

    /// Whether the others are in MPI_Finalize; an error if the job has ended before.
    pub fn is_over(&mut self) -> Result<bool> {
        match self.lines.try_recv() {
            Ok(line) if line == "quit" => Ok(true),
            Ok(line) => bail!("the courier says {line:?}"),
            Err(TryRecvError::Empty) => {
                if let Some(status) = self.mpirun.try_wait()? {
                    bail!("mpirun has ended with {status}: {}", self.text());
                }
                Ok(false)
            }
            Err(TryRecvError::Disconnected) => bail!("the courier has gone: {}", self.text()),
        }
    }

    /// Waits for the end of the job; what it has said.
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

    /// Ends it; what it has said.
    fn text(&mut self) -> String {
        end(&mut self.mpirun);
        let joined = |thread: &mut Option<JoinHandle<String>>| {
            thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
        };
        joined(&mut self.said) + &joined(&mut self.complaints)
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

/// `mpirun` on a node of its own, that is, under a host name of its own.
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
            // What was read before an error is told.
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
            bail!("mpirun has ended with {status} before it had a courier");
        }
        ensure!(Instant::now() < deadline, "mpirun has started no courier");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Ends a job: `mpirun` ends its ranks if it is asked to end itself.
fn end(mpirun: &mut Child) {
    let deadline = Instant::now() + FAREWELL;
    if matches!(mpirun.try_wait(), Ok(None))
        && let Some(pid) = Pid::from_raw(mpirun.id() as i32)
    {
        // It may have ended just now.
        let _ = kill_process(pid, Signal::TERM);
        while matches!(mpirun.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        // Both fail only when it is gone, which is what is wanted.
        let _ = mpirun.kill();
        let _ = mpirun.wait();
    }
}
