//! Two images that run NTRDMA over a model of a hardware bridge, with or without a DMA engine that does the writes. One
//! image uses a volume of the other, directly and for a stock client; either machine is killed; and one side is
//! malicious.

mod hostile;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use interop_tests::image_spec;
use interop_tests::movdir64b::{skip, without_movdir64b};
use interop_tests::remote::wait_for;
use launch::models::ModelServer;
use launch::qemu::{Accelerator, Disk, Machine, Program, Spec, Vm};
use serde_json::Value;

use crate::ntb_chain::{data_survives, messages_go_over_smc_r};

const PATIENCE: Duration = Duration::from_secs(90);
const DSA: &str = "idxd";
const OPEN: &str = "far,gw,ram0,open,";

/// A bridge: the model with its options, and the PCI device ID and driver of the DMA engine.
#[derive(Clone, Copy)]
struct Kind {
    model: &'static str,
    driver: &'static str,
    options: &'static [&'static str],
    engine: Option<(&'static str, &'static str)>,
}

const GEN3: Kind = Kind {
    model: "intel-ntb",
    driver: "ntb_hw_intel",
    options: &["--window", "24"],
    engine: Some(("2021", "ioatdma")),
};
const GEN4: Kind = Kind {
    options: &["--window", "24", "--device", "347e"],
    engine: Some(("0b00", "ioatdma")),
    ..GEN3
};
/// With DSA, which needs a CPU with MOVDIR64B.
const GEN4_DSA: Kind = Kind { engine: Some(("0b25", DSA)), ..GEN4 };
const AMD: Kind = Kind {
    model: "amd-ntb",
    driver: "ntb_hw_amd",
    options: &["--window", "24"],
    engine: Some(("1498", "ptdma")),
};
/// Half of its BAR are lookup-table windows.
const SWITCHTEC: Kind = Kind {
    model: "switchtec",
    driver: "ntb_hw_switchtec",
    options: &["--window", "25", "--entries", "256"],
    engine: Some(("0b00", "ioatdma")),
};

impl Kind {
    fn without_engine(self) -> Kind {
        Kind { engine: None, ..self }
    }

    fn start(self) -> Result<Bridge> {
        let server = std::env::var_os("ISTHMUS_MODELS").map(PathBuf::from);
        let server = server.context("ISTHMUS_MODELS is not set: run ./isthmus test ntb_bridges")?;
        let mut options = self.options.to_vec();
        let mut sockets = 2;
        if let Some((device, _)) = self.engine {
            options.extend(["--engine", device]);
            sockets = 4;
        }
        let model = ModelServer::start_several(&server, self.model, sockets, &options)?;
        Ok(Bridge { kind: self, model, program: Program::with_vfio_user()? })
    }
}

/// A running bridge model.
struct Bridge {
    kind: Kind,
    model: ModelServer,
    program: Program,
}

impl Bridge {
    /// Connects a machine to one side of the bridge.
    fn joined(&self, side: usize, spec: Spec) -> Spec {
        let spec = spec.machine(Machine::Q35).program(self.program.clone()).memory(256);
        let spec = spec.vfio_user(&self.model.socket_of(side));
        let spec = match self.kind.engine {
            Some((_, DSA)) => spec.accelerator(Accelerator::Kvm).cpu("host"),
            _ => spec,
        };
        match self.kind.engine {
            Some(_) => spec.vfio_user(&self.model.socket_of(2 + side)),
            None => spec,
        }
    }

    /// The image at side 0 or 1, which is 10.9.0.1 or 10.9.0.2.
    fn image(&self, side: usize, words: &str) -> Result<Spec> {
        let ends = format!(
            "isthmus.ntb.0.device=pci:0000:00:01.0 isthmus.ntb.0.address=10.9.0.{} \
             isthmus.ntb.0.peer=10.9.0.{} isthmus.ntb.0.trust=peer ",
            side + 1,
            2 - side
        );
        Ok(self.joined(side, image_spec()?).append(&ends).append(words))
    }

    /// Boots the image that exports 4 MiB.
    fn server(&self) -> Result<Vm> {
        boot(self.image(0, "isthmus.volume.0.size=4MiB isthmus.rnbd.queue_depth=64")?)
    }

    /// Boots the image that maps them as `far`, beside an equal volume of its own.
    fn client(&self) -> Result<Vm> {
        let words = "isthmus.volume.0.name=near isthmus.volume.0.size=4MiB \
                     isthmus.remote.0.name=far isthmus.remote.0.sessname=gw \
                     isthmus.remote.0.device_path=ram0 \
                     isthmus.remote.0.path=ip:10.9.0.2@ip:10.9.0.1";
        boot(self.image(1, words)?)
    }
}

fn boot(spec: Spec) -> Result<Vm> {
    let mut vm = spec.start()?;
    vm.wait_ready()?;
    Ok(vm)
}

/// The first bridge of `show ntb`.
fn shown(vm: &mut Vm) -> Result<Value> {
    Ok(vm.run("show ntb --json")?.json()?[0].clone())
}

fn wait_open(client: &mut Vm) -> Result<()> {
    let waited = wait_for(client, "remote list csv", OPEN, PATIENCE);
    waited.map(drop).with_context(|| match shown(client) {
        Ok(shown) => format!("{shown:#}"),
        Err(why) => why.to_string(),
    })
}

/// Reads the volume, and then writes all of it: a mirror makes it a copy of the client's own volume.
fn a_volume_is_used(kind: Kind) -> Result<()> {
    let bridge = kind.start()?;
    let (mut server, mut client) = (bridge.server()?, bridge.client()?);
    wait_open(&mut client)?;
    client.run("remote read far count=300 size=4KiB depth=16")?.contains("300 reads of 4096")?;
    client.run("remote read far count=8 size=512KiB depth=2")?.contains("8 reads of 524288")?;
    client.run("mirror create both near far force")?.contains("in force now")?;
    let synced = r#""name":"far","state":"in sync""#;
    wait_for(&mut client, "mirror list json", synced, PATIENCE)?;
    client.run("remote read both count=100 size=4KiB depth=8")?.contains("100 reads of 4096")?;
    for vm in [&mut server, &mut client] {
        let shown = shown(vm)?;
        let device = format!("{}, pci:0000:00:01.0", kind.driver);
        ensure!(shown["link"] == "up" && shown["device"] == *device, "{shown:#}");
        ensure!(shown["doorbell"] == "interrupts", "{shown:#}");
        for key in ["violations", "qp_errors", "link_down", "engine_resets", "engines_lost"] {
            ensure!(shown[key] == 0, "{key}: {shown:#}");
        }
        let [cpu, engine] = ["bytes_by_cpu", "bytes_by_engine"].map(|key| shown[key].as_u64());
        let moved = [cpu, engine].map(|count| count > Some(3 << 20));
        ensure!(moved == [kind.engine.is_none(), kind.engine.is_some()], "{shown:#}");
        let by = match kind.engine {
            Some((_, driver)) => format!("{driver}, pci:0000:00:02.0, channel 0"),
            None => "cpu".into(),
        };
        ensure!(shown["carried_by"] == by.as_str(), "{shown:#}");
        ensure!(shown["interrupts"].as_u64() > Some(0), "{shown:#}");
        vm.run("show log")?.lacks("ERROR")?.lacks("panic")?;
    }
    for vm in [&mut server, &mut client] {
        vm.qmp.execute("quit", serde_json::json!({}))?;
        vm.wait_exit()?;
    }
    let counters = bridge.model.counters()?;
    for line in counters.lines().filter(|line| line.contains("unreachable")) {
        ensure!(line.ends_with(" 0"), "{counters}");
    }
    Ok(())
}

/// Kills each machine under load. Link and session recover, and requests continue.
fn session_recovers_from_a_kill_of_either_machine(kind: Kind, rounds: u64) -> Result<()> {
    let rounds = if std::env::var_os("ISTHMUS_FULL").is_some() { 50 } else { rounds };
    let bridge = kind.start()?;
    let (mut server, mut client) = (bridge.server()?, bridge.client()?);
    wait_open(&mut client)?;
    for round in 0..rounds {
        client.serial.send(b"remote read far count=3000 size=4KiB depth=16\r")?;
        let before = shown(&mut server)?["entries_received"].clone();
        let deadline = Instant::now() + PATIENCE;
        while shown(&mut server)?["entries_received"] == before {
            ensure!(Instant::now() < deadline, "round {round}: there is no traffic");
        }
        std::thread::sleep(Duration::from_millis(37 * round % 400));
        server.kill();
        server = bridge.server()?;
        let read = client.wait_for_within("reads of 4096 bytes in", PATIENCE);
        read.with_context(|| format!("round {round}: the client does not recover"))?;
        client.wait_ready()?;
        wait_open(&mut client)?;
        client.serial.send(b"remote read far count=100000 size=4KiB depth=16\r")?;
        std::thread::sleep(Duration::from_millis(200 + 53 * round % 400));
        client.kill();
        client = bridge.client()?;
        wait_open(&mut client)
            .with_context(|| format!("round {round}: after the client was killed"))?;
    }
    for vm in [&mut server, &mut client] {
        let shown = shown(vm)?;
        ensure!(shown["violations"] == 0, "{shown:#}");
    }
    Ok(())
}

/// The second core owns the server's bridge, and serves the requests from it.
#[test]
fn a_bridge_of_the_second_core_is_served_there() -> Result<()> {
    let bridge = GEN3.start()?;
    let words = "isthmus.volume.0.size=4MiB isthmus.rnbd.queue_depth=64 isthmus.ntb.0.core=1";
    let mut server = boot(bridge.image(0, words)?.cpus(2))?;
    let mut client = bridge.client()?;
    wait_open(&mut client)?;
    let read = client.run("remote read far count=300 size=4KiB depth=16")?;
    read.contains("300 reads of 4096")?;
    // The other core publishes the state of its bridges periodically.
    let deadline = Instant::now() + PATIENCE;
    let ntb = loop {
        let ntb = shown(&mut server)?;
        if ntb["entries_received"].as_u64() > Some(300) {
            break ntb;
        }
        ensure!(Instant::now() < deadline, "{ntb:#}");
    };
    ensure!(ntb["core"] == 1 && ntb["link"] == "up" && ntb["violations"] == 0, "{ntb:#}");
    ensure!(ntb["doorbell"] == "interrupts", "{ntb:#}");
    let loops = server.run("show loops --json")?.json()?;
    let served = |core: usize| {
        let stages = loops[core]["stages"].as_array().into_iter().flatten();
        let serve = stages.filter(|stage| stage["stage"] == "serve");
        serve.filter_map(|stage| stage["items"].as_u64()).sum::<u64>()
    };
    ensure!(served(1) > 50 && served(0) == 0, "{loops:#}");
    server.run("session list csv")?.contains("gw")?;
    server.run("ntb measure")?.contains("core 1 owns the bridge")?;
    client.run("ntb measure")?.contains("rc_rdma_read_lat")?;
    server.run("ntb reset ntb0")?.lacks("error")?;
    wait_open(&mut client)?;
    client.run("remote read far count=300 size=4KiB depth=16")?.contains("300 reads of 4096")?;
    server.run("show log")?.lacks("ERROR")?.lacks("panic")?;
    Ok(())
}

/// The server lends a session's memory to its client, so that the engine writes data to their final place, and the CPU
/// reads only headers.
#[test]
fn a_write_is_touched_by_no_cpu_of_the_server() -> Result<()> {
    let disk = tempfile::NamedTempFile::new()?;
    disk.as_file().set_len(4 << 20)?;
    let bridge = GEN3.start()?;
    // The disk takes the PCI slot before the bridge's.
    let words = "isthmus.ntb.0.device=pci:0000:00:02.0 isthmus.volume.0.name=ram0 \
                 isthmus.volume.0.disk=0 isthmus.rnbd.queue_depth=16 \
                 isthmus.rnbd.always_invalidate=false";
    let mut server = boot(bridge.image(0, words)?.disk(Disk::new(disk.path())))?;
    let mut client = bridge.client()?;
    wait_open(&mut client)?;
    client.run("mirror create both near far force")?.contains("in force now")?;
    let synced = r#""name":"far","state":"in sync""#;
    wait_for(&mut client, "mirror list json", synced, PATIENCE)?;
    client.run("remote read both count=100 size=4KiB depth=8")?.contains("100 reads of 4096")?;
    let (wrote, got) = (shown(&mut client)?, shown(&mut server)?);
    let count = |ntb: &Value, key: &str| ntb[key].as_u64().with_context(|| format!("{ntb:#}"));
    let placed = count(&wrote, "bytes_placed")?;
    ensure!(placed > 3 << 20 && count(&wrote, "bytes_by_engine")? >= placed, "{wrote:#}");
    ensure!(count(&wrote, "bytes_by_cpu")? == 0, "{wrote:#}");
    ensure!(count(&got, "bytes_copied")? < placed / 32, "{got:#}");
    ensure!(got["violations"] == 0 && got["qp_errors"] == 0, "{got:#}");
    server.run("show log")?.lacks("ERROR")?.lacks("panic")?;
    Ok(())
}

/// If the configured core does not exist, the first core owns the bridge, and the log reports it.
#[test]
fn missing_core_is_logged() -> Result<()> {
    let bridge = GEN3.without_engine().start()?;
    let mut server = boot(bridge.image(0, "isthmus.ntb.0.core=2")?.cpus(2))?;
    server.run("show log")?.contains("ntb0: there is no core 2; accepted: 0 to 1")?;
    ensure!(shown(&mut server)?["core"] == 0);
    Ok(())
}

#[test]
fn a_volume_is_used_over_intel_gen3_and_ioat() -> Result<()> {
    a_volume_is_used(GEN3)
}

#[test]
fn a_volume_is_used_over_intel_gen3_alone() -> Result<()> {
    a_volume_is_used(GEN3.without_engine())
}

#[test]
fn a_volume_is_used_over_intel_gen4_and_ioat() -> Result<()> {
    a_volume_is_used(GEN4)
}

#[test]
fn a_volume_is_used_over_switchtec_and_ioat() -> Result<()> {
    a_volume_is_used(SWITCHTEC)
}

#[test]
fn a_volume_is_used_over_amd_and_ptdma() -> Result<()> {
    a_volume_is_used(AMD)
}

#[test]
fn session_recovers_from_a_kill_of_either_machine_over_intel_gen3() -> Result<()> {
    session_recovers_from_a_kill_of_either_machine(GEN3, 1)
}

#[test]
fn session_recovers_from_a_kill_of_either_machine_over_intel_gen4() -> Result<()> {
    session_recovers_from_a_kill_of_either_machine(GEN4, 1)
}

#[test]
fn session_recovers_from_a_kill_of_either_machine_over_switchtec() -> Result<()> {
    session_recovers_from_a_kill_of_either_machine(SWITCHTEC, 1)
}

/// A stock client uses an image, which reaches another image with the disk across the bridge.
fn data_survives_over(kind: Kind) -> Result<()> {
    let bridge = kind.start()?;
    data_survives(|far, spec| bridge.joined(usize::from(far), spec))
}

#[test]
fn data_survives_over_intel_gen3_and_ioat() -> Result<()> {
    data_survives_over(GEN3)
}

#[test]
fn data_survives_over_intel_gen4_and_ioat() -> Result<()> {
    data_survives_over(GEN4)
}

#[test]
fn data_survives_over_switchtec_and_ioat() -> Result<()> {
    data_survives_over(SWITCHTEC)
}

#[test]
fn data_survives_over_intel_gen4_and_dsa_if_the_cpu_has_movdir64b() -> Result<()> {
    if let Some(why) = without_movdir64b()? {
        return skip("DSA beside a bridge", &why);
    }
    a_volume_is_used(GEN4_DSA)?;
    data_survives_over(GEN4_DSA)
}

/// The stock client uses SMC-R to an image, which relays over SMC-R across the bridge to another image.
fn messages_go_over_smc_r_over(kind: Kind) -> Result<()> {
    let bridge = kind.start()?;
    messages_go_over_smc_r(|far, spec| bridge.joined(usize::from(far), spec), [0, 1])
}

#[test]
fn messages_go_over_smc_r_over_intel_gen3_and_ioat() -> Result<()> {
    messages_go_over_smc_r_over(GEN3)
}

#[test]
fn messages_go_over_smc_r_over_intel_gen4_and_ioat() -> Result<()> {
    messages_go_over_smc_r_over(GEN4)
}

#[test]
fn messages_go_over_smc_r_over_switchtec_and_ioat() -> Result<()> {
    messages_go_over_smc_r_over(SWITCHTEC)
}
