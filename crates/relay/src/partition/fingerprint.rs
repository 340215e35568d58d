//! The settings on which the order within a key depends: all instances must agree in them.

use std::fmt;

use bson::{Bson, Document, doc};

/// The settings in which the instances of one outbox must agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// `relay.ordering` is `key`.
    pub ordered: bool,
    /// `relay.on_dead` is `block`.
    pub block_on_dead: bool,
    /// `outbox.collection_prefix`.
    pub prefix: String,
}

impl Fingerprint {
    const ORDERING: &str = "ordering";
    const ON_DEAD: &str = "onDead";
    const PREFIX: &str = "prefix";

    /// Returns `ordering` and `on_dead` as the configuration spells them.
    fn words(&self) -> (&'static str, &'static str) {
        let ordering = if self.ordered { "key" } else { "none" };
        let on_dead = if self.block_on_dead { "block" } else { "skip" };
        (ordering, on_dead)
    }

    /// Reads the fingerprint from an instance's document; `None` if it is missing or invalid.
    pub fn read(document: &Document) -> Option<Self> {
        Some(Self {
            ordered: document.get_str(Self::ORDERING).ok()? == "key",
            block_on_dead: document.get_str(Self::ON_DEAD).ok()? == "block",
            prefix: document.get_str(Self::PREFIX).ok()?.to_owned(),
        })
    }
}

impl From<&Fingerprint> for Bson {
    fn from(fingerprint: &Fingerprint) -> Self {
        let (ordering, on_dead) = fingerprint.words();
        doc! {
            Fingerprint::ORDERING: ordering,
            Fingerprint::ON_DEAD: on_dead,
            Fingerprint::PREFIX: fingerprint.prefix.as_str(),
        }
        .into()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, (ordering, on_dead)) = (&self.prefix, self.words());
        write!(
            f,
            "relay.ordering = {ordering:?}, relay.on_dead = {on_dead:?}, \
             outbox.collection_prefix = {prefix:?}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_survives_a_round_trip() {
        for (ordered, block_on_dead) in [(true, false), (true, true), (false, false)] {
            let written = Fingerprint { ordered, block_on_dead, prefix: "app_".into() };
            let document = Bson::from(&written);

            assert_eq!(Fingerprint::read(document.as_document().unwrap()), Some(written));
        }
        assert_eq!(Fingerprint::read(&doc! { "ordering": "key", "onDead": 5 }), None);
    }
}
