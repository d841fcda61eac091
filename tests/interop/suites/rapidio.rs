//! The image and a stock Linux 6.12 on a RapidIO network of models of the Tsi721 and of a switch. Linux or the image is
//! the host that enumerates the network. They communicate over Ethernet (rionet) and channels (rio_cm).
mod eight;
mod hosts;
mod linx;
mod own;
mod pair;
mod rules;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use interop_tests::{image_spec, programs, system};
use launch::guest::Guest;
use launch::models::ModelServer;
use launch::qemu::{Machine, Nic, Program, Spec, Vm};
use serde_json::Value;

/// The image at port 5 of a switch, the guest at port 0.
const TOPOLOGY: &str = "A=s0.5,B=s0.0";
const PATIENCE: Duration = Duration::from_secs(90);

/// The image's settings without its role. Its only interface is rionet. A rule relays connections of the guest back to
/// the guest.
const WORDS: &str = "isthmus.rapidio.0.services=echo isthmus.rapidio.0.echo_channel=10 \
    isthmus.smc.services=true isthmus.smc.ueid.0=LAB.SMC.EID \
    isthmus.net.0.address=10.1.0.1/24 isthmus.rule.0.name=back isthmus.rule.0.listen=7000 \
    isthmus.rule.0.backend=10.1.0.2:7777";

/// The two machines, on one network.
struct Boards {
    gateway: Vm,
    guest: Guest,
    model: ModelServer,
}

impl Boards {
    fn boot(role: &str) -> Result<Boards> {
        Boards::boot_with(&format!("{WORDS} {role}"), None)
    }

    /// Boots both, the image with `words` and optionally an interface before rionet's.
    fn boot_with(words: &str, nic: Option<Nic>) -> Result<Boards> {
        let server = std::env::var_os("ISTHMUS_MODELS").map(PathBuf::from);
        let server = server.context("ISTHMUS_MODELS is not set: run ./isthmus test rapidio")?;
        let model = ModelServer::start_several(&server, "tsi721", 2, &["--topology", TOPOLOGY])?;
        let gateway = Boards::image(&model, words, nic)?;
        let guest = Boards::linux(&model)?;
        Ok(Boards { gateway, guest, model })
    }

    fn image(model: &ModelServer, words: &str, nic: Option<Nic>) -> Result<Vm> {
        let spec = image_spec()?.machine(Machine::Q35).program(Program::with_vfio_user()?);
        let spec = nic.into_iter().fold(spec.append(words), Spec::nic);
        let mut gateway = spec.vfio_user(&model.socket_of(0)).start()?;
        gateway.wait_ready()?;
        Ok(gateway)
    }

    fn linux(model: &ModelServer) -> Result<Guest> {
        let spec = system()?.spec("linux", &[], 1500).program(Program::with_vfio_user()?);
        let mut guest = Guest::start("linux", spec.vfio_user(&model.socket_of(1)))?;
        guest.wait_up()?;
        Ok(guest)
    }

    /// Loads Linux's modules, and scans the network. `options` may set `hdid`, with which Linux is the enumerating
    /// host.
    fn enumerate(&mut self, options: &str) -> Result<()> {
        self.guest
            .sh(&format!("modprobe rapidio {options} && modprobe -a idt_gen2 tsi721_mport"))?;
        let (status, said) = self.guest.try_sh("modprobe rio-scan scan=1", PATIENCE)?;
        ensure!(status == 0, "rio-scan: {said}");
        // The scan fails at once while the link is down, and is repeated then.
        let found = "ls /sys/bus/rapidio/devices | grep -q :e: || { echo 0 > /sys/bus/rapidio/scan; false; }";
        let waited = self.guest.wait_until(found, PATIENCE);
        waited.with_context(|| self.state())?;
        self.guest.sh(
            "modprobe -a rionet rio_cm && ip addr add 10.1.0.2/24 dev eth0 && ip link set eth0 up",
        )?;
        programs::install(&mut self.guest, "rio_cm")
    }

    /// Waits until `is` accepts the first port of `show rapidio`, and returns the port.
    fn until(&mut self, is: impl Fn(&Value) -> bool) -> Result<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.gateway.run("show rapidio --json")?.json()?[0].clone();
            if is(&shown) {
                return Ok(shown);
            }
            if Instant::now() > deadline {
                let log = self.gateway.run("show log")?.text;
                bail!("not in the expected state: {shown:#}\nthe log:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Pings in both directions, from Linux with all sizes, including fragments.
    fn pings(&mut self) -> Result<()> {
        self.until(|shown| shown["rionet_peers"] == 1)?;
        let answered = self.gateway.run("ping 10.1.0.2 3")?.contains("3 of 3 answered").map(drop);
        answered.with_context(|| self.state())?;
        for size in ["56", "1", "1001", "4054"] {
            let said = self.guest.sh(&format!("ping -c 3 -W 5 -s {size} 10.1.0.1"))?;
            ensure!(said.contains(" 0% packet loss"), "{said}");
        }
        Ok(())
    }

    /// The state of both machines, for errors.
    fn state(&mut self) -> String {
        let shown = self.gateway.run("show rapidio").map(|reply| reply.text).unwrap_or_default();
        let linux = "ip -s link show eth0; ip neigh; dmesg | tail -60; ls /sys/bus/rapidio/devices";
        let linux = self.guest.sh(linux).unwrap_or_default();
        format!("the image:\n{shown}\nLinux:\n{linux}\nthe model:\n{}", self.model.output())
    }

    /// Fetches pages over TCP, and checks their contents.
    fn http(&mut self) -> Result<()> {
        let page = self.guest.sh("wget -q -O - http://10.1.0.1/metrics")?;
        for sample in [
            "isthmus_rapidio_up{port=\"rio0\"} 1",
            "isthmus_rapidio_ready{port=\"rio0\"} 1",
            "isthmus_rapidio_boards{port=\"rio0\"} 1",
        ] {
            ensure!(page.contains(sample), "no {sample} in {page}");
        }
        let tree = self.guest.sh("wget -q -O - http://10.1.0.1/api/rapidio")?;
        ensure!(tree.contains("this appliance"), "{tree}");
        Ok(())
    }

    /// TCP from Linux through the image back to Linux. Every byte is checked, and half-closes are relayed.
    fn tcp(&mut self) -> Result<()> {
        programs::install(&mut self.guest, "smc")?;
        interop_tests::smc::serve(&mut self.guest, 7777, "tcp")?;
        for words in ["64 20 1", "300000 3 2"] {
            let said = self.guest.sh(&format!("timeout 100 smc echo 10.1.0.1 7000 {words} tcp"))?;
            ensure!(said.trim() == "fine", "{words}: {said}");
        }
        Ok(())
    }

    /// Channels of the guest to the image's echo service. `id` is the image's device ID.
    fn channels(&mut self, id: u64) -> Result<()> {
        let peers = self.guest.sh("rio_cm peers")?;
        ensure!(peers.trim() == id.to_string(), "{peers}");
        let said = self.guest.sh(&format!("rio_cm echo {id} 10 300"))?;
        ensure!(said.contains("315 messages came back as they were"), "{said}");
        let many = format!(
            "for n in 1 2 3 4 5 6 7 8; do rio_cm echo {id} 10 20 >/tmp/echo.$n 2>&1 & done; wait
             cat /tmp/echo.*"
        );
        let said = self.guest.sh(&many)?;
        ensure!(said.matches("35 messages came back as they were").count() == 8, "{said}");
        let said = self.guest.sh(&format!("rio_cm knock {id} 11"))?;
        ensure!(said.trim() == "Timer expired", "no service listens on channel 11: {said}");
        let shown = self.until(|shown| shown["echo_channels"] == 0)?;
        ensure!(shown["echoed"] == 315 + 8 * 35, "{shown:#}");
        ensure!(shown["rio_cm_overflowed"] == 0 && shown["rio_cm_stray"] == 0, "{shown:#}");
        ensure!(shown["rx_errors"] == 0 && shown["undelivered"] == 0, "{shown:#}");
        Ok(())
    }

    /// Maps a volume of the image over soft-RoCE over rionet.
    fn storage(&mut self) -> Result<()> {
        self.guest.sh("ip link set eth0 mtu 4000")?;
        self.guest.soft_roce()?;
        self.guest.sh("modprobe rnbd-client")?;
        let path = "ip:10.1.0.2@ip:10.1.0.1";
        interop_tests::map(&mut self.guest, "s1", path, "ram0", "")?;
        interop_tests::storage::fio_verifies(&mut self.guest, 4, 1)?;
        interop_tests::unmap(&mut self.guest, 0)
    }

    /// SMC-R over soft-RoCE over rionet: every byte of the echoes is checked, and no connection falls back to TCP.
    fn smc_r(&mut self) -> Result<()> {
        interop_tests::smc::prepare(&mut self.guest)?;
        for words in ["64 10 1", "4096 4 8", "200000 2 1"] {
            let said = self.guest.sh(&format!("timeout 100 smc echo 10.1.0.1 7 {words}"))?;
            ensure!(said.trim() == "fine", "{words}: {said}");
        }
        self.guest.sh("smc echo 10.1.0.1 7 64 1 4 hold=4 > /tmp/held 2>&1 &")?;
        let active = "[ $(smc sockets | grep -c '^ACTIVE SMCR ') = 4 ]";
        self.guest.wait_until(active, PATIENCE).with_context(|| self.state())?;
        self.guest.wait_until("grep fine /tmp/held", PATIENCE)
    }

    /// Checks that the idle image halts, and that interrupts wake it.
    fn rests(&mut self) -> Result<()> {
        let halts = |vm: &mut Vm| -> Result<f64> {
            let loops = vm.run("show loops --json")?.json()?;
            loops[0]["halted"].as_f64().with_context(|| format!("{loops}"))
        };
        let halted = halts(&mut self.gateway)?;
        ensure!(halted > 0.3, "the image halts only {halted} of the time");
        let shown = self.until(|_| true)?;
        ensure!(shown["interrupts"].as_u64() > Some(10), "{shown:#}");
        Ok(())
    }

    /// Checks that neither machine reports a fault.
    fn end(mut self) -> Result<()> {
        self.gateway.run("show log")?.lacks("ERROR")?.lacks("panic")?;
        let said = self.guest.sh("dmesg | grep -e BUG -e Oops -e 'Call Trace' || true")?;
        ensure!(said.is_empty(), "{said}");
        Ok(())
    }
}

fn rows(shown: &Value) -> Vec<(String, String, String)> {
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().trim().to_string();
    let rows = shown["network"].as_array().cloned().unwrap_or_default();
    let row = |row: &Value| (text(row, "port"), row["id"].to_string(), text(row, "device"));
    rows.iter().map(row).collect()
}

fn row(port: &str, id: &str, device: &str) -> (String, String, String) {
    (port.into(), id.into(), device.into())
}

#[test]
fn linux_enumerates_the_image_and_talks_to_it() -> Result<()> {
    let mut boards = Boards::boot("isthmus.rapidio.0.role=agent")?;
    let shown = boards.until(|shown| shown["link"] == "up")?;
    ensure!(shown["state"] == "waits for a host", "{shown:#}");
    boards.enumerate("hdid=1")?;
    let shown = boards.until(|shown| shown["state"] == "ready")?;
    // Linux assigns the lowest free ID, which is 0.
    ensure!(shown["id"] == 0 && shown["role"] == "agent", "{shown:#}");
    let tree = [
        row("", "0", "this appliance"),
        row("", "null", "switch-2 (CPS-1848)"),
        row("0", "1", "board-1 (Tsi721)"),
    ];
    ensure!(rows(&shown) == tree, "{shown:#}");
    let mac = boards.gateway.run("show interfaces --json")?.json()?[0]["mac"].clone();
    ensure!(mac == "00:01:00:01:00:00", "{mac}");
    boards.pings()?;
    boards.http()?;
    boards.tcp()?;
    boards.channels(0)?;
    boards.storage()?;
    boards.smc_r()?;
    boards.rests()?;
    boards.end()
}

#[test]
fn the_image_enumerates_linux_and_talks_to_it() -> Result<()> {
    let mut boards = Boards::boot("isthmus.rapidio.0.role=host isthmus.rapidio.0.id=3")?;
    boards.enumerate("")?;
    let shown = boards.until(|shown| shown["rionet_peers"] == 1)?;
    ensure!(shown["id"] == 3 && shown["role"] == "host", "{shown:#}");
    let tree = [
        row("", "3", "this appliance"),
        row("", "null", "switch-2 (CPS-1848)"),
        row("0", "1", "board-1 (Tsi721)"),
    ];
    ensure!(rows(&shown) == tree, "{shown:#}");
    // The image gives the switch ID 0, because it found the switch before any board.
    let id = boards.guest.sh("cat /sys/class/rapidio_port/rapidio0/port_destid")?;
    ensure!(id.trim() == "0x0001", "{id}");
    boards.pings()?;
    boards.http()?;
    boards.tcp()?;
    boards.channels(3)?;
    boards.rests()?;
    boards.end()
}
