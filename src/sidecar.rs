//! The Dapr sidecar: the calls it makes to us, and the calls we make to it. The only room that
//! knows gRPC and the Dapr protocol.

pub(crate) mod callback;
pub(crate) mod client;
pub(crate) mod identity;
pub(crate) mod token;
mod wire;
