//! Benchmarks of the appliance, run by `./isthmus bench SUITE`, which builds the image first.

mod boot;
mod callgrind;
mod features;
mod instructions;
mod memory_trace;
mod metal;
mod mlx5;
mod ntrdma;
mod report;
mod rio_cm_echo;
mod riocm;
mod rnbd;
mod roce;
mod rtrs_client;
mod scale;
mod site;
mod smcr;
mod usnic;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};

#[derive(Parser)]
struct Arguments {
    suite: Suite,
    /// Measure only this figure, if the suite supports it
    #[arg(long = "key", value_parser = clap::builder::PossibleValuesParser::new(scale::KEYS))]
    keys: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Suite {
    /// Size, memory, boot, UDP echo, idling
    Boot,
    /// Instructions per packet of the RoCE provider
    Roce,
    /// Bandwidth, latency and instructions of NTRDMA over shared memory
    Ntrdma,
    /// Instructions per I/O of the storage server, beside Linux
    Rnbd,
    /// Instructions per I/O of the client of a remote server, beside Linux; failover
    RtrsClient,
    /// Instructions per round, byte and connection of SMC-R, beside Linux
    Smcr,
    /// Instructions per request of drivers of real hardware, on device models
    Metal,
    /// Instructions per I/O of the storage server and of SMC-R on models of a ConnectX
    Mlx5,
    /// Instructions per message and byte of the usNIC engine
    Usnic,
    /// Instructions per message and byte of LINX over RIOCM
    Riocm,
    /// The same work with and without many sessions, volumes and connections
    Scale,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.suite {
        Suite::Boot => boot::bench(),
        Suite::Roce => roce::bench(),
        Suite::Ntrdma => ntrdma::bench(),
        Suite::Rnbd => rnbd::bench(),
        Suite::RtrsClient => rtrs_client::bench(),
        Suite::Smcr => smcr::bench(),
        Suite::Metal => metal::bench(),
        Suite::Mlx5 => mlx5::bench(),
        Suite::Usnic => usnic::bench(),
        Suite::Riocm => riocm::bench(),
        Suite::Scale => scale::bench(arguments.keys),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
