//! Finds the deliveries that are in their neighbours' way, and writes all the others together.
//!
//! When a group cannot be written as one, its halves are tried, then the halves of those that could
//! not, down to a few that are left to be written one by one: with one delivery in fifty that the
//! database refuses, that is a handful of statements instead of one for each part of each delivery.

use std::ops::Range;

use super::connection::{Connection, blame, fault};
use super::merged::{At, Bet, Flight, Gates, Memory, locks};
use crate::store::StoreError;
use crate::store::writer::Commit;

/// Groups below this are written one by one at once.
pub(super) const WORTH_IT: usize = 8;
/// Groups that are not halved any further.
const SMALLEST: usize = 3;
/// Groups tried in one transaction, each in a savepoint: a backend keeps the numbers of 64
/// subtransactions at hand.
const TRIED_MAX: usize = 60;

/// What was written.
pub(super) struct Halved {
    /// The transaction, which is still open.
    pub number: String,
    /// The places of the deliveries that were written.
    pub written: Vec<usize>,
    /// Whether there are gates among their subscriptions.
    pub gates: Gates,
}

/// Begins a transaction and writes what can be written in groups.
pub(super) fn run(
    connection: &Connection,
    memory: &mut Memory,
    commits: &[&Commit],
    at: At<'_>,
) -> Result<Halved, StoreError> {
    let keys: Vec<_> = commits.iter().map(|commit| commit.incoming.key).collect();
    let lock = locks(connection, &keys).map_err(|error| fault(&error))?;
    let (begun, _) = connection.begin_with(vec![lock]).map_err(|error| fault(&error))?;
    let mut halved = Halved { number: begun.number, written: Vec::new(), gates: Gates::None };
    let (left, right) = halves(0..commits.len());
    let mut groups = vec![right, left];
    let mut tried = 0;
    while let Some(group) = groups.pop()
        && tried < TRIED_MAX
    {
        tried += 1;
        let deliveries = commits.get(group.clone()).unwrap_or_default();
        let flight = match Flight::of(connection, memory, deliveries, at) {
            Ok(Some(flight)) => flight,
            Ok(None) => continue,
            Err(error) => {
                blame(&error)?;
                halved.written.clear();
                return Ok(halved);
            }
        };
        let bet = match flight.follow("SAVEPOINT half", connection, memory) {
            Ok(bet) => bet,
            Err(error) => blame(&error).map(|_| Bet::Lost)?,
        };
        match bet {
            Bet::Won(gates) => {
                halved.written.extend(group);
                if gates == Gates::Some {
                    halved.gates = gates;
                }
                connection.run("RELEASE half").map_err(|error| fault(&error))?;
                continue;
            }
            Bet::LogLost => return Err(StoreError::LogLost),
            Bet::Known(_) | Bet::Lost => {}
        }
        connection.run("ROLLBACK TO half; RELEASE half").map_err(|error| fault(&error))?;
        if group.len() > SMALLEST {
            let (left, right) = halves(group);
            groups.extend([right, left]);
        }
    }
    Ok(halved)
}

fn halves(group: Range<usize>) -> (Range<usize>, Range<usize>) {
    let middle = group.start.midpoint(group.end);
    (group.start..middle, middle..group.end)
}
