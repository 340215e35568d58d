//! Which names the last positions are of: a part of the document of the feed.
//!
//! Without it a reader at the head would have to ask all names for each new event. The transaction that
//! moves the head writes it, so it costs no write. It has a slot for each of the last parts of the feed, by
//! the position that is in front of the part:
//!
//! ```text
//! recent: { "1200": { to: 1207, names: ["order", "customer"] }, "1207": { … } }
//! ```
//!
//! Only a chain of slots that ends at the head says anything: an earlier release moves the head without it.

use std::collections::{BTreeMap, BTreeSet};

use bson::{Bson, Document, doc};

use crate::feed::stretch::Stretch;
use crate::integer::integral;
use crate::names::AggregateName;

/// The most slots. With one append in each transaction of 5 ms, these are the last 0.6 s or more.
const MAX_SLOTS: usize = 32;

/// The most names of a slot that grows. A reader that wants its last event reads all of them.
const MAX_NAMES: usize = 4;

/// The most positions of a slot that grows.
const MAX_POSITIONS: i64 = 1_000;

/// The most names of one transaction; one with more is as if nothing was known.
const MAX_BATCH_NAMES: usize = 64;

/// The field of the document of the feed.
pub(super) const RECENT: &str = "recent";

const TO: &str = "to";
const NAMES: &str = "names";

/// The slots, by the position in front of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Recent(BTreeMap<i64, Slot>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Slot {
    to: i64,
    names: BTreeSet<AggregateName>,
}

impl Recent {
    /// Reads it in the document of the feed. What is invalid says nothing.
    pub(super) fn read(found: &Document) -> Self {
        let Ok(slots) = found.get_document(RECENT) else { return Self::default() };
        let slot = |(after, slot): (&String, &Bson)| {
            let slot = slot.as_document()?;
            let names = slot.get_array(NAMES).ok()?.iter();
            let names = names.map(|name| AggregateName::new(name.as_str()?).ok());
            let slot =
                Slot { to: slot.get(TO).and_then(integral)?, names: names.collect::<Option<_>>()? };
            Some((after.parse().ok()?, slot))
        };
        Self(slots.iter().filter_map(slot).collect())
    }

    /// The positions in front of the head of which it knows the names.
    pub(super) fn stretch(&self, head: i64) -> Option<Stretch> {
        let mut chain: Vec<(i64, &Slot)> = Vec::new();
        let mut begin = head;
        for (after, slot) in self.0.iter().rev() {
            if slot.to != begin || *after >= begin {
                break;
            }
            chain.push((*after, slot));
            begin = *after;
        }
        let names: BTreeSet<&AggregateName> =
            chain.iter().flat_map(|(_, slot)| &slot.names).collect();
        let indexes: BTreeMap<&AggregateName, usize> = names.iter().copied().zip(0..).collect();
        let ends = chain.iter().rev().flat_map(|(_, slot)| {
            slot.names.iter().filter_map(|name| Some((slot.to, *indexes.get(name)?)))
        });
        let names = names.iter().copied().cloned().collect();
        (begin < head).then(|| Stretch::new((begin, head), names, ends))
    }

    /// What it is after the head has moved: the positions between are of these names.
    pub(super) fn moved(&self, from: i64, to: i64, names: BTreeSet<&AggregateName>) -> Self {
        if from >= to {
            return self.clone();
        }
        if names.len() > MAX_BATCH_NAMES {
            return Self::default();
        }
        let mut slots = self.0.clone();
        slots.retain(|_, slot| slot.to <= from);
        let mut names: BTreeSet<AggregateName> = names.into_iter().cloned().collect();
        let mut after = from;
        if let Some(last) = slots.last_entry()
            && last.get().to == from
            && last.get().names.union(&names).count() <= MAX_NAMES
            && to.saturating_sub(*last.key()) <= MAX_POSITIONS
        {
            let (begin, known) = last.remove_entry();
            after = begin;
            names.extend(known.names);
        }
        slots.insert(after, Slot { to, names });
        while slots.len() > MAX_SLOTS {
            slots.pop_first();
        }
        Self(slots)
    }

    /// The stages of an update that make it `next`. Only what has changed is written.
    pub(super) fn update(&self, next: &Self) -> Vec<Document> {
        let path = |after: &i64| format!("{RECENT}.{after}");
        let changed = next.0.iter().filter(|(after, slot)| self.0.get(after) != Some(slot));
        let set: Document = changed
            .map(|(after, Slot { to, names })| {
                let names: Vec<&str> = names.iter().map(AggregateName::as_str).collect();
                (path(after), doc! { TO: to, NAMES: { "$literal": names } }.into())
            })
            .collect();
        let gone = self.0.keys().filter(|after| !next.0.contains_key(after));
        let gone: Vec<String> = gone.map(path).collect();
        let set = (!set.is_empty()).then(|| doc! { "$set": set });
        let unset = (!gone.is_empty()).then(|| doc! { "$unset": gone });
        set.into_iter().chain(unset).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(recent: &Recent, from: i64, to: i64, names: &[&str]) -> Recent {
        let names: Vec<_> = names.iter().map(|name| AggregateName::new(name).unwrap()).collect();
        recent.moved(from, to, names.iter().collect())
    }

    /// The end of the part behind a position, and its names; `None` where they are not known.
    fn part(recent: &Recent, head: i64, after: i64) -> Option<(i64, Vec<String>)> {
        part_of(&recent.stretch(head)?, after)
    }

    fn part_of(stretch: &Stretch, after: i64) -> Option<(i64, Vec<String>)> {
        let (to, names) = stretch.is_behind(after).then(|| stretch.part(after, 1))?;
        Some((to, names.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn known_positions_are_of_all_names_of_their_transactions() {
        let mut recent = Recent::default();
        let mut batches: Vec<(i64, Vec<String>)> = Vec::new();
        for number in 1..100 {
            let names = (0..number % 7 + 1).map(|other| format!("n{}", (number + 13 * other) % 50));
            let (to, names): (_, Vec<String>) = (number * 3, names.collect());
            let texts: Vec<&str> = names.iter().map(String::as_str).collect();
            recent = moved(&recent, to - 3, to, &texts);
            batches.push((to, names));

            let stretch = recent.stretch(to).unwrap();
            let known = batches.iter().filter(|(end, names)| {
                let Some((to, found)) = part_of(&stretch, end - 3) else { return false };
                assert!(to >= *end && names.iter().all(|name| found.contains(name)), "{end}");
                true
            });
            assert!(known.count() >= batches.len().min(MAX_SLOTS), "{to}");
            assert!(recent.0.len() <= MAX_SLOTS);
        }
    }

    #[test]
    fn slot_grows_by_few_names_and_few_positions() {
        let recent = moved(&Recent::default(), 0, 2, &["a", "b"]);
        let recent = moved(&recent, 2, 3, &["b", "c", "d"]);
        let recent = moved(&recent, 3, 4, &["e"]);
        let recent = moved(&recent, 4, 4 + MAX_POSITIONS, &["e"]);

        let of = |after| part(&recent, 4 + MAX_POSITIONS, after).unwrap();
        assert_eq!(of(0), (3, ["a", "b", "c", "d"].map(str::to_owned).to_vec()));
        assert_eq!(of(3), (4 + MAX_POSITIONS, vec!["e".to_owned()]));
        assert_eq!(recent.0.len(), 3);
    }

    #[test]
    fn head_that_moved_otherwise_leaves_nothing_known_before() {
        let recent = moved(&Recent::default(), 0, 2, &["a"]);
        assert_eq!(part(&recent, 5, 0), None);

        // Another release has moved it from 2 to 5.
        let later = moved(&recent, 5, 6, &["b"]);
        assert_eq!(part(&later, 6, 0), None);
        assert_eq!(part(&later, 6, 5), Some((6, vec!["b".to_owned()])));
        // The document had another head.
        assert_eq!(part(&moved(&recent, 1, 3, &["c"]), 3, 0), None);

        let many: Vec<String> = (0..=MAX_BATCH_NAMES).map(|number| format!("n{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(moved(&recent, 2, 100, &many), Recent::default());
        assert_eq!(moved(&recent, 2, 2, &["a"]), recent);
    }

    #[test]
    fn update_writes_what_has_changed() {
        let mut recent = Recent::default();
        let mut document = Document::new();
        for number in 0..100_i64 {
            let names = [format!("a{number}"), format!("b{number}"), format!("c{number}")];
            let next = moved(&recent, number, number + 1, &names.each_ref().map(String::as_str));
            for stage in recent.update(&next) {
                if let Ok(set) = stage.get_document("$set") {
                    assert_eq!(set.len(), 1);
                    for (path, slot) in set {
                        let mut slot = slot.as_document().unwrap().clone();
                        let names = slot.get_document(NAMES).unwrap().get("$literal").cloned();
                        slot.insert(NAMES, names.unwrap());
                        document.insert(path.strip_prefix("recent.").unwrap(), slot);
                    }
                }
                for path in stage.get_array("$unset").into_iter().flatten() {
                    document.remove(path.as_str().unwrap().strip_prefix("recent.").unwrap());
                }
            }
            recent = next;
            assert_eq!(Recent::read(&doc! { RECENT: document.clone() }), recent);
        }
        document.insert("7", "of another type");
        document.insert("8", doc! { TO: 9, NAMES: [7] });
        assert_eq!(Recent::read(&doc! { RECENT: document }), recent);
        assert_eq!(Recent::read(&doc! { RECENT: 7 }), Recent::default());
    }
}
