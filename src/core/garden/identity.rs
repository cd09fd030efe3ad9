//! Which cluster a Seed is. A copy of a member cluster uses the same name, and would act on the
//! same buckets and write into the same directories. So of two clusters only one is the Seed.

/// Is a cluster the Seed whose name it uses?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SeedIdentity<'a> {
    /// It is.
    Known,
    /// The hub has recorded no cluster yet: the first one that writes its UID is the Seed.
    First,
    /// Another cluster is, with this UID.
    Another(&'a str),
}

/// `own`: UID of the cluster. `said`: UID in the Seed's annotation, which a person writes and which
/// decides. `known`: UID in its status, of the cluster that came first.
pub fn seed_identity<'a>(own: &str, said: Option<&'a str>, known: Option<&'a str>) -> SeedIdentity<'a> {
    let named = |uid: &&str| !uid.is_empty();
    let known = known.filter(named);
    match (said.map(str::trim).filter(named), known) {
        (Some(said), _) if said != own => SeedIdentity::Another(said),
        (None, Some(known)) if known != own => SeedIdentity::Another(known),
        (_, Some(known)) if known == own => SeedIdentity::Known,
        (Some(_) | None, _) => SeedIdentity::First,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cluster_is_the_seed_and_people_say_which() {
        let rows = [
            (None, None, SeedIdentity::First),
            (None, Some(""), SeedIdentity::First),
            (None, Some("a"), SeedIdentity::Known),
            (None, Some("b"), SeedIdentity::Another("b")),
            (Some("a"), None, SeedIdentity::First),
            (Some("a"), Some("b"), SeedIdentity::First),
            (Some(" a\n"), Some("a"), SeedIdentity::Known),
            (Some("b"), Some("a"), SeedIdentity::Another("b")),
            (Some("b"), None, SeedIdentity::Another("b")),
            (Some(""), Some("b"), SeedIdentity::Another("b")),
        ];
        for (said, known, wanted) in rows {
            assert_eq!(seed_identity("a", said, known), wanted, "{said:?} {known:?}");
        }
    }

    #[test]
    fn of_two_never_both_are() {
        for said in [None, Some("a"), Some("b"), Some("c")] {
            for known in [None, Some("a"), Some("b"), Some("c")] {
                let is = |own| seed_identity(own, said, known);
                let both = [is("a"), is("b")].iter().filter(|one| **one == SeedIdentity::Known).count();
                assert!(both <= 1, "{said:?} {known:?}");
                // Before anybody is known, the first write decides: it goes with the version that
                // was read.
                if known.is_some() && said.is_none() {
                    assert_ne!(is("a"), SeedIdentity::First);
                }
            }
        }
    }
}
