//! The calls we make to the sidecar: its metadata, and publishing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use dapr::dapr::proto::runtime::v1::dapr_client::DaprClient;
use dapr::dapr::proto::runtime::v1::{GetMetadataRequest, PublishEventRequest};
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
            .max_encoding_message_size(message_bytes_max);
        Ok(Self { endpoint: endpoint.into(), api })
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

    /// Publishes one structured event exactly as it is.
    pub(crate) async fn publish(&self, message: Outgoing) -> Result<(), PublishError> {
        let request = PublishEventRequest {
            pubsub_name: message.pubsub,
            topic: message.topic,
            data: message.content.to_vec(),
            data_content_type: STRUCTURED.to_owned(),
            metadata: HashMap::new(),
        };
        match self.api.clone().publish_event(request).await {
            Ok(_) => Ok(()),
            Err(status) => Err(classify(status.code())),
        }
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
