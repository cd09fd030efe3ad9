//! Which VolumeSnapshotClass a snapshot is taken by.

/// A VolumeSnapshotClass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotClass {
    pub name: String,
    pub driver: String,
    /// It has Velero's label.
    pub is_labelled: bool,
    /// It has the annotation of the driver's default class.
    pub is_default: bool,
}

/// The class, and what was not followed on the way to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice<'a, 'n> {
    pub class: Option<&'a SnapshotClass>,
    /// A class that an annotation names and that does not exist, or belongs to another driver.
    pub ignored: Option<&'n str>,
}

/// Chooses by five rules (contract 6.3), the first of which that leads to a class of the driver
/// counts: the claim's annotation, the Backup's annotation, the class with Velero's label, the
/// default class, the only class. Of several classes the first in `classes` counts, as in Velero.
pub fn choose<'a, 'n>(
    classes: &'a [SnapshotClass],
    driver: &str,
    by_claim: Option<&'n str>,
    by_backup: Option<&'n str>,
) -> Choice<'a, 'n> {
    let named = |name: &str| {
        let is_it = |class: &&SnapshotClass| {
            class.name.eq_ignore_ascii_case(name) && class.driver.eq_ignore_ascii_case(driver)
        };
        classes.iter().find(is_it)
    };
    let mut ignored = None;
    for name in [by_claim, by_backup].into_iter().flatten() {
        match named(name) {
            Some(class) => return Choice { class: Some(class), ignored },
            None => ignored = ignored.or(Some(name)),
        }
    }
    let own = || classes.iter().filter(|class| class.driver == driver);
    let only = || own().next().filter(|_| own().count() == 1);
    let class = own().find(|class| class.is_labelled).or_else(|| own().find(|class| class.is_default));
    Choice { class: class.or_else(only), ignored }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn class(name: &str, driver: &str, is_labelled: bool, is_default: bool) -> SnapshotClass {
        SnapshotClass { name: name.to_owned(), driver: driver.to_owned(), is_labelled, is_default }
    }

    #[test]
    fn the_first_rule_that_leads_to_a_class_counts() {
        let all = [
            class("a", "ebs", false, false),
            class("b", "ebs", false, true),
            class("c", "ebs", true, false),
            class("d", "efs", false, false),
            class("e", "nfs", false, false),
            class("f", "nfs", false, false),
        ];
        for (driver, by_claim, by_backup, chosen, ignored) in [
            ("ebs", Some("a"), Some("b"), Some("a"), None),
            ("ebs", Some("A"), None, Some("a"), None),
            ("ebs", None, Some("b"), Some("b"), None),
            // An annotation that leads nowhere, as in Velero.
            ("ebs", Some("d"), Some("b"), Some("b"), Some("d")),
            ("ebs", Some("gone"), Some("d"), Some("c"), Some("gone")),
            ("ebs", None, None, Some("c"), None),
            ("efs", None, None, Some("d"), None),
            ("nfs", None, None, None, None),
            ("nfs", Some("f"), None, Some("f"), None),
            ("other", None, None, None, None),
        ] {
            let choice = choose(&all, driver, by_claim, by_backup);
            let name = choice.class.map(|class| class.name.as_str());
            assert_eq!((name, choice.ignored), (chosen, ignored), "{driver} {by_claim:?} {by_backup:?}");
        }
        assert_eq!(choose(&all[..2], "ebs", None, None).class, Some(&all[1]));
    }

    proptest! {
        #[test]
        fn a_chosen_class_is_always_one_of_the_driver(
            drivers in prop::collection::vec("[ab]", 0..6),
            marks in prop::collection::vec(any::<(bool, bool)>(), 6),
            by_claim in prop::option::of("[0-6]"),
            by_backup in prop::option::of("[0-6]"),
        ) {
            let named = drivers.iter().enumerate().zip(marks);
            let all: Vec<SnapshotClass> =
                named.map(|((at, driver), (a, b))| class(&at.to_string(), driver, a, b)).collect();
            let choice = choose(&all, "a", by_claim.as_deref(), by_backup.as_deref());
            prop_assert!(choice.class.is_none_or(|class| class.driver == "a"));
            let own = all.iter().filter(|class| class.driver == "a");
            if own.clone().count() == 1 {
                prop_assert_eq!(choice.class, own.clone().next());
            }
        }
    }
}
