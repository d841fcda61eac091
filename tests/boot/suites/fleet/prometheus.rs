//! Debian's Prometheus, which scrapes a fleet each second and evaluates the rules of the recipe. Their expressions are
//! as they are; their times of waiting (`for`) are three seconds.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use launch::http::get;
use launch::qemu::free_port;
use launch::{command, workspace};
use serde_json::{Value, json};

use super::until;

pub struct Prometheus {
    process: Child,
    port: u16,
    directory: tempfile::TempDir,
}

impl Prometheus {
    /// Starts it with these targets: names and ports.
    pub fn start(targets: &[(String, u16)]) -> Result<Prometheus> {
        let directory = tempfile::tempdir()?;
        let rules = workspace::root().join("launch/recipes/prometheus/rules.yml");
        let short = |line: &str| match line.trim_start().starts_with("for: ") {
            true => "        for: 3s\n".to_string(),
            false => format!("{line}\n"),
        };
        let rules: String = fs::read_to_string(rules)?.lines().map(short).collect();
        fs::write(directory.path().join("rules.yml"), rules)?;
        let scrape = targets.iter().map(|(name, port)| {
            json!({"targets": [format!("127.0.0.1:{port}")], "labels": {"instance": name}})
        });
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [{"job_name": "isthmus", "static_configs": scrape.collect::<Vec<_>>()}],
        });
        // JSON is YAML.
        fs::write(directory.path().join("prometheus.yml"), config.to_string())?;
        let port = free_port()?;
        let output = fs::File::create(directory.path().join("output"))?;
        let mut start = Command::new("prometheus");
        start.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        start.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"]);
        start.current_dir(directory.path()).stdin(Stdio::null());
        start.stdout(output.try_clone()?).stderr(output);
        command::end_with_us(&mut start);
        let process = start.spawn().context("prometheus did not start: run ./isthmus test")?;
        let prometheus = Prometheus { process, port, directory };
        let ready = || Ok(prometheus.query("/-/ready").is_ok_and(|answer| answer.status == 200));
        until(Duration::from_secs(60), "Prometheus is ready", ready)
            .with_context(|| prometheus.said())?;
        Ok(prometheus)
    }

    fn said(&self) -> String {
        fs::read_to_string(self.directory.path().join("output")).unwrap_or_default()
    }

    fn query(&self, path: &str) -> Result<launch::http::Answer> {
        get(([127, 0, 0, 1], self.port).into(), path)
    }

    fn data(&self, path: &str) -> Result<Value> {
        let answer = self.query(path)?;
        let value: Value = serde_json::from_str(&answer.body).with_context(|| answer.body)?;
        ensure!(value["status"] == "success", "{path}: {value}");
        Ok(value["data"].clone())
    }

    /// Whether an alert fires for an appliance.
    fn fires(&self, alert: &str, instance: &str) -> Result<bool> {
        let data = self.data("/api/v1/alerts")?;
        let alerts = data["alerts"].as_array().context("a list of alerts")?;
        Ok(alerts.iter().any(|one| {
            let labels = &one["labels"];
            labels["alertname"] == alert
                && labels["instance"] == instance
                && one["state"] == "firing"
        }))
    }

    /// Waits until an alert fires, or does not.
    pub fn wait(&self, alert: &str, instance: &str, fires: bool) -> Result<()> {
        let what = format!("{alert} of {instance} {}", if fires { "fires" } else { "clears" });
        until(Duration::from_secs(60), &what, || Ok(self.fires(alert, instance)? == fires))
    }

    /// The appliances for which an alert has fired since the start.
    pub fn fired(&self, alert: &str) -> Result<Vec<String>> {
        let alerts = format!("ALERTS%7Balertname=%22{alert}%22,alertstate=%22firing%22%7D");
        let data = self.data(&format!("/api/v1/query?query=max_over_time({alerts}%5B6h%5D)"))?;
        let series = data["result"].as_array().context("a list of series")?;
        let name = |one: &Value| one["metric"]["instance"].as_str().map(String::from);
        let mut names: Vec<String> = series.iter().filter_map(name).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
