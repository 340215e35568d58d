//! The release profile is as docs/docker.md says: names of functions, and no tables of source
//! lines.
//!
//! `make image` measures the binary itself.

use toml::{Table, Value};

use crate::documentation::doc_page::root;

/// Tables of source lines once made 28 MB into 168.
#[test]
fn the_release_has_names_of_functions_and_no_source_lines() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let manifest: Table = manifest.parse().unwrap();
    let release = profile(&manifest, "release");
    let packages = release.get("package").and_then(Value::as_table).into_iter().flatten();
    let packages = packages.map(|(name, package)| (name.as_str(), package.as_table().unwrap()));
    for (of, profile) in [("all", &release)].into_iter().chain(packages) {
        let debug = profile.get("debug");
        let none = [Value::Boolean(false), Value::Integer(0), "none".into()];
        assert!(debug.is_none_or(|debug| none.contains(debug)), "{of}: debug = {debug:?}");
        let strip = profile.get("strip");
        let names_stay = [Value::Boolean(false), "none".into(), "debuginfo".into()];
        assert!(strip.is_none_or(|strip| names_stay.contains(strip)), "{of}: strip = {strip:?}");
    }
    // Cargo.toml names it for users who need the lines.
    let profiling = profile(&manifest, "profiling");
    assert_eq!(profiling.get("inherits"), Some(&"release".into()));
    assert_eq!(profiling.get("debug"), Some(&"line-tables-only".into()));
}

fn profile(manifest: &Table, name: &str) -> Table {
    let profile = manifest.get("profile").and_then(|profiles| profiles.get(name));
    profile.and_then(Value::as_table).cloned().unwrap_or_default()
}
