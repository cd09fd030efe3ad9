//! Holds back listed pods that have hooks, for [`super::blocks`], with what they take along.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use berth_api::hook::{AnnotatedPod, MARK};
use berth_core::block::blocks;
use berth_core::hook::{HookRule, Hooks, PodId};
use berth_core::limits;
use berth_core::selection::ResourceType;
use bytes::Bytes;
use memchr::memmem;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::archive::{ArchiveItem, Batch};
use super::hooks::Tally;
use super::ledger::PageId;
use super::list::{ListError, ListedObject};
use super::log::{BackupLog, ResultsHeading};
use super::related::Related;
use super::volumes::PlannedClaim;
use super::volumes::files::FilePod;

/// Most pods that are held at one time, and most bytes of these and what they take along. When this
/// room is full, the list of pods waits, and so do the lists that wait for it.
const HELD: usize = 1024;
const ROOM: usize = 16 * 1024 * 1024;

/// A pod on its way to its hooks.
pub struct HeldPod {
    pub kind: Arc<ResourceType>,
    /// No page of a list: see [`PageId::beside`].
    pub page: PageId,
    pub item: ArchiveItem,
    pub id: PodId,
    pub hooks: Hooks,
    /// The container for hooks that name none.
    pub container: Option<String>,
    pub used: Used,
    /// Released when the pod is stored or left out.
    pub room: OwnedSemaphorePermit,
    /// Dropped when the pod is in the archive and its hooks have ended, for a caller that stores
    /// pods in order.
    pub over: Option<oneshot::Sender<Infallible>>,
}

/// What a pod uses.
#[derive(Default)]
pub struct Used {
    /// Names of its claims, and behind them those of the groups of these: pods that share a claim
    /// go through their hooks together.
    pub claims: Vec<String>,
    /// How many of these it does not use itself.
    pub grouped: usize,
    /// The claims and volumes to be stored while the pod is frozen. They are stored in no other
    /// way.
    pub with: Vec<Batch>,
    /// The claims whose volumes are snapshotted while the pod is frozen.
    pub cuts: Vec<PlannedClaim>,
    /// The volumes whose files are backed up while the pod is frozen.
    pub files: Option<FilePod>,
}

impl Used {
    /// The claims that the pod itself uses.
    fn own(&self) -> &[String] {
        let count = self.claims.len().saturating_sub(self.grouped);
        self.claims.get(..count).unwrap_or_default()
    }
}

/// Hands each claim whose volume is snapshotted to the first of these pods that itself uses it,
/// because pods that share a group may be too many for one block. Those of the first block would
/// take all of the group with them otherwise, while pods that use it are not frozen.
fn to_users(pods: &mut [HeldPod]) {
    let mut first = BTreeMap::<String, usize>::new();
    for (at, held) in pods.iter().enumerate() {
        for claim in held.used.own() {
            first.entry(claim.clone()).or_insert(at);
        }
    }
    let mut handed = Vec::new();
    for (at, held) in pods.iter_mut().enumerate() {
        for planned in std::mem::take(&mut held.used.cuts) {
            handed.push((first.get(&planned.item.name).copied().unwrap_or(at), planned));
        }
    }
    for (at, planned) in handed {
        if let Some(held) = pods.get_mut(at) {
            held.used.cuts.push(planned);
        }
    }
}

/// Marks the claims of groups that no group snapshot is to be taken of, because a pod that uses
/// some of the group is in another block, or, unless all pods of the namespace are here, may come
/// later.
fn set_apart(blocks: &mut [Vec<HeldPod>], are_all_here: bool) {
    let mut users = BTreeMap::<String, BTreeSet<usize>>::new();
    for (at, block) in blocks.iter().enumerate() {
        for claim in block.iter().flat_map(|held| held.used.own()) {
            users.entry(claim.clone()).or_default().insert(at);
        }
    }
    for (at, block) in blocks.iter_mut().enumerate() {
        for planned in block.iter_mut().flat_map(|held| &mut held.used.cuts) {
            let is_elsewhere = |claim: &String| match users.get(claim) {
                Some(of) => of.iter().any(|block| *block != at),
                None => !are_all_here,
            };
            if planned.group().is_some_and(|group| group.iter().any(is_elsewhere)) {
                planned.set_apart();
            }
        }
    }
}

/// What is known of a pod that has hooks.
pub struct Hooked {
    id: PodId,
    hooks: Hooks,
    container: Option<String>,
}

/// Takes pods with hooks out of what is listed.
pub struct PodHolder<'a> {
    entries: &'a [HookRule],
    log: &'a BackupLog,
    tally: &'a Tally,
    held: mpsc::Sender<Vec<HeldPod>>,
    room: Arc<Semaphore>,
    /// Pods of one namespace that use claims, because a later pod may use the same claims.
    waiting: Mutex<Vec<HeldPod>>,
}

impl<'a> PodHolder<'a> {
    /// Also returns the channel of blocks, which ends when the holder is dropped.
    pub fn new(
        entries: &'a [HookRule],
        log: &'a BackupLog,
        tally: &'a Tally,
    ) -> (Self, mpsc::Receiver<Vec<HeldPod>>) {
        let (held, pods) = mpsc::channel(HELD);
        let room = Arc::new(Semaphore::new(ROOM));
        (Self { entries, log, tally, held, room, waiting: Mutex::default() }, pods)
    }

    /// Whether a failed hook has kept the pod out of the backup already, possibly in an earlier
    /// run.
    pub fn has_left_out(&self, kind: &ResourceType, key: &str) -> bool {
        Related::Pod.is(kind) && self.tally.has_left_out(key)
    }

    /// `None`: the object is no pod, or has no hooks that can be run.
    pub fn hooked(&self, kind: &ResourceType, found: &ListedObject) -> Option<Hooked> {
        let may_have_some =
            || !self.entries.is_empty() || memmem::find(&found.json, MARK.as_bytes()).is_some();
        if !(Related::Pod.is(kind) && may_have_some()) {
            return None;
        }
        let read = serde_json::from_slice::<AnnotatedPod>(&found.json).map_err(|error| error.to_string());
        let read = read.and_then(|pod| match pod.hooks(self.entries) {
            Ok(hooks) => Ok((pod, hooks)),
            Err(faults) => Err(faults.to_string()),
        });
        match read {
            Ok((_, hooks)) if hooks.is_empty() => None,
            Ok((pod, hooks)) => Some(Hooked { id: pod.id(), container: pod.first_container(), hooks }),
            Err(why) => {
                let about =
                    found.namespace.as_deref().map_or(ResultsHeading::Cluster, ResultsHeading::Namespace);
                let message = format!(
                    "none of the hooks of pod {} is run, and it is stored as it is, because they cannot be read: {why}",
                    found.name
                );
                self.log.lasting_error(&about, "pods", &message);
                None
            }
        }
    }

    /// Whether the pod has hooks before it, which may freeze it. Logs nothing.
    pub fn has_hooks_before(&self, pod: &ListedObject) -> bool {
        let may_have_some = !self.entries.is_empty() || memmem::find(&pod.json, MARK.as_bytes()).is_some();
        let read = || serde_json::from_slice::<AnnotatedPod>(&pod.json).ok()?.hooks(self.entries).ok();
        may_have_some && read().is_some_and(|hooks| !hooks.pre.is_empty())
    }

    /// Sends a pod to its hooks: at once, or, if it uses claims, together with the pods that use
    /// the same claims. `page`: the page it came on. `in_order`: waits until the pod is stored and
    /// its hooks have ended.
    ///
    /// # Errors
    /// When the run takes no more pods.
    pub async fn hold(
        &self,
        kind: &Arc<ResourceType>,
        page: PageId,
        found: ListedObject,
        hooked: Hooked,
        used: Used,
        in_order: bool,
    ) -> Result<(), ListError> {
        let along = used.with.iter().flat_map(|batch| &batch.items);
        let along = along.chain(used.cuts.iter().map(|planned| &planned.item));
        let along: usize = along.map(|item| item.json.len()).sum();
        // At least so much that [`HELD`] small pods fill the room.
        let size = (found.json.len() + along).clamp(ROOM / HELD, ROOM);
        let room = self.make_room(u32::try_from(size).unwrap_or(u32::MAX), &hooked.id.namespace).await?;
        let ListedObject { json, namespace, name, lacks_type, .. } = found;
        // Copy it, so that the page it came in can be freed.
        let json = Bytes::copy_from_slice(&json);
        let (over, is_over) = in_order.then(oneshot::channel).unzip();
        let Hooked { id, hooks, container } = hooked;
        let held = HeldPod {
            kind: Arc::clone(kind),
            page: page.beside(),
            item: ArchiveItem { namespace, name, json, lacks_type },
            id,
            hooks,
            container,
            used,
            room,
            over,
        };
        if in_order || held.used.claims.is_empty() {
            self.send(vec![held]).await?;
        } else {
            let namespace = self.waiting.lock().first().map(|first| first.id.namespace.clone());
            if namespace.is_some_and(|namespace| namespace != held.id.namespace) {
                self.release().await?;
            }
            self.waiting.lock().push(held);
        }
        if let Some(is_over) = is_over {
            // Nothing is sent; the sender is dropped.
            let _ = is_over.await;
        }
        Ok(())
    }

    /// `namespace`: of the pod that the room is for.
    async fn make_room(&self, size: u32, namespace: &str) -> Result<OwnedSemaphorePermit, ListError> {
        if let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(size) {
            return Ok(room);
        }
        // Waiting pods hold the room, and would wait for ever.
        let are_all_here = self.waiting.lock().first().is_some_and(|first| first.id.namespace != namespace);
        self.send_waiting(are_all_here).await?;
        let room = Arc::clone(&self.room).acquire_many_owned(size).await;
        // The semaphore is never closed.
        room.map_err(|_| ListError::NobodyTakes)
    }

    /// Sends the waiting pods to their hooks, because no more pods of their namespace come.
    ///
    /// # Errors
    /// As [`PodHolder::hold`].
    pub async fn release(&self) -> Result<(), ListError> {
        self.send_waiting(true).await
    }

    /// `are_all_here`: no more pods of the namespace come.
    async fn send_waiting(&self, are_all_here: bool) -> Result<(), ListError> {
        let mut waiting = std::mem::take(&mut *self.waiting.lock());
        to_users(&mut waiting);
        let mut blocks = blocks(waiting, limits::BLOCK_PODS, |held: &HeldPod| held.used.claims.as_slice());
        set_apart(&mut blocks, are_all_here);
        for block in blocks {
            self.send(block).await?;
        }
        Ok(())
    }

    async fn send(&self, block: Vec<HeldPod>) -> Result<(), ListError> {
        self.held.send(block).await.map_err(|_| ListError::NobodyTakes)
    }
}

#[cfg(test)]
mod tests {
    use berth_core::hook::{Hook, OnError};
    use berth_core::label::Selector;
    use berth_core::namespace::NamespaceSet;
    use serde_json::{Value, json};

    use super::*;
    use crate::backup::volumes::RunVolumes;
    use crate::backup::volumes::outcomes::Outcomes;
    use crate::backup::volumes::tests::{grouped, planned};

    fn kind(resource: &str) -> Arc<ResourceType> {
        Arc::new(ResourceType {
            group: String::new(),
            version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            resource: resource.to_owned(),
            singular: "pod".to_owned(),
            short_names: Vec::new(),
            namespaced: true,
        })
    }

    fn pod(namespace: &str, name: &str, annotations: Value, phase: &str) -> ListedObject {
        let pod = json!({
            "metadata": {"name": name, "namespace": namespace, "uid": "u", "annotations": annotations},
            "spec": {"containers": [{"name": "main"}]}, "status": {"phase": phase},
        });
        ListedObject::parse(pod.to_string().into()).unwrap()
    }

    /// As a list of pods does: is it held?
    async fn hold(
        holder: &PodHolder<'_>,
        resource: &str,
        found: ListedObject,
        claims: &[&str],
    ) -> Result<bool, ListError> {
        let kind = kind(resource);
        let Some(hooked) = holder.hooked(&kind, &found) else { return Ok(false) };
        let claims = claims.iter().map(|claim| (*claim).to_owned()).collect();
        let used = Used { claims, ..Used::default() };
        holder.hold(&kind, PageId::default(), found, hooked, used, false).await.map(|()| true)
    }

    fn command() -> Value {
        json!({"pre.hook.backup.velero.io/command": "true"})
    }

    fn names(block: Vec<HeldPod>) -> Vec<String> {
        block.into_iter().map(|held| held.id.name).collect()
    }

    #[tokio::test]
    async fn pods_with_hooks_are_held_back_and_nothing_else_is() {
        let log = BackupLog::new(String::new());
        let tally = Tally::default();
        let (holder, mut held) = PodHolder::new(&[], &log, &tally);
        let odd =
            json!({"pre.hook.backup.velero.io/command": "true", "pre.hook.backup.velero.io/timeout": "soon"});
        for (resource, found, is_held) in [
            ("pods", pod("shop", "db", command(), "Running"), true),
            ("pods", pod("shop", "over", command(), "Failed"), false),
            ("pods", pod("shop", "plain", json!({}), "Running"), false),
            ("pods", pod("shop", "odd", odd, "Running"), false),
            ("podtemplates", pod("shop", "no-pod", command(), "Running"), false),
        ] {
            let name = found.name.clone();
            assert_eq!(hold(&holder, resource, found, &[]).await.unwrap(), is_held, "{name}");
        }
        let db = held.try_recv().unwrap().remove(0);
        assert_eq!((db.id.to_string().as_str(), db.container.as_deref()), ("shop/db", Some("main")));
        assert!(held.try_recv().is_err());
        assert_eq!(log.counts().errors, 1, "the odd one is told");
        drop(held);
        let nobody = hold(&holder, "pods", pod("shop", "db", command(), ""), &[]).await;
        assert!(matches!(nobody, Err(ListError::NobodyTakes)));
    }

    #[tokio::test]
    async fn where_the_spec_has_hooks_every_pod_is_looked_at() {
        let log = BackupLog::new(String::new());
        let hook = Hook {
            name: "h".to_owned(),
            container: None,
            command: vec!["true".to_owned()],
            on_error: OnError::Continue,
            timeout: berth_core::hook::TIMEOUT,
        };
        let entries = [HookRule {
            namespaces: NamespaceSet::new(Vec::new(), Vec::new()),
            takes_pods: true,
            selector: Selector::default(),
            pre: vec![Arc::new(hook)],
            post: Vec::new(),
        }];
        let tally = Tally::default();
        let (holder, mut held) = PodHolder::new(&entries, &log, &tally);
        assert!(hold(&holder, "pods", pod("shop", "db", Value::Null, "Running"), &[]).await.unwrap());
        assert_eq!(held.try_recv().unwrap()[0].hooks.pre.len(), 1);
    }

    #[tokio::test]
    async fn pods_that_share_a_claim_come_in_one_block_when_their_namespace_is_through() {
        let log = BackupLog::new(String::new());
        let tally = Tally::default();
        let (holder, mut held) = PodHolder::new(&[], &log, &tally);
        for (namespace, name, claims) in [
            ("a", "one", &["x"][..]),
            ("a", "two", &["y"]),
            ("a", "plain", &[]),
            ("a", "three", &["z", "x"]),
            ("b", "four", &["x"]),
        ] {
            let found = pod(namespace, name, command(), "");
            assert!(hold(&holder, "pods", found, claims).await.unwrap());
            if name == "three" {
                assert_eq!(names(held.try_recv().unwrap()), ["plain"], "what uses none waits for nobody");
                assert!(held.try_recv().is_err(), "another one may use the same");
            }
        }
        assert_eq!(names(held.try_recv().unwrap()), ["one", "three"]);
        assert_eq!(names(held.try_recv().unwrap()), ["two"]);
        assert!(held.try_recv().is_err());
        holder.release().await.unwrap();
        assert_eq!(names(held.try_recv().unwrap()), ["four"], "claims are of a namespace");
    }

    /// The first pod brings all claims of a group, and each pod uses one of them.
    #[tokio::test]
    async fn of_a_group_whose_pods_are_too_many_for_a_block_each_claim_is_in_a_block_of_its_users() {
        let log = BackupLog::new(String::new());
        let (tally, outcomes) = (Tally::default(), Outcomes::default());
        let (volumes, _jobs) = RunVolumes::idle(Vec::new(), &log, &outcomes);
        for count in [limits::BLOCK_PODS, limits::BLOCK_PODS + 1] {
            let (holder, mut held) = PodHolder::new(&[], &log, &tally);
            let claims: Vec<String> = (0..count).map(|at| format!("c{at}")).collect();
            for at in 0..count {
                let found = pod("a", &format!("p{at}"), command(), "");
                let kind = kind("pods");
                let hooked = holder.hooked(&kind, &found).unwrap();
                // Its own is the first one.
                let mut used = Used { claims: vec![format!("c{at}")], ..Used::default() };
                used.claims.extend(claims.iter().filter(|claim| **claim != format!("c{at}")).cloned());
                used.grouped = count - 1;
                if at == 0 {
                    // One is used by no pod that waits.
                    let all = claims.iter().map(String::as_str).chain(["of-none"]);
                    used.cuts = all.map(|claim| planned(&volumes, claim)).collect();
                }
                holder.hold(&kind, PageId::default(), found, hooked, used, false).await.unwrap();
            }
            holder.release().await.unwrap();
            let mut cut = Vec::new();
            while let Ok(block) = held.try_recv() {
                cut.push(block.iter().flat_map(|held| &held.used.cuts).count());
            }
            let mut expected = vec![limits::BLOCK_PODS + 1];
            if count > limits::BLOCK_PODS {
                expected.push(count - limits::BLOCK_PODS);
            }
            assert_eq!(cut, expected, "{count}");
        }
    }

    /// Or the pods of one block would be frozen while it is cut, and those of another one not.
    #[tokio::test]
    async fn claims_of_a_group_that_pods_of_several_blocks_use_or_may_use_are_apart() {
        let log = BackupLog::new(String::new());
        let (tally, outcomes) = (Tally::default(), Outcomes::default());
        let (volumes, _jobs) = RunVolumes::idle(Vec::new(), &log, &outcomes);
        // Pods that use claim `a`, whether one of them uses `b`, and whether more pods may come.
        for (users, is_used, may_come, is_together) in [
            (1, true, false, true),
            (1, false, false, true),
            (1, true, true, true),
            (1, false, true, false),
            (limits::BLOCK_PODS, true, false, true),
            (limits::BLOCK_PODS + 1, true, false, false),
        ] {
            let (holder, mut held) = PodHolder::new(&[], &log, &tally);
            let kind = kind("pods");
            for at in 0..users {
                let found = pod("app", &format!("p{at}"), command(), "");
                let hooked = holder.hooked(&kind, &found).unwrap();
                let mut used = Used { claims: vec!["a".to_owned()], ..Used::default() };
                if at == 0 {
                    used.claims.push("b".to_owned());
                    used.grouped = usize::from(!is_used);
                    used.cuts = vec![grouped(&volumes, "a"), grouped(&volumes, "b")];
                }
                holder.hold(&kind, PageId::default(), found, hooked, used, false).await.unwrap();
            }
            holder.send_waiting(!may_come).await.unwrap();
            let mut together = Vec::new();
            while let Ok(block) = held.try_recv() {
                let cuts = block.iter().flat_map(|held| &held.used.cuts);
                together.extend(cuts.map(|planned| planned.group().is_some()));
            }
            assert_eq!(together, [is_together; 2], "{users} {is_used} {may_come}");
        }
    }

    /// They would wait for each other otherwise: one for others of its namespace, and these for
    /// room.
    #[tokio::test]
    async fn where_no_room_is_left_those_that_wait_for_others_go_on() {
        let log = BackupLog::new(String::new());
        let tally = Tally::default();
        let (holder, mut held) = PodHolder::new(&[], &log, &tally);
        for i in 0..HELD {
            let found = pod("a", &format!("p{i}"), command(), "");
            assert!(hold(&holder, "pods", found, &[&format!("c{i}")]).await.unwrap());
        }
        assert!(held.try_recv().is_err());
        let story = async {
            let first = held.recv().await.unwrap();
            assert_eq!(names(first), ["p0"]);
        };
        let found = pod("a", "late", command(), "");
        let (late, ()) = tokio::join!(hold(&holder, "pods", found, &["late"]), story);
        assert!(late.unwrap());
    }
}
