//! The fence of a job. It writes to its object only on the version that it has seen, and stops
//! writing when another process has started on the object, for example after an agent's pod was
//! removed by force while its process lived on.

use std::fmt::Debug;
use std::time::Duration;

use berth_api::keys::CARRIER;
use berth_api::velero::DataMover;
use berth_core::mover::MoverKind;
use berth_core::pod_volume::others::SIGN;
use kube::Resource;
use kube::api::Api;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use crate::pace::paced;
use crate::write::{Write, WriteResult, patch};

/// How often a job that has nothing to write reads its object.
const LOOK: Duration = Duration::from_secs(10);
/// A restore stops if it could not check for this long that the object is still its own: another
/// process may have started on it, and the pod may already use the volume, for example when this
/// process' token is no longer accepted. A backup goes on, because the lock of the repository
/// protects its snapshot.
const UNSEEN: Duration = Duration::from_secs(60);
/// Attempts of one write, because others write the object, too.
const TRIES: u32 = 3;

/// The result of a write, or of a look at the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fenced {
    Written,
    /// Nothing was written, as far as is known. The object is still the job's.
    Unwritten,
    /// Nothing was written, and for too long it was not possible to check whose the object is.
    Unseen,
    /// The object has ended or is gone, or another process works on it.
    Lost,
}

pub struct Fence<'a, K> {
    api: &'a Api<K>,
    /// The object as it was last written or read.
    object: K,
    /// The value of [`CARRIER`] while the object is the job's.
    id: &'a str,
    /// When the API server was last asked for the object.
    looked: Instant,
    /// When the object was last known to be the job's.
    seen: Instant,
    /// When it was last written.
    written: Instant,
}

impl<'a, K> Fence<'a, K>
where
    K: DataMover + Clone + Debug + DeserializeOwned,
{
    /// `begun`: the object as the job's first write returned it.
    pub fn new(api: &'a Api<K>, begun: K, id: &'a str) -> Self {
        let now = Instant::now();
        Self { api, object: begun, id, looked: now, seen: now, written: now }
    }

    /// Is it time to write that the job lives? A write that fails is not tried again at once.
    pub fn is_quiet(&self) -> bool {
        self.written.elapsed() >= SIGN && self.looked.elapsed() >= paced(LOOK)
    }

    pub async fn write(&mut self, change: &Value) -> Fenced {
        for _ in 0..TRIES {
            self.looked = Instant::now();
            match patch(self.api, Write::on(&self.object), change.clone()).await {
                WriteResult::Written(object) => {
                    self.saw(object);
                    self.written = self.seen;
                    return Fenced::Written;
                }
                WriteResult::Gone(_) => return Fenced::Lost,
                WriteResult::Refused(_) | WriteResult::TimedOut => return self.unwritten(),
                WriteResult::Conflict(_) => {
                    let found = self.look().await;
                    if found != Fenced::Unwritten {
                        return found;
                    }
                }
            }
        }
        Fenced::Unwritten
    }

    fn saw(&mut self, object: K) {
        self.object = object;
        self.seen = Instant::now();
    }

    fn unwritten(&self) -> Fenced {
        let is_restore = matches!(K::KIND, MoverKind::PodVolumeRestore | MoverKind::DataDownload);
        if is_restore && self.seen.elapsed() >= paced(UNSEEN) { Fenced::Unseen } else { Fenced::Unwritten }
    }

    /// Checks that the object is still the job's, if nothing was written or read for a while.
    pub async fn glance(&mut self) -> Fenced {
        if self.looked.elapsed() < paced(LOOK) { Fenced::Unwritten } else { self.look().await }
    }

    async fn look(&mut self) -> Fenced {
        self.looked = Instant::now();
        let name = self.object.meta().name.as_deref().unwrap_or_default();
        let answer = self.api.get_opt(name).await;
        match answer {
            Ok(Some(found)) if self.is_of_job(&found) => {
                self.saw(found);
                Fenced::Unwritten
            }
            Ok(_) => Fenced::Lost,
            // The next look may succeed.
            Err(_) => self.unwritten(),
        }
    }

    fn is_of_job(&self, found: &K) -> bool {
        found.meta().uid == self.object.meta().uid
            && !found.phase().is_final()
            && !is_of_another(found, self.id)
    }
}

/// Has another job started on the object since?
pub fn is_of_another(object: &impl Resource, id: &str) -> bool {
    let last = object.meta().annotations.as_ref().and_then(|annotations| annotations.get(CARRIER));
    last.is_some_and(|last| last != id)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use berth_api::velero::PodVolumeRestore;
    use berth_pod_volumes::Fault;
    use berth_test_scripted::{Scripted, get, patch as patching};
    use serde_json::json;
    use tokio::time::sleep;

    use super::super::super::concurrency::Places;
    use super::super::tests::job;
    use super::super::{End, EndWrite, Job, PROGRESS};
    use super::*;

    const PATH: &str = "/apis/velero.io/v1/namespaces/velero/podvolumerestores/r";

    fn restore(version: &str, carrier: &str) -> Value {
        json!({
            "apiVersion": "velero.io/v1", "kind": "PodVolumeRestore",
            "metadata": {
                "name": "r", "namespace": "velero", "uid": "u", "resourceVersion": version,
                "annotations": {CARRIER: carrier},
            },
            "spec": {}, "status": {"phase": "InProgress"},
        })
    }

    async fn carried(job: &Job, work: impl Future<Output = anyhow::Result<End>>) -> EndWrite {
        let object: PodVolumeRestore = serde_json::from_value(restore("7", "n0/dead")).unwrap();
        job.carry(&object, work).await
    }

    #[tokio::test(start_paused = true)]
    async fn every_write_of_a_job_is_on_the_version_that_it_has_seen() {
        let api = Scripted::new();
        let job = job(&api, &Places::new(1, Arc::default()));
        let api = api
            .next(patching(PATH).answers(restore("8", &job.id)))
            .next(patching(PATH).answers(restore("9", &job.id)))
            // Another client has written the object meanwhile.
            .next(patching(PATH).refuses(409))
            .next(get(PATH).answers(restore("11", &job.id)))
            .next(patching(PATH).answers(restore("12", &job.id)))
            // The process is told to stop.
            .next(patching(PATH).refuses(409))
            .next(get(PATH).answers(restore("14", &job.id)))
            .next(patching(PATH).answers(restore("15", &job.id)));
        let work = async {
            for waits_for in ["somebody", ""] {
                waits_for.clone_into(&mut job.waits_for.lock());
                sleep(3 * PROGRESS).await;
            }
            job.stop.cancel();
            Err(anyhow::Error::from(Fault::Canceled))
        };
        assert_eq!(carried(&job, work).await, EndWrite::Done);
        let writes = api.writes();
        let versions = writes.iter().map(|write| write.body["metadata"]["resourceVersion"].as_str());
        let wanted = ["7", "8", "9", "11", "12", "14"].map(Some);
        assert_eq!(versions.collect::<Vec<_>>(), wanted);
    }

    /// It would write the volume at the same time as the next process, or while the pod already
    /// uses it.
    #[tokio::test(start_paused = true)]
    async fn a_restore_that_another_process_carries_stops_and_writes_nothing_more() {
        let mut ended = restore("9", "");
        ended["metadata"]["annotations"] = Value::Null;
        ended["status"]["phase"] = json!("Failed");
        let lost = [(restore("9", "n1/next"), EndWrite::OfAnother), (ended, EndWrite::Done)];
        for tells in [true, false] {
            for (found, wanted) in lost.clone() {
                let api = Scripted::new();
                let job = job(&api, &Places::new(1, Arc::default()));
                let api = api.next(patching(PATH).answers(restore("8", &job.id)));
                let api = if tells { api.next(patching(PATH).refuses(409)) } else { api };
                let api = api.next(get(PATH).answers(found.clone())).next(get(PATH).answers(found));
                let work = async {
                    if tells {
                        "somebody".clone_into(&mut job.waits_for.lock());
                    }
                    let begun = Instant::now();
                    while !job.watched.is_canceled() {
                        assert!(begun.elapsed() < 2 * LOOK, "it would never stop");
                        sleep(PROGRESS).await;
                    }
                    // The write at its end.
                    job.waits_for.lock().clear();
                    sleep(3 * PROGRESS).await;
                    Err(anyhow::Error::from(Fault::Canceled))
                };
                assert_eq!(carried(&job, work).await, wanted);
                assert_eq!(api.writes().len(), 1 + usize::from(tells));
            }
        }
    }

    /// The pod was removed by force, so its token is no longer accepted.
    #[tokio::test(start_paused = true)]
    async fn a_restore_that_nobody_answers_for_stops_and_is_left_to_be_begun_again() {
        let api = Scripted::new();
        let job = job(&api, &Places::new(1, Arc::default()));
        let api = api.always(get(PATH).refuses(401)).always(patching(PATH).refuses(401));
        let api = api.once(patching(PATH).answers(restore("8", &job.id)));
        let work = async {
            let begun = Instant::now();
            while !job.watched.is_canceled() {
                assert!(begun.elapsed() < UNSEEN + 2 * LOOK, "it would never stop");
                sleep(PROGRESS).await;
            }
            assert!(begun.elapsed() >= UNSEEN, "an API server that starts again would stop it");
            Err(anyhow::Error::from(Fault::Canceled))
        };
        assert_eq!(carried(&job, work).await, EndWrite::Failed);
        let told = api
            .writes()
            .iter()
            .filter(|write| !write.body["status"]["completionTimestamp"].is_null())
            .count();
        assert_eq!(told, 0, "nobody canceled it");
    }
}
