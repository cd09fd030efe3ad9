//! Does the tree keep to those house rules of CONTRIBUTING that a program can read? `make lint`
//! asks.

mod imports;
mod lines;
mod product;
mod source;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

use product::Product;

/// How many names of types may stand for two things. A few have to, as the kinds of two API groups.
const AMBIGUOUS: usize = 25;

fn main() -> ExitCode {
    match faults(Path::new(".")) {
        Ok(faults) if faults.is_empty() => {
            println!("imports, names and lines keep to the house rules");
            ExitCode::SUCCESS
        }
        Ok(faults) => {
            for fault in faults {
                eprintln!("{fault}");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("house: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One line for each fault: file, line, what is wrong, and the way out.
fn faults(top: &Path) -> anyhow::Result<Vec<String>> {
    let product = Product::read(top)?;
    let drawing = std::fs::read_to_string(top.join("ARCHITECTURE.md"));
    let mut faults = imports::circles(&product);
    faults.extend(imports::climbs(&product, &drawing.context("failed to read ARCHITECTURE.md")?));
    faults.extend(ambiguous(&product.types(), AMBIGUOUS));
    faults.extend(lines::wide(top)?);
    Ok(faults)
}

/// One line for each name that stands for two types, if there are more than `most`.
fn ambiguous(types: &BTreeMap<&str, Vec<String>>, most: usize) -> Vec<String> {
    let of_several: Vec<_> = types.iter().filter(|(_, places)| places.len() > 1).collect();
    let count = of_several.len();
    let told = of_several.into_iter().filter(|_| count > most).map(|(name, places)| {
        format!(
            "{}: {name} is declared {} times, and {count} names are declared more than once, where {most} may be: give \
             it the word of what it belongs to",
            places.join(", "),
            places.len()
        )
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_several_types_are_told_when_there_are_too_many() {
        let places = |places: &[&str]| places.iter().map(|place| (*place).to_owned()).collect::<Vec<_>>();
        let types = BTreeMap::from([
            ("A", places(&["a.rs:1", "b.rs:2"])),
            ("B", places(&["a.rs:2"])),
            ("C", Vec::new()),
        ]);
        assert_eq!(ambiguous(&types, 1), [""; 0]);
        let found = ambiguous(&types, 0);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("a.rs:1, b.rs:2: A is declared 2 times, and 1 names"), "{found:?}");
    }

    #[test]
    fn this_tree_keeps_to_the_rules() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert_eq!(faults(&top).unwrap(), [""; 0]);
    }
}
