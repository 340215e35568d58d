//! At which version aggregates are: what an append must know, and mostly knows already.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::prepared::Aggregate;

/// How long a version is believed that nobody has confirmed. It only gets higher, and the unique
/// index sees to that; but a collection that people empty by hand begins anew.
const BELIEVED: Duration = Duration::from_secs(10);

/// More than these are not remembered: the next appends read them.
const REMEMBERED: usize = 4096;

/// The newest stream of an aggregate; zeros where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) version: i64,
    pub(super) create_time: i64,
}

/// The heads of the aggregates of a lane. Only what a majority has is in here: no failover takes
/// it back.
#[derive(Debug, Default)]
pub(super) struct Heads {
    known: HashMap<Aggregate, Known>,
    /// Which group of appends is worked on: what was learnt before is not fresh.
    group: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    head: Head,
    group: u64,
    learnt: Instant,
}

/// What is known of an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Knowledge {
    /// Read, or written, for this group: whom it does not fit is in conflict.
    Fresh(Head),
    /// From earlier: good enough to try.
    Earlier(Head),
    /// Nothing.
    Nothing,
}

impl Heads {
    /// Another group begins.
    pub(super) fn begin_group(&mut self) {
        self.group += 1;
        if self.known.len() > REMEMBERED {
            self.known.clear();
        }
    }

    pub(super) fn learn(&mut self, aggregate: Aggregate, head: Head) {
        let known = Known { head, group: self.group, learnt: Instant::now() };
        self.known.insert(aggregate, known);
    }

    pub(super) fn forget(&mut self, aggregate: &Aggregate) {
        self.known.remove(aggregate);
    }

    pub(super) fn of(&self, aggregate: &Aggregate) -> Knowledge {
        match self.known.get(aggregate) {
            Some(known) if known.group == self.group => Knowledge::Fresh(known.head),
            Some(known) if known.learnt.elapsed() < BELIEVED => Knowledge::Earlier(known.head),
            _ => Knowledge::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{AggregateId, AggregateName};

    #[test]
    fn what_was_learnt_for_another_group_is_not_fresh() {
        let aggregate = (AggregateName::new("a").unwrap(), AggregateId::new("1").unwrap());
        let head = Head { version: 3, create_time: 1 };
        let mut heads = Heads::default();
        heads.begin_group();

        assert_eq!(heads.of(&aggregate), Knowledge::Nothing);
        heads.learn(aggregate.clone(), head);
        assert_eq!(heads.of(&aggregate), Knowledge::Fresh(head));
        heads.begin_group();
        assert_eq!(heads.of(&aggregate), Knowledge::Earlier(head));
        heads.forget(&aggregate);
        assert_eq!(heads.of(&aggregate), Knowledge::Nothing);
    }
}
