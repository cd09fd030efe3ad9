//! Rules of imports: no circle of files, and none from a lower floor to an upper one.

use std::collections::{BTreeMap, BTreeSet};

use crate::product::{Arrows, Product};

/// The package whose floors ARCHITECTURE draws. What stands below it, cargo keeps apart.
const DRAWN: &str = "berth";
/// How many circles are told. Several may be one tangle.
const CIRCLES: usize = 10;

/// One line for each circle of files.
pub fn circles(product: &Product) -> Vec<String> {
    let (mut arrows, mut faults) = (product.arrows(), Vec::new());
    while faults.len() < CIRCLES
        && let Some(circle) = circle(&mut arrows)
    {
        let [first, second, ..] = circle.as_slice() else { break };
        let Some(import) = arrows.get_mut(first).and_then(|to| to.remove(second)) else { break };
        let way: Vec<String> = circle.iter().chain([first]).map(|module| product.file(module)).collect();
        faults.push(format!(
            "{}:{}: {} closes a circle of imports, {}: move what both need into a file of its own, or hand it over as \
             an argument",
            product.file(first),
            import.line,
            import.path,
            way.join(" → ")
        ));
    }
    faults
}

/// One line for each import that runs from a lower floor of the drawing to an upper one.
pub fn climbs(product: &Product, drawing: &str) -> Vec<String> {
    let rooms: BTreeSet<String> = product.modules().filter_map(room).collect();
    let floors = floors(drawing, &rooms);
    let missing = rooms.iter().filter(|room| !floors.contains_key(*room));
    let mut faults: Vec<String> = missing
        .map(|room| {
            format!(
                "ARCHITECTURE.md:1: {room} stands on no floor of the first drawing: write it where it belongs"
            )
        })
        .collect();
    for (from, imports) in product.arrows() {
        for (to, import) in imports {
            let (Some(lower), Some(upper)) = (room(&from), room(&to)) else { continue };
            if floors.get(&lower).zip(floors.get(&upper)).is_some_and(|(from, to)| from > to) {
                faults.push(format!(
                    "{}:{}: {} runs up, because ARCHITECTURE.md draws {lower} below {upper}: move what is needed \
                     down, or hand it over as an argument",
                    product.file(&from),
                    import.line,
                    import.path
                ));
            }
        }
    }
    faults
}

/// The module of the package's root in which a module is.
fn room(module: &str) -> Option<String> {
    let below = module.strip_prefix(DRAWN)?.strip_prefix("::")?;
    below.split("::").next().map(str::to_owned)
}

/// A circle, if there is one: each module of it imports the next, and the last one the first.
fn circle(arrows: &mut Arrows) -> Option<Vec<String>> {
    let mut count = usize::MAX;
    // What imports none of the others is in no circle.
    while count != arrows.len() {
        count = arrows.len();
        let left: BTreeSet<String> = arrows.keys().cloned().collect();
        arrows.values_mut().for_each(|to| to.retain(|name, _| left.contains(name)));
        arrows.retain(|_, to| !to.is_empty());
    }
    let mut walk = vec![arrows.keys().next()?.clone()];
    loop {
        let next = arrows.get(walk.last()?)?.keys().next()?.clone();
        if let Some(at) = walk.iter().position(|one| *one == next) {
            return Some(walk.split_off(at));
        }
        walk.push(next);
    }
}

/// The floor of each room, counted from the top. Rooms are the names with which a cell of the first
/// box begins, and double lines divide its floors.
fn floors(drawing: &str, rooms: &BTreeSet<String>) -> BTreeMap<String, usize> {
    let (mut floor, mut found) = (0, BTreeMap::new());
    let lines = drawing.lines().skip_while(|line| !line.contains('┌')).take_while(|line| !line.contains('└'));
    for line in lines {
        floor += usize::from(line.contains('╞'));
        let cells = line.split('│').filter_map(|cell| cell.strip_prefix(' '));
        // What is indented further is in a room.
        for cell in cells.filter(|cell| !cell.starts_with(' ')) {
            let words = cell.split_whitespace().filter(|word| *word != "→");
            let names = words.map(|word| word.trim_end_matches('/'));
            found.extend(names.take_while(|name| rooms.contains(*name)).map(|name| (name.to_owned(), floor)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product::tests::product;

    #[test]
    fn files_that_import_each_other_are_told_with_the_way_round() {
        let found = circles(&product(&[
            ("a", "\nuse crate::b::B;"),
            ("b", "use crate::c::C;"),
            ("c", "use crate::a::A; use crate::d::D;"),
            ("d", "mod below; use below::E;"),
            ("d::below", "use super::D;"),
        ]));
        assert_eq!(found.len(), 1, "{found:?}");
        let told = "a.rs:2: crate::b::B closes a circle of imports, a.rs → b.rs → c.rs → a.rs: move";
        assert!(found[0].starts_with(told), "{found:?}");
    }

    #[test]
    fn two_circles_are_two_faults_and_imports_of_tests_are_none() {
        let a = "use super::b; #[cfg(test)] mod tests { use crate::c; }";
        let found = circles(&product(&[
            ("a", a),
            ("b", "use super::a;"),
            ("c", "use super::a;"),
            ("d", "use super::e;"),
            ("e", "use super::d;"),
        ]));
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn an_import_runs_along_a_floor_or_down() {
        let drawing = "
            ┌──────────────────────┐
            │ top/   the top: base │
            ╞═══════════╤══════════╡
            │ left/     │ right/   │
            │  base     │  files   │
            ╞═══════════╧══════════╡
            │ base → ground  what  │
            └──────────────────────┘
            │ roof                 │";
        let house = product(&[
            ("top", "use crate::base;"),
            ("left", "use crate::right;"),
            ("right", "use crate::base;"),
            ("base", "use crate::ground;"),
            ("ground", ""),
            ("ground::floor", "\nuse crate::left::X;"),
            ("roof", ""),
        ]);
        let found = climbs(&house, drawing);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("roof stands on no floor"), "{found:?}");
        let told =
            "ground/floor.rs:2: crate::left::X runs up, because ARCHITECTURE.md draws ground below left:";
        assert!(found[1].starts_with(told), "{found:?}");
    }
}
