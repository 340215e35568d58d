//! What a JSON parser lets pass in silence: integers beyond 64 bits, which lose digits, and names
//! that stand twice in one object, of which one is lost.

use std::collections::HashSet;

use crate::http::json::join;
use crate::http::problem::FieldError;

/// More faults than these are not told.
const MOST: usize = 20;

/// The faults of a text that is JSON, by their paths.
pub fn faults(text: &str) -> Vec<FieldError> {
    let mut scan = Scan { text, at: 0, path: Vec::new(), faults: Vec::new() };
    scan.value();
    scan.faults
}

/// One step into a value.
enum Step {
    Name(String),
    Index(usize),
}

/// A walk along valid JSON: nothing is checked again.
struct Scan<'a> {
    text: &'a str,
    at: usize,
    path: Vec<Step>,
    faults: Vec<FieldError>,
}

impl Scan<'_> {
    fn value(&mut self) {
        match self.next() {
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'"') => drop(self.string()),
            Some(b'-' | b'0'..=b'9') => self.number(),
            // true, false, null.
            Some(_) => self.token(),
            None => {}
        }
    }

    fn object(&mut self) {
        self.at += 1;
        let mut names = HashSet::new();
        while let Some(b'"') = self.next() {
            let name = self.string();
            self.path.push(Step::Name(name.clone()));
            if !names.insert(name) {
                self.fault("stands twice in its object");
            }
            self.next();
            self.at += 1; // The colon.
            self.value();
            self.path.pop();
            if self.next() == Some(b',') {
                self.at += 1;
            }
        }
        self.at += 1;
    }

    fn array(&mut self) {
        self.at += 1;
        let mut index = 0_usize;
        while !matches!(self.next(), Some(b']') | None) {
            self.path.push(Step::Index(index));
            self.value();
            self.path.pop();
            index += 1;
            if self.next() == Some(b',') {
                self.at += 1;
            }
        }
        self.at += 1;
    }

    fn string(&mut self) -> String {
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.byte() {
            self.at += match byte {
                b'\\' => 2,
                _ => 1,
            };
            if byte == b'"' {
                break;
            }
        }
        let written = self.text.get(start..self.at).unwrap_or_default();
        serde_json::from_str(written).unwrap_or_default()
    }

    fn number(&mut self) {
        let start = self.at;
        self.token();
        let number = self.text.get(start..self.at).unwrap_or_default();
        let is_integer = !number.contains(['.', 'e', 'E']);
        if is_integer && number.parse::<i64>().is_err() {
            self.fault("is an integer beyond 64 bits; write a text");
        }
    }

    fn token(&mut self) {
        let ends = |byte: u8| byte.is_ascii_whitespace() || matches!(byte, b',' | b']' | b'}');
        while self.byte().is_some_and(|byte| !ends(byte)) {
            self.at += 1;
        }
    }

    /// The next byte that is no space.
    fn next(&mut self) -> Option<u8> {
        while self.byte()?.is_ascii_whitespace() {
            self.at += 1;
        }
        self.byte()
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn fault(&mut self, detail: &str) {
        if self.faults.len() < MOST {
            let field = self.path.iter().fold(String::new(), |path, step| match step {
                Step::Name(name) => join(&path, name),
                Step::Index(index) => format!("{path}[{index}]"),
            });
            self.faults.push(FieldError { field, detail: detail.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Vec<String> {
        serde_json::from_str::<serde_json::Value>(text).unwrap();
        faults(text).into_iter().map(|fault| fault.field).collect()
    }

    #[test]
    fn integers_beyond_64_bits_are_found_by_their_path() {
        let text = r#" { "a" : [ 1 , {"b":9223372036854775808} ], "c": -9223372036854775809,
            "d\"": 123456789012345678901234567890 , "e": 9223372036854775807 } "#;

        assert_eq!(fields(text), ["a[1].b", "c", "d\""]);
    }

    #[test]
    fn what_is_no_such_integer_is_none() {
        for text in [
            "{}",
            "[]",
            "[[],{}]",
            r#"{"a":1e300,"b":12345678901234567890.0,"c":"12345678901234567890"}"#,
            r#"{"a":"\\","b":"\"12345678901234567890\"","c":[true,false,null,-0]}"#,
            "-9223372036854775808",
        ] {
            assert_eq!(fields(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn names_that_stand_twice_are_found_however_they_are_written() {
        assert_eq!(fields(r#"{"a":{"x":1,"\u0078":2},"b":{"x":1}}"#), ["a.x"]);
    }
}
