//! `berth garden migrate`.

use berth_garden_core::migration::MigrationPhase;

use crate::args::garden::MigrateArgs;
use crate::cli::print::say;
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
        let Summary { phase, counts, there } = migration.dry_run().await?;
        let so_far = phase.map_or_else(|| "not begun".to_owned(), |phase| format!("{phase:?}"));
        say!("phase           {so_far}");
        say!("objects         {}", counts.none + counts.copied + counts.not_found);
        say!("bytes           {}", counts.bytes);
        say!("to copy         {}", counts.none);
        say!("copied          {}", counts.copied);
        say!("gone meanwhile  {}", counts.not_found);
        say!("already there   {there}, compared before anything is written");
        return Ok(());
    }
    let done = migration.run(args.retire, &|what| say!("{}", crate::text::printable(what))).await?;
    say!("{} objects are copied, {} were gone at the source", done.counts.copied, done.counts.not_found);
    match done.phase {
        Some(MigrationPhase::Retired) => {
            say!("location {} has moved; its old place is empty", migration.from)
        }
        _ => {
            say!("location {} has moved; its old place is as it was: --retire empties it", migration.from)
        }
    }
    Ok(())
}
