//! Links within the repository have an existing target, and each page is listed.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use percent_encoding::percent_decode_str;

use crate::documentation::doc_page::{DocPage, Piece, pages, root, slug};
use crate::documentation::expect_none;

#[test]
fn links_and_their_anchors_resolve() {
    let mut problems = Vec::new();
    let mut within = 0;
    for page in pages() {
        for Piece { place, text } in page.links() {
            if text.contains("://") || text.starts_with("mailto:") {
                continue;
            }
            within += 1;
            if let Err(problem) = resolve(&page, &text) {
                problems.push(format!("{place}: the link {text}: {problem}"));
            }
        }
    }
    assert!(within > 20, "only {within} links were found");
    expect_none(&problems);
}

/// The index is what readers on GitHub begin with, the table of contents what the book is made of.
#[test]
fn index_and_table_of_contents_list_every_page() {
    let mut problems = Vec::new();
    for list in ["docs/README.md", "docs/SUMMARY.md"] {
        let links = DocPage::read(Path::new(list)).links();
        let listed: HashSet<&str> = links.iter().map(|link| link.text.as_str()).collect();
        for page in pages().iter().filter(|page| page.path.parent() == Some(Path::new("docs"))) {
            let name = page.path.file_name().unwrap().to_str().unwrap();
            if !["README.md", "SUMMARY.md"].contains(&name) && !listed.contains(name) {
                problems.push(format!("{list}: {name} is missing"));
            }
        }
    }
    expect_none(&problems);
}

fn resolve(page: &DocPage, link: &str) -> Result<(), String> {
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, own)| (file, Some(own)));
    let file = percent_decode_str(file).decode_utf8().unwrap();
    let target = match (file.as_ref(), file.strip_prefix('/')) {
        ("", _) => page.path.clone(),
        (_, Some(from_root)) => PathBuf::from(from_root),
        (relative, None) => page.path.parent().unwrap().join(relative),
    };
    let target = normal(&target).ok_or("leaves the repository")?;
    if !root().join(&target).exists() {
        return Err(format!("there is no {}", target.display()));
    }
    let Some(anchor) = anchor else { return Ok(()) };
    if target.extension().is_none_or(|extension| extension != "md") {
        return Err("an anchor in what is no page: it moves with every change".to_owned());
    }
    let anchors = DocPage::read(&target).anchors();
    let nearest = |wanted: &str| {
        let likeness = |own: &&String| strsim::jaro_winkler(own, wanted);
        anchors.iter().max_by(|one, other| likeness(one).total_cmp(&likeness(other))).cloned()
    };
    if anchors.contains(anchor) {
        Ok(())
    } else {
        Err(format!(
            "{} has no heading #{anchor}; the nearest is #{}",
            target.display(),
            nearest(anchor).unwrap_or_default()
        ))
    }
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => normal.pop().then_some(())?,
            Component::Normal(name) => normal.push(name),
            _ => {}
        }
    }
    Some(normal)
}

#[test]
fn anchors_are_githubs() {
    assert_eq!(slug("Two commands"), "two-commands");
    assert_eq!(
        slug("To RabbitMQ (`benches/rabbitmq.rs`, its defaults)"),
        "to-rabbitmq-benchesrabbitmqrs-its-defaults"
    );
    assert_eq!(slug("[sinks.NAME]"), "sinksname");
    assert_eq!(slug("relay.batch_size"), "relaybatch_size");
    assert_eq!(slug("A — B"), "a--b");
}
