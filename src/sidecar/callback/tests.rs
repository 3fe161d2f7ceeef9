use super::*;
use crate::outcome::{Category, reason};

#[test]
fn only_what_is_on_disk_is_acknowledged_and_a_batch_is_never_answered_retry() {
    use Answer::{Retry, Success, Unavailable};
    let table = [
        (Outcome::Processed, [Success, Success]),
        (Outcome::Duplicate, [Success, Success]),
        (Outcome::Linked, [Success, Success]),
        (Outcome::Ignored, [Success, Success]),
        (Outcome::Quarantined(Category::Invalid), [Success, Success]),
        (Outcome::Recovering, [Success, Success]),
        (Outcome::Retrying(reason::HANDLER_FAILED), [Retry, Unavailable]),
        (Outcome::Busy, [Retry, Unavailable]),
        (Outcome::StoreAway, [Unavailable, Unavailable]),
    ];
    for (outcome, answers) in &table {
        for (call, answer) in [Call::Single, Call::Bulk].into_iter().zip(answers) {
            assert_eq!(answer_to(outcome, call), *answer, "{outcome:?} {call:?}");
            let with_a_good_one = [Outcome::Processed, outcome.clone(), Outcome::Processed];
            let among_good_ones = answer_of(&with_a_good_one, call);
            assert_eq!(among_good_ones, *answer, "{outcome:?} {call:?} among good ones");
        }
        // What single deliveries have retried is handed to the store in a batch.
        assert_eq!(is_open(std::slice::from_ref(outcome)), answers[0] == Retry, "{outcome:?}");
    }
    assert_eq!(answer_of(&[], Call::Single), Success, "an empty batch has nothing to lose");
}

#[test]
fn a_store_that_is_away_answers_unavailable_and_nothing_answers_unimplemented() {
    assert_eq!(status_of(Answer::Success).unwrap() as i32, 0);
    assert_eq!(status_of(Answer::Retry).unwrap() as i32, 1);
    assert_eq!(status_of(Answer::Unavailable).unwrap_err().code(), tonic::Code::Unavailable);
}

#[test]
fn a_batch_is_handed_over_early_enough_to_be_written_and_not_much_earlier() {
    for (left, margin) in [(25_000, 2_000), (8_000, 2_000), (4_000, 1_000), (0, 0)] {
        let [left, margin] = [left, margin].map(Duration::from_millis);
        let now = Instant::now();
        assert_eq!(now + left - hand_over_at(now, now + left), margin, "{left:?}");
    }
}
