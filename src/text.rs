//! Errors, and lists of names, as one line of text for logs, Events, statuses and output.

use std::borrow::Cow;

/// Characters of an error. Those of stores quote the whole answer.
const LONGEST: usize = 8 << 10;

/// Text of others for a terminal: of a control character its escape is told, so that no text moves
/// the cursor, changes colours, or hides what stands beside it.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, &[])
}

/// The same, but for those that are `kept`.
pub fn escaped<'a>(text: &'a str, kept: &[char]) -> Cow<'a, str> {
    let is_escaped = |c: char| is_control(c) && !kept.contains(&c);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut told = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_escaped(c) { told.extend(c.escape_default()) } else { told.push(c) }
    }
    Cow::Owned(told)
}

/// JSON as other JSON that says the same and has escapes for such characters, which stand nowhere
/// but in its strings. Line feeds between its tokens stay.
pub fn escaped_json(json: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| is_control(c) && !matches!(c, '\n' | '\t');
    if !json.contains(is_escaped) {
        return Cow::Borrowed(json);
    }
    let mut told = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        // None of them takes more than four digits.
        if is_escaped(c) { told.push_str(&format!("\\u{:04x}", u32::from(c))) } else { told.push(c) }
    }
    Cow::Owned(told)
}

/// Characters that control a terminal. Those without width, and those that turn the direction of
/// what follows them, hide text, too.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// An error with its causes in one line, for logs, failure reasons and terminals: what a server
/// says is escaped, and keeps its lines and tabs.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    // What the API server says is its last word: what kube has as the cause says it again. So does
    // the cause of a failed authentication, which may quote a token.
    let has_more = |error: &(dyn std::error::Error + 'static)| {
        !matches!(error.downcast_ref(), Some(kube::Error::Api(_))) && !error.is::<kube::client::AuthError>()
    };
    let mut text = words(error);
    let mut cause = error.source().filter(|_| has_more(error));
    while let Some(error) = cause {
        let more = words(error);
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source().filter(|_| has_more(error));
    }
    match escaped(&text, &['\n', '\t']) {
        Cow::Borrowed(_) => text,
        Cow::Owned(told) => told,
    }
}

/// The beginning of a text that somebody else may have written, as a store its answer.
pub fn beginning(text: &str, characters: usize) -> Cow<'_, str> {
    match text.char_indices().nth(characters) {
        Some((end, _)) => Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default())),
        None => Cow::Borrowed(text),
    }
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
        Some(kube::Error::Api(status)) => {
            let said = if status.message.is_empty() { &status.reason } else { &status.message };
            format!("{said} ({})", status.code)
        }
        _ => without_credentials(&without_xml(&beginning(&error.to_string(), LONGEST))),
    }
}

/// kube quotes the environment and the output of the program that the kubeconfig names for
/// credentials, and the lines of a kubeconfig around a fault in it. Tokens and passwords stand
/// there, and errors end in the logs of pipelines. So only the failure is told, and the place of
/// the fault.
fn without_credentials(text: &str) -> String {
    const YAML: &str = "failed to parse kubeconfig YAML: ";
    const PROGRAM: &str = "the program that the kubeconfig names for credentials";
    if let Some((before, _)) = text.split_once("auth exec command '") {
        return format!("{before}{PROGRAM} failed");
    }
    if let Some((before, _)) = text.split_once("failed to parse auth exec output") {
        return format!("{before}{PROGRAM} printed no ExecCredential");
    }
    match text.split_once(YAML) {
        Some((before, fault)) => format!("{before}{YAML}{}", fault.lines().next().unwrap_or_default()),
        None => text.to_owned(),
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
    fn what_a_server_says_steers_no_terminal() {
        let said: kube::core::Status = serde_json::from_value(serde_json::json!({
            "kind": "Status", "status": "Failure", "code": 403, "message": "no \u{1b}[2J\u{9b}31m\rberth: ok\n\tmore",
        }))
        .unwrap();
        let error = anyhow::Error::new(kube::Error::Api(said.into())).context("a \u{7}bell");
        let told = super::chain(error.as_ref());
        let wanted = "a \\u{7}bell: no \\u{1b}[2J\\u{9b}31m\\rberth: ok\n\tmore (403)";
        assert_eq!(told, wanted, "what it says is told once");
        assert!(!told.contains(|c: char| c.is_control() && !matches!(c, '\n' | '\t')), "{told:?}");
    }

    #[test]
    fn no_error_quotes_what_a_kubeconfig_or_its_program_has_of_credentials() {
        use std::os::unix::process::ExitStatusExt as _;
        use std::process::{ExitStatus, Output};

        use kube::client::AuthError;
        use kube::config::Kubeconfig;
        let failed = || AuthError::AuthExecRun {
            cmd: "PASSWORD=\"s3cret\" \"login\"".to_owned(),
            out: Box::new(Output {
                status: ExitStatus::from_raw(256),
                stdout: b"s3cret".to_vec(),
                stderr: b"s3cret".to_vec(),
            }),
        };
        let file =
            "apiVersion: v1\nkind: Config\nusers:\n- name: u\n  user:\n    token: s3cret\n    exec: 5\n";
        let read = Kubeconfig::from_yaml(file).map(drop);
        let printed = serde_saphyr::from_str::<Vec<u8>>("token: s3cret").map(drop);
        let errors = [
            (anyhow::Error::new(kube::Error::Auth(failed())), "for credentials failed"),
            (anyhow::Error::new(kube::Error::Service(Box::new(failed()))), "for credentials failed"),
            (anyhow::Error::new(read.unwrap_err()), "failed to parse kubeconfig YAML: "),
            (
                anyhow::Error::new(AuthError::AuthExecParse(Box::new(printed.unwrap_err()))),
                "printed no ExecCredential",
            ),
        ];
        for (error, wanted) in errors {
            let told = super::chain(error.context("the cluster cannot be asked").as_ref());
            assert!(told.starts_with("the cluster cannot be asked: ") && told.contains(wanted), "{told}");
            assert!(!told.contains("s3cret"), "{told}");
        }
    }

    #[test]
    fn an_error_quotes_so_much_of_an_answer_and_no_more() {
        let error = anyhow::anyhow!("400: {}", "é".repeat(2 << 20)).context("the store cannot be read");
        let told = super::chain(error.as_ref());
        assert!(
            told.starts_with("the store cannot be read: 400: é") && told.ends_with("é…"),
            "{}",
            told.len()
        );
        assert!(told.chars().count() < 9000, "{}", told.len());
        assert_eq!(super::beginning("abc", 3), "abc");
        assert_eq!(super::beginning("abcd", 3), "abc…");
    }

    #[test]
    fn of_many_names_the_first_few_are_told() {
        let names = |count: usize| (1..=count).map(|i| format!("n{i}")).collect::<Vec<_>>();
        assert_eq!(super::few(&names(5)), "n1, n2, n3, n4, n5");
        assert_eq!(super::few(&names(7)), "n1, n2, n3, n4, n5 and 2 more");
    }
}
