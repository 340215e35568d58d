//! What tests share with each other: variables of the environment, and names that must differ.

/// A variable that `make test` sets, with an address or a path.
pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: run the tests by `make test`, or before this one: \
             eval \"$(scripts/services.sh env)\""
        )
    })
}

/// A name with this prefix that no other test has.
pub fn unique(prefix: &str) -> String {
    format!("{prefix}{}", uuid::Uuid::new_v4().simple())
}
