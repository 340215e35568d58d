//! Checks that enough members are up for a majority, which every settling write waits for.

use ::mongodb::Database;
use bson::{Bson, Document, doc};

use crate::check::finding::Finding;
use crate::check::members::{SetMember, holders, hosts};
use crate::config::Resolved;
use crate::store::connect::ask;
use crate::store::{StoreError, uri};

pub(super) const NAME: &str = "replica set";

const REMEDY: &str =
    "start the members that are down; nothing is delivered without a majority of members";

/// Decides by the primary's view of the members; without the privilege for it, by direct answers.
pub(super) async fn probe(
    plan: &Resolved,
    admin: &Database,
    hello: &Document,
    members: &[SetMember],
) -> Result<Finding, StoreError> {
    match ask(admin, "read the states of the members", doc! { "replSetGetStatus": 1 }).await {
        Ok(status) => Ok(by_status(&status)),
        Err(error) if error.is_refusal() => {
            let direct = uri::read(&plan.mongo.uri_with_login())
                .is_ok_and(|uri| uri.parsed.direct_connection == Some(true));
            Ok(by_answers(hello, members, direct))
        }
        Err(error) => Err(error),
    }
}

/// The finding by `replSetGetStatus`.
fn by_status(status: &Document) -> Finding {
    let members = status.get_array("members").into_iter().flatten();
    let members: Vec<&Document> = members.filter_map(Bson::as_document).collect();
    let state = |member: &Document| member.get_str("stateStr").unwrap_or("unknown").to_owned();
    let is_up = |member: &&&Document| ["PRIMARY", "SECONDARY"].contains(&state(member).as_str());
    let up = members.iter().filter(is_up).count();
    let needed = status.get_i32("writeMajorityCount").ok();
    let needed = needed.and_then(|count| usize::try_from(count).ok());
    let needed = needed.unwrap_or(members.len() / 2 + 1);
    let down: Vec<String> = members
        .iter()
        .filter(|member| !is_up(member) && state(member) != "ARBITER")
        .map(|member| format!("{} is {}", member.get_str("name").unwrap_or("?"), state(member)))
        .collect();
    report(up, members.len(), needed, &down)
}

/// The finding by the members that answer. An arbiter votes but accepts no login.
fn by_answers(hello: &Document, members: &[SetMember], direct: bool) -> Finding {
    let holders = holders(hello).len();
    let voters = holders + hosts(hello, "arbiters").len();
    let needed = (voters / 2 + 1).min(holders);
    let is_up = |member: &&SetMember| member.answer.is_some_and(|answer| answer.is_up);
    let up = members.iter().filter(is_up).count();
    let silent: Vec<String> = members
        .iter()
        .filter(|member| !is_up(member))
        .map(|member| match member.answer {
            None => format!("{} does not respond", member.host),
            Some(_) => format!("{} is neither primary nor secondary", member.host),
        })
        .collect();
    if up < needed && (direct || up == 0) {
        let detail = format!(
            "a primary was reached; the state of the other members is unknown ({})",
            silent.join(", ")
        );
        return Finding::good(NAME, detail);
    }
    report(up, voters, needed, &silent)
}

fn report(up: usize, all: usize, needed: usize, down: &[String]) -> Finding {
    let mut detail = format!("{up} of {all} members with data are up; {needed} are required");
    if !down.is_empty() {
        detail = format!("{detail}: {}", down.join(", "));
    }
    if up < needed { Finding::bad(NAME, detail, REMEDY) } else { Finding::good(NAME, detail) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::members::{MemberAnswer, MemberClock};

    fn status(states: &[&str], needed: i32) -> Document {
        let members = states.iter().map(|state| doc! { "name": "h:1", "stateStr": *state });
        doc! { "members": members.collect::<Vec<_>>(), "writeMajorityCount": needed }
    }

    fn member(host: &str, is_up: Option<bool>) -> SetMember {
        let clock = MemberClock { ahead: 0, unsure: 1 };
        SetMember { host: host.into(), answer: is_up.map(|is_up| MemberAnswer { is_up, clock }) }
    }

    #[test]
    fn arbiter_votes_and_has_no_data() {
        let frozen = by_status(&status(&["PRIMARY", "(not reachable/healthy)", "ARBITER"], 2));
        let well = by_status(&status(&["PRIMARY", "SECONDARY", "ARBITER"], 2));
        let one_down = by_status(&status(&["PRIMARY", "SECONDARY", "RECOVERING"], 2));

        assert!(!frozen.ok && frozen.detail.contains("h:1 is (not reachable"), "{frozen:?}");
        assert!(well.ok && one_down.ok, "{well:?} {one_down:?}");
    }

    #[test]
    fn unreachable_member_is_down_except_on_direct_connections() {
        let hello = doc! { "hosts": ["a", "b"], "arbiters": ["c"] };
        let members = [member("a", Some(true)), member("b", None)];

        let frozen = by_answers(&hello, &members, false);
        let direct = by_answers(&hello, &members, true);
        let well = by_answers(&hello, &[member("a", Some(true)), member("b", Some(true))], false);
        let starting =
            by_answers(&hello, &[member("a", Some(true)), member("b", Some(false))], false);
        let tunnel = by_answers(&hello, &[member("a", None), member("b", None)], false);

        assert!(!frozen.ok && !starting.ok, "{frozen:?} {starting:?}");
        assert!(direct.ok && direct.detail.contains("is unknown"), "{direct:?}");
        assert!(well.ok && tunnel.ok, "{well:?} {tunnel:?}");
    }
}
