//! Checks that the process may open as many file descriptors as its parts may need at a time.

use crate::check::finding::Finding;
use crate::config::Resolved;
use crate::descriptors::{DescriptorBudget, attainable};

/// `run` starts with fewer, too, and lowers the limits of its listeners.
pub(super) fn probe(plan: &Resolved) -> Finding {
    const NAME: &str = "descriptors";
    let budget = DescriptorBudget::new(plan, attainable());
    if budget.is_enough() {
        Finding::good(NAME, budget.to_string())
    } else {
        Finding::bad(NAME, budget.to_string(), budget.remedy())
    }
}
