//! The token the sidecar shows us: `dapr-api-token`, when `APP_API_TOKEN` is set on both sides.
//!
//! It shows it with what it delivers, and neither when it asks for our subscriptions nor with its
//! health probe (dapr v1.18.2, `pkg/runtime/pubsub/subscriptions.go` and
//! `pkg/channel/grpc/grpc_channel.go`): refused, those two would end consumption altogether.

use secrecy::{ExposeSecret, SecretString};
use subtle::ConstantTimeEq;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::config::AppTokenMode;

/// Under this name the sidecar sends it (dapr v1.18.2, `pkg/api/grpc/manager/manager.go`).
const HEADER: &str = "dapr-api-token";

/// Lets a call that delivers something through, or answers it `UNAUTHENTICATED`.
#[derive(Clone)]
pub(crate) struct TokenCheck {
    expected: Option<SecretString>,
    mode: AppTokenMode,
}

impl TokenCheck {
    pub(crate) fn new(expected: Option<SecretString>, mode: AppTokenMode) -> Self {
        Self { expected, mode }
    }

    /// Checks one call's metadata.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`, which the sidecar does not take for an acknowledgement.
    #[allow(clippy::result_large_err, reason = "the type that tonic's methods return")]
    pub(crate) fn check(&self, metadata: &MetadataMap) -> Result<(), Status> {
        if self.allows(metadata) {
            Ok(())
        } else {
            Err(Status::unauthenticated("the dapr-api-token is missing or wrong"))
        }
    }

    fn allows(&self, metadata: &MetadataMap) -> bool {
        let Some(expected) = &self.expected else { return true };
        match metadata.get(HEADER) {
            None => self.mode == AppTokenMode::AcceptMissing,
            // Constant time: how long a refusal takes says nothing about how much was right.
            Some(shown) => shown.as_bytes().ct_eq(expected.expose_secret().as_bytes()).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(expected: Option<&str>, mode: AppTokenMode, shown: Option<&str>) -> bool {
        let mut metadata = MetadataMap::new();
        if let Some(shown) = shown {
            metadata.insert(HEADER, shown.parse().unwrap());
        }
        TokenCheck::new(expected.map(SecretString::from), mode).allows(&metadata)
    }

    #[test]
    fn a_wrong_token_is_refused_in_both_modes_and_a_missing_one_only_where_it_is_required() {
        use AppTokenMode::{AcceptMissing, Require};
        assert!(allows(None, Require, None), "no token is set");
        assert!(allows(None, Require, Some("any")), "no token is set");
        assert!(allows(Some("s3"), Require, Some("s3")));
        assert!(!allows(Some("s3"), Require, None));
        assert!(allows(Some("s3"), AcceptMissing, None));
        for mode in [Require, AcceptMissing] {
            for wrong in ["s4", "s", "s33", ""] {
                assert!(!allows(Some("s3"), mode, Some(wrong)), "{wrong:?} in {mode:?}");
            }
        }
    }
}
