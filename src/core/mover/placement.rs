//! The values by which the pod of a data mover is placed: its owner, and its constraints.

use super::MoverKind;
use crate::affinity::{Term, Toleration};

/// The data mover (DataUpload, DataDownload, …) that owns a pod.
#[derive(Clone, Copy, Debug)]
pub struct MoverRef<'a> {
    pub kind: MoverKind,
    pub name: &'a str,
    pub uid: &'a str,
}

/// What the spec of a data mover's pod says about where the pod may run.
#[derive(Clone, Debug, Default)]
pub struct PodConstraints {
    /// Terms of the required node affinity. Empty: the pod has none.
    pub terms: Vec<Term>,
    pub tolerations: Vec<Toleration>,
    /// The `nodeSelector` for `kubernetes.io/hostname`.
    pub selected_node: Option<String>,
    /// The node that the pod is bound to already.
    pub node: Option<String>,
}
