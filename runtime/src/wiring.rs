//! Wiring: which output feeds which input.

/// The connections of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wiring {
    /// Stages in the order of the model.
    pub stages: Vec<StageWiring>,
    /// Number of inputs of the model.
    pub n_inputs: usize,
}

/// The connections of one stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageWiring {
    /// Where each input comes from.
    pub inputs: Vec<Source>,
    /// Number of outputs.
    pub n_outputs: usize,
}

/// Where an input of a stage comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// An input of the model.
    Input(usize),
    /// An output of an earlier stage.
    Stage {
        /// Its index.
        stage: usize,
        /// Position among its outputs.
        output: usize,
    },
}

/// Why a wiring is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum WiringError {
    #[error("there is no stage")]
    Empty,
    #[error("input {input} of stage {stage} comes from input {index} of the model, which has {n_inputs}")]
    NoSuchInput { stage: usize, input: usize, index: usize, n_inputs: usize },
    #[error("input {input} of stage {stage} comes from stage {from}, which is not an earlier stage")]
    NotEarlier { stage: usize, input: usize, from: usize },
    #[error(
        "input {input} of stage {stage} comes from output {output} of stage {from}, which has {n_outputs}"
    )]
    NoSuchOutput { stage: usize, input: usize, from: usize, output: usize, n_outputs: usize },
}

impl Wiring {
    /// Checks that every source exists and comes before its use.
    ///
    /// # Errors
    /// Reports the first invalid connection.
    pub fn validate(&self) -> Result<(), WiringError> {
        if self.stages.is_empty() {
            return Err(WiringError::Empty);
        }
        for (stage, wiring) in self.stages.iter().enumerate() {
            for (input, source) in wiring.inputs.iter().enumerate() {
                match *source {
                    Source::Input(index) if index >= self.n_inputs => {
                        return Err(WiringError::NoSuchInput {
                            stage,
                            input,
                            index,
                            n_inputs: self.n_inputs,
                        });
                    }
                    Source::Stage { stage: from, .. } if from >= stage => {
                        return Err(WiringError::NotEarlier { stage, input, from });
                    }
                    Source::Stage { stage: from, output } if output >= self.stages[from].n_outputs => {
                        let n_outputs = self.stages[from].n_outputs;
                        return Err(WiringError::NoSuchOutput { stage, input, from, output, n_outputs });
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Returns, for each output of a stage, the inputs that it feeds as (stage, input).
    pub fn consumers(&self, stage: usize) -> Vec<Vec<(usize, usize)>> {
        let mut consumers = vec![Vec::new(); self.stages[stage].n_outputs];
        for (later, wiring) in self.stages.iter().enumerate() {
            for (input, source) in wiring.inputs.iter().enumerate() {
                if let Source::Stage { stage: from, output } = *source
                    && from == stage
                {
                    consumers[output].push((later, input));
                }
            }
        }
        consumers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(sources: &[Source]) -> Wiring {
        let stages =
            sources.iter().map(|&source| StageWiring { inputs: vec![source], n_outputs: 1 }).collect();
        Wiring { stages, n_inputs: 1 }
    }

    #[test]
    fn joints_are_checked() {
        let from = |stage, output| Source::Stage { stage, output };
        let check = |sources: &[Source], expected| assert_eq!(chain(sources).validate(), expected);
        check(&[Source::Input(0), from(0, 0)], Ok(()));
        check(&[], Err(WiringError::Empty));
        check(
            &[Source::Input(2)],
            Err(WiringError::NoSuchInput { stage: 0, input: 0, index: 2, n_inputs: 1 }),
        );
        check(&[from(0, 0)], Err(WiringError::NotEarlier { stage: 0, input: 0, from: 0 }));
        check(
            &[Source::Input(0), from(0, 3)],
            Err(WiringError::NoSuchOutput { stage: 1, input: 0, from: 0, output: 3, n_outputs: 1 }),
        );
    }

    #[test]
    fn consumers_are_found_across_stages() {
        let first = Source::Stage { stage: 0, output: 0 };
        let wiring = chain(&[Source::Input(0), first, first]);
        assert_eq!(wiring.consumers(0), [vec![(1, 0), (2, 0)]]);
    }
}
