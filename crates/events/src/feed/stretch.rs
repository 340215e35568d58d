//! A part of the feed, and the names of its events.

use std::collections::BTreeSet;

use crate::names::AggregateName;

/// Consecutive positions, and the names of their events.
#[derive(Debug, PartialEq)]
pub(super) struct Stretch {
    after: i64,
    /// The end of an append, as is each of `ends`.
    to: i64,
    names: Vec<AggregateName>,
    /// Ascending. Between one end and the next one there are events of the names of the next one.
    ends: Vec<(i64, usize)>,
}

impl Stretch {
    /// Ends of appends, ascending, each with a name of its events.
    pub(super) fn new(
        (after, to): (i64, i64),
        names: Vec<AggregateName>,
        found: impl IntoIterator<Item = (i64, usize)>,
    ) -> Self {
        let mut ends: Vec<(i64, usize)> = Vec::new();
        for (end, name) in found {
            match ends.as_mut_slice() {
                // (Two names may have one end.)
                [.., before, last] if last.1 == name && before.0 < last.0 => last.0 = end,
                [last] if last.1 == name => last.0 = end,
                _ => ends.push((end, name)),
            }
        }
        Self { after, to, names, ends }
    }

    /// Positions that may be of each of these names.
    pub(super) fn of_all(after: i64, to: i64, names: &[&AggregateName]) -> Self {
        let ends = (0..names.len()).map(|name| (to, name)).collect();
        Self { after, to, names: names.iter().copied().cloned().collect(), ends }
    }

    /// Whether it begins at this position or before, and ends behind it.
    pub(super) fn is_behind(&self, position: i64) -> bool {
        (self.after..self.to).contains(&position)
    }

    /// The part behind `after` of this many positions or more: its end, and the names of its events.
    pub(super) fn part(&self, after: i64, positions: i64) -> (i64, Vec<&AggregateName>) {
        let enough = after.saturating_add(positions);
        let begin = self.ends.partition_point(|(end, _)| *end <= after);
        let (mut to, mut names) = (after, BTreeSet::new());
        let mut ends = self.ends[begin..].iter();
        let is_cut = loop {
            let Some((end, name)) = ends.next() else { break false };
            if to >= enough && *end > to {
                break true;
            }
            to = *end;
            names.insert(*name);
        };
        let names = names.into_iter().filter_map(|name| self.names.get(name)).collect();
        (if is_cut { to } else { self.to }, names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<AggregateName> {
        ["a", "b", "c"].map(|name| AggregateName::new(name).unwrap()).to_vec()
    }

    fn part(stretch: &Stretch, after: i64, positions: i64) -> (i64, String) {
        let (to, names) = stretch.part(after, positions);
        (to, names.iter().map(|name| name.as_str()).collect())
    }

    #[test]
    fn part_ends_with_an_append_and_names_what_is_in_it() {
        let (a, b, c) = (0, 1, 2);
        let ends = [(12, a), (13, a), (15, b), (16, a), (19, c), (20, c), (21, c)];
        let stretch = Stretch::new((10, 30), names(), ends);

        assert_eq!(part(&stretch, 10, 1), (13, "a".into()));
        assert_eq!(part(&stretch, 10, 4), (15, "ab".into()));
        assert_eq!(part(&stretch, 14, 1), (15, "b".into()));
        assert_eq!(part(&stretch, 13, 3), (16, "ab".into()));
        // A part that was deleted is passed.
        assert_eq!(part(&stretch, 16, 1), (30, "c".into()));
        assert_eq!(part(&stretch, 21, 1), (30, String::new()));
        assert_eq!(part(&stretch, 10, i64::MAX), (30, "abc".into()));
        assert!(!stretch.is_behind(9) && stretch.is_behind(10) && !stretch.is_behind(30));
    }

    #[test]
    fn part_has_all_names_of_one_end() {
        let (a, b, c) = (0, 1, 2);
        let ends = [(5, a), (5, b), (8, b), (8, c), (9, c)];
        let stretch = Stretch::new((0, 9), names(), ends);

        assert_eq!(part(&stretch, 0, 5), (5, "ab".into()));
        assert_eq!(part(&stretch, 5, 1), (8, "bc".into()));
        assert_eq!(part(&stretch, 8, 1), (9, "c".into()));
        let names = names();
        let all = Stretch::of_all(3, 9, &names.iter().collect::<Vec<_>>());
        assert_eq!(part(&all, 5, 1), (9, "abc".into()));
    }
}
