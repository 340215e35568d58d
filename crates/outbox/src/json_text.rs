//! Parses JSON to BSON as written: `{"$oid": …}` stays an object, and no number loses a digit.

use bson::{Bson, Document};
use serde::de::IgnoredAny;

use crate::nesting::{MAX_LEVELS, TOO_DEEP};
use crate::number;

/// The most flaws of one text that are reported. One more says that there are more.
pub const MAX_FLAWS: usize = 100;

/// The most levels of a text: a value, and what may be around it.
const MAX_TEXT_LEVELS: usize = MAX_LEVELS + 50;

/// What MongoDB cannot store as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextFlaw {
    /// The path to the value, such as `events[0].name`.
    pub path: String,
    /// What is wrong with it.
    pub detail: String,
}

/// Parses a JSON text. Flaws are what MongoDB cannot store as written: numbers that would lose digits, a name twice in
/// one object, a NUL in a name, half of a surrogate pair, too many levels.
///
/// # Errors
///
/// Invalid JSON. The error names the position and quotes nothing.
pub fn parse(text: &str) -> Result<(Bson, Vec<TextFlaw>), serde_json::Error> {
    // The grammar. (serde_json reads numbers as doubles, and refuses those that are none. Its feature
    // `arbitrary_precision` would change its numbers everywhere, also in the applications that depend on us.)
    serde_json::from_str::<IgnoredAny>(text)?;
    let mut reader = Reader { text, at: 0, open: Vec::new(), flaws: Vec::new(), met: 0 };
    Ok((reader.value(), reader.flaws))
}

/// Reads a text that is JSON: it checks no grammar. It does not recurse, since a client chooses the levels.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// The objects and arrays around `at`, innermost last.
    open: Vec<Level>,
    flaws: Vec<TextFlaw>,
    /// The number of flaws, with those of a value that has one already.
    met: usize,
}

enum Level {
    Array(Vec<Bson>),
    Object {
        members: Document,
        /// The name of the value that follows.
        name: Option<String>,
    },
}

impl Reader<'_> {
    fn value(&mut self) -> Bson {
        loop {
            let Some(value) = self.token() else { continue };
            match self.open.last_mut() {
                None => return value,
                Some(Level::Array(items)) => items.push(value),
                Some(Level::Object { members, name }) => {
                    members.insert(name.take().unwrap_or_default(), value);
                }
            }
        }
    }

    /// Reads the next token; a value if it ends one.
    fn token(&mut self) -> Option<Bson> {
        let begin = self.at;
        self.at += 1;
        match self.text.as_bytes().get(begin) {
            Some(b'{' | b'[') if self.open.len() == MAX_TEXT_LEVELS => {
                self.add_flaw(TOO_DEEP);
                self.skip();
                Some(Bson::Null)
            }
            Some(b'{') => {
                self.open.push(Level::Object { members: Document::new(), name: None });
                None
            }
            Some(b'[') => {
                self.open.push(Level::Array(Vec::new()));
                None
            }
            Some(b'}' | b']') => match self.open.pop()? {
                Level::Array(items) => Some(Bson::Array(items)),
                Level::Object { members, .. } => Some(Bson::Document(members)),
            },
            Some(b'"') => {
                self.end_string();
                let text = self.string(begin);
                match self.open.last_mut() {
                    Some(Level::Object { members, name: name @ None }) => {
                        let (is_twice, has_nul) =
                            (members.contains_key(&text), text.contains('\0'));
                        *name = Some(text);
                        if is_twice {
                            self.add_flaw("appears twice in its object");
                        }
                        if has_nul {
                            self.add_flaw("contains U+0000 in its name, which BSON cannot store");
                        }
                        None
                    }
                    _ => Some(Bson::String(text)),
                }
            }
            Some(b'-' | b'0'..=b'9') => {
                let rest = self.text.get(begin..).unwrap_or_default();
                let is_part = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
                let literal = rest.split(|c| !is_part(c)).next().unwrap_or_default();
                self.at = begin + literal.len();
                Some(number::of_literal(literal).unwrap_or_else(|detail| {
                    self.add_flaw(detail);
                    Bson::Int32(0)
                }))
            }
            Some(b't') => self.word("true", Bson::Boolean(true)),
            Some(b'f') => self.word("false", Bson::Boolean(false)),
            Some(b'n') => self.word("null", Bson::Null),
            // Spaces, colons and commas.
            Some(_) => None,
            // (JSON does not end before its value.)
            None => {
                self.open.clear();
                Some(Bson::Null)
            }
        }
    }

    fn word(&mut self, word: &str, value: Bson) -> Option<Bson> {
        self.at += word.len() - 1;
        Some(value)
    }

    /// Moves behind the string whose first quote was read.
    fn end_string(&mut self) {
        while let Some(byte) = self.text.as_bytes().get(self.at) {
            self.at += if *byte == b'\\' { 2 } else { 1 };
            if *byte == b'"' {
                break;
            }
        }
    }

    /// The string from its first quote to before `at`.
    fn string(&mut self, begin: usize) -> String {
        let quoted = self.text.get(begin..self.at).unwrap_or_default();
        if !quoted.contains('\\') {
            return quoted.trim_matches('"').to_owned();
        }
        serde_json::from_str(quoted).unwrap_or_else(|_| {
            self.add_flaw("contains half of a surrogate pair, which is not a character");
            quoted.trim_matches('"').to_owned()
        })
    }

    /// Moves behind the object or array whose first bracket was read.
    fn skip(&mut self) {
        let mut levels = 1_usize;
        while let (Some(byte), 1..) = (self.text.as_bytes().get(self.at), levels) {
            self.at += 1;
            match byte {
                b'{' | b'[' => levels += 1,
                b'}' | b']' => levels -= 1,
                b'"' => self.end_string(),
                _ => {}
            }
        }
    }

    /// Adds a flaw of the present value, unless there are enough or it has one.
    fn add_flaw(&mut self, detail: &str) {
        // (Each is described by its whole path, which may be long.)
        if self.met > 2 * MAX_FLAWS || self.flaws.len() > MAX_FLAWS {
            return;
        }
        self.met += 1;
        let mut path = String::new();
        for (at, level) in self.open.iter().enumerate() {
            match level {
                Level::Array(items) => path.push_str(&format!("[{}]", items.len())),
                // (A flaw of the name itself has the path of its object.)
                Level::Object { name, .. } => {
                    let Some(name) = name else { continue };
                    if at > 0 {
                        path.push('.');
                    }
                    path.push_str(name);
                }
            }
        }
        if self.flaws.iter().all(|flaw| flaw.path != path) {
            self.flaws.push(TextFlaw { path, detail: detail.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::bson;
    use proptest::prelude::*;

    use super::*;
    use crate::json_view;

    fn paths(text: &str) -> Vec<String> {
        parse(text).unwrap().1.into_iter().map(|flaw| flaw.path).collect()
    }

    fn parsed(text: &str) -> Bson {
        let (value, flaws) = parse(text).unwrap();
        assert_eq!(flaws, [], "{text}");
        value
    }

    #[test]
    fn text_is_valid_json_where_serde_json_says_so() {
        for text in [
            "",
            " ",
            "{",
            "[",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":1",
            "{\"a\":1,}",
            "[1,]",
            "[1 2]",
            "{1:2}",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "-",
            "--1",
            "NaN",
            "nul",
            "\"",
            "\"\\x\"",
            "\"\\u12\"",
            "\"\n\"",
            "\"\u{1}\"",
            "{}x",
            "'a'",
            "\u{feff}{}",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn json_is_read_as_written_and_never_as_extended_json() {
        let text = r#" {"b" : 1,"a":{"$oid":"65a000000000000000000000"},"long":3000000000,"-1":[ [ ], { } , -1 ],
            "float":1.0,"null":null,"list":[true,false,"x","", "\\\"[{,:}]\u00e4\n"], "\u0078\"": "ä😀\ud83d\ude00"}
            "#;

        assert_eq!(
            parsed(text),
            bson!({
                "b": 1, "a": { "$oid": "65a000000000000000000000" }, "long": 3_000_000_000_i64,
                "-1": [[], {}, -1], "float": 1.0, "null": null,
                "list": [true, false, "x", "", "\\\"[{,:}]ä\n"], "x\"": "ä😀😀",
            })
        );
        for (text, value) in
            [("\"\"", bson!("")), ("null", Bson::Null), ("-0", bson!(0)), (" 1", bson!(1))]
        {
            assert_eq!(parsed(text), value, "{text}");
        }
    }

    #[test]
    fn flaws_are_named_by_path() {
        let text = r#" { "a" : [ 1 , {"b":1e400} ], "c": -123456789012345678901234567890123456789, "d\"": 1e-6177,
            "x": {"y": 1, "\u0079": 2}, "n": {"b\u0000": 1, "x": 1}, "s": ["\ud800", "\udc00\ud800"], "t": 1 } "#;

        assert_eq!(paths(text), ["a[1].b", "c", "d\"", "x.y", "n.b\0", "s[0]", "s[1]"]);
        assert_eq!(paths(r#"[{"a":1e400},1e400]"#), ["[0].a", "[1]"]);
        assert_eq!(paths("1e400"), [""]);
        let many = format!("[{}]", vec!["1e400"; 3 * MAX_FLAWS].join(","));
        assert_eq!(paths(&many).len(), MAX_FLAWS + 1);
    }

    #[test]
    fn text_of_any_depth_is_read_without_recursion() {
        let nested =
            |levels: usize| format!("{}1,\"]}}\",{{}}{}", "[".repeat(levels), "]".repeat(levels));

        assert_eq!(paths(&nested(MAX_TEXT_LEVELS - 1)), [""; 0]);
        for levels in [MAX_TEXT_LEVELS, 100_000] {
            let (value, flaws) = parse(&format!("[{},2]", nested(levels))).unwrap();

            assert_eq!((value.as_array().unwrap().len(), flaws.len()), (2, 1));
            assert_eq!(flaws[0].detail, TOO_DEEP);
        }
    }

    proptest! {
        #[test]
        fn value_is_that_of_serde_json(json in arbitrary()) {
            for text in [json.to_string(), format!("{json:#}")] {
                prop_assert_eq!(parsed(&text), plain(json.clone()), "{}", text);
                prop_assert_eq!(json_view::text(&parsed(&text)), json.to_string());
            }
        }

        #[test]
        fn no_text_panics(text in r#"[\[\]{}:, "\\a1e.\-u]{0,40}"#) {
            let valid = serde_json::from_str::<IgnoredAny>(&text).is_ok();

            prop_assert_eq!(parse(&text).is_ok(), valid);
        }
    }

    fn arbitrary() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<i32>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            any::<String>().prop_map(Into::into),
        ];
        leaf.prop_recursive(5, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
                prop::collection::hash_map("[^\0]{0,3}", inner, 0..5)
                    .prop_map(|members| serde_json::Value::Object(members.into_iter().collect())),
            ]
        })
    }

    fn plain(json: serde_json::Value) -> Bson {
        match json {
            serde_json::Value::Object(members) => Bson::Document(
                members.into_iter().map(|(name, value)| (name, plain(value))).collect(),
            ),
            serde_json::Value::Array(items) => Bson::Array(items.into_iter().map(plain).collect()),
            serde_json::Value::Number(number) => match number.as_i64() {
                Some(integer) => number::smallest(integer),
                None => number.as_f64().unwrap().into(),
            },
            other => Bson::try_from(other).unwrap(),
        }
    }
}
