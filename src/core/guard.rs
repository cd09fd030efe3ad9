//! Who may change which fields of a Backup. Backups have no status subresource, so without these
//! rules everyone who may write a Backup could give it a position, a phase, or another spec while
//! it waits.
//!
//! The same rules stand as a ValidatingAdmissionPolicy in `manifests/webhook/guard.yaml`, so that
//! they hold while berth is down. A test compares the two, case by case.

/// The roles of a caller. One identity may have several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// Sets positions, and the phase ReadyToStart.
    pub queue: bool,
    /// Runs backups that are ReadyToStart.
    pub executor: bool,
    /// Deletes, expires and syncs finished backups, and creates those of schedules.
    pub lifecycle: bool,
    /// May `update` the virtual subresource `backups/queue`.
    pub operator: bool,
    /// May `update` Backups, not only `patch` them.
    pub editor: bool,
}

impl Roles {
    /// Is the caller a component of the backup system?
    fn is_served(self) -> bool {
        self.queue || self.executor || self.lifecycle
    }
}

/// One write to a Backup, reduced to what the rules need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupChange<'a> {
    /// The stored phase; `None` on create.
    pub from: Option<&'a str>,
    pub to: &'a str,
    pub status_changed: bool,
    pub spec_changed: bool,
    /// Did one of berth's own annotations change: enqueued-at, resolved-namespaces, waits-since,
    /// frozen, scope, run, runs, publishing, schedule-uid? On create: is there one of them other
    /// than enqueued-at, which the webhook sets?
    pub marks_changed: bool,
    /// Did an annotation change that lets the Backup pass others or end them: first, supersede, a
    /// priority class that the writer may not `use`? On create: is there one?
    pub steered: bool,
    /// Did the hooks change? They run in pods with the rights of the executor. On create: are there
    /// any?
    pub hooks_changed: bool,
}

/// Why a write is refused: the field, and what to do instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldRefusal {
    pub field: &'static str,
    pub message: &'static str,
}

const STATUS: FieldRefusal = FieldRefusal {
    field: "status",
    message: "phase and position are written by berth alone: leave status out; to move, hold or end a backup use `berth queue`",
};
const ENDED: FieldRefusal = FieldRefusal {
    field: "status.phase",
    message: "a backup that has ended does not begin again: leave it as it is, or create another",
};
const SPEC: FieldRefusal = FieldRefusal {
    field: "spec",
    message: "what a backup asks for cannot change once it has a place: delete it and create another",
};
const MARKS: FieldRefusal = FieldRefusal {
    field: "metadata.annotations",
    message: "the berth.dev marks of a backup are written by berth alone",
};
const STEERING: FieldRefusal = FieldRefusal {
    field: "metadata.annotations",
    message: "berth.dev/first, berth.dev/supersede and priority classes want the verb update on backups/queue: bind the ClusterRole berth-operator",
};
const FINISHED: FieldRefusal = FieldRefusal {
    field: "status",
    message: "finished backups are brought by Velero, or by those who may update backups/queue: bind the ClusterRole berth-operator",
};
const HOOKS: FieldRefusal = FieldRefusal {
    field: "spec.hooks",
    message: "hooks run in pods with the rights of whoever runs the backup, so they want the verb update on backups, which none of berth's roles gives: annotate the pods instead, or have an administrator create this Backup",
};

fn is_new(phase: &str) -> bool {
    matches!(phase, "" | "New")
}

fn waits(phase: &str) -> bool {
    is_new(phase) || phase == "Queued"
}

/// Is this a final phase?
fn is_over(phase: &str) -> bool {
    matches!(phase, "Completed" | "PartiallyFailed" | "Failed" | "FailedValidation" | "Deleting")
}

/// Would a finished Backup begin again? A Velero with an outdated cache takes it for ReadyToStart,
/// and writes one of the two phases that follow without the resourceVersion it saw. It handles the
/// refusal well, because it reads the object again and leaves a finished one alone.
fn begins_again(from: &str, to: &str) -> bool {
    is_over(from) && from != to && (!is_over(to) || to == "FailedValidation")
}

/// Applies the rules to one write.
///
/// # Errors
/// A caller with these roles may not make this change.
pub fn judge(roles: Roles, change: &BackupChange<'_>) -> Result<(), FieldRefusal> {
    if change.steered && !(roles.is_served() || roles.operator) {
        return Err(STEERING);
    }
    if change.hooks_changed && !(roles.is_served() || roles.editor) {
        return Err(HOOKS);
    }
    let Some(from) = change.from else {
        // The mutating webhook has set the phase of a new Backup; finished ones are synced from a
        // store.
        if is_over(change.to) && !(roles.is_served() || roles.operator) {
            return Err(FINISHED);
        }
        if !(waits(change.to) || is_over(change.to) || roles.queue || roles.executor) {
            return Err(STATUS);
        }
        // These annotations say what a running backup blocks, what it reads, and in which pods
        // commands run.
        let forged = waits(change.to) && change.marks_changed && !(roles.queue || roles.executor);
        return if forged { Err(MARKS) } else { Ok(()) };
    };
    if begins_again(from, change.to) {
        return Err(ENDED);
    }
    if change.status_changed && !may_write_status(roles, from, change.to) {
        return Err(STATUS);
    }
    // Until the Backup has a position, its owner may change the spec. Later only the executor may,
    // which writes the resolved spec.
    if change.spec_changed && !is_new(from) && !(roles.executor || (roles.lifecycle && is_over(from))) {
        return Err(SPEC);
    }
    if change.marks_changed && !(roles.queue || roles.executor) {
        return Err(MARKS);
    }
    Ok(())
}

fn may_write_status(roles: Roles, from: &str, to: &str) -> bool {
    let queue = roles.queue && waits(from) && (waits(to) || to == "ReadyToStart" || is_over(to));
    let executor = roles.executor && !waits(from) && !waits(to);
    let lifecycle = roles.lifecycle && is_over(to) && (is_over(from) || to == "Deleting");
    queue || executor || lifecycle
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: Roles =
        Roles { queue: false, executor: false, lifecycle: false, operator: false, editor: false };
    const QUEUE: Roles = Roles { queue: true, ..NOBODY };
    const EXECUTOR: Roles = Roles { executor: true, ..NOBODY };
    const LIFECYCLE: Roles = Roles { lifecycle: true, ..NOBODY };

    fn moves(roles: Roles, from: &str, to: &str) -> bool {
        judge(roles, &BackupChange { from: Some(from), to, status_changed: true, ..BackupChange::default() })
            .is_ok()
    }

    #[test]
    fn each_role_moves_a_backup_only_along_its_own_part_of_the_way() {
        for (from, to, who) in [
            ("", "Queued", "q"),
            ("New", "Queued", "q"),
            ("Queued", "Queued", "q"),
            ("Queued", "ReadyToStart", "q"),
            ("Queued", "Failed", "q"),
            ("Queued", "Completed", "q"),
            ("Queued", "InProgress", ""),
            ("", "InProgress", ""),
            ("ReadyToStart", "Queued", ""),
            ("ReadyToStart", "InProgress", "e"),
            ("ReadyToStart", "FailedValidation", "e"),
            ("InProgress", "InProgress", "e"),
            ("InProgress", "Finalizing", "e"),
            ("Finalizing", "Completed", "e"),
            ("WaitingForPluginOperations", "Finalizing", "e"),
            ("FinalizingPartiallyFailed", "PartiallyFailed", "e"),
            ("InProgress", "WaitingForPluginOperations", "e"),
            ("WaitingForPluginOperations", "WaitingForPluginOperationsPartiallyFailed", "e"),
            ("WaitingForPluginOperationsPartiallyFailed", "FinalizingPartiallyFailed", "e"),
            // As a Velero would whose controllers of these phases are on.
            ("WaitingForPluginOperations", "PartiallyFailed", "e"),
            ("WaitingForPluginOperations", "Failed", "e"),
            ("WaitingForPluginOperations", "Queued", ""),
            ("Finalizing", "Deleting", "el"),
            ("InProgress", "Failed", "e"),
            ("InProgress", "Queued", ""),
            ("Completed", "Deleting", "el"),
            ("Queued", "Deleting", "ql"),
            ("InProgress", "Deleting", "el"),
            ("Completed", "Completed", "el"),
            ("Completed", "New", ""),
            ("Completed", "InProgress", ""),
            ("Completed", "FailedValidation", ""),
            ("FailedValidation", "FailedValidation", "el"),
            ("FailedValidation", "Deleting", "el"),
        ] {
            for (roles, letter) in [(QUEUE, 'q'), (EXECUTOR, 'e'), (LIFECYCLE, 'l')] {
                assert_eq!(moves(roles, from, to), who.contains(letter), "{letter}: {from} to {to}");
            }
            assert!(!moves(NOBODY, from, to), "{from} to {to}");
        }
    }

    #[test]
    fn what_has_ended_begins_again_for_nobody() {
        let everything = Roles { queue: true, executor: true, lifecycle: true, operator: true, editor: true };
        let begun = [
            "",
            "New",
            "Queued",
            "ReadyToStart",
            "InProgress",
            "WaitingForPluginOperations",
            "WaitingForPluginOperationsPartiallyFailed",
            "Finalizing",
            "FinalizingPartiallyFailed",
            // A phase that this build does not know.
            "Thinking",
        ];
        for from in ["Completed", "PartiallyFailed", "Failed", "FailedValidation", "Deleting"] {
            for to in begun {
                let change =
                    BackupChange { from: Some(from), to, status_changed: true, ..BackupChange::default() };
                for roles in [NOBODY, everything] {
                    assert_eq!(judge(roles, &change), Err(ENDED), "{roles:?}: {from} to {to:?}");
                }
            }
            assert!(moves(everything, from, "Deleting") && moves(everything, from, from), "{from}");
        }
        for from in &begun[4..] {
            assert!(moves(everything, from, "InProgress"), "{from} has not ended");
        }
    }

    #[test]
    fn people_may_do_everything_else() {
        let change = |from, to, spec_changed, marks_changed| {
            judge(NOBODY, &BackupChange { from, to, spec_changed, marks_changed, ..BackupChange::default() })
        };
        assert_eq!(change(None, "Queued", false, false), Ok(()));
        assert_eq!(change(None, "Completed", false, false), Err(FINISHED));
        assert_eq!(change(None, "ReadyToStart", false, false), Err(STATUS));
        assert_eq!(change(None, "InProgress", false, false), Err(STATUS));
        assert_eq!(change(Some("Queued"), "Queued", false, false), Ok(()));
        assert_eq!(change(Some("New"), "New", true, false), Ok(()));
        assert_eq!(change(Some("Queued"), "Queued", true, false), Err(SPEC));
        assert_eq!(change(Some("InProgress"), "InProgress", true, false), Err(SPEC));
        assert_eq!(change(Some("Queued"), "Queued", false, true), Err(MARKS));
    }
    #[test]
    fn order_and_hooks_are_for_those_who_have_the_right_and_for_schedules() {
        let operator = Roles { operator: true, ..NOBODY };
        let editor = Roles { editor: true, ..NOBODY };
        let steered = BackupChange { to: "Queued", steered: true, ..BackupChange::default() };
        let hooked = BackupChange { to: "Queued", hooks_changed: true, ..BackupChange::default() };
        let finished = BackupChange { to: "Completed", ..BackupChange::default() };
        for (change, refusal, allowed) in
            [(steered, STEERING, operator), (hooked, HOOKS, editor), (finished, FINISHED, operator)]
        {
            for roles in [NOBODY, operator, editor] {
                let expected = if roles == allowed { Ok(()) } else { Err(refusal) };
                assert_eq!(judge(roles, &change), expected, "{roles:?}");
            }
            for roles in [QUEUE, EXECUTOR, LIFECYCLE] {
                assert_eq!(judge(roles, &change), Ok(()), "{roles:?}");
            }
        }
        let later = BackupChange { from: Some("Queued"), ..steered };
        assert_eq!((judge(NOBODY, &later), judge(operator, &later)), (Err(STEERING), Ok(())));
    }
}
