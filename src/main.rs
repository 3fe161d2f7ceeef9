//! The reference consumer's service and its operator commands.

use std::process::ExitCode;

use mimalloc::MiMalloc;

// Small values come and go with every delivery: a sixth of the service's CPU time less than with
// the C library's allocator (bench/).
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    backstop::main(|config| {
        backstop::orders::service(config.orders_inventory_url.as_deref(), config.orders_bulk)
    })
}
