//! How large the packs of a repository are, which says how much memory a backup takes. What
//! rustic_core has in memory while the store is slower than the files are read:
//!
//! | what | how many | bytes of each |
//! |---|---|---|
//! | packs of pieces: one is filled, one waits, one is hashed and written | 3 | [`PACK`], and up to one piece more |
//! | packs of folders, the same | 3 | 4 MiB and more |
//! | pieces on their way into a pack: one of each file that is read, and two for each thread that compresses (at most four threads for either, see `pariter`) | 13 | 8 MiB at most, 1.5 MiB on average, and room for twice that while it is cut |
//! | IDs of pieces that the repository had | all | 32 |
//! | IDs of those that are new, in a tree | all | about 50 |
//! | what is new and in no index yet | 50,000 at most | about 100 |

use rustic_core::ConfigOptions;

/// As restic has it. rustic_core would have packs of 32 MiB and more, the larger the repository is,
/// and it looks through all pieces of a pack for each that it adds.
const PACK: &str = "16MiB";

/// For a new repository. One that was made with other packs keeps them.
pub(crate) fn config() -> ConfigOptions {
    let mut config = ConfigOptions::default().set_datapack_growfactor(0_u32);
    // The type of a size cannot be named.
    config.set_datapack_size = PACK.parse().ok();
    config
}
