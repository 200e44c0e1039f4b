//! A few sessions for contenders that bring no pool of their own.

use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use anyhow::Result;
use surehook_testkit::postgres::{self, Client};
use tokio::sync::{Semaphore, SemaphorePermit};

/// At most so many sessions, opened when they are first needed.
#[derive(Debug)]
pub(crate) struct Pool {
    url: String,
    free: Semaphore,
    idle: Mutex<Vec<Client>>,
}

/// A session; given back when it is dropped.
pub(crate) struct Session<'a> {
    client: Option<Client>,
    pool: &'a Pool,
    _permit: SemaphorePermit<'a>,
}

impl Pool {
    pub(crate) fn new(url: String, sessions_max: u32) -> Self {
        Self { url, free: Semaphore::new(sessions_max as usize), idle: Mutex::default() }
    }

    pub(crate) async fn take(&self) -> Result<Session<'_>> {
        let permit = self.free.acquire().await?;
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let client = match idle {
            Some(client) => client,
            None => postgres::try_connect(&self.url).await?,
        };
        Ok(Session { client: Some(client), pool: self, _permit: permit })
    }
}

impl Deref for Session<'_> {
    type Target = tokio_postgres::Client;

    fn deref(&self) -> &tokio_postgres::Client {
        self.client.as_ref().unwrap_or_else(|| unreachable!("a session has its client until it is dropped"))
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner).extend(self.client.take());
    }
}
