//! The `postrider` command.

fn main() {}
