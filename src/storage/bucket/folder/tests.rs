use super::*;

fn store() -> (tempfile::TempDir, FolderBucket) {
    let root = tempfile::tempdir().unwrap();
    let config = StoreConfig { path: Some(root.path().display().to_string()), ..StoreConfig::default() };
    let roots = Roots::from(vec![root.path().to_owned()]);
    let folder = FolderBucket::open("bucket", &config, &roots).unwrap();
    (root, folder)
}

fn put(root: &tempfile::TempDir, keys: &[&str]) {
    for key in keys {
        let path = root.path().join("bucket").join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, key).unwrap();
    }
}

async fn pages(folder: &FolderBucket, prefix: &str, most: usize) -> Vec<Vec<String>> {
    let (mut after, mut all) = (None, Vec::new());
    loop {
        let page = folder.page(prefix, after.as_ref(), most).await.unwrap();
        all.push(page.versions.into_iter().map(|version| version.key).collect());
        after = page.next;
        if after.is_none() {
            return all;
        }
    }
}

#[tokio::test]
async fn a_folder_is_made_once_and_removed_when_empty() {
    let (root, folder) = store();
    assert_eq!(folder.page("", None, 1).await.unwrap_err().fault, StoreFault::NoSuchBucket);
    assert_eq!(folder.create().await, Ok(Created::New));
    assert_eq!(folder.create().await, Ok(Created::Already));
    put(&root, &["a/b"]);
    assert_eq!(folder.delete().await.unwrap_err().fault, StoreFault::NotEmpty);
    fs::remove_dir_all(root.path().join("bucket/a")).unwrap();
    assert_eq!(folder.delete().await, Ok(()));
    assert_eq!(folder.delete().await.unwrap_err().fault, StoreFault::NoSuchBucket);
}

#[tokio::test]
async fn pages_follow_one_another_whatever_was_removed_meanwhile() {
    let (root, folder) = store();
    put(&root, &["e/a", "e/b/1", "e/b/2", "e/b-c", "e/d/x/y", "e12/z", "f"]);
    assert_eq!(
        pages(&folder, "e/", 2).await,
        [vec!["e/a", "e/b/1"], vec!["e/b/2", "e/b-c"], vec!["e/d/x/y"]]
    );
    assert_eq!(pages(&folder, "", 100).await.concat().len(), 7);
    assert_eq!(pages(&folder, "none/", 2).await, [Vec::<String>::new()]);
    let first = folder.page("e/", None, 2).await.unwrap();
    let after = first.next.clone();
    assert_eq!(folder.remove(first.versions).await.unwrap().removed.len(), 2);
    assert_eq!(folder.page("e/", after.as_ref(), 1).await.unwrap().versions[0].key, "e/b/2");
}

#[tokio::test]
async fn links_are_removed_and_not_followed() {
    let (root, folder) = store();
    put(&root, &["e/a"]);
    let outside = root.path().join("outside");
    let entry = root.path().join("bucket/linked");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "x").unwrap();
    std::os::unix::fs::symlink(&outside, root.path().join("bucket/e/link")).unwrap();
    std::os::unix::fs::symlink(&outside, &entry).unwrap();
    assert_eq!(folder.page("linked/", None, 10).await, Ok(VersionPage::default()));
    folder.remove_empty("linked/").await.unwrap();
    fs::remove_file(&entry).unwrap();
    let page = folder.page("e/", None, 10).await.unwrap();
    assert_eq!(page.versions.iter().map(|v| v.key.as_str()).collect::<Vec<_>>(), ["e/a", "e/link"]);
    folder.remove(page.versions).await.unwrap();
    folder.remove_empty("e/").await.unwrap();
    assert!(outside.join("precious").exists() && !root.path().join("bucket/e").exists());
    assert!(root.path().join("bucket").exists());
}

#[tokio::test]
async fn an_object_is_created_once_and_never_through_a_link() {
    let (root, folder) = store();
    let missing = folder.create_object("n/a", &Value::from(1)).await.unwrap_err();
    assert_eq!(missing.fault, StoreFault::NoSuchBucket);
    folder.create().await.unwrap();
    assert_eq!(folder.read_object("n/a").await, Ok(None));
    folder.create_object("n/a", &Value::from(1)).await.unwrap();
    assert!(folder.create_object("n/a", &Value::from(2)).await.is_err());
    assert_eq!(folder.read_object("n/a").await, Ok(Some(Bytes::from("1"))));
    assert_eq!(pages(&folder, "", 10).await, [["n/a"]], "no draft is left");
    // Where a file system has no hard links.
    let (draft, name) = (root.path().join("draft"), root.path().join("named"));
    fs::write(&draft, "1").unwrap();
    rename(&draft, &name).unwrap();
    fs::write(&draft, "2").unwrap();
    assert_eq!(rename(&draft, &name).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read_to_string(&name).unwrap(), "1");
    let outside = root.path().join("outside");
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, root.path().join("bucket/linked")).unwrap();
    assert!(folder.create_object("linked/a", &Value::from(1)).await.is_err());
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn settings_that_make_no_folder_are_refused() {
    let config = |path: Option<&str>| StoreConfig { path: path.map(str::to_owned), ..StoreConfig::default() };
    let roots = Roots::from(vec!["/x".into()]);
    for (name, path) in [
        ("b", None),
        ("b", Some("relative")),
        ("", Some("/x")),
        ("..", Some("/x")),
        ("a/b", Some("/x")),
        ("b", Some("/y")),
        ("b", Some("/x/../y")),
    ] {
        let opened = FolderBucket::open(name, &config(path), &roots);
        assert!(opened.is_err_and(|e| e.fault == StoreFault::Configuration), "{name} {path:?}");
    }
}
