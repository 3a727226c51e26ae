//! NCCL's own latencies of a ring, as its tuner has them.

/// NCCL's protocols: low latency, low latency with 128-byte lines, and simple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Flag with every 8 bytes: half the bandwidth.
    Ll,
    /// Flag with every 128 bytes: 92 % of the bandwidth.
    Ll128,
    /// Whole chunks.
    Simple,
}

/// What joins ranks, as NCCL's tuner tells links apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// NVLink.
    NvLink,
    /// PCI Express.
    Pci,
    /// A network.
    Net,
}

/// Returns NCCL's own latency of a ring all-reduce in nanoseconds (`src/graph/tuning.cc`).
pub fn ring_latency(protocol: Protocol, inner: Transport, n_ranks: u32, nodes: u32) -> u64 {
    let base = [6_600, 14_000, 8_400][protocol as usize];
    let steps = 2 * u64::from(n_ranks.saturating_sub(1));
    let between = 2 * u64::from(nodes.saturating_sub(1)).min(steps);
    base + (steps - between.min(steps)) * hop(protocol, inner) + between * hop(protocol, Transport::Net)
}

/// Nanoseconds of one hop: NVLink, PCI, network; LL, LL128, simple.
fn hop(protocol: Protocol, transport: Transport) -> u64 {
    const RING: [[u64; 3]; 3] = [[600, 1_900, 3_400], [1_000, 2_500, 5_700], [2_700, 4_000, 14_000]];
    RING[transport as usize][protocol as usize]
}

#[test]
fn nccl_latencies() {
    // Two ranks on PCI, LL128: 14 + 2 · 2.5 µs.
    assert_eq!(ring_latency(Protocol::Ll128, Transport::Pci, 2, 1), 19_000);
    // Eight ranks on NVLink, LL: 6.6 + 14 · 0.6 µs; two nodes of eight, simple: 8.4 + 28 · 3.4 + 2 · 14 µs.
    assert_eq!(ring_latency(Protocol::Ll, Transport::NvLink, 8, 1), 15_000);
    assert_eq!(ring_latency(Protocol::Simple, Transport::NvLink, 16, 2), 8_400 + 28 * 3_400 + 2 * 14_000);
}
