//! `./isthmus doctor` and `./isthmus support`: asks an appliance over its HTTP API.

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::http;

/// Environment variable with the token.
const TOKEN: &str = "ISTHMUS_TOKEN";

/// Where the appliance is, and the token.
#[derive(clap::Args)]
pub struct Appliance {
    /// Address or name of the appliance, with a port if it is not 80, or a URL (https://gateway-1)
    address: String,
    /// A file with the token of a user; by default ISTHMUS_TOKEN has it
    #[arg(long)]
    token: Option<PathBuf>,
    /// For https: the pin of `show tls`, if no authority has signed the certificate
    #[arg(long)]
    pin: Option<String>,
}

/// Options of `doctor`.
#[derive(clap::Args)]
pub struct DoctorOptions {
    #[command(flatten)]
    appliance: Appliance,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of `support`.
#[derive(clap::Args)]
pub struct SupportOptions {
    #[command(flatten)]
    appliance: Appliance,
    /// The file to write
    #[arg(long, default_value = "support.tar")]
    output: PathBuf,
}

/// Prints the checks of an appliance. An error if one has found a fault.
pub fn doctor(options: &DoctorOptions) -> Result<()> {
    let path = if options.json { "doctor" } else { "doctor?format=text" };
    let report = String::from_utf8_lossy(&options.appliance.get(path)?).into_owned();
    print!("{report}");
    ensure!(!has_fault(&report), "the appliance has faults");
    Ok(())
}

/// Writes the support bundle of an appliance to a file.
pub fn support(options: &SupportOptions) -> Result<()> {
    let bundle = options.appliance.get("support")?;
    let path = &options.output;
    fs::write(path, &bundle).with_context(|| format!("could not write {}", path.display()))?;
    println!("{}", path.display());
    Ok(())
}

/// Whether a report, in text or JSON, has a fault.
fn has_fault(report: &str) -> bool {
    report.starts_with("{\"state\":\"fault\"")
        || report.lines().any(|line| line.starts_with("fault "))
}

impl Appliance {
    fn token(&self) -> Result<String> {
        let token = match &self.token {
            Some(path) => fs::read_to_string(path)
                .with_context(|| format!("could not read {}", path.display()))?,
            None => std::env::var(TOKEN).unwrap_or_default(),
        };
        let token = token.trim().to_string();
        let fits = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(
            fits && !token.contains(['"', '\\']),
            "this needs the token of a user ([[user]] or http.token_sha256): set {TOKEN}, or use --token FILE"
        );
        Ok(token)
    }

    /// The body of a page of `/api/v1`.
    fn get(&self, path: &str) -> Result<Vec<u8>> {
        let (token, path) = (self.token()?, format!("/api/v1/{path}"));
        if self.address.starts_with("https://") {
            return self.get_by_curl(&path, &token);
        }
        let (server, host) = server(&self.address)?;
        let bearer = format!("Bearer {token}");
        let fields = [("Host", host.as_str()), ("Authorization", bearer.as_str())];
        let (status, _, body) = http::request_bytes(server, "GET", &path, &fields, "")?;
        if status != 200 {
            bail!("{server} answers {status}: {}", String::from_utf8_lossy(&body).trim());
        }
        Ok(body)
    }

    /// Asks over TLS. The token is passed on standard input, so that other users of this host do not see it.
    fn get_by_curl(&self, path: &str, token: &str) -> Result<Vec<u8>> {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail-with-body", "--max-time", "120"]);
        curl.args(["--config", "-"]);
        if let Some(pin) = &self.pin {
            // The pin replaces the authority.
            curl.args(["--insecure", "--pinnedpubkey", pin]);
        }
        curl.arg(format!("{}{path}", self.address.trim_end_matches('/')));
        curl.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = curl.spawn().context("could not start curl, which https needs")?;
        let config = format!("header = \"Authorization: Bearer {token}\"\n");
        if let Some(mut input) = child.stdin.take() {
            input.write_all(config.as_bytes()).context("curl")?;
        }
        let output = child.wait_with_output().context("curl")?;
        if !output.status.success() {
            bail!("curl: {}: {}", output.status, String::from_utf8_lossy(&output.stdout).trim());
        }
        Ok(output.stdout)
    }
}

/// Address of the server, and the value of `Host`, which has to name the appliance.
fn server(address: &str) -> Result<(SocketAddr, String)> {
    let address = address.strip_prefix("http://").unwrap_or(address).trim_end_matches('/');
    let is_plain_v6 = address.matches(':').count() > 1 && !address.starts_with('[');
    let host = if is_plain_v6 { format!("[{address}]") } else { address.to_string() };
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let with_port = match has_port && !is_plain_v6 {
        true => host.clone(),
        false => format!("{host}:80"),
    };
    let mut found = with_port.to_socket_addrs().with_context(|| format!("{address:?}"))?;
    let server = found.next().with_context(|| format!("{address:?} has no address"))?;
    Ok((server, host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_may_have_a_port_and_a_scheme() {
        for (address, wanted, host) in [
            ("10.0.0.1", "10.0.0.1:80", "10.0.0.1"),
            ("10.0.0.1:8080", "10.0.0.1:8080", "10.0.0.1:8080"),
            ("http://10.0.0.1/", "10.0.0.1:80", "10.0.0.1"),
            ("fd00::1", "[fd00::1]:80", "[fd00::1]"),
            ("[fd00::1]:8080", "[fd00::1]:8080", "[fd00::1]:8080"),
        ] {
            let found = server(address).unwrap();
            assert_eq!(found, (wanted.parse().unwrap(), host.to_string()), "{address}");
        }
    }

    #[test]
    fn fault_is_found_in_text_and_json() {
        assert!(has_fault("1 fault, 0 warnings\nfault    link          net0: the link is down\n"));
        assert!(!has_fault("0 faults, 1 warning\nwarning  exports       any host\n"));
        assert!(has_fault("{\"state\":\"fault\",\"faults\":1"));
        assert!(!has_fault("{\"state\":\"warning\",\"faults\":0"));
    }
}
