use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The result is ignored, because it only reports that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match berth::commands::run(berth::cli::config::args(berth::cli::typed::arranged(std::env::args_os()))) {
        Ok(code) => code,
        Err(error) => {
            let why = berth::text::chain(error.as_ref());
            berth::cli::print::on_stderr(format_args!("berth: {why}"));
            berth::commands::exit_code(&error)
        }
    }
}
