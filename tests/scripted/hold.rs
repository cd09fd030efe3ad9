//! An answer that comes when the test says so.

use std::panic::Location;

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::PATIENCE;

#[derive(Clone, Default)]
pub struct Hold {
    asked: CancellationToken,
    let_go: CancellationToken,
}

impl Hold {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Resolves when the request has come. Its answer waits for [`Hold::let_go`].
    ///
    /// # Panics
    /// After a minute of the test's clock.
    #[track_caller]
    pub fn asked(&self) -> impl Future<Output = ()> + use<> {
        let (asked, caller) = (self.asked.clone(), Location::caller());
        async move {
            let in_time = timeout(PATIENCE, asked.cancelled()).await.is_ok();
            assert!(in_time, "{caller}: nobody asked for the answer that is held");
        }
    }

    pub fn let_go(&self) {
        self.let_go.cancel();
    }

    /// For a part of the test that waits as an answer does.
    pub async fn pass(&self) {
        self.begin().await;
    }

    /// For the side that answers.
    pub(crate) fn begin(&self) -> impl Future<Output = ()> + Send + use<> {
        self.asked.cancel();
        self.let_go.clone().cancelled_owned()
    }
}
