//! Names that MongoDB takes, by its documented limits ("Naming Restrictions"): what it would refuse at
//! the first write is found in the configuration.

use crate::outbox::collections::names;

/// A database's name has fewer bytes.
const DATABASE: usize = 64;

/// The most that database and collection have with the dot between them, in bytes.
const NAMESPACE: usize = 255;

/// What no database's name has; a control character is refused wherever it stands.
const ILLEGAL: [char; 6] = ['/', '\\', '.', ' ', '"', '$'];

/// MongoDB's own, in any case: names that differ in their case alone are the same to it.
const RESERVED: [&str; 3] = ["admin", "config", "local"];

/// Judges the name of a database.
///
/// # Errors
///
/// What is wrong, and what would be right.
pub(super) fn check_database(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() >= DATABASE {
        return Err(format!("must have 1 to {} bytes, MongoDB's limit; shorten it", DATABASE - 1));
    }
    if let Some(found) = name.chars().find(|character| ILLEGAL.contains(character)) {
        return Err(format!("must not have the character {found:?}, which MongoDB refuses"));
    }
    match RESERVED.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
        true => Err("is MongoDB's own, which has no transactions; name another".to_owned()),
        false => Ok(()),
    }
}

/// Judges what goes in front of the collections' names, in a database of this name.
///
/// # Errors
///
/// What is wrong, and what would be right.
pub(super) fn check_prefix(prefix: &str, database: &str) -> Result<(), String> {
    let legal = |character: char| character.is_ascii_alphanumeric() || "_.-".contains(character);
    if !prefix.chars().all(legal) {
        return Err("must have no other characters than letters, digits, _ . -".to_owned());
    }
    if prefix.starts_with('.') {
        return Err("must not begin with a dot: MongoDB refuses such collections".to_owned());
    }
    if format!(".{prefix}").contains(".system.") {
        return Err(
            "must not have the part \"system.\": such collections are MongoDB's own".to_owned()
        );
    }
    let longest = names::ALL.iter().map(|name| name.len()).max().unwrap_or_default();
    let room = NAMESPACE.saturating_sub(database.len() + 1 + longest);
    match prefix.len() <= room {
        true => Ok(()),
        false => Err(format!(
            "must have {room} bytes at most: with the database and the collection's own name \
             MongoDB's limit is {NAMESPACE}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_is_judged_by_mongodbs_rules() {
        for name in ["app", "é", "a%b", "System", &"a".repeat(63)] {
            assert_eq!(check_database(name), Ok(()), "{name}");
        }
        for name in
            ["", "a.b", "a b", "a/b", "a\\b", "a\"b", "$external", "admin", "Local", "CONFIG"]
        {
            assert!(check_database(name).is_err(), "{name}");
        }
        assert!(check_database(&"é".repeat(32)).is_err());
    }

    #[test]
    fn prefix_is_judged_by_mongodbs_rules() {
        for prefix in ["", "a.", "1-", "system", "System.", "a.systemx.", "a.."] {
            assert_eq!(check_prefix(prefix, "app"), Ok(()), "{prefix}");
        }
        for prefix in ["system.", "a.system.", "..", ".a", "a b", "é"] {
            assert!(check_prefix(prefix, "app").is_err(), "{prefix}");
        }
    }

    #[test]
    fn prefix_leaves_room_for_the_longest_collection() {
        let room = 255 - "app.outbox_partition_assignments".len();

        assert_eq!(check_prefix(&"a".repeat(room), "app"), Ok(()));
        assert!(check_prefix(&"a".repeat(room + 1), "app").unwrap_err().contains("223 bytes"));
        assert!(check_prefix(&"a".repeat(room), "apps").is_err());
    }
}
