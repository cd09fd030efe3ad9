//! Errors, and lists of names, as one line of text for logs, Events, statuses and output.

/// An error with its causes in one line, for logs and failure reasons.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = words(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = words(error);
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// The first few of many names, and how many more there are.
pub fn few(names: &[String]) -> String {
    const FEW: usize = 5;
    let shown = names.iter().take(FEW).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(FEW) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The API server's message, because kube's error prints the whole Status object.
fn words(error: &(dyn std::error::Error + 'static)) -> String {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => format!("{} ({})", status.message, status.code),
        _ => without_xml(&error.to_string()),
    }
}

/// The error code of a store's XML answer, because the answer may hold the signed request.
fn without_xml(text: &str) -> String {
    let Some((before, xml)) = text.split_once("<?xml") else { return text.to_owned() };
    let code =
        xml.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map(|(code, _)| code);
    format!("{}{}", before, code.unwrap_or_default()).trim_end_matches([':', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    #[test]
    fn of_a_stores_xml_only_the_code_is_told() {
        let answer = "403 Forbidden: <?xml version=\"1.0\"?>\n<Error><Code>SignatureDoesNotMatch</Code><StringToSign>x</StringToSign></Error>";
        assert_eq!(super::without_xml(answer), "403 Forbidden: SignatureDoesNotMatch");
        assert_eq!(super::without_xml("503: <?xml?>"), "503");
        assert_eq!(super::without_xml("plain"), "plain");
    }

    #[test]
    fn of_many_names_the_first_few_are_told() {
        let names = |count: usize| (1..=count).map(|i| format!("n{i}")).collect::<Vec<_>>();
        assert_eq!(super::few(&names(5)), "n1, n2, n3, n4, n5");
        assert_eq!(super::few(&names(7)), "n1, n2, n3, n4, n5 and 2 more");
    }
}
