use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn kind(resource: &str) -> ResourceType {
    ResourceType {
        group: String::new(),
        version: "v1".into(),
        kind: resource.to_uppercase(),
        resource: resource.into(),
        singular: resource.into(),
        short_names: Vec::new(),
        namespaced: true,
    }
}

fn types() -> Vec<ResourceType> {
    vec![kind("pods"), kind("configmaps"), kind("secrets")]
}

fn at(token: &str) -> Position {
    Position { selector: 0, namespace: None, token: token.to_owned() }
}

fn contents(page: PageId, names: &[&str]) -> Vec<Contents> {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    vec![Contents { page, resource: "configmaps".into(), names, at: None }]
}

fn extent(ledger: &ObjectLedger, place: usize) -> ListExtent {
    ledger.balance().unwrap().extents.remove(&place).unwrap_or_default()
}

#[test]
fn a_page_counts_when_all_of_it_and_of_those_before_it_is_stored() {
    let (ledger, maps) = (ObjectLedger::new(&types()), kind("configmaps"));
    let pages: Vec<PageId> = ["1", "2", "3"]
        .iter()
        .map(|token| {
            let page = ledger.open(&maps);
            ledger.handed(page, 2);
            ledger.close(page, Some(at(token)));
            page
        })
        .collect();
    ledger.stored(contents(pages[1], &["c", "d"]));
    ledger.stored(contents(pages[0], &["a"]));
    assert_eq!(extent(&ledger, 1), ListExtent::default(), "the second page alone says nothing");
    ledger.stored(contents(pages[0], &["b"]));
    assert_eq!(extent(&ledger, 1).at, Some(at("2")));
    ledger.whole(&maps, false);
    assert!(!extent(&ledger, 1).is_whole);
    ledger.stored(contents(pages[2], &["e", "f"]));
    assert_eq!(extent(&ledger, 1), ListExtent { is_whole: true, ..ListExtent::default() });
    assert_eq!(ledger.count(), 6);
    // What is taken besides, because others need it, changes nothing about that.
    let more = ledger.beside(&maps);
    ledger.handed(more, 1);
    ledger.stored(contents(more, &["g"]));
    assert!(extent(&ledger, 1).is_whole && ledger.count() == 7);
}

/// As text they would take most of the memory of a large backup.
#[test]
fn names_are_packed_between_checkpoints_and_none_is_lost() {
    let (ledger, maps) = (ObjectLedger::new(&types()), kind("configmaps"));
    let page = ledger.beside(&maps);
    let names: Vec<String> = (0..3 * UNPACKED).map(|i| format!("app/{i:06}")).collect();
    for some in names.chunks(7) {
        let some: Vec<&str> = some.iter().map(String::as_str).collect();
        ledger.stored(contents(page, &some));
        let unpacked: usize = ledger.state.lock().fresh.values().map(Vec::len).sum();
        assert!(unpacked < UNPACKED, "{unpacked}");
    }
    let balance = ledger.balance().unwrap();
    assert_eq!(balance.count, names.len() as u64);
    let stored = read_names(&balance.names).unwrap();
    assert_eq!(stored[&1].len(), names.len());
    assert!(names.iter().all(|name| stored[&1].contains(name)));
}

#[test]
fn a_page_that_has_to_be_read_again_keeps_the_list_where_it_is() {
    let (ledger, maps) = (ObjectLedger::new(&types()), kind("configmaps"));
    for end in [Some(at("1")), None, Some(at("3"))] {
        let page = ledger.open(&maps);
        ledger.close(page, end);
    }
    assert_eq!(extent(&ledger, 1).at, Some(at("1")));
    ledger.whole(&maps, true);
    assert_eq!(extent(&ledger, 1), ListExtent { at: None, is_whole: true, is_forbidden: true });
}

#[test]
fn a_later_run_knows_what_is_stored_and_lists_again_what_tells_of_others() {
    let ledger = ObjectLedger::new(&types());
    for (resource, names) in [("pods", ["a/p", "a/q"]), ("configmaps", ["a/c", "b/c"])] {
        let page = ledger.open(&kind(resource));
        ledger.handed(page, 2);
        ledger.close(page, Some(at("more")));
        ledger.stored(contents(page, &names[..1]));
        // Twice, as at two checkpoints.
        ledger.balance().unwrap();
        ledger.stored(contents(page, &names[1..]));
    }
    let again = ObjectLedger::again(&types(), ledger.balance().unwrap()).unwrap();
    assert_eq!(again.count(), 4);
    let pods = again.earlier(&kind("pods"));
    assert_eq!((pods.extent, pods.names.len()), (ListExtent::default(), 2));
    let maps = again.earlier(&kind("configmaps"));
    assert_eq!(maps.extent, ListExtent { at: Some(at("more")), ..ListExtent::default() });
    assert!(maps.names.iter().eq(["a/c", "b/c"]));
    assert!(again.earlier(&kind("configmaps")).names.is_empty(), "it was asked for");
    assert!(again.rest().is_empty());
    // A third one knows as much.
    let third = ObjectLedger::again(&types(), again.balance().unwrap()).unwrap();
    assert_eq!(third.rest().values().map(PackedNames::len).sum::<usize>(), 4);
}

/// A pod that is held back for its hooks comes when they let it.
#[test]
fn what_is_beside_the_pages_of_a_list_holds_none_of_them_up() {
    let (ledger, maps) = (ObjectLedger::new(&types()), kind("configmaps"));
    let page = ledger.open(&maps);
    let held = page.beside();
    ledger.handed(held, 1);
    ledger.handed(page, 1);
    ledger.close(page, Some(at("1")));
    ledger.stored(contents(held, &["held"]));
    assert_eq!(extent(&ledger, 1), ListExtent::default(), "what the page itself brought is not stored yet");
    ledger.stored(contents(page, &["a"]));
    assert_eq!((extent(&ledger, 1).at, ledger.count()), (Some(at("1")), 2));
}

/// The lists of the type bring it once more, and hand it on no more.
#[test]
fn a_type_is_not_through_before_what_goes_ahead_of_its_lists_is_stored() {
    let (ledger, maps) = (ObjectLedger::new(&types()), kind("configmaps"));
    let ahead = ledger.open(&maps);
    ledger.handed(ahead, 2);
    ledger.close_ahead(ahead);
    let page = ledger.open(&maps);
    ledger.close(page, Some(at("1")));
    ledger.stored(contents(ahead, &["a"]));
    ledger.whole(&maps, false);
    assert_eq!(extent(&ledger, 1), ListExtent::default(), "nothing of it is done");
    ledger.stored(contents(ahead, &["b"]));
    assert_eq!(extent(&ledger, 1), ListExtent { is_whole: true, ..ListExtent::default() });
    // It says nothing of where a list goes on: neither that it begins anew nor that it is to be
    // read again.
    let begun = ObjectLedger::new(&types());
    let page = begun.open(&maps);
    begun.close(page, Some(at("1")));
    let again = ObjectLedger::again(&types(), begun.balance().unwrap()).unwrap();
    again.close_ahead(again.open(&maps));
    assert_eq!(extent(&again, 1).at, Some(at("1")));
    let page = again.open(&maps);
    again.close(page, Some(at("2")));
    assert_eq!(extent(&again, 1).at, Some(at("2")));
}

/// By its pods, claims and accounts a run looks for others, in the namespaces that their names
/// begin with.
#[test]
fn names_that_lead_out_of_the_namespaces_of_the_backup_are_known_for_that() {
    let lies_in = |place: usize, name: &str| {
        let names = vec![Bytes::from(gzip_json(&BTreeMap::from([(place, vec!["a/known", name])])).unwrap())];
        let ledger =
            ObjectLedger::again(&types(), Balance { names, count: 2, ..Balance::default() }).unwrap();
        ledger.lies_in(&types(), &HashSet::from(["a".to_owned()]))
    };
    assert!(lies_in(0, "a/pod"));
    for stray in ["kube-system/pod", "../pod", "a%2Fb/pod", "/pod"] {
        assert!(!lies_in(0, stray), "{stray}");
    }
    // What is required of these may lie anywhere, and nothing is looked for by it.
    assert!(lies_in(2, "elsewhere/secret"));
}

#[test]
fn what_is_no_balance_is_refused() {
    let of = |names: Vec<Bytes>, count| {
        ObjectLedger::again(&types(), Balance { names, count, ..Balance::default() }).is_err()
    };
    let names = |place: usize| Bytes::from(gzip_json(&BTreeMap::from([(place, vec!["a"])])).unwrap());
    assert!(!of(vec![names(2)], 1));
    assert!(of(vec![names(2)], 2) && of(vec![names(3)], 1) && of(vec![Bytes::from_static(b"no gzip")], 0));
    let mut cut = names(2);
    cut.truncate(cut.len() - 9);
    assert!(of(vec![cut], 1));
}

proptest! {
    /// Whatever order the packers finish in: no position lies behind a page of which something is
    /// not stored.
    #[test]
    fn nothing_before_a_position_is_missing(order in Just((0..12_usize).collect::<Vec<_>>()).prop_shuffle(), stop in 0..12_usize) {
        let (ledger, maps) = (ObjectLedger::new(&types()), kind("configmaps"));
        let mut objects = Vec::new();
        for page in 0..4 {
            let id = ledger.open(&maps);
            for object in 0..3 {
                ledger.handed(id, 1);
                objects.push((id, page, object));
            }
            ledger.close(id, Some(at(&page.to_string())));
        }
        let mut stored = BTreeSet::new();
        for i in order.into_iter().take(stop) {
            let (id, page, object) = objects[i];
            ledger.stored(contents(id, &[&format!("{page}-{object}")]));
            stored.insert((page, object));
        }
        if let Some(at) = extent(&ledger, 1).at {
            let reached: usize = at.token.parse().unwrap();
            for page in 0..=reached {
                prop_assert!((0..3).all(|object| stored.contains(&(page, object))), "page {page} of {reached}");
            }
        }
        let names = read_names(&ledger.balance().unwrap().names).unwrap();
        prop_assert_eq!(names.values().map(PackedNames::len).sum::<usize>(), stored.len());
    }

    /// A crash at any moment, while pages are read and parts come in whatever order: what a
    /// checkpoint says is done is stored.
    #[test]
    fn what_is_said_to_be_done_is_stored(choices in prop::collection::vec(any::<u8>(), 0..80)) {
        const PAGES: usize = 4;
        let (ledger, maps) = (ObjectLedger::new(&types()), kind("configmaps"));
        let (mut next, mut id) = (0, PageId::default());
        let (mut under_way, mut stored) = (Vec::new(), BTreeSet::new());
        for choice in choices {
            if choice % 2 == 0 && next <= 4 * PAGES {
                let page = next / 4;
                match next % 4 {
                    _ if page == PAGES => ledger.whole(&maps, false),
                    0 => id = ledger.open(&maps),
                    // The first one goes ahead of the list.
                    3 if page == 0 => ledger.close_ahead(id),
                    3 => ledger.close(id, Some(at(&page.to_string()))),
                    object => {
                        ledger.handed(id, 1);
                        under_way.push((id, page, object));
                    }
                }
                next += 1;
            } else if !under_way.is_empty() {
                let (id, page, object) = under_way.swap_remove(usize::from(choice / 2) % under_way.len());
                ledger.stored(contents(id, &[&format!("{page}-{object}")]));
                stored.insert((page, object));
            }
            let found = extent(&ledger, 1);
            let done = match &found.at {
                _ if found.is_whole => PAGES,
                Some(at) => at.token.parse::<usize>().unwrap() + 1,
                None => 0,
            };
            for page in 0..done {
                prop_assert!((1..3).all(|object| stored.contains(&(page, object))), "page {page} of {done}");
            }
        }
    }
}
