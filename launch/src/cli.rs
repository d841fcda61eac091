//! The command line: its verbs, and the code that each of them runs.

#[cfg(feature = "engines")]
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::build::Families;
use crate::setup::Purpose;
use crate::{bench, build, demo, full, prepush, remote, setup, symbolize, test};
#[cfg(feature = "engines")]
use crate::{check, image, ntb, passthrough, probe, release, run};

/// Builds, boots, tests and measures the Isthmus appliance.
#[derive(Parser)]
#[command(name = "isthmus", bin_name = "./isthmus", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Obtain every program that building, running and testing needs
    Setup,
    /// Build the image: target/isthmus/isthmus.elf
    Build {
        /// Also build the image for uhyve
        #[arg(long)]
        uhyve: bool,
        /// Build for development: target/isthmus/isthmus-dev.elf builds faster, and is larger and slower than the
        /// shipped image
        #[arg(long)]
        dev: bool,
        #[command(flatten)]
        families: Families,
    },
    /// Build, boot in QEMU, and open the console
    #[cfg(feature = "engines")]
    Run(run::Options),
    /// List the PCI functions of this host, and whether they can be passed to the appliance
    #[cfg(feature = "engines")]
    Devices,
    /// Test a device of this host with Isthmus's own driver, in this process, before it is passed to the appliance
    #[cfg(feature = "engines")]
    Probe(probe::Options),
    /// Serve a volume to a stock Linux guest, which makes a file system on it
    Demo(demo::Options),
    /// Run the checks before a push, which take minutes and boot nothing
    Prepush(prepush::Options),
    /// Check the text of the tree: links, pages, lengths, language
    Tidy(prepush::TidyOptions),
    /// Run the tests
    Test(test::Options),
    /// Measure the appliance: target/bench/SUITE.json, docs/figures.md
    Bench(bench::Options),
    /// Act as the peer of an appliance's NTB over TCP, and read one of its volumes
    #[cfg(feature = "engines")]
    Ntb(ntb::Options),
    /// Pack the image into a bootable file, or make a config disk
    #[cfg(feature = "engines")]
    Image(image::Options),
    /// Sign the image, so that appliances accept it as an upgrade: target/isthmus/isthmus.release
    #[cfg(feature = "engines")]
    Release(release::Options),
    /// Name the functions in the record of a panic (`show crash`), read from a file or from standard input
    Symbolize(symbolize::Options),
    /// Ask an appliance what is wrong, why, and what to do; fails if it has a fault
    Doctor(remote::DoctorOptions),
    /// Show what happens in an appliance, in a terminal
    Top(remote::TopOptions),
    /// Fetch all reports of an appliance as a tar file, without secrets
    Support(remote::SupportOptions),
    /// Check a configuration document
    #[cfg(feature = "engines")]
    Check {
        /// The document
        config: PathBuf,
    },
}

/// Parses the command line and runs its verb. The program without `engines` passes verbs that need them to
/// `launch-full`.
pub fn main() -> ExitCode {
    #[cfg(not(feature = "engines"))]
    if full::is_needed(std::env::args().nth(1).as_deref()) {
        return full::exec();
    }
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
            let profile = build::Profile::dev(dev);
            let options = build::Options { uhyve, profile, families, ..usual };
            println!("{}", built(&[], &options)?.elf.display());
            Ok(())
        }
        Verb::Demo(options) => demo::demo(&options),
        Verb::Prepush(options) => prepush::prepush(&options),
        Verb::Tidy(options) => prepush::tidy(&options),
        Verb::Test(options) => test::test(&options),
        Verb::Bench(options) => bench::bench(&options),
        #[cfg(feature = "engines")]
        Verb::Image(options) => {
            let families = options.families.clone();
            let wanted = build::Options { families, ..usual };
            let path = image::image(&options, || built(&[Purpose::Images], &wanted))?;
            println!("{}", path.display());
            Ok(())
        }
        #[cfg(feature = "engines")]
        Verb::Release(options) => {
            let wanted = build::Options { families: options.families.clone(), ..usual };
            let build = || Ok(built(&[], &wanted)?.elf);
            let (path, key) = release::release(&options, build)?;
            println!("{}\nappliances accept it if their [system] has: {key}", path.display());
            Ok(())
        }
        #[cfg(feature = "engines")]
        Verb::Ntb(options) => ntb::ntb(&options),
        Verb::Symbolize(options) => symbolize::symbolize(&options),
        Verb::Doctor(options) => remote::doctor(&options),
        Verb::Top(_) => full::top(),
        Verb::Support(options) => remote::support(&options),
        #[cfg(feature = "engines")]
        Verb::Check { config } => check::check(&config),
        #[cfg(feature = "engines")]
        Verb::Devices => passthrough::devices(&passthrough::Host::here()),
        #[cfg(feature = "engines")]
        Verb::Probe(options) => probe::probe(&options),
        #[cfg(feature = "engines")]
        Verb::Run(options) => {
            let (families, profile) = (options.families.clone(), build::Profile::dev(options.dev));
            let wanted = build::Options { families, profile, ..usual };
            run::run(&options, || built(&[Purpose::Run], &wanted))
        }
    }
}

/// Installs what building and `purposes` need, and builds the image.
fn built(purposes: &[Purpose], options: &build::Options) -> Result<build::Image> {
    setup::install(&[&[Purpose::Build], purposes].concat())?;
    build::build(options)
}

/// The texts in `launch/help`, which `./isthmus` prints without building anything.
#[cfg(all(test, feature = "engines"))]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::{pages, workspace};

    /// `ISTHMUS_WRITE_HELP=1` writes the texts.
    #[test]
    fn help_files_equal_the_help_of_the_program() {
        let mut texts = Vec::new();
        let mut completion = Vec::new();
        let mut unnamed = Arguments::command();
        clap_complete::generate(
            clap_complete::Shell::Bash,
            &mut unnamed,
            "isthmus",
            &mut completion,
        );
        texts.push(("completion.bash".to_string(), String::from_utf8(completion).unwrap()));
        let mut command = Arguments::command().term_width(100);
        command.build();
        texts.push(("isthmus.txt".to_string(), command.render_help().to_string()));
        for verb in command.get_subcommands_mut() {
            let text = verb.clone().term_width(100).render_help().to_string();
            texts.push((format!("{}.txt", verb.get_name()), text));
        }
        for (name, text) in texts {
            let path = workspace::root().join("launch/help").join(&name);
            if std::env::var_os("ISTHMUS_WRITE_HELP").is_some() {
                std::fs::write(&path, &text).unwrap();
            }
            let kept = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                kept == text,
                "launch/help/{name} is not what the program prints: write it with \
                 ISTHMUS_WRITE_HELP=1 cargo test --profile host --workspace -p launch --lib help"
            );
        }
    }

    /// The program accepts every command in README and docs.
    #[test]
    fn commands_of_the_pages_are_accepted() {
        let mut count = 0;
        for (name, page) in pages::all().unwrap() {
            for block in pages::blocks(&page) {
                let lines = [block.typed("# "), block.typed("$ ")].concat();
                let ours = lines.iter().filter_map(|line| line.split("./isthmus ").nth(1));
                for line in ours.filter(|line| !line.contains('…')) {
                    // `--no-install` is the script's own.
                    let words = line.split_whitespace().filter(|word| *word != "--no-install");
                    let words = words.take_while(|word| !["<", "|", ">"].contains(word));
                    let read = Arguments::try_parse_from(["isthmus"].into_iter().chain(words));
                    assert!(read.is_ok(), "{name}: `{line}`: {}", read.err().unwrap());
                    count += 1;
                }
            }
        }
        assert!(count > 30, "{count} commands were found");
    }
}
