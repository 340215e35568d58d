//! Processes whose clock is wrong: libfaketime in front of libc.

use super::environment::variable;
use std::path::PathBuf;
use std::process::Command;

/// The variable with the path of the library.
const LIBRARY: &str = "POSTRIDER_TEST_FAKETIME";

/// The path of the library, for `LD_PRELOAD`.
pub fn faketime() -> String {
    variable(LIBRARY)
}

/// A clock that can be set while a process uses it.
pub struct Clock(tempfile::TempDir);

impl Clock {
    pub fn right() -> Self {
        let clock = Self(tempfile::tempdir().unwrap());
        clock.set("+0");
        clock
    }

    /// Sets it ahead or behind by this much: `+1h`, `-8s`.
    pub fn set(&self, offset: &str) {
        std::fs::write(self.file(), format!("{offset}\n")).unwrap();
    }

    /// Makes a process use it, for its monotonic clock too unless `FAKETIME_DONT_FAKE_MONOTONIC` is
    /// set.
    pub fn rule<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .env("LD_PRELOAD", faketime())
            .env("FAKETIME_TIMESTAMP_FILE", self.file())
            .env("FAKETIME_NO_CACHE", "1")
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("clock")
    }
}
