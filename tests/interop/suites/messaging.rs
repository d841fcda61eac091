//! Unmodified applications through the messaging gateway: SMC-R on the client side, where a preloaded library makes
//! their sockets AF_SMC, and TCP on the server side. The data are the same as over TCP directly.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use interop_tests::smc::prepare;
use interop_tests::{Site, programs};
use launch::guest::{ENVIRONMENT, Guest, POSTGRESQL, UNPACK, applications};
use launch::qemu::Disk;

const RULES: &str = "isthmus.smc.ueid.0=LAB.SMC.EID \
    isthmus.rule.0.name=redis isthmus.rule.0.listen=6379 isthmus.rule.0.backend=10.0.0.2:6380 \
    isthmus.rule.1.name=nginx isthmus.rule.1.listen=80 isthmus.rule.1.backend=10.0.0.2:8080 \
    isthmus.rule.2.name=iperf3 isthmus.rule.2.listen=5201 isthmus.rule.2.backend=10.0.0.2:5202 \
    isthmus.rule.3.name=postgres isthmus.rule.3.listen=5432 isthmus.rule.3.backend=10.0.0.2:5433 \
    isthmus.http.port=8000";

const PATIENCE: Duration = Duration::from_secs(300);

/// Runs a scenario on a site with the rules, and a guest with the applications.
fn run_scenario(scenario: impl FnOnce(&mut Guest) -> Result<()>) -> Result<()> {
    let disk = Disk::new(applications()?).read_only();
    let mut site = Site::with_client(1, 1500, RULES, |spec| spec.disk(disk))?;
    let guest = &mut site.client;
    prepare(guest)?;
    programs::install_library(guest, "smc_preload")?;
    guest.sh(UNPACK)?;
    let result = scenario(guest);
    let report = ["show smc rules", "show smc stats", "show log"].map(|line| {
        let reply = site.gateway.run(line);
        reply.map_or_else(|error| format!("{error:#}"), |reply| reply.text)
    });
    let report = report.join("\n");
    result.with_context(|| format!("the appliance reports:\n{report}"))?;
    let rules = site.gateway.run("show smc rules --json")?.text;
    let clients = |mode: &str| {
        let key = format!("\"{mode}\":");
        let counts = rules.split(&key).skip(1);
        counts.filter_map(|rest| rest.split(',').next()?.parse::<u64>().ok()).sum::<u64>()
    };
    ensure!(clients("smc_clients") > 0 && clients("tcp_clients") == 0, "{report}");
    ensure!(rules.contains("\"connections\":0"), "{report}");
    Ok(())
}

/// Runs an application's command, with AF_SMC sockets if `smc` is set.
fn run(guest: &mut Guest, smc: bool, command: &str) -> Result<String> {
    let preload = if smc { "LD_PRELOAD=/bin/smc_preload.so" } else { "" };
    let script = format!("export {ENVIRONMENT}; {preload} {command}");
    let (status, said) = guest.try_sh(&script, PATIENCE)?;
    ensure!(status == 0, "`{command}` ended with {status}:\n{said}");
    Ok(said)
}

/// Waits until a server listens.
fn listens(guest: &mut Guest, port: u16) -> Result<()> {
    // State 0A is LISTEN.
    let line = format!(":{port:04X} 0*:0000 0A");
    let look = format!("cat /proc/net/tcp /proc/net/tcp6 | grep -q '{line}'");
    guest.wait_until(&look, Duration::from_secs(30))
}

#[test]
fn redis() -> Result<()> {
    run_scenario(|guest| {
        let serve = "redis-server --port 6380 --save '' --protected-mode no --daemonize yes";
        run(guest, false, serve)?;
        listens(guest, 6380)?;
        let said = run(
            guest,
            true,
            "redis-benchmark -h 10.0.0.1 -p 6379 -t ping,set,get -n 2000 -c 20 -d 1000 \
             --csv",
        )?;
        ensure!(said.contains("\"GET\",") && !said.contains("Error"), "{said}");
        // Replies that are much longer than their requests.
        let lists = "redis-benchmark -h 10.0.0.1 -p 6379 -t lrange_100 -n 200 -c 8 -d 100 --csv";
        let said = run(guest, true, lists)?;
        ensure!(said.contains("LRANGE_100") && !said.contains("Error"), "{said}");
        // A value that is written through the gateway reads the same directly and through the gateway.
        let there = "redis-cli -h 10.0.0.1 -p 6379";
        let here = "redis-cli -h 10.0.0.2 -p 6380";
        guest.sh("head -c 300000 /dev/urandom | busybox base64 > /tmp/value")?;
        run(guest, true, &format!("{there} -x set one < /tmp/value"))?;
        run(guest, false, &format!("{here} --raw get one > /tmp/direct"))?;
        run(guest, true, &format!("{there} --raw get one > /tmp/relayed"))?;
        guest.sh("cmp /tmp/direct /tmp/relayed && head -c 300000 /tmp/direct > /tmp/a && \
                  head -c 300000 /tmp/value | cmp - /tmp/a")?;
        Ok(())
    })
}

#[test]
fn nginx_and_wrk() -> Result<()> {
    run_scenario(|guest| {
        guest.sh("mkdir -p /www /tmp/nginx/logs /var/lib/nginx /var/log/nginx && head -c 1000000 /dev/urandom > /www/file
             cat > /tmp/nginx/conf <<'END'
user root;
worker_processes 1;
pid /tmp/nginx/pid;
error_log /tmp/nginx/error;
events { worker_connections 256; }
http { access_log off; server { listen 8080; root /www; } }
END
             cat > /tmp/check.lua <<'END'
local file = io.open('/www/file', 'rb')
local right = file:read('*a')
function response(status, headers, body)
    if status ~= 200 or body ~= right then
        io.stderr:write('wrong answer\\n')
        os.exit(1)
    end
end
END")?;
        run(guest, false, "nginx -p /tmp/nginx -c /tmp/nginx/conf")?;
        listens(guest, 8080)?;
        let wrk = "wrk -t 1 -c 8 -d 5 --timeout 60 -s /tmp/check.lua http://10.0.0.1:80/file";
        let said = run(guest, true, wrk)?;
        ensure!(said.contains("requests in") && !said.contains("Socket errors"), "{said}");
        ensure!(!said.contains(" 0 requests in") && !said.contains("Non-2xx"), "{said}");
        Ok(())
    })
}

#[test]
fn iperf3() -> Result<()> {
    run_scenario(|guest| {
        run(guest, false, "iperf3 -s -p 5202 -D")?;
        listens(guest, 5202)?;
        for way in ["", "-R"] {
            let said = run(guest, true, &format!("iperf3 -c 10.0.0.1 -n 5M {way}"))?;
            ensure!(said.contains("iperf Done."), "{said}");
        }
        Ok(())
    })
}

/// A server with a certificate for the gateway's address, at 10.0.0.2:5433.
fn start_postgres(guest: &mut Guest) -> Result<()> {
    let make = "cd /tmp && printf '[req]\ndistinguished_name=dn\n[dn]\n' > ssl.conf && \
        openssl req -x509 -config ssl.conf -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
        -keyout server.key -out server.crt -days 30 -subj /CN=10.0.0.1 \
        -addext subjectAltName=IP:10.0.0.1,IP:10.0.0.2";
    run(guest, false, make)?;
    // PostgreSQL does not run as root.
    guest.sh(
        "echo postgres:x:100:100::/tmp:/bin/sh >> /etc/passwd && echo postgres:x:100: >> /etc/group
         mkdir -p /pg && chown postgres:postgres /pg /tmp/server.key && chmod 600 /tmp/server.key
         chmod 1777 /tmp",
    )?;
    let as_postgres = |program: &str| {
        format!("busybox start-stop-daemon -S -c postgres -x {POSTGRESQL}/{program} --")
    };
    run(
        guest,
        false,
        &format!("{} -D /pg/data --no-locale -E UTF8 -A trust --no-sync", as_postgres("initdb")),
    )?;
    guest.sh("echo 'hostssl all all 10.0.0.0/24 trust' > /pg/data/pg_hba.conf")?;
    let serve = "-D /pg/data -p 5433 -c listen_addresses=10.0.0.2 -c unix_socket_directories= \
        -c ssl=on -c ssl_cert_file=/tmp/server.crt -c ssl_key_file=/tmp/server.key -c fsync=off";
    let serve = format!("{} {serve} > /tmp/pg.log 2>&1 &", as_postgres("postgres"));
    run(guest, false, &serve)?;
    listens(guest, 5433)
}

#[test]
fn psql_with_tls() -> Result<()> {
    run_scenario(|guest| {
        start_postgres(guest)?;
        let psql = |host: &str, port: u16, words: &str| {
            format!(
                "{POSTGRESQL}/psql -X -At -P pager=off 'host={host} port={port} user=postgres sslmode=verify-full \
                 sslrootcert=/tmp/server.crt' -v ON_ERROR_STOP=1 {words}"
            )
        };
        let relayed = |words: &str| psql("10.0.0.1", 5432, words);
        let direct = |words: &str| psql("10.0.0.2", 5433, words);
        let ssl = "-c 'select ssl, version from pg_stat_ssl where pid = pg_backend_pid()'";
        let said = run(guest, true, &relayed(ssl))?;
        ensure!(said.trim() == "t|TLSv1.3", "{said}");
        // Rows that are inserted through the gateway read the same directly and through the gateway.
        let rows = "(select g, md5(g::text) from generate_series(1, 30000) g)";
        run(guest, false, &direct(&format!("-c 'copy {rows} to stdout' > /tmp/rows")))?;
        let make = "-c 'create table one (number int primary key, sum text)'";
        run(guest, true, &relayed(&format!("{make} -c '\\copy one from /tmp/rows'")))?;
        let ask = "-c 'select * from one order by number'";
        run(guest, true, &relayed(&format!("{ask} > /tmp/relayed")))?;
        run(guest, false, &direct(&format!("{ask} > /tmp/direct")))?;
        let said = guest.sh("cmp /tmp/relayed /tmp/direct && wc -l < /tmp/relayed")?;
        ensure!(said.trim() == "30000", "{said}");
        Ok(())
    })
}
