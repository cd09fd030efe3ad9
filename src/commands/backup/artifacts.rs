//! What is stored of a Backup: `berth backup download`, `contents` and `diff`.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal as _, Read as _, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail, ensure};
use berth_api::velero::{Backup, BackupPhase};
use berth_core::bytes::size;
use kube::ResourceExt;
use serde_json::Value;
use tokio::time::Instant;

use super::super::person::{Person, faults};
use crate::args::Output;
use crate::args::backup::{ContentsArgs, DiffArgs, DownloadArgs, TextOutput, TlsArgs};
use crate::backup::index::{ArchiveIndex, ByteRange, are_few};
use crate::cli::archive::{ArchiveControl, object, visit, visit_piece};
use crate::cli::compare::{Digests, ObjectDifference};
use crate::cli::download::{DownloadArtifact, Downloads, Fetcher, Pieces, Unpacked};
use crate::cli::print::{self, say};
use crate::text::printable;

/// An artifact of one Backup that is about to be fetched.
pub(super) struct ArtifactSource {
    pub(super) url: String,
    pub(super) fetcher: Fetcher,
    name: String,
    artifact: DownloadArtifact,
    deadline: Instant,
    /// The backup waits for its operations.
    waits: bool,
}

impl ArtifactSource {
    pub(super) async fn of(
        person: &Person,
        backup: &Backup,
        artifact: DownloadArtifact,
        tls: &TlsArgs,
        deadline: Instant,
    ) -> anyhow::Result<Self> {
        let client = person.client().await?;
        let downloads = Downloads { client: &client, namespace: person.namespace(), tls };
        let fetcher = downloads.fetcher(backup).await?;
        let name = backup.name_any();
        let url = downloads.url(&name, artifact, deadline).await?;
        Ok(Self { url, fetcher, name, artifact, deadline, waits: waits_for_operations(backup.phase()) })
    }

    pub(super) fn there<T>(&self, unpacked: Unpacked<T>) -> anyhow::Result<T> {
        match unpacked {
            Unpacked::Read(read) => Ok(read),
            Unpacked::Missing if self.waits => bail!(
                "the store has not {} of Backup {name} yet, because the backup waits for operations: berth stores it when these have ended, and `berth backup describe {name}` shows how far they are",
                self.artifact.name(),
                name = self.name
            ),
            Unpacked::Missing => bail!("the store has not {} of Backup {}", self.artifact.name(), self.name),
        }
    }

    /// Writes the artifact, as it is stored, to `out`.
    async fn copy_to(&self, mut out: impl Write) -> anyhow::Result<()> {
        let written = self.fetcher.raw(&self.url, self.deadline, |piece| out.write_all(piece)).await?;
        self.there(written)?;
        // Standard output keeps what is behind the last line feed until the process ends, and then
        // nobody would learn that it cannot be written.
        Ok(out.flush()?)
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(Pieces) -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        self.there(self.fetcher.stream(&self.url, self.deadline, read).await?)
    }
}

/// A Velero has stored the archive and the log by then, and berth's engine stores them afterwards.
pub(super) fn waits_for_operations(phase: BackupPhase) -> bool {
    matches!(
        phase,
        BackupPhase::WaitingForPluginOperations | BackupPhase::WaitingForPluginOperationsPartiallyFailed
    )
}

/// Only of these the store has an archive.
fn is_stored(backup: &Backup) -> anyhow::Result<()> {
    let name = backup.name_any();
    match backup.phase() {
        BackupPhase::Completed
        | BackupPhase::PartiallyFailed
        | BackupPhase::Finalizing
        | BackupPhase::FinalizingPartiallyFailed
        | BackupPhase::WaitingForPluginOperations
        | BackupPhase::WaitingForPluginOperationsPartiallyFailed
        | BackupPhase::Deleting => Ok(()),
        BackupPhase::Failed | BackupPhase::FailedValidation => {
            bail!("Backup {name} is {}: the store has no archive of it", backup.phase().as_str())
        }
        phase => bail!(
            "Backup {name} is {} and not stored yet: `berth backup describe {name}` shows what it waits for",
            phase.as_str()
        ),
    }
}

pub async fn download(person: &Person, args: &DownloadArgs) -> anyhow::Result<()> {
    let deadline = Instant::now() + args.fetch.timeout.0;
    let backup = person.get::<Backup>(&args.name).await?;
    is_stored(&backup)?;
    if args.output.as_deref() == Some(Path::new("-")) {
        takes_archives(std::io::stdout().is_terminal())?;
        let source =
            ArtifactSource::of(person, &backup, DownloadArtifact::Contents, &args.fetch.tls, deadline)
                .await?;
        return source.copy_to(print::stdout()).await;
    }
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("{}-data.tar.gz", args.name)));
    let mut target = OutputFile::open(&path, args.force)?;
    let source =
        ArtifactSource::of(person, &backup, DownloadArtifact::Contents, &args.fetch.tls, deadline).await?;
    let write = source.fetcher.raw(&source.url, deadline, |piece| target.file.write_all(piece));
    // What is not whole is removed when this ends, whichever way.
    let written = tokio::select! {
        written = write => source.there(written?)?,
        _ = tokio::signal::ctrl_c() => bail!("the download was interrupted"),
    };
    target.keep()?;
    let (path, written) = (path.display(), size(written));
    say!("Backup {} has been successfully downloaded to {path} ({written})", args.name);
    Ok(())
}

/// An archive is no text, and whoever wrote it could control a terminal by it.
fn takes_archives(is_terminal: bool) -> anyhow::Result<()> {
    let fault = "--output -: standard output is a terminal, and an archive is no text: name a file, or let a program read it";
    faults(is_terminal.then(|| fault.to_owned()).into_iter().collect())
}

/// A file that is being written. It is removed unless it is kept.
struct OutputFile {
    file: File,
    /// Where it is written.
    at: PathBuf,
    /// Where it goes, if that is elsewhere.
    to: Option<PathBuf>,
    is_kept: bool,
}

impl OutputFile {
    fn open(path: &Path, force: bool) -> anyhow::Result<Self> {
        let new = |at: &Path| OpenOptions::new().write(true).create_new(true).mode(0o600).open(at);
        match new(path) {
            Ok(file) => return Ok(Self { file, at: path.to_owned(), to: None, is_kept: false }),
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("--output {} cannot be written", path.display()));
            }
            Err(_) if !force => {
                bail!(
                    "{} is there already: name another file by --output, or give --force to replace it",
                    path.display()
                )
            }
            Err(_) => {}
        }
        // The file that is there stays until the new one is whole.
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let at = path.with_file_name(name);
        let file = new(&at).with_context(|| format!("{} cannot be written", at.display()))?;
        Ok(Self { file, at, to: Some(path.to_owned()), is_kept: false })
    }

    fn keep(&mut self) -> anyhow::Result<()> {
        self.file.sync_all().with_context(|| format!("{} cannot be written", self.at.display()))?;
        if let Some(to) = &self.to {
            std::fs::rename(&self.at, to).with_context(|| format!("{} cannot be replaced", to.display()))?;
        }
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // It may be gone already.
            let _ = std::fs::remove_file(&self.at);
        }
    }
}

/// What the index of an archive makes of an object.
#[derive(Debug, PartialEq)]
enum LookedUp {
    Found(Value),
    /// The archive has no such object.
    Nowhere,
    /// There is no index, or it cannot be used.
    Unknown,
}

/// Looks an object up by the index of the archive. Whatever fails, the archive itself tells.
///
/// That the archive has no such object is believed if the store has an archive of the size that the
/// index names, and pieces in which the object would be are pieces of it. Otherwise each name that
/// is typed wrongly would cost the whole archive, which may have many GiB. An index that is older
/// than its archive, or was copied, is of another size; and whoever may write an index that lies
/// could as well take the object out of the archive. The message says who denies the object, and
/// what reads the archive.
async fn looked_up(
    index: anyhow::Result<ArtifactSource>,
    archive: &ArtifactSource,
    wanted: &str,
) -> LookedUp {
    let Ok(index) = index else { return LookedUp::Unknown };
    let Some((resource, key)) = wanted.split_once('/') else {
        return LookedUp::Unknown;
    };
    let Ok((index, bytes)) = index.read(|pieces| ArchiveIndex::read(pieces.unpacked()?)).await else {
        return LookedUp::Unknown;
    };
    let pieces = index.find(resource, key);
    if !are_few(&pieces) {
        return LookedUp::Unknown;
    }
    if pieces.is_empty() {
        // Any piece tells the size of the archive.
        let first = (ByteRange { from: 0, to: 1 }, bytes);
        let read = |mut pieces: Pieces| Ok(pieces.read_exact(&mut [0; 1])?);
        return match archive.fetcher.piece(&archive.url, first, archive.deadline, read).await {
            Ok(Some(())) => LookedUp::Nowhere,
            Ok(None) | Err(_) => LookedUp::Unknown,
        };
    }
    for piece in pieces {
        let (wanted, resource) = (wanted.to_owned(), resource.to_owned());
        let search = move |pieces: Pieces| {
            let (mut found, mut has_type) = (None, false);
            visit_piece(pieces.unpacked()?, |stored, size, body| {
                has_type |= stored.resource == resource;
                if stored.to_string() != wanted {
                    return Ok(ArchiveControl::Go);
                }
                found = Some(object(&stored, size, body)?);
                Ok(ArchiveControl::Stop)
            })?;
            ensure!(has_type, "the piece has no object of the type for which the index names it");
            Ok(found)
        };
        match archive.fetcher.piece(&archive.url, (piece, bytes), archive.deadline, search).await {
            Ok(Some(Some(found))) => return LookedUp::Found(found),
            Ok(Some(None)) => {}
            Ok(None) | Err(_) => return LookedUp::Unknown,
        }
    }
    LookedUp::Nowhere
}

pub async fn contents(person: &Person, args: &ContentsArgs) -> anyhow::Result<()> {
    let deadline = Instant::now() + args.timeout.0;
    let backup = person.get::<Backup>(&args.name).await?;
    is_stored(&backup)?;
    let source = async |artifact| ArtifactSource::of(person, &backup, artifact, &args.tls, deadline).await;
    let missing = |wanted: &str, says: &str| {
        anyhow!(
            "Backup {} has no object {wanted}{says}: `berth backup contents {} --grep TEXT` lists what it has",
            args.name,
            args.name
        )
    };
    let shape = if args.output == TextOutput::Json { Output::Json } else { Output::Yaml };
    let source = if let Some(wanted) = &args.object {
        let (index, archive) =
            tokio::join!(source(DownloadArtifact::Index), source(DownloadArtifact::Contents));
        let archive = archive?;
        match looked_up(index, &archive, wanted).await {
            LookedUp::Found(found) => {
                return print::value(&mut print::stdout(), &found, shape);
            }
            LookedUp::Nowhere => {
                return Err(missing(wanted, ", as the index of its archive says"));
            }
            LookedUp::Unknown => archive,
        }
    } else {
        source(DownloadArtifact::Contents).await?
    };
    let (wanted, grep) = (args.object.clone(), args.grep.clone());
    let is_found = source
        .read(move |pieces| {
            let mut out = std::io::BufWriter::new(print::stdout());
            let mut is_found = false;
            visit(pieces.unpacked()?, |stored, size, body| {
                let line = stored.to_string();
                match &wanted {
                    Some(wanted) if *wanted == line => {
                        print::value(&mut out, &object(&stored, size, body)?, shape)?;
                        is_found = true;
                        return Ok(ArchiveControl::Stop);
                    }
                    Some(_) => {}
                    None if grep.as_ref().is_none_or(|part| line.contains(part.as_str())) => {
                        writeln!(out, "{}", printable(&line))?
                    }
                    None => {}
                }
                Ok(ArchiveControl::Go)
            })?;
            out.flush()?;
            Ok(is_found)
        })
        .await?;
    match args.object.as_ref().filter(|_| !is_found) {
        Some(wanted) => Err(missing(wanted, "")),
        None => Ok(()),
    }
}

pub async fn diff(person: &Person, args: &DiffArgs) -> anyhow::Result<()> {
    let deadline = Instant::now() + args.timeout.0;
    let (old, new) = (person.get::<Backup>(&args.old).await?, person.get::<Backup>(&args.new).await?);
    is_stored(&old)?;
    is_stored(&new)?;
    let source = async |backup: &Backup| {
        ArtifactSource::of(person, backup, DownloadArtifact::Contents, &args.tls, deadline).await
    };
    let mut digests = source(&old).await?.read(|pieces| Digests::read(pieces.unpacked()?)).await?;
    let tell = |change: ObjectDifference, stored: &crate::cli::archive::StoredObject| {
        let name = stored.to_string();
        writeln!(print::stdout(), "{} {}", change.sign(), printable(&name))?;
        Ok(())
    };
    let digests = source(&new)
        .await?
        .read(move |pieces| {
            digests.compare(pieces.unpacked()?, tell)?;
            Ok(digests)
        })
        .await?;
    // Names are not held in memory, so what is missing is read again.
    if digests.removed() > 0 {
        source(&old).await?.read(move |pieces| digests.name_removed(pieces.unpacked()?, tell)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
