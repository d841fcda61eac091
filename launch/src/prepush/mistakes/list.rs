//! The mistakes to plant, each with the text that its check must print.

use super::copy::DATABASE;

/// A mistake that a check must find.
pub(super) struct Mistake {
    pub check: &'static str,
    pub what: &'static str,
    /// The crate to compile, where one is enough.
    pub only: Option<&'static str>,
    /// Files and the edit of their text, which is empty for a file that does not exist.
    pub edits: Vec<Edit>,
    /// Text that the check must print.
    pub expected: String,
}

type Edit = (String, Box<dyn Fn(&str) -> String>);

/// Appends text to a file.
fn added(file: &str, text: impl Into<String>) -> Edit {
    let text = text.into();
    (file.into(), Box::new(move |before| format!("{before}{text}")))
}

/// Replaces the whole text of a file.
fn written(file: &str, text: impl Into<String>) -> Edit {
    let text = text.into();
    (file.into(), Box::new(move |_| text.clone()))
}

/// Replaces every occurrence of a text in a file.
fn replaced(file: &str, from: &'static str, to: &'static str) -> Edit {
    (file.into(), Box::new(move |before| before.replace(from, to)))
}

fn mistake(
    check: &'static str,
    what: &'static str,
    edits: impl IntoIterator<Item = Edit>,
    expected: impl Into<String>,
) -> Mistake {
    let edits = edits.into_iter().collect();
    Mistake { check, what, only: None, edits, expected: expected.into() }
}

/// All mistakes.
pub(super) fn all() -> Vec<Mistake> {
    [text(), tidy_pages(), tidy_code(), dependencies(), compiled()].into_iter().flatten().collect()
}

fn text() -> Vec<Mistake> {
    let unformatted = "\nfn  planted( ) {}\n";
    let file = ".github/workflows/ci.yml";
    // In two pieces, because the spelling check covers this file too.
    let misspelt = concat!("rec", "ieve");
    vec![
        mistake(
            "fmt",
            "a file of the workspace is not formatted",
            [added("rdma/rtrs/src/lib.rs", unformatted)],
            "rdma/rtrs/src/lib.rs:",
        ),
        mistake(
            "fmt",
            "a file of images/efi is not formatted",
            [added("images/efi/src/main.rs", unformatted)],
            "images/efi/src/main.rs:",
        ),
        mistake(
            "fmt",
            "a file of appliance/kernel is not formatted",
            [added("appliance/kernel/src/lib.rs", unformatted)],
            "appliance/kernel/src/lib.rs:",
        ),
        mistake("typos", "a word is misspelt", [added("README.md", misspelt)], misspelt),
        mistake(
            "workflow",
            "a key is misspelt",
            [replaced(file, "runs-on", "runs-off")],
            "runs-off",
        ),
    ]
}

fn tidy_pages() -> Vec<Mistake> {
    let readme = |what, line: &str, expected: &str| {
        mistake("tidy", what, [added("README.md", format!("\n{line}\n"))], expected)
    };
    let lines = |file: &str, what| {
        let expected = format!("{file}: 1234 lines, at most");
        mistake("tidy", what, [written(file, "x\n".repeat(1234))], expected)
    };
    vec![
        readme("a link leads nowhere", "[x](docs/planted.md)", "dead link: docs/planted.md"),
        readme(
            "a link's heading is not there",
            "[x](docs/run.md#planted)",
            "dead anchor: docs/run.md#planted",
        ),
        mistake(
            "tidy",
            "README does not link a page",
            [written("docs/planted.md", "# Planted\n")],
            "docs/planted.md: README does not link",
        ),
        mistake(
            "tidy",
            "a fence does not close",
            [added("docs/run.md", "\n```\nplanted\n")],
            "a fence that does not close",
        ),
        mistake(
            "tidy",
            "text follows a closing fence",
            [added("docs/run.md", "\n```\nplanted\n``` text\n")],
            "text after a closing fence",
        ),
        readme("README has a line of 701 characters", &"x".repeat(701), "701 characters, at most"),
        lines("README.md", "README has 1234 lines"),
        lines("ARCHITECTURE.md", "ARCHITECTURE.md has 1234 lines"),
        lines("docs/status.md", "docs/status.md has 1234 lines"),
        mistake(
            "tidy",
            "docs/status.md names no suite",
            [added("docs/status.md", "\n* x (stock: `planted`)\n")],
            "`planted` is not a suite",
        ),
        mistake(
            "tidy",
            "a figure is only in README",
            [
                added("docs/figures.md", ""),
                added("README.md", "\n<!-- figures:begin -->\n98.7654\n<!-- figures:end -->\n"),
            ],
            "98.7654 is not in docs/figures.md",
        ),
    ]
}

fn tidy_code() -> Vec<Mistake> {
    let long = format!("fn planted() {{\n{}}}\n", "    f();\n".repeat(79));
    let opening = |n| written(&format!("net/src/planted_{n}.rs"), "//! What is said of it.\n");
    vec![
        mistake(
            "tidy",
            "a file has 601 lines",
            [written("net/src/planted.rs", "//\n".repeat(601))],
            "net/src/planted.rs: 601 lines, at most 600",
        ),
        mistake(
            "tidy",
            "a file that is too long grows",
            [added("tests/conformance/src/late.rs", "//\n".repeat(9))],
            "and may only shrink",
        ),
        mistake(
            "tidy",
            "a function has 81 lines",
            [written("net/src/planted.rs", long)],
            "`planted` has 81 lines, at most 80",
        ),
        mistake(
            "tidy",
            "dead code is allowed",
            [written("net/src/planted.rs", "#[allow(dead_code)]\nfn planted() {}\n")],
            "net/src/planted.rs:1: allow(dead_code)",
        ),
        mistake(
            "tidy",
            "opening comments that begin with \"What\"",
            (0..300).map(opening),
            "net/src/planted_299.rs:1:",
        ),
    ]
}

fn dependencies() -> Vec<Mistake> {
    let advisory = "```toml\n[advisory]\nid = \"RUSTSEC-2020-9999\"\npackage = \"slab\"\ndate = \"2020-01-01\"\n\
                    [versions]\npatched = []\n```\n\n# Planted\n\nPlanted.\n";
    vec![
        mistake(
            "deny",
            "a crate's licence is not allowed",
            [replaced(
                "tests/tidy/Cargo.toml",
                "license.workspace = true",
                "license = \"GPL-3.0-only\"",
            )],
            "GPL-3.0-only",
        ),
        mistake(
            "deny",
            "any version of a crate is accepted",
            [replaced("Cargo.toml", "slab = { version = \"0.4\"", "slab = { version = \"*\"")],
            "wildcard",
        ),
        mistake(
            "deny",
            "crates come from a source that is not named",
            [replaced("deny.toml", "[sources]\n", "[sources]\nallow-registry = []\n")],
            "source-not-allowed",
        ),
        mistake(
            "deny",
            "an advisory is about a crate",
            [written(&format!("{DATABASE}/crates/slab/RUSTSEC-2020-9999.md"), advisory)],
            "RUSTSEC-2020-9999",
        ),
    ]
}

fn compiled() -> Vec<Mistake> {
    let watchdog = "images/watchdog/src/lib.rs";
    let needless =
        "\n/// Planted.\npub fn planted(x: bool) -> bool {\n    if x { true } else { false }\n}\n";
    let link = "\n/// [`planted::Nothing`]\npub fn planted() {}\n";
    let failing = "\n#[cfg(test)]\nmod planted {\n    #[test]\n    fn fails() {\n        assert!(cfg!(not(test)));\n    }\n}\n";
    let of_one = |check, what, text: &str, expected: &str| Mistake {
        only: Some("watchdog"),
        ..mistake(check, what, [added(watchdog, text)], expected)
    };
    let needless_in = |check, what, file: &str| {
        mistake(check, what, [added(file, needless)], "this if-then-else expression returns a bool")
    };
    vec![
        of_one("clippy", "a lint of clippy's", needless, "returns a bool literal"),
        of_one("doc", "a link of rustdoc's leads nowhere", link, "unresolved link"),
        of_one("unit", "a unit test fails", failing, "planted::fails"),
        needless_in("clippy-efi", "a lint in the UEFI front end", "images/efi/src/main.rs"),
        needless_in("clippy-kernel", "a lint in the kernel bundle", "appliance/kernel/src/lib.rs"),
        needless_in("clippy-kernel", "a lint in the boot stub", "images/boot/src/stub/mod.rs"),
        needless_in("clippy-image", "a lint in the image", "appliance/image/src/main.rs"),
    ]
}
