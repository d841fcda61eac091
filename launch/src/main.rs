//! The command behind `./isthmus`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use launch::build::Families;
use launch::setup::Purpose;
use launch::{
    bench, build, check, demo, image, ntb, passthrough, prepush, probe, release, run, setup,
    symbolize, test,
};

/// Builds, boots, tests and measures the Isthmus appliance.
#[derive(Parser)]
#[command(name = "isthmus", bin_name = "./isthmus", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Install everything that building, running and testing needs
    Setup,
    /// Build the image: target/isthmus/isthmus.elf
    Build {
        /// Also build the image for uhyve
        #[arg(long)]
        uhyve: bool,
        /// For development: target/isthmus/isthmus-dev.elf, built sooner, larger and slower than what is shipped
        #[arg(long)]
        dev: bool,
        #[command(flatten)]
        families: Families,
    },
    /// Build, boot in QEMU, and open the console
    Run(run::Options),
    /// List the PCI functions of this host, and whether they can be given to the appliance
    Devices,
    /// Try a device of this host with Isthmus's own driver, in this process, before it is given to the appliance
    Probe(probe::Options),
    /// Serve a volume to a stock Linux guest, which makes a file system on it
    Demo,
    /// Run the checks before a push: minutes, and nothing is booted
    Prepush(prepush::Options),
    /// Check the text of the tree: links, pages, lengths, language
    Tidy,
    /// Run the tests
    Test(test::Options),
    /// Measure the appliance: target/bench/SUITE.json
    Bench {
        /// The suites to run (all when none is named)
        #[arg(value_parser = clap::builder::PossibleValuesParser::new(bench::SUITES))]
        suites: Vec<String>,
        /// Of the suite scale: measure this figure only (may be given several times)
        #[arg(long = "key", value_name = "KEY")]
        keys: Vec<String>,
    },
    /// Be the other machine of an appliance's bridge over TCP, and read one of its volumes
    Ntb(ntb::Options),
    /// Pack the image into a file that boots, or make a config disk
    Image(image::Options),
    /// Sign the image, so that appliances take it as an upgrade: target/isthmus/isthmus.release
    Release(release::Options),
    /// Name the functions in the record of a panic (`show crash`), read from a file or from standard input
    Symbolize(symbolize::Options),
    /// Check a configuration document
    Check {
        /// The document
        config: PathBuf,
    },
}

fn main() -> ExitCode {
    match carry_out(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("isthmus: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(command: Verb) -> Result<()> {
    let usual = build::Options::default();
    match command {
        Verb::Setup => setup::install(setup::ALL),
        Verb::Build { uhyve, dev, families } => {
            let options = build::Options { uhyve, dev, families, ..usual };
            println!("{}", built(&[], &options)?.elf.display());
            Ok(())
        }
        Verb::Demo => demo::demo(&built(&[Purpose::Run, Purpose::Guest], &usual)?),
        Verb::Prepush(options) => prepush::prepush(&options),
        Verb::Tidy => prepush::tidy(),
        Verb::Test(options) => test::test(&options),
        Verb::Bench { suites, keys } => {
            setup::install(&[Purpose::Build, Purpose::Host, Purpose::Run])?;
            bench::bench(&suites, &keys)
        }
        Verb::Image(options) => {
            let families = options.families.clone();
            let wanted = build::Options { families, ..usual };
            let path = image::image(&options, || built(&[Purpose::Images], &wanted))?;
            println!("{}", path.display());
            Ok(())
        }
        Verb::Release(options) => {
            let wanted = build::Options { families: options.families.clone(), ..usual };
            let build = || Ok(built(&[], &wanted)?.elf);
            let (path, key) = release::release(&options, build)?;
            println!("{}\nappliances take it with, in [system]: {key}", path.display());
            Ok(())
        }
        Verb::Ntb(options) => ntb::ntb(&options),
        Verb::Symbolize(options) => symbolize::symbolize(&options),
        Verb::Check { config } => check::check(&config),
        Verb::Devices => passthrough::devices(&passthrough::Host::here()),
        Verb::Probe(options) => probe::probe(&options),
        Verb::Run(options) => {
            let (families, dev) = (options.families.clone(), options.dev);
            let wanted = build::Options { families, dev, ..usual };
            run::run(&options, || built(&[Purpose::Run], &wanted))
        }
    }
}

/// Installs what building and `purposes` need, and builds the image.
fn built(purposes: &[Purpose], options: &build::Options) -> Result<build::Image> {
    setup::install(&[&[Purpose::Build], purposes].concat())?;
    build::build(options)
}
