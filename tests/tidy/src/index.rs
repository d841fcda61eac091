//! The index of the manual in README.md.

use crate::Finding;

/// Finds pages below `docs/` that README.md does not link.
pub fn check<'a>(readme: &str, pages: impl Iterator<Item = &'a str>) -> Vec<Finding> {
    let manual = pages.filter(|page| page.starts_with("docs/"));
    let missing = manual.filter(|page| {
        let link = format!("]({page}");
        !readme
            .match_indices(&link)
            .any(|(at, _)| readme[at + link.len()..].starts_with([')', '#']))
    });
    missing.map(|page| Finding::of(page, "README does not link this page")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_readme_does_not_link_is_found() {
        let readme = "[a](docs/a.md), [b](docs/b.md#part), [c](docs/c.md.old)\n";
        let pages = ["ARCHITECTURE.md", "docs/a.md", "docs/b.md", "docs/c.md"];
        let found = check(readme, pages.into_iter());
        assert_eq!(found, [Finding::of("docs/c.md", "README does not link this page")]);
    }
}
