//! The reference consumer's service and its operator commands.

use std::process::ExitCode;

fn main() -> ExitCode {
    backstop::main(|config| {
        backstop::orders::service(config.orders_inventory_url.as_deref(), config.orders_bulk)
    })
}
