//! The table of what happens to a message, cell by cell, and what holds after any sequence.

use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp(1_800_000_000_000_000);
const CODE: Code = Code::new("stock_away");
/// The latest claim in every row of the table; 2 is one before it.
const RUN: i64 = 3;

const LIMITS: Limits = Limits {
    attempts_live_max: 3,
    recoveries_max: 2,
    backoff: Backoff { first: Duration::from_secs(10), max: Duration::from_secs(600) },
    age_max: Duration::from_secs(86_400),
    retry_guard: Duration::from_secs(60),
    lease: Duration::from_secs(60),
    probe_every: Duration::from_secs(10),
    remember_for: Duration::from_secs(7 * 86_400),
};

/// A cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    /// `-`: nothing is written.
    Unchanged,
    /// The effects and the inbox key are written, and no row is left.
    Done,
    Retrying,
    Recovering,
    /// Claimed for a delivery.
    Live,
    /// Claimed for recovery.
    Recovery,
    Redriving,
    /// A case is opened, or opened again.
    Case,
    Closed,
}

use Becomes::{
    Case, Closed as Tombstone, Done, Live, Recovering, Recovery, Redriving, Retrying,
    Unchanged as __,
};

/// The columns: no row, then a row in each state; `running` by whose claim it is.
const COLUMNS: [Option<(State, bool)>; 8] = [
    None,
    Some((State::Retrying, false)),
    Some((State::Recovering, false)),
    Some((State::Running, true)),
    Some((State::Running, false)),
    Some((State::Quarantined, false)),
    Some((State::Redriving, false)),
    Some((State::Closed, false)),
];

/// What each happening makes of a message that is not done.
fn table() -> Vec<(&'static str, Happening, u32, [Becomes; 8])> {
    use Authority::{Delivery, Run};
    use Happening as H;
    let failed = |authority| H::Failed(authority, CODE);
    let in_bulk = |authority| H::FailedInBulk(authority, CODE);
    let at_gate = |authority| H::FailedAtClosedGate(authority, CODE);
    let refused = |authority| H::Refused(authority, Category::Rejected, CODE);
    // The number is how many recoveries are spent: 1 of 2 leaves one, 2 of 2 is the cap.
    #[rustfmt::skip]
    let table = vec![
        //                                                           absent      retrying    recovering running:live running:rec. quarantined redriving   closed
        ("a delivery claims",       H::LiveClaim,               1, [Live,       Live,       __,        __,          __,          __,         __,         __]),
        ("a delivery claims, cap",  H::LiveClaim,               2, [Live,       Live,       __,        __,          __,          __,         __,         __]),
        ("a delivery commits",      H::Succeeded(Delivery),     1, [Done,       Done,       __,        __,          __,          __,         __,         __]),
        ("its claim commits",       H::Succeeded(Run(RUN)),     1, [__,         __,         __,        Done,        Done,        __,         Done,       __]),
        ("an old claim commits",    H::Succeeded(Run(RUN - 1)), 1, [__,         __,         __,        __,          __,          __,         __,         __]),
        ("a delivery fails",        failed(Delivery),           1, [Retrying,   Retrying,   __,        __,          __,          __,         __,         __]),
        ("a delivery fails, cap",   failed(Delivery),           2, [Retrying,   Retrying,   __,        __,          __,          __,         __,         __]),
        ("its claim fails",         failed(Run(RUN)),           1, [__,         __,         __,        Retrying,    Recovering,  __,         Case,       __]),
        ("its claim fails, cap",    failed(Run(RUN)),           2, [__,         __,         __,        Retrying,    Case,        __,         Case,       __]),
        ("an old claim fails",      failed(Run(RUN - 1)),       1, [__,         __,         __,        __,          __,          __,         __,         __]),
        ("in bulk: a delivery fails", in_bulk(Delivery),        1, [Recovering, Recovering, __,        __,          __,          __,         __,         __]),
        ("in bulk: its claim fails", in_bulk(Run(RUN)),         1, [__,         __,         __,        Recovering,  Recovering,  __,         Case,       __]),
        ("in bulk: an old claim fails", in_bulk(Run(RUN - 1)),  1, [__,         __,         __,        __,          __,          __,         __,         __]),
        ("in bulk: handed over",    H::HandedOver,              1, [Recovering, Recovering, __,        __,          __,          __,         __,         __]),
        ("in bulk: handed over, cap", H::HandedOver,            2, [Recovering, Recovering, __,        __,          __,          __,         __,         __]),
        ("gate: a delivery fails",  at_gate(Delivery),          1, [Retrying,   Retrying,   __,        __,          __,          __,         __,         __]),
        ("gate: its claim fails",   at_gate(Run(RUN)),          2, [__,         __,         __,        Retrying,    Recovering,  __,         Case,       __]),
        ("gate: an old claim fails", at_gate(Run(RUN - 1)),     2, [__,         __,         __,        __,          __,          __,         __,         __]),
        ("a delivery is refused",   refused(Delivery),          1, [Case,       Case,       __,        __,          __,          __,         __,         __]),
        ("its claim is refused",    refused(Run(RUN)),          1, [__,         __,         __,        Case,        Case,        __,         Case,       __]),
        ("an old claim is refused", refused(Run(RUN - 1)),      1, [__,         __,         __,        __,          __,          __,         __,         __]),
        ("a dead letter",           H::DeadLetter,              1, [Recovering, Recovering, __,        __,          __,          __,         __,         __]),
        ("a dead letter, cap",      H::DeadLetter,              2, [Recovering, Case,       __,        __,          __,          __,         __,         __]),
        ("its time is up",          H::TimePassed,              1, [__,         Recovering, __,        Recovering,  Recovering,  __,         Case,       __]),
        ("its time is up, cap",     H::TimePassed,              2, [__,         Recovering, __,        Recovering,  Case,        __,         Case,       __]),
        ("waited at a gate",        H::WaitedTooLong,           1, [__,         __,         Case,      __,          __,          __,         __,         __]),
        ("recovery claims",         H::RecoveryClaim,           1, [__,         __,         Recovery,  __,          __,          __,         __,         __]),
        ("recovery claims, cap",    H::RecoveryClaim,           2, [__,         __,         Case,      __,          __,          __,         __,         __]),
        ("an operator redrives",    H::RedriveClaim,            2, [__,         __,         __,        __,          __,          Redriving,  __,         __]),
        ("its claim goes back",     H::Released(RUN),           2, [__,         __,         __,        Retrying,    Recovering,  __,         Case,       __]),
        ("an old claim goes back",  H::Released(RUN - 1),       2, [__,         __,         __,        __,          __,          __,         __,         __]),
        ("a person closes",         H::Closed,                  2, [__,         __,         __,        __,          __,          Tombstone,  __,         __]),
    ];
    table
}

fn fresh(once: bool) -> Row {
    Row::fresh(0, once, NOW)
}

/// A row whose time is up.
fn row(state: State, live_claim: bool, recoveries: u32) -> Row {
    let leased = matches!(state, State::Running | State::Redriving);
    let waits = matches!(state, State::Retrying | State::Recovering);
    Row {
        state,
        run: RUN,
        lease_until: leased.then_some(NOW),
        due_at: waits.then_some(NOW),
        attempts: 1,
        recoveries,
        live_claim,
        ..fresh(false)
    }
}

fn judge(row: Option<&Row>, done: bool, happening: &Happening, now: Timestamp) -> Verdict {
    let fresh = Row { recoveries: row.map_or(2, |_| 0), ..fresh(false) };
    step(row, done, happening, &fresh, &LIMITS, 7, now)
}

fn becomes(verdict: &Verdict) -> Becomes {
    match verdict {
        Verdict::Nothing(_) => Becomes::Unchanged,
        Verdict::Commit => Becomes::Done,
        Verdict::Remove => panic!("a message that is not done is not removed"),
        Verdict::Put(row, opened) => {
            assert_eq!(opened.is_some(), row.state == State::Quarantined, "{row:?}");
            match row.state {
                State::Retrying => Retrying,
                State::Recovering => Recovering,
                State::Running if row.live_claim => Live,
                State::Running => Recovery,
                State::Quarantined => Case,
                State::Redriving => Redriving,
                State::Closed => Tombstone,
            }
        }
    }
}

#[test]
fn every_happening_does_to_every_state_what_the_table_says() {
    for (name, happening, recoveries, cells) in table() {
        for (column, expected) in COLUMNS.into_iter().zip(cells) {
            let row = column.map(|(state, live)| row(state, live, recoveries));
            let verdict = judge(row.as_ref(), false, &happening, NOW);
            assert_eq!(becomes(&verdict), expected, "{name}, {column:?}: {verdict:?}");
            if let Verdict::Nothing(standing) = verdict {
                let owner = row.map_or(Standing::Absent, |row| Standing::Owned(row.state));
                assert_eq!(standing, owner, "{name}, {column:?}");
            }
        }
    }
}

#[test]
fn a_row_that_stands_beside_an_inbox_key_goes_and_nothing_runs() {
    for (name, happening, recoveries, _) in table() {
        for column in COLUMNS {
            let row = column.map(|(state, live)| row(state, live, recoveries));
            let expected =
                if row.is_some() { Verdict::Remove } else { Verdict::Nothing(Standing::Done) };
            let verdict = judge(row.as_ref(), true, &happening, NOW);
            assert_eq!(verdict, expected, "{name}, {column:?}");
        }
    }
}

#[test]
fn nothing_is_overdue_one_moment_too_early() {
    for (state, live) in COLUMNS.into_iter().flatten() {
        let row = row(state, live, 2);
        let early = judge(Some(&row), false, &Happening::TimePassed, Timestamp(NOW.0 - 1));
        assert_eq!(early, Verdict::Nothing(Standing::Owned(state)), "{state:?}");
    }
}

#[test]
fn a_lost_run_that_must_not_be_repeated_has_an_unknown_outcome_whoever_started_it() {
    for (state, live) in
        [(State::Running, true), (State::Running, false), (State::Redriving, false)]
    {
        let row = Row { once: true, ..row(state, live, 0) };
        let Verdict::Put(_, Some(case)) = judge(Some(&row), false, &Happening::TimePassed, NOW)
        else {
            panic!("{state:?} opens no case")
        };
        assert_eq!(case.category, Some(Category::OutcomeUnknown), "{state:?}");
    }
}

#[test]
fn a_run_that_took_its_process_with_it_is_told_from_one_that_failed() {
    let row = row(State::Running, false, 2);
    let lost = judge(Some(&row), false, &Happening::TimePassed, NOW);
    let failed = judge(Some(&row), false, &Happening::Failed(Authority::Run(RUN), CODE), NOW);
    let categories = [lost, failed].map(|verdict| match verdict {
        Verdict::Put(_, Some(case)) => case.category,
        other => panic!("{other:?}"),
    });
    assert_eq!(categories, [Some(Category::CrashedProcess), Some(Category::Exhausted)]);
}

#[test]
fn a_recovery_is_spent_by_the_claim_and_given_back_only_by_a_report() {
    let spent = |verdict: Verdict| match verdict {
        Verdict::Put(row, _) => row.recoveries,
        other => panic!("{other:?}"),
    };
    let never = Row { never_attempted: true, ..row(State::Recovering, false, 0) };
    let claimed = judge(Some(&never), false, &Happening::RecoveryClaim, NOW);
    assert_eq!(spent(claimed), 1, "also the first run of a message never attempted");
    let running = row(State::Running, false, 1);
    let after = |happening| spent(judge(Some(&running), false, &happening, NOW));
    assert_eq!(after(Happening::TimePassed), 1);
    assert_eq!(after(Happening::Failed(Authority::Run(RUN), CODE)), 1);
    assert_eq!(after(Happening::FailedAtClosedGate(Authority::Run(RUN), CODE)), 0);
    assert_eq!(after(Happening::Released(RUN)), 0);
}

#[test]
fn a_message_past_its_age_is_not_recovered_again_and_one_never_attempted_gets_one_run_first() {
    let late = NOW.plus(LIMITS.age_max).plus(Duration::from_micros(1));
    let verdict = |row: &Row, happening| becomes(&judge(Some(row), false, &happening, late));
    let failed = Happening::Failed(Authority::Run(RUN), CODE);
    let at_gate = Happening::FailedAtClosedGate(Authority::Run(RUN), CODE);
    let running = row(State::Running, false, 1);
    assert_eq!(verdict(&running, failed), Case);
    assert_eq!(verdict(&running, at_gate), Case);
    let never = Row { never_attempted: true, ..row(State::Recovering, false, 0) };
    assert_eq!(verdict(&never, Happening::WaitedTooLong), __);
    assert_eq!(verdict(&never, Happening::RecoveryClaim), Recovery);
}

#[test]
fn the_live_failure_that_reaches_the_cap_goes_to_recovery() {
    let mut row = None;
    let mut states = Vec::new();
    for _ in 0..LIMITS.attempts_live_max {
        let failed = Happening::Failed(Authority::Delivery, CODE);
        let Verdict::Put(next, None) = judge(row.as_ref(), false, &failed, NOW) else {
            panic!("a failure opens no case")
        };
        states.push(next.state);
        row = Some(next);
    }
    assert_eq!(states, [State::Retrying, State::Retrying, State::Recovering]);
}

#[test]
fn a_counter_that_travels_counts_only_upwards() {
    let known = row(State::Retrying, false, 1);
    for (travelled, expected) in [(0, 1), (2, 2)] {
        let fresh = Row::fresh(travelled, false, NOW);
        let failed = Happening::Failed(Authority::Delivery, CODE);
        for happening in [failed, Happening::LiveClaim] {
            let Verdict::Put(row, _) =
                step(Some(&known), false, &happening, &fresh, &LIMITS, 7, NOW)
            else {
                panic!("{happening:?} writes nothing")
            };
            assert_eq!(row.recoveries, expected, "{happening:?} with {travelled}");
        }
    }
}

#[test]
fn what_a_batch_leaves_open_waits_as_long_as_before_a_first_recovery() {
    let put = |row: Option<&Row>, happening| match judge(row, false, &happening, NOW) {
        Verdict::Put(row, None) => row,
        other => panic!("{other:?}"),
    };
    let due_after = |spent| Some(NOW.plus(LIMITS.backoff.delay(spent, 7)));
    // A first write takes over how many were spent elsewhere: here, two.
    let due_at = due_after(2);
    let failed = put(None, Happening::FailedInBulk(Authority::Delivery, CODE));
    assert_eq!((failed.attempts, failed.never_attempted, failed.due_at), (1, false, due_at));
    let handed_over = put(None, Happening::HandedOver);
    let seen = (handed_over.attempts, handed_over.never_attempted, handed_over.due_at);
    assert_eq!(seen, (0, true, due_at));
    let retrying = Row { attempts: 2, ..row(State::Retrying, false, 0) };
    let handed_over = put(Some(&retrying), Happening::HandedOver);
    let seen = (handed_over.attempts, handed_over.never_attempted, handed_over.due_at);
    assert_eq!(seen, (2, false, due_after(0)), "it was attempted");
}

#[test]
fn every_state_has_a_name_that_leads_back_to_it() {
    for state in State::ALL {
        assert_eq!(State::parse(state.as_str()), Some(state));
    }
    assert_eq!(State::parse("nonsense"), None);
}

/// One happening of a random life: which, under which claim, and how long after the one before.
fn any_happening() -> impl Strategy<Value = (u8, i64, u64)> {
    (0..17_u8, 0..4_i64, prop_oneof![Just(0), Just(5), Just(61), Just(700), Just(50_000)])
}

/// `back` counts claims back from the latest; 0 is the one the row waits for.
fn happening(which: u8, latest: i64, back: i64) -> Happening {
    let run = Authority::Run(latest - back);
    match which {
        0 => Happening::LiveClaim,
        1 => Happening::Succeeded(run),
        2 => Happening::Failed(Authority::Delivery, CODE),
        3 | 4 => Happening::Failed(run, CODE),
        5 => Happening::FailedAtClosedGate(run, CODE),
        6 => Happening::Refused(Authority::Delivery, Category::Rejected, CODE),
        7 => Happening::Refused(run, Category::Rejected, CODE),
        8 => Happening::DeadLetter,
        9 => Happening::TimePassed,
        10 => Happening::RecoveryClaim,
        11 => Happening::RedriveClaim,
        12 => Happening::Released(latest - back),
        13 => Happening::FailedInBulk(Authority::Delivery, CODE),
        14 => Happening::FailedInBulk(run, CODE),
        15 => Happening::HandedOver,
        _ => Happening::WaitedTooLong,
    }
}

fn claim_of(happening: &Happening) -> Option<i64> {
    match happening {
        Happening::Succeeded(Authority::Run(run))
        | Happening::Failed(Authority::Run(run), _)
        | Happening::FailedInBulk(Authority::Run(run), _)
        | Happening::FailedAtClosedGate(Authority::Run(run), _)
        | Happening::Refused(Authority::Run(run), ..)
        | Happening::Released(run) => Some(*run),
        _ => None,
    }
}

proptest! {
    #[test]
    fn no_life_passes_a_bound(
        life in prop::collection::vec(any_happening(), 0..60),
        attempts_live_max in 1..4_u32,
        recoveries_max in 0..4_u32,
        once: bool,
        seed: u64,
    ) {
        let limits = Limits { attempts_live_max, recoveries_max, ..LIMITS };
        let (mut row, mut now): (Option<Row>, _) = (None, NOW);
        for (which, back, seconds) in life {
            now = now.plus(Duration::from_secs(seconds));
            let before = row;
            let latest = before.map_or(0, |row| row.run);
            let happening = happening(which, latest, back);
            let fresh = Row::fresh(0, once, now);
            let verdict = step(before.as_ref(), false, &happening, &fresh, &limits, seed, now);
            let fenced_out = claim_of(&happening).is_some_and(|run| run != latest || latest == 0);
            if fenced_out {
                let is_nothing = matches!(verdict, Verdict::Nothing(_));
                prop_assert!(is_nothing, "{:?} writes {:?}", happening, verdict);
            }
            let (after, opened) = match verdict {
                Verdict::Put(after, opened) => (after, opened),
                // Done: from here on nothing can be written.
                Verdict::Commit => break,
                Verdict::Nothing(_) => continue,
                Verdict::Remove => return Err(TestCaseError::fail("removed, and not done")),
            };
            prop_assert!(after.recoveries <= recoveries_max, "{after:?}");
            prop_assert!(after.attempts <= attempts_live_max, "{after:?}");
            prop_assert!(after.run >= latest, "{after:?}");
            let claims = matches!(after.state, State::Running | State::Redriving);
            prop_assert_eq!(after.run, latest + i64::from(claims), "a claim has a number of its own");
            prop_assert_eq!(after.lease_until.is_some(), claims, "{:?}", after);
            let waits = matches!(after.state, State::Retrying | State::Recovering);
            prop_assert_eq!(after.due_at.is_some(), waits, "{:?}", after);
            prop_assert_eq!(opened.is_some(), after.state == State::Quarantined, "{:?}", after);
            if let Some(before) = before {
                prop_assert_eq!(before.first_seen_at, after.first_seen_at);
                prop_assert_ne!(before.state, State::Closed, "a closed case is a tombstone");
            }
            row = Some(after);
        }
    }
}
