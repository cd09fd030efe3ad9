//! Which cluster a Seed is. A copy of a member cluster comes to the hub with the same name, and would act on the same buckets
//! and write into the same directories: of two that come, one is the Seed.

/// Is a cluster the Seed in whose name it comes?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Standing<'a> {
    /// It is.
    Known,
    /// The hub does not say so yet: whoever comes first writes that down.
    First,
    /// Another one is, with this UID.
    Another(&'a str),
}

/// `own`: UID of the cluster. `said`: the one that people say it is. `known`: the one that came before. What people say counts.
pub fn standing<'a>(own: &str, said: Option<&'a str>, known: Option<&'a str>) -> Standing<'a> {
    let named = |uid: &&str| !uid.is_empty();
    let known = known.filter(named);
    match (said.map(str::trim).filter(named), known) {
        (Some(said), _) if said != own => Standing::Another(said),
        (None, Some(known)) if known != own => Standing::Another(known),
        (_, Some(known)) if known == own => Standing::Known,
        (Some(_) | None, _) => Standing::First,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_cluster_is_the_seed_and_people_say_which() {
        let rows = [
            (None, None, Standing::First),
            (None, Some(""), Standing::First),
            (None, Some("a"), Standing::Known),
            (None, Some("b"), Standing::Another("b")),
            (Some("a"), None, Standing::First),
            (Some("a"), Some("b"), Standing::First),
            (Some(" a\n"), Some("a"), Standing::Known),
            (Some("b"), Some("a"), Standing::Another("b")),
            (Some("b"), None, Standing::Another("b")),
            (Some(""), Some("b"), Standing::Another("b")),
        ];
        for (said, known, wanted) in rows {
            assert_eq!(standing("a", said, known), wanted, "{said:?} {known:?}");
        }
    }

    #[test]
    fn of_two_never_both_are() {
        for said in [None, Some("a"), Some("b"), Some("c")] {
            for known in [None, Some("a"), Some("b"), Some("c")] {
                let is = |own| standing(own, said, known);
                let both = [is("a"), is("b")].iter().filter(|one| **one == Standing::Known).count();
                assert!(both <= 1, "{said:?} {known:?}");
                // Before anybody is known, the first write decides: it goes with the version that was read.
                if known.is_some() && said.is_none() {
                    assert_ne!(is("a"), Standing::First);
                }
            }
        }
    }
}
