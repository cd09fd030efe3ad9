//! A list as it arrives from the API server, split into its items without building trees.
//!
//! The items stay the bytes that the server sent. Only one item, not a page, has to fit in memory.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use memchr::memchr2;
use serde::Deserialize;

/// The metadata of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListHead {
    /// Continue token of the next page; empty at the end.
    pub continue_token: String,
    /// Objects behind this page, if the server says so.
    pub remaining: Option<u64>,
    /// The revision of the list.
    pub resource_version: String,
}

#[derive(Debug, thiserror::Error)]
pub enum SplitError {
    #[error(
        "the list is not JSON (expected {expected} at byte {at}): look for a proxy before the API server"
    )]
    Syntax { expected: &'static str, at: usize },
    #[error("the list ended early at byte {0}")]
    Truncated(usize),
    #[error("the answer is no list: it has no items")]
    NoItems,
    #[error("the list's metadata cannot be read")]
    Metadata(#[source] serde_json::Error),
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMetadata {
    #[serde(rename = "continue")]
    continue_token: Option<String>,
    remaining_item_count: Option<u64>,
    resource_version: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before the list's `{`.
    Start,
    /// Before a key, a comma, or the list's `}`.
    Key,
    /// Inside a value that is no array of items.
    Value(Of),
    /// Before an item, a comma, or the `]`.
    Items,
    Item,
    End,
}

/// Whose value it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Metadata,
    /// An empty list may have `null` in place of an array, as Go writes one that nobody has made.
    Items,
    Other,
}

/// How far a scan through one value has come, so that it can continue with the next bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    offset: usize,
    depth: u32,
    string: bool,
}

/// Splits a list: feed it with [`Splitter::push`], take items with [`Splitter::next_item`], then
/// call [`Splitter::finish`].
#[derive(Debug)]
pub struct Splitter {
    buffer: BytesMut,
    /// Bytes of the list before `buffer`.
    passed: usize,
    at: At,
    scan: Scan,
    head: ListHead,
    /// A Status, or whatever a proxy makes up, has no `items`.
    has_items: bool,
}

impl Default for Splitter {
    fn default() -> Self {
        Self {
            buffer: BytesMut::new(),
            passed: 0,
            at: At::Start,
            scan: Scan::default(),
            head: ListHead::default(),
            has_items: false,
        }
    }
}

impl Splitter {
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete item; `None` when more bytes are needed, or none are left.
    ///
    /// # Errors
    /// When this is no list.
    pub fn next_item(&mut self) -> Result<Option<Bytes>, SplitError> {
        loop {
            match self.at {
                At::Start => {
                    let Some(byte) = self.skip_to_byte() else { return Ok(None) };
                    self.expect(byte == b'{', "{")?;
                    self.at = At::Key;
                }
                At::Key => {
                    if !self.key()? {
                        return Ok(None);
                    }
                }
                At::Value(of) => {
                    let Some(value) = self.value() else { return Ok(None) };
                    match of {
                        Of::Metadata => {
                            let read: Option<ListMetadata> =
                                serde_json::from_slice(&value).map_err(SplitError::Metadata)?;
                            let read = read.unwrap_or_default();
                            self.head.continue_token = read.continue_token.unwrap_or_default();
                            self.head.remaining = read.remaining_item_count;
                            self.head.resource_version = read.resource_version.unwrap_or_default();
                        }
                        Of::Items => {
                            self.expect(value.trim_ascii() == b"null", "items")?;
                            self.has_items = true;
                        }
                        Of::Other => {}
                    }
                    self.at = At::Key;
                }
                At::Items => match self.peek() {
                    None => return Ok(None),
                    Some(b',') => self.drop_byte(),
                    Some(b']') => {
                        self.drop_byte();
                        self.at = At::Key;
                    }
                    Some(byte) => {
                        self.expect(byte == b'{', "an item")?;
                        self.at = At::Item;
                    }
                },
                At::Item => {
                    let Some(item) = self.value() else { return Ok(None) };
                    self.at = At::Items;
                    return Ok(Some(item));
                }
                At::End => return Ok(None),
            }
        }
    }

    /// # Errors
    /// When the list was cut off, or there was none.
    pub fn finish(self) -> Result<ListHead, SplitError> {
        match self.at {
            At::End if self.has_items => Ok(self.head),
            At::End => Err(SplitError::NoItems),
            _ => Err(SplitError::Truncated(self.passed + self.buffer.len())),
        }
    }

    /// Reads `"key":` and the first byte of the value. `false`: more bytes are needed.
    fn key(&mut self) -> Result<bool, SplitError> {
        match self.peek() {
            None => return Ok(false),
            Some(b',') => {
                self.drop_byte();
                return Ok(true);
            }
            Some(b'}') => {
                self.drop_byte();
                self.at = At::End;
                return Ok(true);
            }
            Some(byte) => self.expect(byte == b'"', "a key")?,
        }
        // Keys of a list are short and plain: find the closing quote, a colon and the value's first
        // byte.
        let Some(end) = self.buffer.get(1..).and_then(|rest| memchr::memchr(b'"', rest)) else {
            return Ok(false);
        };
        let after = end + 2;
        let rest = self.buffer.get(after..).unwrap_or_default();
        let Some(colon) = rest.iter().position(|b| !b.is_ascii_whitespace()) else { return Ok(false) };
        self.expect(rest.get(colon) == Some(&b':'), ":")?;
        let value = rest.get(colon + 1..).unwrap_or_default();
        let Some(first) = value.iter().position(|b| !b.is_ascii_whitespace()) else { return Ok(false) };
        let opens_array = value.get(first) == Some(&b'[');
        let key = self.buffer.get(1..=end).unwrap_or_default();
        let of = match key {
            b"items" => Of::Items,
            b"metadata" => Of::Metadata,
            _ => Of::Other,
        };
        self.advance(after + colon + 1 + first);
        self.at = if of == Of::Items && opens_array {
            self.drop_byte();
            self.has_items = true;
            At::Items
        } else {
            At::Value(of)
        };
        Ok(true)
    }

    /// The value at the start of the buffer, once it is complete.
    fn value(&mut self) -> Option<Bytes> {
        let end = self.scan.find_end(&self.buffer)?;
        self.scan = Scan::default();
        self.passed += end;
        Some(self.buffer.split_to(end).freeze())
    }

    fn peek(&mut self) -> Option<u8> {
        let blank = self.buffer.iter().position(|b| !b.is_ascii_whitespace()).unwrap_or(self.buffer.len());
        self.advance(blank);
        self.buffer.first().copied()
    }

    fn skip_to_byte(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.drop_byte();
        Some(byte)
    }

    fn drop_byte(&mut self) {
        self.advance(1);
    }

    fn advance(&mut self, bytes: usize) {
        if bytes > 0 {
            let _ = self.buffer.split_to(bytes.min(self.buffer.len()));
            self.passed += bytes;
        }
    }

    fn expect(&self, holds: bool, expected: &'static str) -> Result<(), SplitError> {
        if holds { Ok(()) } else { Err(SplitError::Syntax { expected, at: self.passed }) }
    }
}

impl Scan {
    /// Offset just behind the value; `None` when it is not complete yet.
    fn find_end(&mut self, bytes: &[u8]) -> Option<usize> {
        loop {
            if self.string {
                let rest = bytes.get(self.offset..)?;
                let Some(found) = memchr2(b'"', b'\\', rest) else {
                    self.offset = bytes.len();
                    return None;
                };
                let at = self.offset + found;
                if bytes.get(at) == Some(&b'\\') {
                    // The escaped byte must have arrived; otherwise the next scan starts at the
                    // backslash.
                    if at + 1 >= bytes.len() {
                        self.offset = at;
                        return None;
                    }
                    self.offset = at + 2;
                    continue;
                }
                self.string = false;
                self.offset = at + 1;
                if self.depth == 0 {
                    return Some(self.offset);
                }
                continue;
            }
            match bytes.get(self.offset)? {
                b'"' => self.string = true,
                b'{' | b'[' => self.depth += 1,
                // At depth 0 this closes what surrounds a number, true, false or null.
                b'}' | b']' | b',' if self.depth == 0 => return Some(self.offset),
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        return Some(self.offset + 1);
                    }
                }
                _ => {}
            }
            self.offset += 1;
        }
    }
}

/// An object, which is JSON, with null in place of the value to which the keys lead. One that has
/// no such value stays as it is. A key that JSON writes with escapes is not found.
pub fn without<'a>(object: &'a [u8], keys: &[&str]) -> Cow<'a, [u8]> {
    let mut from = 0;
    for key in keys {
        let Some(at) = object.get(from..).and_then(|inner| start_of(inner, key)) else {
            return Cow::Borrowed(object);
        };
        from += at;
    }
    let rest = object.get(from..).unwrap_or_default();
    let Some(behind) = Scan::default().find_end(rest).and_then(|end| rest.get(end..)) else {
        return Cow::Borrowed(object);
    };
    Cow::Owned([object.get(..from).unwrap_or_default(), b"null", behind].concat())
}

/// Where the value of a key begins. Only what stands before it is scanned.
fn start_of(object: &[u8], key: &str) -> Option<usize> {
    let token = |from: usize| {
        let blank = object.get(from..)?.iter().position(|byte| !byte.is_ascii_whitespace())?;
        Some((from + blank, *object.get(from + blank)?))
    };
    let end = |from: usize| Some(from + Scan::default().find_end(object.get(from..)?)?);
    let (mut at, first) = token(0)?;
    if first != b'{' {
        return None;
    }
    loop {
        let (name, b'"') = token(at + 1)? else { return None };
        let behind = end(name)?;
        let (colon, b':') = token(behind)? else { return None };
        let (value, _) = token(colon + 1)?;
        if object.get(name + 1..behind)?.strip_suffix(b"\"")? == key.as_bytes() {
            return Some(value);
        }
        let (comma, b',') = token(end(value)?)? else { return None };
        at = comma;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(text: &str, step: usize) -> Result<(Vec<String>, ListHead), SplitError> {
        let mut splitter = Splitter::default();
        let mut items = Vec::new();
        for chunk in text.as_bytes().chunks(step) {
            splitter.push(chunk);
            while let Some(item) = splitter.next_item()? {
                items.push(String::from_utf8_lossy(&item).into_owned());
            }
        }
        Ok((items, splitter.finish()?))
    }

    #[test]
    fn metadata_is_found_before_and_behind_the_items() {
        let before = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"abc","remainingItemCount":3},"items":[{"a":"}\"]"},{"b":[{}]}]}"#;
        let behind = r#" { "apiVersion" : "x/v1", "items" : [ {"a":"}\"]"} , {"b":[{}]} ] , "kind":"L", "metadata":{"continue":"abc","remainingItemCount":3,"resourceVersion":"7","x":null} } "#;
        for text in [before, behind] {
            for step in [1, 2, 3, 7, 1000] {
                let (items, head) = split(text, step).unwrap_or_else(|e| unreachable!("{e} {step}"));
                assert_eq!(items, [r#"{"a":"}\"]"}"#, r#"{"b":[{}]}"#]);
                let resource_version = "7".into();
                assert_eq!(
                    head,
                    ListHead { continue_token: "abc".into(), remaining: Some(3), resource_version }
                );
            }
        }
    }

    #[test]
    fn an_empty_list_has_no_items() {
        for text in [
            r#"{"items":[],"metadata":{}}"#,
            r#"{"items":null,"metadata":null}"#,
            r#"{"metadata":{"continue":""},"items":null}"#,
            r#"{"items" : null , "metadata":{}}"#,
        ] {
            assert_eq!(
                split(text, 1).unwrap_or_else(|e| unreachable!("{e}")),
                (Vec::new(), ListHead::default())
            );
        }
    }

    #[test]
    fn an_answer_without_items_is_no_empty_list() {
        let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":503}"#;
        for text in ["{}", r#"{"metadata":{"continue":""}}"#, status] {
            assert!(matches!(split(text, 1), Err(SplitError::NoItems)), "{text}");
        }
        for text in [r#"{"items":{}}"#, r#"{"items":"none"}"#, r#"{"items":0}"#] {
            assert!(matches!(split(text, 1), Err(SplitError::Syntax { .. })), "{text}");
        }
    }

    #[test]
    fn what_is_cut_off_is_never_taken_for_a_whole_list() {
        let text = r#"{"metadata":{},"items":[{"a":1},{"b":"\\"}]}"#;
        for end in 0..text.len() {
            assert!(split(&text[..end], 1000).is_err(), "{}", &text[..end]);
        }
        for noise in ["[]", "x", "{\"items\":[5]}", "<html>", "{5:1}"] {
            assert!(split(noise, 1000).is_err(), "{noise}");
        }
    }

    #[test]
    fn a_value_is_left_out_where_its_keys_lead_and_nowhere_else() {
        let keys = ["metadata", "managedFields"];
        for (object, left) in [
            (
                r#"{"metadata":{"managedFields":[{"a":"]}"}],"name":"x"}}"#,
                r#"{"metadata":{"managedFields":null,"name":"x"}}"#,
            ),
            (
                r#"{"a":1, "metadata" : { "b":{"managedFields":2} , "managedFields" : 3 } }"#,
                r#"{"a":1, "metadata" : { "b":{"managedFields":2} , "managedFields" : null} }"#,
            ),
            (r#"{"metadata":{"labels":{"managedFields":"x"}}}"#, ""),
            (r#"{"managedFields":[1],"metadata":{"n":"managedFields\":"}}"#, ""),
            (r#"{"spec":{"metadata":{"managedFields":1}}}"#, ""),
            (r#"{"metadata":[{"managedFields":1}]}"#, ""),
            (r#"{"metadata":{"managedFields":[1"#, ""),
            ("{}", ""),
            ("", ""),
        ] {
            let found = String::from_utf8(without(object.as_bytes(), &keys).into_owned()).unwrap();
            assert_eq!(found, if left.is_empty() { object } else { left });
        }
    }

    proptest! {
        #[test]
        fn what_is_left_out_is_null_and_the_rest_is_the_same(
            names in prop::collection::vec("[a-z\"\\\\{}\\[\\],: é\n]{0,12}", 0..6), at in 0_usize..6
        ) {
            let of = |deep: serde_json::Value| {
                let all = names.iter().map(|name| (name.clone(), deep.clone()));
                all.collect::<serde_json::Map<String, serde_json::Value>>()
            };
            let mut object = of(of(serde_json::json!([1.5, {"x": names.clone()}, "}"])).into());
            let key = names.get(at).cloned().unwrap_or_default();
            prop_assume!(!key.contains(['"', '\\', '\n']));
            let text = serde_json::Value::from(object.clone()).to_string();
            let left = without(text.as_bytes(), &[&key, &key]);
            if let Some(value) = object.get_mut(&key).and_then(|inner| inner.get_mut(&key)) {
                value.take();
            }
            prop_assert_eq!(serde_json::from_slice::<serde_json::Value>(&left).ok(), Some(object.into()));
        }

        #[test]
        fn items_come_out_as_they_went_in(texts in prop::collection::vec("[a-z\"\\\\{}\\[\\],: é\n]{0,12}", 0..6), step in 1_usize..40) {
            let items: Vec<serde_json::Value> =
                texts.iter().map(|t| serde_json::json!({"metadata": {"name": t}, "data": [t, {t.as_str(): 1.5}]})).collect();
            let text = serde_json::json!({"items": items, "metadata": {"continue": "t"}}).to_string();
            let (found, head) = split(&text, step).unwrap_or_else(|e| unreachable!("{e}"));
            prop_assert_eq!(found, items.iter().map(ToString::to_string).collect::<Vec<_>>());
            prop_assert_eq!(head.continue_token, "t");
        }

        #[test]
        fn noise_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut splitter = Splitter::default();
            splitter.push(&bytes);
            while let Ok(Some(_)) = splitter.next_item() {}
            let _ = without(&bytes, &["a", "b"]);
        }
    }
}
