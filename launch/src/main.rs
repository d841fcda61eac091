//! The command behind `./isthmus`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use launch::{build, setup};

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
        /// Also build the standard Hermit image for uhyve
        #[arg(long)]
        uhyve: bool,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("isthmus: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Verb) -> Result<()> {
    match command {
        Verb::Setup => setup::install(setup::ALL),
        Verb::Build { uhyve } => {
            setup::install(&[setup::Purpose::Build])?;
            let image = build::build(&build::Options { uhyve })?;
            println!("{}", image.elf.display());
            Ok(())
        }
    }
}
