//! Cuts pages of the feed into batches of whole appends.

use postrider_events::feed::{FeedEvent, FeedPage};

/// Whole appends that one transaction applies.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Batch {
    /// The id of the feed.
    pub(crate) feed: String,
    /// The events of each append.
    pub(crate) appends: Vec<Vec<FeedEvent>>,
    /// The checkpoint behind them.
    pub(crate) next: i64,
}

impl Batch {
    /// Splits a batch at an append that fails: those before it, the append alone, and those behind it.
    pub(crate) fn split_at(mut self, at: usize) -> Vec<Self> {
        let behind = self.appends.split_off((at + 1).min(self.appends.len()));
        let alone = self.appends.split_off(at.min(self.appends.len()));
        let begin = |appends: &[Vec<FeedEvent>]| {
            appends.first().and_then(|append| append.first()).map(|event| event.position - 1)
        };
        // Positions between two appends are of events that the filter does not let pass.
        let (before_alone, before_behind) = (begin(&alone), begin(&behind));
        let part = |appends, next: Option<i64>| Self {
            feed: self.feed.clone(),
            appends,
            next: next.unwrap_or(self.next),
        };
        let parts =
            [part(self.appends, before_alone), part(alone, before_behind), part(behind, None)];
        parts.into_iter().filter(|part| !part.appends.is_empty()).collect()
    }
}

/// Holds the last append of a page back, until it is known to be whole.
#[derive(Debug, Default)]
pub(crate) struct AppendCutter {
    held: Vec<FeedEvent>,
}

impl AppendCutter {
    /// Takes the next page; returns batches of about `limit` events. The last one advances to the end
    /// of what is whole.
    pub(crate) fn add(&mut self, page: FeedPage, limit: usize) -> Vec<Batch> {
        let FeedPage { feed, items, next, .. } = page;
        let mut appends: Vec<Vec<FeedEvent>> = Vec::new();
        let held = std::mem::take(&mut self.held);
        for event in held.into_iter().chain(items) {
            match appends.last_mut() {
                Some(append) if is_of(append, &event) => append.push(event),
                _ => appends.push(vec![event]),
            }
        }
        let mut end = next;
        let last = appends.last().and_then(|append| append.last());
        if last.is_some_and(|last| end_of_append(last) > next) {
            self.held = appends.pop().unwrap_or_default();
            end = self.held.first().map_or(next, |first| first.position - 1);
        }
        batches(&feed, appends, end, limit)
    }
}

/// The position of the last event of its append.
fn end_of_append(event: &FeedEvent) -> i64 {
    event.position - event.index + event.event_count - 1
}

fn is_of(append: &[FeedEvent], event: &FeedEvent) -> bool {
    append.first().is_some_and(|first| {
        first.aggregate_name == event.aggregate_name && first.stream_id == event.stream_id
    })
}

fn batches(feed: &str, appends: Vec<Vec<FeedEvent>>, end: i64, limit: usize) -> Vec<Batch> {
    let batch = |appends| Batch { feed: feed.to_owned(), appends, next: end };
    let mut batches: Vec<Batch> = Vec::new();
    let mut events = 0;
    for append in appends {
        let count = append.len();
        match batches.last_mut() {
            Some(last) if events + count <= limit => last.appends.push(append),
            last => {
                if let (Some(last), Some(first)) = (last, append.first()) {
                    last.next = first.position - 1;
                }
                batches.push(batch(vec![append]));
                events = 0;
            }
        }
        events += count;
    }
    if batches.is_empty() {
        batches.push(batch(Vec::new()));
    }
    batches
}

#[cfg(test)]
mod tests {
    use bson::Document;

    use super::*;

    /// The only event of the append `stream`.
    fn event(position: i64, stream: &str) -> FeedEvent {
        event_of(position, stream, 0, 1)
    }

    /// An event of the append `stream`.
    fn event_of(position: i64, stream: &str, index: i64, event_count: i64) -> FeedEvent {
        FeedEvent {
            position,
            aggregate_name: "order".into(),
            aggregate_id: stream.into(),
            version: 1,
            index,
            event_count,
            id: format!("{stream}-{index}"),
            name: "E".into(),
            revision: None,
            body_type: None,
            body: Document::new(),
            tenant_id: None,
            owner_id: None,
            request_id: "r".into(),
            command_id: None,
            create_time: 0,
            header: Document::new(),
            invalid: Vec::new(),
            stream_id: stream.into(),
        }
    }

    fn page(items: Vec<FeedEvent>, next: i64, head: i64) -> FeedPage {
        FeedPage { feed: "f".into(), items, next, head }
    }

    /// The ids of each append, and `next`, of each batch.
    fn shape(batches: &[Batch]) -> Vec<(Vec<String>, i64)> {
        let append = |append: &Vec<FeedEvent>| {
            append.iter().map(|event| event.id.as_str()).collect::<Vec<_>>().join("+")
        };
        batches.iter().map(|it| (it.appends.iter().map(append).collect(), it.next)).collect()
    }

    #[test]
    fn append_that_a_page_cuts_is_held_until_it_is_whole() {
        let mut cutter = AppendCutter::default();
        let b = |position, index| event_of(position, "b", index, 4);
        let first = vec![event(1, "a"), b(2, 0), b(3, 1)];

        let whole = cutter.add(page(first, 3, 6), 100);
        assert_eq!(shape(&whole), [(vec!["a-0".into()], 1)]);

        let still_cut = cutter.add(page(vec![b(4, 2)], 4, 6), 100);
        assert_eq!(shape(&still_cut), [(vec![], 1)]);

        let rest = cutter.add(page(vec![b(5, 3), event(6, "c")], 6, 6), 100);
        assert_eq!(shape(&rest), [(vec!["b-0+b-1+b-2+b-3".into(), "c-0".into()], 6)]);
    }

    #[test]
    fn append_is_whole_where_its_other_events_do_not_pass_the_filter() {
        let mut cutter = AppendCutter::default();

        // The second of three events.
        let batches = cutter.add(page(vec![event_of(2, "a", 1, 3)], 3, 9), 100);

        assert_eq!(shape(&batches), [(vec!["a-1".into()], 3)]);
    }

    #[test]
    fn page_without_events_advances() {
        let batches = AppendCutter::default().add(page(vec![], 7, 9), 100);

        assert_eq!(shape(&batches), [(vec![], 7)]);
    }

    #[test]
    fn batches_have_whole_appends_up_to_the_limit() {
        let events = vec![
            event_of(2, "a", 0, 3),
            event_of(3, "a", 1, 3),
            event_of(4, "a", 2, 3),
            event(6, "b"),
            event(7, "c"),
            event(8, "d"),
        ];

        let batches = AppendCutter::default().add(page(events, 9, 9), 2);

        let texts = |of: &[&str]| of.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let expected =
            [(texts(&["a-0+a-1+a-2"]), 5), (texts(&["b-0", "c-0"]), 7), (texts(&["d-0"]), 9)];
        assert_eq!(shape(&batches), expected);
    }

    #[test]
    fn failing_append_is_split_from_its_batch() {
        let events = ["a", "b", "c"].iter().zip([1, 3, 5]).map(|(it, at)| event(at, it));
        let mut batches = AppendCutter::default().add(page(events.collect(), 6, 6), 100);

        let parts = batches.remove(0).split_at(1);

        let texts = |of: &str| vec![of.to_owned()];
        let expected = [(texts("a-0"), 2), (texts("b-0"), 4), (texts("c-0"), 6)];
        assert_eq!(shape(&parts), expected);
    }
}
