//! The link of each key with unconfirmed records, for a sink with several of them per key.
//!
//! Two producers do not keep an order. So a key keeps the link of its unconfirmed records until the last of them
//! has its outcome, although other keys use another link already.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The links of the keys with unconfirmed records.
#[derive(Debug)]
pub(super) struct Outstanding<L>(Mutex<HashMap<String, (Arc<L>, usize)>>);

/// An unconfirmed record of a key.
#[derive(Debug)]
pub(super) struct Unconfirmed<'a, L> {
    outstanding: &'a Outstanding<L>,
    key: String,
    /// The link that it is sent on.
    pub(super) link: Arc<L>,
}

impl<L> Default for Outstanding<L> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<L> Outstanding<L> {
    /// Adds a record of a key, which is sent on the link of the others, or on this one if there are none.
    pub(super) fn add(&self, key: String, link: Arc<L>) -> Unconfirmed<'_, L> {
        let mut links = self.0.lock();
        let (of_key, count) = links.entry(key.clone()).or_insert((link, 0));
        *count += 1;
        Unconfirmed { outstanding: self, key, link: of_key.clone() }
    }
}

impl<L> Drop for Unconfirmed<'_, L> {
    fn drop(&mut self) {
        let mut links = self.outstanding.0.lock();
        if let Some((_, count)) = links.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                links.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_keeps_its_link_until_its_last_record_has_an_outcome() {
        let outstanding = Outstanding::default();
        let [old, new] = ["old", "new"].map(Arc::new);
        let add =
            |key: &str, link: &Arc<&'static str>| outstanding.add(key.to_owned(), link.clone());

        let first = add("k", &old);
        let second = add("k", &new);
        drop(first);
        let third = add("k", &new);
        let other = add("another", &new);
        assert_eq!([*second.link, *third.link, *other.link], ["old", "old", "new"]);
        drop((second, third));

        assert_eq!(*add("k", &new).link, "new");
        drop(other);
        assert!(outstanding.0.lock().is_empty());
    }
}
