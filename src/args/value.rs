//! Values of flags, read as Velero's command line reads them.

mod duration;
mod selector;

pub use duration::{GoTime, go_text, go_time};
pub use selector::{Selectors, list_selector, or_selector, selector, selector_text};

/// A comma separated list. Blanks belong to the entries, as they do in Velero.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List(pub Vec<String>);

/// Entries `KEY=VALUE`, in the order in which they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs(pub Vec<(String, String)>);

/// A flag of three states: absent and empty mean that nothing is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tristate(pub Option<bool>);

/// Resource types with names that go first: `pods=ns1/a,ns1/b;persistentvolumes=pv1`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ordered(pub Vec<(String, String)>);

/// # Errors
/// Never: every text is a list.
pub fn list(text: &str) -> Result<List, String> {
    Ok(List(text.split(',').map(str::to_owned).collect()))
}

/// A list whose entries may be quoted, as in `"a,b",c`.
///
/// # Errors
/// When a quote is not closed.
pub fn quoted_list(text: &str) -> Result<List, String> {
    if text.is_empty() { Ok(List::default()) } else { record(text).map(List) }
}

/// # Errors
/// When an entry has no `=`, or a quote is not closed.
pub fn pairs(text: &str) -> Result<Pairs, String> {
    if text.is_empty() {
        return Err("is empty: write KEY=VALUE, or KEY=VALUE,KEY=VALUE".to_owned());
    }
    let split = |entry: String| match entry.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(format!("{entry:?} has no value: write KEY=VALUE, or KEY=VALUE,KEY=VALUE")),
    };
    record(text)?.into_iter().map(split).collect::<Result<_, _>>().map(Pairs)
}

/// # Errors
/// When it is no boolean.
pub fn tristate(text: &str) -> Result<Tristate, String> {
    if text.is_empty() { Ok(Tristate(None)) } else { boolean(text).map(|value| Tristate(Some(value))) }
}

/// # Errors
/// When it is no boolean, as Go writes booleans.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(format!("{other:?} is neither true nor false")),
    }
}

/// # Errors
/// When an entry is not `TYPE=NAME,NAME`.
pub fn ordered(text: &str) -> Result<Ordered, String> {
    if text.is_empty() {
        return Ok(Ordered::default());
    }
    let split = |entry: &str| match entry.split('=').collect::<Vec<_>>().as_slice() {
        [kind, names] => Ok((kind.trim().to_owned(), names.trim().to_owned())),
        _ => Err(format!(
            "{entry:?} is not TYPE=NAMES: write pods=ns1/pod1,ns1/pod2;persistentvolumeclaims=ns1/claim4"
        )),
    };
    text.split(';').map(split).collect::<Result<_, _>>().map(Ordered)
}

/// A whole number as Go reads it, with 0x, 0o and 0b.
///
/// # Errors
/// When it is none.
pub fn whole_number(text: &str) -> Result<i64, String> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let read = |digits: &str, radix| {
        let is_signed = digits.starts_with(['+', '-']);
        i64::from_str_radix(digits, radix).ok().filter(|_| !is_signed)
    };
    let lower = digits.to_ascii_lowercase();
    let value = if digits.starts_with(['+', '-']) {
        None
    } else if let Some(hexadecimal) = lower.strip_prefix("0x") {
        read(hexadecimal, 16)
    } else if let Some(binary) = lower.strip_prefix("0b") {
        read(binary, 2)
    } else if let Some(octal) =
        lower.strip_prefix("0o").or(lower.strip_prefix('0').filter(|rest| !rest.is_empty()))
    {
        read(octal, 8)
    } else {
        read(&lower, 10)
    };
    value.map(|value| sign * value).ok_or_else(|| format!("{text:?} is not a whole number"))
}

/// The first record of comma separated values: an entry that begins with a quote ends with one, and
/// a doubled quote in it stands for one.
fn record(text: &str) -> Result<Vec<String>, String> {
    let text = text.split(['\n', '\r']).next().unwrap_or_default();
    let (mut entries, mut rest) = (Vec::new(), text);
    loop {
        let Some(mut quoted) = rest.strip_prefix('"') else {
            let (entry, after) =
                rest.split_once(',').map_or((rest, None), |(entry, after)| (entry, Some(after)));
            if entry.contains('"') {
                return Err(format!("{entry:?} has a quote in its middle: quote the whole entry"));
            }
            entries.push(entry.to_owned());
            match after {
                Some(after) => rest = after,
                None => return Ok(entries),
            }
            continue;
        };
        let mut entry = String::new();
        loop {
            let Some((before, after)) = quoted.split_once('"') else {
                return Err(format!("{text:?} has a quote that is not closed"));
            };
            entry.push_str(before);
            match after.strip_prefix('"') {
                Some(after) => {
                    entry.push('"');
                    quoted = after;
                }
                None => {
                    quoted = after;
                    break;
                }
            }
        }
        entries.push(entry);
        if quoted.is_empty() {
            return Ok(entries);
        }
        rest = quoted.strip_prefix(',').ok_or_else(|| format!("{text:?} goes on after a closed quote"))?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_and_pairs_are_split_as_velero_splits_them() {
        assert_eq!(list("a,b").unwrap().0, ["a", "b"]);
        assert_eq!(list("a, b,").unwrap().0, ["a", " b", ""]);
        assert_eq!(quoted_list("\"a,b\",c").unwrap().0, ["a,b", "c"]);
        assert_eq!(quoted_list("").unwrap().0, [""; 0]);
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(pairs("a=b,c=d=e,f=").unwrap().0, [pair("a", "b"), pair("c", "d=e"), pair("f", "")]);
        assert_eq!(pairs("\"k1=a=b,c=d\",k2=\"").map_err(drop), Err(()));
        assert_eq!(pairs("\"k1=a \"\"b\"\",c\",k2=v").unwrap().0, [pair("k1", "a \"b\",c"), pair("k2", "v")]);
        for bad in ["", "a", "a=b,", "a=b,c", "\"a=b", "\"a=b\"c", "a\"=b"] {
            assert!(pairs(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn three_states_are_told_apart() {
        assert_eq!(tristate("").unwrap().0, None);
        assert_eq!(tristate("T").unwrap().0, Some(true));
        assert_eq!(tristate("0").unwrap().0, Some(false));
        for bad in ["yes", "no", "tRUE", " true"] {
            assert!(tristate(bad).unwrap_err().contains("neither true nor false"), "{bad}");
        }
    }

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        for (text, number) in
            [("7", 7), ("-3", -3), ("0x10", 16), ("010", 8), ("0b11", 3), ("0", 0), ("+4", 4)]
        {
            assert_eq!(whole_number(text), Ok(number), "{text}");
        }
        for bad in ["", "1.5", "--1", "ten", "9223372036854775808", "09", "0x-1"] {
            assert!(whole_number(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_goes_first_is_split_by_type() {
        let read = ordered("pods= ns1/p1,ns1/p2 ; pv=x").unwrap().0;
        assert_eq!(read, [("pods".into(), "ns1/p1,ns1/p2".into()), ("pv".into(), "x".into())]);
        for bad in ["pods", "pods=a=b", "pods=a;", "pods= ns1/p1; ns1/p2; pv=a"] {
            assert!(ordered(bad).unwrap_err().contains("is not TYPE=NAMES"), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_never_panics(text in "[ab=,\"\\n;0x-]{0,12}|\\PC{0,20}") {
            let _ = (list(&text), quoted_list(&text), pairs(&text), ordered(&text), whole_number(&text), tristate(&text));
        }
    }
}
