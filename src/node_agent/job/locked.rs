//! Waits while another process holds the exclusive lock of a repository. The job gives its place to
//! others meanwhile, because one repository must not keep the volumes of all others on the node
//! waiting. A data mover pod also waits for the pod whose volume it restores.

use std::time::Duration;

use anyhow::ensure;
use berth_pod_volumes::Fault;
use tokio::time::{Instant, sleep};
use tracing::info;

use super::{Job, NotYet};
use crate::pace::paced;

/// How often a waiting job checks whether the lock is gone.
const LOOK: Duration = Duration::from_secs(10);
/// How long a job waits for the exclusive lock of others to be released.
const PATIENT: Duration = Duration::from_secs(300);
/// How long it waits for another agent to finish the maintenance of the repository, which takes
/// less.
const MAINTENANCE: Duration = Duration::from_secs(9000);
/// How long a data mover pod waits for the pod whose volume it restores, for example while the node
/// starts again. It keeps a data path of the node meanwhile.
const POD: Duration = Duration::from_secs(1800);
/// How often a job that waits for a place checks whether it is canceled.
const CANCELED: Duration = Duration::from_secs(1);

/// How long to wait for the holder of the lock. `None`: the error is not about a lock.
fn patience(error: &anyhow::Error) -> Option<Duration> {
    match error.downcast_ref::<Fault>()? {
        Fault::Locked { is_own: true, .. } => Some(MAINTENANCE),
        Fault::Locked { .. } => Some(PATIENT),
        _ => None,
    }
}

impl Job {
    /// Tries the work again each time that the lock in its way is gone, until all waits together
    /// take too long. Between two tries it holds nothing open, so that the volume can be unmounted.
    /// `look`: is the repository locked?
    pub(super) async fn unlocked<T, F, L>(
        &self,
        work: impl Fn() -> F,
        look: impl Fn() -> L,
    ) -> anyhow::Result<T>
    where
        F: Future<Output = anyhow::Result<T>>,
        L: Future<Output = anyhow::Result<()>>,
    {
        let mut waited = Duration::ZERO;
        loop {
            match work().await {
                Err(error) if patience(&error).is_some() => self.wait(error, &mut waited, &look).await?,
                done => return done,
            }
        }
    }

    async fn wait<L>(
        &self,
        mut error: anyhow::Error,
        waited: &mut Duration,
        look: &impl Fn() -> L,
    ) -> anyhow::Result<()>
    where
        L: Future<Output = anyhow::Result<()>>,
    {
        self.place.release();
        // Errors other than a lock are left to the next try to report.
        while let Some(patience) = patience(&error) {
            ensure!(!self.watched.is_canceled(), Fault::Canceled);
            if *waited >= patience {
                return Err(error);
            }
            info!(fault = %error, "waiting");
            let minutes = patience.as_secs() / 60;
            *self.waits_for.lock() = format!("waits for at most {minutes} minutes, because {error}");
            let begun = Instant::now();
            sleep(paced(LOOK)).await;
            self.watched.waits();
            let seen = look().await;
            *waited += begun.elapsed();
            match seen {
                Ok(()) => break,
                Err(now) => error = now,
            }
        }
        self.place_again().await?;
        self.waits_for.lock().clear();
        Ok(())
    }

    /// Waits for a place, as a job that has not started would.
    async fn place_again(&self) -> anyhow::Result<()> {
        "waits for a place among the volumes that are read or restored on this node at the same time, because others had its own while the repository was locked"
            .clone_into(&mut self.waits_for.lock());
        let mut back = std::pin::pin!(self.place.reacquire());
        loop {
            tokio::select! {
                () = &mut back => return Ok(()),
                () = sleep(CANCELED) => {
                    ensure!(!self.watched.is_canceled(), Fault::Canceled);
                    self.watched.waits();
                }
            }
        }
    }

    /// Tries the work again while the pod does not wait for its restore. If the process ended
    /// instead, it would be started again for ever, and keep a data path of the node from others.
    ///
    /// # Errors
    /// That of the work, or that the pod has not waited for too long.
    pub(in crate::node_agent) async fn once_pod_waits<T, F>(&self, work: impl Fn() -> F) -> anyhow::Result<T>
    where
        F: Future<Output = anyhow::Result<T>>,
    {
        let begun = Instant::now();
        let minutes = POD.as_secs() / 60;
        loop {
            match work().await {
                Err(error) if error.is::<NotYet>() => {
                    ensure!(!self.watched.is_canceled(), Fault::Canceled);
                    ensure!(
                        begun.elapsed() < POD,
                        "{error}, and has not for {minutes} minutes: delete the pod, and restore it again"
                    );
                    *self.waits_for.lock() = format!("waits for at most {minutes} minutes, because {error}");
                }
                done => return done,
            }
            sleep(paced(LOOK)).await;
            self.watched.waits();
        }
    }

    /// What the job waited for is there.
    pub(in crate::node_agent) fn waits_no_more(&self) {
        self.waits_for.lock().clear();
    }

    /// Checks that the repository is not locked.
    ///
    /// # Errors
    /// When it is locked, or its locks cannot be read.
    pub(super) async fn look(&self, location: Option<&str>, namespace: Option<&str>) -> anyhow::Result<()> {
        let (location, namespace) = (location.unwrap_or_default(), namespace.unwrap_or_default());
        let repository = self.context.repositories.get(location, namespace, false).await?;
        repository.ensure_unlocked().await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use berth_test_scripted::Scripted;
    use tokio::time::timeout;

    use super::super::super::concurrency::Places;
    use super::super::SILENCE;
    use super::super::tests::job;
    use super::*;

    fn locked(is_own: bool) -> anyhow::Error {
        let text = || "x".to_owned();
        Fault::Locked { place: text(), who: text(), since: text(), is_own }.into()
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_until_a_maintenance_has_ended_is_not_taken_for_hung() {
        let (job, begun) = (job(&Scripted::new(), &Places::new(1, Arc::default())), Instant::now());
        let work = || async {
            if begun.elapsed() > 2 * SILENCE {
                return Ok(());
            }
            Err(locked(true))
        };
        let silence = async {
            let mut signs = None;
            while signs != Some(job.watched.signs()) {
                signs = Some(job.watched.signs());
                sleep(SILENCE).await;
            }
        };
        tokio::select! {
            done = job.unlocked(work, work) => assert!(done.is_ok()),
            () = silence => unreachable!("nothing shows that it waits"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_lock_lets_others_have_its_place_and_then_waits_for_one() {
        let places = Places::new(1, Arc::default());
        let job = job(&Scripted::new(), &places);
        assert!(places.take().is_none());
        let is_locked = AtomicBool::new(true);
        let work = || async { if is_locked.load(Ordering::Relaxed) { Err(locked(false)) } else { Ok(()) } };
        let others = async {
            let other = loop {
                match places.take() {
                    Some(place) => break place,
                    None => sleep(LOOK).await,
                }
            };
            let told = || job.waits_for.lock().clone();
            assert!(
                told().starts_with("waits for at most 5 minutes, because the repository at x is"),
                "{}",
                told()
            );
            is_locked.store(false, Ordering::Relaxed);
            // This is longer than the job would wait for the lock, because it no longer waits for
            // one.
            sleep(2 * PATIENT).await;
            assert!(told().starts_with("waits for a place"), "{}", told());
            drop(other);
        };
        let both = async { tokio::join!(job.unlocked(work, work), others) };
        let (done, ()) = timeout(4 * PATIENT, both).await.unwrap();
        assert!(done.is_ok());
        assert!(places.take().is_none(), "it has its place again");
        assert_eq!(*job.waits_for.lock(), "");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_is_waited_for_only_so_long_and_not_by_who_is_canceled() {
        let places = Places::new(2, Arc::default());
        let work = || async { Err::<(), _>(locked(false)) };
        let (one, other) = (job(&Scripted::new(), &places), job(&Scripted::new(), &places));
        let begun = Instant::now();
        let error = one.unlocked(work, work).await.unwrap_err();
        assert!(patience(&error).is_some(), "{error}");
        assert!((PATIENT..PATIENT + 2 * LOOK).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        other.watched.cancel();
        let error = other.unlocked(work, work).await.unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(Fault::Canceled)), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_restore_goes_on_when_its_pod_waits_again_and_ends_when_it_does_not_for_long() {
        let places = Places::new(3, Arc::default());
        let [again, never, canceled] = [(); 3].map(|()| job(&Scripted::new(), &places));
        let begun = Instant::now();
        let work = || async {
            if begun.elapsed() < POD / 2 {
                return Err(anyhow::Error::from(NotYet));
            }
            again.waits_no_more();
            Ok(())
        };
        let told = async {
            sleep(POD / 4).await;
            again.waits_for.lock().clone()
        };
        let (done, told) = tokio::join!(again.once_pod_waits(work), told);
        assert!(done.is_ok());
        assert!(told.starts_with("waits for at most 30 minutes, because the pod does not wait"), "{told}");
        assert_eq!(*again.waits_for.lock(), "");
        let (begun, signs) = (Instant::now(), never.watched.signs());
        let work = || async { Err::<(), _>(anyhow::Error::from(NotYet)) };
        let error = never.once_pod_waits(work).await.unwrap_err();
        assert!(!error.is::<NotYet>(), "it would be begun again: {error}");
        assert!((POD..POD + 2 * LOOK).contains(&begun.elapsed()), "{:?}", begun.elapsed());
        assert!(never.watched.signs() > signs, "who waits is not taken for hung");
        canceled.watched.cancel();
        let error = canceled.once_pod_waits(work).await.unwrap_err();
        assert!(matches!(error.downcast_ref(), Some(Fault::Canceled)), "{error}");
    }
}
