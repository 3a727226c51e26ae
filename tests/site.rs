//! The documents hold together: docs/SUMMARY.md lists every page of the site once, and links lead somewhere.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the names of the files under docs/ that are pages.
fn pages() -> BTreeSet<String> {
    let names = std::fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    names.filter(|name| name.ends_with(".md") && name != "SUMMARY.md").collect()
}

/// Returns the lines of a page outside of fenced blocks, without what stands in backticks.
fn prose(page: &str) -> String {
    let mut is_code = false;
    let mut prose = String::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose.extend(line.split('`').step_by(2));
            prose.push('\n');
        }
    }
    prose
}

/// Returns what the links and pictures of a page lead to.
fn targets(page: &str) -> Vec<String> {
    let prose = prose(page);
    prose.split("](").skip(1).map(|rest| rest.split(')').next().unwrap().to_string()).collect()
}

/// Returns the anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut is_code = false;
    let mut anchors = BTreeSet::new();
    for line in page.lines() {
        is_code ^= line.trim_start().starts_with("```");
        if let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) {
            let heading = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
            anchors.insert(kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect());
        }
    }
    anchors
}

#[test]
fn the_summary_lists_every_page_once() {
    let mut listed = targets(&text(&root().join("docs/SUMMARY.md")));
    listed.sort();
    let expected: Vec<String> = pages().into_iter().collect();
    assert_eq!(listed, expected);
}

#[test]
fn links_lead_somewhere() {
    let mut paths: Vec<PathBuf> = pages().iter().map(|name| root().join("docs").join(name)).collect();
    for name in
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/SUMMARY.md"]
    {
        paths.push(root().join(name));
    }
    let mut n_links = 0;
    let mut broken = Vec::new();
    for path in paths {
        let page = text(&path);
        for target in targets(&page) {
            if target.starts_with("https://") {
                continue;
            }
            n_links += 1;
            let (file, anchor) =
                target.split_once('#').map_or((&*target, None), |(file, anchor)| (file, Some(anchor)));
            let found = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let is_there = found.exists();
            let has_anchor = |anchor: &str| anchors(&text(&found)).contains(anchor);
            if !is_there || !anchor.is_none_or(has_anchor) {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
    assert!(n_links > 100, "only {n_links} links were found");
}

/// On the site a link out of docs/ becomes one into the repository; see `.ci/links.py`.
#[test]
fn pictures_lie_where_the_site_has_them() {
    for name in pages() {
        let page = text(&root().join("docs").join(&name));
        for rest in prose(&page).split("![").skip(1) {
            let target = rest.split("](").nth(1).and_then(|rest| rest.split(')').next()).unwrap();
            assert!(target.starts_with("pictures/"), "{name}: the site would lack {target}");
        }
    }
}
