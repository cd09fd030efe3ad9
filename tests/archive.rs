//! Reads what a backup left in a folder, as a stranger would.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use serde_json::Value;

/// Every entry of a tarball: path to content. A path that stands there twice fails.
pub fn entries(archive: &Path) -> BTreeMap<String, Vec<u8>> {
    let file = File::open(archive).unwrap_or_else(|e| panic!("{}: {e}", archive.display()));
    let mut tar = tar::Archive::new(MultiGzDecoder::new(file));
    let mut found = BTreeMap::new();
    for entry in tar.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        assert!(found.insert(path.clone(), content).is_none(), "{path} stands there twice");
    }
    found
}

/// Paths of all entries, in their order.
pub fn paths(archive: &Path) -> Vec<String> {
    let file = File::open(archive).unwrap_or_else(|e| panic!("{}: {e}", archive.display()));
    let mut tar = tar::Archive::new(MultiGzDecoder::new(file));
    let path = |entry: std::io::Result<tar::Entry<'_, _>>| {
        String::from_utf8(entry.unwrap().path_bytes().into_owned()).unwrap()
    };
    tar.entries().unwrap().map(path).collect()
}

/// Paths of the items, without the second copy under their version.
pub fn items(archive: &Path) -> Vec<String> {
    let paths = entries(archive)
        .into_keys()
        .filter(|p| p.starts_with("resources/") && !p.contains("-preferredversion/"));
    paths.map(|p| p.trim_start_matches("resources/").trim_end_matches(".json").to_owned()).collect()
}

/// A gzip JSON file beside the archive.
pub fn side(folder: &Path, name: &str) -> Value {
    serde_json::from_str(&side_text(folder, name)).unwrap()
}

pub fn side_text(folder: &Path, name: &str) -> String {
    let mut text = String::new();
    let file = File::open(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    MultiGzDecoder::new(file).read_to_string(&mut text).unwrap();
    text
}
