//! Sections of the image that are filled after linking.

use anyhow::{Context, Result};
use object::{Object, ObjectSection};

/// The bytes of the section `name` in the image file `elf`.
pub fn find<'a>(elf: &'a mut [u8], name: &str) -> Result<&'a mut [u8]> {
    let (start, length) = object::File::parse(&*elf)
        .ok()
        .and_then(|file| file.section_by_name(name)?.file_range())
        .with_context(|| format!("the image has no section {name}"))?;
    let (start, length) = (usize::try_from(start)?, usize::try_from(length)?);
    let section = elf.get_mut(start..).and_then(|rest| rest.get_mut(..length));
    section.with_context(|| format!("the image ends within its section {name}"))
}
