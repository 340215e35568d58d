//! What is wrong with a request, by field.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;

use crate::Flaw;

/// The most flaws of one request that are reported.
pub const MAX_FLAWS: usize = 100;

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
pub(super) struct FlawList {
    flaws: RefCell<Vec<Flaw>>,
    fields: RefCell<HashSet<String>>,
}

impl FlawList {
    /// Adds a flaw, unless the list is full or has one of this field.
    pub(super) fn add(&self, path: FieldPath<'_>, detail: impl FnOnce() -> String) {
        if self.is_full() {
            return;
        }
        let field = path.to_string();
        if self.fields.borrow_mut().insert(field.clone()) {
            self.flaws.borrow_mut().push(Flaw { field, detail: detail() });
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.flaws.borrow().len() > MAX_FLAWS
    }

    /// The flaws, of which the last says that there are more, if so.
    pub(super) fn into_report(self) -> Vec<Flaw> {
        let is_full = self.is_full();
        let mut flaws = self.flaws.into_inner();
        if is_full && let Some(last) = flaws.last_mut() {
            let detail = format!("has more flaws; the first {MAX_FLAWS} are reported");
            *last = Flaw::new("", detail);
        }
        flaws
    }
}

impl From<Vec<Flaw>> for FlawList {
    fn from(mut flaws: Vec<Flaw>) -> Self {
        flaws.truncate(MAX_FLAWS + 1);
        let fields = flaws.iter().map(|flaw| flaw.field.clone()).collect();
        Self { flaws: RefCell::new(flaws), fields: RefCell::new(fields) }
    }
}

impl From<FlawList> for Vec<Flaw> {
    fn from(list: FlawList) -> Self {
        list.flaws.into_inner()
    }
}
