//! The results of a comparison, whichever side ran it: libtorch in this process, or a Python interpreter.

use runtime::{Difference, GradientDifference};
use schema::{TensorDifference, VerifiedExchange, VerifiedForm, VerifiedShards};
use serde_json::Value;

/// One format of the stages, compared with the whole model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compared {
    /// `torchscript` or `python`.
    pub form: String,
    /// Outputs of the model in the first forward pass.
    pub outputs: Vec<Difference>,
    /// Gradients of the first steps.
    pub gradients: Vec<GradientDifference>,
    /// Losses of each step: whole model, stages.
    pub losses: Vec<(f64, f64)>,
    /// Results of several processes.
    pub shards: Option<Shards>,
}

/// Stages shared by several processes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shards {
    /// Number of processes.
    pub ranks: u32,
    /// Replicated tensors, compared with the first process's.
    pub replicated: Vec<Difference>,
    /// Bytes sent in a step.
    pub exchanges: Vec<VerifiedExchange>,
}

impl Compared {
    /// Reads the results of an interpreter; `None` if they have another format.
    pub fn from_json(value: &Value) -> Option<Self> {
        let rows_of = |value: &Value, name: &str| value.get(name).and_then(Value::as_array).cloned();
        let rows = |name: &str| Some(rows_of(value, name)?.into_iter());
        let difference = |row: &[Value]| {
            let [name, absolute, relative] = row else { return None };
            Some(Difference {
                name: name.as_str()?.to_string(),
                absolute: number(absolute)?,
                relative: number(relative)?,
            })
        };
        let gradient = |row: Value| {
            let [name, stage, absolute, relative, is_zero] = row.as_array()?.as_slice() else { return None };
            Some(GradientDifference {
                difference: difference(&[name.clone(), absolute.clone(), relative.clone()])?,
                stage: u32::try_from(stage.as_u64()?).ok()?,
                is_zero: is_zero.as_bool()?,
            })
        };
        let pair = |row: Value| {
            let [whole, stages] = row.as_array()?.as_slice() else { return None };
            Some((number(whole)?, number(stages)?))
        };
        let exchange = |row: &Value| {
            let [phase, collective, calls, bytes, planned] = row.as_array()?.as_slice() else { return None };
            Some(VerifiedExchange {
                phase: phase.as_str()?.to_string(),
                collective: collective.as_str()?.to_string(),
                calls: calls.as_u64()?,
                bytes: bytes.as_u64()?,
                planned_bytes: planned.as_u64(),
            })
        };
        let shards = |value: &Value| {
            let replicated = rows_of(value, "replicated")?;
            Some(Shards {
                ranks: u32::try_from(value.get("ranks")?.as_u64()?).ok()?,
                replicated: replicated
                    .iter()
                    .map(|row| difference(row.as_array()?))
                    .collect::<Option<_>>()?,
                exchanges: rows_of(value, "exchanges")?.iter().map(exchange).collect::<Option<_>>()?,
            })
        };
        let shards = match value.get("shards") {
            Some(value) => Some(shards(value)?),
            None => None,
        };
        Some(Self {
            shards,
            form: value.get("form")?.as_str()?.to_string(),
            outputs: rows("outputs")?.map(|row| difference(row.as_array()?)).collect::<Option<_>>()?,
            gradients: rows("gradients")?.map(gradient).collect::<Option<_>>()?,
            losses: rows("losses")?.map(pair).collect::<Option<_>>()?,
        })
    }

    /// Returns the verdict on this format.
    pub fn judged(&self, tolerance: f64) -> VerifiedForm {
        // Training that diverges must diverge in both.
        let is_same = |whole: f64, stages: f64| whole == stages || whole.is_nan() && stages.is_nan();
        // Losses are sums of terms of both signs, of about 1: near zero, an error relative to their size means nothing.
        let losses = self.losses.iter().map(|(whole, stages)| {
            if is_same(*whole, *stages) { 0.0 } else { (whole - stages).abs() / whole.abs().max(1.0) }
        });
        let losses_max_difference = largest(losses);
        let outputs_relative = largest(self.outputs.iter().map(|d| d.relative));
        let gradients_max_difference = largest(self.gradients.iter().map(|g| g.difference.relative));
        let of = |kind: &str, stage: Option<u32>, d: &Difference| TensorDifference {
            kind: kind.to_string(),
            name: d.name.clone(),
            stage,
            absolute: d.absolute,
            relative: d.relative,
        };
        let mut worst: Vec<TensorDifference> = self.outputs.iter().map(|d| of("output", None, d)).collect();
        worst.extend(self.gradients.iter().map(|g| of("gradient", Some(g.stage), &g.difference)));
        worst.sort_by(|a, b| b.relative.total_cmp(&a.relative).then_with(|| a.name.cmp(&b.name)));
        worst.truncate(5);
        let is_within = |value: f64| value <= tolerance;
        let shards = self.shards.as_ref().map(Shards::judged);
        let are_shards_fine = shards.as_ref().is_none_or(|shards| {
            is_within(shards.replicated_max_difference) && shards.exchanges.iter().all(is_as_planned)
        });
        VerifiedForm {
            form: self.form.clone(),
            ok: are_shards_fine
                && [losses_max_difference, outputs_relative, gradients_max_difference]
                    .into_iter()
                    .all(is_within),
            steps: self.losses.len(),
            outputs_max_difference: largest(self.outputs.iter().map(|d| d.absolute)),
            gradients_max_difference,
            losses_max_difference,
            gradients_compared: self.gradients.len(),
            gradients_zero: self.gradients.iter().filter(|gradient| gradient.is_zero).count(),
            worst,
            losses: self.losses.clone(),
            shards,
        }
    }

    /// Returns the stage most likely at fault, and the tensor that shows it, if gradients tell: with correct outputs,
    /// the gradients of the faulty stage and of all stages before it are wrong.
    pub fn culprit(&self, tolerance: f64) -> Option<(u32, String)> {
        // NaN is never within a tolerance.
        let is_wrong =
            |difference: &Difference| difference.relative.is_nan() || difference.relative > tolerance;
        if self.outputs.iter().any(is_wrong) {
            return None;
        }
        let wrong = self.gradients.iter().filter(|gradient| is_wrong(&gradient.difference));
        let last = wrong.max_by_key(|gradient| gradient.stage)?;
        Some((last.stage, format!("gradient of {}", last.difference.name)))
    }
}

impl Shards {
    fn judged(&self) -> VerifiedShards {
        let worst = self.replicated.iter().filter(|one| one.absolute != 0.0);
        let worst = worst.max_by(|a, b| a.relative.total_cmp(&b.relative));
        VerifiedShards {
            ranks: self.ranks,
            replicated_compared: self.replicated.len(),
            replicated_max_difference: largest(self.replicated.iter().map(|one| one.relative)),
            replicated_worst: worst.map(|one| one.name.clone()),
            exchanges: self.exchanges.clone(),
        }
    }
}

/// Tells whether the exchanged bytes are the planned ones; true if the plan has none.
pub fn is_as_planned(exchange: &VerifiedExchange) -> bool {
    exchange.planned_bytes.is_none_or(|planned| planned == exchange.bytes)
}

/// NaN is a difference, too: a maximum must not lose it.
pub fn largest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(
        0.0,
        |largest: f64, value| {
            if largest.is_nan() || value.is_nan() { f64::NAN } else { largest.max(value) }
        },
    )
}

/// Reads a number; infinities and NaN are written as words.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of_losses(losses: &[(f64, f64)]) -> Compared {
        Compared { losses: losses.to_vec(), ..Compared::default() }
    }

    #[test]
    fn losses_that_are_no_numbers_on_both_sides_are_the_same() {
        let check = |losses: &[(f64, f64)], expected: bool| {
            assert_eq!(of_losses(losses).judged(1e-5).ok, expected, "{losses:?}");
        };
        let lost = f64::NAN;
        check(&[(1.0, 1.0), (0.5, 0.5)], true);
        check(&[(1.0, 1.0), (lost, lost)], true);
        check(&[(1.0, 1.0), (f64::INFINITY, f64::INFINITY)], true);
        check(&[(1.0, 1.0), (lost, 1.0)], false);
        check(&[(1.0, lost), (1.0, 1.0)], false);
        check(&[(f64::INFINITY, lost)], false);
        // A sum that happens to be small.
        check(&[(1e-9, 2e-9)], true);
    }

    #[test]
    fn what_an_interpreter_says_is_read() {
        let text = r#"{"form": "python", "outputs": [["output 0", 0.5, "nan"]], "losses": [[1.0, "inf"]],
            "gradients": [["a.weight", 1, 0.0, 0.0, true], ["b.weight", 2, 1.0, 0.5, false]]}"#;
        let compared = Compared::from_json(&serde_json::from_str(text).unwrap()).unwrap();
        let judged = compared.judged(1e-5);
        assert!(!judged.ok && judged.losses_max_difference.is_infinite());
        assert_eq!((judged.gradients_compared, judged.gradients_zero), (2, 1));
        assert!(judged.worst[0].relative.is_nan());
        assert_eq!(compared.culprit(1e-5), None);
        let right = Compared { outputs: Vec::new(), ..compared };
        assert_eq!(right.culprit(1e-5), Some((2, "gradient of b.weight".to_string())));
        assert!(Compared::from_json(&serde_json::json!({"form": "python"})).is_none());
    }
}
