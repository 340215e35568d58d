//! Input that was chosen by hand: a file each, or a line each, in a folder per target.

use std::path::{Path, PathBuf};

fn files(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{folder:?} is empty");
    files
}

/// Every file of a target, with its name.
pub fn texts(target: &str) -> Vec<(String, String)> {
    let read = |file: PathBuf| {
        let name = file.file_name().unwrap().to_str().unwrap().to_owned();
        (name, std::fs::read_to_string(&file).unwrap())
    };
    files(target).into_iter().map(read).collect()
}

/// Every line of a target's files. In them `\n`, `\0`, `\\` and `\u{…}` are escapes, as in Rust.
pub fn lines(target: &str) -> Vec<String> {
    let all = texts(target).into_iter();
    all.flat_map(|(_, text)| text.lines().map(unescaped).collect::<Vec<_>>()).collect()
}

fn unescaped(line: &str) -> String {
    let mut text = String::new();
    let mut rest = line.chars();
    while let Some(character) = rest.next() {
        if character != '\\' {
            text.push(character);
            continue;
        }
        match rest.next() {
            Some('n') => text.push('\n'),
            Some('0') => text.push('\0'),
            Some('\\') => text.push('\\'),
            Some('u') => {
                let digits: String =
                    rest.by_ref().skip(1).take_while(|digit| *digit != '}').collect();
                text.push(char::from_u32(u32::from_str_radix(&digits, 16).unwrap()).unwrap());
            }
            other => panic!("{line}: unknown escape {other:?}"),
        }
    }
    text
}

/// Every document of a target: bytes in hexadecimal, with spaces and `#` comments, a file each.
pub fn bytes(target: &str) -> Vec<(String, Vec<u8>)> {
    let parse = |(name, text): (String, String)| {
        let without_comments = text.lines().map(|line| line.split('#').next().unwrap());
        let digits: Vec<u8> = without_comments
            .flat_map(|line| line.bytes().filter(u8::is_ascii_hexdigit).collect::<Vec<_>>())
            .collect();
        let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        (name, pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect())
    };
    texts(target).into_iter().map(parse).collect()
}
