//! Code that is a part of a file which other tests compile and run.

use crate::documentation::consumers::CONSUMERS;
use crate::documentation::doc_page::{Block, blocks, root};
use crate::documentation::expect_none;
use crate::documentation::producers::PRODUCERS;

#[test]
fn an_excerpt_is_a_part_of_its_file() {
    let mut problems = Vec::new();
    for block in blocks() {
        let [word, file] = &block.test[..] else { continue };
        if word != "in" {
            continue;
        }
        let Ok(whole) = std::fs::read_to_string(root().join(file)) else {
            problems.push(format!("{}: there is no {file}", block.place));
            continue;
        };
        if !without_indentation(&whole).contains(&without_indentation(&block.code)) {
            problems.push(format!("{}: this is no part of {file}", block.place));
        }
    }
    expect_none(&problems);
}

#[test]
fn every_program_for_producers_and_consumers_is_run_by_a_test() {
    let languages = ["go", "java", "js", "python", "rust", "ts"];
    let is_of_us = |block: &Block| {
        ["docs/producers.md", "docs/consumers.md"].iter().any(|page| block.place.starts_with(page))
    };
    let untested = blocks().into_iter().filter(|block| {
        is_of_us(block) && languages.contains(&&*block.language) && block.test.is_empty()
    });
    expect_none(
        &untested.map(|block| format!("{}: no test runs it", block.place)).collect::<Vec<_>>(),
    );
}

#[test]
fn every_block_that_is_marked_is_tested() {
    let known = |test: &[String]| match test {
        [first] => PRODUCERS.contains(&first.as_str()),
        [first, second] if first == "consumer" => CONSUMERS.contains(&second.as_str()),
        [first, _] if first == "in" => true,
        [first, second] => first == "not" && second == "configuration",
        _ => false,
    };
    let unknown =
        blocks().into_iter().filter(|block| !block.test.is_empty() && !known(&block.test));
    let problems = unknown
        .map(|block| format!("{}: no test is called {:?}", block.place, block.test.join(" ")));
    expect_none(&problems.collect::<Vec<_>>());
}

fn without_indentation(code: &str) -> String {
    code.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}
