//! `model-analyze fit`: fits a cost model to measured times, and reports its held-out errors.

pub mod links;
mod picture;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use cost_model::{Accuracy, CostModel, Curve, Features, Group, MIN_ROWS, Split, Trial};
use indexmap::IndexMap;
use schema::{
    CallOverhead, CurveAccuracy, DeviceType, FitAnswer, FitGroup, Hardware, Pace, Profile, ProfileCsvError,
    ProfileFault, ProfileMap, ProfileMapError, Provenance, UnknownDevice, find_device,
};

use crate::{
    columns::table,
    failure::Failure,
    files,
    output::{Format, Output},
    parallel,
    program::PROGRAM,
};

/// Arguments of `fit`.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    model-analyze fit profile.csv -o cost-model.yaml --plot fit.svg\n  \
    model-analyze fit times.csv --map map.yaml --train-rows 800 --split extrapolate\n\n\
    Without --map the file must have these columns: kind, dtype, seconds, and those of its shapes (m, n, k · in_channels,\n\
    out_channels, size, kernel · heads, seq, head_dim · rows, cols). A map assigns the columns of another file to these;\n\
    fixtures/maps/ has one per kind of file; fixtures/maps/README.md describes them.\n\n\
    The output of nccl-tests (all_reduce_perf -b 8 -e 512M -f 2 > reduce.txt) gives the latency and bandwidth of a link:\n  \
    model-analyze fit reduce.txt -o level.yaml       the level of a cluster file")]
pub struct Fit {
    /// Measured times: a CSV file, or the output of nccl-tests
    #[arg(required = true, value_name = "PROFILE")]
    profiles: Vec<PathBuf>,
    /// Map from the file's columns to the standard ones
    #[arg(long, value_name = "MAP")]
    map: Option<PathBuf>,
    /// Fit this many rows of each kind and test on the others; without it, all rows are fitted and cross-validated
    #[arg(long, value_name = "N")]
    train_rows: Option<usize>,
    /// Which rows to test on
    #[arg(long, value_enum, default_value_t)]
    split: SplitName,
    /// Form of the fitted function
    #[arg(long, value_enum, default_value_t)]
    features: FeaturesName,
    /// Seed of the choice of rows to fit
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Use only rows of this device; for rows without a device, the one they were measured on
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// A file of further devices, in the format of the catalogue
    #[arg(long, value_name = "FILE")]
    devices: Option<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Write the cost model, fitted to all rows
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Draw predicted against measured times
    #[arg(long, value_name = "SVG")]
    plot: Option<PathBuf>,
}

/// The held-out rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum SplitName {
    /// Any
    #[default]
    Random,
    /// The largest 30 %; the others are fitted
    Extrapolate,
}

/// Form of the fitted function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum FeaturesName {
    /// Operations, bytes, tiles and waves, with a bounded polynomial on top
    #[default]
    Physical,
    /// A polynomial of the raw dimensions
    Raw,
    /// No fit: arithmetic or memory time, whichever is longer
    Roofline,
    /// No fit: the prediction for a device without a profile
    DataSheet,
}

/// A group and its trial.
struct Tried {
    group: Group,
    trial: Trial,
    accuracy: Accuracy,
    /// Fitted to all rows; `None` unless these were cross-validated.
    curve: Option<Curve>,
}

/// Rows by kind, the call overhead if a profile has it, and the sources of the measurements.
type Read = (Vec<Group>, Option<CallOverhead>, Vec<String>);

impl Fit {
    /// Fits and prints the errors.
    pub fn run(self, output: &mut Output) -> Result<(), Failure> {
        if let [first, ..] = self.profiles.as_slice()
            && schema::is_nccl_test(&files::read_text(first)?)
        {
            return self.run_links(output);
        }
        let mut own = self.devices.as_deref().map(read_devices).transpose()?.unwrap_or_default();
        let map = self.map.as_deref().map(read_map).transpose()?;
        if self.output.is_some() && self.features != FeaturesName::Physical {
            return Err(Failure::input(
                "a cost model needs physical features; the others are for comparison only",
            )
            .with_hint("leave out --features, or -o"));
        }
        let (groups, overhead, sources) = self.groups(map.as_ref(), &mut own)?;
        let tried = self.try_all(groups)?;
        match self.format {
            Format::Text => output.text(&self.table(&tried))?,
            Format::Json => {
                let answer = serde_json::to_value(self.answer(&tried)).expect("an answer is JSON");
                output.json(&answer)?;
            }
        }
        if let Some(path) = &self.output {
            self.write_model(path, &tried, &own, (overhead, sources))?;
        }
        if let Some(path) = &self.plot {
            files::write(path, files::signed(path, picture::draw(&tried, self.features())?).as_bytes())?;
        }
        Ok(())
    }

    /// Fits the output of nccl-tests.
    fn run_links(&self, output: &mut Output) -> Result<(), Failure> {
        let given = [
            (self.map.is_some(), "--map"),
            (self.train_rows.is_some(), "--train-rows"),
            (self.plot.is_some(), "--plot"),
            (self.device.is_some(), "--device"),
        ];
        if let Some((_, flag)) = given.iter().find(|(is_given, _)| *is_given) {
            return Err(Failure::input(format!("{flag} is for profiles of operators, not for nccl-tests")));
        }
        let found = links::fit(&self.profiles)?;
        match self.format {
            Format::Text => output.text(&links::text(&found))?,
            Format::Json => {
                output.json(&serde_json::to_value(&found).expect("an answer is JSON"))?;
            }
        }
        match &self.output {
            Some(path) => files::write(path, links::file(&found).as_bytes()),
            None => Ok(()),
        }
    }

    fn features(&self) -> Features {
        match self.features {
            FeaturesName::Physical => Features::Physical,
            FeaturesName::Raw => Features::Raw,
            FeaturesName::Roofline => Features::Roofline,
            FeaturesName::DataSheet => Features::DataSheet,
        }
    }

    /// Reads all profiles and groups their rows; unknown devices are added with figures estimated from their rows.
    fn groups(
        &self,
        map: Option<&ProfileMap>,
        own: &mut IndexMap<String, DeviceType>,
    ) -> Result<Read, Failure> {
        let mut whole = Profile::default();
        for path in &self.profiles {
            let text = files::read_text(path)?;
            let read = match map {
                Some(map) => schema::read_profile(&text, map),
                None => schema::read_own_profile(&text),
            };
            let profile = read.map_err(|error| in_profile(path, &error, map.is_some()))?;
            if profile.is_cut_off {
                note(&format!(
                    "{}: the last line has no line break; the file may be truncated",
                    path.display()
                ));
            }
            if let Some(how) = Pace::unsteady(&profile.paces) {
                note(&format!(
                    "{}: the machine's speed changed during the measurement, {how}",
                    path.display()
                ));
            }
            whole.overhead = whole.overhead.or(profile.overhead);
            whole.threads = whole.threads.or(profile.threads);
            let new = profile.sources.into_iter().filter(|source| !whole.sources.contains(source));
            whole.sources.extend(new.collect::<Vec<_>>());
            if whole.hardware == Hardware::default() {
                whole.hardware = profile.hardware;
            }
            whole.rows.extend(profile.rows);
            whole.n_filtered += profile.n_filtered;
            whole.n_missing += profile.n_missing;
            whole.n_invalid += profile.n_invalid;
        }
        for (count, what) in [
            (whole.n_missing, "cells have no value"),
            (whole.n_invalid, "times are not above 0 and were left out"),
        ] {
            if count > 0 {
                note(&format!("{count} {what}"));
            }
        }
        if whole.rows.is_empty() {
            return Err(Failure::input(format!(
                "none of {} rows is usable: {} fail the map's `where`, {} have no time",
                self.profiles[0].display(),
                whole.n_filtered,
                whole.n_missing,
            )));
        }
        if let Some(device) = &self.device {
            let mut nameless = whole.rows.iter_mut().filter(|row| row.device.is_empty()).peekable();
            // A typed name may be a typing error.
            if nameless.peek().is_some()
                && let Err(error) = find_device(device, own)
                && !error.similar.is_empty()
            {
                return Err(unknown_device(&error));
            }
            nameless.for_each(|row| row.device.clone_from(device));
        }
        if whole.rows.iter().any(|row| row.device.is_empty()) {
            return Err(Failure::input("the profile does not say which device it was measured on")
                .with_hint("add --device NAME, or set `device` in the map"));
        }
        for unknown in cost_model::add_measured(&whole, own) {
            note_measured(&unknown.name, &own[&unknown.name], &unknown.similar);
        }
        let groups = cost_model::group(&whole, own)
            .map_err(|error| unknown_device(&error).in_file(&self.profiles[0]))?;
        let groups = match &self.device {
            None => groups,
            Some(name) => {
                let (wanted, _) = find_device(name, own).map_err(|error| unknown_device(&error))?;
                let (kept, others): (Vec<Group>, Vec<Group>) =
                    groups.into_iter().partition(|group| group.device == wanted);
                if kept.is_empty() {
                    return Err(Failure::input(format!("no row was measured on {wanted}"))
                        .with_hint(format!("the rows were measured on {}", devices(&others).join(", "))));
                }
                kept
            }
        };
        let devices = devices(&groups);
        if devices.len() > 1 && (self.train_rows.is_none() || self.output.is_some()) {
            return Err(Failure::input(format!(
                "the rows were measured on {} devices, a cost model describes one: {}",
                devices.len(),
                devices.join(", ")
            ))
            .with_hint(format!("choose one: --device {}", devices[0])));
        }
        Ok((groups, whole.overhead, whole.sources))
    }

    /// Fits each group and tests it on held-out rows.
    fn try_all(&self, groups: Vec<Group>) -> Result<Vec<Tried>, Failure> {
        let try_one = |group: &Group| match self.train_rows {
            Some(rows) => {
                let split = match self.split {
                    SplitName::Random => Split::Random,
                    SplitName::Extrapolate => Split::Extrapolate,
                };
                let trial = cost_model::try_split(group, self.features(), split, rows, self.seed);
                trial.map(|trial| (trial, None))
            }
            None => cost_model::cross_validate(group, self.features(), self.seed),
        };
        let trials = parallel::map(&groups, try_one);
        let mut tried = Vec::new();
        let mut lacking = Vec::new();
        for (group, trial) in groups.into_iter().zip(trials) {
            match trial {
                Ok((trial, curve)) => {
                    let accuracy = trial.accuracy();
                    tried.push(Tried { group, trial, accuracy, curve });
                }
                Err(_) => {
                    let phase = group.phase.name();
                    lacking.push(format!(
                        "{} {} {phase} ({} rows)",
                        group.kind,
                        group.dtype,
                        group.samples.len()
                    ));
                }
            }
        }
        let needed = if self.train_rows.is_some() { MIN_ROWS * 3 / 2 } else { MIN_ROWS };
        let message =
            || format!("too few rows to fit, each kind needs at least {needed}: {}", lacking.join(", "));
        if tried.is_empty() {
            return Err(Failure::input(message())
                .in_file(&self.profiles[0])
                .with_hint("measure more shapes, or raise --train-rows"));
        }
        if !lacking.is_empty() {
            note(&message());
        }
        Ok(tried)
    }

    fn split_name(&self) -> &'static str {
        match (self.train_rows, self.split) {
            (None, _) => "cross_validation",
            (Some(_), SplitName::Random) => "random",
            (Some(_), SplitName::Extrapolate) => "extrapolate",
        }
    }

    fn features_name(&self) -> &'static str {
        match self.features {
            FeaturesName::Physical => "physical",
            FeaturesName::Raw => "raw",
            FeaturesName::Roofline => "roofline",
            FeaturesName::DataSheet => "data-sheet",
        }
    }

    fn answer(&self, tried: &[Tried]) -> FitAnswer {
        FitAnswer {
            schema_version: 1,
            features: self.features_name().to_string(),
            split: self.split_name().to_string(),
            seed: self.seed,
            groups: tried.iter().map(in_answer).collect(),
        }
    }

    fn table(&self, tried: &[Tried]) -> String {
        let head = [
            "kind", "dtype", "phase", "device", "fitted", "tested", "MAPE %", "median", "p90", "weighted",
            "rank", "in band", "negative",
        ];
        let mut rows = vec![head.map(String::from)];
        for one in tried {
            let Accuracy { rows: n_tested, mape, median, p90, time_weighted, spearman, coverage, negative } =
                one.accuracy;
            rows.push([
                one.group.kind.clone(),
                one.group.dtype.clone(),
                one.group.phase.name().to_string(),
                one.group.device.clone(),
                one.trial.n_train.to_string(),
                n_tested.to_string(),
                format!("{mape:.1}"),
                format!("{median:.1}"),
                format!("{p90:.1}"),
                format!("{time_weighted:.1}"),
                format!("{spearman:.3}"),
                format!("{:.0} %", 100.0 * coverage),
                negative.to_string(),
            ]);
        }
        let duplicates: usize = tried.iter().map(|one| one.group.n_duplicates).sum();
        let outliers: usize = tried.iter().map(|one| one.trial.n_outliers).sum();
        let lines = table(&rows, " ", |column| column >= 4);
        format!(
            "{} features, {}; errors are held-out\n{lines}{duplicates} repeated measurements, {outliers} outliers with little weight\n",
            self.features_name(),
            self.split_name().replace('_', " "),
        )
    }

    fn write_model(
        &self,
        path: &Path,
        tried: &[Tried],
        own: &IndexMap<String, DeviceType>,
        (overhead, sources): (Option<CallOverhead>, Vec<String>),
    ) -> Result<(), Failure> {
        let device = &tried[0].group.device;
        let (name, figures) = find_device(device, own).map_err(|error| unknown_device(&error))?;
        let mut model = CostModel::of_data_sheet(name, figures);
        model.overhead = overhead;
        let file_name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
        model.provenance = Provenance {
            profiles: self.profiles.iter().filter_map(file_name).collect(),
            sources,
            program: PROGRAM.to_string(),
            seed: self.seed,
        };
        for one in tried {
            let Tried { group, .. } = one;
            let refitted;
            let (trial, curve) = match &one.curve {
                Some(curve) => (&one.trial, curve.clone()),
                None => match cost_model::cross_validate(group, Features::Physical, self.seed) {
                    Ok((trial, Some(curve))) => {
                        refitted = trial;
                        (&refitted, curve)
                    }
                    _ => continue,
                },
            };
            let accuracy = trial.accuracy();
            let accuracy = CurveAccuracy {
                rows: group.samples.len(),
                duplicates: group.n_duplicates,
                outliers: trial.n_outliers,
                mape: accuracy.mape,
                median: accuracy.median,
            };
            let size = group.samples[0].work.size;
            model.insert(&group.kind, &group.dtype, group.phase, &size, curve, accuracy);
        }
        files::write(path, schema::to_yaml(&model.to_file()).as_bytes())
    }
}

/// Reports the estimated figures of an unknown device.
fn note_measured(name: &str, figures: &DeviceType, similar: &[String]) {
    let peak = figures.peak.iter().map(|(dtype, rate)| format!("{dtype} at {:.3} TFLOP/s", rate.0 / 1e12));
    let rates = peak.chain([format!("memory at {:.1} GB/s", figures.memory_bandwidth.0 / 1e9)]);
    let meant = match similar.first() {
        Some(near) => format!(" If {near} is meant, use that name in the rows."),
        None => String::new(),
    };
    note(&format!(
        "`{name}` is not in the catalogue; its figures are the highest rates of its rows: {}; --devices FILE sets others.{meant}",
        rates.collect::<Vec<_>>().join(", "),
    ));
}

fn in_answer(one: &Tried) -> FitGroup {
    let Accuracy { rows, mape, median, p90, time_weighted, spearman, coverage, negative } = one.accuracy;
    FitGroup {
        kind: one.group.kind.clone(),
        dtype: one.group.dtype.clone(),
        phase: one.group.phase,
        device: one.group.device.clone(),
        rows,
        train_rows: one.trial.n_train,
        duplicates: one.group.n_duplicates,
        outliers: one.trial.n_outliers,
        mape,
        median,
        p90,
        time_weighted,
        spearman,
        coverage,
        negative,
    }
}

fn devices(groups: &[Group]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for group in groups {
        if !names.contains(&group.device.as_str()) {
            names.push(&group.device);
        }
    }
    names
}

fn note(text: &str) {
    crate::failure::note(text);
}

fn read_devices(path: &Path) -> Result<IndexMap<String, DeviceType>, Failure> {
    let text = files::read_text(path)?;
    schema::read_devices(&text).map_err(|error| Failure::input(format!("{}: {error}", path.display())))
}

fn read_map(path: &Path) -> Result<ProfileMap, Failure> {
    let text = files::read_text(path)?;
    ProfileMap::read(&text).map_err(|error| {
        let failure = Failure::input(format!("{}: {error}", path.display()));
        match error {
            ProfileMapError::UnknownColumn { similar: Some(similar), .. } => {
                failure.with_hint(format!("did you mean `{similar}`?"))
            }
            ProfileMapError::UnknownColumn { .. } => {
                failure.with_hint(format!("columns of a profile are {}", schema::COLUMNS.join(", ")))
            }
            ProfileMapError::Yaml(yaml) => failure.at_line(&path.display().to_string(), &text, yaml.place),
            _ => failure,
        }
    })
}

fn in_profile(path: &Path, error: &ProfileCsvError, has_map: bool) -> Failure {
    let failure = Failure::input(format!("{}: {error}", path.display()));
    match error.fault {
        ProfileFault::NoColumn { .. } if !has_map => {
            failure.with_hint("describe the file with --map MAP.yaml; see fixtures/maps/README.md")
        }
        ProfileFault::Time(_) => {
            failure.with_hint("list such cells under `missing` in the map, or set `invalid: drop`")
        }
        _ => failure,
    }
}

fn unknown_device(error: &UnknownDevice) -> Failure {
    let hint = match error.similar.as_slice() {
        [] => "describe it in a file: --devices FILE".to_string(),
        similar => format!("did you mean {}? Or describe it in a file: --devices FILE", similar.join(" or ")),
    };
    Failure::input(error).with_hint(hint)
}
