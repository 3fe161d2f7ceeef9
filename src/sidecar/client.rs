//! The calls we make to the sidecar: its metadata, and publishing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use dapr::dapr::proto::runtime::v1::dapr_client::DaprClient;
use dapr::dapr::proto::runtime::v1::{
    BulkPublishRequest, BulkPublishRequestEntry, GetMetadataRequest, PublishEventRequest,
};
use secrecy::{ExposeSecret, SecretString};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code as GrpcCode, Request, Status};

use crate::outcome::Code;
use crate::relay::PublishError;
use crate::store::Outgoing;

/// How long one call may take. The sidecar's own outbound policy works inside it.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// The content type under which the sidecar takes an event as it is, id and all.
const STRUCTURED: &str = "application/cloudevents+json";

/// The metadata by which brokers with partitions choose one.
const PARTITION_KEY: &str = "partitionKey";
/// The longest partition key that is given on as it is.
const PARTITION_KEY_CHARS_MAX: usize = 128;
/// What is sent has room for a batch even where little is decoded.
const ENCODED_BYTES_MIN: usize = 4 << 20;

/// The calls for several messages, from the newest on; beyond them there is none.
const BULK: u8 = 0;
const BULK_ALPHA: u8 = 1;

/// What the sidecar says about itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metadata {
    pub app_id: String,
    pub runtime_version: String,
    /// The names of the loaded components.
    pub components: Vec<String>,
}

/// A client of the sidecar's gRPC API; connects when it is first used, and again after a loss.
#[derive(Clone)]
pub(crate) struct Client {
    endpoint: Arc<str>,
    /// Which call for several messages the sidecar is believed to have.
    bulk_call: Arc<AtomicU8>,
    api: DaprClient<InterceptedService<Channel, ShowToken>>,
}

#[derive(Clone)]
struct ShowToken(Option<MetadataValue<Ascii>>);

impl Interceptor for ShowToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("dapr-api-token", token.clone());
        }
        Ok(request)
    }
}

impl Client {
    /// A client for the sidecar at `endpoint`, showing `token` if there is one.
    pub(crate) fn new(
        endpoint: &str,
        token: Option<&SecretString>,
        message_bytes_max: usize,
    ) -> anyhow::Result<Self> {
        let channel = Endpoint::from_shared(endpoint.to_owned())?
            .timeout(CALL_TIMEOUT)
            .connect_timeout(Duration::from_secs(5))
            .connect_lazy();
        let token = match token {
            None => None,
            Some(token) => {
                let mut shown: MetadataValue<Ascii> =
                    token.expose_secret().parse().map_err(|_| {
                        anyhow::anyhow!(
                            "DAPR_API_TOKEN holds characters that no gRPC metadata can carry"
                        )
                    })?;
                shown.set_sensitive(true);
                Some(shown)
            }
        };
        let api = DaprClient::with_interceptor(channel, ShowToken(token))
            .max_decoding_message_size(message_bytes_max)
            .max_encoding_message_size(message_bytes_max.max(ENCODED_BYTES_MIN));
        Ok(Self { endpoint: endpoint.into(), bulk_call: Arc::new(AtomicU8::new(BULK)), api })
    }

    /// Where the sidecar is expected.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Asks who the sidecar is and what it has loaded. It answers while it still waits inside
    /// `ListTopicSubscriptions` (executed with dapr v1.18.2).
    pub(crate) async fn metadata(&self) -> Result<Metadata, Status> {
        let answer = self.api.clone().get_metadata(GetMetadataRequest {}).await?.into_inner();
        Ok(Metadata {
            app_id: answer.id,
            runtime_version: answer.runtime_version,
            components: answer
                .registered_components
                .into_iter()
                .map(|component| component.name)
                .collect(),
        })
    }

    /// Publishes structured events of one topic exactly as they are: all of them, or nobody knows
    /// which. Several go in one call, in no order.
    pub(crate) async fn publish(&self, mut messages: Vec<Outgoing>) -> Result<(), PublishError> {
        match (messages.len(), messages.pop()) {
            (_, None) => Ok(()),
            (1, Some(message)) => self.publish_one(message).await,
            (_, Some(last)) => {
                messages.push(last);
                self.publish_all(messages).await
            }
        }
    }

    async fn publish_one(&self, message: Outgoing) -> Result<(), PublishError> {
        let request = PublishEventRequest {
            metadata: metadata_of(&message),
            pubsub_name: message.pubsub,
            topic: message.topic,
            data: message.content.to_vec(),
            data_content_type: STRUCTURED.to_owned(),
        };
        match self.api.clone().publish_event(request).await {
            Ok(_) => Ok(()),
            Err(status) => Err(classify(status.code())),
        }
    }

    /// By the newest call that the sidecar has: stable from dapr 1.17 on, alpha before. Without
    /// either they go one by one.
    async fn publish_all(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        let mut api = self.api.clone();
        loop {
            let call = self.bulk_call.load(Ordering::Relaxed);
            let answer = match call {
                BULK => api.bulk_publish_event(bulk_request(&messages)).await,
                #[allow(deprecated, reason = "all that daprd before 1.17 has")]
                BULK_ALPHA => api.bulk_publish_event_alpha1(bulk_request(&messages)).await,
                _ => return self.publish_one_by_one(messages).await,
            };
            match answer {
                Ok(answer) if answer.get_ref().failed_entries.is_empty() => return Ok(()),
                Ok(_) => return Err(PublishError::Failed(BROKER_FAILED)),
                Err(status) if status.code() == GrpcCode::Unimplemented => {
                    self.bulk_call.fetch_max(call + 1, Ordering::Relaxed);
                }
                Err(status) => return Err(classify(status.code())),
            }
        }
    }

    async fn publish_one_by_one(&self, messages: Vec<Outgoing>) -> Result<(), PublishError> {
        for message in messages {
            self.publish_one(message).await?;
        }
        Ok(())
    }

    /// Publishes bytes with a content type and metadata, for the command line.
    pub(crate) async fn publish_bytes(
        &self,
        pubsub: &str,
        topic: &str,
        data: Vec<u8>,
        content_type: &str,
        metadata: impl IntoIterator<Item = (String, String)>,
    ) -> Result<(), Status> {
        let request = PublishEventRequest {
            pubsub_name: pubsub.to_owned(),
            topic: topic.to_owned(),
            data,
            data_content_type: content_type.to_owned(),
            metadata: metadata.into_iter().collect(),
        };
        self.api.clone().publish_event(request).await.map(drop)
    }
}

fn bulk_request(messages: &[Outgoing]) -> BulkPublishRequest {
    let entries = messages.iter().zip(0_u32..).map(|(message, n)| BulkPublishRequestEntry {
        entry_id: n.to_string(),
        event: message.content.to_vec(),
        content_type: STRUCTURED.to_owned(),
        metadata: metadata_of(message),
    });
    let (pubsub_name, topic) = messages
        .first()
        .map(|message| (message.pubsub.clone(), message.topic.clone()))
        .unwrap_or_default();
    BulkPublishRequest { pubsub_name, topic, entries: entries.collect(), metadata: HashMap::new() }
}

/// The ordering key, for brokers with partitions. Redis and others hand metadata on to whoever
/// consumes the message, and gRPC carries printable ASCII only: with anything else in it the message
/// could never be delivered. So such a key, or a long one, is replaced by a hash of it.
fn metadata_of(message: &Outgoing) -> HashMap<String, String> {
    let key = message.ordering_key.as_ref().map(|key| {
        let is_plain = key.len() <= PARTITION_KEY_CHARS_MAX
            && key.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
        if is_plain { key.clone() } else { blake3::hash(key.as_bytes()).to_hex().to_string() }
    });
    key.into_iter().map(|key| (PARTITION_KEY.to_owned(), key)).collect()
}

/// Every broker error reaches us as the same `Internal`; what is certain to be this message's own
/// fault is a body that cannot be read or is too large (dapr v1.18.2, `pkg/api/errors/pubsub.go`,
/// `pkg/api/grpc/server.go`). A component that is missing or scoped away is the configuration's
/// fault, and it can be mended.
fn classify(code: GrpcCode) -> PublishError {
    match code {
        GrpcCode::ResourceExhausted | GrpcCode::OutOfRange => {
            PublishError::Refused(MESSAGE_TOO_LARGE)
        }
        GrpcCode::InvalidArgument => PublishError::Failed(PUBSUB_NOT_FOUND),
        GrpcCode::PermissionDenied => PublishError::Failed(PUBLISH_FORBIDDEN),
        GrpcCode::FailedPrecondition => PublishError::Failed(PUBSUB_NOT_CONFIGURED),
        GrpcCode::Unavailable | GrpcCode::DeadlineExceeded | GrpcCode::Cancelled => {
            PublishError::Failed(SIDECAR_UNAVAILABLE)
        }
        _ => PublishError::Failed(BROKER_FAILED),
    }
}

const MESSAGE_TOO_LARGE: Code = Code::new("message_too_large");
const PUBSUB_NOT_FOUND: Code = Code::new("pubsub_not_found");
const PUBLISH_FORBIDDEN: Code = Code::new("publish_forbidden");
const PUBSUB_NOT_CONFIGURED: Code = Code::new("pubsub_not_configured");
const SIDECAR_UNAVAILABLE: Code = Code::new("sidecar_unavailable");
const BROKER_FAILED: Code = Code::new("broker_failed");

#[cfg(test)]
mod tests;
