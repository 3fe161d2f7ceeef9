//! What only SQLite does, or can be done to. What every store does is in `store/conformance`.

use std::time::Duration;

use rusqlite::Connection;

use crate::clock::Timestamp;
use crate::custody::Authority;
use crate::effect::{Value, sql};
use crate::outcome::Category;
use crate::store::conformance::{FAILED, Place, message, note, refusal};
use crate::store::ledger::Ledger;
use crate::store::writer::Kept;
use crate::store::{Committed, OpenAs, Store, StoreError, Written};

mod starts;
mod writer;
