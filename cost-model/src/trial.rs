//! A trial: fit a model to some rows and try it on others.

use crate::{
    curve::Curve,
    efficiency,
    estimate::Estimate,
    evaluate::{Accuracy, Split, shuffle, split},
    fit::{Sample, TooFewRows, fit},
    group::Group,
    raw::RawPolynomial,
    work::Work,
};

/// Seeds are mixed with this, so that the split and the order of folds differ.
const ORDER: u64 = 0x5eed;

/// Which model is fitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Features {
    /// Physical terms with a bounded polynomial on top: [`Curve`].
    Physical,
    /// The original project's polynomial of raw dimensions.
    Raw,
    /// No fit: the longer of arithmetic and memory.
    Roofline,
    /// No fit: what is predicted without a profile, from the data sheet.
    DataSheet,
}

/// Estimates of rows that the model was not fitted to.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Held-out rows.
    pub samples: Vec<Sample>,
    /// Their estimates, in the same order.
    pub estimates: Vec<Estimate>,
    /// Rows that were fitted.
    pub n_train: usize,
    /// Fitted rows that lie far off and had little weight.
    pub n_outliers: usize,
}

impl Trial {
    /// Returns the error figures.
    pub fn accuracy(&self) -> Accuracy {
        Accuracy::of(&self.samples, &self.estimates)
    }
}

/// Fits a part of a group's rows and tries the model on the others.
///
/// # Errors
/// When the part is too small to fit.
pub fn try_split(
    group: &Group,
    features: Features,
    how: Split,
    train_rows: usize,
    seed: u64,
) -> Result<Trial, TooFewRows> {
    let (train, test) = split(&group.samples, &group.machine, how, train_rows, seed);
    if test.is_empty() {
        return Err(TooFewRows { rows: group.samples.len() });
    }
    let (estimates, n_outliers) = estimate(&train, &test, group, features)?;
    Ok(Trial { samples: test, estimates, n_train: train.len(), n_outliers })
}

/// Fits all of a group's rows; each is tried on a model that was fitted to other rows.
///
/// # Errors
/// When there are too few.
pub fn cross_validate(
    group: &Group,
    features: Features,
    seed: u64,
) -> Result<(Trial, Option<Curve>), TooFewRows> {
    let mut samples = group.samples.clone();
    shuffle(&mut samples, seed ^ ORDER);
    let n_train = samples.len();
    match features {
        Features::Physical => {
            let (curve, validation) = fit(&samples, &group.machine)?;
            let trial = Trial {
                samples: validation.samples,
                estimates: validation.estimates,
                n_train,
                n_outliers: validation.outliers,
            };
            Ok((trial, Some(curve.with_warm(&group.warm).with_flushed(&group.flushed))))
        }
        Features::Raw | Features::Roofline | Features::DataSheet => {
            let (mut tried, mut estimates) = (Vec::new(), Vec::new());
            for fold in 0..5 {
                let part = |wanted: bool| -> Vec<Sample> {
                    let chosen = samples.iter().enumerate().filter(|(i, _)| (i % 5 == fold) == wanted);
                    chosen.map(|(_, sample)| *sample).collect()
                };
                let test = part(true);
                estimates.extend(estimate(&part(false), &test, group, features)?.0);
                tried.extend(test);
            }
            Ok((Trial { samples: tried, estimates, n_train, n_outliers: 0 }, None))
        }
    }
}

fn estimate(
    train: &[Sample],
    test: &[Sample],
    group: &Group,
    features: Features,
) -> Result<(Vec<Estimate>, usize), TooFewRows> {
    let machine = &group.machine;
    let all = |predict: &dyn Fn(&Work) -> Estimate| test.iter().map(|sample| predict(&sample.work)).collect();
    match features {
        Features::Physical => {
            let (curve, validation) = fit(train, machine)?;
            Ok((all(&|work| curve.predict(work)), validation.outliers))
        }
        Features::Raw => {
            let polynomial = RawPolynomial::fit(train)?;
            Ok((all(&|work| polynomial.predict(work)), 0))
        }
        Features::Roofline => Ok((all(&|work| Estimate::exact(work.roofline(machine))), 0)),
        Features::DataSheet => {
            let Group { figures, kind, .. } = group;
            Ok((all(&|work| efficiency::estimate(figures, kind, work, machine)), 0))
        }
    }
}
