//! Commands and their flags, as clap has them.

use clap::{Arg, Command, CommandFactory};

use super::{code, head, sentence, table, wrap};
use crate::args::Args;

pub fn page() -> String {
    let intro = "Every command and its flags. The default of a flag is what counts where the flag is not given; no default \
        means that nothing is set, or what the meaning says.";
    let root = Args::command();
    let mut text = head("Commands and flags", intro);
    for command in root.get_subcommands() {
        describe(&mut text, root.get_name(), &[], command);
    }
    text.truncate(text.trim_end().len());
    text + "\n"
}

/// `inherited`: commands above this one whose flags it takes as well.
fn describe(text: &mut String, parent: &str, inherited: &[&str], command: &Command) {
    if command.is_hide_set() {
        return;
    }
    let path = format!("{parent} {}", command.get_name());
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
    *text += &format!("## `{path}`\n\n");
    if let Some(about) = about {
        *text += &format!("{}\n\n", wrap(&sentence(&about)));
    }
    if !inherited.is_empty() {
        let above = inherited.iter().map(|path| code(path)).collect::<Vec<_>>().join(" and ");
        *text += &format!("It takes the flags of {above} as well.\n\n");
    }
    let shown: Vec<&Arg> = command.get_arguments().filter(|arg| !arg.is_hide_set()).collect();
    if !shown.is_empty() {
        let rows = shown.iter().map(|arg| vec![code(&name(arg)), default(arg), meaning(arg)]);
        *text += &table(&["flag", "default", "meaning"], rows);
        text.push('\n');
    }
    let mut inherited = inherited.to_vec();
    if shown.iter().any(|arg| arg.is_global_set()) {
        inherited.push(&path);
    }
    for command in command.get_subcommands() {
        describe(text, &path, &inherited, command);
    }
}

/// As it is typed: `--output OUTPUT, -o`, or `NAMES…`.
pub(super) fn name(arg: &Arg) -> String {
    let id = || arg.get_id().as_str().to_uppercase();
    let value = arg.get_value_names().and_then(|names| names.first()).map_or_else(id, ToString::to_string);
    let Some(long) = arg.get_long() else {
        let is_list = matches!(arg.get_action(), clap::ArgAction::Append);
        return if is_list { format!("{value}…") } else { value };
    };
    let value = match (arg.get_action().takes_values(), arg.is_require_equals_set()) {
        (false, _) => String::new(),
        (true, false) => format!(" {value}"),
        (true, true) => format!("[={value}]"),
    };
    let short = arg.get_short().map(|short| format!(", -{short}")).unwrap_or_default();
    format!("--{long}{value}{short}")
}

/// As a usage shows what is no flag.
pub(super) fn operand(arg: &Arg) -> String {
    if default(arg) == "required" { name(arg) } else { format!("[{}]", name(arg)) }
}

pub(super) fn default(arg: &Arg) -> String {
    let defaults = arg.get_default_values();
    if !arg.get_action().takes_values() || defaults.is_empty() {
        // A list that is wanted unless something else is given is wanted all the same. What stands
        // for a name that is not given, its meaning says.
        let has_default = arg.get_help().is_some_and(|help| help.to_string().contains("Default:"));
        let is_wanted = arg.is_required_set() || (arg.is_positional() && !has_default);
        return if is_wanted { "required".to_owned() } else { String::new() };
    }
    let defaults: Vec<_> = defaults.iter().map(|value| value.to_string_lossy()).collect();
    code(&defaults.join(","))
}

pub(super) fn meaning(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut parts = vec![sentence(&help)];
    let values: Vec<String> = if arg.get_action().takes_values() {
        let shown = arg.get_possible_values().into_iter().filter(|value| !value.is_hide_set());
        let told = |value: clap::builder::PossibleValue| match value.get_help() {
            Some(help) => {
                let help = help.to_string();
                format!("{} ({})", code(value.get_name()), help.trim_end_matches('.'))
            }
            None => code(value.get_name()),
        };
        shown.map(told).collect()
    } else {
        Vec::new()
    };
    if !values.is_empty() {
        parts.push(format!("One of: {}.", values.join(", ")));
    }
    if let Some(variable) = arg.get_env() {
        parts.push(format!("Environment variable: `{}`.", variable.to_string_lossy()));
    }
    parts.retain(|part| !part.is_empty());
    parts.join(" ")
}
