//! The source of a device's cost model: the user's file, the built-in one, or the data sheet.

use std::path::PathBuf;

use cost_model::{CostModel, PredictOptions, Rounding};
use indexmap::IndexMap;
use schema::{Cluster, CostModelFile, CostModelFileError, DeviceType, TimesFrom, UnknownDevice, find_device};

use crate::{failure::Failure, files};

/// How an answer words the rounding of products.
pub const ROUNDED: [(Rounding, &str); 3] = [
    (Rounding::Own, ""),
    (Rounding::Tf32, ", products in TF32"),
    (Rounding::Float8, ", linear layers in float8"),
];

/// Returns the rounding of products that a plan's times were made with.
pub fn rounding_of(times: &TimesFrom) -> Rounding {
    let is_said = |(rounding, words): &&(Rounding, &str)| {
        *rounding != Rounding::Own && times.cost_model.ends_with(words)
    };
    ROUNDED.iter().find(is_said).map_or(Rounding::Own, |(rounding, _)| *rounding)
}

/// Cost models given by the user.
#[derive(Default, Clone, PartialEq)]
pub struct CostModels(Vec<CostModel>);

impl CostModels {
    /// Reads files of `fit -o`.
    pub fn read(paths: &[PathBuf]) -> Result<Self, Failure> {
        let mut models: Vec<CostModel> = Vec::new();
        for path in paths {
            let name = path.display();
            let wrong = |error: String| {
                Failure::input(format!("{name}: {error}"))
                    .with_hint("`model-analyze fit PROFILE -o FILE` writes cost models")
            };
            let text = files::read_text(path)?;
            let file = CostModelFile::read(&text).map_err(|error| {
                let place = match &error {
                    CostModelFileError::Yaml(yaml) => yaml.place,
                    _ => None,
                };
                wrong(error.to_string()).at_line(&name.to_string(), &text, place)
            })?;
            let model = CostModel::from_file(&file).map_err(|error| wrong(error.to_string()))?;
            if models.iter().any(|known| known.device == model.device) {
                return Err(Failure::input(format!(
                    "{name}: there is a second cost model of {}",
                    model.device
                ))
                .with_hint("fit both profiles at once: model-analyze fit PROFILE PROFILE -o FILE"));
            }
            models.push(model);
        }
        Ok(Self(models))
    }

    /// Tells whether the user gave none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the devices of the models: a measured device need not be in the catalogue.
    ///
    /// `cpu` is the processor that has a cost model, if there is one; otherwise the catalogue's.
    pub fn devices(&self) -> IndexMap<String, DeviceType> {
        let mut devices: IndexMap<String, DeviceType> =
            self.0.iter().map(|model| (model.device.clone(), model.figures.clone())).collect();
        let mut processors = self.0.iter().filter(|model| model.is_processor());
        if let (Some(only), None) = (processors.next(), processors.next()) {
            let aliases = &mut devices.entry(only.device.clone()).or_default().aliases;
            if !aliases.iter().any(|alias| alias == "CPU") {
                aliases.push("CPU".to_string());
            }
        }
        devices
    }

    /// Refuses models of devices outside the cluster, which would be ignored silently.
    pub fn require_used(&self, cluster: &Cluster) -> Result<(), Failure> {
        let types: Vec<&str> = cluster.types.keys().map(String::as_str).collect();
        match self.0.iter().find(|model| !types.contains(&model.device.as_str())) {
            None => Ok(()),
            Some(model) => Err(Failure::input(format!(
                "the cost model is for {}, the cluster's devices are {}",
                model.device,
                types.join(", ")
            ))
            .with_hint("fit a profile of those devices, or omit the cost model")),
        }
    }

    /// Returns the model of a device: the user's, the built-in one, or its data sheet.
    pub fn of(&self, name: &str, figures: &DeviceType) -> CostModel {
        let own = self.0.iter().find(|model| model.device == name).cloned();
        let shipped = || {
            let mut model = CostModel::shipped(figures)?;
            model.device = name.to_string();
            Some(model)
        };
        own.or_else(shipped).unwrap_or_else(|| CostModel::of_data_sheet(name, figures))
    }

    /// Returns the options of prediction for a rounding of products, where the device supports it; otherwise those of the
    /// tensors' own type.
    pub fn options(rounding: Rounding, model: &CostModel) -> PredictOptions {
        let has = |name: &str| model.figures.peak.contains_key(name);
        let rounding = match rounding {
            Rounding::Tf32 if !has("tf32") => Rounding::Own,
            Rounding::Float8 if !has("float8") => Rounding::Own,
            rounding => rounding,
        };
        PredictOptions { rounding, ..PredictOptions::default() }
    }

    /// Returns the model of a device of the catalogue, or the user's only one.
    pub fn of_catalogue(&self, name: Option<&str>) -> Result<Option<CostModel>, Failure> {
        let Some(name) = name else {
            return match self.0.as_slice() {
                [] => Ok(None),
                [one] => Ok(Some(one.clone())),
                _ => {
                    Err(Failure::input("there is more than one cost model")
                        .with_hint("choose one with --device"))
                }
            };
        };
        let own = self.devices();
        let (name, figures) = find_device(name, &own).map_err(|error| unknown_device(&error))?;
        if let [model, ..] = self.0.as_slice()
            && !self.0.iter().any(|model| model.device == name)
        {
            return Err(Failure::input(format!("the cost model is for {}, not for {name}", model.device)));
        }
        Ok(Some(self.of(name, figures)))
    }
}

/// The failure for an unknown device: names the nearest, or the command that lists all.
pub fn unknown_device(error: &UnknownDevice) -> Failure {
    let failure = Failure::input(error);
    match error.similar.as_slice() {
        [] => failure.with_hint("`model-analyze devices` lists them"),
        similar => failure.with_hint(format!("did you mean {}?", similar.join(" or "))),
    }
}
