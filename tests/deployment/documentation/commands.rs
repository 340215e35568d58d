//! Commands in the documentation are valid: the real parser reads every `postrider …` in a block of
//! code; those within text, where brackets and bars have another meaning, are looked up word by
//! word.

use clap::{CommandFactory, Parser};
use postrider::cli::Cli;

use crate::documentation::doc_page::pages;
use crate::documentation::expect_none;

/// Languages of blocks whose lines are commands.
const SHELLS: [&str; 5] = ["", "sh", "bash", "shell", "console"];

#[test]
fn commands_in_blocks_of_code_are_valid() {
    let mut problems = Vec::new();
    let mut judged = 0;
    for block in pages().iter().flat_map(|page| page.blocks()) {
        if !SHELLS.contains(&block.language.as_str()) {
            continue;
        }
        for line in block.code.replace("\\\n", " ").lines() {
            let Some(words) = command(line) else { continue };
            judged += 1;
            if let Err(error) = Cli::try_parse_from(&words) {
                use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
                if !matches!(error.kind(), DisplayHelp | DisplayVersion) {
                    let message = error.to_string();
                    let first = message.lines().next().unwrap_or_default();
                    problems.push(format!("{}: `{}`: {first}", block.place, words.join(" ")));
                }
            }
        }
    }
    assert!(judged > 3, "only {judged} commands were found");
    expect_none(&problems);
}

/// The words of the first call of `postrider` on a line of a shell.
fn command(line: &str) -> Option<Vec<String>> {
    let mut words = words(line);
    // In a container: `kubectl exec deploy/postrider -- postrider …`.
    if let Some(inside) = words.windows(2).position(|two| two[0] == "--" && two[1] == "postrider") {
        words.drain(..=inside);
    }
    let is_ours = |word: &String| word == "postrider" || word.ends_with("/postrider");
    // After a prompt, variables, or `sudo`.
    let before = words.iter().position(is_ours)?;
    let plain = |word: &String| {
        word == "$" || word == "sudo" || word == "&&" || word == ";" || word.contains('=')
    };
    if !words[..before].iter().all(plain) {
        return None;
    }
    let ends =
        |word: &String| ["|", "||", "&&", ";", "&", ">", ">>", "<", "2>"].contains(&word.as_str());
    let own: Vec<String> = words[before..].iter().take_while(|word| !ends(word)).cloned().collect();
    (own.len() > 1).then_some(own)
}

/// Splits a line like a shell, as far as the documentation needs it: quotation marks, comments.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for character in line.chars() {
        match (quote, character) {
            (Some(own), _) if own == character => quote = None,
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ' | '\t') => words.extend(word.take()),
            (None, ';') => {
                words.extend(word.take());
                words.push(";".to_owned());
            }
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

#[test]
fn commands_within_the_text_exist() {
    let mut problems = Vec::new();
    let mut judged = 0;
    for page in pages() {
        for span in page.spans() {
            let Some(rest) = span.text.strip_prefix("postrider ") else { continue };
            judged += 1;
            if let Err(problem) = look_up(rest) {
                problems.push(format!("{}: `{}`: {problem}", span.place, span.text));
            }
        }
    }
    assert!(judged > 10, "only {judged} commands were found");
    expect_none(&problems);
}

fn look_up(rest: &str) -> Result<(), String> {
    let root = {
        let mut root = Cli::command();
        root.build();
        root
    };
    let mut at = &root;
    for word in rest.split_whitespace() {
        let word = word.trim_matches(['[', ']', ',', '…']);
        if let Some(flag) = word.strip_prefix("--") {
            let name = flag.split('=').next().unwrap_or_default();
            let known = at.get_arguments().any(|own| own.get_long() == Some(name));
            if !known && name != "help" && name != "version" {
                return Err(format!("{} has no --{name}", at.get_name()));
            }
        } else if at.has_subcommands() && !word.is_empty() {
            let names: Vec<&str> = word.split('|').collect();
            for name in &names {
                if at.find_subcommand(name).is_none() {
                    return Err(format!("{} has no command {name:?}", at.get_name()));
                }
            }
            at = at.find_subcommand(names[0]).ok_or("no such command")?;
        }
    }
    Ok(())
}
