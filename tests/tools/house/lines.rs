//! Lines of comments and of pages that are wider than the house has them.

use std::path::Path;

use anyhow::Context as _;

/// Columns of a line.
const WIDTH: usize = 100;

/// One line for each that is too wide, in all files of Rust and all pages.
///
/// # Errors
/// When a file or a folder cannot be read.
pub fn wide(top: &Path) -> anyhow::Result<Vec<String>> {
    let (mut faults, mut folders) = (Vec::new(), vec![top.to_owned()]);
    while let Some(folder) = folders.pop() {
        let failed = || format!("failed to read {}", folder.display());
        for entry in std::fs::read_dir(&folder).with_context(failed)? {
            let entry = entry.with_context(failed)?;
            let (path, kind) = (entry.path(), entry.file_type().with_context(failed)?);
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            // Cargo marks the folder of what it makes.
            if kind.is_dir() && !is_hidden && !path.join("CACHEDIR.TAG").exists() {
                folders.push(path);
            } else if let Some(prose) = prose_of(&path) {
                let text = std::fs::read_to_string(&path);
                let text = text.with_context(|| format!("failed to read {}", path.display()))?;
                faults.extend(told(path.strip_prefix(top).unwrap_or(&path), &wide_lines(&text, prose)));
            }
        }
    }
    faults.sort();
    Ok(faults)
}

fn told(file: &Path, lines: &[usize]) -> Vec<String> {
    let fault = |line: &usize| format!("{}:{line}: wider than {WIDTH} columns: wrap it", file.display());
    lines.iter().map(fault).collect()
}

/// The prose of a line, if it has some.
type Prose = fn(&str) -> Option<&str>;

fn prose_of(file: &Path) -> Option<Prose> {
    match file.extension()?.to_str()? {
        "rs" => Some(comment),
        "md" => Some(whole),
        _ => None,
    }
}

/// Of a page each line is prose.
fn whole(line: &str) -> Option<&str> {
    Some(line)
}

/// What a line of nothing but a comment says.
fn comment(line: &str) -> Option<&str> {
    let said = line.trim_start().strip_prefix("//")?;
    Some(said.trim_start_matches(['/', '!']))
}

/// The numbers of the lines whose prose could be wrapped and is not. Examples and tables have no
/// prose.
fn wide_lines(text: &str, prose: Prose) -> Vec<usize> {
    let (mut is_example, mut found) = (false, Vec::new());
    for (number, line) in text.lines().enumerate() {
        let Some(said) = prose(line).map(str::trim_start) else {
            is_example = false;
            continue;
        };
        let is_fence = said.starts_with("```");
        is_example ^= is_fence;
        if !is_example && !is_fence && !said.starts_with(['|', '<']) && is_wide(line) {
            found.push(number + 1);
        }
    }
    found
}

/// Does a word stand behind the last column that a wrapped line could have in front of it? A word
/// that is wider than a line itself is not counted, and neither are the targets of links.
fn is_wide(line: &str) -> bool {
    if line.len() <= WIDTH {
        return false;
    }
    let shown = without_targets(line);
    let indentation = shown.chars().take_while(|c| c.is_whitespace()).count();
    // Spaces in quoted code divide nothing, unless the quotation began on an earlier line.
    let is_quoted = shown.matches('`').count().is_multiple_of(2);
    let (mut column, mut width, mut is_code) = (0, 0, false);
    for c in shown.chars().chain([' ']) {
        is_code ^= c == '`' && is_quoted;
        if c == ' ' && !is_code {
            if column > WIDTH && width > 0 && indentation + width <= WIDTH {
                return true;
            }
            width = 0;
        } else {
            width += 1;
        }
        column += 1;
    }
    false
}

fn without_targets(line: &str) -> String {
    let (mut shown, mut rest) = (String::new(), line);
    while let Some((before, after)) = rest.split_once("](") {
        shown.push_str(before);
        shown.push(']');
        rest = after.split_once(')').map_or("", |(_, behind)| behind);
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_wide_if_it_could_be_wrapped() {
        let words = |width: usize| "w ".repeat(width / 2) + &"x".repeat(width % 2);
        assert!(!is_wide(&words(99)) && !is_wide(&"ä".repeat(99)) && is_wide(&words(101)));
        let long = "x".repeat(110);
        assert!(!is_wide(&long) && !is_wide(&format!("/// {long}")) && is_wide(&format!("{long} and more")));
        let code = format!("    - `{}`", "make this ".repeat(10));
        assert!(!is_wide(&code) && is_wide(&format!("{code} and more")));
        assert!(is_wide(&format!("of an earlier line` {}", words(90))));
        let link = format!("See [this page]({}) and that one.", "x".repeat(90));
        assert!(!is_wide(&link) && is_wide(&format!("{link} {}", words(80))));
    }

    #[test]
    fn only_prose_is_read() {
        let wide = "word ".repeat(25);
        let page = format!("{wide}\n| {wide} |\n<td>{wide}\n```text\n{wide}\n```\n- {wide}");
        assert_eq!(wide_lines(&page, whole), [1, 7]);
        let source = format!(
            "let x = 1; // {wide}\n    //! {wide}\n/// | {wide}\n/// ```\n/// {wide}\n/// ```\n\"{wide}\"\n// {wide}"
        );
        assert_eq!(wide_lines(&source, comment), [2, 8]);
        assert_eq!(told(Path::new("a.rs"), &[2]), ["a.rs:2: wider than 100 columns: wrap it"]);
    }
}
