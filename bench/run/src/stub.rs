//! A stand-in for the sidecar's API where no sidecar runs: it says which components there are, as
//! Backstop asks before it takes events, and either refuses what a relay publishes or notes which
//! orders the messages were about.

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use dapr::dapr::proto::runtime::v1 as api;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::Service;

use load::event::PUBSUB;

use crate::audit;

/// The running stand-in.
pub struct Stub {
    /// Its port.
    pub port: u16,
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    accepting: AtomicBool,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    orders: HashSet<u128>,
    again: u64,
}

impl Stub {
    /// Starts it on a port of its own; it refuses to publish until [`Stub::accept`].
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared::default());
        let api = Api(Arc::clone(&shared));
        let server = tokio::spawn(async move {
            let incoming = TcpListenerStream::new(listener);
            let server = tonic::transport::Server::builder().add_service(api);
            let _ = server.serve_with_incoming(incoming).await;
        });
        Ok(Self { port, shared, server })
    }

    /// From now on what is published is taken and noted.
    pub fn accept(&self) {
        self.shared.accepting.store(true, Relaxed);
    }

    /// How many different orders' messages were taken.
    pub fn published(&self) -> u64 {
        self.shared.taken().orders.len() as u64
    }

    /// How many messages came more than once.
    pub fn published_again(&self) -> u64 {
        self.shared.taken().again
    }

    /// Whether the message of this order was taken.
    pub fn has(&self, order: &str) -> bool {
        let number = u128::from_str_radix(order, 16);
        number.is_ok_and(|number| self.shared.taken().orders.contains(&number))
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// The calls it answers, by path; the generated trait would ask for all sixty.
#[derive(Clone)]
struct Api(Arc<Shared>);

impl NamedService for Api {
    const NAME: &'static str = "dapr.proto.runtime.v1.Dapr";
}

type Answering = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

impl Service<http::Request<Body>> for Api {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answering {
        let shared = Arc::clone(&self.0);
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        Box::pin(async move {
            let answer = match method.as_str() {
                "GetMetadata" => Grpc::new(ProstCodec::default()).unary(Metadata, request).await,
                "PublishEvent" => {
                    Grpc::new(ProstCodec::default()).unary(Publish(shared), request).await
                }
                "BulkPublishEvent" | "BulkPublishEventAlpha1" => {
                    Grpc::new(ProstCodec::default()).unary(BulkPublish(shared), request).await
                }
                _ => Status::unimplemented("the stand-in does not know this call").into_http(),
            };
            Ok(answer)
        })
    }
}

type Now<T> = Ready<Result<Response<T>, Status>>;

struct Metadata;

impl UnaryService<api::GetMetadataRequest> for Metadata {
    type Response = api::GetMetadataResponse;
    type Future = Now<Self::Response>;

    fn call(&mut self, _: Request<api::GetMetadataRequest>) -> Self::Future {
        let component = |name: String| api::RegisteredComponents {
            name,
            r#type: "pubsub.bench".to_owned(),
            version: "v1".to_owned(),
            capabilities: Vec::new(),
        };
        ready(Ok(Response::new(api::GetMetadataResponse {
            id: crate::daprd::APP_ID.to_owned(),
            registered_components: vec![
                component(PUBSUB.to_owned()),
                component(format!("{PUBSUB}-dead")),
            ],
            ..Default::default()
        })))
    }
}

impl Shared {
    fn taken(&self) -> std::sync::MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take<'a>(&self, events: impl Iterator<Item = &'a [u8]>) -> Result<(), Status> {
        if !self.accepting.load(Relaxed) {
            return Err(Status::unavailable("there is no broker behind this stand-in"));
        }
        let mut taken = self.taken();
        for event in events {
            let order = str::from_utf8(event).ok().and_then(audit::order_of);
            let number = order.and_then(|order| u128::from_str_radix(order, 16).ok());
            let Some(number) = number else {
                return Err(Status::invalid_argument("a message without its order"));
            };
            if !taken.orders.insert(number) {
                taken.again += 1;
            }
        }
        Ok(())
    }
}

struct Publish(Arc<Shared>);

impl UnaryService<api::PublishEventRequest> for Publish {
    type Response = ();
    type Future = Now<()>;

    fn call(&mut self, request: Request<api::PublishEventRequest>) -> Self::Future {
        let taken = self.0.take(std::iter::once(request.get_ref().data.as_slice()));
        ready(taken.map(Response::new))
    }
}

struct BulkPublish(Arc<Shared>);

impl UnaryService<api::BulkPublishRequest> for BulkPublish {
    type Response = api::BulkPublishResponse;
    type Future = Now<Self::Response>;

    fn call(&mut self, request: Request<api::BulkPublishRequest>) -> Self::Future {
        let entries = &request.get_ref().entries;
        let taken = self.0.take(entries.iter().map(|entry| entry.event.as_slice()));
        ready(taken.map(|()| Response::new(api::BulkPublishResponse::default())))
    }
}
