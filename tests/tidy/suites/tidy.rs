//! Applies the rules of this crate to the working tree.

use tidy::{
    Finding, Tree, allowances, dead_code, fences, figures, functions, index, lengths, links,
    openings, overflow, status,
};

/// Fails with a line for each finding.
fn expect_none(findings: impl IntoIterator<Item = Finding>) {
    let findings: Vec<String> = findings.into_iter().map(|finding| finding.to_string()).collect();
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

fn readme(tree: &Tree) -> String {
    tree.text("README.md").expect("README.md exists")
}

#[test]
fn links_lead_somewhere() {
    let tree = Tree::here();
    let pages = tree.texts(".md");
    expect_none(pages.iter().flat_map(|(page, text)| {
        links::check(page, text, |path| tree.exists(path), |path| tree.text(path))
    }));
}

#[test]
fn readme_links_every_page() {
    let tree = Tree::here();
    let pages = tree.texts(".md");
    expect_none(index::check(&readme(&tree), pages.iter().map(|(page, _)| page.as_str())));
}

#[test]
fn fences_close() {
    let pages = Tree::here().texts(".md");
    expect_none(pages.iter().flat_map(|(page, text)| fences::check(page, text)));
}

#[test]
fn files_are_short() {
    let files = Tree::here().texts(".rs");
    let allowed = allowances::FILES;
    expect_none(files.iter().filter_map(|(path, text)| lengths::file(path, text, allowed)));
    let gone = allowed.iter().filter(|(path, _)| files.iter().all(|(file, _)| file != path));
    expect_none(gone.map(|(path, _)| Finding::of(path, "gone: remove it from `allowances.rs`")));
}

#[test]
fn functions_are_short() {
    let files = Tree::here().texts(".rs");
    let allowed = allowances::FUNCTIONS;
    expect_none(files.iter().flat_map(|(path, text)| functions::check(path, text, allowed)));
    let gone = allowed.iter().filter(|(path, ..)| files.iter().all(|(file, _)| file != path));
    expect_none(gone.map(|(path, ..)| Finding::of(path, "gone: remove it from `allowances.rs`")));
}

#[test]
fn no_dead_code_is_allowed() {
    let files = Tree::here().texts(".rs");
    expect_none(files.iter().flat_map(|(path, text)| dead_code::check(path, text)));
}

#[test]
fn figures_of_readme_are_in_the_list() {
    let tree = Tree::here();
    match tree.text("docs/figures.md") {
        Some(list) => expect_none(figures::check(&readme(&tree), &list)),
        None => println!("there is no docs/figures.md"),
    }
}

#[test]
fn status_names_suites() {
    let tree = Tree::here();
    let page = "docs/status.md";
    let Some(text) = tree.text(page) else { return println!("there is no {page}") };
    let table = tree.text("launch/src/test/suites.rs").expect("the table of suites exists");
    let suites = status::suites(&table);
    assert!(suites.len() > 50, "too few suites in the table: {suites:?}");
    expect_none(status::check(page, &text, &suites));
    expect_none(lengths::page(page, &text, status::LINES, usize::MAX));
}

#[test]
fn readme_is_short() {
    expect_none(lengths::page("README.md", &readme(&Tree::here()), 120, 700));
}

#[test]
fn architecture_is_short() {
    let page = "ARCHITECTURE.md";
    let text = Tree::here().text(page).expect("ARCHITECTURE.md exists");
    expect_none(lengths::page(page, &text, 250, usize::MAX));
}

#[test]
fn opening_comments_name_things() {
    let files = Tree::here().texts(".rs");
    let found = files.iter().filter_map(|(path, text)| openings::check(path, text));
    let found: Vec<String> = found.map(|finding| finding.to_string()).collect();
    let (count, ceiling) = (found.len(), allowances::OPENINGS);
    let list = found.join("\n");
    assert!(count <= ceiling, "\n{list}\n{count} such opening comments, at most {ceiling}");
}

#[test]
fn crates_that_take_numbers_of_others_check_for_overflow() {
    let tree = Tree::here();
    let manifest = tree.text("Cargo.toml").expect("Cargo.toml exists");
    let members = overflow::members(&manifest).into_iter().map(|directory| {
        let text = tree.text(&format!("{directory}/Cargo.toml")).expect("a member has a manifest");
        (directory.to_string(), overflow::name(&text).expect("a member has a name").to_string())
    });
    let members: Vec<_> = members.collect();
    assert!(members.len() > 50, "too few members: {members:?}");
    expect_none(overflow::check(&manifest, &members));
}
