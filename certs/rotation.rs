//! What a set of keys should become next: a function of what is there and of the time.
//!
//! A CA stays trusted until everything that it signed has expired, so a replica that serves an old leaf for whatever
//! reason is still believed.

use jiff::{SignedDuration, Timestamp};
use rustls::crypto::CryptoProvider;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::bundle::is_signed_by;
use crate::issue::{LEAF_LIFE, SKEW};
use crate::{Authority, Bundle, IssueError};

/// Common names of our CAs begin with this.
const NAME: &str = "berth webhook CA";
/// More CAs than these are never trusted at once: the API server reads them at every connection.
const MOST: usize = 32;

/// Keys as they are kept, PEM.
#[derive(Clone, Default)]
pub struct Keys {
    /// CAs that are trusted, the one that signs first.
    pub authorities: String,
    /// Of the first one.
    pub authority_key: String,
    pub leaf: String,
    pub leaf_key: String,
}

/// What somebody asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotate {
    Leaf,
    Authority,
}

/// What is to be done.
pub enum Step {
    /// Keep these: nothing that is served loses its trust by it.
    Keep(Keys),
    /// Trust their authorities everywhere, and only then keep these.
    TrustFirst(Keys),
}

/// The next step; `None` when all is as it should be. `trusted` is what is trusted at present, PEM: should the keys be
/// lost, what is served goes on being believed.
///
/// # Errors
/// When nothing can be issued.
pub fn next(
    found: &Keys,
    trusted: &str,
    names: &[String],
    asked: Option<Rotate>,
    now: Timestamp,
    provider: &CryptoProvider,
) -> Result<Option<Step>, IssueError> {
    let is_kept = !read(&found.authorities).is_empty();
    let mut authorities = merged(read(&found.authorities), read(trusted));
    let signing = authorities
        .first()
        .filter(|_| is_kept)
        .filter(|ca| !ca.wants_renewal(now))
        .map(|ca| Authority { certificate: ca.pem.clone(), key: found.authority_key.clone() });
    let name = names.first().map_or("berth", String::as_str);
    let leaf = signing.as_ref().filter(|_| asked != Some(Rotate::Authority)).and_then(|signing| {
        let leaf = signing.issue(name, &[], names, now).ok()?;
        // The key may be that of another CA.
        is_signed_by(leaf.certificate.as_bytes(), signing.certificate.as_bytes()).then_some(leaf)
    });
    let (Some(signing), Some(leaf)) = (signing, leaf) else {
        let authority = Authority::new(&format!("{NAME} {}", now.as_microsecond()), now)?;
        let leaf = authority.issue(name, &[], names, now)?;
        authorities = read(&authority.certificate).into_iter().chain(authorities).collect();
        let (leaf, leaf_key) = (leaf.certificate, leaf.key);
        let authorities = needed(authorities, now);
        return Ok(Some(Step::TrustFirst(Keys {
            authorities,
            authority_key: authority.key,
            leaf,
            leaf_key,
        })));
    };
    let served = Bundle::parse(found.leaf.as_bytes(), found.leaf_key.as_bytes(), provider);
    let is_good = is_signed_by(found.leaf.as_bytes(), signing.certificate.as_bytes())
        && served.is_ok_and(|served| !served.wants_renewal(names, now));
    let authorities = needed(authorities, now);
    if is_good && asked.is_none() {
        let kept = Keys { authorities, ..found.clone() };
        return Ok((kept.authorities != found.authorities).then_some(Step::Keep(kept)));
    }
    let authority_key = found.authority_key.clone();
    Ok(Some(Step::Keep(Keys { authorities, authority_key, leaf: leaf.certificate, leaf_key: leaf.key })))
}

/// Are all CAs of `wanted` among those of `trusted`? Both PEM.
pub fn trusts(trusted: &str, wanted: &str) -> bool {
    let trusted = read(trusted);
    read(wanted).iter().all(|ca| trusted.iter().any(|one| one.pem == ca.pem))
}

/// The one that signs first, then the newest: what is trusted at present stays so, whoever put it there.
fn merged(kept: Vec<Ca>, trusted: Vec<Ca>) -> Vec<Ca> {
    let mut kept = kept.into_iter();
    let first = kept.next();
    let mut others: Vec<Ca> = kept.chain(trusted).collect();
    others.sort_by_key(|ca| std::cmp::Reverse(ca.not_before));
    first.into_iter().chain(others).collect()
}

struct Ca {
    pem: String,
    not_before: Timestamp,
    not_after: Timestamp,
}

impl Ca {
    /// Is less than a third of its life left?
    fn wants_renewal(&self, now: Timestamp) -> bool {
        let life = self.not_after.duration_since(self.not_before);
        self.not_after.duration_since(now) < SignedDuration::from_secs(life.as_secs() / 3)
    }
}

/// Our CAs in a text; what cannot be read, and what is not ours, is left out.
fn read(text: &str) -> Vec<Ca> {
    let ca = |der: CertificateDer<'static>| {
        let (_, read) = X509Certificate::from_der(&der).ok()?;
        let is_ours = read.is_ca()
            && read.subject().iter_common_name().any(|cn| cn.as_str().is_ok_and(|cn| cn.starts_with(NAME)));
        let time = |time: x509_parser::time::ASN1Time| Timestamp::from_second(time.timestamp()).ok();
        is_ours.then_some(())?;
        let (not_before, not_after) = (time(read.validity().not_before)?, time(read.validity().not_after)?);
        Some(Ca { pem: encode(&der), not_before, not_after })
    };
    CertificateDer::pem_slice_iter(text.as_bytes()).flatten().filter_map(ca).collect()
}

fn encode(der: &CertificateDer<'_>) -> String {
    pem::encode(&pem::Pem::new("CERTIFICATE", der.to_vec()))
}

/// In their order, which is newest first: each once, without those whose last leaf has expired.
fn needed(authorities: Vec<Ca>, now: Timestamp) -> String {
    let mut text = String::new();
    let mut kept: Vec<&str> = Vec::new();
    let mut replaced_at: Option<Timestamp> = None;
    let seconds = |d: std::time::Duration| SignedDuration::try_from(d).unwrap_or(SignedDuration::MAX);
    for ca in &authorities {
        let last_leaf_expires = replaced_at.map(|at| at + seconds(SKEW) + seconds(LEAF_LIFE));
        let is_needed = last_leaf_expires.is_none_or(|at| now < at) && now < ca.not_after;
        replaced_at = Some(ca.not_before);
        if is_needed && !kept.contains(&ca.pem.as_str()) && kept.len() < MOST {
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

    fn step(found: &Keys, trusted: &str, asked: Option<Rotate>, now: Timestamp) -> Option<Step> {
        let provider = rustls::crypto::ring::default_provider();
        next(found, trusted, &names(), asked, now, &provider).unwrap_or_else(|e| unreachable!("{e}"))
    }

    /// The keys after a step that must not have to wait for trust.
    fn kept(step: Option<Step>) -> Keys {
        match step {
            Some(Step::Keep(keys)) => keys,
            _ => unreachable!("expected a step that keeps"),
        }
    }

    /// The keys after a step that must.
    fn trusted_first(step: Option<Step>) -> Keys {
        match step {
            Some(Step::TrustFirst(keys)) => keys,
            _ => unreachable!("expected a step that trusts first"),
        }
    }

    fn fresh() -> Keys {
        trusted_first(step(&Keys::default(), "", None, start()))
    }

    fn count(keys: &Keys) -> usize {
        keys.authorities.matches("BEGIN").count()
    }

    fn is_believed(keys: &Keys, leaf: &Keys) -> bool {
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
            Keys::default(),
            Keys { authority_key: String::new(), ..keys.clone() },
            Keys { authority_key: fresh().authority_key, ..keys.clone() },
            Keys { authorities: "noise".to_owned(), ..keys.clone() },
        ];
        for found in lost {
            let new = trusted_first(step(&found, &keys.authorities, None, start() + DAY));
            assert!(is_believed(&new, &keys) && is_believed(&new, &new), "{}", found.authorities);
        }
        for leaf in [
            Keys { leaf: String::new(), ..keys.clone() },
            Keys { leaf_key: fresh().leaf_key, ..keys.clone() },
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
            // Within one second, and with a clock that goes back.
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
    fn what_is_trusted_stays_trusted_when_older_keys_are_put_back() {
        let old = fresh();
        let new = trusted_first(step(&old, "", Some(Rotate::Authority), start() + DAY));
        let put_back = kept(step(&old, &new.authorities, None, start() + DAY * 2));
        assert!(is_believed(&put_back, &old) && is_believed(&put_back, &new));
        assert_eq!(put_back.leaf, old.leaf);
    }

    #[test]
    fn strangers_are_not_trusted() {
        let stranger = Authority::new("somebody", start()).unwrap_or_else(|e| unreachable!("{e}"));
        let keys = trusted_first(step(&Keys::default(), &stranger.certificate, None, start()));
        assert_eq!(count(&keys), 1);
        assert!(
            trusts(&keys.authorities, &keys.authorities) && !trusts(&stranger.certificate, &keys.authorities)
        );
    }
}
