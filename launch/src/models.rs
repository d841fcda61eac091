//! Runs the process that serves device models to machines over vfio-user.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::{command, workspace};

/// Time limit for the server to listen, to answer, or to end after its last client.
const PATIENCE: Duration = Duration::from_secs(20);

/// Builds the server, or finds it up to date, and returns the program.
pub fn build() -> Result<PathBuf> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.current_dir(workspace::root());
    cargo.args([
        "build",
        "--quiet",
        "--locked",
        "--profile",
        "host",
        "--workspace",
        "--bin",
        "models-server",
    ]);
    command::run(&mut cargo)?;
    Ok(workspace::target().join("host/models-server"))
}

/// A server of one model. Dropping it kills it, which its machine sees as a surprise removal.
pub struct ModelServer {
    process: Child,
    directory: TempDir,
}

impl ModelServer {
    /// Starts `program` for the model `name`, with more options, and waits until it listens.
    pub fn start(program: &Path, name: &str, options: &[&str]) -> Result<ModelServer> {
        ModelServer::start_several(program, name, 1, options)
    }

    /// Starts `program` for a model that has `count` functions.
    pub fn start_several(
        program: &Path,
        name: &str,
        count: usize,
        options: &[&str],
    ) -> Result<ModelServer> {
        let directory = tempfile::Builder::new().prefix("isthmus-model-").tempdir()?;
        let output = File::create(directory.path().join("output"))?;
        let mut server = Command::new(program);
        let sockets: Vec<PathBuf> = (0..count).map(|n| socket(directory.path(), n)).collect();
        server.arg(name).args(&sockets).args(options);
        server.stdin(Stdio::piped()).stdout(output.try_clone()?).stderr(output);
        command::end_with_us(&mut server);
        let line = command::shell_line(&server);
        let process = server.spawn().with_context(|| format!("could not start `{line}`"))?;
        let mut model = ModelServer { process, directory };
        let deadline = Instant::now() + PATIENCE;
        while !sockets.iter().all(|socket| socket.exists()) {
            if let Some(status) = model.process.try_wait()? {
                bail!("`{line}` ended ({status}):\n{}", model.output());
            }
            if Instant::now() > deadline {
                bail!("`{line}` does not listen");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(model)
    }

    /// The socket of its function.
    pub fn socket(&self) -> PathBuf {
        self.socket_of(0)
    }

    /// The socket of function number `number`.
    pub fn socket_of(&self, number: usize) -> PathBuf {
        socket(self.directory.path(), number)
    }

    /// Kills the server under a running machine.
    pub fn kill(&mut self) {
        // Both fail only when the server has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Waits until the server has ended, after its machine, and returns the model's counters: lines of a name
    /// and a number.
    pub fn counters(mut self) -> Result<String> {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.process.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                bail!("the model's server did not end:\n{}", self.output());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        if !status.success() {
            bail!("the model's server ended ({status}):\n{}", self.output());
        }
        Ok(self.output())
    }

    /// Sends a command, which the model defines, to function number `number` of a running model.
    pub fn order(&mut self, number: usize, words: &str) -> Result<()> {
        self.ask(&format!("{number} {words}")).map(drop)
    }

    /// The counters so far of a running model, in the form of [`ModelServer::counters`].
    pub fn counters_so_far(&mut self) -> Result<String> {
        self.ask("counters")
    }

    /// Sends a command and returns its answer without the last line, which is the result.
    fn ask(&mut self, line: &str) -> Result<String> {
        let begin = self.output().len();
        let input =
            self.process.stdin.as_mut().context("the model's server accepts no commands")?;
        writeln!(input, "{line}").with_context(|| self.output())?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.output().split_off(begin);
            let end = answer
                .lines()
                .enumerate()
                .find(|(_, line)| line.starts_with("done") || line.starts_with("refused"));
            if let Some((count, end)) = end.filter(|_| answer.ends_with('\n')) {
                if end != "done" {
                    bail!("`{line}`: {end}");
                }
                return Ok(answer.lines().take(count).map(|line| format!("{line}\n")).collect());
            }
            if Instant::now() > deadline || self.process.try_wait()?.is_some() {
                bail!("the model's server does not answer `{line}`:\n{}", self.output());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The server's output so far.
    pub fn output(&self) -> String {
        fs::read_to_string(self.directory.path().join("output")).unwrap_or_default()
    }
}

fn socket(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("socket{number}"))
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.kill();
    }
}
