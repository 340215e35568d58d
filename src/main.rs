//! The `postrider` binary: see `postrider::cli`.

use std::process::ExitCode;

/// It returns memory to the system soon after many large answers or requests. The allocator of glibc keeps most of it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    #[cfg(feature = "failpoints")]
    let _failpoints = postrider::failpoint::init();
    postrider::cli::main()
}
