//! `CostModel`: curves of one device by kind, data type and phase, and their file.

use indexmap::IndexMap;
use schema::{
    COST_MODEL_VERSION, CallOverhead, CostModelFile, CurveAccuracy, CurveFile, DeviceType, FlushedFile,
    GateFile, Numbers, Phase, Polynomial, Provenance, TermRange, WorkSize,
};

use crate::{
    curve::{Band, Correction, Curve, Flushed, Gate, Usual, Warm},
    host::{self, CallTimes},
    ridge::Linear,
    terms::{self, Terms},
    work::{Machine, Work},
};

/// The cost model of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    /// Name of the device.
    pub device: String,
    /// Its figures.
    pub figures: DeviceType,
    /// The origin of the curves; empty when there are none.
    pub provenance: Provenance,
    /// Overhead of a call besides its work; `None` when it was not measured.
    pub overhead: Option<CallOverhead>,
    curves: IndexMap<(String, String, Phase), (Curve, CurveAccuracy, &'static str)>,
}

/// Why a file makes no model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CostModelError {
    /// Terms of another release.
    #[error("curve `{curve}`: term `{term}` is not known")]
    UnknownTerm {
        /// Which curve: kind, data type and phase.
        curve: String,
        /// Name of the term.
        term: String,
    },
    /// A form of shape that does not exist.
    #[error("curve `{curve}`: `{form}` is no form of shape: {}", FORMS.join(", "))]
    UnknownForm {
        /// Which curve.
        curve: String,
        /// The text in the file.
        form: String,
    },
    /// Two curves of one kind, data type, phase and form.
    #[error("curve `{0}` stands there twice")]
    Twice(String),
    /// Numbers are missing, too many, not finite, or beyond what a fit can give.
    #[error("curve `{curve}`: {part} does not fit the terms")]
    Numbers {
        /// Which curve.
        curve: String,
        /// Which part.
        part: &'static str,
    },
    /// A number that is no time.
    #[error("overhead: `{0}` must be a number of seconds, 0 or more")]
    Overhead(&'static str),
}

/// The forms of shape.
const FORMS: [&str; 6] = ["product", "convolution", "attention", "rows", "channels", "table"];
/// Numbers further from zero, or scales nearer to it, come from no fit and lead to infinities.
const LARGEST: f64 = 1e15;
/// The same for logarithms of ratios.
const LARGEST_MISS: f64 = 50.0;

impl CostModel {
    /// Tells whether the device is a processor: by its architecture, or by its name where nothing says that.
    pub fn is_processor(&self) -> bool {
        match self.figures.architecture.as_deref() {
            None => self.device.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("cpu")),
            architecture => host::is_processor(architecture),
        }
    }

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

    /// Adds curves of other models for kinds, data types and phases that it lacks, at the rates of its own device; of several
    /// the one that was fitted to the most rows.
    pub(crate) fn borrow<'a>(&mut self, others: impl Iterator<Item = &'a CostModel>) {
        let own: Vec<_> = self.curves.keys().cloned().collect();
        for other in others {
            for (key, (curve, accuracy, form)) in &other.curves {
                let is_better = self.curves.get(key).is_none_or(|(_, known, _)| known.rows < accuracy.rows);
                if own.contains(key) || !is_better || !self.figures.peak.contains_key(&key.1) {
                    continue;
                }
                let machine = Machine::of(&self.figures, &key.1);
                self.curves.insert(key.clone(), (Curve { machine, ..curve.clone() }, *accuracy, *form));
            }
            let new = |names: &[String], known: &[String]| -> Vec<String> {
                names.iter().filter(|name| !known.contains(name)).cloned().collect()
            };
            let profiles = new(&other.provenance.profiles, &self.provenance.profiles);
            self.provenance.profiles.extend(profiles);
            let sources = new(&other.provenance.sources, &self.provenance.sources);
            self.provenance.sources.extend(sources);
        }
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
        let Provenance { profiles, sources, .. } = &self.provenance;
        match (profiles.as_slice(), sources.as_slice()) {
            ([], _) => format!("data sheet of {}", self.device),
            (profiles, []) => format!("{}, fitted to {}", self.device, profiles.join(", ")),
            (_, sources) => format!("{}, fitted to measurements of {}", self.device, sources.join(", ")),
        }
    }

    /// Tells whether any curve is of statistics of channels; profiles of before have rows of a matrix.
    pub(crate) fn knows_channels(&self) -> bool {
        self.curves.values().any(|(_, _, form)| *form == "channels")
    }

    /// Returns what its curves and its profile know of calls on a processor; of fresh memory the median of what curves say.
    pub(crate) fn call_times(&self) -> CallTimes {
        let mut fresh: Vec<f64> = self.curves.values().filter_map(|(curve, ..)| curve.fresh()).collect();
        fresh.sort_by(f64::total_cmp);
        CallTimes {
            overhead: self.overhead,
            fresh: (!fresh.is_empty()).then(|| crate::evaluate::quantile(&fresh, 0.5)),
            knows_flushed: self.curves.values().any(|(curve, ..)| curve.flushed.is_some()),
        }
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
    /// When a curve's numbers do not belong together, or are such that predictions would not be finite.
    pub fn from_file(file: &CostModelFile) -> Result<Self, CostModelError> {
        if let Some(CallOverhead { call, recording, backward, cold }) = file.overhead {
            let parts = [("call", call), ("recording", recording), ("backward", backward), ("cold", cold)];
            if let Some((part, _)) =
                parts.into_iter().find(|(_, seconds)| !is_fine(&[*seconds]) || *seconds < 0.0)
            {
                return Err(CostModelError::Overhead(part));
            }
        }
        let mut curves = IndexMap::new();
        for curve in &file.curves {
            let key = (curve.kind.clone(), curve.dtype.clone(), curve.phase);
            let size = example(&curve.form).ok_or_else(|| CostModelError::UnknownForm {
                curve: title(curve),
                form: curve.form.clone(),
            })?;
            let machine = Machine::of(&file.figures, &curve.dtype);
            let own = curve_from_file(curve, &size, machine)?;
            if curves.insert(key, (own, curve.accuracy, form(&size))).is_some() {
                return Err(CostModelError::Twice(title(curve)));
            }
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

/// Names a curve in messages.
fn title(curve: &CurveFile) -> String {
    format!("{} {} {}", curve.kind, curve.dtype, curve.phase.name())
}

/// Tells whether numbers can have come from a fit.
fn is_fine(values: &[f64]) -> bool {
    values.iter().all(|value| value.abs() <= LARGEST)
}

/// The same for deviations, by which is divided.
fn is_scale(value: f64) -> bool {
    (LARGEST.recip()..=LARGEST).contains(&value)
}

/// The same for the ends of a range of logarithms of ratios.
fn is_between((low, high): (f64, f64)) -> bool {
    -LARGEST_MISS <= low && low <= high && high <= LARGEST_MISS
}

fn form(size: &WorkSize) -> &'static str {
    match size {
        WorkSize::Product { .. } => "product",
        WorkSize::Convolution { .. } => "convolution",
        WorkSize::Attention { .. } => "attention",
        WorkSize::Rows { .. } => "rows",
        WorkSize::Channels { .. } => "channels",
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
        "channels" => Some(WorkSize::Channels { batch: 1.0, channels: 1.0, pixels: 1.0 }),
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
    // What never varied says nothing: it is left out, with its coefficients.
    let used: Vec<bool> = correction.ranges.iter().map(|(low, high)| low < high).collect();
    let products = products(&used);
    let polynomial = |linear: &Linear| Polynomial {
        intercept: short(linear.intercept),
        coefficients: shorts(&picked(&linear.coefficients, &products)),
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
        terms: (bounded.iter().enumerate())
            .filter(|(j, _)| used[*j])
            .map(|(j, name)| ((*name).to_string(), term(j)))
            .collect(),
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
        warm: short(curve.warm.near),
        warm_far: short(curve.warm.far),
        flushed: curve
            .flushed
            .map(|Flushed { call, byte }| FlushedFile { call: short(call), byte: short(byte) }),
    }
}

/// Returns which terms of both degrees are made of used ones alone, in the order of [`expand`](crate::curve::expand).
fn products(used: &[bool]) -> Vec<bool> {
    let second = used.iter().enumerate().flat_map(|(i, a)| used[i..].iter().map(move |b| *a && *b));
    used.iter().copied().chain(second).collect()
}

/// Leaves out what is not used.
fn picked(all: &[f64], used: &[bool]) -> Vec<f64> {
    all.iter().zip(used).filter(|(_, is_used)| **is_used).map(|(value, _)| *value).collect()
}

/// Puts zeros where [`picked`] left something out.
fn spread(picked: &[f64], used: &[bool]) -> Vec<f64> {
    let mut picked = picked.iter().copied();
    let next = |is_used: &bool| if *is_used { picked.next().unwrap_or(0.0) } else { 0.0 };
    used.iter().map(next).collect()
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
    let wrong = |part| CostModelError::Numbers { curve: title(file), part };
    let unknown = |term: &str| CostModelError::UnknownTerm { curve: title(file), term: term.to_string() };
    let (anchor_names, bounded_names) = names(size, &machine);
    if let Some(term) = file.anchor.keys().find(|term| !anchor_names.contains(&term.as_str())) {
        return Err(unknown(term));
    }
    if let Some(term) = file.terms.keys().find(|term| !bounded_names.contains(&term.as_str())) {
        return Err(unknown(term));
    }
    let anchor: Vec<f64> =
        anchor_names.iter().map(|name| file.anchor.get(*name).copied().unwrap_or(0.0)).collect();
    if !is_fine(&anchor) || anchor.iter().any(|value| *value < 0.0) {
        return Err(wrong("the anchor"));
    }
    let used: Vec<bool> = bounded_names.iter().map(|name| file.terms.contains_key(*name)).collect();
    const UNUSED: TermRange = TermRange { mean: 0.0, scale: 1.0, range: (0.0, 0.0) };
    let terms: Vec<TermRange> =
        bounded_names.iter().map(|name| file.terms.get(*name).copied().unwrap_or(UNUSED)).collect();
    if terms.iter().any(|term| {
        let (low, high) = term.range;
        !is_fine(&[term.mean, low, high]) || !is_scale(term.scale) || low > high
    }) {
        return Err(wrong("a term's range"));
    }
    let products = products(&used);
    let polynomial = |given: &Polynomial, used: &[bool], part| {
        let coefficients = &given.coefficients.0;
        let is_whole = coefficients.len() == used.iter().filter(|is_used| **is_used).count();
        // Without a gate no polynomial is asked.
        let is_left_out = coefficients.is_empty() && file.gate.is_none();
        if !(is_whole || is_left_out) || !is_fine(coefficients) || !is_fine(&[given.intercept]) {
            return Err(wrong(part));
        }
        let coefficients = if is_left_out { Vec::new() } else { spread(coefficients, used) };
        Ok(Linear { intercept: given.intercept, coefficients })
    };
    let gate = match &file.gate {
        None => None,
        Some(file) => {
            let d = terms::sizes(&Work::of(*size, Phase::Forward, machine.element)).len();
            Some(gate_from_file(file, d).ok_or_else(|| wrong("the gate"))?)
        }
    };
    if !is_between(file.clip) {
        return Err(wrong("the clip"));
    }
    let usual = match (file.usual.as_slice(), file.mean) {
        ([], Some(mean)) => vec![(0.0, mean)],
        (knots, _) => knots.to_vec(),
    };
    let is_sorted = usual.is_sorted_by(|a, b| a.0 <= b.0);
    if usual.is_empty()
        || !is_sorted
        || !usual.iter().all(|(at, miss)| is_fine(&[*at]) && is_between((*miss, *miss)))
    {
        return Err(wrong("the usual correction"));
    }
    if !is_fine(&[file.hidden]) || file.hidden < 0.0 || ![file.least, file.floor].into_iter().all(is_scale) {
        return Err(wrong("the floor"));
    }
    let is_band = |(at, low, high): &(f64, f64, f64)| is_fine(&[*at]) && is_between((*low, *high));
    if !file.band.iter().all(is_band) || !file.band.is_sorted_by(|a, b| a.0 <= b.0) {
        return Err(wrong("the band"));
    }
    if !is_between(file.band_outside) {
        return Err(wrong("the band outside"));
    }
    if !is_fine(&[file.warm, file.warm_far]) || file.warm.min(file.warm_far) < 0.0 {
        return Err(wrong("what a cache saves"));
    }
    let flushed = file.flushed.map(|FlushedFile { call, byte }| Flushed { call, byte });
    if flushed.is_some_and(|Flushed { call, byte }| !is_fine(&[call, byte]) || call < 0.0 || byte < 0.0) {
        return Err(wrong("what empty caches cost"));
    }
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
            linear: polynomial(&file.linear, &used, "the linear part")?,
            quadratic: match &file.quadratic {
                Some(given) => polynomial(given, &products, "the quadratic part")?,
                None => Linear::default(),
            },
            gate,
            clip: file.clip,
        },
        band: Band { knots: file.band.clone(), outside: file.band_outside },
        warm: Warm { near: file.warm, far: file.warm_far },
        flushed,
    })
}

/// Reads a gate over `d` sizes; `None` when its numbers are inconsistent.
fn gate_from_file(file: &GateFile, d: usize) -> Option<Gate> {
    let most = d + d * (d + 1) / 2;
    let is_right = file.sizes.len() == d
        && file.sizes.iter().all(|(mean, scale)| is_fine(&[*mean]) && is_scale(*scale))
        && file.rows.iter().all(|row| row.0.len() <= most && is_fine(&row.0))
        && file.rows.len() == file.centres.0.len()
        && !file.rows.is_empty()
        && is_fine(&file.centres.0)
        && is_scale(file.threshold)
        && is_fine(&[file.reach]);
    let rows = file.rows.iter().map(|row| row.0.clone());
    is_right.then(|| Gate {
        sizes: file.sizes.clone(),
        rows: rows.zip(file.centres.0.iter().copied()).collect(),
        h99: file.threshold,
        reach: file.reach,
    })
}
