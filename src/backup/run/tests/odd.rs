//! Objects that are not as objects are.

use flate2::read::MultiGzDecoder;

use super::again::large;
use super::*;

/// The API server admits no such names; an aggregated server may.
#[tokio::test]
async fn an_object_whose_name_no_file_can_have_costs_itself() {
    let odd: Vec<Value> = ["../x", "a/b", "..", ".", ""].map(map).into_iter().chain([map("b")]).collect();
    let site = Site::new().with_pages(get(MAPS).page("more").answers(list("5", &odd)));
    site.api.next(begins()).next(gets_leave()).next(ends_in("PartiallyFailed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::PartiallyFailed);
    let last = site.api.writes().last().unwrap().body["status"].clone();
    assert_eq!(last["progress"], json!({"totalItems": 2, "itemsBackedUp": 2}));
    let told = site.told();
    assert!(told.contains("5 objects of configmaps are missing") && told.contains("../x"), "{told}");
}

/// By then all of them are named and counted.
#[tokio::test]
async fn what_a_list_has_brought_is_stored_though_its_pages_lead_nowhere() {
    let site = Site::new();
    let leads = |name: &str| page("5", "more", &[large(name)]);
    site.api.always(get(MAPS).answers(leads("a"))).once(get(MAPS).page("more").answers(leads("b")));
    site.api.next(begins()).next(gets_leave()).next(ends_in("PartiallyFailed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::PartiallyFailed);
    let last = site.api.writes().last().unwrap().body["status"].clone();
    assert_eq!(last["progress"], json!({"totalItems": 2, "itemsBackedUp": 2}));
    let (items, list) = site.items();
    assert_eq!((items.len(), &list["v1/ConfigMap"]), (2, &json!(["app/a", "app/b"])));
    assert!(site.told().contains("did not bring the list to its end"), "{}", site.told());
}

/// The API server's own store takes 1.5 MiB; that of an aggregated server may take more.
#[tokio::test]
async fn an_object_larger_than_the_api_server_takes_is_stored_whole() {
    let mut large = map("large");
    large["data"] = json!({"text": "x".repeat(3 << 20)});
    let site = Site::new().with_pages(get(MAPS).page("more").answers(list("5", &[large.clone()])));
    site.api.next(begins()).next(gets_leave()).next(ends_in("Completed"));
    assert_eq!(site.run(Signals::default()).await.unwrap().phase(), BackupPhase::Completed);
    let archive = std::fs::read(site.folder.path().join("bucket/backups/one/one.tar.gz")).unwrap();
    let mut tar = tar::Archive::new(MultiGzDecoder::new(&archive[..]));
    let mut found = Vec::new();
    for entry in tar.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = String::from_utf8(entry.path_bytes().into_owned()).unwrap();
        if path == "resources/configmaps/namespaces/app/large.json" {
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            found.push(serde_json::from_slice::<Value>(&content).unwrap());
        }
    }
    assert!(found == [large], "{} entries", found.len());
}
