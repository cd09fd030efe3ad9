//! Puts static berth binaries into a container image: an OCI layout in one tar, and an SBOM per
//! architecture beside it. `make image` runs it. Nothing is taken from the clock, the machine or
//! the order of a folder: the same binaries give the same bytes.

mod binary;
mod layer;
mod layout;
mod roots;
mod sbom;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, ensure};
use clap::{Parser, ValueEnum};

use layer::{Layer, LayerEntry};
use layout::{Image, ImageInfo, ImageLayout};

/// The package whose binary the image carries.
const PACKAGE: &str = "berth";
/// Most bytes of one architecture, unpacked.
const LIMIT: usize = 25_000_000;

/// Puts static berth binaries into a container image.
#[derive(Parser)]
struct ImageArgs {
    /// A static binary of an architecture: amd64=PATH or arm64=PATH. May be given once for each.
    #[arg(long, required = true, value_name = "ARCH=PATH", value_parser = binary_of)]
    binary: Vec<(Arch, PathBuf)>,
    /// Path of the tar with the OCI layout. The SBOMs are written beside it, as ARCH.cdx.json.
    #[arg(long)]
    output: PathBuf,
    /// The source folder of the binaries.
    #[arg(long)]
    source: PathBuf,
    /// Name of the image in `docker load` and the like.
    #[arg(long, default_value = concat!("berth:", env!("CARGO_PKG_VERSION")))]
    name: String,
    /// The commit of the source.
    #[arg(long)]
    revision: String,
    /// The time of everything in the image, in seconds since 1970.
    #[arg(long, default_value_t = 0)]
    epoch: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Arch {
    Amd64,
    Arm64,
}

impl Arch {
    /// The architecture's name in images.
    fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// The architecture's name in Rust targets.
    fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-musl",
            Self::Arm64 => "aarch64-unknown-linux-musl",
        }
    }
}

fn binary_of(text: &str) -> Result<(Arch, PathBuf), String> {
    let (arch, path) = text.split_once('=').ok_or("ARCH=PATH is wanted")?;
    Ok((Arch::from_str(arch, false)?, path.into()))
}

fn main() -> ExitCode {
    match run(ImageArgs::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("image: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: ImageArgs) -> anyhow::Result<()> {
    let ImageArgs { mut binary, output, source, name, revision, epoch } = args;
    binary.sort();
    let once = binary.windows(2).all(|pair| pair[0].0 != pair[1].0);
    ensure!(once, "--binary: one for each architecture");
    let about = ImageInfo { name, labels: labels(&revision), epoch };
    let std = rust_version(&source)?;
    let mut images = Vec::new();
    for (arch, path) in &binary {
        let program = std::fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
        binary::check(&program, *arch).with_context(|| path.display().to_string())?;
        let sbom = sbom::write(&metadata(&source, *arch)?, *arch, &std)?;
        save(&output.with_file_name(format!("{}.cdx.json", arch.name())), sbom.as_bytes())?;
        let entries = [
            LayerEntry::program("berth", program),
            LayerEntry::file(roots::PATH, roots::pem().into_bytes()),
            LayerEntry::file("sbom.cdx.json", sbom.into_bytes()),
        ];
        images.push(Image { arch: *arch, layer: Layer::pack(entries, epoch)? });
    }
    for Image { arch, layer } in &images {
        let size = layer.unpacked;
        ensure!(size <= LIMIT, "{}: {size} bytes unpacked, {LIMIT} are allowed", arch.name());
    }
    let layout = ImageLayout::new(&images, &about)?;
    save(&output, &layout.tar(epoch)?)?;
    for Image { arch, layer } in &images {
        let (packed, unpacked) = (megabytes(layer.packed.len()), megabytes(layer.unpacked));
        println!("{}: {packed} MB to pull, {unpacked} MB unpacked", arch.name());
    }
    println!("{}: {}", output.display(), layout.digest);
    println!("when it is pushed: berth install --image {}", layout::pinned(&about.name, &layout.digest));
    Ok(())
}

fn labels(revision: &str) -> BTreeMap<String, String> {
    let labels = [
        ("title", PACKAGE),
        ("source", env!("CARGO_PKG_REPOSITORY")),
        ("version", env!("CARGO_PKG_VERSION")),
        ("revision", revision),
        ("licenses", env!("CARGO_PKG_LICENSE")),
    ];
    labels.map(|(key, value)| (format!("org.opencontainers.image.{key}"), value.to_owned())).into()
}

/// The output of `cargo metadata` for the binary's dependencies.
fn metadata(source: &Path, arch: Arch) -> anyhow::Result<Vec<u8>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--locked", "--format-version=1", "--filter-platform", arch.target()]);
    output(command.current_dir(source))
}

/// The version of the compiler, which is also the standard library's.
fn rust_version(source: &Path) -> anyhow::Result<String> {
    let said = String::from_utf8(output(Command::new("rustc").arg("--version").current_dir(source))?)?;
    let version = said.split_whitespace().nth(1);
    version.map(str::to_owned).with_context(|| format!("rustc --version said {said:?}"))
}

fn output(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let done = command.output().with_context(|| format!("failed to run {command:?}"))?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{command:?} failed ({}): {said}", done.status);
    Ok(done.stdout)
}

fn save(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let saved = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    let saved = saved.and_then(|()| std::fs::write(path, bytes));
    saved.with_context(|| format!("failed to write {}", path.display()))
}

fn megabytes(bytes: usize) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}
