//! The recipes for Prometheus and Grafana, checked by Prometheus' own `promtool` and against the image's metrics.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use boot_tests::spec;
use launch::{http, workspace};
use serde_json::Value;

use super::config::with_http;

fn recipe(name: &str) -> PathBuf {
    workspace::root().join("launch/recipes/prometheus").join(name)
}

/// Runs `promtool` with a text on standard input, and returns what it prints.
fn promtool(words: &[&str], file: Option<&Path>, input: &str) -> Result<String> {
    let mut command = Command::new("promtool");
    command.args(words).args(file).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("promtool did not start: run ./isthmus test")?;
    let mut stdin = child.stdin.take().context("standard input")?;
    let input = input.to_string();
    // It may print before it has read everything.
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output()?;
    // Fails where promtool does not read its standard input.
    let _ = writer.join();
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    ensure!(output.status.success(), "promtool {words:?}: {printed}");
    Ok(printed)
}

/// Names of metrics in a text, without the suffixes of a histogram.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = text.match_indices("isthmus_").map(|(at, _)| &text[at..]);
    let names = starts.map(|rest| rest.split(|c| !is_part(c)).next().unwrap_or_default());
    let family = |name: &str| {
        ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(name)
            .to_string()
    };
    names.map(family).collect()
}

/// Queries of the dashboard, with Grafana's variables replaced.
fn queries() -> Result<Vec<String>> {
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(recipe("dashboard.json"))?)?;
    let panels = dashboard["panels"].as_array().context("panels")?;
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries = targets.map(|target| {
        let query = target["expr"].as_str().context("a query")?;
        Ok(query.replace("$__rate_interval", "1m").replace("$instance", ".*"))
    });
    queries.collect()
}

#[test]
fn promtool_accepts_the_rules_and_they_fire_when_they_should() -> Result<()> {
    let checked = promtool(&["check", "rules"], Some(&recipe("rules.yml")), "")?;
    ensure!(checked.contains("rules found"), "{checked}");
    let tested = promtool(&["test", "rules"], Some(&recipe("rules-test.yml")), "")?;
    ensure!(tested.contains("SUCCESS"), "{tested}");
    // A rule that does not fire is noticed.
    let directory = tempfile::tempdir()?;
    let rules = fs::read_to_string(recipe("rules.yml"))?;
    let broken = rules.replace("isthmus_ready == 0", "isthmus_ready == 2");
    ensure!(broken != rules, "the rule is there");
    fs::write(directory.path().join("rules.yml"), broken)?;
    let test = directory.path().join("rules-test.yml");
    fs::copy(recipe("rules-test.yml"), &test)?;
    ensure!(promtool(&["test", "rules"], Some(&test), "").is_err(), "a wrong rule passes");
    Ok(())
}

#[test]
fn promtool_accepts_every_query_of_the_dashboard() -> Result<()> {
    let queries = queries()?;
    ensure!(queries.len() > 20, "{} queries", queries.len());
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("queries.yml");
    let rules: Vec<Value> = queries
        .iter()
        .enumerate()
        .map(|(n, query)| serde_json::json!({"record": format!("query:{n}"), "expr": query}))
        .collect();
    // JSON is YAML.
    let rules = serde_json::json!({"groups": [{"name": "dashboard", "rules": rules}]});
    fs::write(&file, rules.to_string())?;
    let checked = promtool(&["check", "rules"], Some(&file), "")?;
    ensure!(checked.contains(&format!("{} rules found", queries.len())), "{checked}");
    Ok(())
}

/// The sources of the metrics.
fn sources(directory: &Path, text: &mut String) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        match path.is_dir() {
            true => sources(&path, text)?,
            false => text.push_str(&fs::read_to_string(&path)?),
        }
    }
    Ok(())
}

#[test]
fn recipes_use_metrics_that_exist() -> Result<()> {
    let mut text = String::new();
    sources(&workspace::root().join("appliance/management/src/metrics"), &mut text)?;
    let known = names(&text);
    let rules = fs::read_to_string(recipe("rules.yml"))?;
    let tests = fs::read_to_string(recipe("rules-test.yml"))?;
    let used = names(&[queries()?.concat(), rules, tests].concat());
    let unknown: Vec<&String> = used.difference(&known).collect();
    ensure!(used.len() > 40 && unknown.is_empty(), "not among the metrics: {unknown:?}");
    Ok(())
}

#[test]
fn metrics_of_the_image_are_well_formed_and_have_the_labels_of_the_recipes() -> Result<()> {
    let (_vm, server) = with_http(spec()?)?;
    let page = http::get(server, "/metrics")?;
    ensure!(page.status == 200, "{}", page.head);
    // It complains about names that are a matter of taste with status 3, and about errors with status 1.
    let input = &page.body;
    let parsed = promtool(&["check", "metrics"], None, input);
    if let Err(why) = &parsed {
        ensure!(!why.to_string().contains("error while linting"), "{why}");
    }
    for sample in [
        "isthmus_ready 1",
        "isthmus_port_up{port=\"net0\"} 1",
        "isthmus_port_device_ready{port=\"net0\"} 1",
        "isthmus_loop_seconds_total{loop=\"0\",state=\"busy\"}",
        "isthmus_volume_read_seconds_bucket{volume=\"ram0\"",
        "isthmus_uptime_seconds ",
    ] {
        ensure!(input.contains(sample), "{sample} in {input}");
    }
    Ok(())
}
