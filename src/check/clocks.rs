//! Checks that the members' clocks agree: leases depend on them, also after a failover.

use std::time::Duration;

use crate::check::finding::Finding;
use crate::check::members::{MemberClock, SetMember};

pub(super) const NAME: &str = "clocks";

/// The finding: how far the slowest clock is certainly behind the fastest.
pub(super) fn report(members: &[SetMember], allowed: Duration) -> Finding {
    let clocks: Vec<(&str, MemberClock)> = members
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
        let detail = if silent.is_empty() { "one member, one clock" } else { "one member reached" };
        return Finding::good(NAME, format!("{detail}{unasked}"));
    }
    let apart = fast.ahead - slow.ahead;
    let certainly = apart - fast.unsure - slow.unsure;
    let allowed_millis = i64::try_from(allowed.as_millis()).unwrap_or(i64::MAX);
    if certainly > allowed_millis {
        let detail = format!(
            "the clock of {last} is {apart} ms ahead of the clock of {first}; at most {allowed:?}, a \
             third of relay.lease, is allowed{unasked}"
        );
        let remedy = "synchronise the clocks of the members (NTP), or raise relay.lease; otherwise leases \
                      expire too early or too late after a failover";
        return Finding::bad(NAME, detail, remedy);
    }
    let within = apart.max(fast.unsure + slow.unsure);
    let detail =
        format!("{} members within {within} ms; at most {allowed:?} is allowed", clocks.len());
    Finding::good(NAME, format!("{detail}{unasked}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::members::MemberAnswer;

    fn member(host: &str, ahead: i64, unsure: i64) -> SetMember {
        let clock = MemberClock { ahead, unsure };
        SetMember { host: host.into(), answer: Some(MemberAnswer { is_up: true, clock }) }
    }

    fn judged(members: &[SetMember]) -> Finding {
        report(members, Duration::from_secs(10))
    }

    #[test]
    fn clocks_that_certainly_differ_too_much_are_named() {
        let far = judged(&[member("a", 0, 1), member("b", 10_100, 1), member("c", 20, 1)]);
        let near = judged(&[member("a", 0, 1), member("b", 9_900, 1)]);
        let slow = judged(&[member("a", 0, 1), member("b", 10_100, 200)]);

        assert!(!far.ok && far.detail.contains("clock of b is 10100 ms ahead of the clock of a"));
        assert!(near.ok && slow.ok, "{near:?} {slow:?}");
    }

    #[test]
    fn unreached_members_are_named_without_a_fault() {
        let hidden = || SetMember { host: "hidden".into(), answer: None };

        for members in [vec![hidden()], vec![member("a", 0, 1), hidden()]] {
            let found = judged(&members);

            assert!(found.ok && found.detail.contains("not reached directly: hidden"), "{found:?}");
        }
        assert_eq!(judged(&[member("a", 5, 1)]).detail, "one member, one clock");
    }
}
