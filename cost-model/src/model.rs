//! `CostModel`: curves of one device by kind, data type and phase, and their file.

use indexmap::IndexMap;
use schema::{
    COST_MODEL_VERSION, CallOverhead, CostModelFile, CurveAccuracy, CurveFile, DeviceType, GateFile, Numbers,
    Phase, Polynomial, Provenance, TermRange, WorkSize,
};

use crate::{
    curve::{Band, Correction, Curve, Gate, Usual},
    ridge::Linear,
    terms::{self, Terms},
    work::{Machine, Work},
};

/// How long operators take on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    /// Name of the device.
    pub device: String,
    /// Its figures.
    pub figures: DeviceType,
    /// Where the curves come from; nothing when there are none.
    pub provenance: Provenance,
    /// What a call costs besides its work; nothing when that was not measured.
    pub overhead: Option<CallOverhead>,
    curves: IndexMap<(String, String, Phase), (Curve, CurveAccuracy, &'static str)>,
}

/// Why a file makes no model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CostModelError {
    /// Terms of another release.
    #[error("curve `{curve}`: term `{term}` is not known")]
    UnknownTerm {
        /// Kind of the operator.
        curve: String,
        /// Name of the term.
        term: String,
    },
    /// A form of shape that does not exist.
    #[error("curve `{curve}`: `{form}` is no form of shape: product, convolution, attention or rows")]
    UnknownForm {
        /// Kind of the operator.
        curve: String,
        /// What was written.
        form: String,
    },
    /// Numbers are missing, too many, or not finite.
    #[error("curve `{curve}`: {part} does not fit the terms")]
    Numbers {
        /// Kind of the operator.
        curve: String,
        /// Which part.
        part: &'static str,
    },
}

impl CostModel {
    /// Makes a model without curves: everything is a roofline.
    pub fn of_data_sheet(device: &str, figures: &DeviceType) -> Self {
        Self {
            device: device.to_string(),
            figures: figures.clone(),
            provenance: Provenance::default(),
            overhead: None,
            curves: IndexMap::new(),
        }
    }

    /// Adds a curve; `size` is that of any of its rows.
    pub fn insert(
        &mut self,
        kind: &str,
        dtype: &str,
        phase: Phase,
        size: &WorkSize,
        curve: Curve,
        accuracy: CurveAccuracy,
    ) {
        self.curves.insert((kind.to_string(), dtype.to_string(), phase), (curve, accuracy, form(size)));
    }

    /// Returns the curve of a kind for this form of shape.
    pub fn curve(&self, kind: &str, dtype: &str, phase: Phase, size: &WorkSize) -> Option<&Curve> {
        // Looked up by comparing: a model has a few dozen curves, and a key of owned strings would be made each time.
        self.curves
            .iter()
            .find(|((k, d, p), value)| k == kind && d == dtype && *p == phase && value.2 == form(size))
            .map(|(_, value)| &value.0)
    }

    /// Says what the times come from: the profiles, or the data sheet.
    pub fn title(&self) -> String {
        match self.provenance.profiles.as_slice() {
            [] => format!("data sheet of {}", self.device),
            profiles => format!("{}, fitted to {}", self.device, profiles.join(", ")),
        }
    }

    /// Returns the seconds that a byte of fresh memory costs: the median of what curves say.
    pub(crate) fn fresh(&self) -> Option<f64> {
        let mut found: Vec<f64> = self.curves.values().filter_map(|(curve, ..)| curve.fresh()).collect();
        found.sort_by(f64::total_cmp);
        (!found.is_empty()).then(|| crate::evaluate::quantile(&found, 0.5))
    }

    /// Returns the number of curves.
    pub fn n_curves(&self) -> usize {
        self.curves.len()
    }

    /// Returns what is written to disk.
    pub fn to_file(&self) -> CostModelFile {
        CostModelFile {
            kind: "cost-model".to_string(),
            version: COST_MODEL_VERSION,
            device: self.device.clone(),
            figures: self.figures.clone(),
            provenance: self.provenance.clone(),
            overhead: self.overhead,
            curves: self
                .curves
                .iter()
                .map(|((kind, dtype, phase), (curve, accuracy, form))| {
                    curve_to_file(kind, dtype, *phase, curve, *accuracy, form)
                })
                .collect(),
        }
    }

    /// Makes the model that a file describes.
    ///
    /// # Errors
    /// When a curve's numbers do not belong together.
    pub fn from_file(file: &CostModelFile) -> Result<Self, CostModelError> {
        let mut curves = IndexMap::new();
        for curve in &file.curves {
            let key = (curve.kind.clone(), curve.dtype.clone(), curve.phase);
            let size = example(&curve.form).ok_or_else(|| CostModelError::UnknownForm {
                curve: curve.kind.clone(),
                form: curve.form.clone(),
            })?;
            let machine = Machine::of(&file.figures, &curve.dtype);
            let own = curve_from_file(curve, &size, machine)?;
            curves.insert(key, (own, curve.accuracy, form(&size)));
        }
        Ok(Self {
            device: file.device.clone(),
            figures: file.figures.clone(),
            provenance: file.provenance.clone(),
            overhead: file.overhead,
            curves,
        })
    }
}

fn form(size: &WorkSize) -> &'static str {
    match size {
        WorkSize::Product { .. } => "product",
        WorkSize::Convolution { .. } => "convolution",
        WorkSize::Attention { .. } => "attention",
        WorkSize::Rows { .. } => "rows",
        WorkSize::Table { .. } => "table",
    }
}

/// Returns a shape of a form, which is all that names of terms depend on.
fn example(form: &str) -> Option<WorkSize> {
    match form {
        "product" => Some(WorkSize::Product { batch: 1.0, m: 1.0, n: 1.0, k: 1.0 }),
        "convolution" => Some(WorkSize::Convolution {
            batch: 1.0,
            in_channels: 1.0,
            out_channels: 1.0,
            groups: 1.0,
            input: [1.0; 3],
            output: [1.0; 3],
            kernel: [1.0; 3],
            stride: [1.0; 3],
        }),
        "attention" => Some(WorkSize::Attention {
            batch: 1.0,
            heads: 1.0,
            kv_heads: 1.0,
            seq: 1.0,
            kv_seq: 1.0,
            head_dim: 1.0,
            causal: false,
        }),
        "rows" => Some(WorkSize::Rows { rows: 1.0, cols: 1.0, inputs: 1.0 }),
        "table" => Some(WorkSize::Table { rows: 1.0, cols: 1.0, vocabulary: 1.0 }),
        _ => None,
    }
}

/// Names the terms of a form: the anchor's and the bounded ones.
fn names(size: &WorkSize, machine: &Machine) -> (Vec<&'static str>, Vec<&'static str>) {
    let work = Work::of(*size, Phase::Forward, machine.element);
    let (mut anchor, mut bounded) = (Terms::named(), Terms::named());
    terms::anchor(&work, machine, &mut anchor);
    terms::bounded(&work, machine, 1.0, 1.0, &mut bounded);
    (anchor.names.unwrap_or_default(), bounded.names.unwrap_or_default())
}

fn curve_to_file(
    kind: &str,
    dtype: &str,
    phase: Phase,
    curve: &Curve,
    accuracy: CurveAccuracy,
    form: &str,
) -> CurveFile {
    let size = example(form).expect("a form of ours");
    let (anchor, bounded) = names(&size, &curve.machine);
    let correction = &curve.correction;
    let polynomial = |linear: &Linear| Polynomial {
        intercept: short(linear.intercept),
        coefficients: shorts(&linear.coefficients),
    };
    let term = |j: usize| TermRange {
        mean: short(correction.means[j]),
        scale: short(correction.scales[j]),
        range: both(correction.ranges[j]),
    };
    CurveFile {
        kind: kind.to_string(),
        dtype: dtype.to_string(),
        phase,
        accuracy,
        form: form.to_string(),
        anchor: anchor
            .iter()
            .zip(&curve.anchor)
            .filter(|(_, value)| **value > 0.0)
            .map(|(name, value)| ((*name).to_string(), short(*value)))
            .collect(),
        least: short(curve.least),
        hidden: short(curve.hidden),
        floor: short(curve.floor),
        terms: bounded.iter().enumerate().map(|(j, name)| ((*name).to_string(), term(j))).collect(),
        mean: None,
        usual: correction.usual.0.iter().map(|knot| both(*knot)).collect(),
        clip: both(correction.clip),
        linear: polynomial(&correction.linear),
        quadratic: (!correction.quadratic.coefficients.is_empty()).then(|| polynomial(&correction.quadratic)),
        gate: correction.gate.as_ref().map(|gate| GateFile {
            threshold: short(gate.h99),
            reach: short(gate.reach),
            sizes: gate.sizes.iter().map(|size| both(*size)).collect(),
            centres: Numbers(gate.rows.iter().map(|(_, centre)| short(*centre)).collect()),
            rows: gate.rows.iter().map(|(row, _)| shorts(row)).collect(),
        }),
        band: curve
            .band
            .knots
            .iter()
            .map(|(at, low, high)| (short(*at), short(*low), short(*high)))
            .collect(),
        band_outside: both(curve.band.outside),
        warm: short(curve.warm),
    }
}

/// Rounds to four digits: no clock gives more, and files stay small.
fn short(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

fn shorts(values: &[f64]) -> Numbers {
    Numbers(values.iter().map(|value| short(*value)).collect())
}

fn both((low, high): (f64, f64)) -> (f64, f64) {
    (short(low), short(high))
}

fn curve_from_file(file: &CurveFile, size: &WorkSize, machine: Machine) -> Result<Curve, CostModelError> {
    let wrong = |part| CostModelError::Numbers { curve: file.kind.clone(), part };
    let unknown =
        |term: &str| CostModelError::UnknownTerm { curve: file.kind.clone(), term: term.to_string() };
    let (anchor_names, bounded_names) = names(size, &machine);
    if let Some(term) = file.anchor.keys().find(|term| !anchor_names.contains(&term.as_str())) {
        return Err(unknown(term));
    }
    if let Some(term) = file.terms.keys().find(|term| !bounded_names.contains(&term.as_str())) {
        return Err(unknown(term));
    }
    let is_fine = |values: &[f64]| values.iter().all(|value| value.is_finite());
    let anchor: Vec<f64> =
        anchor_names.iter().map(|name| file.anchor.get(*name).copied().unwrap_or(0.0)).collect();
    if !is_fine(&anchor) || anchor.iter().any(|value| *value < 0.0) {
        return Err(wrong("the anchor"));
    }
    let terms: Option<Vec<TermRange>> =
        bounded_names.iter().map(|name| file.terms.get(*name).copied()).collect();
    let terms = terms.ok_or_else(|| wrong("the list of terms"))?;
    if terms.iter().any(|term| {
        let (low, high) = term.range;
        !is_fine(&[term.mean, term.scale, low, high]) || term.scale <= 0.0 || low > high
    }) {
        return Err(wrong("a term's range"));
    }
    let p = terms.len();
    let whole = p + p * (p + 1) / 2;
    let polynomial = |given: &Polynomial, lengths: &[usize], part| {
        let coefficients = &given.coefficients.0;
        let is_right = lengths.contains(&coefficients.len());
        if !is_right || !is_fine(coefficients) || !given.intercept.is_finite() {
            return Err(wrong(part));
        }
        Ok(Linear { intercept: given.intercept, coefficients: coefficients.clone() })
    };
    let gate = match &file.gate {
        None => None,
        Some(gate) => {
            let d = terms::sizes(&Work::of(*size, Phase::Forward, machine.element)).len();
            let is_right = gate.sizes.len() == d
                && gate
                    .sizes
                    .iter()
                    .all(|(mean, scale)| mean.is_finite() && scale.is_finite() && *scale > 0.0)
                && gate.rows.iter().all(|row| row.0.len() <= d + d * (d + 1) / 2 && is_fine(&row.0))
                && gate.rows.len() == gate.centres.0.len()
                && is_fine(&gate.centres.0)
                && gate.threshold > 0.0
                && !gate.rows.is_empty();
            if !is_right {
                return Err(wrong("the gate"));
            }
            let rows = gate.rows.iter().map(|row| row.0.clone());
            Some(Gate {
                sizes: gate.sizes.clone(),
                rows: rows.zip(gate.centres.0.iter().copied()).collect(),
                h99: gate.threshold,
                reach: gate.reach,
            })
        }
    };
    let (low, high) = file.clip;
    if !(low.is_finite() && high.is_finite() && low <= high) {
        return Err(wrong("the clip"));
    }
    let usual = match (file.usual.as_slice(), file.mean) {
        ([], Some(mean)) => vec![(0.0, mean)],
        (knots, _) => knots.to_vec(),
    };
    let is_sorted = usual.windows(2).all(|pair| pair[0].0 <= pair[1].0);
    if usual.is_empty() || !is_sorted || !usual.iter().all(|(at, miss)| is_fine(&[*at, *miss])) {
        return Err(wrong("the usual correction"));
    }
    if !is_fine(&[file.least, file.hidden, file.floor])
        || file.least <= 0.0
        || file.floor <= 0.0
        || file.hidden < 0.0
    {
        return Err(wrong("the floor"));
    }
    let lengths: &[usize] = if gate.is_some() { &[p] } else { &[0, p] };
    Ok(Curve {
        machine,
        anchor,
        least: file.least,
        hidden: file.hidden,
        floor: file.floor,
        correction: Correction {
            means: terms.iter().map(|term| term.mean).collect(),
            scales: terms.iter().map(|term| term.scale).collect(),
            ranges: terms.iter().map(|term| term.range).collect(),
            usual: Usual(usual),
            linear: polynomial(&file.linear, lengths, "the linear part")?,
            quadratic: match &file.quadratic {
                Some(given) => polynomial(given, &[whole], "the quadratic part")?,
                None => Linear::default(),
            },
            gate,
            clip: file.clip,
        },
        band: Band { knots: file.band.clone(), outside: file.band_outside },
        warm: file.warm,
    })
}
