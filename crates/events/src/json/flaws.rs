//! What is wrong with a request, by field.

use std::cell::RefCell;
use std::fmt;

use postrider_outbox::nesting::TOO_DEEP;

use crate::Flaw;

/// The most flaws of one request that are reported.
pub use postrider_outbox::json_text::MAX_FLAWS;

/// The path to a field, such as `events[0].name`.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldPath<'a> {
    /// The whole body.
    Body,
    /// A field of an object.
    Field(&'a FieldPath<'a>, &'a str),
    /// An item of an array.
    Item(&'a FieldPath<'a>, usize),
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body => Ok(()),
            Self::Field(Self::Body, name) => f.write_str(name),
            Self::Field(path, name) => write!(f, "{path}.{name}"),
            Self::Item(path, index) => write!(f, "{path}[{index}]"),
        }
    }
}

/// The flaws that were found so far, one for each field, and at most one more than [`MAX_FLAWS`].
#[derive(Default)]
pub(super) struct FlawList(RefCell<Vec<Flaw>>);

impl FlawList {
    /// Adds a flaw, unless the list is full or has one of this field.
    pub(super) fn add(&self, path: FieldPath<'_>, detail: impl FnOnce() -> String) {
        if self.is_full() {
            return;
        }
        let (mut flaws, new) = (self.0.borrow_mut(), Flaw::new(path.to_string(), detail()));
        // A value that is nested too deep was found at its deepest place, if its text was already too deep.
        let is_deeper = |flaw: &Flaw| {
            flaw.detail == TOO_DEEP && new.detail == TOO_DEEP && flaw.field.starts_with(&new.field)
        };
        if !flaws.iter().any(|flaw| flaw.field == new.field || is_deeper(flaw)) {
            flaws.push(new);
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.borrow().len() > MAX_FLAWS
    }

    /// The flaws, of which the last says that there are more, if so.
    pub(super) fn into_report(self) -> Vec<Flaw> {
        let is_full = self.is_full();
        let mut flaws = self.0.into_inner();
        if is_full && let Some(last) = flaws.last_mut() {
            let detail = format!("has more errors; only the first {MAX_FLAWS} are reported");
            *last = Flaw::new("", detail);
        }
        flaws
    }
}

impl From<Vec<Flaw>> for FlawList {
    fn from(mut flaws: Vec<Flaw>) -> Self {
        flaws.truncate(MAX_FLAWS + 1);
        Self(RefCell::new(flaws))
    }
}

impl From<FlawList> for Vec<Flaw> {
    fn from(list: FlawList) -> Self {
        list.0.into_inner()
    }
}
