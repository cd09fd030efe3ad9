//! What pods with hooks take along into their blocks.

use super::*;

fn types() -> Vec<ResourceType> {
    vec![
        kind("pods", "", "Pod", true),
        kind("persistentvolumeclaims", "", "PersistentVolumeClaim", true),
        kind("persistentvolumes", "", "PersistentVolume", false),
        namespaces(),
    ]
}

/// Of these pods, and claims with their volumes, each of which can be got by its name, too.
fn cluster(pods: &[Value], claims: &[(&str, &str)], spec: Value) -> Cluster {
    let api = Scripted::new();
    api.always(get(PODS).answers(list("5", pods)));
    let all: Vec<Value> = claims.iter().map(|(name, volume)| claim(name, volume)).collect();
    api.always(get(CLAIMS).answers(list("5", &all)));
    for ((name, volume), claim) in claims.iter().zip(all) {
        api.always(get(&format!("{CLAIMS}/{name}")).answers(claim));
        api.always(get(&format!("{VOLUMES}/{volume}")).answers(plain(volume)));
    }
    Cluster { api, types: types(), spec, policy: "", resolved: &["app"] }
}

async fn ran(cluster: &Cluster) -> Ran {
    cluster.run(&Moment::first(), &mut Dice(7)).await
}

fn quiet() -> MessageCounts {
    MessageCounts { warnings: 0, errors: 0 }
}

/// Two pods share a claim, one is left out by its hooks, and one has none. A run ends anywhere in
/// the midst of their blocks.
#[tokio::test(start_paused = true)]
async fn claims_and_volumes_come_in_the_blocks_of_their_pods_and_each_once_wherever_a_run_ends() {
    let pods = [
        hooked("one", &["shared"]),
        hooked("out", &["of-out"]),
        pod("plain", &["alone"], ""),
        hooked("two", &["own", "shared"]),
    ];
    let claims = [("alone", "x"), ("of-out", "y"), ("own", "w"), ("shared", "v")];
    let cluster = cluster(&pods, &claims, json!({}));
    let first = ran(&cluster).await;
    let expected = [
        vec![
            "persistentvolumeclaims app/shared",
            "persistentvolumes v",
            "persistentvolumeclaims app/own",
            "persistentvolumes w",
            "pods app/one",
            "pods app/two",
        ],
        vec!["persistentvolumeclaims app/of-out", "persistentvolumes y"],
    ];
    assert_eq!(first.blocks, expected);
    let path = format!("GET {CLAIMS}/shared");
    assert_eq!(cluster.api.asked().iter().filter(|asked| **asked == path).count(), 1);
    let expected = names([
        "namespaces app",
        "persistentvolumeclaims app/alone",
        "persistentvolumeclaims app/of-out",
        "persistentvolumeclaims app/own",
        "persistentvolumeclaims app/shared",
        "persistentvolumes v",
        "persistentvolumes w",
        "persistentvolumes x",
        "persistentvolumes y",
        "pods app/one",
        "pods app/plain",
        "pods app/two",
    ]);
    assert_eq!(cluster.is_whole_wherever_its_runs_end().await, expected);
}

#[tokio::test(start_paused = true)]
async fn with_a_selector_what_a_pod_needs_is_in_its_block_and_what_keeps_out_of_backups_is_not() {
    let cluster = cluster(
        &[hooked("db", &["c", "shy"])],
        &[("c", "v")],
        json!({"labelSelector": {"matchLabels": {"app": "db"}}}),
    );
    let shy = labelled(claim("shy", "w"), json!({"velero.io/exclude-from-backup": "true"}));
    cluster.api.always(get(&format!("{CLAIMS}/shy")).answers(shy.clone()));
    // What the selector chooses, and then what is looked for because others need it.
    cluster.api.once(get(CLAIMS).answers(list("5", &[]))).once(get(CLAIMS).answers(list("5", &[shy])));
    let ran = ran(&cluster).await;
    assert_eq!(ran.blocks, [["persistentvolumeclaims app/c", "persistentvolumes v", "pods app/db"]]);
    assert_eq!(ran.counts, quiet());
}

#[tokio::test(start_paused = true)]
async fn claims_that_go_first_go_before_all_blocks_and_once() {
    let spec = json!({"orderedResources": {"persistentvolumeclaims": "app/c"}});
    let cluster = cluster(&[hooked("db", &["c", "d"])], &[("c", "v"), ("d", "w")], spec);
    let ran = ran(&cluster).await;
    assert_eq!(ran.blocks, [["persistentvolumeclaims app/d", "persistentvolumes w", "pods app/db"]]);
    let expected = names([
        "namespaces app",
        "persistentvolumeclaims app/c",
        "persistentvolumeclaims app/d",
        "persistentvolumes v",
        "persistentvolumes w",
        "pods app/db",
    ]);
    assert_eq!((ran.stored(), ran.counts), (&expected, quiet()));
}

/// That list waits for the one of pods, and where that takes long its next page is of another
/// moment.
#[tokio::test(start_paused = true)]
async fn a_claim_of_a_pod_with_hooks_is_in_its_block_though_it_is_gone_when_the_list_of_claims_goes_on() {
    let api = Scripted::new();
    api.always(get(PODS).answers(list("5", &[hooked("db", &["c"])])));
    api.always(get(&format!("{CLAIMS}/c")).answers(claim("c", "v")));
    for volume in ["v", "x", "y"] {
        api.always(get(&format!("{VOLUMES}/{volume}")).answers(plain(volume)));
    }
    let later = json!({"message": "too old", "metadata": {"continue": "later"}});
    api.once(get(CLAIMS).answers(page("5", "more", &[claim("a", "x")])));
    api.once(get(CLAIMS).page("more").refuses_with(410, later));
    api.once(get(CLAIMS).page("later").answers(list("9", &[claim("d", "y")])));
    // Is the API server itself well?
    api.always(get("/api/v1/namespaces").answers(list("5", &[])));
    let cluster = Cluster { api, types: types(), spec: json!({}), policy: "", resolved: &["app"] };
    let ran = ran(&cluster).await;
    assert_eq!(ran.blocks, [["persistentvolumeclaims app/c", "persistentvolumes v", "pods app/db"]]);
    let expected = names([
        "namespaces app",
        "persistentvolumeclaims app/a",
        "persistentvolumeclaims app/c",
        "persistentvolumeclaims app/d",
        "persistentvolumes v",
        "persistentvolumes x",
        "persistentvolumes y",
        "pods app/db",
    ]);
    assert_eq!((ran.stored(), ran.counts), (&expected, quiet()));
}

/// Nobody answers for a claim here.
#[tokio::test(start_paused = true)]
async fn what_the_backup_leaves_out_is_not_asked_for() {
    let cluster = Cluster {
        api: Scripted::new(),
        types: types(),
        spec: json!({"excludedNamespaceScopedResources": ["persistentvolumeclaims"]}),
        policy: "",
        resolved: &["app"],
    };
    cluster.api.once(get(PODS).answers(list("5", &[hooked("db", &["c"])])));
    let ran = ran(&cluster).await;
    assert_eq!((ran.blocks, ran.counts), (vec![vec!["pods app/db".to_owned()]], quiet()));
}

#[tokio::test(start_paused = true)]
async fn claims_that_cannot_be_got_by_name_are_taken_by_their_list_which_is_told_once() {
    let cluster = cluster(&[hooked("a", &["c"]), hooked("b", &["d"])], &[("c", "v"), ("d", "w")], json!({}));
    cluster.api.once(get(&format!("{CLAIMS}/c")).refuses(403));
    let ran = ran(&cluster).await;
    assert_eq!(ran.blocks, [["pods app/a"], ["pods app/b"]]);
    assert_eq!(ran.counts, MessageCounts { warnings: 1, errors: 0 });
    let expected = json!({
        "v1/Namespace": ["app"], "v1/PersistentVolume": ["v", "w"], "v1/PersistentVolumeClaim": ["app/c", "app/d"],
        "v1/Pod": ["app/a", "app/b"],
    });
    assert_eq!(ran.listed, expected);
}

/// A claim that is missing is told by whoever looks for it, and one pod does not take more along
/// than there is room for.
#[tokio::test(start_paused = true)]
async fn what_is_gone_or_too_large_for_a_block_is_in_none() {
    let cluster = cluster(&[hooked("db", &["gone", "large", "c"])], &[("c", "v"), ("large", "w")], json!({}));
    let mut large = claim("large", "w");
    large["noise"] = json!("n".repeat(5 * 1024 * 1024));
    cluster.api.once(get(&format!("{CLAIMS}/gone")).refuses(404));
    cluster.api.once(get(&format!("{CLAIMS}/large")).answers(large));
    let ran = ran(&cluster).await;
    assert_eq!(ran.blocks, [["persistentvolumeclaims app/c", "persistentvolumes v", "pods app/db"]]);
    assert_eq!(ran.counts, MessageCounts { warnings: 1, errors: 0 });
    assert!(ran.stored().contains("persistentvolumeclaims app/large"));
}

/// Each of its pods asks for it, and then its list brings it.
#[tokio::test(start_paused = true)]
async fn what_is_odd_of_a_claim_counts_once_whoever_brings_it() {
    let pods = |claim: &str| [hooked("a", &[claim]), hooked("b", &[claim])];
    let long = "c".repeat(252);
    let unstorable = ran(&cluster(&pods(long.as_str()), &[(long.as_str(), "v")], json!({}))).await;
    assert_eq!(unstorable.counts, MessageCounts { warnings: 0, errors: 1 });
    let words = "1 objects of persistentvolumeclaims are missing";
    assert!(unstorable.told.contains(words), "{}", unstorable.told);
    let odd = json!({"metadata": {"name": "odd", "namespace": "app"}, "spec": "odd"});
    let cluster = cluster(&pods("odd"), &[], json!({}));
    cluster.api.always(get(&format!("{CLAIMS}/odd")).answers(odd.clone()));
    cluster.api.once(get(CLAIMS).answers(list("5", &[odd])));
    let unreadable = ran(&cluster).await;
    // That it is stored as it is, and that nobody knows what it refers to.
    assert_eq!(unreadable.counts, MessageCounts { warnings: 0, errors: 2 }, "{}", unreadable.told);
}
