//! The next step of a set of keys: a function of the present keys and the time.
//!
//! A CA stays trusted until every leaf that it signed has expired, so that a replica with an old
//! leaf is still trusted. A CA whose key may have leaked is revoked: trust in it ends once every
//! replica has had the time to serve a leaf of another CA.

use jiff::{SignedDuration, Timestamp};
use rustls::crypto::CryptoProvider;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::bundle::is_signed_by;
use crate::issue::{LEAF_LIFE, SKEW};
use crate::{Authority, Bundle, IssueError};

/// Prefix of the common names of berth's CAs.
const NAME: &str = "berth webhook CA";
/// Most CAs that are trusted at once, besides the one that signed the served leaf, because the API
/// server reads all of them at every connection.
const MOST: usize = 32;
/// Every replica serves a leaf this long after it was published, because an interrupted watch is
/// back after 15 s at most.
const SERVED: SignedDuration = SignedDuration::from_secs(20);

/// The stored keys, PEM.
#[derive(Clone, Default)]
pub struct KeySet {
    /// The trusted CAs; the first one signs.
    pub authorities: String,
    /// Key of the first CA.
    pub authority_key: String,
    pub leaf: String,
    pub leaf_key: String,
}

/// A rotation that a person asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotate {
    Leaf,
    Authority,
}

/// The next step.
pub enum RotationStep {
    /// Store these keys. The served leaf stays trusted.
    Keep(KeySet),
    /// Write these authorities to every caBundle first, and only then store the keys.
    TrustFirst(KeySet),
    /// Store these keys, and end trust in older authorities.
    Revoke(KeySet),
}

/// The next step; `None` when nothing has to change. `trusted`: the CAs in caBundle, PEM, which
/// keep the served leaf trusted if the stored keys are lost. `revoking`: during a revocation, since
/// when the leaf is known to be published.
///
/// # Errors
/// When no certificate can be issued.
pub fn next(
    found: &KeySet,
    trusted: &str,
    names: &[String],
    asked: Option<Rotate>,
    revoking: Option<Timestamp>,
    now: Timestamp,
    provider: &CryptoProvider,
) -> Result<Option<RotationStep>, IssueError> {
    let (mut kept, trusted) = (read(&found.authorities), read(trusted));
    if kept.first().is_some_and(|ca| is_of_the_past(ca, &trusted)) {
        kept.clear();
    }
    let is_kept = !kept.is_empty();
    // An empty caBundle means that no leaf is in use yet, so no wait is needed.
    let is_trusted =
        trusted.is_empty() || kept.first().is_some_and(|ca| trusted.iter().any(|one| one.pem == ca.pem));
    let mut authorities = merged(kept, trusted);
    let signing = authorities
        .first()
        .filter(|_| is_kept)
        .filter(|ca| !ca.wants_renewal(now))
        .map(|ca| Authority { certificate: ca.pem.clone(), key: found.authority_key.clone() });
    let name = names.first().map_or("berth", String::as_str);
    let leaf = signing.as_ref().filter(|_| asked != Some(Rotate::Authority)).and_then(|signing| {
        let leaf = signing.issue(name, &[], names, now).ok()?;
        // Checked, because the stored key may belong to another CA.
        is_signed_by(leaf.certificate.as_bytes(), signing.certificate.as_bytes()).then_some(leaf)
    });
    let (Some(signing), Some(leaf)) = (signing, leaf) else {
        let authority = Authority::new(&format!("{NAME} {}", now.as_microsecond()), now)?;
        let leaf = authority.issue(name, &[], names, now)?;
        authorities = read(&authority.certificate).into_iter().chain(authorities).collect();
        let (leaf, leaf_key) = (leaf.certificate, leaf.key);
        let authorities = needed(authorities, &found.leaf, now);
        return Ok(Some(RotationStep::TrustFirst(KeySet {
            authorities,
            authority_key: authority.key,
            leaf,
            leaf_key,
        })));
    };
    let served = Bundle::parse(found.leaf.as_bytes(), found.leaf_key.as_bytes(), provider);
    let is_good = is_signed_by(found.leaf.as_bytes(), signing.certificate.as_bytes())
        && served.is_ok_and(|served| !served.wants_renewal(names, now));
    let authorities = needed(authorities, &found.leaf, now);
    if is_good && asked.is_none() {
        if revoking.is_some_and(|since| now.duration_since(since) >= SERVED) {
            return Ok(Some(RotationStep::Revoke(KeySet {
                authorities: signing.certificate,
                ..found.clone()
            })));
        }
        let kept = KeySet { authorities, ..found.clone() };
        return Ok((kept.authorities != found.authorities).then_some(RotationStep::Keep(kept)));
    }
    let authority_key = found.authority_key.clone();
    let keys = KeySet { authorities, authority_key, leaf: leaf.certificate, leaf_key: leaf.key };
    Ok(Some(if is_trusted { RotationStep::Keep(keys) } else { RotationStep::TrustFirst(keys) }))
}

/// Is the stored CA older than the first trusted one, which signs? Then it comes from a restored
/// Secret, for example: it was replaced since, and may have been revoked.
fn is_of_the_past(signing: &Ca, trusted: &[Ca]) -> bool {
    trusted.first().is_some_and(|one| signing.age() < one.age())
}

/// Are all CAs of `wanted` in `trusted`? Both are PEM.
pub fn trusts(trusted: &str, wanted: &str) -> bool {
    let trusted = read(trusted);
    read(wanted).iter().all(|ca| trusted.iter().any(|one| one.pem == ca.pem))
}

/// The signing CA first, then the newest ones. CAs that are trusted at present stay, whoever added
/// them. A CA that is older than the signing one and not stored beside it was revoked, and is left
/// out.
fn merged(kept: Vec<Ca>, trusted: Vec<Ca>) -> Vec<Ca> {
    let mut kept = kept.into_iter();
    let first = kept.next();
    let signs_since = first.as_ref().map(Ca::age);
    let trusted = trusted.into_iter().filter(|ca| signs_since.is_none_or(|since| since <= ca.age()));
    let mut others: Vec<Ca> = kept.chain(trusted).collect();
    others.sort_by_key(|ca| std::cmp::Reverse(ca.age()));
    first.into_iter().chain(others).collect()
}

struct Ca {
    pem: String,
    /// In microseconds, from the common name, because a certificate's times have seconds and two
    /// CAs may be issued in one.
    made_at: i64,
    not_before: Timestamp,
    not_after: Timestamp,
}

impl Ca {
    /// Sort key; the newest CA has the greatest.
    fn age(&self) -> (Timestamp, i64) {
        (self.not_before, self.made_at)
    }

    /// Is less than a third of the lifetime left?
    fn wants_renewal(&self, now: Timestamp) -> bool {
        let life = self.not_after.duration_since(self.not_before);
        self.not_after.duration_since(now) < SignedDuration::from_secs(life.as_secs() / 3)
    }
}

/// berth's CAs in a PEM text. Unreadable and foreign certificates are left out.
fn read(text: &str) -> Vec<Ca> {
    let ca = |der: CertificateDer<'static>| {
        let (_, read) = X509Certificate::from_der(&der).ok()?;
        let mut names = read.subject().iter_common_name().filter_map(|name| name.as_str().ok());
        let number = names.find_map(|name| name.strip_prefix(NAME))?;
        let made_at = number.trim().parse().unwrap_or(0);
        let time = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
        read.is_ca().then_some(())?;
        let (not_before, not_after) = (time(read.validity().not_before)?, time(read.validity().not_after)?);
        Some(Ca { pem: encode(&der), made_at, not_before, not_after })
    };
    CertificateDer::pem_slice_iter(text.as_bytes()).flatten().filter_map(ca).collect()
}

fn encode(der: &CertificateDer<'_>) -> String {
    pem::encode(&pem::Pem::new("CERTIFICATE", der.to_vec()))
}

/// The authorities in the same order (newest first), each once, without those whose last leaf has
/// expired. The CA that signed the `served` leaf always stays, whatever its age and however many
/// newer ones there are.
fn needed(authorities: Vec<Ca>, served: &str, now: Timestamp) -> String {
    let mut text = String::new();
    let mut kept: Vec<&str> = Vec::new();
    let mut replaced_at: Option<Timestamp> = None;
    let seconds = |d: std::time::Duration| SignedDuration::try_from(d).unwrap_or(SignedDuration::MAX);
    for ca in &authorities {
        let last_leaf_expires = replaced_at.map(|at| at + seconds(SKEW) + seconds(LEAF_LIFE));
        let signed_it = || is_signed_by(served.as_bytes(), ca.pem.as_bytes());
        let is_recent = last_leaf_expires.is_none_or(|at| now < at) && kept.len() < MOST;
        let is_needed = (is_recent || signed_it()) && now < ca.not_after;
        replaced_at = Some(ca.not_before);
        if is_needed && !kept.contains(&ca.pem.as_str()) {
            kept.push(&ca.pem);
            text.push_str(&ca.pem);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: SignedDuration = SignedDuration::from_hours(24);

    fn start() -> Timestamp {
        Timestamp::from_second(1_790_000_000).unwrap_or_default()
    }

    fn names() -> Vec<String> {
        vec!["berth-webhook.velero.svc".to_owned()]
    }

    fn step(found: &KeySet, trusted: &str, asked: Option<Rotate>, now: Timestamp) -> Option<RotationStep> {
        let provider = rustls::crypto::ring::default_provider();
        next(found, trusted, &names(), asked, None, now, &provider).unwrap_or_else(|e| unreachable!("{e}"))
    }

    /// The step during a revocation, with the leaf published since `since`.
    fn revoking(
        found: &KeySet,
        asked: Option<Rotate>,
        since: Timestamp,
        now: Timestamp,
    ) -> Option<RotationStep> {
        let provider = rustls::crypto::ring::default_provider();
        next(found, &found.authorities, &names(), asked, Some(since), now, &provider)
            .unwrap_or_else(|e| unreachable!("{e}"))
    }

    /// The keys of a step that must not wait for trust.
    fn kept(step: Option<RotationStep>) -> KeySet {
        match step {
            Some(RotationStep::Keep(keys)) => keys,
            _ => unreachable!("expected a step that keeps"),
        }
    }

    /// The keys of a step that must wait for trust.
    fn trusted_first(step: Option<RotationStep>) -> KeySet {
        match step {
            Some(RotationStep::TrustFirst(keys)) => keys,
            _ => unreachable!("expected a step that trusts first"),
        }
    }

    fn fresh() -> KeySet {
        trusted_first(step(&KeySet::default(), "", None, start()))
    }

    fn count(keys: &KeySet) -> usize {
        keys.authorities.matches("BEGIN").count()
    }

    fn is_believed(keys: &KeySet, leaf: &KeySet) -> bool {
        is_signed_by(leaf.leaf.as_bytes(), keys.authorities.as_bytes())
    }

    #[test]
    fn keys_that_are_good_are_left_alone() {
        let keys = fresh();
        assert!(is_believed(&keys, &keys));
        assert!(step(&keys, &keys.authorities, None, start() + DAY * 50).is_none());
    }

    #[test]
    fn a_leaf_is_renewed_well_before_it_expires_under_the_same_authority() {
        let keys = fresh();
        let renewed = kept(step(&keys, "", None, start() + DAY * 61));
        assert_eq!((&renewed.authorities, renewed.leaf == keys.leaf), (&keys.authorities, false));
        let asked = kept(step(&keys, "", Some(Rotate::Leaf), start()));
        assert!(asked.leaf != keys.leaf && is_believed(&keys, &asked));
    }

    #[test]
    fn an_old_authority_is_trusted_until_its_last_leaf_has_expired() {
        let old = fresh();
        let new = trusted_first(step(&old, "", Some(Rotate::Authority), start() + DAY));
        assert!(count(&new) == 2 && is_believed(&new, &old) && is_believed(&new, &new));
        assert!(!is_believed(&old, &new), "so it must be trusted first");
        let later = kept(step(&new, "", None, start() + DAY * 90));
        assert_eq!(count(&later), 2, "a leaf may have been issued a moment before the new authority came");
        let much_later = kept(step(&later, "", None, start() + DAY * 92));
        assert!(count(&much_later) == 1 && is_believed(&much_later, &much_later));
    }

    #[test]
    fn an_authority_is_renewed_while_it_can_still_sign_whole_leaves() {
        let keys = fresh();
        let year = DAY * 365;
        assert_eq!(count(&kept(step(&keys, "", None, start() + year * 6))), 1);
        let renewed = trusted_first(step(&keys, "", None, start() + year * 7));
        assert!(is_believed(&renewed, &keys) && is_believed(&renewed, &renewed));
    }

    #[test]
    fn lost_keys_are_replaced_and_what_is_served_is_still_believed() {
        let keys = fresh();
        let lost = [
            KeySet::default(),
            KeySet { authority_key: String::new(), ..keys.clone() },
            KeySet { authority_key: fresh().authority_key, ..keys.clone() },
            KeySet { authorities: "noise".to_owned(), ..keys.clone() },
        ];
        for found in lost {
            let new = trusted_first(step(&found, &keys.authorities, None, start() + DAY));
            assert!(is_believed(&new, &keys) && is_believed(&new, &new), "{}", found.authorities);
        }
        for leaf in [
            KeySet { leaf: String::new(), ..keys.clone() },
            KeySet { leaf_key: fresh().leaf_key, ..keys.clone() },
        ] {
            let new = kept(step(&leaf, "", None, start()));
            assert!(is_believed(&keys, &new));
        }
    }

    #[test]
    fn many_rotations_neither_grow_for_ever_nor_lose_the_last_ones() {
        let mut keys = fresh();
        for i in 0..40 {
            let old = keys;
            // Several within one second, and with a clock that goes back.
            keys = trusted_first(step(
                &old,
                "",
                Some(Rotate::Authority),
                start() - SignedDuration::from_secs(i),
            ));
            assert!(is_believed(&keys, &old) && is_believed(&keys, &keys));
        }
        assert_eq!(count(&keys), MOST);
    }

    #[test]
    fn older_keys_that_are_put_back_sign_no_more_and_what_is_trusted_stays_so() {
        let old = fresh();
        for rotated_at in [start() + DAY, start() + DAY * 900] {
            let new = trusted_first(step(&old, &old.authorities, Some(Rotate::Authority), rotated_at));
            let of_the_new = KeySet { leaf: new.leaf.clone(), leaf_key: new.leaf_key.clone(), ..old.clone() };
            for found in [&old, &of_the_new] {
                let next = trusted_first(step(found, &new.authorities, None, rotated_at + DAY));
                assert!([&old, &new, &next].into_iter().all(|leaf| is_believed(&next, leaf)));
                let settled = step(&next, &next.authorities, None, rotated_at + DAY);
                assert!(settled.is_none(), "a replica may still serve what was served");
            }
        }
    }

    /// The Secret of the authority is lost and cannot be written.
    #[test]
    fn what_is_served_is_believed_however_many_authorities_came_since() {
        let keys = fresh();
        let found = KeySet { authorities: String::new(), authority_key: String::new(), ..keys.clone() };
        let mut trusted = keys.authorities.clone();
        for i in 1..40 {
            let next = trusted_first(step(&found, &trusted, None, start() + SignedDuration::from_secs(i)));
            assert!(is_believed(&next, &keys) && is_believed(&next, &next));
            assert!(count(&next) <= MOST + 1);
            trusted = next.authorities;
        }
    }

    #[test]
    fn older_authorities_are_revoked_when_every_replica_serves_a_leaf_of_the_new_one() {
        let old = fresh();
        let asked_at = start() + DAY;
        let new = trusted_first(revoking(&old, Some(Rotate::Authority), start(), asked_at));
        assert!(is_believed(&new, &old) && is_believed(&new, &new), "both, to begin with");
        let just_before = asked_at + SERVED - SignedDuration::from_millis(1);
        assert!(revoking(&new, None, asked_at, just_before).is_none());
        let Some(RotationStep::Revoke(only)) = revoking(&new, None, asked_at, asked_at + SERVED) else {
            unreachable!("expected a step that revokes")
        };
        assert!(count(&only) == 1 && is_believed(&only, &new) && !is_believed(&only, &old));
        assert!(only.leaf == new.leaf && only.authority_key == new.authority_key);
        assert!(step(&only, &only.authorities, None, asked_at + DAY).is_none());
    }

    #[test]
    fn nothing_is_revoked_while_the_leaf_is_not_one_of_the_newest_authority() {
        let old = fresh();
        let new = trusted_first(step(&old, "", Some(Rotate::Authority), start() + DAY));
        let long_after = start() + DAY * 2;
        let of_the_old = KeySet { leaf: old.leaf.clone(), leaf_key: old.leaf_key.clone(), ..new.clone() };
        let unreadable = KeySet { leaf: String::new(), ..new.clone() };
        for found in [of_the_old, unreadable] {
            let issued = kept(revoking(&found, None, start(), long_after));
            assert!(is_believed(&issued, &old) && is_believed(&issued, &issued));
        }
        let again = trusted_first(revoking(&new, Some(Rotate::Authority), start(), long_after));
        assert!(is_believed(&again, &new) && is_believed(&again, &old), "asked twice: the last leaf counts");
        let lost = KeySet { authority_key: String::new(), ..new.clone() };
        let replaced = trusted_first(revoking(&lost, None, start(), long_after));
        assert!(is_believed(&replaced, &new));
    }

    #[test]
    fn what_was_revoked_does_not_come_back_with_an_older_bundle() {
        let old = fresh();
        let new = trusted_first(step(&old, "", Some(Rotate::Authority), start() + DAY));
        let Some(RotationStep::Revoke(only)) = revoking(&new, None, start() + DAY, start() + DAY * 2) else {
            unreachable!("expected a step that revokes")
        };
        assert!(step(&only, &new.authorities, None, start() + DAY * 2).is_none());
        assert!(step(&only, &old.authorities, None, start() + DAY * 2).is_none());
    }

    #[test]
    fn strangers_are_not_trusted() {
        let stranger = Authority::new("somebody", start()).unwrap_or_else(|e| unreachable!("{e}"));
        let keys = trusted_first(step(&KeySet::default(), &stranger.certificate, None, start()));
        assert_eq!(count(&keys), 1);
        assert!(
            trusts(&keys.authorities, &keys.authorities) && !trusts(&stranger.certificate, &keys.authorities)
        );
    }

    /// The Secret of the authority was restored from a backup.
    #[test]
    fn a_revoked_authority_that_comes_back_signs_nothing_and_is_not_trusted() {
        let old = fresh();
        // Also within one second, because a certificate's times have seconds.
        for rotated_at in [start() + DAY, start() + SignedDuration::from_millis(1)] {
            let new = trusted_first(step(&old, &old.authorities, Some(Rotate::Authority), rotated_at));
            let only_new: String = new.authorities.replace(&old.authorities, "");
            let restored = KeySet { leaf: new.leaf.clone(), leaf_key: new.leaf_key.clone(), ..old.clone() };
            let next = trusted_first(step(&restored, &only_new, None, start() + DAY * 2));
            assert!(is_believed(&next, &new), "what is served goes on being believed");
            assert!(!is_believed(&next, &old), "it was revoked");
            assert!(is_believed(&next, &next));
        }
    }

    /// After a downgrade and an upgrade, because the older version does not read the Secret of the
    /// authority.
    #[test]
    fn whoever_signs_without_being_trusted_is_trusted_first_and_what_is_served_stays_so() {
        let (kept, other) = (fresh(), fresh());
        let mixed = KeySet { leaf: other.leaf.clone(), leaf_key: other.leaf_key.clone(), ..kept.clone() };
        let next = trusted_first(step(&mixed, &other.authorities, None, start() + DAY));
        assert!(is_believed(&next, &other) && is_believed(&next, &kept));
    }

    #[test]
    fn the_authority_of_what_is_served_stays_trusted_however_long_ago_it_was_replaced() {
        let old = fresh();
        let new = trusted_first(step(&old, &old.authorities, Some(Rotate::Authority), start() + DAY));
        let late = start() + DAY * 100;
        let of_the_old = KeySet { leaf: old.leaf.clone(), leaf_key: old.leaf_key.clone(), ..new.clone() };
        let next = kept(step(&of_the_old, &new.authorities, None, late));
        assert!(is_believed(&next, &old) && is_believed(&next, &next));
        let afterwards = kept(step(&next, &next.authorities, None, late));
        assert!(count(&afterwards) == 1 && !is_believed(&afterwards, &old), "nobody serves it any more");
    }

    /// Both Secrets were restored from a backup.
    #[test]
    fn a_revoked_authority_does_not_come_back_with_its_leaf() {
        let old = fresh();
        let new = trusted_first(step(&old, &old.authorities, Some(Rotate::Authority), start() + DAY));
        let only_new: String = new.authorities.replace(&old.authorities, "");
        let next = trusted_first(step(&old, &only_new, None, start() + DAY * 2));
        assert!(is_believed(&next, &new), "replicas go on serving what they have");
        assert!(!is_believed(&next, &old) && is_believed(&next, &next));
    }
}
