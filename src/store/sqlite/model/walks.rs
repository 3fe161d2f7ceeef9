//! Leads the store through histories of the model: all short ones, and long ones by chance.

use std::collections::HashSet;

use super::driver::{BEGIN, Store};
use super::graph::{Graph, sentences};
use super::machine::{Case, Row, Run, Settings, World};
use super::step::{Happens, Nature, Step, Told};
use crate::clock::Timestamp;

/// How much was walked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Walked {
    pub histories: usize,
    /// Steps in which the store, or its clock, had a part.
    pub operations: usize,
    /// The longest history, in steps.
    pub longest: usize,
}

/// What the store can know of a world, with the runs that can still write, and what happens to
/// it next: a pair that was followed once need not be followed again, whatever broker and sidecar
/// look like around it.
type Situation = (Option<Row>, bool, u8, Option<Case>, Vec<Run>, Happens);

fn situation(world: &World, happens: Happens) -> Situation {
    let mut runs: Vec<Run> = world
        .runs
        .iter()
        .filter(|run| run.may_write())
        .copied()
        .map(as_the_store_sees_it)
        .collect();
    runs.sort_unstable();
    (world.row, world.done, world.effects, world.case, runs, without_its_sender(happens))
}

fn as_the_store_sees_it(run: Run) -> Run {
    Run { replica: 0, calls_left: 0, awaited: false, ..run }
}

fn without_its_sender(happens: Happens) -> Happens {
    match happens {
        Happens::DeliveryClaims(run) => Happens::DeliveryClaims(as_the_store_sees_it(run)),
        Happens::RunCommits(run) => Happens::RunCommits(as_the_store_sees_it(run)),
        Happens::RunFails(run) => Happens::RunFails(as_the_store_sees_it(run)),
        Happens::RunFailsAtClosedGate(run) => {
            Happens::RunFailsAtClosedGate(as_the_store_sees_it(run))
        }
        Happens::RunRejects(run) => Happens::RunRejects(as_the_store_sees_it(run)),
        Happens::RunDoesNotKnow(run) => Happens::RunDoesNotKnow(as_the_store_sees_it(run)),
        Happens::ClaimIsGivenBack(run) => Happens::ClaimIsGivenBack(as_the_store_sees_it(run)),
        Happens::DeadLetterArrives { .. } => Happens::DeadLetterArrives { answer_lost: false },
        Happens::TwinIsHandedOver { .. } | Happens::DeliveryIsHandedOver { .. } => {
            Happens::TwinIsHandedOver { answer_lost: false }
        }
        Happens::RecoveryClaims { .. } => Happens::RecoveryClaims { replica: 0 },
        other => other,
    }
}

/// Whether the store, or its clock, has a part in the step.
fn concerns_the_store(happens: Happens, told: Told) -> bool {
    told != Told::NotAsked
        || matches!(
            happens,
            Happens::DeliveryArrives { .. }
                | Happens::LeaseOfDeadRunEnds
                | Happens::LeaseOfPausedRunEnds
                | Happens::ProcessStartsAgain
        )
}

/// Every operation in every situation that can be reached, each at the end of a shortest history.
/// The histories share their beginnings, so the store goes through them as a tree: it undoes what
/// one branch wrote before it takes the next.
pub(super) struct Tree<'a> {
    graph: &'a Graph,
    store: Store,
    /// Places on the way to an operation that has to be followed.
    on_the_way: Vec<bool>,
    /// Operations to follow, by place and by their number among the steps there.
    wanted: HashSet<(usize, usize)>,
    walked: Walked,
    /// The shortest history after which store and model differ.
    differs: Option<(Vec<Step>, String)>,
}

impl<'a> Tree<'a> {
    pub(super) fn plan(graph: &'a Graph) -> Self {
        let mut seen = HashSet::new();
        let mut wanted = HashSet::new();
        let mut on_the_way = vec![false; graph.worlds.len()];
        for (place, edges) in graph.edges.iter().enumerate() {
            for (number, edge) in edges.iter().enumerate() {
                if !concerns_the_store(edge.happens, edge.told)
                    || !seen.insert(situation(&graph.worlds[place], edge.happens))
                {
                    continue;
                }
                wanted.insert((place, number));
                let mut at = Some(place);
                while let Some(way) = at.filter(|way| !on_the_way[*way]) {
                    on_the_way[way] = true;
                    at = graph.found_from(way);
                }
            }
        }
        let store = Store::open(graph.settings);
        Self { graph, store, on_the_way, wanted, walked: Walked::default(), differs: None }
    }

    /// # Errors
    /// The shortest history after which store and model differ, as numbered sentences.
    pub(super) fn walk(mut self) -> Result<Walked, String> {
        self.walk_from(0, BEGIN, 1);
        match self.differs {
            Some((history, how)) => Err(format!("{how}, after:\n{}", sentences(&history))),
            None => Ok(self.walked),
        }
    }

    fn walk_from(&mut self, place: usize, now: Timestamp, length: usize) {
        let graph = self.graph;
        for (number, edge) in graph.edges[place].iter().enumerate() {
            let leads_on = self.on_the_way[edge.next] && graph.is_way_to(place, number);
            if !leads_on && !self.wanted.contains(&(place, number)) {
                continue;
            }
            let mut later = now;
            self.store.begin();
            let mut agree = true;
            if concerns_the_store(edge.happens, edge.told) {
                self.walked.operations += 1;
                self.walked.longest = self.walked.longest.max(length);
                let step = graph.step(*edge);
                if let Err(how) = self.store.follow(&step, &mut later) {
                    agree = false;
                    self.differ(place, step, how);
                }
            }
            if leads_on && agree {
                self.walk_from(edge.next, later, length + 1);
            } else {
                self.walked.histories += 1;
            }
            self.store.undo();
        }
    }

    fn differ(&mut self, place: usize, step: Step, how: String) {
        let mut history = self.graph.history(place);
        history.push(step);
        if self.differs.as_ref().is_none_or(|(known, _)| history.len() < known.len()) {
            self.differs = Some((history, how));
        }
    }
}

/// SplitMix64: a stream of numbers that a seed repeats.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % bound as u64).unwrap_or(0)
    }
}

/// Walks that a seed chooses, each of at most `steps_max` steps and then on to its benign end.
///
/// # Errors
/// The history after which store and model differ, as numbered sentences.
pub(super) fn by_chance(
    settings: Settings,
    seed: u64,
    histories: usize,
    steps_max: usize,
) -> Result<Walked, String> {
    let store = Store::open(settings);
    let mut chance = Chance(seed);
    let mut walked = Walked::default();
    for _ in 0..histories {
        let mut history = Vec::new();
        store.begin();
        one_by_chance(&store, settings, &mut chance, steps_max, &mut history, &mut walked)
            .map_err(|difference| format!("{difference}, after:\n{}", sentences(&history)))?;
        store.undo();
        walked.histories += 1;
        walked.longest = walked.longest.max(history.len());
    }
    Ok(walked)
}

fn one_by_chance(
    store: &Store,
    settings: Settings,
    chance: &mut Chance,
    steps_max: usize,
    history: &mut Vec<Step>,
    walked: &mut Walked,
) -> Result<(), String> {
    let mut now = BEGIN;
    let mut world = World::published(&settings);
    loop {
        let mut steps = world.steps(&settings);
        // Once the walk is long enough nothing goes wrong any more.
        let calm = history.len() >= steps_max;
        steps.retain(|step| step.after != world && (!calm || step.nature == Nature::Benign));
        if steps.is_empty() {
            break;
        }
        let step = steps.swap_remove(chance.below(steps.len()));
        world = step.after.clone();
        let concerns = concerns_the_store(step.happens, step.told);
        history.push(step);
        if concerns && let Some(step) = history.last() {
            walked.operations += 1;
            store.follow(step, &mut now)?;
        }
    }
    if world.may_rest(&settings) {
        return Ok(());
    }
    Err("nothing more happens, and the message is neither over nor with a person".to_owned())
}
