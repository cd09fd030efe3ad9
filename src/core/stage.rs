//! The stages of a Backup whose objects are stored and which is not complete yet.

/// The phases of a Backup after its objects are stored. It holds no slot and no namespaces then.
pub const WAITING: &str = "WaitingForPluginOperations";
pub const WAITING_PARTIALLY_FAILED: &str = "WaitingForPluginOperationsPartiallyFailed";
pub const FINALIZING: &str = "Finalizing";
pub const FINALIZING_PARTIALLY_FAILED: &str = "FinalizingPartiallyFailed";

/// Whether the Backup waits for operations or is being completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Waiting,
    Finalizing,
}

impl Stage {
    /// `None`: the phase is none of these.
    pub fn of(phase: &str) -> Option<Self> {
        match phase {
            WAITING | WAITING_PARTIALLY_FAILED => Some(Self::Waiting),
            FINALIZING | FINALIZING_PARTIALLY_FAILED => Some(Self::Finalizing),
            _ => None,
        }
    }

    /// The phase of a Backup at this stage.
    pub fn phase(self, is_partially_failed: bool) -> &'static str {
        match (self, is_partially_failed) {
            (Self::Waiting, false) => WAITING,
            (Self::Waiting, true) => WAITING_PARTIALLY_FAILED,
            (Self::Finalizing, false) => FINALIZING,
            (Self::Finalizing, true) => FINALIZING_PARTIALLY_FAILED,
        }
    }
}
