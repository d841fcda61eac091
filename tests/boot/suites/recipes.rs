//! The recipes for hypervisors that are not here, and for Terraform: their syntax, and what of them the image reads.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use boot_tests::{boot, pypi, spec};
use launch::qemu::{Disk, Nic, Vm};
use launch::{command, workspace};
use serde_json::Value;

use super::provisioning::{fat, with_strings};

/// Readers of YAML and of HCL.
const PACKAGES: [&str; 4] =
    ["PyYAML==6.0.4", "python-hcl2==8.1.4", "lark==1.3.1", "regex==2026.11.19"];

fn recipe(name: &str) -> PathBuf {
    workspace::root().join("launch/recipes").join(name)
}

fn json(name: &str) -> Result<Value> {
    serde_json::from_str(&std::fs::read_to_string(recipe(name))?).context(name.to_string())
}

/// A file as JSON, by a line of Python that reads `f`.
fn parsed(name: &str, module: &str, call: &str) -> Result<Value> {
    let python = pypi::environment("recipes", &PACKAGES)?.join("bin/python");
    let script = format!(
        "import json, sys, {module}\nf = open(sys.argv[1])\njson.dump({module}.{call}, sys.stdout)"
    );
    let text = command::output(Command::new(python).args(["-c", &script]).arg(recipe(name)))?;
    serde_json::from_str(&text).context(name.to_string())
}

/// The texts of a list.
fn texts(list: &Value) -> Result<Vec<&str>> {
    list.as_array().context("a list")?.iter().map(|text| text.as_str().context("a text")).collect()
}

/// Whether a machine has the configuration of the recipes.
fn is_gateway(vm: &mut Vm) -> Result<()> {
    vm.run("show version")?.contains("gateway-1")?;
    vm.run("show interfaces")?.contains("10.0.0.1/24")?;
    vm.run("show log")?.lacks("WARN  configuration")?.lacks("ERROR configuration")?;
    Ok(())
}

#[test]
fn image_reads_the_strings_of_cloud_hypervisor_and_the_command_line_of_firecracker() -> Result<()> {
    let cloud = json("cloud-hypervisor.json")?;
    for key in ["payload", "cpus", "memory", "disks", "net", "serial"] {
        ensure!(!cloud[key].is_null(), "{key}: {cloud:#}");
    }
    let strings = texts(&cloud["platform"]["oem_strings"])?;
    is_gateway(&mut boot(with_strings(spec()?.nic(Nic::user()), &strings))?)?;
    let fire = json("firecracker.json")?;
    for key in ["boot-source", "machine-config", "drives", "network-interfaces"] {
        ensure!(!fire[key].is_null(), "{key}: {fire:#}");
    }
    let words = fire["boot-source"]["boot_args"].as_str().context("boot_args")?;
    is_gateway(&mut boot(spec()?.nic(Nic::user()).append(words))?)
}

#[test]
fn image_reads_the_seed_of_kubevirt() -> Result<()> {
    let machine = parsed("kubevirt.yaml", "yaml", "safe_load(f)")?;
    ensure!(machine["apiVersion"] == "kubevirt.io/v1" && machine["kind"] == "VirtualMachine");
    let inside = &machine["spec"]["template"]["spec"];
    let volumes = inside["volumes"].as_array().context("volumes")?;
    // Each disk has a volume, and each interface a network.
    for (these, those) in [
        (&inside["domain"]["devices"]["disks"], &inside["volumes"]),
        (&inside["domain"]["devices"]["interfaces"], &inside["networks"]),
    ] {
        for one in these.as_array().context("a list")? {
            let named = |other: &Value| other["name"] == one["name"];
            ensure!(those.as_array().is_some_and(|those| those.iter().any(named)), "{one}");
        }
    }
    let seed = volumes.iter().find(|volume| volume["name"] == "seed").context("the seed")?;
    let text = seed["cloudInitNoCloud"]["userData"].as_str().context("its document")?;
    let volume = fat("cidata", &[("user-data", text)])?;
    let disk = Disk::new(volume.path()).serial("isthmus-seed").read_only();
    let data = tempfile::NamedTempFile::new()?;
    data.as_file().set_len(8 << 20)?;
    let data = Disk::new(data.path()).serial("data");
    let mut vm = boot(spec()?.nic(Nic::user()).disk(disk).disk(data))?;
    is_gateway(&mut vm)?;
    vm.run("show exports")?.contains("data")?.contains("10.0.0.0/24")?;
    Ok(())
}

#[test]
fn syntax_of_the_other_recipes_is_right() -> Result<()> {
    command::run(Command::new("sh").arg("-n").arg(recipe("proxmox.sh")))?;
    let terraform = parsed("terraform/main.tf", "hcl2", "load(f)")?;
    for block in ["terraform", "variable", "provider", "resource", "data", "output"] {
        ensure!(!terraform[block].is_null(), "{block}: {terraform:#}");
    }
    // What was never run says so.
    for name in ["proxmox.sh", "kubevirt.yaml", "terraform/main.tf"] {
        let text = std::fs::read_to_string(recipe(name))?;
        ensure!(text.contains("never run"), "{name}");
    }
    Ok(())
}
