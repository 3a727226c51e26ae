//! A pin: blocks that are to be in one stage, or on some devices.

/// Blocks and where they are to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// What a user calls them.
    pub name: String,
    /// The blocks.
    pub blocks: Vec<usize>,
    /// Where they are to be.
    pub to: PinnedTo,
}

/// Where blocks are to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinnedTo {
    /// In this stage, the first being 0.
    Stage(usize),
    /// In the last stage.
    LastStage,
    /// On devices of these names and no others.
    Devices(Vec<String>),
}

impl Pin {
    pub(crate) fn is_to_devices(&self) -> bool {
        matches!(self.to, PinnedTo::Devices(_))
    }

    /// Returns the stage, the last one being later than any.
    fn stage(&self) -> Option<usize> {
        match self.to {
            PinnedTo::Stage(stage) => Some(stage),
            PinnedTo::LastStage => Some(usize::MAX),
            PinnedTo::Devices(_) => None,
        }
    }
}

/// Returns a pin to an earlier stage than one that its blocks need, and the latter; `edges` go from a block to a later one.
pub(crate) fn backwards(
    pins: &[Pin],
    n_blocks: usize,
    edges: impl Iterator<Item = (usize, usize)>,
) -> Option<(&Pin, &Pin)> {
    let mut needed: Vec<Vec<usize>> = vec![Vec::new(); n_blocks];
    edges.for_each(|(from, to)| needed[to].push(from));
    // The latest stage that each block, or what it needs, is pinned to, and by which pin.
    let mut latest: Vec<Option<(usize, usize)>> = vec![None; n_blocks];
    for block in 0..n_blocks {
        let own = pins.iter().enumerate().filter(|(_, pin)| pin.blocks.contains(&block));
        let own: Vec<(usize, usize)> = own.filter_map(|(index, pin)| Some((pin.stage()?, index))).collect();
        let before = needed[block].iter().filter_map(|&before| latest[before]);
        latest[block] = before.chain(own.iter().copied()).max();
        if let (Some((stage, pin)), Some((least, other))) = (own.iter().min(), latest[block])
            && *stage < least
        {
            return Some((&pins[*pin], &pins[other]));
        }
    }
    None
}
