//! The `cloud` file of Velero's credential Secrets: AWS's shared credentials, an INI file; Azure's,
//! a file of variables.

use std::collections::BTreeMap;
use std::fmt;

use super::open_error::OpenError;

/// The keys of one profile.
#[derive(Clone, PartialEq, Eq)]
pub struct AwsProfileKeys {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: Option<String>,
}

impl fmt::Debug for AwsProfileKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(…)")
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    #[error("has no profile [{0}]; it has: {1}")]
    NoProfile(String, String),
    #[error("profile [{0}] lacks {1}")]
    NoKey(String, &'static str),
}

/// The credentials that a location names.
pub(super) struct CloudFile {
    pub name: String,
    pub key: String,
    pub text: String,
}

impl CloudFile {
    pub fn fault(&self, why: String) -> OpenError {
        OpenError::Secret { name: self.name.clone(), key: self.key.clone(), why }
    }
}

/// Reads one profile.
///
/// # Errors
/// When the profile or one of its keys is missing. The error never quotes the file.
pub fn parse(file: &str, profile: &str) -> Result<AwsProfileKeys, CredentialsError> {
    let mut profiles = Vec::new();
    let (mut here, mut seen) = (false, false);
    let (mut id, mut secret, mut token) = (None, None, None);
    for line in file.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            let name = name.trim();
            let name = name.strip_prefix("profile ").unwrap_or(name).trim();
            here = name == profile;
            seen |= here;
            profiles.push(name.to_owned());
        } else if here && let Some((key, value)) = line.split_once('=') {
            let value = Some(value.trim().to_owned()).filter(|v| !v.is_empty());
            match key.trim().to_ascii_lowercase().as_str() {
                "aws_access_key_id" => id = value,
                "aws_secret_access_key" => secret = value,
                "aws_session_token" => token = value,
                _ => {}
            }
        }
    }
    if !seen {
        return Err(CredentialsError::NoProfile(profile.to_owned(), profiles.join(", ")));
    }
    let lacks = |key| CredentialsError::NoKey(profile.to_owned(), key);
    Ok(AwsProfileKeys {
        access_key_id: id.ok_or_else(|| lacks("aws_access_key_id"))?,
        secret_access_key: secret.ok_or_else(|| lacks("aws_secret_access_key"))?,
        session_token: token,
    })
}

/// Reads lines `NAME=value`, with or without quotes and `export`.
pub fn variables(file: &str) -> BTreeMap<String, String> {
    let lines = file.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| line.strip_prefix("export ").unwrap_or(line).split_once('='));
    let unquoted = |value: &str| {
        let of = |quote: char| value.strip_prefix(quote).and_then(|value| value.strip_suffix(quote));
        of('"').or_else(|| of('\'')).unwrap_or(value).to_owned()
    };
    pairs.map(|(name, value)| (name.trim().to_owned(), unquoted(value.trim()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# keys\n[default]\naws_access_key_id=AK\n aws_secret_access_key = S=K/1\n\n[profile other]\naws_access_key_id=O\n";

    #[test]
    fn variables_are_read() {
        let found = variables("# no\nA=1==\n export B = \"two words\" \nC='c'\nD\nE=\n");
        let wanted = [("A", "1=="), ("B", "two words"), ("C", "c"), ("E", "")];
        assert!(found.iter().map(|(key, value)| (key.as_str(), value.as_str())).eq(wanted));
    }

    #[test]
    fn a_profile_is_read() {
        let keys = parse(FILE, "default");
        let expected = AwsProfileKeys {
            access_key_id: "AK".into(),
            secret_access_key: "S=K/1".into(),
            session_token: None,
        };
        assert_eq!(keys, Ok(expected));
    }

    #[test]
    fn what_is_missing_is_named_and_nothing_is_quoted() {
        assert_eq!(
            parse(FILE, "other"),
            Err(CredentialsError::NoKey("other".into(), "aws_secret_access_key"))
        );
        let error = parse(FILE, "none").err().map(|e| e.to_string()).unwrap_or_default();
        assert_eq!(error, "has no profile [none]; it has: default, other");
        assert_eq!(format!("{:?}", parse(FILE, "default")), "Ok(Keys(…))");
    }
}
