//! Thousands of definitions, some of which are broken: whoever may create definitions can create as
//! many.

use flate2::read::MultiGzDecoder;

use super::*;

const TYPES: usize = 5000;
const BROKEN: usize = 50;
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn is_broken(at: usize) -> bool {
    at % (TYPES / BROKEN) == 7
}

fn name(at: usize) -> String {
    format!("type{at}s")
}

fn resource(name: &str, kind: &str, scope: &str) -> Value {
    json!({
        "resource": name, "singularResource": "", "scope": scope,
        "responseKind": {"group": "", "version": "v1", "kind": kind},
        "verbs": ["create", "delete", "get", "list"],
    })
}

/// From discovery to the results. For how long they are tried is the lister's to bound.
#[tokio::test]
async fn of_thousands_of_types_each_broken_one_costs_itself_and_a_short_error() {
    let group = |name: &str, resources: Vec<Value>| json!({"metadata": {"name": name}, "versions": [{"version": "v1", "resources": resources}]});
    let definition = resource("customresourcedefinitions", "CustomResourceDefinition", "Cluster");
    let types = (0..TYPES).map(|at| resource(&name(at), &format!("Type{at}"), "Namespaced")).collect();
    let groups = [group("apiextensions.k8s.io", vec![definition]), group("example.com", types)];
    let definitions: Vec<Value> =
        (0..TYPES).map(|at| json!({"metadata": {"name": format!("{}.example.com", name(at))}})).collect();
    let site = Site::new();
    site.api
        .once(get("/apis").answers(json!({"items": groups})))
        .always(get(NAMESPACES).answers(list("5", &[])))
        .always(get(MAPS).answers(list("5", &[])))
        .always(get(DEFINITIONS).answers(list("5", &definitions)));
    let refusal = json!({"message": format!("conversion webhook failed: {}", "x".repeat(40_000))});
    for at in 0..TYPES {
        let asked = get(&format!("/apis/example.com/v1/namespaces/app/{}", name(at)));
        site.api.always(if !is_broken(at) {
            asked.answers(list("5", &[json!({"metadata": {"name": "a", "namespace": "app"}})]))
        } else if at % 3 == 0 {
            asked.refuses_with(500, refusal.clone())
        } else if at % 3 == 1 {
            asked.answers(json!(["no", "list"]))
        } else {
            asked.refuses(503)
        });
    }
    site.takes_writes();
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::PartiallyFailed);
    let last = site.api.writes().last().unwrap().body["status"].clone();
    assert_eq!(last["errors"], BROKEN, "{last}");
    // Each with its definition.
    let stored = 2 * (TYPES - BROKEN);
    assert_eq!(last["progress"], json!({"totalItems": stored, "itemsBackedUp": stored}));
    let list =
        std::fs::read(site.folder.path().join("bucket/backups/one/one-resource-list.json.gz")).unwrap();
    let list: Value = serde_json::from_reader(MultiGzDecoder::new(&list[..])).unwrap();
    for at in 0..TYPES {
        let objects = if is_broken(at) { Value::Null } else { json!(["app/a"]) };
        assert_eq!(list[format!("example.com/v1/Type{at}")], objects, "{at}");
    }
    let told = site.told();
    assert_eq!(told.matches("failed to list type").count(), BROKEN, "{told}");
    assert!(told.len() < BROKEN * 2000, "{} bytes", told.len());
    // Those of so many types are listed, and not got one by one.
    let asked = site.api.asked().iter().filter(|asked| asked.contains(DEFINITIONS)).count();
    assert!(asked < 10, "{asked}");
}
