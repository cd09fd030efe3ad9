use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;

use super::*;
use crate::backup::index::ByteRange;
use crate::backup::ledger::PageId;

fn contents(name: &str) -> Vec<Contents> {
    let names = vec![name.to_owned()];
    vec![Contents { page: PageId::default(), resource: "pods".into(), names, at: None }]
}

#[test]
fn parts_are_of_one_size_whatever_arrives_and_know_what_they_hold() {
    let mut waiting = PendingBytes::default();
    let (mut parts, mut sent, mut next) = (Vec::new(), Vec::new(), 0_u8);
    for length in [3, 10, 0, 1, 29, 7, 4] {
        let bytes: Vec<u8> = (0..length)
            .map(|_| {
                next += 1;
                next
            })
            .collect();
        sent.extend_from_slice(&bytes);
        waiting.push(bytes.into(), contents(&length.to_string()));
        while let Some(full) = waiting.take(8) {
            sent.drain(..8).zip(full.bytes.iter().flatten()).for_each(|(a, b)| assert_eq!(a, *b));
            let of = |contents: Contents| {
                let at = contents.at.unwrap();
                format!("{}:{}-{}", contents.names.join(" "), at.from, at.to)
            };
            let names = full.contents.into_iter().map(of).collect::<Vec<_>>();
            parts.push((full.bytes.content_length(), names.join(" "), full.tail.len()));
        }
    }
    // The member of 29 bytes begins behind 14 others, in the second part.
    let expected = [
        (8, "3:0-3 10:3-13", 5),
        (8, "1:13-14 29:14-43", 27),
        (8, "", 19),
        (8, "", 11),
        (8, "", 3),
        (8, "7:43-50", 2),
    ];
    assert_eq!(parts, expected.map(|(size, names, tail)| (size, names.to_owned(), tail)));
    assert_eq!(waiting.size, 6);
    let rest = waiting.take_rest();
    assert!(rest.bytes.iter().flatten().eq(sent.iter()));
    let at = Some(ByteRange { from: 50, to: 54 });
    assert!(
        matches!(&rest.contents[..], [held] if held.names == ["4"] && held.at == at),
        "{:?}",
        rest.contents
    );
}

/// Stores that another process can go on with: a bucket and a folder.
fn stores() -> (tempfile::TempDir, [(Arc<DynObjectStore>, MultipartTarget); 2]) {
    let folder = tempfile::tempdir().unwrap();
    let memory = Arc::new(InMemory::new());
    let local = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    let bucket: (Arc<DynObjectStore>, MultipartTarget) = (memory.clone(), MultipartTarget::Bucket(memory));
    (folder, [bucket, (local.clone(), MultipartTarget::Folder(local))])
}

fn member(i: usize) -> Bytes {
    vec![u8::try_from(i).unwrap(); 3 + 5 * i].into()
}

/// Whatever was stored when it was cut off: with what was told of that, another one makes the whole
/// of it, and nothing is in there twice.
#[tokio::test]
async fn an_upload_that_was_cut_off_anywhere_is_gone_on_with_by_another() {
    let whole: Vec<u8> = (0..9).flat_map(member).chain(*b"the end").collect();
    for cut in 1..9 {
        let (_folder, stores) = stores();
        for (store, parts) in stores {
            let path = Path::from("b.tar.gz");
            let staged = Arc::new(OnceLock::new());
            let upload = |begun, progress| ArchiveUpload {
                store: Arc::clone(&store),
                parts: parts.clone(),
                path: path.clone(),
                part_size: 16,
                begun,
                progress: Some(progress),
                staged: Arc::clone(&staged),
                claimed: None,
            };
            let (progress, mut told) = mpsc::channel(64);
            let (members, received) = mpsc::channel(64);
            for i in 0..cut {
                members.send(ArchivePart::Member(member(i), contents(&i.to_string()))).await.unwrap();
            }
            drop(members);
            let error = upload(None, progress).run(received).await.unwrap_err();
            assert!(matches!(error, UploadError::GivenUp), "{error}");
            let (mut stored, mut tail, mut names) = (Uploaded::default(), Bytes::new(), Vec::new());
            while let Some(UploadProgress::Part { upload, receipt, contents, tail: behind }) =
                told.recv().await
            {
                stored.upload = upload;
                stored.parts.push(receipt);
                names.extend(contents.into_iter().flat_map(|contents| contents.names));
                tail = behind;
            }
            assert_eq!(staged.get().is_some(), !stored.parts.is_empty());
            let begun = match staged.get() {
                Some(begun) => {
                    let known = parts.known(&path, begun.id()).unwrap();
                    Some((known.for_another(stored.size()).await.unwrap(), stored, tail))
                }
                None => None,
            };
            let (progress, mut told) = mpsc::channel(64);
            let (members, received) = mpsc::channel(64);
            for i in (0..9).filter(|i| !names.contains(&i.to_string())) {
                members.send(ArchivePart::Member(member(i), contents(&i.to_string()))).await.unwrap();
            }
            members.send(ArchivePart::End(Bytes::from_static(b"the end"))).await.unwrap();
            let mut is_told = false;
            let listen = async {
                while let Some(progress) = told.recv().await {
                    // It waits until that is kept.
                    is_told |= matches!(progress, UploadProgress::Whole { .. });
                    let (UploadProgress::Part { contents, .. }
                    | UploadProgress::Whole { contents, .. }
                    | UploadProgress::Resting { contents, .. }) = progress;
                    names.extend(contents.into_iter().flat_map(|contents| contents.names));
                }
            };
            let (size, ()) = tokio::join!(upload(begun, progress).run(received), listen);
            assert_eq!(size.unwrap(), whole.len() as u64);
            let found = store.get(&path).await.unwrap().bytes().await.unwrap();
            assert!(found == whole, "cut off after {cut}: {found:?}");
            assert_eq!((names.len(), is_told), (9, true), "each is told once: {names:?}");
        }
    }
}

#[tokio::test]
async fn a_small_archive_is_stored_with_one_request() {
    let (_folder, stores) = stores();
    for (store, parts) in stores {
        let path = Path::from("b.tar.gz");
        let (members, received) = mpsc::channel(4);
        members.send(ArchivePart::Member(member(1), contents("1"))).await.unwrap();
        members.send(ArchivePart::End(Bytes::from_static(b"the end"))).await.unwrap();
        let (store, progress) = (Arc::clone(&store), None);
        let (staged, claimed) = (Arc::default(), None);
        let upload =
            ArchiveUpload { store, parts, path, part_size: PART, begun: None, progress, staged, claimed };
        assert!(matches!(upload.run(received).await, Ok(15)));
    }
}

/// Its process was paused for long, and another run has the folder now.
#[tokio::test]
async fn a_run_that_has_lost_its_claim_puts_nothing_in_place_of_what_stands_there() {
    for part_size in [PART, 4] {
        let (_folder, stores) = stores();
        for (store, parts) in stores {
            let layout = BackupLayout::new(Arc::clone(&store), None, "b");
            let claim = |run: &str| FolderClaim { run: run.to_owned(), ..FolderClaim::default() };
            layout.claim(&claim("next"), None).await.unwrap();
            let path = layout.archive();
            store.put(&path, "of the next".into()).await.unwrap();
            let (members, received) = mpsc::channel(4);
            members.send(ArchivePart::Member(member(1), contents("1"))).await.unwrap();
            members.send(ArchivePart::End(Bytes::from_static(b"the end"))).await.unwrap();
            let upload = ArchiveUpload {
                store: Arc::clone(&store),
                parts,
                path: path.clone(),
                part_size,
                begun: None,
                progress: None,
                staged: Arc::default(),
                claimed: Some((layout, claim("old"))),
            };
            let error = upload.run(received).await.unwrap_err();
            assert!(matches!(error, UploadError::Claim(ClaimError::Taken { .. })), "{error}");
            assert_eq!(&store.get(&path).await.unwrap().bytes().await.unwrap()[..], b"of the next");
        }
    }
}

/// As where the answer to the first attempt was lost.
#[tokio::test]
async fn what_is_put_together_already_is_not_refused() {
    let (_folder, stores) = stores();
    for (store, parts) in stores {
        let path = Path::from("b.tar.gz");
        let staged = parts.begin(&path).await.unwrap();
        let receipts = [staged.put(0, 0, "whole".into()).await.unwrap()];
        for _ in 0..2 {
            put_together(&*store, &path, &staged, &receipts, 5).await.unwrap();
        }
        assert!(put_together(&*store, &path, &staged, &receipts, 6).await.is_err());
    }
}
