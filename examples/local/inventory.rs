//! An inventory service that does as it is told, for the `orders` consumer to call:
//! `PUT /reservations/{orderId}`.

#![allow(dead_code, reason = "the demo and the tests each use a part of this file")]

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::put;
use axum::{Json, Router};
use serde_json::json;
use tokio::net::TcpListener;

/// What the inventory does with an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// 200: reserved.
    Reserve,
    /// 200 after this time.
    ReserveAfter(Duration),
    /// 409 with this code: the order can never be served.
    Reject(&'static str),
    /// 503 so many times, then 200.
    FailTimes(usize),
    /// 503 every time.
    FailAlways,
    /// No answer at all.
    Hang,
}

/// One call.
#[derive(Clone, Debug)]
pub struct Call {
    /// The order it was for.
    pub order_id: String,
    /// When it arrived.
    pub at: Instant,
    /// How many calls for this order this makes, from 1.
    pub number: usize,
    /// The status it was answered with; absent when it hangs.
    pub answer: Option<u16>,
    /// Its `idempotency-key` header.
    pub idempotency_key: Option<String>,
}

/// The service, on a free port of this host; it ends with the runtime or when dropped.
#[derive(Debug)]
pub struct Inventory {
    address: SocketAddr,
    books: Arc<Mutex<Books>>,
    server: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Books {
    fallback: Rule,
    rules: HashMap<String, Rule>,
    numbers: HashMap<String, usize>,
    calls: Vec<Call>,
}

impl Inventory {
    /// Starts it. Orders without a rule of their own are reserved.
    ///
    /// # Errors
    /// When no port can be listened on.
    pub async fn start() -> anyhow::Result<Self> {
        Self::start_on(0).await
    }

    /// Starts it on this port; 0 is a free one.
    ///
    /// # Errors
    /// When the port cannot be listened on.
    pub async fn start_on(port: u16) -> anyhow::Result<Self> {
        let books = Arc::new(Mutex::new(Books {
            fallback: Rule::Reserve,
            rules: HashMap::new(),
            numbers: HashMap::new(),
            calls: Vec::new(),
        }));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
        let listener = listener.context("the inventory stub found no port to listen on")?;
        let address = listener.local_addr()?;
        let routes = Router::new()
            .route("/reservations/{order_id}", put(reserve))
            .with_state(Arc::clone(&books));
        let server = tokio::spawn(async move {
            // It never ends by itself.
            drop(axum::serve(listener, routes).await);
        });
        Ok(Self { address, books, server })
    }

    /// Its base URL, as `BACKSTOP_ORDERS_INVENTORY_URL` wants it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says what to do with this order from now on; [`Rule::FailTimes`] counts from here.
    pub fn set(&self, order_id: &str, rule: Rule) {
        lock(&self.books).rules.insert(order_id.to_owned(), rule);
    }

    /// Says what to do with every order that has no rule of its own.
    pub fn set_fallback(&self, rule: Rule) {
        lock(&self.books).fallback = rule;
    }

    /// Every call, oldest first.
    pub fn calls(&self) -> Vec<Call> {
        lock(&self.books).calls.clone()
    }

    /// The calls after the first `seen`, oldest first.
    pub fn calls_after(&self, seen: usize) -> Vec<Call> {
        lock(&self.books).calls.get(seen..).unwrap_or_default().to_vec()
    }

    /// Every call for this order, oldest first.
    pub fn calls_for(&self, order_id: &str) -> Vec<Call> {
        let books = lock(&self.books);
        books.calls.iter().filter(|call| call.order_id == order_id).cloned().collect()
    }
}

impl Drop for Inventory {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn reserve(
    State(books): State<Arc<Mutex<Books>>>,
    Path(order_id): Path<String>,
    headers: HeaderMap,
) -> Response {
    let at = Instant::now();
    let key = headers.get("idempotency-key").and_then(|value| value.to_str().ok());
    let rule = lock(&books).take(order_id, at, key);
    match rule {
        Rule::ReserveAfter(wait) => tokio::time::sleep(wait).await,
        Rule::Hang => std::future::pending().await,
        _ => {}
    }
    match rule {
        Rule::Reject(code) => (StatusCode::CONFLICT, Json(json!({ "code": code }))).into_response(),
        Rule::FailTimes(_) | Rule::FailAlways => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        _ => Json(json!({ "reserved": true })).into_response(),
    }
}

impl Books {
    /// Writes the call down and says what to do with it.
    fn take(&mut self, order_id: String, at: Instant, key: Option<&str>) -> Rule {
        let rule = match self.rules.get_mut(&order_id) {
            Some(Rule::FailTimes(left)) if *left > 0 => {
                *left -= 1;
                Rule::FailAlways
            }
            Some(Rule::FailTimes(_)) => Rule::Reserve,
            Some(rule) => rule.clone(),
            None => self.fallback.clone(),
        };
        let answer = match rule {
            Rule::Reserve | Rule::ReserveAfter(_) => Some(200),
            Rule::Reject(_) => Some(409),
            Rule::FailTimes(_) | Rule::FailAlways => Some(503),
            Rule::Hang => None,
        };
        let number = self.numbers.entry(order_id.clone()).or_default();
        *number += 1;
        let number = *number;
        let idempotency_key = key.map(str::to_owned);
        self.calls.push(Call { order_id, at, number, answer, idempotency_key });
        rule
    }
}

fn lock(books: &Mutex<Books>) -> MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}
