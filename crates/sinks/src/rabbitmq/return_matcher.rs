//! Which of the messages on a channel came back.
//!
//! `basic.return` arrives before the confirm of the same message, and names it by its
//! properties alone. `lapin` (4.12) hands the oldest return that it has received to whichever confirm
//! comes next, be it another message's: with a window of more than one message the
//! unroutable one would count as delivered (a loss) and its neighbour as returned. This book
//! puts that right by the message id that each return carries.
//!
//! Confirms are noted in *rounds*: everything that was ready at one time, in any order. Two
//! facts make it safe. A confirm that brought no return shows that `lapin`'s queue of
//! returns was empty then, so each return before it had been handed to a confirm that was ready no
//! later: to one of this round or of those before. And when nothing is outstanding, every
//! return has been handed over, since each is followed by a confirm of its own.

use std::collections::HashMap;

/// The confirms of one channel, on their way to an answer.
#[derive(Debug)]
pub(super) struct Returns<T> {
    /// Words of the broker for each message that came back and is not yet answered.
    returned: HashMap<String, String>,
    /// Confirmed in this round, with an empty queue of returns.
    certain: Vec<(String, T)>,
    /// Confirmed while a return was in the queue, which may be its own.
    uncertain: Vec<(String, T)>,
    /// The same, of rounds before.
    waiting: Vec<(String, T)>,
}

/// One message's answer: `None` where a queue has it, else the broker's words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer<T> {
    pub(super) of: T,
    pub(super) returned: Option<String>,
}

impl<T> Default for Returns<T> {
    fn default() -> Self {
        Self {
            returned: HashMap::new(),
            certain: Vec::new(),
            uncertain: Vec::new(),
            waiting: Vec::new(),
        }
    }
}

impl<T> Returns<T> {
    /// A return that came with any message's answer.
    pub(super) fn note_return(&mut self, id: String, words: String) {
        self.returned.insert(id, words);
    }

    /// A positive confirm. `clear`: it brought no return along.
    pub(super) fn note_confirm(&mut self, id: String, of: T, clear: bool) {
        match clear {
            true => self.certain.push((id, of)),
            false => self.uncertain.push((id, of)),
        }
    }

    /// A message that was answered otherwise (nacked, or its channel is gone).
    pub(super) fn forget(&mut self, id: &str) {
        self.returned.remove(id);
    }

    /// The caller of this message no longer waits for its answer.
    ///
    /// A return that names it is kept: a message of the same id may follow on the channel, and must
    /// not pass for delivered. At worst it is published once more.
    pub(super) fn give_up(&mut self, id: &str) {
        self.waiting.retain(|(waiting, _)| waiting != id);
    }

    /// Ends a round: gives the answers that are certain now. `clear`: some answer of this
    /// round brought no return along; `idle`: nothing is outstanding on the channel.
    pub(super) fn end_round(&mut self, clear: bool, idle: bool) -> Vec<Answer<T>> {
        let mut ready = std::mem::take(&mut self.certain);
        if clear || idle {
            ready.append(&mut self.waiting);
        }
        if idle {
            ready.append(&mut self.uncertain);
        }
        self.waiting.append(&mut self.uncertain);
        let mut answers = Vec::with_capacity(ready.len());
        for (id, of) in ready {
            answers.push(Answer { of, returned: self.returned.remove(&id) });
        }
        // A returned message does not wait any longer.
        let (back, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(id, _)| self.returned.contains_key(id));
        self.waiting = waiting;
        for (id, of) in back {
            answers.push(Answer { of, returned: self.returned.remove(&id) });
        }
        if idle {
            // The rest belongs to messages whose callers gave up.
            self.returned.clear();
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer<'a>(of: &'a str, returned: Option<&str>) -> Answer<&'a str> {
        Answer { of, returned: returned.map(str::to_owned) }
    }

    fn note<'a>(book: &mut Returns<&'a str>, id: &'a str, brought: Option<&str>) {
        if let Some(brought) = brought {
            book.note_return(brought.into(), "NO_ROUTE".into());
        }
        book.note_confirm(id.into(), id, brought.is_none());
    }

    #[test]
    fn a_return_that_came_with_a_neighbours_confirm_is_its_own_messages() {
        let mut book = Returns::default();
        note(&mut book, "good", Some("bad"));
        note(&mut book, "bad", None);

        let mut answers = book.end_round(true, true);

        answers.sort_by_key(|answer| answer.of);
        assert_eq!(answers, [answer("bad", Some("NO_ROUTE")), answer("good", None)]);
    }

    #[test]
    fn the_order_within_a_round_does_not_matter() {
        let mut book = Returns::default();
        note(&mut book, "bad", None);
        note(&mut book, "good", Some("bad"));

        let answers = book.end_round(true, false);

        assert_eq!(answers, [answer("bad", Some("NO_ROUTE"))]);
        assert_eq!(book.end_round(true, false), [answer("good", None)]);
    }

    #[test]
    fn a_confirm_that_brought_anothers_return_waits_until_the_queue_was_seen_empty() {
        let mut book = Returns::default();
        note(&mut book, "two", Some("one"));

        assert_eq!(book.end_round(false, false), []);

        note(&mut book, "one", Some("two"));
        let mut answers = book.end_round(false, true);
        answers.sort_by_key(|answer| answer.of);
        assert_eq!(answers, [answer("one", Some("NO_ROUTE")), answer("two", Some("NO_ROUTE"))]);
    }

    #[test]
    fn the_return_of_a_repeated_message_is_not_lost_to_the_first_one() {
        let mut book = Returns::default();
        // Confirmed, and not yet certain, when it is published again.
        note(&mut book, "twice", Some("other"));
        assert_eq!(book.end_round(false, false), []);
        book.give_up("twice");
        note(&mut book, "other", Some("twice"));
        assert_eq!(book.end_round(false, false), [answer("other", Some("NO_ROUTE"))]);

        note(&mut book, "twice", None);

        assert_eq!(book.end_round(true, true), [answer("twice", Some("NO_ROUTE"))]);
    }

    #[test]
    fn nothing_outstanding_makes_everything_certain() {
        let mut book = Returns::default();
        note(&mut book, "good", Some("gone before"));

        assert_eq!(book.end_round(false, true), [answer("good", None)]);
    }
}
