//! `./isthmus doctor`, `./isthmus support`, and the requests of `./isthmus top`: asks an appliance over its HTTP API.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::http;

/// Environment variable with the token.
const TOKEN: &str = "ISTHMUS_TOKEN";

/// Seconds for the response to a request that `doctor` or `support` makes over TLS.
const LONG: u32 = 120;
/// Seconds for the response to a request that `top` makes over TLS.
const SHORT: u32 = 10;
/// Longest response in bytes over TLS.
const LONGEST: u64 = 64 << 20;

/// Where the appliance is, and the token.
#[derive(clap::Args)]
pub struct Target {
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
    appliance: Target,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of `support`.
#[derive(clap::Args)]
pub struct SupportOptions {
    #[command(flatten)]
    appliance: Target,
    /// The file to write
    #[arg(long, default_value = "support.tar")]
    output: PathBuf,
}

/// Options of `top`.
#[derive(clap::Args)]
pub struct TopOptions {
    /// The appliance.
    #[command(flatten)]
    pub appliance: Target,
    /// Print one frame as plain text, and end
    #[arg(long)]
    pub once: bool,
    /// Seconds between two rounds of requests
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=3600))]
    interval: u16,
}

impl TopOptions {
    /// Time between two rounds.
    pub fn period(&self) -> Duration {
        Duration::from_secs(self.interval.into())
    }
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

/// Why a page was not fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The appliance did not answer with HTTP: the reason.
    Unreachable(String),
    /// Another status than 200, and the body.
    Refused(u16, String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Unreachable(why) => f.write_str(why),
            Failure::Refused(status, why) => write!(f, "the appliance answers {status}: {why}"),
        }
    }
}

impl std::error::Error for Failure {}

impl Target {
    /// The token, or None if neither the option nor the environment has one.
    fn token(&self) -> Result<Option<String>> {
        let token = match &self.token {
            Some(path) => fs::read_to_string(path)
                .with_context(|| format!("could not read {}", path.display()))?,
            None => match std::env::var(TOKEN) {
                Ok(token) if !token.trim().is_empty() => token,
                _ => return Ok(None),
            },
        };
        let token = token.trim().to_string();
        let fits = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        ensure!(
            fits && !token.contains(['"', '\\']),
            "the token of --token or {TOKEN} is malformed"
        );
        Ok(Some(token))
    }

    /// The appliance, for requests with or without a token.
    pub fn connect(&self) -> Result<Appliance> {
        let (token, pin) = (self.token()?, self.pin.clone());
        Ok(Appliance { address: self.address.clone(), token, pin, seconds: SHORT })
    }

    /// The body of a page of `/api/v1`, which needs a token.
    fn get(&self, path: &str) -> Result<Vec<u8>> {
        let appliance = Appliance { seconds: LONG, ..self.connect()? };
        ensure!(
            appliance.token.is_some(),
            "this needs the token of a user ([[user]] or http.token_sha256): set {TOKEN}, or use --token FILE"
        );
        Ok(appliance.fetch(&format!("/api/v1/{path}"))?)
    }
}

/// An appliance to which requests are sent.
#[derive(Clone)]
pub struct Appliance {
    address: String,
    token: Option<String>,
    pin: Option<String>,
    /// Limit for a response over TLS.
    seconds: u32,
}

impl Appliance {
    /// An appliance by its address, without TLS.
    pub fn plain(address: &str, token: Option<&str>) -> Appliance {
        let token = token.map(Into::into);
        Appliance { address: address.into(), token, pin: None, seconds: SHORT }
    }

    /// The address as the user gave it.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The body of the page at `path`.
    pub fn fetch(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let asked = match self.address.starts_with("https://") {
            true => self.fetch_by_curl(path),
            false => self.fetch_plainly(path),
        };
        let (status, body) = asked.map_err(|why| Failure::Unreachable(format!("{why:#}")))?;
        match status {
            200 => Ok(body),
            _ => Err(Failure::Refused(status, String::from_utf8_lossy(&body).trim().into())),
        }
    }

    fn fetch_plainly(&self, path: &str) -> Result<(u16, Vec<u8>)> {
        let (server, host) = server(&self.address)?;
        let bearer = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let mut fields = vec![("Host", host.as_str())];
        fields.extend(bearer.as_ref().map(|bearer| ("Authorization", bearer.as_str())));
        let (status, _, body) = http::request_bytes(server, "GET", path, &fields, "")?;
        Ok((status, body))
    }

    /// Asks over TLS. The token is passed on standard input, so that other users of this host do not see it.
    fn fetch_by_curl(&self, path: &str) -> Result<(u16, Vec<u8>)> {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", &self.seconds.to_string()]);
        // The status follows the body.
        curl.args(["--config", "-", "--write-out", "\n%{http_code}"]);
        if let Some(pin) = &self.pin {
            // The pin replaces the authority.
            curl.args(["--insecure", "--pinnedpubkey", pin]);
        }
        curl.arg(format!("{}{path}", self.address.trim_end_matches('/')));
        curl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = curl.spawn().context("could not start curl, which https needs")?;
        if let (Some(mut input), Some(token)) = (child.stdin.take(), &self.token) {
            let config = format!("header = \"Authorization: Bearer {token}\"\n");
            input.write_all(config.as_bytes()).context("curl")?;
        }
        let mut output = Vec::new();
        if let Some(pipe) = child.stdout.take() {
            // Dropping the pipe ends a curl that would write more.
            pipe.take(LONGEST).read_to_end(&mut output).context("curl")?;
        }
        let ended = child.wait_with_output().context("curl")?;
        if !ended.status.success() {
            bail!("{}: {}", ended.status, String::from_utf8_lossy(&ended.stderr).trim());
        }
        let end =
            output.iter().rposition(|&byte| byte == b'\n').context("curl printed no status")?;
        let status = str::from_utf8(&output[end + 1..]).ok().and_then(|code| code.parse().ok());
        output.truncate(end);
        Ok((status.context("curl printed no status")?, output))
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
    fn server_that_is_gone_and_one_that_refuses_are_told_apart() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let answers = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).unwrap();
            stream.write_all(b"HTTP/1.1 401 Unauthorized\r\n\r\nno token\n").unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        let appliance = Appliance::plain(&address, Some("secret"));
        let refused = appliance.fetch("/status").unwrap_err();
        assert_eq!(refused, Failure::Refused(401, "no token".into()));
        let request = answers.join().unwrap();
        assert!(request.contains("Authorization: Bearer secret\r\n"), "{request}");
        let gone = appliance.fetch("/status").unwrap_err();
        assert!(matches!(&gone, Failure::Unreachable(_)), "{gone}");
    }

    #[test]
    fn fault_is_found_in_text_and_json() {
        assert!(has_fault("1 fault, 0 warnings\nfault    link          net0: the link is down\n"));
        assert!(!has_fault("0 faults, 1 warning\nwarning  exports       any host\n"));
        assert!(has_fault("{\"state\":\"fault\",\"faults\":1"));
        assert!(!has_fault("{\"state\":\"warning\",\"faults\":0"));
    }
}
