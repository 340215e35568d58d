//! Patterns of times as text, in Java's form, where the text sorts by time.

use std::iter::Peekable;
use std::str::Chars;

use jiff::civil::DateTime;

/// The longest pattern, in bytes.
const MAX_BYTES: usize = 100;

/// A pattern such as `yyyy-MM-dd HH:mm:ss`: from the year down without a gap, each unit once and at its
/// full width, so that texts sort as their times do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatePattern {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Literal(char),
    Year,
    Month,
    Day,
    Hour,
    Minute,
    Second,
    /// So many digits of the fraction of a second.
    Fraction(usize),
}

/// Why a pattern is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    /// It is empty or too long.
    #[error("must be a pattern of 1 to {MAX_BYTES} bytes, such as yyyy-MM-dd HH:mm:ss")]
    Length,
    /// A letter that is not understood.
    #[error(
        "contains {0:?}; only yyyy, MM, dd, HH, mm, ss and S are pattern letters; write other \
         letters in apostrophes"
    )]
    Letter(String),
    /// An apostrophe without a second one.
    #[error("has an apostrophe that is not closed")]
    Quote,
    /// Texts that would not sort by time.
    #[error(
        "produces texts that do not sort by time; start with the year and continue with smaller \
         units without a gap, for example yyyy-MM-dd HH:mm:ss"
    )]
    Order,
}

impl DatePattern {
    /// Reads a pattern.
    ///
    /// # Errors
    ///
    /// [`InvalidPattern`].
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidPattern> {
        let text = text.into();
        if text.is_empty() || text.len() > MAX_BYTES {
            return Err(InvalidPattern::Length);
        }
        let parts = parse(&text)?;
        let ranks: Vec<usize> = parts.iter().filter_map(Part::rank).collect();
        let is_descending = ranks.iter().copied().eq(0..ranks.len());
        if ranks.is_empty() || !is_descending {
            Err(InvalidPattern::Order)
        } else {
            Ok(Self { text, parts })
        }
    }

    /// The pattern as it was given.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The text of a time.
    pub(super) fn format(&self, time: DateTime) -> String {
        let part = |part: &Part| match part {
            Part::Literal(literal) => literal.to_string(),
            Part::Year => format!("{:04}", time.year()),
            Part::Month => format!("{:02}", time.month()),
            Part::Day => format!("{:02}", time.day()),
            Part::Hour => format!("{:02}", time.hour()),
            Part::Minute => format!("{:02}", time.minute()),
            Part::Second => format!("{:02}", time.second()),
            Part::Fraction(digits) => {
                format!("{:09}", time.subsec_nanosecond()).chars().take(*digits).collect()
            }
        };
        self.parts.iter().map(part).collect()
    }
}

impl Part {
    /// Its place behind the year; `None` for a literal.
    fn rank(&self) -> Option<usize> {
        match self {
            Self::Literal(_) => None,
            Self::Year => Some(0),
            Self::Month => Some(1),
            Self::Day => Some(2),
            Self::Hour => Some(3),
            Self::Minute => Some(4),
            Self::Second => Some(5),
            Self::Fraction(_) => Some(6),
        }
    }
}

fn parse(text: &str) -> Result<Vec<Part>, InvalidPattern> {
    let (mut parts, mut chars) = (Vec::new(), text.chars().peekable());
    while let Some(next) = chars.next() {
        match next {
            '\'' => quoted(&mut chars, &mut parts)?,
            letter if letter.is_ascii_alphabetic() => {
                let mut width = 1;
                while chars.next_if_eq(&letter).is_some() {
                    width += 1;
                }
                parts.push(match (letter, width) {
                    ('y' | 'u', 4) => Part::Year,
                    ('M', 2) => Part::Month,
                    ('d', 2) => Part::Day,
                    ('H', 2) => Part::Hour,
                    ('m', 2) => Part::Minute,
                    ('s', 2) => Part::Second,
                    ('S', 1..=9) => Part::Fraction(width),
                    _ => return Err(InvalidPattern::Letter(letter.to_string().repeat(width))),
                });
            }
            // Java keeps them for other purposes.
            '[' | ']' | '{' | '}' | '#' => return Err(InvalidPattern::Letter(next.to_string())),
            literal => parts.push(Part::Literal(literal)),
        }
    }
    Ok(parts)
}

/// Reads what follows an apostrophe: a text up to the next one; two of them are one of the text.
fn quoted(chars: &mut Peekable<Chars<'_>>, parts: &mut Vec<Part>) -> Result<(), InvalidPattern> {
    if chars.next_if_eq(&'\'').is_some() {
        parts.push(Part::Literal('\''));
        return Ok(());
    }
    loop {
        match chars.next().ok_or(InvalidPattern::Quote)? {
            '\'' if chars.next_if_eq(&'\'').is_none() => return Ok(()),
            literal => parts.push(Part::Literal(literal)),
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    #[test]
    fn times_are_written_by_their_pattern() {
        let time = date(2024, 3, 5).at(7, 8, 9, 123_456_789);
        for (pattern, text) in [
            ("yyyy", "2024"),
            ("yyyy-MM-dd", "2024-03-05"),
            ("uuuuMMdd", "20240305"),
            ("yyyy-MM-dd HH:mm:ss", "2024-03-05 07:08:09"),
            ("yyyy-MM-dd'T'HH:mm:ss.SSS", "2024-03-05T07:08:09.123"),
            ("yyyy'o''clock'''MM", "2024o'clock'03"),
            ("yyyy年MM月dd日", "2024年03月05日"),
            ("yyyy''MM", "2024'03"),
        ] {
            assert_eq!(DatePattern::new(pattern).unwrap().format(time), text, "{pattern}");
        }
    }

    #[test]
    fn patterns_whose_texts_do_not_sort_are_refused() {
        let letter = |text: &str| InvalidPattern::Letter(text.to_owned());
        for (pattern, error) in [
            ("", InvalidPattern::Length),
            ("-", InvalidPattern::Order),
            ("HH:mm", InvalidPattern::Order),
            ("dd/MM/yyyy", InvalidPattern::Order),
            ("yyyy-dd", InvalidPattern::Order),
            ("yyyy-MM-dd HH:mm:ss SSS yyyy", InvalidPattern::Order),
            ("yyyySSS", InvalidPattern::Order),
            ("yyyy-M-d", letter("M")),
            ("yy-MM-dd", letter("yy")),
            ("yyyy-MMM-dd", letter("MMM")),
            ("yyyy-MM-dd hh:mm", letter("hh")),
            ("yyyy-MM-ddTHH", letter("T")),
            ("yyyy[-MM]", letter("[")),
            ("yyyy'T", InvalidPattern::Quote),
        ] {
            assert_eq!(DatePattern::new(pattern), Err(error), "{pattern}");
        }
    }
}
