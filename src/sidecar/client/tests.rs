//! What is published by which call, to a sidecar that has only some of them.

use std::convert::Infallible;
use std::sync::Mutex;
use std::task::{Context, Poll};

use bytes::Bytes;
use dapr::dapr::proto::runtime::v1::BulkPublishResponse;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Response, transport::Server};
use tonic_prost::ProstCodec;

use super::*;

/// A sidecar that has these calls, and remembers which were made.
#[derive(Clone)]
struct Sidecar {
    has: &'static [&'static str],
    made: Arc<Mutex<Vec<String>>>,
    entries: Arc<Mutex<Vec<BulkPublishRequestEntry>>>,
}

impl NamedService for Sidecar {
    const NAME: &'static str = "dapr.proto.runtime.v1.Dapr";
}

struct Bulk(Sidecar);

impl UnaryService<BulkPublishRequest> for Bulk {
    type Response = BulkPublishResponse;
    type Future = BoxFuture<Response<Self::Response>, Status>;

    fn call(&mut self, request: Request<BulkPublishRequest>) -> Self::Future {
        self.0.entries.lock().unwrap().extend(request.into_inner().entries);
        Box::pin(async { Ok(Response::new(BulkPublishResponse::default())) })
    }
}

struct Single;

impl UnaryService<PublishEventRequest> for Single {
    type Response = ();
    type Future = BoxFuture<Response<()>, Status>;

    fn call(&mut self, _: Request<PublishEventRequest>) -> Self::Future {
        Box::pin(async { Ok(Response::new(())) })
    }
}

impl Service<http::Request<Body>> for Sidecar {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let sidecar = self.clone();
        Box::pin(async move {
            let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            sidecar.made.lock().unwrap().push(name.clone());
            Ok(if !sidecar.has.contains(&name.as_str()) {
                Status::unimplemented("").into_http()
            } else if name == "PublishEvent" {
                Grpc::new(ProstCodec::default()).unary(Single, request).await
            } else {
                Grpc::new(ProstCodec::default()).unary(Bulk(sidecar), request).await
            })
        })
    }
}

async fn sidecar(has: &'static [&'static str]) -> (Sidecar, Client) {
    let sidecar = Sidecar { has, made: Arc::default(), entries: Arc::default() };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    tokio::spawn(Server::builder().add_service(sidecar.clone()).serve_with_incoming(incoming));
    (sidecar, Client::new(&endpoint, None, 4 << 20).unwrap())
}

fn message(key: Option<&str>) -> Outgoing {
    Outgoing {
        log: 1,
        seq: 1,
        pubsub: "pubsub".to_owned(),
        topic: "topic".to_owned(),
        message_id: "1".to_owned(),
        ordering_key: key.map(str::to_owned),
        due_at: None,
        content: Bytes::from_static(b"{}"),
    }
}

#[tokio::test]
async fn the_newest_call_that_the_sidecar_has_is_found_once() {
    const STABLE: &str = "BulkPublishEvent";
    const ALPHA: &str = "BulkPublishEventAlpha1";
    const ONE: &str = "PublishEvent";
    let cases: [(&[&str], &[&str]); 3] = [
        (&[STABLE, ALPHA, ONE], &[STABLE, STABLE, ONE]),
        (&[ALPHA, ONE], &[STABLE, ALPHA, ALPHA, ONE]),
        (&[ONE], &[STABLE, ALPHA, ONE, ONE, ONE, ONE, ONE]),
    ];
    for (has, expected) in cases {
        let (sidecar, client) = sidecar(has).await;
        for count in [2, 2, 1] {
            client.publish(vec![message(None); count]).await.unwrap();
        }
        assert_eq!(*sidecar.made.lock().unwrap(), expected, "{has:?}");
    }
}

#[tokio::test]
async fn an_ordering_key_is_the_partition_key_in_what_grpc_can_carry() {
    let (sidecar, client) = sidecar(&["BulkPublishEvent"]).await;
    let long = "x".repeat(129);
    let keys = [None, Some("customer 7"), Some("Müller"), Some("a\nb"), Some(long.as_str())];
    client.publish(keys.map(message).into()).await.unwrap();
    let entries = sidecar.entries.lock().unwrap();
    let ids: std::collections::BTreeSet<&str> =
        entries.iter().map(|entry| entry.entry_id.as_str()).collect();
    assert_eq!(ids.len(), 5, "the sidecar wants them all different");
    let given: Vec<Option<&String>> =
        entries.iter().map(|entry| entry.metadata.get("partitionKey")).collect();
    assert_eq!((given[0], given[1]), (None, Some(&"customer 7".to_owned())));
    for hashed in &given[2..] {
        let hashed = hashed.unwrap();
        assert!(hashed.len() == 64 && hashed.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
