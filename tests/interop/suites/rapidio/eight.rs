//! Eight boards on three switches in a ring, two of which are joined by two links. Stock Linux enumerates the network,
//! then the image does, and both leave the same state in the devices.
use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use interop_tests::{image_spec, system};
use launch::guest::Guest;
use launch::models::ModelServer;
use launch::qemu::{Machine, Program};

use super::PATIENCE;
use super::pair::until;

const TOPOLOGY: &str = "A=s0.0,s0.1=s1.0,s0.2=s1.1,s1.2=s2.0,s2.1=s0.3,\
                        B=s0.5,C=s0.6,D=s1.5,E=s1.6,F=s1.7,G=s2.5,H=s2.6";

fn network() -> Result<ModelServer> {
    let server = std::env::var_os("ISTHMUS_MODELS").map(PathBuf::from);
    let server = server.context("ISTHMUS_MODELS is not set: run ./isthmus test rapidio")?;
    ModelServer::start_several(&server, "tsi721", 1, &["--topology", TOPOLOGY])
}

/// Device IDs, locks, routes, and the part of the component tags that Linux uses, of all devices but the host.
fn state_after(model: ModelServer) -> Result<BTreeMap<String, u32>> {
    let counters = model.counters()?;
    let lines = counters.lines().filter_map(|line| line.split_once(' '));
    let mut state = BTreeMap::new();
    for (name, value) in lines.filter(|(name, _)| !name.starts_with("endpoint0")) {
        let value: u32 = value.parse().with_context(|| format!("{name} {value}"))?;
        let value = if name.ends_with(".tag") { value & 0x1_ffff } else { value };
        let is_compared = [".id", ".tag", ".lock"].iter().any(|end| name.ends_with(end));
        if is_compared || name.contains(".route") {
            state.insert(name.to_string(), value);
        }
    }
    Ok(state)
}

fn by_linux() -> Result<BTreeMap<String, u32>> {
    let model = network()?;
    let spec = system()?.spec("linux", &[], 1500).program(Program::with_vfio_user()?);
    let mut guest = Guest::start("linux", spec.vfio_user(&model.socket()))?;
    guest.wait_up()?;
    guest.sh("modprobe rapidio hdid=1 && modprobe -a idt_gen2 tsi721_mport")?;
    guest.try_sh("modprobe rio-scan scan=1", PATIENCE)?;
    let found = "[ $(ls /sys/bus/rapidio/devices | grep -c :e:) = 7 ] || \
                 { echo 0 > /sys/bus/rapidio/scan; false; }";
    guest.wait_until(found, PATIENCE)?;
    guest.vm.kill();
    state_after(model)
}

fn by_the_image(words: &str) -> Result<(ModelServer, Vec<u64>)> {
    let model = network()?;
    let spec = image_spec()?.machine(Machine::Q35).program(Program::with_vfio_user()?);
    let spec = spec.append("isthmus.rapidio.0.role=host").append(words);
    let mut vm = spec.vfio_user(&model.socket()).start()?;
    vm.wait_ready()?;
    let shown = until(&mut vm, "rapidio", |shown| shown["state"] == "ready")?;
    let rows = shown["network"].as_array().context("no tree")?;
    let boards = rows.iter().filter(|row| row["device"].to_string().contains("board"));
    let ids = boards.filter_map(|row| row["id"].as_u64()).collect();
    vm.kill();
    Ok((model, ids))
}

#[test]
fn eight_boards_and_loops_are_enumerated_as_linux_does_it() -> Result<()> {
    let wanted = by_linux()?;
    let (model, ids) = by_the_image("isthmus.rapidio.0.id=1")?;
    let got = state_after(model)?;
    ensure!(wanted.len() > 40, "Linux has set only {wanted:?}");
    let differs = |name: &&String| wanted.get(*name) != got.get(*name);
    let names: Vec<&String> = wanted.keys().chain(got.keys()).filter(differs).collect();
    ensure!(names.is_empty(), "{names:?} differ: Linux {wanted:?}, ours {got:?}");
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    sorted.dedup();
    ensure!(sorted.len() == 7, "{ids:?}");
    // 16-bit IDs give the same result. Linux's driver does not support them.
    let (_, wide) = by_the_image("isthmus.rapidio.0.id=1 isthmus.rapidio.0.id_size=16")?;
    ensure!(wide == ids, "{wide:?}, not {ids:?}");
    Ok(())
}
