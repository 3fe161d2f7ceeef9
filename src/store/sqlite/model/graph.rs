//! Every world that can be reached, breadth first, so that the first history that leads to one is
//! a shortest one; and what must hold in all of them.

use std::collections::HashMap;

use super::machine::{Handler, Phase, Settings, World};
use super::step::{Happens, Nature, Step, Told};
use crate::custody::State;

/// A step to the world at `next`.
#[derive(Clone, Copy)]
pub(super) struct Edge {
    pub happens: Happens,
    pub told: Told,
    nature: Nature,
    pub next: usize,
}

/// The worlds that can be reached, in the order in which they were found.
pub(super) struct Graph {
    pub settings: Settings,
    pub worlds: Vec<World>,
    /// What can happen in each.
    pub edges: Vec<Vec<Edge>>,
    /// From where and by which edge each was found; none for the first.
    found_by: Vec<Option<(usize, usize)>>,
}

impl Graph {
    /// Searches all worlds.
    ///
    /// # Errors
    /// The shortest history that breaks a promise, as numbered sentences.
    pub(super) fn search(settings: Settings) -> Result<Self, String> {
        let first = World::published(&settings);
        let mut places = HashMap::from([(first.clone(), 0)]);
        let mut graph =
            Self { settings, worlds: vec![first], edges: Vec::new(), found_by: vec![None] };
        let mut at = 0;
        while let Some(before) = graph.worlds.get(at).cloned() {
            let mut edges = Vec::new();
            for step in before.steps(&settings) {
                if let Some(promise) = broken_promise(&before, &step, &settings) {
                    let mut history = graph.history(at);
                    history.push(step);
                    return Err(format!("{promise}:\n{}", sentences(&history)));
                }
                let Step { happens, told, nature, after } = step;
                let next = *places.entry(after).or_insert_with_key(|after| {
                    graph.worlds.push(after.clone());
                    graph.found_by.push(Some((at, edges.len())));
                    graph.worlds.len() - 1
                });
                edges.push(Edge { happens, told, nature, next });
            }
            graph.edges.push(edges);
            at += 1;
        }
        Ok(graph)
    }

    /// How many steps there are, from all worlds together.
    pub(super) fn steps(&self) -> usize {
        self.edges.iter().map(Vec::len).sum()
    }

    /// From where a world was found first.
    pub(super) fn found_from(&self, place: usize) -> Option<usize> {
        self.found_by[place].map(|(from, _)| from)
    }

    /// Whether the world at the edge's end was found first by it.
    pub(super) fn is_way_to(&self, place: usize, number: usize) -> bool {
        self.found_by[self.edges[place][number].next] == Some((place, number))
    }

    pub(super) fn step(&self, edge: Edge) -> Step {
        let Edge { happens, told, nature, next } = edge;
        Step { happens, told, nature, after: self.worlds[next].clone() }
    }

    /// The shortest history that leads to a world.
    pub(super) fn history(&self, mut place: usize) -> Vec<Step> {
        let mut history = Vec::new();
        while let Some((from, number)) = self.found_by[place] {
            // Of the world that is being searched the edges are not in the graph yet.
            history.push(self.step(self.edges[from][number]));
            place = from;
        }
        history.reverse();
        history
    }

    /// While nothing goes wrong, every history comes to an end by itself, and there the message
    /// is over or a person has it.
    ///
    /// # Errors
    /// The shortest history to a world from which that is not so.
    pub(super) fn every_benign_history_ends(&self) -> Result<(), String> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            OnTheWay,
            Ends,
        }
        let mut marks = vec![Mark::New; self.worlds.len()];
        for root in 0..self.worlds.len() {
            if marks[root] != Mark::New {
                continue;
            }
            marks[root] = Mark::OnTheWay;
            let mut way = vec![(root, self.benign(root))];
            while let Some((place, nexts)) = way.last_mut() {
                let place = *place;
                match nexts.pop().map(|next| (next, marks[next])) {
                    Some((next, Mark::New)) => {
                        marks[next] = Mark::OnTheWay;
                        way.push((next, self.benign(next)));
                    }
                    Some((next, Mark::OnTheWay)) => {
                        return Err(format!("a circle:\n{}", sentences(&self.history(next))));
                    }
                    Some((_, Mark::Ends)) => {}
                    None => {
                        marks[place] = Mark::Ends;
                        way.pop();
                    }
                }
            }
        }
        let stuck = (0..self.worlds.len()).find(|place| {
            let world = &self.worlds[*place];
            self.benign(*place).is_empty() && !world.may_rest(&self.settings)
        });
        match stuck {
            Some(place) => Err(format!("stuck:\n{}", sentences(&self.history(place)))),
            None => Ok(()),
        }
    }

    fn benign(&self, place: usize) -> Vec<usize> {
        let edges = self.edges[place].iter();
        let benign = edges.filter(|edge| edge.nature == Nature::Benign && edge.next != place);
        benign.map(|edge| edge.next).collect()
    }
}

/// The promise that a step breaks, if it breaks one.
fn broken_promise(before: &World, step: &Step, settings: &Settings) -> Option<&'static str> {
    let after = &step.after;
    let (attempts, recoveries) = after.row.map_or((0, 0), |row| (row.attempts, row.recoveries));
    let opens_a_case = after.state() == Some(State::Quarantined)
        && !matches!(before.state(), Some(State::Quarantined | State::Redriving));
    let promises = [
        (after.effects <= 1, "an effect commits twice"),
        (after.has_an_owner(), "nobody owns the message"),
        (
            !acknowledges(step.happens) || after.done || after.row.is_some(),
            "something is acknowledged that is not on disk",
        ),
        (!(opens_a_case && before.case.is_some()), "a second case is opened"),
        (recoveries <= settings.recoveries_max, "more recoveries are spent than there are"),
        (attempts <= settings.attempts_live_max, "more live attempts are counted than there are"),
        (
            settings.handler != Handler::Once || after.calls <= 1,
            "a call that must not be repeated is repeated",
        ),
        (
            before.state() != Some(State::Closed) || after.state() == Some(State::Closed),
            "a closed message runs again",
        ),
    ];
    promises.iter().find(|(holds, _)| !holds).map(|(_, promise)| *promise)
}

/// Whether the sidecar is told SUCCESS with this step.
fn acknowledges(happens: Happens) -> bool {
    match happens {
        Happens::AnswerArrives(run) => run.awaited && run.phase == Phase::TellsSuccess,
        Happens::DeadLetterArrives { answer_lost }
        | Happens::TwinIsHandedOver { answer_lost }
        | Happens::DeliveryIsHandedOver { answer_lost, .. } => !answer_lost,
        _ => false,
    }
}

/// A history for people.
pub(super) fn sentences(history: &[Step]) -> String {
    let numbered = history.iter().enumerate().map(|(n, step)| format!("  {:>2}. {step}", n + 1));
    numbered.collect::<Vec<_>>().join("\n")
}
