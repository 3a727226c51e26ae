//! What the driver reports about the GPU that CUDA shows under a number.
//!
//! `nvidia-smi` numbers cards by their bus address. CUDA numbers those that `CUDA_VISIBLE_DEVICES` leaves, the fastest
//! first: the same number may be another card. So the driver is asked through libcuda, as libtorch does, and
//! `nvidia-smi` is asked by bus address. tch gives access to none of this.

use libloading::Library;
use schema::Hardware;

/// A GPU as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Card {
    /// `NVIDIA H100 80GB HBM3`
    pub(super) name: String,
    /// `sm90`, its L2, its memory.
    pub(super) hardware: Hardware,
    /// Bus address: `0000:1b:00.0`.
    pub(super) address: String,
}

/// Asks the driver; `None` without one, or for another vendor's.
pub(super) fn card(index: usize) -> Option<Card> {
    ask(index).ok().flatten()
}

#[allow(unsafe_code)]
fn ask(index: usize) -> Result<Option<Card>, libloading::Error> {
    use std::ffi::{c_char, c_int, c_uint};

    /// `CUdevice_attribute` of cuda.h.
    const L2_CACHE_SIZE: c_int = 38;
    const CAPABILITY: [c_int; 2] = [75, 76];
    const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

    // SAFETY: the types are those of cuda.h.
    type Init = unsafe extern "C" fn(c_uint) -> c_int;
    type Find = unsafe extern "C" fn(*mut c_int, c_int) -> c_int;
    type Text = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
    type Total = unsafe extern "C" fn(*mut usize, c_int) -> c_int;
    type Attribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;

    // SAFETY: the driver's own library, which libtorch has loaded already; the types are those of cuda.h, and each call is
    // given room for what it writes.
    unsafe {
        // Never unloaded: libtorch holds pointers into it.
        let driver = std::mem::ManuallyDrop::new(Library::new(LIBRARY)?);
        let init = driver.get::<Init>(b"cuInit\0")?;
        let get = driver.get::<Find>(b"cuDeviceGet\0")?;
        let name = driver.get::<Text>(b"cuDeviceGetName\0")?;
        let address = driver.get::<Text>(b"cuDeviceGetPCIBusId\0")?;
        let total = driver.get::<Total>(b"cuDeviceTotalMem_v2\0")?;
        let attribute = driver.get::<Attribute>(b"cuDeviceGetAttribute\0")?;

        let mut device = 0;
        if init(0) != 0 || get(&mut device, index as c_int) != 0 {
            return Ok(None);
        }
        let text = |ask: &Text| {
            let mut bytes = [0_u8; 256];
            let length = bytes.len() as c_int - 1;
            let is_there = ask(bytes.as_mut_ptr().cast(), length, device) == 0;
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
            is_there.then(|| String::from_utf8_lossy(&bytes[..end]).into_owned())
        };
        let number = |which: c_int| {
            let mut value = 0;
            (attribute(&mut value, which, device) == 0 && value > 0).then_some(value)
        };
        let mut memory = 0;
        let memory = (total(&mut memory, device) == 0 && memory > 0).then_some(memory as u64);
        let cache = number(L2_CACHE_SIZE).map(|bytes| bytes as u64);
        let architecture = number(CAPABILITY[0]).map(|major| {
            let minor = number(CAPABILITY[1]).unwrap_or(0);
            format!("sm{major}{minor}")
        });
        let (Some(name), Some(address)) = (text(&name), text(&address)) else { return Ok(None) };
        let hardware = Hardware { architecture, core_cache: cache, last_cache: None, memory };
        Ok(Some(Card { name, hardware, address }))
    }
}
