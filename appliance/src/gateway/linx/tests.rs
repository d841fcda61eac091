//! Links are added, changed and removed at run time.

use super::*;
use rand_chacha::ChaCha12Rng;
use rand_core::SeedableRng;

const BOARD: &str = "[[linx]]\nname = \"board\"\ntransport = \"riocm\"\nrapidio = 0\npeer_id = 3\n\
    port = 11\npeer_port = 22\n";
const FAR: &str = "[[linx]]\nname = \"far\"\ntransport = \"tcp\"\naddress = \"10.0.0.7\"\n";

struct Machine {
    arena: Arena,
    linx: Option<Box<Linx>>,
    now: Instant,
}

impl Machine {
    fn new(links: &[&str]) -> Machine {
        let mut arena = Arena::on_heap(16 << 20);
        let (mut rng, now) = (ChaCha12Rng::seed_from_u64(1), Instant::from_nanos(1));
        let config = config(links);
        let linx = Linx::of(&config, &[], &mut arena, &mut [], &mut rng, now);
        Machine { arena, linx, now }
    }

    fn configure(&mut self, links: &[&str]) -> bool {
        let linx = self.linx.as_mut().unwrap();
        linx.configure(&config(links), &[], &mut self.arena, &mut [], self.now)
    }

    fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / 10 {
            self.now = self.now + Duration::from_millis(10);
            self.linx.as_mut().unwrap().poll(&mut [], &[], self.now);
        }
    }

    /// Names of the links, and whether the node has them.
    fn links(&self) -> Vec<(String, bool)> {
        let status = self.linx.as_ref().unwrap().status();
        let links = status.links.iter();
        links.map(|(settings, status)| (settings.name.to_string(), status.is_some())).collect()
    }
}

fn config(links: &[&str]) -> Config {
    let text = format!("[[rapidio]]\nrole = \"host\"\nid = 1\n{}", links.concat());
    crate::config::check(text.as_bytes()).unwrap()
}

fn there(names: &[&str]) -> Vec<(String, bool)> {
    names.iter().map(|name| (name.to_string(), true)).collect()
}

#[test]
fn links_follow_the_configuration() {
    assert!(Machine::new(&[]).linx.is_none(), "no link, no memory");
    let mut machine = Machine::new(&[BOARD]);
    assert_eq!(machine.links(), there(&["board"]));
    assert!(machine.configure(&[BOARD, FAR]));
    assert_eq!(machine.links(), there(&["board", "far"]));
    assert!(!machine.configure(&[BOARD, FAR]), "nothing has changed");
    let before = machine.linx.as_ref().unwrap().links[0].id;
    // Another transport setting makes another link of the same name and ends.
    let slower = format!("{BOARD}heartbeat_ms = 1000\n");
    assert!(machine.configure(&[&slower, FAR]));
    machine.pass(Duration::from_secs(1));
    assert_eq!(machine.links(), there(&["far", "board"]));
    assert_ne!(machine.linx.as_ref().unwrap().links[1].id, before);
    assert!(machine.configure(&[]));
    assert_eq!(machine.links(), []);
    assert!(machine.configure(&[FAR]), "the memory is free again");
    assert_eq!(machine.links(), there(&["far"]));
}

#[test]
fn services_and_attributes_change_without_a_new_link() {
    let mut machine = Machine::new(&[FAR]);
    let id = machine.linx.as_ref().unwrap().links[0].id;
    let endpoints = |machine: &Machine| -> Vec<String> {
        let echo = &machine.linx.as_ref().unwrap().echo;
        echo.names().map(str::to_string).collect()
    };
    assert!(endpoints(&machine).is_empty());
    let echo = format!("{FAR}services = [\"echo\"]\nattributes = \"rack:3\"\n");
    assert!(!machine.configure(&[&echo]));
    assert_eq!(endpoints(&machine), ["echo"]);
    let renamed = format!("{FAR}services = [\"echo\"]\npublish = [\"a\", \"b\"]\n");
    assert!(!machine.configure(&[&renamed]));
    assert_eq!(endpoints(&machine), ["a", "b"]);
    assert!(!machine.configure(&[FAR]));
    assert!(endpoints(&machine).is_empty());
    assert_eq!(machine.linx.as_ref().unwrap().links[0].id, id);
}

#[test]
fn link_without_memory_is_listed_as_missing() {
    let mut machine = Machine::new(&[FAR]);
    let large = "[[linx]]\nname = \"large\"\ntransport = \"tcp\"\naddress = \"10.0.0.8\"\n\
        max_message = \"1MiB\"\n";
    assert!(machine.configure(&[FAR, large]));
    machine.pass(Duration::from_secs(5));
    assert_eq!(machine.links(), [("far".into(), true), ("large".into(), false)]);
    let linx = machine.linx.as_ref().unwrap();
    assert_eq!(linx.retry_at, None, "it is not tried for ever");
    assert!(!machine.configure(&[FAR]), "rules did not use it");
    assert_eq!(machine.links(), there(&["far"]));
}
