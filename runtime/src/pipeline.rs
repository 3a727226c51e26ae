//! Runs an order: one thread a device, values over channels, replicas' gradients all-reduced before the update.
//!
//! Each device runs its own program and waits for nothing but values, as `simulate` assumes. Gradients of a value with
//! several consumers are summed in the order of the consumers, whatever the order of arrival: two runs of one pipeline
//! give the same bits.

use std::{
    collections::{BTreeMap, HashMap},
    sync::mpsc::{Receiver, Sender, channel},
    time::Instant,
};

use simulator::order::{Kind, Op, Order};

use crate::{Backend, BackendError, Source, Wiring, WiringError};

/// The times of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Operations of all devices, by device, in the order they ran.
    pub devices: Vec<Vec<MeasuredOp>>,
    /// Nanoseconds from the start of the first operation of each step to the end of its last update.
    pub steps: Vec<u64>,
}

/// One executed operation; times are nanoseconds since all devices were ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct MeasuredOp {
    pub step: usize,
    /// `None` for the update at the end of a step.
    pub op: Option<Op>,
    pub start: u64,
    pub end: u64,
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum RunError {
    #[error(transparent)]
    Wiring(#[from] WiringError),
    #[error("the schedule names stage {stage}, the pipeline has {n_stages} stages")]
    NoSuchStage { stage: usize, n_stages: usize },
    #[error("no device runs {what}")]
    Missing { what: String },
    #[error("device {device} failed in {what}: {source}")]
    Backend { device: usize, what: String, source: BackendError },
    #[error("device {device} stopped because another did")]
    Stopped { device: usize },
    #[error("device {device} crashed")]
    Crashed { device: usize },
}

/// Runs `n_steps` training steps of an order.
///
/// # Errors
/// When the order does not fit the wiring, or a device fails; the first failure is reported, the others stop.
pub fn run<B: Backend>(
    backend: &B,
    wiring: &Wiring,
    order: &Order,
    n_steps: usize,
) -> Result<Measured, RunError> {
    wiring.validate()?;
    let routes = Routes::new(wiring, order)?;
    let (senders, receivers): (Vec<_>, Vec<_>) = order.ranks.iter().map(|_| channel()).unzip();
    let ready = std::sync::Barrier::new(order.ranks.len());
    let start = std::sync::OnceLock::new();
    let results: Vec<Result<Vec<MeasuredOp>, RunError>> = std::thread::scope(|scope| {
        let spawn = |(device, inbox)| {
            let guard = StopOthers { senders: senders.clone(), armed: true };
            let (routes, ready, start) = (&routes, &ready, &start);
            scope.spawn(move || {
                let mut worker =
                    Worker { backend, wiring, routes, device, inbox, guard, arrived: HashMap::new() };
                let loaded = worker.load();
                ready.wait();
                let start = *start.get_or_init(Instant::now);
                let measured = worker.run(loaded?, &order.ranks[device], n_steps, start)?;
                worker.guard.armed = false;
                Ok(measured)
            })
        };
        let handles: Vec<_> = receivers.into_iter().enumerate().map(spawn).collect();
        let join = |(device, handle): (usize, std::thread::ScopedJoinHandle<'_, _>)| {
            handle.join().unwrap_or(Err(RunError::Crashed { device }))
        };
        handles.into_iter().enumerate().map(join).collect()
    });
    let cause = results.iter().filter_map(|result| result.as_ref().err());
    if let Some(error) = cause.min_by_key(|error| matches!(error, RunError::Stopped { .. })) {
        return Err(error.clone());
    }
    let devices: Vec<_> = results.into_iter().flatten().collect();
    let steps = (0..n_steps)
        .map(|step| {
            let ops = || devices.iter().flatten().filter(|op| op.step == step);
            let first = ops().map(|op| op.start).min().unwrap_or(0);
            ops().map(|op| op.end).max().unwrap_or(0) - first
        })
        .collect();
    Ok(Measured { devices, steps })
}

/// The device of each operation.
struct Routes {
    /// Device of a stage for a micro-batch.
    device: HashMap<(usize, u32), usize>,
    /// Devices of each stage, in order; more than one are replicas.
    replicas: Vec<Vec<usize>>,
    /// Consumers of each output of each stage.
    consumers: Vec<Vec<Vec<(usize, usize)>>>,
}

impl Routes {
    fn new(wiring: &Wiring, order: &Order) -> Result<Self, RunError> {
        let n_stages = wiring.stages.len();
        let mut device = HashMap::new();
        let mut replicas = vec![Vec::new(); n_stages];
        for (rank, ops) in order.ranks.iter().enumerate() {
            for op in ops {
                let stage = op.stage as usize;
                let devices = replicas.get_mut(stage).ok_or(RunError::NoSuchStage { stage, n_stages })?;
                device.insert((stage, op.micro_batch), rank);
                if !devices.contains(&rank) {
                    devices.push(rank);
                }
            }
        }
        for stage in 0..n_stages {
            for micro_batch in 0..order.n_micro_batches() as u32 {
                if !device.contains_key(&(stage, micro_batch)) {
                    let what = format!("stage {stage} for micro-batch {micro_batch}");
                    return Err(RunError::Missing { what });
                }
            }
        }
        Ok(Self { device, replicas, consumers: (0..n_stages).map(|stage| wiring.consumers(stage)).collect() })
    }
}

/// The key of an awaited value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Slot {
    /// Input of a stage.
    Activation { step: usize, stage: usize, micro_batch: u32, input: usize },
    /// Gradient of an output, from one consumer of it.
    Gradient { step: usize, stage: usize, micro_batch: u32, output: usize, consumer: (usize, usize) },
    /// Gradients of a replica, sent to the first one.
    Replica { step: usize, stage: usize, device: usize },
    /// Their sum, sent back.
    Sum { step: usize, stage: usize },
}

enum Message<V> {
    Values(Slot, Vec<Option<V>>),
    Stop,
}

/// Tells the other devices to stop unless this one succeeded.
struct StopOthers<V> {
    senders: Vec<Sender<Message<V>>>,
    armed: bool,
}

impl<V> Drop for StopOthers<V> {
    fn drop(&mut self) {
        if self.armed {
            for sender in &self.senders {
                // A device that has ended needs no message.
                let _ = sender.send(Message::Stop);
            }
        }
    }
}

struct Worker<'a, B: Backend> {
    backend: &'a B,
    wiring: &'a Wiring,
    routes: &'a Routes,
    device: usize,
    inbox: Receiver<Message<B::Value>>,
    guard: StopOthers<B::Value>,
    arrived: HashMap<Slot, Vec<Option<B::Value>>>,
}

type Stages<B> = BTreeMap<usize, <B as Backend>::Stage>;

impl<B: Backend> Worker<'_, B> {
    fn load(&self) -> Result<Stages<B>, RunError> {
        let hosted = self.routes.replicas.iter().enumerate().filter(|(_, on)| on.contains(&self.device));
        hosted
            .map(|(stage, _)| {
                let loaded = self.backend.load(stage, self.device);
                Ok((stage, loaded.map_err(self.failed(format!("loading stage {stage}")))?))
            })
            .collect()
    }

    fn run(
        &mut self,
        mut stages: Stages<B>,
        ops: &[Op],
        n_steps: usize,
        start: Instant,
    ) -> Result<Vec<MeasuredOp>, RunError> {
        let now = || start.elapsed().as_nanos() as u64;
        let mut measured = Vec::with_capacity((ops.len() + 1) * n_steps);
        for step in 0..n_steps {
            for &op in ops {
                let stage =
                    stages.get_mut(&(op.stage as usize)).expect("load made every stage of the program");
                let (start, end) = match op.kind {
                    Kind::Forward => self.forward(stage, step, op, now)?,
                    _ => self.backward(stage, step, op, now)?,
                };
                measured.push(MeasuredOp { step, op: Some(op), start, end });
            }
            let begun = now();
            self.add_replicas(&mut stages, step)?;
            for (index, stage) in &mut stages {
                self.backend.update(stage).map_err(self.failed(format!("updating stage {index}")))?;
            }
            measured.push(MeasuredOp { step, op: None, start: begun, end: now() });
        }
        Ok(measured)
    }

    fn forward(
        &mut self,
        stage: &mut B::Stage,
        step: usize,
        op: Op,
        now: impl Fn() -> u64,
    ) -> Result<(u64, u64), RunError> {
        let (index, micro_batch) = (op.stage as usize, op.micro_batch);
        let mut inputs = Vec::new();
        for (input, source) in self.wiring.stages[index].inputs.iter().enumerate() {
            inputs.push(match *source {
                Source::Input(position) => self
                    .backend
                    .input(step, micro_batch, position)
                    .map_err(self.failed(format!("input {position} of the model")))?,
                Source::Stage { .. } => self
                    .wait(Slot::Activation { step, stage: index, micro_batch, input })?
                    .pop()
                    .flatten()
                    .expect("an activation travels alone and whole"),
            });
        }
        let begun = now();
        let outputs =
            self.backend.forward(stage, micro_batch, inputs).map_err(self.failed(op.to_string()))?;
        // Read before the values are sent: a receiver must not seem to start before its input was made.
        let ended = now();
        let consumers = &self.routes.consumers[index];
        if outputs.len() != consumers.len() {
            let message = format!("it returned {} outputs instead of {}", outputs.len(), consumers.len());
            return Err(self.failed(op.to_string())(BackendError(message)));
        }
        for (value, consumers) in outputs.into_iter().zip(consumers) {
            for &(stage, input) in consumers {
                let slot = Slot::Activation { step, stage, micro_batch, input };
                let device = self.routes.device[&(stage, micro_batch)];
                self.send(device, slot, vec![Some(self.backend.share(&value))]);
            }
        }
        Ok((begun, ended))
    }

    fn backward(
        &mut self,
        stage: &mut B::Stage,
        step: usize,
        op: Op,
        now: impl Fn() -> u64,
    ) -> Result<(u64, u64), RunError> {
        let (index, micro_batch) = (op.stage as usize, op.micro_batch);
        let mut gradients = Vec::new();
        if op.kind.makes_input_gradient() {
            for (output, consumers) in self.routes.consumers[index].iter().enumerate() {
                let mut sum = None;
                for &consumer in consumers {
                    let slot = Slot::Gradient { step, stage: index, micro_batch, output, consumer };
                    let gradient = self.wait(slot)?.pop().flatten();
                    sum = match (sum, gradient) {
                        (Some(left), Some(right)) => {
                            Some(self.backend.add(left, right).map_err(self.failed(op.to_string()))?)
                        }
                        (left, right) => left.or(right),
                    };
                }
                gradients.push(sum);
            }
        }
        let begun = now();
        let input_gradients = self
            .backend
            .backward(stage, op.kind, micro_batch, gradients)
            .map_err(self.failed(op.to_string()))?;
        let ended = now();
        if op.kind.makes_input_gradient() {
            let mut input_gradients = input_gradients.into_iter();
            for (input, source) in self.wiring.stages[index].inputs.iter().enumerate() {
                let gradient = input_gradients.next().flatten();
                if let Source::Stage { stage, output } = *source {
                    let slot = Slot::Gradient { step, stage, micro_batch, output, consumer: (index, input) };
                    self.send(self.routes.device[&(stage, micro_batch)], slot, vec![gradient]);
                }
            }
        }
        Ok((begun, ended))
    }

    /// All-reduces the gradients of a stage's replicas; the first replica sums, in the order of the devices.
    fn add_replicas(&mut self, stages: &mut Stages<B>, step: usize) -> Result<(), RunError> {
        let mut replicated = Vec::new();
        for (&stage, loaded) in stages.iter_mut() {
            let replicas = &self.routes.replicas[stage];
            if replicas.len() > 1 {
                let own = self.backend.gradients(loaded);
                let own = own.map_err(self.failed(format!("gradients of stage {stage}")))?;
                let is_first = replicas[0] == self.device;
                if is_first {
                    replicated.push((stage, Some(own)));
                } else {
                    let slot = Slot::Replica { step, stage, device: self.device };
                    self.send(replicas[0], slot, own.into_iter().map(Some).collect());
                    replicated.push((stage, None));
                }
            }
        }
        for (stage, own) in &mut replicated {
            let Some(own) = own else { continue };
            let mut sum = std::mem::take(own);
            let others = &self.routes.replicas[*stage][1..];
            for &device in others {
                let theirs = self.wait(Slot::Replica { step, stage: *stage, device })?;
                let add = |(left, right)| self.backend.add(left, right);
                let pairs = sum.into_iter().zip(theirs.into_iter().flatten());
                let added: Result<Vec<_>, _> = pairs.map(add).collect();
                sum = added.map_err(self.failed(format!("gradients of stage {stage}")))?;
            }
            for &device in others {
                let copy = sum.iter().map(|value| Some(self.backend.share(value))).collect();
                self.send(device, Slot::Sum { step, stage: *stage }, copy);
            }
            *own = sum;
        }
        for (stage, own) in replicated {
            let sum = match own {
                Some(sum) => sum,
                None => self.wait(Slot::Sum { step, stage })?.into_iter().flatten().collect(),
            };
            let loaded = stages.get_mut(&stage).expect("it was hosted a moment ago");
            let set = self.backend.set_gradients(loaded, sum);
            set.map_err(self.failed(format!("gradients of stage {stage}")))?;
        }
        Ok(())
    }

    fn send(&self, device: usize, slot: Slot, values: Vec<Option<B::Value>>) {
        // A device that has failed has told all others to stop; its value is not needed.
        let _ = self.guard.senders[device].send(Message::Values(slot, values));
    }

    fn wait(&mut self, slot: Slot) -> Result<Vec<Option<B::Value>>, RunError> {
        loop {
            if let Some(values) = self.arrived.remove(&slot) {
                return Ok(values);
            }
            match self.inbox.recv() {
                Ok(Message::Values(slot, values)) => drop(self.arrived.insert(slot, values)),
                Ok(Message::Stop) | Err(_) => return Err(RunError::Stopped { device: self.device }),
            }
        }
    }

    fn failed(&self, what: String) -> impl FnOnce(BackendError) -> RunError + use<B> {
        let device = self.device;
        move |source| RunError::Backend { device, what, source }
    }
}
