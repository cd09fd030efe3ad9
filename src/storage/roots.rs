//! The folders that may hold stores. The author of a storage location chooses its folder, so
//! `--filesystem-root` limits that choice.

use std::io::{Error, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The folders of `--filesystem-root`. By default there are none, and no folder can be a store.
#[derive(Clone, Debug, Default)]
pub struct Roots(Arc<[PathBuf]>);

impl From<Vec<PathBuf>> for Roots {
    fn from(roots: Vec<PathBuf>) -> Self {
        Self(roots.into())
    }
}

impl Roots {
    /// Checks that a folder is one of these, or below one, and returns its path without symbolic
    /// links.
    ///
    /// # Errors
    /// Why the folder is refused, and the way out: the text that follows the name of the field.
    pub fn admit(&self, folder: &Path) -> Result<PathBuf, String> {
        let shown = folder.display();
        if folder.components().any(|part| part == Component::ParentDir) {
            return Err(format!("{shown} has `..` in it: name the folder itself"));
        }
        let found = resolved(folder).map_err(|error| format!("{shown} cannot be read: {error}"))?;
        if self.0.iter().any(|root| resolved(root).is_ok_and(|root| found.starts_with(root))) {
            return Ok(found);
        }
        let leads =
            if found == folder { String::new() } else { format!(" leads to {}, which", found.display()) };
        let roots: Vec<String> = self.0.iter().map(|root| root.display().to_string()).collect();
        let roots = if roots.is_empty() { "none".to_owned() } else { roots.join(", ") };
        Err(format!(
            "{shown}{leads} is below no folder that berth may use ({roots}): start it with --filesystem-root and one above it"
        ))
    }
}

/// The path without symbolic links. Its last parts may be missing.
fn resolved(path: &Path) -> Result<PathBuf, Error> {
    let mut last = Error::from(ErrorKind::NotFound);
    for there in path.ancestors() {
        match there.canonicalize() {
            Ok(real) => {
                let rest = path.strip_prefix(there).unwrap_or(Path::new(""));
                return Ok(real.components().chain(rest.components()).collect());
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                last = error
            }
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::fs::create_dir;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_what_lies_below_a_root_is_admitted_whatever_leads_there() {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().canonicalize().unwrap().join(path);
        let roots = Roots::from(vec![at("stores"), at("later")]);
        for path in ["stores", "stores/inside", "outside"] {
            create_dir(at(path)).unwrap();
        }
        symlink(at("outside"), at("stores/out")).unwrap();
        symlink(at("stores/inside"), at("in")).unwrap();
        for (path, opened) in [
            ("stores", "stores"),
            ("stores/new/bucket", "stores/new/bucket"),
            ("later/bucket", "later/bucket"),
            ("in/bucket", "stores/inside/bucket"),
        ] {
            assert_eq!(roots.admit(&at(path)), Ok(at(opened)), "{path}");
        }
        for path in [
            "outside",
            "stores-too",
            "stores/out",
            "stores/out/bucket",
            "stores/../outside",
            "stores/none/../../outside",
        ] {
            assert!(roots.admit(&at(path)).is_err(), "{path}");
        }
        let said = roots.admit(&at("stores/out/bucket")).unwrap_err();
        assert!(
            said.contains("--filesystem-root") && said.contains(&at("outside").display().to_string()),
            "{said}"
        );
        assert!(Roots::default().admit(&at("stores")).unwrap_err().contains("(none)"));
    }

    /// A link whose target cannot be created.
    #[test]
    fn a_link_to_nowhere_makes_no_folder_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let (root, link) = (folder.path().join("stores"), folder.path().join("stores/link"));
        create_dir(&root).unwrap();
        symlink(folder.path().join("made"), &link).unwrap();
        if let Ok(admitted) = Roots::from(vec![root]).admit(&link.join("bucket")) {
            assert!(std::fs::create_dir_all(admitted).is_err());
        }
        assert!(!folder.path().join("made").exists());
    }
}
