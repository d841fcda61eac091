//! The files of a working tree.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A working tree, with the paths of its files from its top.
pub struct Tree {
    root: PathBuf,
    files: BTreeSet<String>,
}

impl Tree {
    /// The tree at `ISTHMUS_TREE`, or else the tree of this crate.
    pub fn here() -> Tree {
        match std::env::var_os("ISTHMUS_TREE") {
            Some(root) => Tree::open(Path::new(&root)),
            None => Tree::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")),
        }
    }

    /// Lists the files below `root`, except `target` and `.git`.
    pub fn open(root: &Path) -> Tree {
        let mut tree = Tree { root: root.into(), files: BTreeSet::new() };
        tree.list("");
        tree
    }

    fn list(&mut self, directory: &str) {
        let entries = fs::read_dir(self.root.join(directory)).expect("a directory can be read");
        for entry in entries.map(|entry| entry.expect("a directory can be read")) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path =
                if directory.is_empty() { name.clone() } else { format!("{directory}/{name}") };
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            match name.as_str() {
                "target" | ".git" => {}
                _ if is_directory => self.list(&path),
                _ => _ = self.files.insert(path),
            }
        }
    }

    /// Whether a file or directory exists at this path.
    pub fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// A file's text; None if it does not exist.
    pub fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    /// Paths and texts of all files whose names end in `suffix`.
    pub fn texts(&self, suffix: &str) -> Vec<(String, String)> {
        let wanted = self.files.iter().filter(|path| path.ends_with(suffix));
        wanted.filter_map(|path| Some((path.clone(), self.text(path)?))).collect()
    }
}
