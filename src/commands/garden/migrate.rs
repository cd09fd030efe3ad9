//! `berth garden migrate`.

use berth_garden_core::migration::MigrationPhase;

use crate::args::garden::MigrateArgs;
use crate::client::Clients;
use crate::garden::migration::{Migration, Summary};

pub async fn run(args: MigrateArgs) -> anyhow::Result<()> {
    let migration = Migration {
        client: Clients::new(args.target.source()).await?.call,
        namespace: args.target.namespace,
        from: args.from,
        entry: args.to_entry,
        at_once: usize::from(args.at_once),
        patience: args.timeout,
        roots: args.folders.filesystem_roots.into(),
    };
    if args.dry_run {
        let Summary { phase, counts, there } = migration.survey().await?;
        let so_far = phase.map_or_else(|| "not begun".to_owned(), |phase| format!("{phase:?}"));
        println!("phase           {so_far}");
        println!("objects         {}", counts.none + counts.copied + counts.not_found);
        println!("bytes           {}", counts.bytes);
        println!("to copy         {}", counts.none);
        println!("copied          {}", counts.copied);
        println!("gone meanwhile  {}", counts.not_found);
        println!("already there   {there}, compared before anything is written");
        return Ok(());
    }
    let done = migration.run(args.retire, &|what| println!("{}", crate::text::printable(what))).await?;
    println!("{} objects are copied, {} were gone at the source", done.counts.copied, done.counts.not_found);
    match done.phase {
        Some(MigrationPhase::Retired) => {
            println!("location {} has moved; its old place is empty", migration.from)
        }
        _ => {
            println!("location {} has moved; its old place is as it was: --retire empties it", migration.from)
        }
    }
    Ok(())
}
