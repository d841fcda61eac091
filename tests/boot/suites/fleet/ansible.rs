//! Debian's Ansible with the collection and the playbooks of `launch/recipes/ansible`.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use launch::workspace;
use serde_json::{Value, json};

use super::appliances::{Appliance, TOKEN};

/// An inventory: the hosts, and variables of all.
pub struct Inventory {
    hosts: Value,
    pub vars: Value,
}

impl Inventory {
    /// These appliances, with a configuration and the volume and export of the example.
    pub fn of(fleet: &[Appliance], config: Value) -> Inventory {
        let host = |one: &Appliance| {
            let at = json!({"ansible_host": "127.0.0.1", "isthmus_port": one.port});
            (one.name.clone(), at)
        };
        let vars = json!({
            "isthmus_token": TOKEN,
            "isthmus_config": config,
            "isthmus_volumes": {"scratch": {"size": "8MiB"}},
            "isthmus_exports": {"scratch": {"volume": "scratch", "hosts": ["10.0.0.0/24"]}},
        });
        Inventory { hosts: fleet.iter().map(host).collect(), vars }
    }
}

/// The line of a host at the end of a run.
#[derive(Debug, PartialEq, Eq)]
pub struct Recap {
    pub ok: u32,
    pub changed: u32,
    pub failed: u32,
}

pub struct Played {
    pub text: String,
    hosts: BTreeMap<String, Recap>,
}

impl Played {
    pub fn host(&self, name: &str) -> Result<&Recap> {
        self.hosts.get(name).with_context(|| format!("{name} is not in {}", self.text))
    }

    /// Checks the line of each appliance.
    pub fn each(&self, fleet: &[Appliance], good: impl Fn(&Recap) -> bool) -> Result<()> {
        for one in fleet {
            let recap = self.host(&one.name)?;
            ensure!(good(recap), "{}: {recap:?}: {}", one.name, self.text);
        }
        Ok(())
    }
}

/// Plays one of the recipes' playbooks.
pub fn play(playbook: &str, inventory: &Inventory, words: &[&str]) -> Result<Played> {
    let recipes = workspace::root().join("launch/recipes/ansible");
    let home = tempfile::tempdir()?;
    let file = home.path().join("inventory.json");
    let all = json!({"gateways": {"hosts": inventory.hosts, "vars": inventory.vars}});
    std::fs::write(&file, all.to_string())?;
    let mut ansible = Command::new("ansible-playbook");
    ansible.arg("-i").arg(&file).args(words).arg(recipes.join(playbook));
    ansible.current_dir(&recipes).env("HOME", home.path()).env("LC_ALL", "C.UTF-8");
    ansible.env("ANSIBLE_CONFIG", recipes.join("ansible.cfg")).env("ANSIBLE_NOCOLOR", "1");
    ansible
        .env("ANSIBLE_PYTHON_INTERPRETER", "/usr/bin/python3")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let output = ansible.stdin(Stdio::null()).output();
    let output = output.context("ansible-playbook did not start: run ./isthmus test fleet")?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    let recap = text.split("PLAY RECAP").nth(1).with_context(|| text.clone())?;
    let hosts = recap.lines().filter_map(line).collect();
    Ok(Played { text, hosts })
}

/// `gw-0 : ok=4 changed=3 unreachable=0 failed=0 …`
fn line(text: &str) -> Option<(String, Recap)> {
    let (name, rest) = text.split_once(" : ")?;
    let number = |key: &str| {
        let mut words = rest.split_whitespace();
        words.find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse::<u32>().ok())
    };
    let failed = number("failed")? + number("unreachable")?;
    Some((name.trim().into(), Recap { ok: number("ok")?, changed: number("changed")?, failed }))
}
