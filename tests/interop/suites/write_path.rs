//! The way of a write and its answer through the sources: the files that ARCHITECTURE.md lists, and no other.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use interop_tests::trace::{Executed, Files, Functions, Phases};
use interop_tests::{client, gateway_spec, map, storage};
use launch::guest::{Guest, Wire};
use launch::qemu::Disk;
use launch::workspace;

/// So many may be on the way.
const MOST: usize = 20;
/// Writes of 4 KiB that are traced, one after the other.
const WRITES: u64 = 300;
/// Polls all the time, so that it is seen what a round without work executes.
const WORDS: &str = "isthmus.system.idle_after_us=1000000000 \
                     isthmus.volume.0.name=memory isthmus.volume.0.size=16MiB \
                     isthmus.volume.1.name=disk isthmus.volume.1.disk=0 isthmus.volume.1.size=64MiB";

/// The files that each write to a device of the client's goes through in the appliance.
fn trace(client: &mut Guest, device: &str, executed: &Executed, on: &Functions) -> Result<Files> {
    let mut write = |writes: u64| {
        client.sh(&format!("dd if=/dev/zero of={device} bs=4k count={writes} oflag=direct"))
    };
    // What is done for the first ones only.
    write(16)?;
    let (start, started) = (executed.read()?, Instant::now());
    write(WRITES)?;
    let (done, took) = (executed.read()?, started.elapsed());
    // As long without work.
    std::thread::sleep(took.max(Duration::from_secs(1)));
    let rested = executed.read()?;
    let phases = Phases { counts: [&start, &done, &rested], pieces: WRITES };
    Ok(phases.files(on))
}

/// A list of files, and which of them not every write passes: what is done when some time has gone by.
#[derive(Clone, Default)]
struct List {
    all: BTreeSet<String>,
    at_times: BTreeSet<String>,
}

impl List {
    /// By lines that begin with a file each.
    fn of(lines: &[&str]) -> List {
        let mut list = List::default();
        for (file, rest) in lines.iter().filter_map(|line| line.split_once('`')) {
            list.all.insert(file.to_string());
            if rest.starts_with(" (at times)") {
                list.at_times.insert(file.to_string());
            }
        }
        list
    }
}

/// The files that ARCHITECTURE.md lists: for a volume in memory, and for one on a disk.
fn listed() -> Result<[List; 2]> {
    let text = std::fs::read_to_string(workspace::root().join("ARCHITECTURE.md"))?;
    let (_, section) =
        text.split_once("\n### The files on the way\n").context("no such section")?;
    let section = section.split("\n#").next().unwrap_or_default();
    let (memory, disk) = section.split_once("\nTo a disk").context("no files for a disk")?;
    let items = |text| -> Vec<&str> {
        str::lines(text).filter_map(|line| line.strip_prefix("* `")).collect()
    };
    let (memory, disk) = (items(memory), items(disk));
    // Instead of the last one.
    let (_, others) = memory.split_last().context("an empty list")?;
    Ok([List::of(&memory), List::of(&[others, &disk].concat())])
}

#[test]
fn a_write_and_its_answer_pass_the_files_that_are_listed() -> Result<()> {
    let image = std::env::var_os("ISTHMUS_IMAGE").context("ISTHMUS_IMAGE is not set")?;
    let functions = Functions::read(&Path::new(&image).with_extension("symbols"))?;
    let executed = Executed::new(&functions.code)?;
    let disk = tempfile::NamedTempFile::new()?;
    disk.as_file().set_len(128 << 20)?;
    let wire = Wire::new()?;
    let (ours, theirs) = wire.stream();
    let spec = gateway_spec(1500, WORDS)?.nic(ours).first_mac(1).disk(Disk::new(disk.path()));
    let mut gateway = spec.extra(executed.arguments()).start()?;
    let mut client = client(theirs, 1500)?;
    gateway.wait_ready()?;
    client.sh("modprobe rnbd-client")?;

    let lists = listed()?;
    let listed = lists[0].all.len();
    ensure!(listed <= MOST, "{listed} files are listed, {MOST} may be");
    for (n, volume) in ["memory", "disk"].into_iter().enumerate() {
        map(&mut client, "s0", storage::PATH, volume, "")?;
        let files = trace(&mut client, &format!("/dev/rnbd{n}"), &executed, &functions)?;
        println!("instructions of each write to {volume}, by files:\n{files}");
        let passed: BTreeSet<String> = files.passed().into_iter().map(String::from).collect();
        let List { all, at_times } = &lists[n];
        let (unlisted, unused) = (&passed - all, &(all - at_times) - &passed);
        ensure!(
            unlisted.is_empty() && unused.is_empty(),
            "a write to {volume} passes {unlisted:?}, which ARCHITECTURE.md does not list; it lists {unused:?}, \
             which none passes\n{files}"
        );
    }
    Ok(())
}
