//! A memo table of the stages of a Piper workload and their times; emptied when it is full.

use std::{collections::HashMap, rc::Rc};

use crate::piper::Stage;

/// A stage: the ideals that it starts and ends at, and its degree.
type Key = (u32, u32, u8);

/// The most times that are kept.
const TIMES: usize = 1 << 18;
/// The most nodes of stages that are kept.
const NODES: usize = 1 << 16;

/// Memo table of stages and times.
#[derive(Default)]
pub(crate) struct Recent {
    times: HashMap<(Key, u32, u32), f64>,
    stages: HashMap<Key, Rc<Stage>>,
    n_nodes: usize,
}

impl Recent {
    /// Returns the time of a stage with replicas and micro-batches in flight.
    pub(crate) fn time(&self, key: Key, replicas: u32, in_flight: u32) -> Option<f64> {
        self.times.get(&(key, replicas, in_flight)).copied()
    }

    /// Returns a stage.
    pub(crate) fn stage(&self, key: Key) -> Option<Rc<Stage>> {
        self.stages.get(&key).cloned()
    }

    /// Keeps both.
    pub(crate) fn keep(&mut self, key: Key, replicas: u32, in_flight: u32, time: f64, stage: Rc<Stage>) {
        if self.times.len() >= TIMES {
            self.times.clear();
        }
        self.times.insert((key, replicas, in_flight), time);
        if self.n_nodes >= NODES {
            self.stages.clear();
            self.n_nodes = 0;
        }
        let n_nodes = stage.len();
        if self.stages.insert(key, stage).is_none() {
            self.n_nodes += n_nodes;
        }
    }
}
