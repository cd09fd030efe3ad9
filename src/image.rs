//! Names of images, as a kubelet reads them: `[HOST[:PORT]/]NAME[:TAG][@DIGEST]`.

/// Most characters that registries allow before the tag, and in the tag.
const LONGEST_NAME: usize = 255;
const LONGEST_TAG: usize = 128;

/// Checks the value of `--image`, because with an invalid name pods would never start.
///
/// # Errors
/// How an image must be written.
pub fn checked(text: &str) -> Result<String, String> {
    let (name, digest) = text.split_once('@').map_or((text, None), |(name, digest)| (name, Some(digest)));
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return Err(
            "the digest must be sha256: and 64 hexadecimal digits in small letters, as `make image` and `crane digest` print it"
                .to_owned(),
        );
    }
    let (repository, tag) = split(name);
    if is_repository(repository) && tag.is_none_or(is_tag) {
        return Ok(text.to_owned());
    }
    Err("must be [HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST], the name in small letters".to_owned())
}

/// The image of a version from the same repository. An image with that tag is kept with its digest.
pub fn image_of(version: &str, image: &str) -> String {
    let (repository, tag) = split(image.split('@').next().unwrap_or_default());
    if tag == Some(version) { image.to_owned() } else { format!("{repository}:{version}") }
}

/// Splits a name without digest into repository and tag. A colon before the last slash belongs to a
/// port.
fn split(name: &str) -> (&str, Option<&str>) {
    let parts = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'));
    parts.map_or((name, None), |(repository, tag)| (repository, Some(tag)))
}

fn is_digest(text: &str) -> bool {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.strip_prefix("sha256:").is_some_and(|digits| digits.len() == 64 && digits.bytes().all(is_hex))
}

fn is_tag(text: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(is_word)
        && text.len() <= LONGEST_TAG
        && text.chars().all(|c| is_word(c) || matches!(c, '.' | '-'))
}

fn is_repository(text: &str) -> bool {
    let is_host = |host: &str| host == "localhost" || host.contains(['.', ':']);
    let (host, path) = match text.split_once('/') {
        Some((host, path)) if is_host(host) => (host, path),
        _ => ("", text),
    };
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
    let is_edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_part = |part: &str| {
        part.starts_with(is_edge)
            && part.ends_with(is_edge)
            && part.chars().all(|c| is_edge(c) || matches!(c, '.' | '_' | '-'))
    };
    text.len() <= LONGEST_NAME && host.chars().all(is_fine) && path.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::Args;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn a_name_is_kept_as_it_is_said() {
        for name in [
            "berth",
            "berth:0.1.0",
            "team/berth:next",
            "localhost/berth:1",
            "registry.example/team-a/be.rth_1:V1.0_x-y",
            "Registry.Example:5000/berth",
            "[fd00::1]:5000/berth:1",
        ] {
            assert_eq!(checked(name).as_deref(), Ok(name));
            let pinned = format!("{name}@{DIGEST}");
            assert_eq!(checked(&pinned), Ok(pinned));
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let longest = "a".repeat(LONGEST_NAME);
        assert!(checked(&longest).is_ok() && checked(&format!("{longest}a")).is_err());
        let tag = "a".repeat(LONGEST_TAG);
        assert!(checked(&format!("berth:{tag}")).is_ok() && checked(&format!("berth:{tag}a")).is_err());
        for wrong in [
            "",
            " ",
            "berth ",
            "berth:",
            "berth:-1",
            ":1",
            "/berth",
            "berth/",
            "team//berth",
            "Berth",
            "team/Berth:1",
            "https://registry.example/berth",
            "registry.example/-berth",
            "berth:1:2",
            "berth:ä",
        ] {
            let said = checked(wrong).unwrap_err();
            assert!(said.contains("[HOST[:PORT]/]NAME"), "{wrong}: {said}");
            assert!(checked(&format!("{wrong}@{DIGEST}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_digest_that_is_none_is_refused_by_the_flag_with_a_word_on_what_is_wanted() {
        let (_, digits) = DIGEST.split_once(':').unwrap();
        for wrong in [
            "berth@".to_owned(),
            "berth@sha256:".to_owned(),
            "berth:0.1.0@sha256:0".to_owned(),
            format!("berth@{digits}"),
            format!("berth@{DIGEST}0"),
            format!("berth@sha256:{}", digits.to_uppercase()),
            format!("berth@sha512:{digits}"),
            format!("berth@{DIGEST}@{DIGEST}"),
            format!("berth@{DIGEST}:0.1.0"),
        ] {
            let flag = format!("--image={wrong}");
            let said = Args::try_parse_from(["berth", "install", flag.as_str()]).err().unwrap().to_string();
            assert!(said.contains("--image") && said.contains("64 hexadecimal digits"), "{wrong}: {said}");
        }
        let flag = format!("--image=registry.example/berth:0.1.0@{DIGEST}");
        assert!(Args::try_parse_from(["berth", "install", flag.as_str()]).is_ok());
    }

    #[test]
    fn a_digest_is_kept_as_long_as_the_version_stays() {
        for (image, expected) in [
            ("berth:0.1.0", "berth:0.2.0"),
            ("berth:0.2.0", "berth:0.2.0"),
            ("host:5000/berth", "host:5000/berth:0.2.0"),
            ("host:5000/berth:0.2.0@sha256:ab", "host:5000/berth:0.2.0@sha256:ab"),
            ("host:5000/berth:0.1.0@sha256:ab", "host:5000/berth:0.2.0"),
            // Of which version it is nobody says.
            ("host:5000/berth@sha256:ab", "host:5000/berth:0.2.0"),
        ] {
            assert_eq!(image_of("0.2.0", image), expected, "{image}");
        }
    }
}
