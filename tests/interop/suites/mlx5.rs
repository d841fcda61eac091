//! ConnectX: the model under Linux's stock drivers (`mlx5_core`, its netdev, `mlx5_ib`), which validate the model;
//! faulty models, which Linux detects; and the image at one function of a model, with stock Linux at the other. The
//! model's behaviour on errors is an assumption, because no real card was available.
mod console;
mod cores;
mod faults;
mod reboots;
mod remote;
mod smc;
mod tools;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use interop_tests::{image_spec, map, storage, system, unmap};
use launch::guest::{self, Guest, System};
use launch::models::ModelServer;
use launch::qemu::{Machine, Program, Vm};

const LIMIT: Duration = Duration::from_secs(240);
/// Address of the guest's function.
const HERE: &str = "10.1.0.1";
/// Address of the other function, in a network namespace of the guest or in the image.
const THERE: &str = "10.1.0.2";

/// Starts a model with this many functions on one wire.
fn model(functions: usize, options: &[&str]) -> Result<ModelServer> {
    let server = std::env::var_os("ISTHMUS_MODELS").map(PathBuf::from);
    let server = server.context("ISTHMUS_MODELS is not set: run ./isthmus test mlx5")?;
    ModelServer::start_several(&server, "mlx5", functions, options)
}

/// Boots the image with the second function of a model, and `words` on its command line.
fn image(model: &ModelServer, mtu: u16, words: &str) -> Result<Vm> {
    image_on(1, model, mtu, words)
}

/// As `image`, with this many processors.
fn image_on(cpus: u32, model: &ModelServer, mtu: u16, words: &str) -> Result<Vm> {
    let address = format!("isthmus.net.0.address={THERE}/24 isthmus.net.0.mtu={mtu}");
    let spec = image_spec()?.machine(Machine::Q35).program(Program::with_vfio_user()?);
    let spec = spec.cpus(cpus).vfio_user(&model.socket_of(1));
    let mut vm = spec.append(&address).append(words).start()?;
    vm.wait_ready()?;
    Ok(vm)
}

/// A guest with functions of the model.
struct Linux {
    model: ModelServer,
    guest: Guest,
}

impl Linux {
    /// Boots a guest with this many functions on one wire.
    fn boot(functions: usize, options: &[&str]) -> Result<Linux> {
        Linux::at(model(functions, options)?, functions)
    }

    /// Boots a guest with the first functions of a model.
    fn at(model: ModelServer, functions: usize) -> Result<Linux> {
        Linux::with(model, functions, None)
    }

    /// As `at`, and with the first function of another model after them.
    fn with(model: ModelServer, functions: usize, other: Option<&ModelServer>) -> Result<Linux> {
        Linux::of(system()?, model, functions, other)
    }

    /// As `with`, on this guest system.
    fn of(
        system: &System,
        model: ModelServer,
        functions: usize,
        other: Option<&ModelServer>,
    ) -> Result<Linux> {
        let mut spec = system.spec("linux", &[], 1500).program(Program::with_vfio_user()?);
        for number in 0..functions {
            spec = spec.vfio_user(&model.socket_of(number));
        }
        if let Some(other) = other {
            spec = spec.vfio_user(&other.socket_of(0));
        }
        let mut guest = Guest::start("linux", spec)?;
        guest.wait_up()?;
        Ok(Linux { model, guest })
    }

    /// Boots a guest with the first of two functions, its interface up with this MTU, while the image has the other.
    fn beside_image(model: ModelServer, mtu: u16) -> Result<Linux> {
        let mut linux = Linux::at(model, 1)?;
        linux.load()?;
        linux.guest.wait_until("[ -e /sys/class/net/eth0 ]", LIMIT)?;
        linux.sh(&format!("ip link set eth0 mtu {mtu} up && ip addr add {HERE}/24 dev eth0"))?;
        match linux.guest.wait_until("[ $(cat /sys/class/net/eth0/operstate) = up ]", LIMIT) {
            Ok(_) => Ok(linux),
            Err(_) => linux.fail("no carrier"),
        }
    }

    /// Loads `mlx5_core`, which also drives the interface.
    fn load(&mut self) -> Result<()> {
        let loaded = self.guest.try_sh("modprobe mlx5_core", LIMIT);
        loaded
            .with_context(|| format!("the output of the model server:\n{}", self.model.output()))?;
        Ok(())
    }

    /// Configures addresses on both functions, the second in a namespace of its own.
    fn configure(&mut self) -> Result<()> {
        let there = self
            .guest
            .wait_until("[ -e /sys/class/net/eth0 ] && [ -e /sys/class/net/eth1 ]", LIMIT);
        if there.is_err() {
            return self.fail("no interfaces");
        }
        self.sh(&format!(
            "set -e
             ip netns add there && ip link set eth1 netns there
             ip link set eth0 up && ip addr add {HERE}/24 dev eth0
             ip netns exec there ip link set lo up
             ip netns exec there ip link set eth1 up
             ip netns exec there ip addr add {THERE}/24 dev eth1"
        ))?;
        let up = "[ $(cat /sys/class/net/eth0/operstate) = up ]";
        match self.guest.wait_until(up, LIMIT) {
            Ok(_) => Ok(()),
            Err(_) => self.fail("no carrier"),
        }
    }

    /// Runs a command in the guest. If it fails, the error has the messages of kernel and model.
    fn sh(&mut self, command: &str) -> Result<String> {
        match self.guest.try_sh(command, LIMIT)? {
            (0, output) => Ok(output),
            (status, output) => self.fail(&format!("`{command}` ended with {status}: {output}")),
        }
    }

    /// Runs a tool with its server in the namespace, and returns the client's output. The client retries until the
    /// server is up.
    fn tool(&mut self, server: &str, client: &str) -> Result<String> {
        self.sh(&format!(
            "ip netns exec there timeout 200 {server} >/tmp/server 2>&1 & server=$!
             for n in 1 2 3 4 5; do
                 sleep 2
                 timeout 100 {client} && wait $server && exit 0
             done
             cat /tmp/server
             exit 1"
        ))
    }

    /// Ends the guest, and returns an error with the messages of kernel and model.
    fn fail<T>(&mut self, what: &str) -> Result<T> {
        let said = self.messages()?;
        self.guest.vm.qmp.execute("quit", serde_json::json!({}))?;
        self.guest.vm.wait_exit()?;
        std::thread::sleep(Duration::from_secs(1));
        bail!("{what}\n{said}\n{}", self.model.output())
    }

    /// The kernel's messages on the functions.
    fn messages(&mut self) -> Result<String> {
        let words = ["mlx5", "eth[01]", "infiniband", "BUG", "WARN", "Oops", "Call Trace", "RIP"];
        let words = words.map(|word| format!("-e '{word}'")).join(" ");
        self.guest.sh(&format!("dmesg | grep -i {words} | tail -60 || true"))
    }

    /// Switches the guest off, and returns the model's counters.
    fn end(mut self) -> Result<String> {
        self.guest.vm.qmp.execute("quit", serde_json::json!({}))?;
        self.guest.vm.wait_exit()?;
        self.model.counters()
    }
}

fn counter(counters: &str, name: &str) -> Result<u64> {
    let line = counters.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Ok(line.with_context(|| format!("no {name} in:\n{counters}"))?.parse()?)
}

/// The functions at both ends of a wire.
const BOTH: [&str; 2] = ["function0", "function1"];
/// The model's counters of driver errors.
const RULES: [&str; 2] = ["complaints", "refused"];

/// Checks that these counters of these functions are zero.
fn are_zero(counters: &str, functions: &[&str], names: &[&str]) -> Result<()> {
    for function in functions {
        for name in names {
            ensure!(counter(counters, &format!("{function}.{name}"))? == 0, "{counters}");
        }
    }
    Ok(())
}

/// Checks that each of the functions has sent more than this many RoCE packets.
fn have_sent_roce(counters: &str, functions: &[&str], packets: u64) -> Result<()> {
    for function in functions {
        ensure!(counter(counters, &format!("{function}.roce_sent"))? > packets, "{counters}");
    }
    Ok(())
}

/// Words in the kernel's messages that report a fault.
const WRONG: [&str; 8] =
    ["failed", "rror", "BUG", "WARNING", "Oops", "timeout", "health compromised", "Call Trace"];

/// The netdevs of two functions exchange pings of all sizes, and TCP with segmentation offload.
fn netdevs_reach_each_other(mut linux: Linux) -> Result<()> {
    linux.load()?;
    linux.configure()?;
    linux.sh(&format!("ping -c 10 -i 0.2 -W 5 {THERE}"))?;
    linux.sh(&format!("ping -c 10 -i 0.1 -s 1400 -W 5 {THERE}"))?;
    linux.sh(&format!(
        "set -e
         dd if=/dev/urandom of=/tmp/sent bs=64k count=64
         ip netns exec there sh -c 'sleep 60 | nc -l -p 5000 >/tmp/received' &
         until ip netns exec there grep -q ':1388 ' /proc/net/tcp /proc/net/tcp6; do sleep 0.2; done
         nc {THERE} 5000 </tmp/sent
         sleep 1
         cmp /tmp/sent /tmp/received"
    ))?;
    linux.sh("ip link set eth0 down && ip link set eth0 mtu 9000 up")?;
    linux.sh("ip netns exec there ip link set eth1 down mtu 9000")?;
    linux.sh("ip netns exec there ip link set eth1 up")?;
    linux.sh(&format!("sleep 1; ping -c 10 -i 0.1 -s 8900 -W 5 {THERE}"))?;
    linux.sh("rmmod mlx5_core")?;
    let said = linux.messages()?;
    let counters = linux.end()?;
    ensure!(!WRONG.iter().any(|word| said.contains(word)), "{said}\n{counters}");
    are_zero(&counters, &BOTH, &RULES)?;
    are_zero(&counters, &BOTH, &["left", "pages"])
}

#[test]
fn netdevs_of_virtual_functions_reach_each_other() -> Result<()> {
    netdevs_reach_each_other(Linux::boot(2, &["--no-roce"])?)
}

#[test]
fn netdevs_of_an_older_linux_reach_each_other() -> Result<()> {
    let system = guest::prepare_older()?;
    ensure!(system.release.starts_with("6.1."), "{}", system.release);
    netdevs_reach_each_other(Linux::of(&system, model(2, &["--no-roce"])?, 2, None)?)
}

#[test]
fn netdevs_of_physical_functions_reach_each_other() -> Result<()> {
    let options = ["--no-roce", "--device", "1015", "--late", "300", "--out-of-order"];
    netdevs_reach_each_other(Linux::boot(2, &options)?)
}

/// Verbs: the connection manager over queue pair 1, READ, WRITE and SEND between the two functions, as RoCEv2 frames.
fn verbs_reach_each_other(options: &[&str]) -> Result<()> {
    let mut linux = Linux::boot(2, options)?;
    linux.load()?;
    linux.configure()?;
    linux.sh("modprobe -a mlx5_ib rdma_ucm ib_uverbs && sleep 1")?;
    linux.sh("[ $(ls /sys/class/infiniband | wc -l) = 2 ] && ibv_devinfo")?;
    linux.tool(
        "rping -s -a 10.1.0.2 -C 10 -S 4096 -V",
        "rping -c -a 10.1.0.2 -C 10 -S 4096 -V -v",
    )?;
    for tool in ["ib_write_bw", "ib_read_bw", "ib_send_bw"] {
        let words = format!("{tool} -R -s 65536 -n 50");
        let said = linux.tool(&words, &format!("{words} {THERE}"))?;
        ensure!(said.contains("\n 65536 "), "{said}");
    }
    // Datagrams, and a connection whose parameters are exchanged over TCP.
    for tool in ["ibv_ud_pingpong", "ibv_rc_pingpong"] {
        let said = linux.tool(
            &format!("{tool} -d mlx5_1 -g 1 -n 50"),
            &format!("{tool} -d mlx5_0 -g 1 -n 50 {THERE}"),
        )?;
        ensure!(said.contains("50 iters in"), "{said}");
    }
    linux.sh("rmmod mlx5_ib && rmmod mlx5_core")?;
    let said = linux.messages()?;
    let counters = linux.end()?;
    ensure!(!WRONG.iter().any(|word| said.contains(word)), "{said}\n{counters}");
    are_zero(&counters, &BOTH, &RULES)?;
    are_zero(&counters, &BOTH, &["left", "roce_dropped"])?;
    have_sent_roce(&counters, &BOTH, 1000)?;
    // SEND, WRITE, READ, and changes of keys.
    for opcode in ["0a", "08", "10", "25"] {
        ensure!(counter(&counters, &format!("function0.request.{opcode}"))? > 0, "{counters}");
    }
    Ok(())
}

#[test]
fn verbs_of_virtual_functions_reach_each_other() -> Result<()> {
    verbs_reach_each_other(&[])
}

/// Kernel verbs: NVMe over RDMA with target and host behind the same function, over its loopback. Work requests
/// register keys, and SENDs invalidate them.
#[test]
fn nvme_over_rdma_works_over_loopback() -> Result<()> {
    let mut linux = Linux::boot(1, &[])?;
    linux.load()?;
    linux.guest.wait_until("[ -e /sys/class/net/eth0 ]", LIMIT)?;
    linux.sh(&format!(
        "set -e
         ip link set eth0 up && ip addr add {HERE}/24 dev eth0
         modprobe -a mlx5_ib nvmet_rdma nvme_rdma
         modprobe brd rd_nr=1 rd_size=32768
         mount -t configfs none /sys/kernel/config
         cd /sys/kernel/config/nvmet
         mkdir subsystems/t && echo 1 >subsystems/t/attr_allow_any_host
         mkdir subsystems/t/namespaces/1
         echo /dev/ram0 >subsystems/t/namespaces/1/device_path
         echo 1 >subsystems/t/namespaces/1/enable
         mkdir ports/1 && cd ports/1
         echo {HERE} >addr_traddr; echo rdma >addr_trtype; echo 4420 >addr_trsvcid
         echo ipv4 >addr_adrfam
         ln -s ../../subsystems/t subsystems/t"
    ))?;
    linux.sh(&format!(
        "set -e
         echo transport=rdma,traddr={HERE},trsvcid=4420,nqn=t,nr_io_queues=1 >/dev/nvme-fabrics
         until [ -b /dev/nvme0n1 ]; do sleep 0.2; done
         dd if=/dev/urandom of=/tmp/written bs=1M count=8
         dd if=/tmp/written of=/dev/nvme0n1 bs=128k oflag=direct conv=notrunc
         dd if=/dev/nvme0n1 bs=128k count=64 iflag=direct of=/tmp/read
         cmp /tmp/written /tmp/read
         cmp -n $((8 << 20)) /tmp/written /dev/ram0
         echo 1 >/sys/class/nvme/nvme0/delete_controller"
    ))?;
    let said = linux.messages()?;
    let counters = linux.end()?;
    ensure!(!WRONG.iter().any(|word| said.contains(word)), "{said}\n{counters}");
    ensure!(counter(&counters, "function0.complaints")? == 0, "{counters}");
    // SENDs that invalidate, WRITEs and READs of the target, and changes of keys.
    for opcode in ["01", "08", "10", "25"] {
        ensure!(counter(&counters, &format!("function0.request.{opcode}"))? > 60, "{counters}");
    }
    Ok(())
}

/// The driver's load does not end, because it waits for the firmware.
#[test]
fn a_model_that_never_comes_up_is_noticed() -> Result<()> {
    let mut linux = Linux::boot(1, &["--fault", "never-ready"])?;
    linux.sh("(modprobe mlx5_core &) ; sleep 10; [ ! -e /sys/class/net/eth0 ]")?;
    let said = linux.messages()?;
    ensure!(said.contains("waiting for FW initialization") || !said.contains("Link up"), "{said}");
    let counters = linux.end()?;
    ensure!(counter(&counters, "function0.commands")? == 0, "{counters}");
    Ok(())
}

#[test]
fn a_model_of_another_revision_is_noticed() -> Result<()> {
    let mut linux = Linux::boot(1, &["--fault", "other-revision"])?;
    linux.load()?;
    let said = linux.messages()?;
    ensure!(said.contains("cmd_if_rev") || said.contains("cmdif rev"), "{said}");
    Ok(())
}

#[test]
fn a_model_whose_completions_have_the_wrong_owner_is_noticed() -> Result<()> {
    let mut linux = Linux::boot(2, &["--no-roce", "--fault", "owner-bit"])?;
    linux.load()?;
    linux.configure()?;
    // The driver binds and the link comes up all the same.
    linux.sh(&format!("! ping -c 3 -W 2 {THERE}"))?;
    Ok(())
}

#[test]
fn a_model_whose_health_counter_stands_is_noticed() -> Result<()> {
    let mut linux = Linux::boot(1, &["--no-roce", "--fault", "stuck-health"])?;
    linux.load()?;
    let compromised = "dmesg | grep -q 'health compromised'";
    match linux.guest.wait_until(compromised, LIMIT) {
        Ok(()) => Ok(()),
        Err(_) => linux.fail("Linux does not report the fault"),
    }
}

#[test]
fn a_model_with_wrong_checksums_is_noticed() -> Result<()> {
    let mut linux = Linux::boot(2, &["--no-roce", "--fault", "checksum"])?;
    linux.load()?;
    linux.configure()?;
    // Linux finds that the hardware's sum does not match the packet's checksum, and reports it.
    linux.sh(&format!("ping -c 5 -W 2 {THERE}; true"))?;
    let said = linux.sh("dmesg | grep -i 'hw csum failure' || cat /proc/net/snmp")?;
    ensure!(said.contains("hw csum failure"), "{said}");
    Ok(())
}

#[test]
fn a_model_with_a_wrong_crc_is_noticed() -> Result<()> {
    let mut linux = Linux::boot(2, &["--fault", "packet-crc"])?;
    linux.load()?;
    linux.configure()?;
    linux.sh("modprobe -a mlx5_ib rdma_ucm ib_uverbs && sleep 1")?;
    linux.sh(&format!(
        "ip netns exec there timeout 20 rping -s -a {THERE} -C 1 & sleep 1
         ! timeout 15 rping -c -a {THERE} -C 1"
    ))?;
    let counters = linux.end()?;
    ensure!(counter(&counters, "function1.roce_dropped")? > 0, "{counters}");
    Ok(())
}

/// Stock `rnbd-client` maps the image's volume, and verifies its writes.
fn maps_and_verifies(linux: &mut Linux) -> Result<()> {
    linux.sh("modprobe rnbd-client")?;
    let path = format!("ip:{HERE}@ip:{THERE}");
    if let Err(why) = map(&mut linux.guest, "s1", &path, "ram0", "") {
        return linux.fail(&format!("the volume was not mapped: {why:#}"));
    }
    storage::fio_verifies(&mut linux.guest, 8, 16)?;
    unmap(&mut linux.guest, 0)
}

/// Services over the image's Ethernet port: ping both ways, frames of all sizes, HTTP, and soft-RoCE, over which stock
/// `rnbd-client` maps a volume, and verifies its writes.
fn the_image_is_reached(options: &[&str]) -> Result<()> {
    let model = model(2, options)?;
    let words = "isthmus.volume.0.size=32MiB";
    let mut vm = image(&model, 9000, words)?;
    let mut linux = Linux::beside_image(model, 9000)?;
    vm.run("show devices")?.contains("mlx5")?.contains("link up")?;
    let interfaces = vm.run("show interfaces --json")?.json()?;
    ensure!(interfaces[0]["mac"] == "ec:0d:9a:01:02:02", "{interfaces}");
    ensure!(interfaces[0]["mtu"] == 9000, "{interfaces}");
    for size in [0, 56, 1472, 8900, 8972] {
        linux.sh(&format!("ping -c 10 -i 0.1 -s {size} -W 5 {THERE}"))?;
    }
    vm.run(&format!("ping {HERE}"))?.contains(HERE)?.lacks("no answer")?;
    for _ in 0..5 {
        let page = linux.sh(&format!("wget -q -O - http://{THERE}/metrics"))?;
        ensure!(page.contains("isthmus_port_resets_total{"), "{page}");
    }
    linux.guest.soft_roce()?;
    maps_and_verifies(&mut linux)?;
    let interfaces = vm.run("show interfaces --json")?.json()?;
    ensure!(interfaces[0]["rx_errors"] == 0 && interfaces[0]["resets"] == 0, "{interfaces}");
    ensure!(interfaces[0]["interrupts"].as_u64().is_some_and(|count| count > 0), "{interfaces}");
    vm.run("show log")?.lacks("ERROR")?;
    drop(vm);
    let said = linux.messages()?;
    let counters = linux.end()?;
    ensure!(!WRONG.iter().any(|word| said.contains(word)), "{said}\n{counters}");
    are_zero(&counters, &BOTH, &RULES)
}

#[test]
fn the_image_at_a_virtual_function_is_reached() -> Result<()> {
    the_image_is_reached(&["--no-roce"])
}

#[test]
fn the_image_at_a_physical_function_is_reached() -> Result<()> {
    the_image_is_reached(&["--no-roce", "--device", "1015", "--late", "300", "--out-of-order"])
}

/// The image and stock Linux with `mlx5_ib`, each at a function of the model that does RoCE in hardware.
struct Cards {
    vm: Vm,
    linux: Linux,
}

impl Cards {
    fn boot(options: &[&str], words: &str) -> Result<Cards> {
        Cards::boot_on(1, options, words)
    }

    /// As `boot`, with this many processors for the image.
    fn boot_on(cpus: u32, options: &[&str], words: &str) -> Result<Cards> {
        let model = model(2, options)?;
        let mut vm = image_on(cpus, &model, 4200, words)?;
        let mut linux = Linux::beside_image(model, 4200)?;
        let interfaces = vm.run("show interfaces --json")?.json()?;
        let log = vm.run("show log")?.text;
        ensure!(interfaces[0]["roce"] == "hardware", "{interfaces}\n{log}");
        linux.sh("modprobe -a mlx5_ib rdma_ucm ib_uverbs && sleep 1")?;
        linux.sh(&format!("ping -c 3 -W 5 {THERE}"))?;
        Ok(Cards { vm, linux })
    }

    /// Ends both, and checks that neither they nor the model report a fault, and that the cards did all of RoCE.
    fn end(self) -> Result<()> {
        self.end_with_late_packets(0)
    }

    /// As `end`, but this many packets may have arrived for queue pairs that Linux had just destroyed.
    fn end_with_late_packets(mut self, late: u64) -> Result<()> {
        self.vm.run("show log")?.lacks("ERROR")?;
        let page = self.linux.sh(&format!("wget -q -O - http://{THERE}/metrics"))?;
        ensure!(page.contains("isthmus_roce_card_up{port=\"net0\"} 1"), "{page}");
        for nothing in [
            "isthmus_roce_queue_pairs 0",
            "isthmus_roce_connections 0",
            "isthmus_roce_card_refused_total{port=\"net0\"} 0",
            "isthmus_roce_card_completions_lost_total{port=\"net0\"} 0",
            "isthmus_roce_card_completions_unknown_total{port=\"net0\"} 0",
        ] {
            ensure!(page.contains(nothing), "{page}");
        }
        drop(self.vm);
        let said = self.linux.messages()?;
        let counters = self.linux.end()?;
        ensure!(!WRONG.iter().any(|word| said.contains(word)), "{said}\n{counters}");
        are_zero(&counters, &BOTH, &RULES)?;
        are_zero(&counters, &["function1"], &["roce_dropped"])?;
        ensure!(counter(&counters, "function0.roce_dropped")? <= late, "{counters}");
        have_sent_roce(&counters, &BOTH, 20)
    }
}

#[test]
fn cards_of_the_image_and_linux_rping_each_other() -> Result<()> {
    let mut cards = Cards::boot(&[], "isthmus.roce.services=true")?;
    cards.linux.sh(&format!("timeout 60 rping -c -a {THERE} -C 10 -S 4096 -V -v"))?;
    cards.linux.sh(&format!("rping -s -P -a {HERE} -S 65535 >/tmp/rping 2>&1 & sleep 1"))?;
    cards.vm.run(&format!("rping {HERE} 5 65535"))?.contains("5 of 5 came back")?;
    cards.end()
}

#[test]
fn a_card_of_the_image_serves_a_volume_with_fresh_keys() -> Result<()> {
    let mut cards = Cards::boot(&[], "isthmus.volume.0.size=32MiB")?;
    maps_and_verifies(&mut cards.linux)?;
    cards.end()
}

#[test]
fn a_card_of_the_image_serves_a_volume_with_lasting_keys() -> Result<()> {
    let options = ["--device", "1017", "--late", "300", "--out-of-order"];
    let words = "isthmus.volume.0.size=32MiB isthmus.rnbd.always_invalidate=false";
    let mut cards = Cards::boot(&options, words)?;
    maps_and_verifies(&mut cards.linux)?;
    cards.end()
}
