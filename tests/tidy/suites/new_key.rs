//! A new key of the configuration is one line in one table. A copy of the tree gets such a line, and the key is then in
//! the document, on the console, in its completion, in the API, in the JSON Schema and in the OpenAPI description. The
//! manual is written by hand, so a test of the copy fails until it has the key. Then the copy is thrown away.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// The table, and the line before the new one.
const TABLE: (&str, &str) =
    ("appliance/operator/src/config/schema.rs", "        udp_echo: bool = false => AtOnce;\n");
const LINE: &str =
    "        /// A key that is thrown away.\n        thrown_away: u16 [2, 9] = 7 => AtOnce;\n";

/// Tests of the copy, by the file that they are appended to.
const TESTS: [(&str, &str); 2] = [
    (
        "appliance/operator/src/lib.rs",
        r##"
#[cfg(test)]
mod thrown_away {
    use crate::config::{Config, Document, InForce, compare, schema_piece};

    #[test]
    fn thrown_away_key_is_in_the_document_and_on_the_console() {
        let mut document = Document::default();
        assert!(document.to_text(false).contains("thrown_away = 7"));
        assert_eq!(document.complete("services.t"), ["services.thrown_away"]);
        document.set("services.thrown_away", "9").unwrap();
        assert!(document.to_toml().contains("thrown_away = 9"));
        let refused = document.set("services.thrown_away", "10").unwrap_err();
        assert!(refused[0].to_string().contains("from 2 to 9"));
        assert!(document.set("services.throwaway", "9").unwrap_err()[0].to_string().contains("thrown_away"));
        let changes = compare(&Config::default(), document.config());
        assert_eq!(changes[0].to_string(), "- services.thrown_away = 7\n+ services.thrown_away = 9");
        assert_eq!(InForce::of("services.thrown_away").to_string(), "in force now; `save` keeps it");
        document.unset("services.thrown_away").unwrap();
        assert_eq!(document.config().services.thrown_away, 7);
    }

    #[test]
    fn thrown_away_key_is_in_the_api_and_the_schema() {
        let document = Document::default().patched(br#"{"services":{"thrown_away":3}}"#).unwrap();
        assert!(document.to_json().contains("\"thrown_away\":3"));
        let schema: String = (0..).map_while(schema_piece).collect();
        let at = schema.find("\"thrown_away\":").unwrap();
        let part: String = schema[at..].chars().take(300).collect();
        assert!(part.contains("A key that is thrown away.") && part.contains("\"maximum\":9"), "{part}");
    }
}
"##,
    ),
    (
        "appliance/management/src/lib.rs",
        r##"
#[cfg(test)]
mod thrown_away {
    #[test]
    fn thrown_away_key_is_in_the_openapi_description() {
        let text: String = (0..).map_while(crate::api::openapi_piece).collect();
        assert!(text.contains("\"thrown_away\":"));
    }
}
"##,
    ),
];
const MANUAL: &str = "docs/configuration.md";

fn root() -> PathBuf {
    match env::var_os("ISTHMUS_TREE") {
        Some(root) => root.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."),
    }
}

/// Copies the files below a directory, except `target` and `.git`.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory can be made");
    for entry in fs::read_dir(from).expect("a directory can be read") {
        let entry = entry.expect("a directory can be read");
        let (name, kind) = (entry.file_name(), entry.file_type().expect("a file has a type"));
        if name == "target" || name == ".git" {
            continue;
        }
        match kind.is_dir() {
            true => copy(&entry.path(), &to.join(name)),
            false if kind.is_file() => {
                fs::copy(entry.path(), to.join(name)).expect("a file can be copied");
            }
            false => {}
        }
    }
}

/// Changes a file of the copy.
fn edit(copy: &Path, file: &str, change: impl FnOnce(String) -> String) {
    let path = copy.join(file);
    let text = fs::read_to_string(&path).expect("the copy has the file");
    fs::write(path, change(text)).expect("the copy can be written");
}

/// Runs the tests of the copy about the key. Returns the output.
fn test(copy: &Path, target: &Path) -> String {
    let cargo = Path::new(env!("CARGO"));
    let mut command = Command::new(cargo);
    command.args(["test", "--offline", "--locked", "--profile", "host", "--no-fail-fast", "--lib"]);
    command.args(["-p", "operator", "-p", "management", "--"]);
    command.args(["thrown_away", "manual_shows_every_key"]);
    command.current_dir(copy).env("CARGO_TARGET_DIR", target);
    let rustc = cargo.with_file_name("rustc");
    if env::var_os("RUSTC").is_none() && rustc.exists() {
        command.env("RUSTC", rustc);
    }
    let output = command.output().expect("cargo runs");
    let [out, err] =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    println!("{out}{err}");
    out + &err
}

#[test]
fn new_key_is_one_line_in_one_table() {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("new_key");
    let (tree, target) = (place.join("tree"), place.join("target"));
    if tree.exists() {
        fs::remove_dir_all(&tree).expect("an old copy can be removed");
    }
    copy(&root(), &tree);
    let (table, before) = TABLE;
    edit(&tree, table, |text| {
        assert_eq!(text.matches(before).count(), 1, "the table has the line");
        text.replace(before, &format!("{before}{LINE}"))
    });
    for (file, tests) in TESTS {
        edit(&tree, file, |text| text + tests);
    }
    let said = test(&tree, &target);
    let is_ok = |said: &str, name: &str| {
        said.lines().any(|line| line.contains(name) && line.ends_with("... ok"))
    };
    for name in [
        "thrown_away_key_is_in_the_document_and_on_the_console",
        "thrown_away_key_is_in_the_api_and_the_schema",
        "thrown_away_key_is_in_the_openapi_description",
    ] {
        assert!(is_ok(&said, name), "{name}");
    }
    assert!(!is_ok(&said, "manual_shows_every_key") && said.contains("services.thrown_away"));
    edit(&tree, MANUAL, |text| text + "\n`thrown_away` is a key.\n");
    assert!(is_ok(&test(&tree, &target), "manual_shows_every_key"));
    fs::remove_dir_all(&tree).expect("the copy is thrown away");
}
