//! Sources of Rust as tokens: enough to know what a file names and declares.

/// A word or a sign. Comments are no tokens, and neither is what literals say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    pub text: &'a str,
    pub line: usize,
}

const OF_TESTS: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];

/// The tokens of the product: without the items that only tests have.
pub fn tokens(source: &str) -> Vec<Token<'_>> {
    let all = all_tokens(source);
    let (mut kept, mut at) = (Vec::with_capacity(all.len()), 0);
    while let Some(token) = all.get(at) {
        if all[at..].iter().take(OF_TESTS.len()).map(|token| token.text).eq(OF_TESTS) {
            at = item_end(&all, at);
        } else {
            kept.push(*token);
            at += 1;
        }
    }
    kept
}

/// Where the item ends whose attributes begin at `at`.
fn item_end(tokens: &[Token<'_>], mut at: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    break;
                }
            }
            ";" if depth == 0 => break,
            _ => {}
        }
    }
    at
}

/// The names of the types that a file declares outside of functions.
pub fn types<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let (mut depth, mut found) = (0_usize, Vec::new());
    for pair in tokens.windows(2) {
        let [keyword, name] = pair else { continue };
        match keyword.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            "struct" | "enum" | "trait" | "type" if depth == 0 => found.push(*name),
            _ => {}
        }
    }
    found
}

pub fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn all_tokens(source: &str) -> Vec<Token<'_>> {
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        let skipped = if rest.starts_with("//") {
            Some(rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            Some(rest.find("*/").map_or(rest.len(), |end| end + 2))
        } else {
            literal(rest)
        };
        let length = skipped.unwrap_or_else(|| {
            let length = if is_word(first) {
                rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())
            } else if rest.starts_with("::") {
                2
            } else {
                first.len_utf8()
            };
            if !first.is_whitespace() {
                found.push(Token { text: &rest[..length], line });
            }
            length
        });
        line += rest[..length].matches('\n').count();
        at += length;
    }
    found
}

/// The length of the literal that begins here, if one of a text or of a character does. A lifetime
/// is its quotation mark, and a word.
fn literal(rest: &str) -> Option<usize> {
    if let Some(after) = rest.strip_prefix('\'') {
        return Some(1 + character(after));
    }
    let body = rest.trim_start_matches(['b', 'c', 'r']);
    let prefix = rest.len() - body.len();
    let is_raw = rest[..prefix].ends_with('r');
    let hashes = if is_raw { body.len() - body.trim_start_matches('#').len() } else { 0 };
    let text = body[hashes..].strip_prefix('"').filter(|_| prefix <= 2)?;
    let length = if is_raw {
        let end = format!("\"{}", "#".repeat(hashes));
        text.find(&end).map_or(text.len(), |at| at + end.len())
    } else {
        quoted(text)
    };
    Some(prefix + hashes + 1 + length)
}

/// The length of a text with the quotation mark at its end.
fn quoted(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a character with the quotation mark behind it. 0: it is a lifetime.
fn character(after: &str) -> usize {
    let mut chars = after.char_indices();
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, escaped))) => {
            let from = at + escaped.len_utf8();
            after[from..].find('\'').map_or(from, |end| from + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<&str> {
        tokens(source).into_iter().map(|token| token.text).filter(|text| text.starts_with(is_word)).collect()
    }

    #[test]
    fn neither_comments_nor_literals_are_read() {
        let source = r##"
            // use crate::a;
            /* use crate::b; */ let text = "use \" crate::c"; let raw = r#"use "crate::d"#; let c = '"';
            let (quote, sign): (char, &'static u8) = ('\'', b"x"); // '
            use crate::e;
        "##;
        let expected = [
            "let", "text", "let", "raw", "let", "c", "let", "quote", "sign", "char", "static", "u8", "use",
            "crate", "e",
        ];
        assert_eq!(words(source), expected);
        let line = tokens(source).iter().find(|token| token.text == "e").map(|token| token.line);
        assert_eq!(line, Some(5));
    }

    #[test]
    fn items_of_tests_are_not_the_products() {
        let source = "
            #[cfg(test)] mod tests; #[cfg(test)] #[allow(x)] pub fn f(a: [u8; 2]) { g(); } mod a;
            #[cfg(test)] mod more { use b; mod c {} } struct D;
        ";
        assert_eq!(words(source), ["mod", "a", "struct", "D"]);
    }

    #[test]
    fn types_are_those_outside_of_functions() {
        let source = "
            pub struct A { b: u8 } enum B { C } trait D { type E; } type F = A;
            fn g() { struct H; } impl D for A { type E = u8; }
        ";
        let found: Vec<&str> = types(&tokens(source)).into_iter().map(|token| token.text).collect();
        assert_eq!(found, ["A", "B", "D", "F"]);
    }
}
