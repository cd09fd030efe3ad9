//! `berth backup-location`: create, list, change and delete BackupStorageLocations.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use berth_api::keys;
use berth_api::velero::{Backup, BackupStorageLocation};
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, Preconditions};

use super::person::{
    Person, Selected, check_name, confirmed, faults, print_list, print_object, printed_instead, refuse_plan,
    typed,
};
use super::version;
use crate::args::backup::{DeleteArgs, DryRun};
use crate::args::location::{
    CreateLocationArgs, GetLocationArgs, LocationArgs, LocationCommand, SetLocationArgs,
};
use crate::cli::print::{note, say};
use crate::cli::{object, rights, table};
use crate::text::{chain, few};
use crate::write::{Write, patch};

/// A file of certificates may be no larger.
const LARGEST: u64 = 1 << 20;

pub async fn run(args: LocationArgs) -> anyhow::Result<()> {
    let person = Person::new(args.target)?.coloured(&args.colours);
    let done = match args.command {
        LocationCommand::Create(args) => create(&person, &args).await,
        LocationCommand::Delete(args) => delete(&person, &args).await,
        LocationCommand::Get(args) => get(&person, &args).await,
        LocationCommand::Set(args) => set(&person, &args).await,
    };
    match done {
        Ok(done) => Ok(done),
        Err(error) => Err(person.explained(error).await),
    }
}

/// What the file of `--cacert` holds.
fn authority(path: Option<&Path>) -> anyhow::Result<Option<Vec<u8>>> {
    let Some(path) = path else { return Ok(None) };
    let shown = path.display();
    let size = std::fs::metadata(path).with_context(|| format!("--cacert {shown} cannot be read"))?.len();
    ensure!(size <= LARGEST, "--cacert {shown} has {size} bytes, which is too much for certificates");
    let text = std::fs::read(path).with_context(|| format!("--cacert {shown} cannot be read"))?;
    Ok(Some(text))
}

async fn create(person: &Person, args: &CreateLocationArgs) -> anyhow::Result<()> {
    check_name("BackupStorageLocation", &args.name)?;
    refuse_plan(&args.made, "locations")?;
    let authority = authority(args.cacert.as_deref())?;
    let value = match object::location(person.namespace(), args, authority.as_deref()) {
        Ok(value) => value,
        Err(wrong) => return faults(wrong),
    };
    if let Some(output) = printed_instead(&args.made) {
        let location: BackupStorageLocation = serde_json::from_value(value.clone())?;
        let table = |more: &table::More| table::locations(std::slice::from_ref(&location), more);
        return print_object(&value, output, &args.made, table);
    }
    version::compare(person).await;
    if args.default {
        only_default(person, &args.name).await?;
    }
    let is_dry_run = args.made.dry_run == Some(DryRun::Server);
    person.create::<BackupStorageLocation>(&value, is_dry_run).await?;
    if is_dry_run {
        say!("Backup storage location {} would be accepted (dry run).", args.name);
    } else {
        say!("Backup storage location {:?} configured successfully.", args.name);
    }
    Ok(())
}

/// There may be one default location only.
async fn only_default(person: &Person, name: &str) -> anyhow::Result<()> {
    let all = person.list_typed::<BackupStorageLocation>(None).await?;
    let others: Vec<String> = all
        .iter()
        .filter(|one| one.spec.default == Some(true))
        .map(ResourceExt::name_any)
        .filter(|one| one != name)
        .collect();
    if let Some(other) = others.first() {
        bail!(
            "--default: location {} is the default already: unset it first by `berth backup-location set {other} --default=false`",
            few(&others)
        );
    }
    Ok(())
}

async fn get(person: &Person, args: &GetLocationArgs) -> anyhow::Result<()> {
    let get = &args.get;
    let mut objects = person.chosen::<BackupStorageLocation>(&get.names, get.selector.as_deref()).await?;
    if args.default {
        let is_default = |one: &DynamicObject| one.data.pointer("/spec/default") == Some(&true.into());
        objects.retain(is_default);
    }
    print_list(&objects, "BackupStorageLocation", get, |more| {
        table::locations(&typed::<BackupStorageLocation>(&objects), more)
    })
}

async fn set(person: &Person, args: &SetLocationArgs) -> anyhow::Result<()> {
    let authority = authority(args.cacert.as_deref())?;
    let change = match object::change(args, authority.as_deref()) {
        Ok(change) => change,
        Err(wrong) => return faults(wrong),
    };
    let location: BackupStorageLocation = person.get(&args.name).await?;
    version::compare(person).await;
    if args.default.and_then(|default| default.0) == Some(true) {
        only_default(person, &args.name).await?;
    }
    let api = person.api::<BackupStorageLocation>().await?;
    let written = patch(&api, Write::on(&location), change).await.written();
    written.with_context(|| format!("failed to change BackupStorageLocation {}", args.name))?;
    say!("Backup storage location {:?} configured successfully.", args.name);
    Ok(())
}

async fn delete(person: &Person, args: &DeleteArgs) -> anyhow::Result<()> {
    let Selected { found: locations, missing } =
        person.selected::<BackupStorageLocation>(&args.which).await?;
    if locations.is_empty() {
        say!("No backup-locations found");
        return Ok(());
    }
    version::compare(person).await;
    let repositories = ApiResource {
        group: "velero.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "velero.io/v1".to_owned(),
        kind: "BackupRepository".to_owned(),
        plural: "backuprepositories".to_owned(),
    };
    let mut going = Vec::new();
    for location in &locations {
        let belongs = Some(format!("{}={}", keys::STORAGE_LOCATION, label(&location.name_any())));
        let backups = person.list_of(&ApiResource::erase::<Backup>(&()), belongs.clone()).await?;
        let repositories = match person.list_of(&repositories, belongs).await {
            Ok(found) => found,
            // A cluster without Velero does not know the kind.
            Err(error) if error.downcast_ref::<kube::Error>().is_some_and(crate::client::is_not_found) => {
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        note!(
            "{}: with it go {} Backups and {} BackupRepositories of this cluster; what the store has of them stays",
            location.name_any(),
            backups.len(),
            repositories.len()
        );
        going.push((location, backups, repositories));
    }
    if !confirmed(args.confirm)? {
        return Ok(());
    }
    let client = person.client().await?;
    let mut failed = missing;
    let mut remove = async |resource: &ApiResource, object: &DynamicObject, what: &str| {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), person.namespace(), resource);
        let same = Preconditions { uid: object.uid(), resource_version: None };
        match api.delete(&object.name_any(), &DeleteParams::default().preconditions(same)).await {
            Ok(_) => {
                say!("{what} {:?} deleted successfully.", object.name_any());
                true
            }
            Err(error) => {
                failed += 1;
                let error = rights::explained(error.into(), person.namespace());
                note!("{what} {}: {}", object.name_any(), chain(error.as_ref()));
                false
            }
        }
    };
    let of_locations = ApiResource::erase::<BackupStorageLocation>(&());
    for (location, backups, found) in going {
        let object =
            DynamicObject { types: None, metadata: location.metadata.clone(), data: serde_json::Value::Null };
        // With the location there, sync would bring its Backups back.
        if !remove(&of_locations, &object, "Backup storage location").await {
            continue;
        }
        for backup in &backups {
            remove(&ApiResource::erase::<Backup>(&()), backup, "Backup associated with deleted BSL(s)").await;
        }
        for repository in &found {
            remove(&repositories, repository, "Backup repository associated with deleted BSL(s)").await;
        }
    }
    ensure!(failed == 0, "{failed} objects could not be deleted");
    Ok(())
}

fn label(name: &str) -> String {
    keys::label_value(name, |name| {
        let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    })
}
