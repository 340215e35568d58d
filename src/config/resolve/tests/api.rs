//! The rules of the HTTP API.

use crate::config::load::{Inputs, load};
use crate::config::problem::ConfigProblem;
use crate::config::resolve::Resolved;

fn with(more: &[&str]) -> Result<Resolved, Vec<ConfigProblem>> {
    let least = ["mongo.uri=mongodb://h/db", "sinks.out.kind=stdout", "api.enabled=true"];
    super::resolved(&[&least[..], more].concat())
}

#[test]
fn each_broken_rule_names_its_key_and_no_secret() {
    for (setting, key) in [
        ("api.listen=8080", "api.listen"),
        ("api.max_body=1B", "api.max_body"),
        ("api.max_connections=0", "api.max_connections"),
        ("api.max_concurrent=0", "api.max_concurrent"),
        ("api.timeout=1ms", "api.timeout"),
        ("api.tls.cert_file=/a", "api.tls.key_file"),
        ("api.tls.key_file=/a", "api.tls.cert_file"),
        ("api.tokens=[\"\"]", "api.tokens.0"),
        ("api.tokens=[\"hush hush\"]", "api.tokens.0"),
        ("api.tokens=[\"hush\", \"hush\"]", "api.tokens.1"),
        ("api.tokens=[{name = \"a\"}]", "api.tokens.0"),
        ("api.tokens=[{name = \"\", token = \"hush\"}]", "api.tokens.0.name"),
        ("api.tokens=[{name = \"a\", token = \"hush\", token_file = \"/x\"}]", "api.tokens.0"),
        ("api.tokens=[{name = \"a\", token_file = \"/no/file\"}]", "api.tokens.0.token_file"),
        (
            "api.tokens=[{name = \"a\", token = \"hush\", scopes = [\"all\"]}]",
            "api.tokens.0.scopes",
        ),
        ("api.tokens=[{name = \"a\", token = \"hush\", scopes = []}]", "api.tokens.0.scopes"),
        (
            "api.tokens=[{name = \"a\", token = \"hush\", aggregates = []}]",
            "api.tokens.0.aggregates",
        ),
        ("api.tokens=[{name = \"a\", token = \"hush\", tenants = [\"\"]}]", "api.tokens.0.tenants"),
        (
            "api.tokens=[{name = \"a\", token = \"hush\"}, {name = \"a\", token = \"hush2\"}]",
            "api.tokens.1.name",
        ),
    ] {
        let problems = with(&[setting]).unwrap_err();

        let keys: Vec<&str> = problems.iter().map(|problem| problem.key.as_str()).collect();
        assert_eq!(keys, [key], "{setting}");
        assert!(!format!("{problems:?}").contains("hush"), "{problems:?}");
        // Bounds hold for the key, other rules for an API that is served.
        let is_bound = problems[0].detail.starts_with("must be ");
        assert!(is_bound || with(&[setting, "api.enabled=false"]).is_ok(), "{setting}");
    }
}

#[test]
fn tokens_are_required_beyond_loopback_whatever_tls_does() {
    let tls = ["api.tls.cert_file=/a", "api.tls.key_file=/b"];
    for listen in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"] {
        let listen = format!("api.listen={listen}");

        for open in [vec![], vec![tls[0], tls[1]]] {
            let problems = with(&[&[listen.as_str()], &open[..]].concat()).unwrap_err();
            assert_eq!(problems[0].key, "api.listen");
            assert!(problems[0].detail.contains("api.allow_unauthenticated"), "{problems:?}");
        }
        assert!(with(&[&listen, "api.tokens=[\"hush-hush-hush-1\"]"]).is_ok());
        assert!(with(&[&listen, "api.allow_unauthenticated=true"]).is_ok());
    }
    for listen in ["127.0.0.1:1", "127.9.9.9:0", "[::1]:1", "localhost:1", "LOCALHOST:1"] {
        assert!(with(&[&format!("api.listen={listen}")]).is_ok(), "{listen}");
    }
}

#[test]
fn token_beyond_loopback_has_16_characters() {
    let table = "api.tokens=[\"hush-hush-hush-1\", {name = \"a\", token = \"hush-hush-hush-\"}]";
    for listen in ["0.0.0.0:1", "[::]:1", "example.org:1"] {
        let listen = format!("api.listen={listen}");

        for open in ["api.timeout=30s", "api.allow_unauthenticated=true"] {
            let problems = with(&[&listen, open, table]).unwrap_err();

            assert_eq!((problems.len(), problems[0].key.as_str()), (1, "api.tokens.1"));
            assert!(problems[0].detail.contains("fewer than 16 characters"), "{problems:?}");
            assert!(!format!("{problems:?}").contains("hush"), "{problems:?}");
        }
    }
    assert!(with(&["api.listen=localhost:1", table]).is_ok());
}

#[test]
fn token_may_be_limited_to_name_no_destination() {
    let tokens = "api.tokens=[{name = \"a\", token = \"hush\", destinations = []}]";

    assert!(with(&[tokens]).is_ok());
}

#[test]
fn the_former_name_of_a_key_is_answered_with_the_new_one() {
    let inputs = Inputs { set: vec!["api.insecure=true".into()], ..Inputs::default() };

    let error = load(&inputs).unwrap_err().to_string();

    assert!(error.contains("api.allow_unauthenticated"), "{error}");
}

#[test]
fn a_token_may_be_all_of_a_file_but_its_last_newline() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "hush\n").unwrap();
    let tokens = format!("api.tokens=[{{name = \"a\", token_file = {:?}}}]", file.path().display());

    let (_, tokens) = with(&[&tokens]).unwrap().api.unwrap();

    assert!(tokens.find("hush").is_some());
    assert!(tokens.find("hush\n").is_none());
}
