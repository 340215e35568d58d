//! Assigns the returns on a channel to their messages.
//!
//! `basic.return` arrives before the confirm of the same message, and names it only by its
//! properties. `lapin` (4.12) attaches the oldest return that it has received to whichever confirm
//! comes next, even if that is another message's: with more than one message outstanding, the
//! unroutable one would count as delivered (a loss) and another one as returned. This corrects that by the
//! message id that each return carries.
//!
//! Confirms are noted in *rounds*: everything that was ready at one time, in any order. Two
//! facts make it safe. A *clear* confirm, which brought no return, shows that `lapin`'s queue of
//! returns was empty then, so each earlier return was attached to a confirm that was ready no
//! later: to one of this round or of an earlier one. And when nothing is outstanding, every
//! return was attached, since each is followed by a confirm of its own.

use std::collections::HashMap;

/// The confirmed messages of one channel without a certain outcome.
#[derive(Debug)]
pub(super) struct ReturnMatcher<T> {
    /// By message id: the text of each return whose message has no outcome.
    returned: HashMap<String, String>,
    /// Confirmed in this round by a clear confirm.
    certain: Vec<(String, T)>,
    /// Confirmed in this round with a return, perhaps of another message: its own may be in the queue.
    uncertain: Vec<(String, T)>,
    /// The uncertain messages of earlier rounds.
    waiting: Vec<(String, T)>,
}

/// The outcome of one message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outcome<T> {
    pub(super) message: T,
    /// The text of the return; `None` if a queue received the message.
    pub(super) returned: Option<String>,
}

impl<T> Default for ReturnMatcher<T> {
    fn default() -> Self {
        Self {
            returned: HashMap::new(),
            certain: Vec::new(),
            uncertain: Vec::new(),
            waiting: Vec::new(),
        }
    }
}

impl<T> ReturnMatcher<T> {
    /// Notes a return that came with the answer of any message.
    pub(super) fn note_return(&mut self, id: String, detail: String) {
        self.returned.insert(id, detail);
    }

    /// Notes a positive confirm. `is_clear`: it brought no return.
    pub(super) fn note_confirm(&mut self, id: String, message: T, is_clear: bool) {
        let round = if is_clear { &mut self.certain } else { &mut self.uncertain };
        round.push((id, message));
    }

    /// Forgets a message with another outcome (nacked, or its channel is closed).
    pub(super) fn forget(&mut self, id: &str) {
        self.returned.remove(id);
    }

    /// Forgets a message for which no caller waits any more.
    ///
    /// A return that names it is kept: a message of the same id may follow on the channel, and must
    /// not count as delivered. At worst it is published again.
    pub(super) fn abandon(&mut self, id: &str) {
        self.waiting.retain(|(waiting, _)| waiting != id);
    }

    /// Ends a round, and returns the outcomes that are certain now. `has_clear`: some confirm of this
    /// round was clear; `is_idle`: nothing is outstanding on the channel.
    pub(super) fn end_round(&mut self, has_clear: bool, is_idle: bool) -> Vec<Outcome<T>> {
        let mut ready = std::mem::take(&mut self.certain);
        if has_clear || is_idle {
            ready.append(&mut self.waiting);
        }
        if is_idle {
            ready.append(&mut self.uncertain);
        }
        self.waiting.append(&mut self.uncertain);
        let mut outcomes = self.outcomes(ready);
        // A returned message does not wait any longer.
        let returned = self.waiting.extract_if(.., |(id, _)| self.returned.contains_key(id));
        let returned = returned.collect();
        outcomes.append(&mut self.outcomes(returned));
        if is_idle {
            // The rest belongs to messages whose callers gave up.
            self.returned.clear();
        }
        outcomes
    }

    fn outcomes(&mut self, messages: Vec<(String, T)>) -> Vec<Outcome<T>> {
        let outcome = |(id, message)| Outcome { returned: self.returned.remove(&id), message };
        messages.into_iter().map(outcome).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome<'a>(message: &'a str, returned: Option<&str>) -> Outcome<&'a str> {
        Outcome { message, returned: returned.map(str::to_owned) }
    }

    fn note<'a>(matcher: &mut ReturnMatcher<&'a str>, id: &'a str, brought: Option<&str>) {
        if let Some(brought) = brought {
            matcher.note_return(brought.into(), "NO_ROUTE".into());
        }
        matcher.note_confirm(id.into(), id, brought.is_none());
    }

    #[test]
    fn return_with_the_confirm_of_another_message_is_assigned_to_its_own() {
        let mut matcher = ReturnMatcher::default();
        note(&mut matcher, "good", Some("bad"));
        note(&mut matcher, "bad", None);

        let mut outcomes = matcher.end_round(true, true);

        outcomes.sort_by_key(|outcome| outcome.message);
        assert_eq!(outcomes, [outcome("bad", Some("NO_ROUTE")), outcome("good", None)]);
    }

    #[test]
    fn order_within_a_round_does_not_matter() {
        let mut matcher = ReturnMatcher::default();
        note(&mut matcher, "bad", None);
        note(&mut matcher, "good", Some("bad"));

        let outcomes = matcher.end_round(true, false);

        assert_eq!(outcomes, [outcome("bad", Some("NO_ROUTE"))]);
        assert_eq!(matcher.end_round(true, false), [outcome("good", None)]);
    }

    #[test]
    fn confirm_with_another_return_waits_until_no_return_is_left() {
        let mut matcher = ReturnMatcher::default();
        note(&mut matcher, "two", Some("one"));

        assert_eq!(matcher.end_round(false, false), []);

        note(&mut matcher, "one", Some("two"));
        let mut outcomes = matcher.end_round(false, true);
        outcomes.sort_by_key(|outcome| outcome.message);
        assert_eq!(outcomes, [outcome("one", Some("NO_ROUTE")), outcome("two", Some("NO_ROUTE"))]);
    }

    #[test]
    fn return_of_a_repeated_message_is_kept_for_the_repetition() {
        let mut matcher = ReturnMatcher::default();
        // Confirmed, and not yet certain, when it is published again.
        note(&mut matcher, "twice", Some("other"));
        assert_eq!(matcher.end_round(false, false), []);
        matcher.abandon("twice");
        note(&mut matcher, "other", Some("twice"));
        assert_eq!(matcher.end_round(false, false), [outcome("other", Some("NO_ROUTE"))]);

        note(&mut matcher, "twice", None);

        assert_eq!(matcher.end_round(true, true), [outcome("twice", Some("NO_ROUTE"))]);
    }

    #[test]
    fn every_outcome_is_certain_when_nothing_is_outstanding() {
        let mut matcher = ReturnMatcher::default();
        note(&mut matcher, "good", Some("gone before"));

        assert_eq!(matcher.end_round(false, true), [outcome("good", None)]);
    }
}
