//! Learning of commits sooner than the next poll: MySQL has nothing to listen to.

use async_trait::async_trait;
use posthaste_core::{
    Result,
    store::{Listener, Wake},
};

use super::MySqlStore;

#[async_trait]
impl Wake for MySqlStore {
    async fn listen(&self) -> Result<Option<Box<dyn Listener>>> {
        Ok(None)
    }

    async fn notify(&self) -> Result<bool> {
        Ok(false)
    }
}
