//! Each guard, taken out.

use super::Without::{
    AssignMajority, ByState, CompareFeed, CompareHead, CompareOwner, EmptyAside, Exists, GapAside,
    HighestHead, NamesFirst, NamesMajority, NamesWithHead, OneSnapshot, OneTransaction,
    Predecessor, ReadPredecessor, ReaderMajority, RecentAtHead,
};
use super::{
    Bounds, COMPLETE, FINISH, KEPT, ORDER, SEEN, Without, bounds, check, deleted, empty, failing,
    gapped, lost, named, restored,
};

fn breaks(name: &str, bounds: Bounds, without: &'static [Without], promise: &'static str) {
    let walk = check(Bounds { promise: Some(promise), without, ..bounds });
    walk.assert_breaks(&format!("`feed`: {name}"), promise);
}

/// A restore, where a name comes late.
fn renamed() -> Bounds {
    Bounds { late_name: true, ..restored() }
}

#[test]
fn position_is_given_twice_when_nothing_is_compared() {
    let name = "the head moves from the value that was read, or by its owner";
    breaks(name, bounds(), &[CompareHead, CompareOwner, CompareFeed], COMPLETE);
}

#[test]
fn feed_is_complete_when_the_owner_alone_is_compared() {
    let bounds = Bounds { without: &[CompareHead, CompareFeed], ..failing() };
    check(bounds).assert_holds("`feed`: failovers; the owner alone is compared", "test");
}

#[test]
fn feed_is_complete_when_the_head_alone_is_compared() {
    let bounds = Bounds { without: &[CompareOwner, CompareFeed], ..failing() };
    check(bounds).assert_holds("`feed`: failovers; the head alone is compared", "test");
}

#[test]
#[ignore = "large: make model"]
fn large_feed_is_complete_when_head_and_feed_are_compared() {
    let bounds = Bounds { without: &[CompareOwner], ..restored() };
    check(bounds).assert_holds("`feed`: a restore; head and feed are compared", "model");
}

#[test]
#[ignore = "large: make model"]
fn large_feed_is_complete_when_owner_and_feed_are_compared() {
    let bounds = Bounds { without: &[CompareHead], ..restored() };
    check(bounds).assert_holds("`feed`: a restore; owner and feed are compared", "model");
}

#[test]
fn reader_skips_when_the_feed_is_not_compared() {
    let name = "the head moves in the feed that was read";
    breaks(name, renamed(), &[CompareFeed], SEEN);
}

#[test]
#[ignore = "large: make model"]
fn large_feed_is_complete_when_the_head_alone_is_compared_after_a_restore() {
    let bounds = Bounds { without: &[CompareFeed, CompareOwner], ..restored() };
    check(bounds).assert_holds("`feed`: a restore; the head alone is compared", "model");
}

#[test]
fn stream_changes_its_position_when_that_is_not_asked() {
    breaks("only a stream without a position gets one", bounds(), &[Exists], KEPT);
}

#[test]
fn version_precedes_another_when_predecessors_are_not_asked() {
    breaks("a version is behind its predecessor", bounds(), &[Predecessor], ORDER);
}

#[test]
fn head_is_ahead_when_positions_are_written_later() {
    let name = "positions and head are one transaction";
    breaks(name, bounds(), &[OneTransaction], SEEN);
}

#[test]
fn version_precedes_another_when_positions_are_remembered() {
    let name = "the transaction reads whether a predecessor has a position";
    let bounds = Bounds { versions: [3, 1], ..deleted() };
    breaks(name, bounds, &[ReadPredecessor], ORDER);
}

#[test]
fn version_gets_no_position_when_positions_are_remembered() {
    let name = "no append is dropped because of what is remembered of its aggregate";
    breaks(name, deleted(), &[ReadPredecessor], FINISH);
}

#[test]
fn feed_is_complete_when_positions_need_no_majority() {
    let bounds = Bounds { without: &[AssignMajority], ..failing() };
    check(bounds)
        .assert_holds("`feed`: failovers; positions count before a majority has them", "test");
}

#[test]
fn reader_skips_when_names_follow_positions() {
    breaks("names are written before positions", named(), &[NamesFirst], SEEN);
}

#[test]
fn reader_skips_when_names_need_no_majority() {
    let bounds = Bounds { late_name: true, ..failing() };
    breaks("names count when a majority has them", bounds, &[NamesMajority], SEEN);
}

#[test]
fn position_is_given_twice_when_a_new_head_is_not_the_highest() {
    let name = "a lost document is created with the highest position";
    breaks(name, lost(), &[HighestHead], COMPLETE);
}

#[test]
fn position_is_given_twice_when_a_restored_head_is_not_the_highest() {
    let name = "a restored document gets the highest position";
    breaks(name, restored(), &[HighestHead], COMPLETE);
}

#[test]
fn reader_skips_when_a_new_document_has_no_names() {
    let name = "a lost document is created with the names of positions";
    breaks(name, lost(), &[NamesWithHead], SEEN);
}

#[test]
fn reader_skips_when_a_restored_document_lacks_names() {
    let name = "a restored document gets the names of positions";
    breaks(name, renamed(), &[NamesWithHead], SEEN);
}

#[test]
fn late_commit_is_never_found_when_a_time_is_the_cursor() {
    breaks("appends are found by their state, not by time", bounds(), &[ByState], FINISH);
}

#[test]
fn other_streams_wait_when_a_gap_is_not_put_aside() {
    breaks("a stream with a missing version is put aside", gapped(), &[GapAside], FINISH);
}

#[test]
fn reader_skips_when_a_page_has_two_snapshots() {
    breaks("a page is read in one snapshot", bounds(), &[OneSnapshot], SEEN);
}

#[test]
fn reader_sees_what_is_undone_when_it_reads_no_majority() {
    breaks("a page is read from a majority", failing(), &[ReaderMajority], SEEN);
}

#[test]
fn reader_skips_when_appends_without_events_count() {
    breaks("a page passes over appends without events", empty(), &[EmptyAside], SEEN);
}

#[test]
fn reader_skips_when_the_last_names_do_not_reach_the_head() {
    let name = "the names of the last positions reach the head";
    let bounds = Bounds { recent: true, ..restored() };
    breaks(name, bounds, &[RecentAtHead], SEEN);
}
