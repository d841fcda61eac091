//! `./isthmus demo [SCENE]`: the gateway and stock Linux hosts in QEMU, in scenes of a minute.
//!
//! The image is a quick one (`build::Profile::Quick`): the same program and checks as the shipped image, not optimised.

mod messaging;
mod mirror;
mod nvme;
mod rapidio;
mod stage;
mod storage;
mod wait;

use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::guest;
use crate::setup::{self, Purpose};
use stage::Stage;

/// Options of `./isthmus demo`.
#[derive(Args)]
pub struct Options {
    /// The scene to show
    #[arg(value_enum, default_value_t = Scene::Storage)]
    scene: Scene,
    /// List the scenes
    #[arg(long)]
    list: bool,
}

/// A scene.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scene {
    /// A stock Linux host maps a volume with rnbd-client, makes a file system on it, and reads its data back
    Storage,
    /// A stock Linux client reaches a TCP service through a rule, over SMC-R and over TCP
    Messaging,
    /// A volume mirrored on a local disk and a stock Linux server keeps its data when the server goes away
    Mirror,
    /// A stock Linux host maps a volume over NVMe/TCP with nvme-cli; no module is built for it
    Nvme,
    /// The gateway on a RapidIO network (on models of the bridges) beside a stock Linux host: rionet, then a volume
    Rapidio,
}

impl Scene {
    fn show(self, stage: &Stage) -> Result<Vec<String>> {
        match self {
            Scene::Storage => storage::show(stage),
            Scene::Messaging => messaging::show(stage),
            Scene::Mirror => mirror::show(stage),
            Scene::Nvme => nvme::show(stage),
            Scene::Rapidio => rapidio::show(stage),
        }
    }
}

/// Shows a scene, or lists the scenes. No process is left running.
pub fn demo(options: &Options) -> Result<()> {
    if options.list {
        for scene in Scene::value_variants() {
            let value = scene.to_possible_value().expect("no scene is hidden");
            let help = value.get_help().map(ToString::to_string).unwrap_or_default();
            println!("{:<10} {help}", value.get_name());
        }
        return Ok(());
    }
    let started = Instant::now();
    setup::install(&[Purpose::Build, Purpose::Run, Purpose::Guest])?;
    let stage = Stage::prepare(match options.scene {
        Scene::Rapidio => guest::prepare,
        Scene::Nvme => guest::prepare_plain,
        _ => guest::prepare_for_storage,
    })?;
    let prepared = started.elapsed();
    let shown = options.scene.show(&stage)?;
    let scene = started.elapsed() - prepared;
    println!("\nResult");
    for line in shown {
        println!("  {line}");
    }
    println!(
        "  Image: {} (quick build, not optimised; published figures are of the shipped image)\n  \
         Time: {:.0} s to prepare, {:.0} s for the scene. Nothing was installed, and nothing is left running.\n\
         Next\n  \
         ./isthmus demo --list     other scenes\n  \
         ./isthmus run             the shipped image, with its console on this terminal\n  \
         ./isthmus test            the short tests, about 20 minutes",
        stage.image.elf.display(),
        prepared.as_secs_f64(),
        scene.as_secs_f64(),
    );
    Ok(())
}
