//! Models that come with the program: devices whose profile lies in `fixtures/profiles`, known by their figures.

use std::sync::OnceLock;

use schema::{CostModelFile, DeviceType, catalogue};

use crate::model::CostModel;

/// What `make cost-model` wrote, by the device's name in the catalogue.
const FILES: [(&str, &str); 4] = [
    ("CPU-EPYC-ZEN4-1T", include_str!("shipped/cpu-epyc-zen4-1t.yaml")),
    ("CPU-EPYC-ZEN3-1T", include_str!("shipped/cpu-epyc-zen3-1t.yaml")),
    ("CPU-EPYC-ZEN5-1T", include_str!("shipped/cpu-epyc-zen5-1t.yaml")),
    ("CPU-XEON-AMX-1T", include_str!("shipped/cpu-xeon-amx-1t.yaml")),
];

impl CostModel {
    /// Returns the model that ships for a device of these figures, whatever it is called.
    pub fn shipped(figures: &DeviceType) -> Option<Self> {
        // Each is read once, and only where its device is asked for.
        static MODELS: [OnceLock<CostModel>; FILES.len()] = [const { OnceLock::new() }; FILES.len()];
        let is_of = |name: &str| has_same_rates(&catalogue()[name], figures);
        let (at, (name, text)) = FILES.iter().enumerate().find(|(_, (name, _))| is_of(name))?;
        Some(MODELS[at].get_or_init(|| read(text).unwrap_or_else(|why| panic!("{name}: {why}"))).clone())
    }

    /// Tells whether the rates that curves are made of are those of a device.
    pub fn is_of(&self, figures: &DeviceType) -> bool {
        has_same_rates(&self.figures, figures)
    }
}

/// Compares the figures that curves are made of.
fn has_same_rates(one: &DeviceType, other: &DeviceType) -> bool {
    let rates =
        |device: &DeviceType| (device.memory_bandwidth, device.multiprocessors, device.l2, device.launch);
    one.peak == other.peak && rates(one) == rates(other)
}

fn read(text: &str) -> Result<CostModel, String> {
    let file = CostModelFile::read(text).map_err(|error| error.to_string())?;
    CostModel::from_file(&file).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_belongs_to_the_catalogue() {
        for (name, text) in FILES {
            let figures = &catalogue()[name];
            let model = CostModel::shipped(figures).expect(name);
            assert_eq!(model.device, name);
            assert!(model.is_of(figures), "{name}");
            assert!(model.n_curves() > 50, "{} curves", model.n_curves());
            assert!(model.title().contains("fitted to"), "{}", model.title());
            assert!(text.len() < 300_000, "{} bytes", text.len());
            let mut other = figures.clone();
            other.launch = Some(schema::Seconds(1.0));
            assert_eq!(CostModel::shipped(&other), None);
        }
        assert_eq!(CostModel::shipped(&catalogue()["T4"]), None);
    }
}
