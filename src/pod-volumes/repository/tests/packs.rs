//! What lies in a repository: how large its packs are, what becomes of one that is broken, and of
//! what two have stored at the same time.

use super::*;

/// Bytes that do not compress, and are others for each seed.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.to_le_bytes());
    }
    noise
}

/// Several packs are in memory at one time.
#[tokio::test(flavor = "multi_thread")]
async fn packs_are_no_larger_than_those_of_restic() {
    let (root, store) = (volume(), store());
    std::fs::write(root.path().join("volume/large"), noise(36 << 20, 7)).unwrap();
    let repository = Repository::make(&store, "secret").await.unwrap();
    repository.backup(source(root.path()), &Watched::default()).await.unwrap();
    let packs = store.list("data").await.unwrap();
    // A pack ends with the piece that makes it 16 MiB, and a piece has 8 MiB at most.
    assert!(packs.iter().all(|(_, bytes)| *bytes < 25 << 20), "{packs:?}");
    assert!(packs.iter().any(|(_, bytes)| *bytes >= 16 << 20), "{packs:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_piece_costs_its_file_which_is_named_and_no_other() {
    let (root, store) = (volume(), store());
    std::fs::write(root.path().join("volume/large"), noise(100_000, 7)).unwrap();
    let repository = Repository::make(&store, "secret").await.unwrap();
    let saved = repository.backup(source(root.path()), &Watched::default()).await.unwrap();
    let packs = store.list("data").await.unwrap();
    let (name, _) = packs.iter().max_by_key(|(_, bytes)| *bytes).unwrap();
    let path = store.folder("data").join(&name[..2]).join(name.as_str());
    let mut bytes = store.read(&path).await.unwrap().to_vec();
    // Nearly all of that pack is the large file.
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    store.write(&path, bytes).await.unwrap();
    let target = descend(root.path(), FilePath::new("target")).unwrap();
    let fault = repository.restore(&saved.snapshot, target, "n1", &Watched::default()).await.unwrap_err();
    let Fault::Unfinished(unfinished) = fault else { unreachable!("{fault}") };
    assert!(unfinished.count == 1 && unfinished.first[0].contains("large: "), "{unfinished}");
    let text = std::fs::read_to_string(root.path().join("target/folder/file")).unwrap();
    assert_eq!(text, "some text");
    assert!(store.list("locks").await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_store_at_the_same_time_lose_nothing() {
    let (roots, store) = ([volume(), volume()], store());
    let first = Repository::make(&store, "secret").await.unwrap();
    let agents = [first, Repository::open(&store, "secret").await.unwrap()];
    // Half of it both have.
    for (root, seed) in roots.iter().zip([1, 3]) {
        for (name, seed) in [("same", 5), ("other", seed)] {
            std::fs::write(root.path().join("volume").join(name), noise(3 << 20, seed)).unwrap();
        }
    }
    let (one, other) = (Watched::default(), Watched::default());
    let (one, other) = tokio::join!(
        agents[0].backup(Source { same: "same=claim/1".into(), ..source(roots[0].path()) }, &one),
        agents[1].backup(Source { same: "same=claim/2".into(), ..source(roots[1].path()) }, &other),
    );
    // It prunes, and checks that everything is there that snapshots need.
    agents[0].maintain("n1", &Watched::default()).await.unwrap();
    for (root, saved) in roots.iter().zip([one.unwrap(), other.unwrap()]) {
        let target = descend(root.path(), FilePath::new("target")).unwrap();
        agents[1].restore(&saved.snapshot, target, "n1", &Watched::default()).await.unwrap();
        for name in ["same", "other", "folder/file"] {
            let read = |top: &str| std::fs::read(root.path().join(top).join(name)).unwrap();
            assert!(read("volume") == read("target"), "{name}");
        }
    }
    assert!(store.list("locks").await.unwrap().is_empty());
}
