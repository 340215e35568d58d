//! Whether the members' clocks agree (contract, section 4.3): leases are judged on them, and a
//! failover from one to another must not jump far.

use std::time::Duration;

use crate::check::Finding;
use crate::check::members::{Clock, Member};

const NAME: &str = "clocks";

/// Judges the members' clocks by how far the first is certainly behind the last.
pub(super) fn judge(members: &[Member], allowed: Duration) -> Finding {
    let clocks: Vec<(&str, Clock)> = members
        .iter()
        .filter_map(|member| Some((member.host.as_str(), member.answer?.clock)))
        .collect();
    let silent: Vec<&str> = members
        .iter()
        .filter(|member| member.answer.is_none())
        .map(|member| member.host.as_str())
        .collect();
    let unasked = match silent.as_slice() {
        [] => String::new(),
        silent => format!("; not reached directly: {}", silent.join(", ")),
    };
    let first = clocks.iter().min_by_key(|(_, clock)| clock.ahead);
    let last = clocks.iter().max_by_key(|(_, clock)| clock.ahead);
    let (Some((first, slow)), Some((last, fast))) = (first, last) else {
        return Finding::good(NAME, format!("not compared{unasked}"));
    };
    if clocks.len() == 1 {
        let detail = if silent.is_empty() { "one member, one clock" } else { "one member asked" };
        return Finding::good(NAME, format!("{detail}{unasked}"));
    }
    let apart = fast.ahead - slow.ahead;
    let certainly = apart - fast.unsure - slow.unsure;
    let allowed_millis = i64::try_from(allowed.as_millis()).unwrap_or(i64::MAX);
    if certainly > allowed_millis {
        let detail = format!(
            "the clock of {last} is {apart} ms ahead of that of {first}, a third of the lease is \
             {allowed:?}{unasked}"
        );
        let remedy = "synchronise the clocks of the members (NTP), or raise relay.lease: after a \
                      failover leases would end too soon or too late";
        return Finding::bad(NAME, detail, remedy);
    }
    let within = apart.max(fast.unsure + slow.unsure);
    let detail = format!("{} members within {within} ms, {allowed:?} is allowed", clocks.len());
    Finding::good(NAME, format!("{detail}{unasked}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::members::Answer;

    fn member(host: &str, ahead: i64, unsure: i64) -> Member {
        let clock = Clock { ahead, unsure };
        Member { host: host.into(), answer: Some(Answer { is_up: true, clock }) }
    }

    fn judged(members: &[Member]) -> Finding {
        judge(members, Duration::from_secs(10))
    }

    #[test]
    fn what_is_certainly_too_far_apart_is_named() {
        let far = judged(&[member("a", 0, 1), member("b", 10_100, 1), member("c", 20, 1)]);
        let near = judged(&[member("a", 0, 1), member("b", 9_900, 1)]);
        let slow = judged(&[member("a", 0, 1), member("b", 10_100, 200)]);

        assert!(!far.ok && far.detail.contains("clock of b is 10100 ms ahead of that of a"));
        assert!(near.ok && slow.ok, "{near:?} {slow:?}");
    }

    #[test]
    fn who_was_not_reached_is_said_and_is_no_fault() {
        let hidden = || Member { host: "hidden".into(), answer: None };

        for members in [vec![hidden()], vec![member("a", 0, 1), hidden()]] {
            let found = judged(&members);

            assert!(found.ok && found.detail.contains("not reached directly: hidden"), "{found:?}");
        }
        assert_eq!(judged(&[member("a", 5, 1)]).detail, "one member, one clock");
    }
}
