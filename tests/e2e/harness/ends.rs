//! Processes of a world that end, by themselves or in good order, and how a world ends well.

use std::time::Duration;

#[cfg(feature = "failpoints")]
use super::Setup;
use super::{SOON, World, becomes};

#[cfg(feature = "failpoints")]
impl Setup {
    /// Starts it with a service that ends by itself when it reaches `gap`; started again, it does
    /// not any more.
    pub async fn start_with_failpoint(self, gap: &str) -> World {
        let mut world = self.env("FAILPOINT", gap).start().await;
        world.run.app_env.remove("FAILPOINT");
        world
    }
}

impl World {
    /// Waits until the service has ended by itself.
    #[cfg(feature = "failpoints")]
    pub async fn app_ends(&mut self) {
        let mut app = self.app.take().expect("the service runs");
        let status = app.wait(super::LATER).await.unwrap();
        assert!(!status.success(), "it ended as if all were well");
    }

    /// Asks both to stop at the same moment, and says whether the service did so in good order.
    pub async fn stop_both(&mut self) -> bool {
        let mut app = self.app.take().expect("the service runs");
        let mut daprd = self.daprd.take().expect("the sidecar runs");
        let (app, daprd) = tokio::join!(app.stop(SOON), daprd.stop(SOON));
        daprd.unwrap();
        app.unwrap().success()
    }

    /// Waits until all these orders, sorted, were told to have been accepted, and holds that each was
    /// told of once by us, and nothing is in trouble or was given up.
    pub async fn all_are_accepted(&self, orders: &[String], patience: Duration) {
        becomes(patience, "accepted", orders, async || {
            let mut accepted = self.accepted_orders();
            accepted.dedup();
            accepted
        })
        .await;
        assert_eq!(self.database.outbox_count(), orders.len());
        assert_eq!(self.database.in_trouble_count(), 0);
        assert!(self.cases().is_empty());
    }

    /// Asks the sidecar to stop (SIGTERM), and waits until it has.
    pub async fn stop_daprd(&mut self) {
        let mut daprd = self.daprd.take().expect("the sidecar runs");
        daprd.stop(SOON).await.unwrap();
    }
}
