//! Packs a directory as an initial RAM disk: a cpio archive in the "newc" format (Linux
//! Documentation/driver-api/early-userspace/buffer-format.rst), not compressed, because a guest that is
//! emulated would take longer to uncompress it than the host takes to load it.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use cpio::newc::{self, Builder};

/// Writes everything in `root` to `out` and returns the archive's size in bytes.
pub fn pack(root: &Path, out: &Path) -> Result<u64> {
    let file = File::create(out).with_context(|| format!("could not create {}", out.display()))?;
    let mut archive = BufWriter::new(file);
    let mut inode = 0;
    add_directory(&mut archive, root, root, &mut inode)?;
    let mut archive = newc::trailer(archive)?;
    archive.flush()?;
    Ok(fs::metadata(out)?.len())
}

fn add_directory<W: Write>(
    archive: &mut W,
    root: &Path,
    directory: &Path,
    inode: &mut u32,
) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(directory)?.collect::<std::io::Result<_>>()?;
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let path = entry.path();
        let metadata = fs::symlink_metadata(&path)?;
        let name =
            path.strip_prefix(root)?.to_str().with_context(|| format!("{}", path.display()))?;
        let content = if metadata.is_symlink() {
            fs::read_link(&path)?.into_os_string().into_encoded_bytes()
        } else if metadata.is_file() {
            fs::read(&path)?
        } else {
            Vec::new()
        };
        *inode += 1;
        // An inode number for each file: the kernel takes files with equal numbers for hard links.
        let header = Builder::new(name).ino(*inode).nlink(1).mode(metadata.permissions().mode());
        let size = u32::try_from(content.len())
            .with_context(|| format!("{} is too large", path.display()))?;
        let mut file = header.write(&mut *archive, size);
        file.write_all(&content)?;
        file.finish()?;
        if metadata.is_dir() {
            add_directory(archive, root, &path, inode)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn archive_holds_files_directories_and_links() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("bin")).unwrap();
        fs::write(root.path().join("bin/a"), "program").unwrap();
        std::os::unix::fs::symlink("a", root.path().join("bin/b")).unwrap();
        let out = tempfile::NamedTempFile::new().unwrap();
        pack(root.path(), out.path()).unwrap();

        let mut file = File::open(out.path()).unwrap();
        let mut found = Vec::new();
        loop {
            let mut reader = newc::Reader::new(file).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            let (name, kind) =
                (reader.entry().name().to_string(), reader.entry().mode() & 0o170_000);
            let mut content = String::new();
            reader.read_to_string(&mut content).unwrap();
            found.push((name, kind, content));
            file = reader.finish().unwrap();
        }
        let expected =
            [("bin", 0o040_000, ""), ("bin/a", 0o100_000, "program"), ("bin/b", 0o120_000, "a")];
        assert_eq!(
            found,
            expected.map(|(name, kind, content)| (name.into(), kind, content.into()))
        );
    }
}
