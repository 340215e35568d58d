//! The `postrider` binary: see `postrider::cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    let _failpoints = postrider::failpoint::init();
    postrider::cli::main()
}
