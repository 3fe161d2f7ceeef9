//! What a consumer takes: a topic, the event types on it, and a handler for each.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;
use jsonschema::{PatternOptions, Validator};
use serde::de::DeserializeOwned;

use crate::effect::Effects;
use crate::event::Event;
use crate::handler::{Context, HandlerError, Tx};
use crate::observe::{Lane, Place};
use crate::outcome::{Category, Code, reason};

/// What a handler calls outside the store's transaction. Anything but `None` makes every delivery
/// claim its message, bytes included, before the handler runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutsideCall {
    /// Nothing: all it does is in its effects. The default, and the fastest.
    #[default]
    None,
    /// A destination that recognises a repeated call (it gets [`Context::action_id`]), so a call
    /// whose answer was lost may be made again.
    Repeatable,
    /// A destination that must not be called twice unasked: an error or a lost run after the
    /// handler began opens a case `outcome_unknown`, unless the handler says
    /// [`HandlerError::not_sent`].
    Once,
}

/// How many events the sidecar may hand over in one call, and how long it waits for them.
///
/// It costs the sidecar about half as much per event. In return a transient failure is retried by
/// recovery instead of the sidecar, and one batch of a topic is under way at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bulk {
    /// At most so many in a call, 2 to 1,000. Not above the number of events that the component
    /// hands over at the same time (Redis: `concurrency`), or a batch is never full and each waits
    /// for `await_ms`. All of them together must stay below `BACKSTOP_DECODE_BYTES_MAX`.
    pub max_messages: u16,
    /// How long the sidecar waits for a batch to fill, 1 to 1,000 ms: what a lone event waits.
    pub await_ms: u16,
}

impl Default for Bulk {
    /// 64 messages, as many as the shipped Redis component hands over at once, and 10 ms.
    fn default() -> Self {
        Self { max_messages: 64, await_ms: 10 }
    }
}

impl Bulk {
    fn problems(self) -> impl Iterator<Item = &'static str> {
        let messages = !(2..=1_000).contains(&self.max_messages);
        let await_ms = !(1..=1_000).contains(&self.await_ms);
        [
            messages.then_some("bulk takes 2 to 1,000 messages"),
            // The sidecar takes 0 for its own default, a whole second.
            await_ms.then_some("bulk awaits 1 to 1,000 ms"),
        ]
        .into_iter()
        .flatten()
    }
}

/// How the sidecar hands events over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Envelope {
    /// As the broker's bytes (`rawPayload`); Backstop decodes the CloudEvent, so integers keep all
    /// digits, every content type keeps its data, and an expired event is filed instead of dropped.
    #[default]
    Raw,
    /// Taken apart by the sidecar: for a topic that other code subscribes the same way.
    Dapr,
}

type Run = Box<dyn FnOnce(Context) -> BoxFuture<'static, Result<Effects, HandlerError>> + Send>;
type RunTx =
    Box<dyn for<'t> FnOnce(Context, &'t mut Tx) -> BoxFuture<'t, Result<(), HandlerError>> + Send>;

/// A handler with its decoded event, ready to run once.
pub(crate) enum Prepared {
    Effects(Run),
    Interactive(RunTx),
}

type Prepare = Arc<dyn Fn(&Event) -> Result<Prepared, Code> + Send + Sync>;

struct Route {
    prepare: Prepare,
    schema: Option<Validator>,
}

/// One consumed topic. Two subscriptions are made of it: the topic, and its dead-letter topic.
///
/// The name is part of every message's identity: keep it when the topic, the component or the
/// broker changes.
pub struct Subscription {
    name: String,
    topic: String,
    pubsub: Option<String>,
    outside_call: OutsideCall,
    envelope: Envelope,
    bulk: Option<Bulk>,
    routes: BTreeMap<String, Route>,
    ignored: BTreeSet<String>,
    problems: Vec<String>,
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription")
            .field("name", &self.name)
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}

/// A handler that gets the open transaction: any `async fn(T, Context, &mut Tx)`.
pub trait InteractiveHandler<'t, T>: Send + Sync {
    /// Its future, which may hold the transaction.
    type Running: Future<Output = Result<(), HandlerError>> + Send + 't;
    /// Runs it.
    fn run(&self, event: T, context: Context, tx: &'t mut Tx) -> Self::Running;
}

impl<'t, T, F, Fut> InteractiveHandler<'t, T> for F
where
    F: Fn(T, Context, &'t mut Tx) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), HandlerError>> + Send + 't,
{
    type Running = Fut;
    fn run(&self, event: T, context: Context, tx: &'t mut Tx) -> Fut {
        self(event, context, tx)
    }
}

impl Subscription {
    /// A subscription with this stable name, on the topic of the same name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let problems = if is_name(&name) {
            Vec::new()
        } else {
            vec![format!("subscription `{name}`: a name is 1 to 64 of a-z, 0-9, `-`, `_` and `.`")]
        };
        Self {
            topic: name.clone(),
            name,
            pubsub: None,
            outside_call: OutsideCall::None,
            envelope: Envelope::Raw,
            bulk: None,
            routes: BTreeMap::new(),
            ignored: BTreeSet::new(),
            problems,
        }
    }

    /// Consumes this topic instead of the one named like the subscription.
    #[must_use]
    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = topic.into();
        self
    }

    /// Consumes through this pub/sub component instead of the consumer's.
    #[must_use]
    pub fn pubsub(mut self, component: impl Into<String>) -> Self {
        self.pubsub = Some(component.into());
        self
    }

    /// Hands events of this CloudEvents type to an async function from the decoded JSON data.
    #[must_use]
    pub fn on<T, F, Fut>(self, ty: &str, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: Fn(T, Context) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<Effects, HandlerError>> + Send + 'static,
    {
        let prepare = move |event: &Event| {
            let typed: T = decode(event)?;
            let handler = handler.clone();
            let run: Run =
                Box::new(move |context| Box::pin(async move { handler(typed, context).await }));
            Ok(Prepared::Effects(run))
        };
        self.route(ty, Arc::new(prepare))
    }

    /// The interactive form of [`Subscription::on`]: the handler reads, decides and writes in one
    /// transaction.
    #[must_use]
    pub fn on_tx<T, F>(self, ty: &str, handler: F) -> Self
    where
        T: DeserializeOwned + Send + 'static,
        F: for<'t> InteractiveHandler<'t, T> + Clone + 'static,
    {
        let prepare = move |event: &Event| {
            let typed: T = decode(event)?;
            let handler = handler.clone();
            let run: RunTx = Box::new(move |context, tx| {
                Box::pin(async move { handler.run(typed, context, tx).await })
            });
            Ok(Prepared::Interactive(run))
        };
        self.route(ty, Arc::new(prepare))
    }

    /// Checks the data of a type, named before with [`Subscription::on`], against a JSON Schema
    /// (text) before the handler sees it. Patterns run in linear time; nothing is fetched.
    #[must_use]
    pub fn schema(mut self, ty: &str, schema: &str) -> Self {
        match (self.routes.get_mut(ty), compile(schema)) {
            (Some(route), Ok(validator)) => route.schema = Some(validator),
            (None, _) => self.problems.push(format!(
                "subscription `{}`: a schema for `{ty}`, which no handler takes",
                self.name
            )),
            (_, Err(problem)) => self
                .problems
                .push(format!("subscription `{}`: the schema for `{ty}`: {problem}", self.name)),
        }
        self
    }

    /// Counts events of this type and does nothing else about them.
    #[must_use]
    pub fn ignore(mut self, ty: impl Into<String>) -> Self {
        self.ignored.insert(ty.into());
        self
    }

    /// Says that the handlers call something outside the transaction.
    #[must_use]
    pub fn calls_outside(mut self, call: OutsideCall) -> Self {
        self.outside_call = call;
        self
    }

    /// Says how the sidecar is to hand events over.
    #[must_use]
    pub fn envelope(mut self, envelope: Envelope) -> Self {
        self.envelope = envelope;
        self
    }

    /// Asks the sidecar for many events in one call. When that pays stands in the README.
    #[must_use]
    pub fn bulk(mut self, bulk: Bulk) -> Self {
        self.bulk = Some(bulk);
        self
    }

    fn route(mut self, ty: &str, prepare: Prepare) -> Self {
        let taken = self.routes.insert(ty.to_owned(), Route { prepare, schema: None });
        if taken.is_some() {
            self.problems.push(format!("subscription `{}`: two handlers for `{ty}`", self.name));
        }
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn place(&self, lane: Lane) -> Place<'_> {
        Place { subscription: &self.name, topic: &self.topic, lane }
    }

    pub(crate) fn topic_name(&self) -> &str {
        &self.topic
    }

    pub(crate) fn pubsub_or<'a>(&'a self, default: &'a str) -> &'a str {
        self.pubsub.as_deref().unwrap_or(default)
    }

    pub(crate) fn outside_call(&self) -> OutsideCall {
        self.outside_call
    }

    pub(crate) fn envelope_form(&self) -> Envelope {
        self.envelope
    }

    pub(crate) fn asks_for_bulk(&self) -> Option<Bulk> {
        self.bulk
    }

    pub(crate) fn ignores(&self, ty: &str) -> bool {
        self.ignored.contains(ty)
    }

    /// What is wrong with how it was put together.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> + '_ {
        let empty =
            self.routes.is_empty().then(|| format!("subscription `{}`: no handler", self.name));
        let both =
            self.routes.keys().filter(|ty| self.ignored.contains(*ty)).map(|ty| {
                format!("subscription `{}`: `{ty}` is both handled and ignored", self.name)
            });
        // Taken apart, an entry of a batch loses its `data_base64`, and one that cannot be encoded
        // holds up its topic (dapr v1.18.2, `pkg/runtime/pubsub/subscriptions.go`, `FetchEntry`).
        let taken_apart = self.bulk.is_some() && self.envelope == Envelope::Dapr;
        let bulk = self.bulk.into_iter().flat_map(Bulk::problems);
        let bulk = bulk.chain(taken_apart.then_some("bulk takes the raw envelope only"));
        let bulk = bulk.map(|problem| format!("subscription `{}`: {problem}", self.name));
        self.problems.iter().cloned().chain(empty).chain(both).chain(bulk)
    }

    /// Step 3: validates the event and decodes it for its handler, or says why it can never fit.
    pub(crate) fn prepare(&self, event: &Event) -> Result<Prepared, (Category, Code)> {
        let route =
            self.routes.get(event.ty()).ok_or((Category::Unrouted, reason::UNKNOWN_TYPE))?;
        let invalid = |code| {
            let code = if event.holds_broken_json() { reason::MALFORMED_JSON } else { code };
            (Category::Invalid, code)
        };
        if let Some(schema) = &route.schema {
            let value: serde_json::Value = decode(event).map_err(invalid)?;
            if !schema.is_valid(&value) {
                return Err(invalid(reason::SCHEMA_VIOLATION));
            }
        }
        (route.prepare)(event).map_err(invalid)
    }
}

fn decode<T: DeserializeOwned>(event: &Event) -> Result<T, Code> {
    let data = event.data().filter(|data| !data.is_empty()).ok_or(reason::DATA_MISSING)?;
    if !event.data_is_json() {
        return Err(reason::CONTENT_TYPE_NOT_JSON);
    }
    serde_json::from_slice(data).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => reason::DATA_NOT_DECODABLE,
        _ => reason::MALFORMED_JSON,
    })
}

fn compile(schema: &str) -> Result<Validator, String> {
    let schema: serde_json::Value =
        serde_json::from_str(schema).map_err(|error| error.to_string())?;
    jsonschema::options()
        .with_pattern_options(PatternOptions::regex())
        .should_validate_formats(true)
        .should_ignore_unknown_formats(false)
        .build(&schema)
        .map_err(|error| error.to_string())
}

fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte)
        })
}

#[cfg(test)]
mod tests;
