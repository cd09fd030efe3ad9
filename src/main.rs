use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // One crypto provider for everything; a second installation would only report that there is one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match berth::commands::run(berth::args::Args::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("berth: {}", berth::text::chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}
