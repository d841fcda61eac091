//! The API against its own description: Schemathesis (PyPI) makes requests from `/api/v1/openapi.json`, and checks each
//! answer against it.

use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use boot_tests::{pypi, spec};

use super::config::with_http;
use super::lifecycle::USERS;

/// The program, pinned by version.
const PROGRAM: &str = "schemathesis==4.32.5";
/// Lets it send documents in TOML, and keeps it from streams that do not end.
const HOOKS: &str = "import schemathesis\n\n\n\
    @schemathesis.hook\n\
    def filter_query(_context, query):\n    \
        return not query or \"follow\" not in query\n\n\n\
    @schemathesis.serializer(\"application/toml\")\n\
    def toml(_context, value):\n    \
        return value if isinstance(value, bytes) else str(value).encode(\"utf-8\", \"replace\")\n";
/// Seconds in which it makes requests.
const SECONDS: u64 = 150;
/// Time limit of all.
const LIMIT: Duration = Duration::from_secs(SECONDS + 120);

#[test]
fn requests_made_of_the_description_get_the_described_answers() -> Result<()> {
    let environment = pypi::environment("schemathesis", &[PROGRAM])?;
    let (mut vm, server) = with_http(spec()?.config(USERS))?;
    let directory = tempfile::tempdir()?;
    fs::write(directory.path().join("isthmus_hooks.py"), HOOKS)?;
    let output = directory.path().join("output");
    let mut run = Command::new(environment.join("bin/schemathesis"));
    run.arg("run").arg(format!("http://{server}/api/v1/openapi.json"));
    run.args(["--header", "Authorization: Bearer admin-token"]);
    run.args(["--phases", "examples,fuzzing", "--max-time", &SECONDS.to_string()]);
    run.args([
        "--checks",
        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
    ]);
    run.args(["--seed", "1", "--request-timeout", "10", "--no-shrink", "--warnings", "off"]);
    run.args(["--generation-database", "none", "--generation-with-security-parameters", "false"]);
    // One that is slow to make data is not the fault of the server.
    run.args(["--suppress-health-check", "all"]);
    run.current_dir(directory.path()).env("PYTHONPATH", directory.path());
    run.env("SCHEMATHESIS_HOOKS", "isthmus_hooks").env("NO_COLOR", "1").stdin(Stdio::null());
    let file = fs::File::create(&output)?;
    let mut child = run.stdout(file.try_clone()?).stderr(file).spawn()?;
    let end = Instant::now() + LIMIT;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break Some(status),
            None if Instant::now() > end => {
                child.kill()?;
                child.wait()?;
                break None;
            }
            None => sleep(Duration::from_millis(200)),
        }
    };
    let said = fs::read_to_string(&output)?;
    let status = status.with_context(|| format!("it did not end in {LIMIT:?}: {said}"))?;
    ensure!(status.success(), "{said}");
    vm.run("show crash")?.lacks("panicked")?;
    vm.run("show audit")?.contains("http ada from")?;
    Ok(())
}
