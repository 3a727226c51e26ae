//! Models that come with the program: devices whose profile lies in `fixtures/profiles`, and GPUs whose operators others
//! timed and published.
//!
//! A curve's coefficients are shares of a device's rates, so a GPU that was not timed borrows the curves of one of the same
//! chip: `V100-SXM2-32GB` has those of `V100-PCIE-32GB` at its own rates. Which is of one chip is what the catalogue says:
//! architecture, multiprocessors and cache. Kinds and data types that nobody timed stay with the data sheet.

use std::{io::Read, sync::OnceLock};

use flate2::read::GzDecoder;
use schema::{CostModelFile, DeviceType, catalogue};

use crate::{host, model::CostModel};

/// Names a file of `shipped` as `build.rs` has packed it.
macro_rules! packed {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".gz"))
    };
}

/// The files of `make cost-model` and `make cost-model-gpu`, by the device's name in the catalogue.
const FILES: [(&str, &[u8]); 15] = [
    ("CPU-EPYC-ZEN4-1T", packed!("cpu-epyc-zen4-1t")),
    ("CPU-EPYC-ZEN3-1T", packed!("cpu-epyc-zen3-1t")),
    ("CPU-EPYC-ZEN5-1T", packed!("cpu-epyc-zen5-1t")),
    ("CPU-XEON-AMX-1T", packed!("cpu-xeon-amx-1t")),
    ("P100-PCIE-16GB", packed!("p100-pcie-16gb")),
    ("V100-PCIE-32GB", packed!("v100-pcie-32gb")),
    ("P4", packed!("p4")),
    ("T4", packed!("t4")),
    ("A100-PCIE-40GB", packed!("a100-pcie-40gb")),
    ("A100-PCIE-80GB", packed!("a100-pcie-80gb")),
    ("A100-SXM4-80GB", packed!("a100-sxm4-80gb")),
    ("A40", packed!("a40")),
    ("L4", packed!("l4")),
    ("H100-SXM5-80GB", packed!("h100-sxm5-80gb")),
    ("H200-SXM-141GB", packed!("h200-sxm-141gb")),
];

impl CostModel {
    /// Returns the model that ships for a device of these figures, whatever it is called.
    pub fn shipped(figures: &DeviceType) -> Option<Self> {
        let figures_of = |name: &str| &catalogue()[name];
        let own = FILES.iter().position(|(name, _)| has_same_rates(figures_of(name), figures));
        let siblings: Vec<usize> = (0..FILES.len())
            .filter(|at| Some(*at) != own && is_one_chip(figures_of(FILES[*at].0), figures))
            .collect();
        if own.is_none() && siblings.is_empty() {
            return None;
        }
        let mut model = match own {
            // What curves are not made of may be another's: memory, the host.
            Some(at) => {
                let mut own = file(at).clone();
                own.figures = figures.clone();
                // The host beside a card that was measured is nobody else's.
                if figures.host_call.is_some() {
                    own.overhead = None;
                }
                own
            }
            None => {
                let same = catalogue().iter().find(|(_, known)| has_same_rates(known, figures));
                Self::of_data_sheet(same.map_or("", |(name, _)| name), figures)
            }
        };
        model.borrow(siblings.into_iter().map(file));
        Some(model)
    }

    /// Tells whether the rates that curves are made of are those of a device.
    pub fn is_of(&self, figures: &DeviceType) -> bool {
        has_same_rates(&self.figures, figures)
    }
}

/// Returns a file's model. Each is read once, and only where its device is asked for.
fn file(at: usize) -> &'static CostModel {
    static MODELS: [OnceLock<CostModel>; FILES.len()] = [const { OnceLock::new() }; FILES.len()];
    let (name, packed) = FILES[at];
    MODELS[at].get_or_init(|| read(&text(packed)).unwrap_or_else(|why| panic!("{name}: {why}")))
}

/// Compares the figures that curves are made of.
fn has_same_rates(one: &DeviceType, other: &DeviceType) -> bool {
    let rates =
        |device: &DeviceType| (device.memory_bandwidth, device.multiprocessors, device.l2, device.launch);
    one.peak == other.peak && rates(one) == rates(other)
}

/// Tells whether two GPUs are the same chip at other clocks, with other memory.
fn is_one_chip(one: &DeviceType, other: &DeviceType) -> bool {
    let chip = |device: &DeviceType| (device.architecture.clone(), device.multiprocessors, device.l2);
    let is_processor = host::is_processor(one.architecture.as_deref());
    !is_processor && one.architecture.is_some() && chip(one) == chip(other)
}

fn text(packed: &[u8]) -> String {
    let mut text = String::new();
    GzDecoder::new(packed).read_to_string(&mut text).expect("build.rs has packed text");
    text
}

fn read(text: &str) -> Result<CostModel, String> {
    let file = CostModelFile::read(text).map_err(|error| error.to_string())?;
    CostModel::from_file(&file).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use schema::{Phase, WorkSize};

    use super::*;

    #[test]
    fn it_belongs_to_the_catalogue() {
        for (name, packed) in FILES {
            let text = text(packed);
            let figures = &catalogue()[name];
            let model = CostModel::shipped(figures).expect(name);
            assert!(model.is_of(figures), "{name}");
            assert!(model.title().contains("fitted to"), "{}", model.title());
            let mut other = figures.clone();
            other.launch = Some(schema::Seconds(1.0));
            other.multiprocessors = Some(3);
            assert_eq!(CostModel::shipped(&other), None);
            let (least, most) = match name {
                // Ours, of three types; those of others have a few kinds each.
                "H100-SXM5-80GB" | "H200-SXM-141GB" => (100, 900_000),
                _ if name.starts_with("CPU") => (50, 300_000),
                _ => (2, 60_000),
            };
            assert_eq!(model.device, name);
            assert!(model.n_curves() >= least, "{name}: {} curves", model.n_curves());
            assert!(text.len() < most, "{name}: {} bytes", text.len());
            assert!(packed.len() < text.len() / 2, "{name}: {} bytes packed", packed.len());
            let path = format!("src/shipped/{}.yaml", name.to_lowercase());
            assert_eq!(text, std::fs::read_to_string(&path).expect("a file of ours"), "{path}");
        }
        assert_eq!(CostModel::shipped(&catalogue()["RTX-4090"]), None);
    }

    /// No rows of another data type answer, and what a sibling lends runs at the borrower's rates.
    #[test]
    fn a_gpu_borrows_from_its_own_chip() {
        let size = WorkSize::Product { batch: 1.0, m: 4096.0, n: 4096.0, k: 4096.0 };
        let has = |device: &str, dtype: &str| {
            let model = CostModel::shipped(&catalogue()[device]).expect(device);
            model.curve("linear", dtype, Phase::Forward, &size).is_some()
        };
        assert!(has("V100-PCIE-32GB", "float32") && has("V100-SXM2-32GB", "float32"));
        assert!(!has("V100-SXM2-32GB", "float16") && !has("T4", "float16"));
        assert!(has("A100-SXM4-80GB", "float32") && has("A100-PCIE-40GB", "bfloat16"));
        assert!(!has("A100-SXM4-80GB", "tf32") && !has("L4", "bfloat16"));
        let seconds = |device: &str| {
            let figures = &catalogue()[device];
            let model = CostModel::shipped(figures).expect(device);
            let machine = crate::Machine::of(figures, "float32");
            let work = crate::Work::of(size, Phase::Forward, machine.element);
            model.curve("linear", "float32", Phase::Forward, &size).expect("a curve").predict(&work).seconds
        };
        let faster = seconds("V100-PCIE-32GB") / seconds("V100-SXM2-32GB");
        assert!((faster - 15.7 / 14.0).abs() < 0.02, "{faster}");
        assert!(CostModel::shipped(&catalogue()["H100-PCIE-80GB"]).is_none());
    }
}
