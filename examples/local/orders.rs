//! The orders of the story: what each is, and what has to become of it.

use serde_json::{Value, json};

use crate::inventory::Rule;
use crate::watch::Case;

/// The type of an order's event; see `src/orders.rs`.
const TYPE: &str = "shop.order.placed.v1";

/// One order.
#[derive(Debug)]
pub struct Order {
    /// Its id, its event's id and its name in the output.
    pub id: String,
    /// What it is, in a few words.
    pub what: &'static str,
    /// How often its event is published.
    pub copies: u64,
    /// What the inventory does with it.
    pub rule: Rule,
    /// Its event's data.
    pub data: Value,
    /// What has to become of it.
    pub fate: Fate,
    /// Calls of the inventory for it so far.
    pub calls: usize,
    /// Whether its row has been seen.
    pub has_row: bool,
    /// Its case, as last seen.
    pub case: Option<Case>,
}

/// What has to become of an order.
#[derive(Debug)]
pub enum Fate {
    /// A row in `orders`, after so many attempts.
    Accepted {
        /// Handler runs.
        attempts: usize,
    },
    /// A case.
    Case {
        /// Its category.
        category: &'static str,
        /// Its reason.
        reason: &'static str,
        /// Handler runs; any number above one when absent.
        attempts: Option<usize>,
    },
}

/// The orders, with this behind their ids: the database is kept between runs, and an id that was
/// there before would be a duplicate.
pub fn orders(suffix: &str) -> Vec<Order> {
    let order = |name: &str, what, rule, fate| {
        let id = format!("{name}-{suffix}");
        let items = json!([{ "sku": "tea", "qty": 2 }]);
        let data = json!({ "orderId": id, "total": "12.50", "currency": "EUR", "items": items });
        Order { id, what, copies: 1, rule, data, fate, calls: 0, has_row: false, case: None }
    };
    let accepted = |attempts| Fate::Accepted { attempts };
    let case = |category, reason, attempts| Fate::Case { category, reason, attempts };

    let mut twice = order("twice", "one event, published twice", Rule::Reserve, accepted(1));
    twice.copies = 2;
    let invalid = case("invalid", "schema_violation", Some(0));
    let mut malformed = order("malformed", "its total is not a number", Rule::Reserve, invalid);
    malformed.data = json!({ "orderId": malformed.id, "total": "a lot" });
    vec![
        order("good", "an ordinary order", Rule::Reserve, accepted(1)),
        twice,
        malformed,
        order(
            "refused",
            "the inventory refuses it",
            Rule::Reject("out_of_stock"),
            case("rejected", "out_of_stock", Some(1)),
        ),
        order("flaky", "the inventory fails twice", Rule::FailTimes(2), accepted(3)),
        order(
            "hopeless",
            "the inventory never works",
            Rule::FailAlways,
            case("exhausted", "inventory_unavailable", None),
        ),
    ]
}

impl Order {
    /// Its event.
    pub fn event(&self) -> Value {
        json!({
            "specversion": "1.0", "id": self.id, "source": "/demo/shop", "type": TYPE,
            "subject": self.id, "datacontenttype": "application/json", "data": self.data,
        })
    }

    /// Whether something has become of it.
    pub fn is_settled(&self) -> bool {
        self.has_row || self.case.is_some()
    }

    /// Whether it has to be accepted.
    pub fn is_to_be_accepted(&self) -> bool {
        matches!(self.fate, Fate::Accepted { .. })
    }

    /// Handler runs, redrives left out.
    pub fn attempts(&self) -> usize {
        self.case.as_ref().map_or(self.calls, |case| case.attempts)
    }

    /// What has become of it.
    pub fn became(&self) -> String {
        match (&self.case, self.has_row) {
            (Some(case), false) => format!("a case, {}: {}", case.category, case.reason),
            (None, true) => "a row in `orders`".to_owned(),
            (Some(case), true) => format!("a row and a case, {}: {}", case.category, case.reason),
            (None, false) => "nothing".to_owned(),
        }
    }

    /// What it became, if that is not its fate.
    pub fn wrong(&self) -> Option<String> {
        let attempts = self.attempts();
        let right = match (&self.fate, &self.case) {
            (Fate::Accepted { attempts: due }, None) => self.has_row && attempts == *due,
            (Fate::Case { category, reason, attempts: due }, Some(case)) => {
                let counted = due.map_or(attempts > 1, |due| attempts == due);
                !self.has_row && case.category == *category && case.reason == *reason && counted
            }
            _ => false,
        };
        (!right).then(|| {
            let (id, became, fate) = (&self.id, self.became(), &self.fate);
            format!("{id}: {became}, attempts: {attempts}; expected: {fate:?}")
        })
    }
}
